"""Build the native module with a sanitizer in a copy of the tree, and run the CPU tests of the native layers under it.

    python -m tests.sanitizers.run [--kind address|thread] [TEST ...]

`address` finds wrong use of memory and undefined behaviour, `thread` data races between threads. The copy stays in
build/sanitizers/KIND, so that a second run compiles what has changed only. Exits with 1 where a test fails or a
sanitizer reports something.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.mutation.run import copy_tree

ROOT = Path(__file__).parents[2]
#: What a report begins with.
REPORTS = ("ERROR: AddressSanitizer", "CHECK failed: ", "WARNING: ThreadSanitizer", "runtime error:")


class Kind(NamedTuple):
    """Flags of the compiler, the library that is loaded first, its options, and the tests that are run."""

    flags: str
    library: str
    options: dict[str, str]
    tests: tuple[str, ...]


KINDS = {
    "address": Kind(
        "-fsanitize=address,undefined -fno-omit-frame-pointer",
        "libasan.so",
        {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0", "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=0"},
        ("tests/cpu/core", "tests/cpu/runtime", "tests/cpu/selector", "tests/fault/test_native_objects.py",
         "tests/fault/test_launch_arguments.py", "tests/fault/test_overlap.py", "tests/fault/test_model_mutants.py"),
    ),
    "thread": Kind(
        "-fsanitize=thread -fno-omit-frame-pointer",
        "libtsan.so",
        {"TSAN_OPTIONS": "report_bugs=1:halt_on_error=0:exitcode=0:ignore_noninstrumented_modules=1"},
        ("tests/cpu/runtime/test_dispatch.py", "tests/cpu/runtime/test_launch.py",
         "tests/cpu/selector/test_selection.py"),
    ),
}  # fmt: skip


#: What setup.py says of optimisation, and what it says in the copy: with -O2, one file takes a sanitizer a minute.
OPTIMISED, PLAIN = '"-O2", "-g0"', '"-O0", "-g1"'


def forgo_optimisation(script: Path) -> None:
    """Let the copy's setup.py compile without optimisation. Its flags come last, so that no variable overrides them."""
    text, changed = script.read_text(encoding="utf-8"), script.stat().st_mtime
    if OPTIMISED not in text:
        raise ValueError(f"{script}: {OPTIMISED} is not there; say in {__file__} what stands in its place")
    script.write_text(text.replace(OPTIMISED, PLAIN), encoding="utf-8")
    os.utime(script, (changed, changed))  # what was compiled with it before stays


def build(tree: Path, kind: Kind) -> None:
    """Compile the native module in the copy, what is outdated only."""
    forgo_optimisation(tree / "setup.py")
    flags = {"CFLAGS": kind.flags, "CXXFLAGS": kind.flags, "LDFLAGS": kind.flags}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=tree, env=os.environ | flags, check=True)


def find_library(name: str) -> str:
    """Return the path of the compiler's sanitizer library."""
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


def run_tests(tree: Path, kind: Kind, tests: list[str]) -> int:
    """Run the tests in the copy with the sanitizer loaded first; return 1 where one failed or there is a report."""
    # With the library of C++, which Python does not load: the sanitizer looks up at its start what throws.
    libraries = " ".join(map(find_library, (kind.library, "libstdc++.so")))
    environment = os.environ | kind.options | {"LD_PRELOAD": libraries, "PYTHONPATH": str(tree)}
    # A report of a process that a test starts goes to the same stream: pytest must not keep it.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--capture=no",
        "-o",
        "timeout=1200",
        "-k",
        "not microseconds and not checkout",  # everything takes ten times as long; the copy is no checkout
        *tests,
    ]
    log = tree.with_suffix(".log")
    with open(log, "w", encoding="utf-8") as stream:
        ended = subprocess.run(command, cwd=tree, env=environment, stdout=stream, stderr=subprocess.STDOUT)
    text = log.read_text(encoding="utf-8", errors="replace")
    reports = [line for line in text.splitlines() if any(mark in line for mark in REPORTS)]
    print(text[-3000:])
    print(f"{len(reports)} reports; all of it: {log}", *reports[:20], sep="\n")
    return int(ended.returncode != 0 or bool(reports))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="address")
    parser.add_argument("tests", nargs="*", help="instead of those of the kind")
    arguments = parser.parse_args()
    kind, tree = KINDS[arguments.kind], ROOT / "build" / "sanitizers" / arguments.kind
    for folder in ("tests", "csrc", "deep_gemm", "tuner", "db", "models"):
        if (tree / folder).exists():
            shutil.rmtree(tree / folder)  # what was removed since
    copy_tree(tree, has_build=False)
    build(tree, kind)
    sys.exit(run_tests(tree, kind, arguments.tests or list(kind.tests)))


if __name__ == "__main__":
    main()
