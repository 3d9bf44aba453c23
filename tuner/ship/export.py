"""From the training folders of a SKU's op kinds to its selector artefact and model card.

Guarantees: the same training folders and data give the same bytes. Before an artefact replaces anything, the run time's
    own reader has loaded it, replayed its golden vectors and reproduced its choices. The kernel hash in the artefact is
    the data's, never the tree's.
"""

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from deep_gemm import _C
from deep_gemm.artifact import FORMAT, get_estimate_revision
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.older_kernels import list_serving
from deep_gemm.selector import Selector
from tuner import errors
from tuner.files import make_folder
from tuner.learn.artifact import build_artifact
from tuner.learn.dataset import Dataset
from tuner.learn.evaluation import Evaluation
from tuner.learn.learner import choose_row, list_ranked
from tuner.learn.train import EVALUATION, Training, read_bounded, write_file
from tuner.problems.fields import replace_problem
from tuner.ship import gates
from tuner.ship.exact import describe_estimate, read_base
from tuner.ship.exact_table import ExactTable, make_table, replay
from tuner.ship.model_card import CardPart, Contents, find_section, write_card

NUM_GOLDEN = 48
#: Comparisons of a choice, each with all rows of the shortlist at once.
MAX_COMPARISONS = 2048
#: What an artefact says of the package that trained it.
VERSIONS = ("features_version", "heuristic_version", "package_version")
#: What an evaluation has in common with the training that it is of, and what it is of where it has not.
OF_EVALUATION = {
    "estimator_sha256": "another selector",
    "identity": "another op kind, GPU model or kernel",
    "fingerprint": "another database",
}


@dataclass(frozen=True)
class Export:
    """A finished artefact: its bytes, its model card, the gates' verdicts for every op kind, what it holds, which op
    kinds it has from the one before it, and how many exact entries of that had no room.
    """

    content: bytes
    card: str
    verdicts: list[gates.Verdict]
    contents: Contents
    kept: tuple[str, ...] = ()
    num_lost: int = 0


@dataclass(frozen=True)
class Part:
    """One op kind of an artefact."""

    training: Training
    evaluation: Evaluation
    verdicts: list[gates.Verdict]
    table: ExactTable
    arrays: dict[str, np.ndarray]

    @property
    def op(self) -> str:
        """Return the op kind."""
        return self.training.record.identity.op


def make_export(
    trained: list[tuple[Training, Dataset]],
    *,
    stale: str | None = None,
    base: bytes | None = None,
    base_card: str | None = None,
) -> Export:
    """Build artefact and card of one SKU from the selectors of its op kinds, and check the artefact.

    `stale` is a reason to mark the artefact as stale: it is then never used. `base` is an artefact whose other op kinds
    the new one keeps as they are; with `base_card`, its card, those of this package's kernels alone, whose sections the
    new card keeps. Raises: UsageError, IntegrityError.
    """
    check_same_board(trained)
    parts = [make_part(training, data) for training, data in trained]
    created = max(part.training.record.newest_row[:10] for part in parts)
    named = {f"{part.op}/{name}": array for part in parts for name, array in part.arrays.items()}
    metadata = make_metadata(parts, created)
    kept_ops, kept_arrays = find_kept(base, parts, is_strict=base_card is not None)
    metadata["ops"] |= kept_ops
    named |= kept_arrays
    check_artifact(build_artifact(metadata, named), parts)
    content = build_artifact(metadata | {"stale": stale}, named)
    contents = Contents(len(content), created, {part.op: part.table.count(part.arrays) for part in parts})
    card = write_card(
        [
            CardPart(part.training.record, part.evaluation, part.verdicts, part.table.count(part.arrays))
            for part in parts
        ],
        contents,
        {op: "" if base_card is None else find_section(base_card, op) for op in kept_ops},
    )
    verdicts = [replace(verdict, op=part.op) for part in parts for verdict in part.verdicts]
    return Export(content, card, verdicts, contents, tuple(kept_ops))


def find_kept(base: bytes | None, parts: list[Part], is_strict: bool) -> tuple[dict, dict]:
    """Return metadata and arrays of the op kinds of `base` that are not among the parts; `is_strict`: and that are of
    this package's kernels.
    """
    metadata, arrays = read_base(base, parts[0].training.record.identity, parts[0].table.data.device, is_strict)
    made = {part.op for part in parts}
    ops = {op: described for op, described in metadata["ops"].items() if op not in made}
    if is_strict:
        ops = {op: described for op, described in ops.items() if is_current(op, described)}
    return ops, {name: array for name, array in arrays.items() if name.partition("/")[0] in ops}


def is_current(op: str, described: dict) -> bool:
    """Return whether the metadata of an op kind chooses for this package's kernels, and is of its estimate."""
    is_serving = described["kernel_hash"] in list_serving(op, kernel_hash(op))
    return is_serving and get_estimate_revision(described) == _C.estimate_revision(op)


def check_same_board(trained: list[tuple[Training, Dataset]]) -> None:
    """Raise UsageError unless all selectors were trained for one SKU with one package."""
    records = [training.record for training, _ in trained]
    if len({(record.identity.sku, *(getattr(record, name) for name in VERSIONS)) for record in records}) != 1:
        raise errors.UsageError(
            f"--training {trained[0][0].folder.parent}: its op kinds were trained for different GPU models or packages;"
            " train them again"
        )


def make_part(training: Training, data: Dataset) -> Part:
    """Return what an artefact holds of one op kind."""
    check_comparisons(training)
    evaluation = load_evaluation(training)
    record = training.record
    table = make_table(data, record.portfolio)
    arrays = {
        **table.to_arrays(),
        **training.forest.to_arrays(),
        "feature_min": record.feature_min,
        "feature_max": record.feature_max,
        **golden_arrays(training, data),
    }
    return Part(training, evaluation, gates.check_gates(evaluation.splits), table, arrays)


def check_comparisons(training: Training) -> None:
    """Raise IntegrityError for trees that a choice would take too long to walk."""
    comparisons = training.forest.num_comparisons()
    if comparisons > MAX_COMPARISONS:
        raise errors.IntegrityError(
            f"--training {training.folder}: a choice makes {comparisons} comparisons in the trees: must be at"
            f" most {MAX_COMPARISONS}, so that a new shape costs at most 10 us; train with fewer trees"
        )


def load_evaluation(training: Training) -> Evaluation:
    """Return what `evaluate` found. Raises: UsageError without an evaluation; IntegrityError for that of another
    selector, op kind or database.
    """
    try:
        document = json.loads(read_bounded(training.folder / EVALUATION).decode("ascii"))
        evaluation = Evaluation.from_json(document)
        for name, what in OF_EVALUATION.items():
            if getattr(evaluation, name) != getattr(training.record, name):
                raise ValueError(f"it is of {what}")
        return evaluation
    except OSError as error:
        raise errors.UsageError(
            f"--training {training.folder}: not evaluated since it was trained; run `python -m tuner evaluate"
            f" --training {training.folder.parent}` first"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise errors.IntegrityError(f"{training.folder / EVALUATION}: {error}; evaluate again") from error


def make_metadata(parts: list[Part], created: str) -> dict:
    """Return the artefact's metadata; `build_artifact` adds the hash of the arrays."""
    first = parts[0]
    return {
        "format": FORMAT,
        "sku": first.training.record.identity.sku,
        "sm_count": first.table.data.device.sm_count,
        **{name: getattr(first.training.record, name) for name in VERSIONS},
        "ops": {part.op: describe_op(part) for part in parts},
        "stale": None,
        "created": created,
    }


def describe_op(part: Part) -> dict:
    """Return the metadata of one op kind."""
    record = part.training.record
    return {
        **describe_estimate(record.identity.op),
        "kernel_hash": record.identity.kernel_hash,
        "regime": record.identity.regime,
        "margin": record.guards.margin,
        "quarantined": part.table.describe_quarantined(),
    }


def golden_arrays(training: Training, data: Dataset) -> dict:
    """Return features, scores and choices that every reader must reproduce.

    Half of the problems are measured ones, spread evenly over the table; the other half lie between these, where the
    guards sometimes object.
    """
    record = training.record
    measured = data.problems[:: max(2 * len(data.problems) // NUM_GOLDEN, 1)][: NUM_GOLDEN // 2]
    between = [move(problem, rows=(problem.expected_m or problem.m) // 3 + 1, k=128) for problem in measured]
    shortlists = [
        _C.get_config_features(
            problem, data.device, list_ranked(problem, data.device, (record.feature_min, record.feature_max))
        )
        for problem in measured + between
    ]
    features = np.concatenate(shortlists).astype(np.float32)
    start = np.cumsum([0, *map(len, shortlists)]).astype(np.int32)
    scores = training.forest.predict(features)
    hull, margin = (record.feature_min, record.feature_max), record.guards.margin
    choice = [choose_row(features[a:b], scores[a:b], hull, margin) for a, b in pairwise(start.tolist())]
    return {
        "golden_features": features,
        "golden_scores": scores,
        "golden_start": start,
        "golden_choice": np.array(choice, np.int32),
    }


def move(problem, rows: int, n: int = 0, k: int = 0):
    """Return a larger problem. Masked groups keep their room and expect more rows instead; attention logits keep their
    k, and all tokens of a sequence.
    """
    kind = OP_KINDS[problem.op]
    if kind.has_room:
        grown = {"expected_m": min(problem.expected_m + rows, problem.m)}
    else:
        grown = {"m": problem.m + rows * problem.next_n}
    return replace_problem(problem, **grown, n=problem.n + n, k=problem.k + (0 if kind.is_logits else k))


def check_artifact(content: bytes, parts: list[Part]) -> None:
    """Load the artefact with the run time's reader, replay its golden vectors and look up every exact entry.

    Raises: IntegrityError where anything differs.
    """
    selector = replay(content)
    for part in parts:
        part.table.check(selector)
        check_choices(selector, part)


def check_choices(selector: Selector, part: Part) -> None:
    """Raise IntegrityError where the native choice for a recorded problem is not that of the training's own trees.

    Where a config of the shortlist is quarantined, nothing is compared.
    """
    data, record = part.table.data, part.training.record
    device, hull, margin = data.device, (record.feature_min, record.feature_max), record.guards.margin
    for problem in data.problems:
        choice = selector.choose(problem, device, "model")
        shortlist = list_ranked(problem, device, hull)
        if set(shortlist) & data.find_banned(problem):
            continue
        features = _C.get_config_features(problem, device, shortlist).astype(np.float32)
        expected = shortlist[choose_row(features, part.training.forest.predict(features), hull, margin)]
        if choice.config != expected:
            raise errors.IntegrityError(
                f"{problem}: the artefact chooses {choice}, but the trees that were trained choose {expected}; nothing"
                " was written"
            )


def write_export(export: Export, folder: Path, sku: str) -> tuple[Path, Path]:
    """Write `<sku>.dgsel` and `<sku>.md` into `folder`, the artefact last, and return their paths.

    Each file is replaced as a whole. Raises: StoreError.
    """
    make_folder(folder, 0o755)
    artifact, card = folder / f"{sku}.dgsel", folder / f"{sku}.md"
    write_file(card, export.card.encode("utf-8"), 0o644)
    write_file(artifact, export.content, 0o644)
    return artifact, card
