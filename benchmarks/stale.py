"""Say which recorded files are of another tree than this one, and why; the release check.

Example: python -m benchmarks.stale        (exit 1 while anything is stale or unexplained)

A record is current while the hash it carries is the tree's: the GPU record's tree_hash, everything else's kernel_hash. A record
that is not needs a reason in stale.json beside this file, {"path from the root": "reason"}; tests then pass, its targets count
as not met, and a release is refused.
"""

import json
import sqlite3
import struct
import sys
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .stamp import OP, ROOT, read_json

REASONS = ROOT / "benchmarks" / "stale.json"
GPU_RECORD = "gpu_record.json"
UNEXPLAINED = "recorded on other kernels than this tree's; no reason given"
#: Derived from the other files, so it has no hash of its own.
DERIVED = ("summary.json",)


class State(NamedTuple):
    """One recorded file: the hash it carries, the tree's, and the reason given for a difference."""

    path: str
    recorded: str | None
    current: str
    reason: str | None

    @property
    def is_stale(self) -> bool:
        """Whether the file is of another tree."""
        return self.recorded != self.current

    @property
    def is_explained(self) -> bool:
        """Whether the file is current without a reason, or stale with one."""
        return self.is_stale == (self.reason is not None)


def read_reasons() -> dict[str, str]:
    """Return the reasons given so far."""
    return read_json(REASONS) if REASONS.exists() else {}


@cache
def current_kernel_hash() -> str:
    """Return the tree's kernel hash."""
    from deep_gemm.jit.hashing import kernel_hash

    return kernel_hash(OP)


@cache
def current_tree_hash() -> str:
    """Return the tree's tree hash."""
    from deep_gemm.jit.hashing import tree_hash

    return tree_hash()


def get_reason(path: Path, meta: dict) -> str | None:
    """Return why a result counts as stale, None while its kernel hash is the tree's."""
    if meta["kernel_hash"].get(OP) == current_kernel_hash():
        return None
    return read_reasons().get(name_of(path), UNEXPLAINED)


def name_of(path: Path) -> str:
    """Return a path as stale.json names it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def read_artifact_hash(path: Path) -> str | None:
    """Return the kernel hash in a selector artefact's header (u64 length, JSON whose metadata is JSON text)."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return json.loads(header["__metadata__"]["deep_gemm"])["ops"].get(OP, {}).get("kernel_hash")


def read_snapshot_hash(path: Path) -> str | None:
    """Return the newest kernel hash of a recorded database: the one that training takes."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        row = connection.execute("SELECT kernel_hash FROM block ORDER BY created DESC, id DESC LIMIT 1").fetchone()
    return row[0] if row else None


def read_result_hash(path: Path) -> str | None:
    """Return the hash that a JSON result carries: the tree's for the GPU record, else the kernels'."""
    content = read_json(path)
    if path.name == GPU_RECORD:
        return content.get("tree_hash")
    return content.get("meta", content).get("kernel_hash", {}).get(OP)


def get_states() -> list[State]:
    """Return the state of every recorded file in the tree."""
    reasons, states = read_reasons(), []
    readers = (("benchmarks/results/*/*.json", read_result_hash), ("models/*.dgsel", read_artifact_hash), ("db/snapshots/*.db", read_snapshot_hash))
    for pattern, read in readers:
        for path in sorted(ROOT.glob(pattern)):
            if path.name not in DERIVED:
                current = current_tree_hash() if path.name == GPU_RECORD else current_kernel_hash()
                states.append(State(name_of(path), read(path), current, reasons.get(name_of(path))))
    return states


def main() -> int:
    """Print the state of every record; fail while anything is stale or unexplained."""
    states = get_states()
    for state in states:
        note = "current" if not state.is_stale else f"STALE: {state.reason or 'no reason given'}"
        print(f"{state.path:60} {note}")
    for path in sorted(set(read_reasons()) - {state.path for state in states}):
        print(f"{path:60} has a reason but does not exist")
    has_leftovers = set(read_reasons()) - {state.path for state in states if state.is_stale}
    return 1 if has_leftovers or any(state.is_stale for state in states) else 0


if __name__ == "__main__":
    sys.exit(main())
