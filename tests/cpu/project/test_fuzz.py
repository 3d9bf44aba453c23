"""The programs of `make fuzz` fit the code that they fuzz; they run where clang and atheris are."""

import shutil
import subprocess

import pytest

from tests.fuzz import run


def test_the_native_target_compiles():
    """With any compiler: libFuzzer's is needed to link it."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    flags = [flag for flag in run.FLAGS if not flag.startswith(("-fsanitize", "-g", "-O"))]
    command = [compiler, *flags, "-fsyntax-only", f"-I{run.ROOT / 'csrc'}", str(run.ROOT / "tests/fuzz/native.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_layer_of_the_native_target_exists():
    layers = [run.ROOT / "csrc" / "selector" / name for name in ("forest.cpp", "op_model.cpp")]
    assert all(path.is_file() for path in layers) and set(run.TARGETS) == {"native", "artefact", "entry", "database"}
