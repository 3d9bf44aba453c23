"""Plant one defect after the other in a copy of the tree, and see whether the tests that are named for it fail.

    python -m tests.mutation.run [--native] [--only TEXT]

Each defect runs in a fork of this process, which has imported what takes long. --native adds the defects of C++, each
of which compiles one file. Exits with 1 where fewer than 95 % are noticed.
"""

import argparse
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutation.board_defects import BOARD_DEFECTS
from tests.mutation.compare_defects import COMPARE_DEFECTS
from tests.mutation.db_defects import DB_DEFECTS
from tests.mutation.defects import DEFECTS
from tests.mutation.mega_defects import MEGA_DEFECTS
from tests.mutation.native_defects import NATIVE_DEFECTS
from tests.mutation.tile_defects import TILE_DEFECTS

ROOT = Path(__file__).parents[2]
MIN_NOTICED = 0.95
LIMIT_S = 300
#: Where files lie of which the native module is built.
NATIVE = "csrc/"
SLOW = ("alembic", "hypothesis", "optuna", "scipy.stats", "sklearn.ensemble", "sqlalchemy", "torch", "typer")


class Defect(NamedTuple):
    """`old` in a file becomes `new`; one of `tests` must then fail."""

    file: str
    tests: tuple[str, ...]
    old: str
    new: str


def list_defects(is_native: bool) -> Iterator[Defect]:
    """Yield the defects of Python and, where asked, those of C++."""
    own = (DEFECTS, DB_DEFECTS, BOARD_DEFECTS, COMPARE_DEFECTS, TILE_DEFECTS, MEGA_DEFECTS)
    for groups in (*own, *([NATIVE_DEFECTS] if is_native else [])):
        for (file, tests), changes in groups.items():
            for old, new in changes:
                yield Defect(file, tuple(tests.split()), old, new)


def copy_tree(target: Path, has_build: bool = True) -> None:
    """Copy what git knows of the tree, with its links and, unless not `has_build`, the built native module."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists() or (ROOT / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    if not has_build:
        return
    for built in (ROOT / "deep_gemm").glob("_C*.so"):
        shutil.copy2(built, target / "deep_gemm" / built.name)
    if (ROOT / "build").is_dir():
        shutil.copytree(ROOT / "build", target / "build", ignore=shutil.ignore_patterns("sanitizers", "fuzz"))


def plant(tree: Path, defect: Defect) -> str:
    """Put a defect into its file; return the text before."""
    path = tree / defect.file
    before = path.read_text(encoding="utf-8")
    if before.count(defect.old) != 1:
        raise ValueError(f"{defect.file}: {defect.old!r} is there {before.count(defect.old)} times; name it uniquely")
    path.write_text(before.replace(defect.old, defect.new), encoding="utf-8")
    return before


def run_tests(tree: Path, tests: tuple[str, ...]) -> bool:
    """Return whether all tests pass in the tree, in a fork that dies with them; one that takes too long has failed."""
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        os.chdir(tree)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        sys.path[:] = [str(tree), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
        os.environ["PYTHONPATH"] = str(tree)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        import pytest

        os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])))
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.05)
    os.killpg(child, 9)
    os.waitpid(child, 0)
    return False


def build(tree: Path) -> bool:
    """Build the native module in the tree; return whether it compiles."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    return subprocess.run(command, cwd=tree, capture_output=True).returncode == 0


def run_on_build(tree: Path, defect: Defect) -> bool:
    """Return whether the tests of a defect pass in the tree as it is; where it is one of C++, it is built before."""
    if defect.file.startswith(NATIVE) and not build(tree):
        raise ValueError(f"{defect.file}: the tree does not compile, with {defect.new!r} or without")
    return run_tests(tree, defect.tests)


def is_noticed(tree: Path, defect: Defect) -> bool:
    """Plant a defect, run its tests, and take it out again."""
    before = plant(tree, defect)
    try:
        return not run_on_build(tree, defect)
    finally:
        (tree / defect.file).write_text(before, encoding="utf-8")


def import_the_slow() -> None:
    """Import what the forks need and no defect touches."""
    for name in SLOW:
        importlib.import_module(name)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--native", action="store_true", help="plant defects in C++, too")
    parser.add_argument("--only", default="", help="only defects of files whose path contains this")
    arguments = parser.parse_args()
    import_the_slow()
    defects = [defect for defect in list_defects(arguments.native) if arguments.only in defect.file]
    if not defects:
        parser.error(f"--only {arguments.only}: no file with defects has that in its path, so nothing was planted")
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        sound: set[tuple[str, ...]] = set()
        for number, defect in enumerate(defects):
            if defect.tests not in sound and not run_on_build(tree, defect):
                sys.exit(f"{' '.join(defect.tests)}: fail without a defect; mend them first")
            sound.add(defect.tests)
            found = is_noticed(tree, defect)
            missed += [] if found else [defect]
            print(
                f"{number + 1}/{len(defects)} {'noticed' if found else 'MISSED '} {defect.file}: {defect.new}",
                flush=True,
            )
    share = 1 - len(missed) / len(defects)
    print(f"{len(defects) - len(missed)} of {len(defects)} noticed ({share:.1%})")
    sys.exit(share < MIN_NOTICED)


if __name__ == "__main__":
    main()
