"""Does pieces of work again and again, and lets another system call of them fail each time.

    LD_PRELOAD=failing_calls.so python -m tests.fakes.failing_calls FOLDER ERROR/MODE,... WORK/STEP ...

WORK is a class below, of which every STEP-th call fails in turn; ERROR is a name of errno, MODE `once` or `ever`.
Prints JSON {WORK: how many runs had a call that failed}, or the traceback of what does not hold.
"""

import ctypes
import errno
import functools
import json
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from deep_gemm.errors import CacheWarning
from deep_gemm.jit import build, cache, compile
from deep_gemm.jit.cache import DiskCache
from tests.fakes.cubin import make_cubin
from tests.fakes.databases import add_block, add_context, make_database, make_problem
from tuner import errors
from tuner.db import Store
from tuner.files import write_whole

KEY, OLD, NEW = "ab" * 32, b"old" * 3000, b"new" * 5000
MAX_CALLS = 2000


class Work:
    """What is done in a folder, and what must hold after one of its calls failed."""

    def prepare(self, folder: Path) -> None:
        """Make what is there before."""

    def do(self, folder: Path) -> object:
        """Do the work; its calls may fail."""
        raise NotImplementedError

    def check(self, folder: Path, outcome: object) -> None:
        """Check what do() returned, or the error that it raised, and what it left."""
        raise NotImplementedError


class Entry(Work):
    """Replace an entry of the cache: the old one or the new one is read, nothing raises, no temporary file is left."""

    def prepare(self, folder: Path) -> None:
        """Store the old entry."""
        DiskCache(folder / "cache").put(KEY, OLD)

    def do(self, folder: Path) -> object:
        """Store the new entry."""
        return DiskCache(folder / "cache").put(KEY, NEW)

    def check(self, folder: Path, outcome: object) -> None:
        """Check what is read."""
        assert outcome is None, outcome
        assert DiskCache(folder / "cache").get(KEY) in (OLD, NEW)
        assert [path.name for path in (folder / "cache").iterdir()] == [f"{KEY}.kernel"]


class Kernel(Work):
    """Compile a kernel into an empty cache: the call gives the kernel whatever the disk does."""

    result = compile.CompileResult(make_cubin("kernel"), "kernel", 8, 0, 0, (), "log", 1.0, "nvrtc", "13.0")

    def __init__(self) -> None:
        build.compile_source = lambda *_: self.result
        build.get_toolchain = lambda _: None
        build.hashing.compile_key = lambda *_: KEY

    def do(self, folder: Path) -> object:
        """Ask for the kernel."""
        os.environ["DG_JIT_CACHE_DIR"] = str(folder / "home")
        build.clear_memory()
        return build.get_cubin_for_source("the source", "kernel")

    def check(self, folder: Path, outcome: object) -> None:
        """Check the kernel, and that the cache is as good as new."""
        assert outcome == self.result, outcome
        assert self.do(folder) == self.result
        left = {path.suffix for path in folder.rglob("*") if path.is_file()}
        assert left <= {".kernel", ".lock"}, left


class File(Work):
    """Replace a file: it is the old one or the new one. What could not be removed beside it is swept an hour later."""

    def prepare(self, folder: Path) -> None:
        """Write the old file."""
        (folder / "file").write_bytes(OLD)

    def do(self, folder: Path) -> object:
        """Write the new file."""
        return write_whole(folder / "file", NEW)

    def check(self, folder: Path, outcome: object) -> None:
        """Check the file, and that an error says so."""
        assert (folder / "file").read_bytes() == (NEW if outcome is None else OLD)
        assert outcome is None or (isinstance(outcome, errors.StoreError) and "file: " in str(outcome)), outcome
        for left in folder.glob(".file.*"):
            os.utime(left, (0, 0))
        self.do(folder)
        assert [path.name for path in folder.iterdir()] == ["file"]


class Creation(Work):
    """Make a database and write the first row: a typed error, and the same succeeds when the disk works again."""

    def do(self, folder: Path) -> object:
        """Make it."""
        with Store.open(folder / "tuning.db") as store:
            store.start_sweep({"preset": "first"})

    def check(self, folder: Path, outcome: object) -> None:
        """Check the error, and do it again."""
        check_typed(outcome)
        self.do(folder)
        with Store.open(folder / "tuning.db", "ro") as store:
            assert store.check() == [] and store.stats()["tables"]["sweep"] == (2 if outcome is None else 1)


class Block(Work):
    """Add a measured block: it is there whole, or not at all, and everything that was committed before is."""

    @staticmethod
    @functools.cache
    def made() -> bytes:
        """Return a database of two blocks."""
        with tempfile.TemporaryDirectory() as name:
            return make_database(Path(name) / "tuning.db", num_problems=2).read_bytes()

    def prepare(self, folder: Path) -> None:
        """Copy it."""
        (folder / "tuning.db").write_bytes(self.made())

    def do(self, folder: Path) -> object:
        """Add a third block."""
        with Store.open(folder / "tuning.db") as store:
            add_block(store, add_context(store), make_problem(77))

    def check(self, folder: Path, outcome: object) -> None:
        """Check all rows, and do it again."""
        check_typed(outcome)
        before = self.count(folder)
        assert before in ((24,) if outcome is None else (16, 24)), (before, outcome)
        self.do(folder)
        assert self.count(folder) == before + 8

    @staticmethod
    def count(folder: Path) -> int:
        """Return the number of rows of a sound database."""
        with Store.open(folder / "tuning.db", "ro") as store:
            assert store.check() == []
            return len(store.load_measurements())


def check_typed(outcome: object) -> None:
    """Check that an error is of the tuner, one line, and names the database."""
    if outcome is not None:
        assert isinstance(outcome, errors.StoreError) and "tuning.db" in str(outcome), repr(outcome)
        assert len(str(outcome).splitlines()) == 1


WORKS = {work.__name__: work for work in (Entry, Kernel, File, Creation, Block)}


def run_once(shim: ctypes.CDLL, work: Work, folder: Path, number: int, error: int, is_for_ever: bool) -> bool:
    """Do the work with call `number` failing; return whether a call failed."""
    work.prepare(folder)
    cache._has_warned = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shim.fail_calls(str(folder).encode(), number, error, is_for_ever)
        try:
            outcome = work.do(folder)
        except Exception as raised:
            outcome = raised
        finally:
            has_failed = shim.count_failed() > 0
            shim.fail_calls(b"", 0, 0, False)
        assert len([one for one in caught if one.category is CacheWarning]) <= 1, caught
        work.check(folder, outcome)
    return has_failed


def run(shim: ctypes.CDLL, work: Work, parent: Path, step: int, error: int, is_for_ever: bool) -> int:
    """Fail every `step`-th call in turn until none fails; return how many runs had a failure."""
    for number in range(1, MAX_CALLS, step):
        folder = Path(tempfile.mkdtemp(dir=parent))
        try:
            if not run_once(shim, work, folder, number, error, is_for_ever):
                return (number - 1) // step
        except Exception as raised:
            raised.add_note(f"call {number} failed with {errno.errorcode[error]}, for ever: {is_for_ever}")
            raise
        finally:
            shutil.rmtree(folder)
    raise AssertionError("the work has no end")


def main() -> None:
    """Run the command line."""
    parent, faults, *works = sys.argv[1:]
    shim, failed = ctypes.CDLL(os.environ["LD_PRELOAD"]), dict[str, int]()
    for name, step in (work.split("/") for work in works):
        work = WORKS[name]()
        for error, mode in (fault.split("/") for fault in faults.split(",")):
            count = run(shim, work, Path(parent), int(step), getattr(errno, error), mode == "ever")
            failed[name] = failed.get(name, 0) + count
    print(json.dumps(failed))


if __name__ == "__main__":
    main()
