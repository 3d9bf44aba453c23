"""Compilers for tests: the fake nvcc, installed anywhere under any version, and the rule for real ones that are
missing.
"""

import os
import shlex
import sys
from pathlib import Path

import pytest

from deep_gemm.errors import CompileError
from deep_gemm.jit import build, cache, compile

FAKE_NVCC = Path(__file__).with_name("nvcc")


def install_nvcc(folder: Path, version: str = "release 13.0, V13.0.88", remark: str = "") -> Path:
    """Write an executable `nvcc` into `folder` that reports `version`, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvcc"
    command = [sys.executable, "-I", "-S", str(FAKE_NVCC), version]
    path.write_text(f'#!/bin/sh\n# {remark}\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
    return path


def isolate(monkeypatch, folder: Path) -> Path:
    """Give the test a cache folder of its own and a process that has neither kernels in memory nor warned; return the
    folder.
    """
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(folder))
    monkeypatch.setattr(cache, "_has_warned", False)
    build.clear_memory()
    return folder


def use_fake_nvcc(monkeypatch, folder: Path) -> Path:
    """Make the fake nvcc the compiler, with a cache and a TMPDIR of its own below `folder`; return the cache folder."""
    (folder / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    monkeypatch.setenv("DG_JIT_USE_NVRTC", "0")
    monkeypatch.setenv("DG_JIT_NVCC_COMPILER", str(install_nvcc(folder / "bin")))
    return isolate(monkeypatch, folder / "home")


def make_source(name: str = "kernel", **directives: object) -> str:
    """Return a source for the fake nvcc."""
    lines = [f"// fake: {key}={value}" for key, value in directives.items()]
    return "\n".join([*lines, f'extern "C" __global__ void {name}(int* p) {{ *p = 1; }}', ""])


def require_compiler(kind: str, reason: str = "") -> None:
    """Skip the test where the real compiler is missing; fail it in CI, where it must be there."""
    try:
        compile.get_toolchain(kind)
    except CompileError as error:
        message = f"{reason or 'test'} needs {kind}: {error}"
        if os.environ.get("CI"):
            pytest.fail(message)
        print(message)
        pytest.skip(message)


def install_counting_nvcc(folder: Path, **faults: str) -> Path:
    """Write an `nvcc` into `folder` that notes the first line of each source that it compiles in `folder`/compiled;
    return its path. `faults`: a shell command for the sources whose first line names an op kind or a plain kernel.
    """
    plain = install_nvcc(folder / "plain")
    cases = "\n".join(f'"// {op}:"* | "// {op}") {command} ;;' for op, command in faults.items())
    path = folder / "nvcc"
    path.write_text(f"""#!/bin/sh
case "$*" in *--version*) exec {plain} "$@" ;; esac
for source; do :; done
line=$(head -n 1 "$source")
echo "$line" >> {folder}/compiled
case "$line" in
{cases}
*) ;;
esac
exec {plain} "$@"
""")
    path.chmod(0o755)
    return path


def read_compiled(folder: Path) -> list[str]:
    """Return the first lines of the sources that the compiler of install_counting_nvcc has compiled, in order."""
    path = folder / "compiled"
    return path.read_text().splitlines() if path.exists() else []
