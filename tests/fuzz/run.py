"""Coverage-guided fuzzing of everything that reads foreign bytes (`make fuzz`).

    python -m tests.fuzz.run [--seconds N] [native | artefact | entry | database ...]

`native` needs clang with its libFuzzer (Debian: clang-19, libclang-rt-19-dev), the others the package atheris. What
was found once stays in build/fuzz/TARGET as the corpus of the next run; a crash is a file crash-* there. Exits with 1
where something was found.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"
TARGETS = ("native", "artefact", "entry", "database")
FLAGS = ("-std=c++20", "-O1", "-g1", "-ffp-contract=off", "-fsanitize=fuzzer,address,undefined")
#: Besides the harness: the layers that know nothing of Python.
SKIPPED = ("bind_", "python.cpp")


def find_compiler() -> str:
    """Return the path of a clang++, the newest one."""
    names = ["clang++", *(f"clang++-{version}" for version in range(25, 13, -1))]
    found = next(filter(None, map(shutil.which, names)), None)
    return found or sys.exit("no clang++; install one with its libFuzzer (Debian: clang-19 libclang-rt-19-dev)")


def build_native() -> Path:
    """Compile the harness with the layers that it fuzzes; return the program."""
    layers = [path for path in sorted((ROOT / "csrc" / "core").glob("*.cpp")) if not path.name.startswith(SKIPPED)]
    layers += [ROOT / "csrc" / "selector" / name for name in ("forest.cpp", "op_model.cpp")]
    sources = [*layers, ROOT / "tests" / "fuzz" / "native.cpp"]
    program = BUILD / "native.bin"
    newest = max(path.stat().st_mtime for path in [*sources, *(ROOT / "csrc").rglob("*.hpp")])
    if not program.exists() or program.stat().st_mtime < newest:
        command = [find_compiler(), *FLAGS, f"-I{ROOT / 'csrc'}", "-o", str(program), *map(str, sources)]
        subprocess.run(command, check=True)
    return program


def run_target(target: str, seconds: int) -> bool:
    """Fuzz one target; return whether nothing was found."""
    corpus = BUILD / target
    corpus.mkdir(parents=True, exist_ok=True)
    program = (
        [str(build_native())] if target == "native" else [sys.executable, "-m", "tests.fuzz.foreign_bytes", target]
    )
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={corpus}/", "-print_final_stats=1", "-verbosity=1"]
    limits = ["-timeout=10", "-rss_limit_mb=4096", "-max_len=65536"]
    print(f"{target}: {seconds} s", flush=True)
    return subprocess.run([*program, *options, *limits, str(corpus)], cwd=ROOT).returncode == 0


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    arguments = parser.parse_args()
    unknown = set(arguments.targets) - set(TARGETS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no target; they are {', '.join(TARGETS)}")
    wanted = arguments.targets or TARGETS
    are_sound = [run_target(target, arguments.seconds) for target in wanted]
    sys.exit(not all(are_sound))


if __name__ == "__main__":
    main()
