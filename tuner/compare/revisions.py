"""Revisions and kernel hashes: which commit has the kernels of a hash, and which one made a kernel slower.

A kernel hash is computed by the package of its revision (hashing.kernel_hash), which may need that revision's native
module; what was computed is kept in <work>/hashes.json. Merge commits stand for the branches that they merge: only the
first parents of a revision are looked at.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tuner import errors
from tuner.compare.comparison import ask_hashes
from tuner.compare.kernel_sets import Clone, KernelSet

#: What can change a kernel or the way it is launched.
KERNEL_PATHS = ("deep_gemm/include", "deep_gemm/jit", "csrc")
HASH = re.compile(r"[0-9a-f]{12,64}")
#: Revisions that are asked for their hashes when one is looked for, the newest first.
MAX_ASKED = 40


def make_set(clone: Clone, name: str) -> KernelSet:
    """Return the set called `name`, which may be a kernel hash. Raises: UsageError, TunerError."""
    if HASH.fullmatch(name) and clone.find_revision(name) is None and not Path(name).exists():
        revision = find_by_hash(clone, name)
        if revision is None:
            raise errors.UsageError(f"{name}: no revision with such a kernel hash was found; name the revision itself")
        return clone.make_set(revision)
    return clone.make_set(name)


def find_by_hash(clone: Clone, digits: str) -> str | None:
    """Return a commit one of whose kernel hashes begins with `digits`, None where none is found.

    Records in the repository name the hashes they were measured with, so commits that added one are tried first.
    """
    recorded = clone.git("log", "--format=%H", f"-S{digits}", "--", "models", "benchmarks", "tests/data") or ""
    touched = clone.git("log", "--first-parent", "--format=%H", "--", *KERNEL_PATHS) or ""
    for revision in list(dict.fromkeys([*recorded.split(), *touched.split()]))[:MAX_ASKED]:
        if any(value.startswith(digits) for value in get_hashes(clone, revision).values()):
            return revision
    return None


def get_hashes(clone: Clone, revision: str, ops: list[str] | None = None) -> dict[str, str]:
    """Return {op kind: kernel hash} of a commit, of all its op kinds (None) or of some."""
    path = clone.work / "hashes.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    content = clone.make_set(revision).folder.name
    label = f"{content} {' '.join(ops) if ops else 'all'}"
    if label not in known:
        known[label] = ask_hashes(clone.make_set(revision), ops)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(known, indent=1, sort_keys=True), encoding="utf-8")
    return known[label]


@dataclass(frozen=True)
class Step:
    """One step of a bisection: a revision, whether it has the good or bad side's kernels or was measured, and whether
    it is slow.
    """

    revision: str
    how: str
    is_slow: bool


def list_revisions(clone: Clone, good: str, bad: str) -> list[str]:
    """Return the commits from `good` to `bad`, both included, that can change kernels. Raises: UsageError."""
    first, last = clone.find_revision(good), clone.find_revision(bad)
    if first is None or last is None:
        raise errors.UsageError(f"{good if first is None else bad}: not a git revision of {clone.root}")
    between = clone.git("rev-list", "--first-parent", "--reverse", f"{first}..{last}", "--", *KERNEL_PATHS)
    found = (between or "").split()
    if not found:
        raise errors.UsageError(f"{good}..{bad}: no commit in between changes kernels; name an older and a newer one")
    return [first, *found]


def bisect(
    revisions: list[str],
    get_hash: Callable[[str], str],
    is_slower: Callable[[str], bool],
    on_step: Callable[[Step], None] = lambda step: None,
) -> str:
    """Return the first slow one of `revisions`, of which the first is fast and the last is slow.

    Revisions with the kernels of a known one are not measured. `is_slower(revision)` compares one with the first.
    """
    low, high = 0, len(revisions) - 1
    while high - low > 1:
        middle = (low + high) // 2
        mine = get_hash(revisions[middle])
        if mine == get_hash(revisions[low]):
            how, is_slow = "same kernels as the newest fast one", False
        elif mine == get_hash(revisions[high]):
            how, is_slow = "same kernels as the oldest slow one", True
        else:
            how, is_slow = "measured", is_slower(revisions[middle])
        on_step(Step(revisions[middle], how, is_slow))
        low, high = (low, middle) if is_slow else (middle, high)
    return revisions[high]
