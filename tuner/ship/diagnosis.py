"""What the library finds on this machine, part by part: GPU, driver, compiler, torch, cache, database, artefact."""

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from deep_gemm import _C, environment, selection
from deep_gemm._version import __version__
from deep_gemm.errors import CacheError, DeepGemmError
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit import cache_contents
from deep_gemm.jit.cache import get_disk_cache
from deep_gemm.jit.compile import get_toolchain
from tuner import errors
from tuner.credentials import hide_credentials
from tuner.db import Store
from tuner.learn.sources import RECORDED_SKU, check_named, device_at_hand, known_device

#: How a part is: as needed, not there although nothing is wrong with that, or to be mended.
OK, ABSENT, FAULT = "ok", "-", "FAULT"
#: The problem for which `doctor` says who chooses: a decode projection of DeepSeek-V3.
PROBE = ("fp8_gemm", 64, 2112, 7168)


@dataclass(frozen=True)
class Finding:
    """One part of the machine: its state (OK, ABSENT or FAULT), what was found, and what to do where it is a FAULT."""

    part: str
    state: str
    found: str
    remedy: str = ""


def diagnose() -> list[Finding]:
    """Return one finding per part; a part that fails is a finding, too."""
    checks: tuple[Callable[[], Finding], ...] = (
        check_package,
        check_torch,
        check_driver,
        check_gpu,
        check_compiler,
        check_cache,
        check_selector,
        check_choice,
        check_database,
        check_variables,
    )
    return [attempt(check) for check in checks]


def attempt(check: Callable[[], Finding]) -> Finding:
    """Return the finding of one check, also where it raises."""
    try:
        return check()
    except (DeepGemmError, errors.TunerError, OSError) as error:
        return split(check.__name__.removeprefix("check_"), error)


def split(part: str, error: Exception) -> Finding:
    """Return the finding of a typed error, whose text says the fault, then the remedy."""
    found, _, remedy = str(error).partition("; ")
    return Finding(part, FAULT, found, remedy)


def check_package() -> Finding:
    """Return the version of the package and where it lies; a FAULT where another distribution has files there."""
    folder = Path(_C.__file__).parent
    found, others = f"deep_gemm {__version__} in {folder}", find_others(folder)
    if not others:
        return Finding("package", OK, found)
    named = " ".join(others)
    remedy = f"`pip uninstall {named} deep_gemm`, then install deep_gemm again, or each into a folder of its own"
    return Finding("package", FAULT, f"{found}, with files of {named} among its own", remedy)


def find_others(folder: Path) -> list[str]:
    """Return the other distributions that have their deep_gemm in this folder, too: pip lets them write over it."""
    names = set(importlib.metadata.packages_distributions().get("deep_gemm", ())) - {"deep_gemm", "deep-gemm"}
    found = (one for one in importlib.metadata.distributions() if one.name in names)
    return sorted({one.name for one in found if one.locate_file("deep_gemm") == folder})


def check_torch() -> Finding:
    """Return the version of torch, and of the CUDA that it was built for."""
    cuda = torch.version.cuda
    return Finding("torch", OK, f"torch {torch.__version__}, " + (f"CUDA {cuda}" if cuda else "without CUDA"))


def check_driver() -> Finding:
    """Return the CUDA version of the driver."""
    try:
        version = _C.get_driver_version()
    except DeepGemmError as error:
        return Finding("driver", ABSENT, f"{str(error).partition('; ')[0]}: calls on CPU tensors work")
    return Finding("driver", OK, f"CUDA {version // 1000}.{version % 1000 // 10}")


def check_gpu() -> Finding:
    """Return the current GPU, and whether kernels run on it."""
    try:
        device = _C.get_device()
    except DeepGemmError as error:
        return Finding("GPU", ABSENT, str(error).partition("; ")[0])
    major, minor = device.compute_capability
    found = f"{device.name} ({device.sku}, SM{major}{minor}, {device.sm_count} SMs)"
    if (major, minor) == (9, 0):
        return Finding("GPU", OK, found)
    return Finding("GPU", FAULT, found, "kernels need compute capability 9.0 (Hopper); use CPU tensors")


def check_compiler() -> Finding:
    """Return the compiler that kernels are compiled with. Without a GPU there need be none, unless one is asked for."""
    try:
        compiler = get_toolchain()
    except DeepGemmError as error:
        found = split("compiler", error)
        is_asked = any(map(environment.get_string, ("DG_JIT_USE_NVRTC", "DG_JIT_NVCC_COMPILER")))
        if not is_asked and check_gpu().state == ABSENT:
            return replace(found, state=ABSENT, remedy="")
        return replace(found, remedy=found.remedy or "correct DG_JIT_NVCC_COMPILER, or unset DG_JIT_USE_NVRTC")
    return Finding("compiler", OK, f"{compiler.kind} {compiler.version_text}")


def check_cache() -> Finding:
    """Return where compiled kernels are kept, and how many there are; a folder that is missing is made."""
    folder = get_disk_cache().path
    if folder is None:
        return Finding(
            "cache", FAULT, "neither DG_JIT_CACHE_DIR nor HOME is set", "every process compiles anew; set one"
        )
    remedy = "set DG_JIT_CACHE_DIR to a folder of your own, open to nobody else"
    if not folder.is_absolute():
        return Finding("cache", FAULT, f"{folder}: not an absolute path, kernels are kept in memory only", remedy)
    try:
        get_disk_cache().check()
        files = cache_contents.list_files(get_disk_cache(), cache_contents.ENTRY)
    except CacheError as error:
        return replace(split("cache", error), remedy=remedy)
    except OSError as error:
        return Finding("cache", FAULT, f"{folder}: {error.strerror or error}", remedy)
    size = sum(status.st_size for _, status in files)
    return Finding("cache", OK, f"{len(files)} kernels, {size / 1e6:.1f} MB in {folder}")


def check_selector() -> Finding:
    """Return the artefact that the library uses for the GPU at hand, without one for the recorded GPU model."""
    device = device_at_hand("")
    loaded = selection.load_selector(device.sku)
    if loaded.selector is None:
        state = FAULT if loaded.refusal else ABSENT
        remedy = "export a selector again, or remove the file" if loaded.refusal else ""
        if loaded.refusal and environment.get_string("DG_SELECTOR"):
            remedy = "correct DG_SELECTOR, or unset it"
        return Finding("selector", state, loaded.reason, remedy)
    known = loaded.selector.metadata["ops"]
    return Finding(
        "selector", OK, f"{loaded.file}, {len(known)} of {len(OP_KINDS)} op kinds, for {loaded.selector.sku}"
    )


def check_choice() -> Finding:
    """Return who would choose the config of a common problem."""
    device = device_at_hand("")
    problem = _C.Problem(*PROBE)
    choice = selection.explain(problem, device)
    found = f"{problem}: {choice.config}, {choice.source} ({choice.reason})"
    if choice.source == "analytic" and _C.base_sku(device.sku) == known_device("h200").sku == RECORDED_SKU:
        remedy = "the packaged selector is not used; `python -m tuner models list` says why"
        return Finding("choice", FAULT if selection.load_selector(device.sku).mode == "auto" else OK, found, remedy)
    return Finding("choice", OK, found)


def check_database() -> Finding:
    """Return the user's own database, if there is one."""
    target = environment.tuner_database()
    try:
        check_named()
    except errors.UsageError as error:
        return split("database", error)
    if "://" not in target and not Path(target).exists():
        return Finding("database", ABSENT, f"{target}: no such file; reading commands take the recorded snapshot")
    try:
        with Store.open(target, "ro") as store:
            sentinels = store.count_sentinels()
            count = store.count_measurements() - sentinels
    except errors.TunerError as error:
        return split("database", error)
    more = f" and {sentinels} of sentinels" if sentinels else ""
    return Finding("database", OK, f"{hide_credentials(target)}, {count} measurements{more}")


def check_variables() -> Finding:
    """Return the environment variables that are set."""
    given = [
        f"{name}={hide_credentials(value)}" for name in environment.VARIABLES if (value := environment.get_string(name))
    ]
    misspelt = environment.find_misspelt()
    if misspelt:
        name, meant = next(iter(misspelt.items()))
        return Finding("variables", FAULT, f"{name} is not read", f"did you mean {meant}?")
    return Finding("variables", OK, ", ".join(given) or "none of the package's is set")
