"""What refactoring must not change: keys, spaces, estimates, choices and sources of the recorded problems, as hashes.

`compute` derives everything from the recorded snapshot and the shipped artefact; `tests/data/replay.json` holds what it
gave. Run `python -m tests.replay` after an intended change of selection, of a key or of a kernel: the diff shows which
op kinds changed, and in what.
"""

import contextlib
import hashlib
import itertools
import json
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from deep_gemm import _C, selection
from deep_gemm.errors import ProblemError
from deep_gemm.jit import generator, hashing

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_name("data") / "replay.json"
SNAPSHOT = ROOT / "db" / "snapshots" / "nvidia-h200-sm132.db"
ARTEFACT = ROOT / "models" / "nvidia-h200-sm132.dgsel"
DEVICES = ("h200", "h100", "h20")
#: Columns of the problem table that are no field of a problem.
NOT_FIELDS = ("id", "key")
#: Sizes of problems that nobody measured, with what else such a problem has of its own.
SIZES = ((1, 64, 128), (17, 576, 7168), (300, 4096, 2048), (5000, 7168, 512), (70000, 1536, 16384))
OWN = ({}, {"num_sms": 20}, {"batch_invariant": True}, {"compiled_dims": "nk"})


class Digests:
    """Named SHA-256 hashes that grow line by line."""

    def __init__(self) -> None:
        self._hashes = defaultdict(hashlib.sha256)

    def add(self, name: str, *parts: object) -> None:
        """Add one line."""
        self._hashes[name].update(("\t".join(map(str, parts)) + "\n").encode())

    def as_dict(self) -> dict[str, str]:
        """Return the hashes by name, in hexadecimal."""
        return {name: digest.hexdigest() for name, digest in sorted(self._hashes.items())}


def read_rows(table: str) -> list[dict]:
    """Return the rows of a table of the snapshot in ascending order of their keys."""
    with sqlite3.connect(f"file:{SNAPSHOT}?mode=ro", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY key")]


def recorded_problems(op: str) -> list["_C.Problem"]:
    """Return the recorded problems of an op kind."""
    return [_C.Problem(**problem_fields(row)) for row in read_rows("problem") if row["op"] == op]


def new_problems(op: str) -> Iterator["_C.Problem"]:
    """Yield problems of every variant of an op kind that nobody measured."""
    fields = ("op", "m", "n", "k", "num_sms", "compiled_dims", "batch_invariant")
    variants = {problem: None for problem, _ in generator.canonical_cases(op)}
    for index, (problem, (m, n, k), own) in enumerate(itertools.product(variants, SIZES, OWN)):
        variant = {name: value for name, value in problem.as_dict().items() if name not in fields}
        if problem.num_groups:
            variant["num_groups"] = (1, 8, 33)[index % 3]
        with contextlib.suppress(ProblemError):  # sizes that this op kind does not have
            yield _C.Problem(op, m, n, k, **variant, **own)


def add_problem(digests: Digests, problem: "_C.Problem") -> None:
    """Add what the library says of one problem on every device."""
    digests.add("keys", problem.to_json(), problem.key, repr(problem))
    for name in DEVICES:
        device = _C.Device.known(name)
        candidates = _C.get_candidates(problem, device)
        times = struct.pack(
            f"<{len(candidates)}d", *(_C.estimate_time_us(problem, config, device) for config in candidates)
        )
        digests.add("candidates", *(config.to_json() for config in candidates))
        digests.add("estimates", hashlib.sha256(times).hexdigest())
        digests.add("analytic", _C.get_analytic_config(problem, device).to_json())


def add_choices(digests: Digests, selector: "_C.Selector", problem: "_C.Problem", sources: set) -> None:
    """Add the selector's choices for one problem, and the source of the kernel that runs it."""
    device = _C.Device.known("h200")
    for mode in ("auto", "model"):
        choice = selector.choose(problem, device, mode)
        digests.add(mode, choice.config.to_json(), choice.source)
        source = generator.generate_source(problem, choice.config)
        if source not in sources:
            sources.add(source)
            digests.add("sources", hashlib.sha256(source.encode()).hexdigest())


def compute_op(op: str, selector: "_C.Selector") -> dict:
    """Return the hashes of one op kind."""
    digests, sources = Digests(), set()
    problems = recorded_problems(op)
    for problem in itertools.chain(problems, new_problems(op)):
        add_problem(digests, problem)
        add_choices(digests, selector, problem, sources)
    scores = (selector.choose_learned(problem, _C.Device.known("h200")).scores or {} for problem in problems)
    rows = b"".join(struct.pack(f"<{len(row)}d", *row.values()) for row in scores)
    digests.add("scores", hashlib.sha256(rows).hexdigest())
    digests.add("features", *_C.config_feature_names())
    return {"kernel_hash": hashing.kernel_hash(op), "recorded_problems": len(problems)} | digests.as_dict()


def compute_database() -> dict:
    """Return the snapshot's hash, and how many of its keys are not those that its fields give."""
    wrong = sum(row["key"] != _C.Problem(**problem_fields(row)).key for row in read_rows("problem"))
    wrong += sum(row["key"] != _C.Config(**config_fields(row)).key(row["op"]) for row in read_rows("config"))
    return {"sha256": hashlib.sha256(SNAPSHOT.read_bytes()).hexdigest(), "wrong_keys": wrong}


def problem_fields(row: dict) -> dict:
    """Return the fields of a problem from its row."""
    fields = {name: row[name] for name in row if name not in NOT_FIELDS}
    return fields | {"batch_invariant": bool(fields["batch_invariant"])}


def config_fields(row: dict) -> dict:
    """Return the fields of a config from its row."""
    return {name: row[name] for name in row if name not in (*NOT_FIELDS, "op", "extra")}


def compute(ops: Iterable[str] = ()) -> dict:
    """Return what the record should hold, of some op kinds or of all."""
    selector = selection.read_selector(str(ARTEFACT), ARTEFACT.read_bytes(), "nvidia-h200-sm132")
    ops = sorted(ops or selector.metadata["ops"])
    return {
        "database": compute_database(),
        "artefact": hashlib.sha256(ARTEFACT.read_bytes()).hexdigest(),
        "wrong_golden_vectors": selector.replay_golden(),
        "ops": {op: compute_op(op, selector) for op in ops},
    }


def main() -> None:
    """Write the record."""
    RECORD.write_text(json.dumps(compute(), indent=1, sort_keys=True) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
