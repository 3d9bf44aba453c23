"""Compile the emulator, and kernels for it.

What is built is kept in `build/emulator` of the checkout, by the hash of all that it is made of.
"""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from .translate import translate

_ROOT = Path(__file__).parents[2]
_CORE = Path(__file__).with_name("core")
_HEADERS = _ROOT / "deep_gemm" / "include"
_FOLDER = _ROOT / "build" / "emulator"
_FLAGS = ("-std=c++20", "-g1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")
_CORE_FLAGS = ("-O1", "-ftree-vectorize", "-Wall", "-Wextra", "-Werror")
_KERNEL_FLAGS = ("-O1", "-w")
_TIMEOUT_S = 300

#: Text to replace in a header, by its name below deep_gemm/include.
Defects = Mapping[str, tuple[str, str]]


def build_kernel(source: str, kernel_name: str, defects: Defects | None = None) -> bytes:
    """Return what stands for the cubin of the kernel `kernel_name` of `source` under the stub driver.

    defects: by header, a text that stands there once, and what stands there instead.
    """
    headers = _read_headers(dict(defects or {}))
    core = build_core()
    cluster = re.search(r"__cluster_dims__\((\d+), 1, 1\)", source)
    text = f'#include "cuda.hpp"\n{translate(source, "source")}\n' + (
        f'extern "C" void emulate_kernel(void** parameters) {{ ::emulator::call({kernel_name}, parameters); }}\n'
        f'extern "C" const unsigned emulated_cluster = {cluster[1] if cluster else 0};\n'
    )
    key = _hash([text, str(core), *_KERNEL_FLAGS, *(part for item in sorted(headers.items()) for part in item)])
    path = _FOLDER / f"kernel-{key}.so"
    if not path.exists():
        _compile_kernel(path, text, headers, core)
    return b"EMULATE " + str(path).encode() + b"\0"


@functools.cache
def build_core() -> Path:
    """Return the library of the emulator itself. Skips the test where there is no C++ compiler."""
    files = sorted(_CORE.iterdir())
    path = _FOLDER / f"emulator-{_hash([file.read_text() for file in files] + list(_FLAGS + _CORE_FLAGS))}.so"
    if not path.exists():
        with tempfile.NamedTemporaryFile(
            "w", suffix=".cpp"
        ) as all_files:  # in one go: most of the time goes into headers
            all_files.writelines(f'#include "{file}"\n' for file in files if file.suffix == ".cpp")
            all_files.flush()
            _compile(path, [*_CORE_FLAGS, f"-I{_CORE}", all_files.name])
    return path


def _read_headers(defects: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Return the text of every device header by its path below the include folder."""
    headers = {str(path.relative_to(_HEADERS)): path.read_text() for path in sorted(_HEADERS.rglob("*.cuh"))}
    for name, (old, new) in defects.items():
        assert headers[name].count(old) == 1, f"{name}: {old!r} must stand there once"
        headers[name] = headers[name].replace(old, new)
    return headers


def _compile_kernel(path: Path, text: str, headers: dict[str, str], core: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="emulator-") as name:
        folder = Path(name)
        for header, content in headers.items():
            (folder / header).parent.mkdir(parents=True, exist_ok=True)
            (folder / header).write_text(translate(content, Path(header).name))
        (folder / "kernel.cpp").write_text(text)
        _compile(path, [*_KERNEL_FLAGS, f"-I{folder}", f"-I{_CORE}", str(folder / "kernel.cpp"), str(core)])


def _compile(path: Path, arguments: list[str]) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler for the emulator")
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_suffix(f".{os.getpid()}.so")
    result = subprocess.run(
        [compiler, *_FLAGS, *arguments, "-ldl", "-o", str(own)], capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    assert result.returncode == 0, result.stderr[-8000:]
    own.replace(path)


def _hash(parts: list[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]
