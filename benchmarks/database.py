"""What commands cost on a database of any size: CPU seconds and the peak of memory of each, in a process of its own.

    python -m tests.fakes.large_database large.db 10000000
    python -m benchmarks.database large.db stats inspect show

CPU seconds, because they hardly depend on what else the machine does. No GPU is needed.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

#: Commands by name; {db} is the database, {json} an export of it, which is made first, {out} an empty folder.
COMMANDS = {
    "stats": ["db", "stats", "--db", "{db}"],
    "inspect": ["inspect", "--db", "{db}"],
    "show": ["db", "show", "1", "512", "1024", "--db", "{db}"],
    "check": ["db", "check", "--db", "{db}"],
    "csv": ["db", "export", "{out}/rows.csv", "--format", "csv", "--db", "{db}"],
    "parquet": ["db", "export", "{out}/rows.parquet", "--format", "parquet", "--db", "{db}"],
    "json": ["db", "export", "{out}/all.json", "--db", "{db}"],
    "import": ["db", "import", "{json}", "--db", "{out}/imported.db"],
    "merge": ["db", "merge", "{out}/merged.db", "{db}"],
    "snapshot": ["db", "snapshot", "{out}/snapshot.db", "--db", "{db}", "--sku", "h200", "--max-bytes", "100000000000"],
    "too large": ["db", "snapshot", "{out}/snapshot.db", "--db", "{db}", "--sku", "h200"],
    "train": ["train", "--db", "{db}", "--op", "fp8_gemm", "--out", "{out}/training"],
}


def measure(words: list[str]) -> dict:
    """Run one command of the tuner; return its exit code, CPU and wall seconds, and peak memory in bytes."""
    start = time.monotonic()
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execv(sys.executable, [sys.executable, "-m", "tuner", *words])
    _, status, used = os.wait4(pid, 0)
    return {
        "exit_code": os.waitstatus_to_exitcode(status),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "seconds": round(time.monotonic() - start, 1),
        "peak_bytes": used.ru_maxrss * 1024,
    }


def main() -> None:
    """Measure commands on one database; print a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("database", type=Path)
    parser.add_argument("commands", nargs="*", help=f"of {', '.join(COMMANDS)}; default: all")
    arguments = parser.parse_args()
    for name in arguments.commands or COMMANDS:
        with tempfile.TemporaryDirectory(dir=arguments.database.absolute().parent) as out:
            exported = Path(out) / "exported.json"
            if "{json}" in COMMANDS[name]:
                measure(["db", "export", str(exported), "--db", str(arguments.database)])
            words = [word.format(db=arguments.database, out=out, json=exported) for word in COMMANDS[name]]
            found = {"command": name, "database_bytes": arguments.database.stat().st_size} | measure(words)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
