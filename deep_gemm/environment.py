"""The one place where deep_gemm reads environment variables. Values are read when asked for, never at import."""

import difflib
import os
import warnings
from functools import cache
from pathlib import Path

#: Every variable that is read, with its meaning; the table of docs/configuration.md is compared with it by a test.
VARIABLES = {
    "DG_JIT_CACHE_DIR": "Folder of the compiled-kernel cache (absolute path); default `$HOME/.deep_gemm`.",
    "DG_JIT_USE_NVRTC": "`1` (default): compile with NVRTC; `0`: compile with NVCC.",
    "DG_JIT_NVCC_COMPILER": "Path of the `nvcc` to use; default: `$CUDA_HOME/bin/nvcc`, then the one on PATH.",
    "DG_JIT_DEBUG": "`1`: print what the JIT does (cache hits, compilations, loads).",
    "DG_JIT_PTXAS_VERBOSE": "`1`: print the resource report of every compiled kernel.",
    "DG_JIT_PRINT_COMPILER_COMMAND": "`1`: print the compiler's command line.",
    "DG_PRINT_CONFIGS": "`1`: print the chosen config of each new problem once, with who chose it and why.",
    "DG_SELECTOR": "`auto` (default), `model` (no exact table), `analytic`, or the path of an artefact.",
    "DG_MODEL_DIR": "Folder of user-made selector artefacts; default `$HOME/.deep_gemm/models`.",
    "DG_BATCH_INVARIANT": "`1`: use only configs with which a row of D does not depend on m, bit for bit; `0`: use "
    "any. Default: `1` for BF16, `0` for FP8.",
    "DG_COPY_SCALES": "`0`: row-major scales of large FP8 products are read where they are, not copied first, which "
    "takes memory. Default: `1`.",
    "DG_SECOND_TILE": "`1` (default): kernels of few masked groups, and of rows of groups with ends, may hold two "
    "tiles and take one by the rows on the device; `0`: they hold one.",
    "DG_RECORD_SHAPES": "Path of a file to which each new problem is appended as one JSON line.",
    "DG_TUNER_DB": "Path or URL of the tuning database; default `$HOME/.deep_gemm/tuning.db`.",
}
#: How like one of VARIABLES (difflib's ratio) an unknown name is taken for it. Other packages have DG_ names, too.
LIKENESS = 0.85


def find_misspelt() -> dict[str, str]:
    """Return {name: the variable that was probably meant} of the DG_ variables that are set and that nothing reads."""
    unknown = sorted(name for name in os.environ if name.startswith("DG_") and name not in VARIABLES)
    near = {name: difflib.get_close_matches(name, VARIABLES, n=1, cutoff=LIKENESS) for name in unknown}
    return {name: matches[0] for name, matches in near.items() if matches}


@cache
def warn_of_misspelt() -> None:
    """Warn, once in a process, of variables that are set under a name that is nearly right."""
    for name, meant in find_misspelt().items():
        warnings.warn(f"{name}: no such variable, so it changes nothing; did you mean {meant}?", stacklevel=3)


def get_string(name: str, default: str = "") -> str:
    """Return the value of `name` (a key of VARIABLES), or `default` when it is unset or empty."""
    if name not in VARIABLES:
        raise KeyError(name)
    warn_of_misspelt()
    return os.environ.get(name) or default


def is_enabled(name: str, default: bool = False) -> bool:
    """Return whether the switch `name` is on: any value but `0`, `false`, `no`, `off` and the empty string."""
    value = get_string(name)
    return default if not value else value.strip().lower() not in ("0", "false", "no", "off")


def read_switch(name: str) -> bool | None:
    """Return whether the switch `name` is on, or None where it is unset or empty."""
    return is_enabled(name) if get_string(name) else None


def home_dir() -> Path | None:
    """Return the user's home folder, or None where HOME is unset or not absolute."""
    home = os.environ.get("HOME", "")
    return Path(home) if os.path.isabs(home) else None


def cache_dir() -> Path | None:
    """Return the cache folder asked for (it may not exist), or None where neither the variable nor HOME is set."""
    value = get_string("DG_JIT_CACHE_DIR")
    if value:
        return Path(value)
    home = home_dir()
    return home / ".deep_gemm" if home else None


def model_dir() -> Path | None:
    """Return the folder of the user's artefacts (it may not exist), or None without the variable and HOME."""
    value = get_string("DG_MODEL_DIR")
    if value:
        return Path(value)
    home = home_dir()
    return home / ".deep_gemm" / "models" if home else None


def cuda_home() -> Path | None:
    """Return the CUDA toolkit's folder named by CUDA_HOME or CUDA_PATH, or None."""
    value = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return Path(value) if value else None


def temp_dir() -> Path | None:
    """Return the folder for scratch files named by TMPDIR (default /tmp), or None where it is not absolute."""
    value = os.environ.get("TMPDIR") or "/tmp"
    return Path(value) if os.path.isabs(value) else None


def search_path() -> list[Path]:
    """Return the absolute folders of PATH. Relative and empty entries depend on the current folder and are left out."""
    return [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(entry)]


def tuner_database() -> str:
    """Return the tuning database's path or URL named by DG_TUNER_DB, or the default below HOME."""
    return get_string("DG_TUNER_DB") or str((home_dir() or Path.cwd()) / ".deep_gemm" / "tuning.db")
