"""List the recorded files that belong to other kernels than this tree's, and why: the release check.

Example: python -m benchmarks.stale        (exit 1 while anything is stale or unexplained)

A record is current while the hashes in it are the tree's: tree_hash in the GPU record, kernel_hash of each op kind in
everything else, or that of kernels before whose machine code is the same (same_code.py). Artefacts, snapshots and
out_of_fold.json, which are there to choose, may be of older kernels that choose for the tree's
(deep_gemm.older_kernels). A record whose figures hang on choices that today.py does not ask about (OF_CHOICES) is
current only while the selector that chose is the tree's, or holds the same of the record's op kinds. Of the GPU record,
what it says of a selector's choices is stale, too, while the selector is another one (get_selector_reason); the summary
says so, and asks today.py about choices that rows name. A stale record needs a reason in stale.json beside this file,
{"path from the root": "reason"}.
Tests then pass, its targets count as not met, and a release is refused.
"""

import hashlib
import json
import sqlite3
import struct
import sys
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .stamp import OP, ROOT, SELECTOR, SELECTOR_PARTS, find_packaged, find_sku, hash_parts, read_json

REASONS = ROOT / "benchmarks" / "stale.json"
GPU_RECORD = "gpu_record.json"
#: In the place of the selector's hash where a record has none.
UNNAMED = "not named"
UNEXPLAINED = "recorded on other kernels than this tree's; no reason given"
#: Records of what calls take by the selector's choices, which today.py does not ask about.
OF_CHOICES = (
    *("batch_invariance.json", "host_time.json", "mega_moe.json", "moe_layer.json", "pdl.json", "scale_copies.json"),
    *("models.json", "models_compiled.json", "models_deepseek.json", "models_qwen3.json"),
    *("models_qwen3_transformers.json", "train_llama.json", "transpose_fp8.json", "tuned_models.json"),
)
#: Records of calls whose kernels may have a second tile: the choice on the device counts, whether they name it or not.
OF_SECOND_TILES = ("m_grouped_masked.json", "second_tile.json")
#: Choices of trees that never saw the problem's family of weights, see out_of_fold.py.
OUT_OF_FOLD = "out_of_fold.json"
#: What a record of regrets says of the estimate of each op kind (`_C.estimate_revision`), 1 where it says nothing.
ESTIMATES = "estimate_revision"
OF_ESTIMATES = ("evaluation.json", "fit_rates.json", OUT_OF_FOLD)
#: Records that hang on no choice: of every config, of kernels that have none, of right results, of what is trained on.
OF_NO_CHOICE = (
    *("calibration.json", "callers.json", "compile_time.json", "evaluation.json", "fit_rates.json", "host_ops.json"),
    *(OUT_OF_FOLD, "plain_kernels.json", "plain_kernels_bits.json", "racecheck.json"),
)
#: Derived from the other files, so it has no hash of its own.
DERIVED = ("summary.json",)


class State(NamedTuple):
    """One recorded file: the hashes it carries, the tree's for the same op kinds, and the reason given for a
    difference.
    """

    path: str
    recorded: object
    current: object
    reason: str | None

    @property
    def is_stale(self) -> bool:
        """Whether the file is of another tree."""
        return self.recorded != self.current

    @property
    def of_older(self) -> str:
        """What the list says of a file that is current by older kernels alone."""
        kernels = without_selector(self.recorded) if isinstance(self.recorded, dict) else None
        is_own = kernels is None or kernels == current_hashes(kernels)
        what = "whose machine code is the same" if self.path.endswith(".json") else "which choose for the tree's"
        return "" if is_own else f" (of older kernels, {what})"


def without_selector(recorded: dict[str, str | None]) -> dict[str, str | None]:
    """Return the kernels' hashes of what a result carries."""
    return {op: hash_ for op, hash_ in recorded.items() if op not in (SELECTOR, ESTIMATES)}


def read_reasons() -> dict[str, str]:
    """Return the reasons given so far."""
    return read_json(REASONS) if REASONS.exists() else {}


@cache
def current_kernel_hash(op: str = OP) -> str | None:
    """Return the tree's kernel hash of an op kind, None for an op kind that the tree does not have."""
    from deep_gemm.errors import ProblemError
    from deep_gemm.jit.hashing import kernel_hash

    try:
        return kernel_hash(op)
    except ProblemError:
        return None


def estimate_revision(op: str) -> int | None:
    """Return the tree's revision of an op kind's estimate, None for an op kind that the tree does not have."""
    from deep_gemm import _C

    return _C.estimate_revision(op) if current_kernel_hash(op) else None


def current_hashes(recorded: dict[str, str] | None) -> dict[str, str | None]:
    """Return the tree's hashes of the op kinds of a record; of the first op kind where the record names none."""
    return {op: current_kernel_hash(op) for op in recorded or (OP,)}


def serving_hashes(recorded: dict[str, str]) -> dict[str, str | None]:
    """Return the same of what is there to choose: hashes of older kernels that choose for the tree's stay as they
    are.
    """
    from deep_gemm.older_kernels import find_serving

    current = current_hashes(recorded)
    return {op: hash_ and find_serving(op, hash_, recorded.get(op, "")) for op, hash_ in current.items()}


def holding_hashes(path: Path, recorded: dict[str, str] | None) -> dict[str, str | None]:
    """Return the tree's hashes of a record in `path`; those of kernels before with the same code stay as they are."""
    from . import same_code

    current = current_hashes(recorded)
    for op, hash_ in (recorded or {}).items():
        is_before = hash_ != current[op] and same_code.has_change(op, hash_)
        asked = same_code.find_layouts, same_code.find_few
        if is_before and same_code.holds(op, hash_, current[op], *(find(path, op) for find in asked)):
            current[op] = hash_
    return current


@cache
def current_tree_hash() -> str:
    """Return the tree's tree hash."""
    from deep_gemm.jit.hashing import tree_hash

    return tree_hash()


def get_reason(path: Path, meta: dict, ops: tuple[str, ...] = ()) -> str | None:
    """Return why a result counts as stale, None while its hashes (see the head of this file) are the tree's.

    ops: the op kinds of a figure that is of some of the result's alone.
    """
    if ops:
        names = (*ops, *list_further(path))
        meta = meta | {"kernel_hash": {name: meta["kernel_hash"].get(name) for name in names}}
    recorded = find_recorded(path, meta)
    if recorded == find_current(path, recorded):
        return None
    return read_reasons().get(name_of(path), UNEXPLAINED)


def find_tree_hash(record: dict) -> str | None:
    """Return the tree that a GPU record speaks for: none where the time budget cut its run."""
    return record.get("tree_hash") if record.get("complete", True) else None


def get_selector_reason(record: dict) -> str | None:
    """Return why what a GPU record says of the selector's choices is stale, None while it was the tree's selector of
    that GPU model, or as now none.
    """
    if SELECTOR not in record:
        return "names no selector, so its choices may be those of another; running the GPU suite again is due"
    if record[SELECTOR] == hash_packaged(record["sku"]):
        return None
    path = find_packaged(record["sku"])
    return f"run with another selector than {name_of(path)}; running the GPU suite again is due"


def hash_packaged(sku: str) -> str | None:
    """Return the SHA-256 of the tree's selector of a GPU model, None without one."""
    path = find_packaged(sku)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def hash_packaged_parts(sku: str, ops: Iterable[str]) -> dict[str, str | None] | None:
    """Return hash_parts of the tree's selector of a GPU model, None without one."""
    path = find_packaged(sku)
    return hash_parts(path.read_bytes(), ops) if path.exists() else None


def name_of(path: Path) -> str:
    """Return a path as stale.json names it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def read_artifact_hash(path: Path) -> dict[str, str]:
    """Return the kernel hashes in a selector artefact's header (u64 length, JSON whose metadata is JSON text) by op
    kind.
    """
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return {
        op: model.get("kernel_hash") for op, model in json.loads(header["__metadata__"]["deep_gemm"])["ops"].items()
    }


def read_snapshot_hash(path: Path) -> dict[str, str]:
    """Return the newest kernel hash of a recorded database by op kind: those that training takes."""
    query = (
        "SELECT problem.op, block.kernel_hash FROM block JOIN problem ON problem.id = block.problem_id ORDER BY"
        " block.created, block.id"
    )
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        return dict(connection.execute(query))  # the last of each op kind


def read_result_hash(path: Path) -> dict[str, str | None] | str | None:
    """Return what a JSON result carries (find_recorded)."""
    content = read_json(path)
    return find_recorded(path, content.get("meta", content))


def list_further(path: Path) -> tuple[str, ...]:
    """Return what else a result in `path` must carry the hash of besides the kernels of op kinds."""
    from deep_gemm.jit.hashing import SECOND_TILE

    return (SECOND_TILE,) if path.name in OF_SECOND_TILES else ()


def find_recorded(path: Path, meta: dict) -> dict[str, str | None] | str | None:
    """Return what a result carries: the tree's hash for the GPU record, else the kernels' by op kind; where figures
    hang on choices, the selector's, too.
    """
    if path.name == GPU_RECORD:
        return find_tree_hash(meta)
    hashes = meta.get("kernel_hash")
    if further := list_further(path):
        hashes = dict.fromkeys(further, UNNAMED) | (hashes or {})
    if path.name in OF_ESTIMATES:
        return (hashes or {}) | {ESTIMATES: {op: meta.get(ESTIMATES, {}).get(op, 1) for op in hashes or {}}}
    if path.name not in OF_CHOICES:
        return hashes
    parts, selector = meta.get(SELECTOR_PARTS), meta.get(SELECTOR, UNNAMED)
    return (hashes or {}) | {SELECTOR: {op: parts.get(op, UNNAMED) for op in hashes or {}} if parts else selector}


def find_current(path: Path, recorded: dict[str, str | None] | str | None) -> object:
    """Return what a file that is current carries in the place of `recorded`."""
    if path.name == GPU_RECORD:
        return current_tree_hash()
    if path.suffix != ".json":
        return serving_hashes(recorded)
    if path.name in OF_ESTIMATES:
        kernels = without_selector(recorded)
        hashes = serving_hashes(kernels) if path.name == OUT_OF_FOLD else holding_hashes(path, kernels)
        return hashes | {ESTIMATES: {op: estimate_revision(op) for op in kernels}}
    if path.name not in OF_CHOICES:
        return holding_hashes(path, recorded)
    kernels, sku = without_selector(recorded), find_sku(path.parent.name)
    has_parts = isinstance(recorded[SELECTOR], dict)
    selector = hash_packaged_parts(sku, kernels) if has_parts else hash_packaged(sku)
    return holding_hashes(path, kernels) | {SELECTOR: selector}


def get_states() -> list[State]:
    """Return the state of every recorded file in the tree."""
    reasons, states = read_reasons(), []
    readers = (
        ("benchmarks/results/*/*.json", read_result_hash),
        ("models/*.dgsel", read_artifact_hash),
        ("db/snapshots/*.db", read_snapshot_hash),
    )
    for pattern, read in readers:
        for path in sorted(ROOT.glob(pattern)):
            if path.name not in DERIVED:
                recorded = read(path)
                current = find_current(path, recorded)
                states.append(State(name_of(path), recorded, current, reasons.get(name_of(path))))
    return states


def main() -> int:
    """Print the state of every record; fail while anything is stale or unexplained."""
    states = get_states()
    for state in states:
        note = f"STALE: {state.reason or 'no reason given'}" if state.is_stale else "current" + state.of_older
        print(f"{state.path:60} {note}")
    for path in sorted(set(read_reasons()) - {state.path for state in states}):
        print(f"{path:60} has a reason but does not exist")
    has_leftovers = set(read_reasons()) - {state.path for state in states if state.is_stale}
    return 1 if has_leftovers or any(state.is_stale for state in states) else 0


if __name__ == "__main__":
    sys.exit(main())
