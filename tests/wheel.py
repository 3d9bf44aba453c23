"""Builds the source distribution and from it the wheel, installs this into a fresh virtual environment, and runs CPU
tests on the installed package.

    python -m tests.wheel                            # both are in dist/ afterwards
    python -m tests.wheel --tests tests/cpu/ops --dist dist
    python -m tests.wheel --tests                    # no tests: the package is imported only

What the source distribution lacks, the wheel lacks. The new environment also sees the packages of the one that runs
this (torch is large), behind its own. Tests run in a folder that has the repository's tests, benchmarks and examples,
and no package of its own. Exit status: that of the tests, or 1 where the installed package is not the one that is
imported.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
#: What tests read beside the package.
COPIED = ("tests", "benchmarks", "examples", "pyproject.toml")
#: Tests that need no source of the package, as the last one does.
TESTS = ("tests/cpu/core", "tests/cpu/nn", "tests/cpu/ops", "--ignore=tests/cpu/ops/test_cast_kernels.py")
#: Says where the package is from, and that its native module, artefact, kernels and recorded sweeps are with it.
PROBE = """
import deep_gemm, deep_gemm.nn, torch, tuner
from deep_gemm import _C, selection
from deep_gemm.jit.hashing import kernel_hash
from tuner.db.files import SNAPSHOTS
problem = _C.Problem("fp8_gemm", 64, 2112, 7168)
choice, layer = selection.explain(problem, _C.Device.known("h200")), deep_gemm.nn.Fp8Linear(32, 48)
assert list(SNAPSHOTS.glob("*.db")) and len(kernel_hash("fp8_gemm")) == 64
assert layer(torch.randn(2, 32)).shape == (2, 48)
print(deep_gemm.__file__, tuner.__file__, choice.source, sep="\\n")
"""


def build_wheel(dist: Path) -> Path:
    """Build the source distribution and, from it, the wheel of this Python version into `dist`; return the wheel."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # it names every file
    return max(dist.glob("deep_gemm-*.whl"), key=lambda path: path.stat().st_mtime)


def make_environment(folder: Path, wheel: Path) -> Path:
    """Make a virtual environment with the wheel and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    # On a PYTHONPATH pip would find the checkout and install nothing.
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True, env=environment())
    site = next((folder / "lib").glob("python*/site-packages"))
    others = [path for path in sys.path if path.endswith("-packages")] or [str(Path(torch.__file__).parents[1])]
    (site / "others.pth").write_text("\n".join(others) + "\n")
    return python


def copy_tests(folder: Path) -> Path:
    """Copy what tests read beside the package into a folder and return it."""
    for name in COPIED:
        source, copy = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    return folder


def environment() -> dict[str, str]:
    """Return the environment variables of this process without what would lead to the checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run the environment's Python in a folder, without what would lead to the checkout."""
    return subprocess.run(
        [str(python), *arguments], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True, check=False
    )


def check(dist: Path, tests: list[str], folder: Path) -> int:
    """Build, install, import and test. Returns the exit status."""
    wheel = build_wheel(dist)
    python = make_environment(folder / "venv", wheel)
    probe = run(python, folder, "-c", PROBE)
    print(f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB\n{probe.stdout}", end="", flush=True)
    installed = [line.startswith(str(folder / "venv")) for line in probe.stdout.splitlines()[:2]]
    if probe.returncode != 0 or installed != [True, True]:
        return 1
    if not tests:
        return 0
    copy = copy_tests(folder / "tree")
    done = run(python, copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    print(done.stdout, flush=True)
    return done.returncode


def main(arguments: list[str] | None = None) -> int:
    """Check the wheel of this checkout. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the wheel goes")
    parser.add_argument("--tests", nargs="*", default=list(TESTS), help="what pytest runs there")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tree").mkdir()
        return check(args.dist, args.tests, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
