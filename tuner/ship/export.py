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
from deep_gemm.artifact import FORMAT, SIZES, get_estimate_revision
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.older_kernels import list_serving
from deep_gemm.selector import Selector, join_quarantined
from tuner import errors
from tuner.files import make_folder
from tuner.learn.artifact import build_artifact
from tuner.learn.dataset import Dataset
from tuner.learn.evaluation import Evaluation
from tuner.learn.learner import choose_row, list_ranked
from tuner.learn.train import EVALUATION, Training, read_bounded, write_file
from tuner.problems.fields import replace_problem
from tuner.ship import gates
from tuner.ship.exact import MAX_CONFIGS, describe_estimate, read_base
from tuner.ship.exact_table import choose_exact, exact_arrays
from tuner.ship.model_card import CardPart, Contents, Counts, find_section, write_card

MAX_FAILED = SIZES["configs"][1] - MAX_CONFIGS
#: Of an op kind's entries in quarantine as JSON: all op kinds together stay within the metadata's limit.
MAX_QUARANTINE_BYTES = 4096
NUM_GOLDEN = 48
#: Comparisons of a choice, each with all rows of the shortlist at once.
MAX_COMPARISONS = 2048
#: What an artefact says of the package that trained it.
VERSIONS = ("features_version", "heuristic_version", "package_version")


@dataclass(frozen=True)
class Export:
    """A finished artefact: its bytes, its model card, the gates' verdicts for every op kind, what it holds, and the op
    kinds that it has from the one before it.
    """

    content: bytes
    card: str
    verdicts: list[gates.Verdict]
    contents: Contents
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """One op kind of an artefact; `exact` maps a problem to the index of its config in `configs`, behind which those in
    quarantine follow.
    """

    training: Training
    data: Dataset
    evaluation: Evaluation
    verdicts: list[gates.Verdict]
    configs: list
    quarantined: list
    exact: dict
    arrays: dict[str, np.ndarray]

    @property
    def op(self) -> str:
        """Return the op kind."""
        return self.training.record.identity.op

    def count(self) -> Counts:
        """Return what the artefact holds of this op kind."""
        return Counts(
            exact=len(self.exact),
            configs=len(self.configs),
            trees=len(self.arrays["tree_start"]) - 1,
            nodes=len(self.arrays["feature"]),
            golden=len(self.arrays["golden_scores"]),
        )


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
    contents = Contents(len(content), created, {part.op: part.count() for part in parts})
    card = write_card(
        [CardPart(part.training.record, part.evaluation, part.verdicts, part.count()) for part in parts],
        contents,
        {op: "" if base_card is None else find_section(base_card, op) for op in kept_ops},
    )
    verdicts = [replace(verdict, op=part.op) for part in parts for verdict in part.verdicts]
    return Export(content, card, verdicts, contents, tuple(kept_ops))


def find_kept(base: bytes | None, parts: list[Part], is_strict: bool) -> tuple[dict, dict]:
    """Return metadata and arrays of the op kinds of `base` that are not among the parts; `is_strict`: and that are of
    this package's kernels.
    """
    metadata, arrays = read_base(base, parts[0].training.record.identity, parts[0].data.device, is_strict)
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
    configs, exact = choose_exact(data, record.portfolio)
    quarantined = find_quarantined(data, configs)
    arrays = {
        "configs": np.array([list(config.as_dict().values()) for config in configs + quarantined], np.int32),
        **exact_arrays(exact),
        **training.forest.to_arrays(),
        "feature_min": record.feature_min,
        "feature_max": record.feature_max,
        **golden_arrays(training, data),
    }
    return Part(training, data, evaluation, gates.check_gates(evaluation.splits), configs, quarantined, exact, arrays)


def check_comparisons(training: Training) -> None:
    """Raise IntegrityError for trees that a choice would take too long to walk."""
    comparisons = training.forest.num_comparisons()
    if comparisons > MAX_COMPARISONS:
        raise errors.IntegrityError(
            f"--training {training.folder}: a choice makes {comparisons} comparisons in the trees: must be at"
            f" most {MAX_COMPARISONS}, so that a new shape costs at most 10 us; train with fewer trees"
        )


def load_evaluation(training: Training) -> Evaluation:
    """Return what `evaluate` found. Raises: UsageError without an evaluation; IntegrityError for another selector's."""
    try:
        document = json.loads(read_bounded(training.folder / EVALUATION).decode("ascii"))
        if document["estimator_sha256"] != training.record.estimator_sha256:
            raise ValueError("it is of another selector")
        return Evaluation.from_json(document)
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
        "sm_count": first.data.device.sm_count,
        **{name: getattr(first.training.record, name) for name in VERSIONS},
        "ops": {part.op: describe_op(part) for part in parts},
        "stale": None,
        "created": created,
    }


def find_quarantined(data: Dataset, configs: list) -> list:
    """Return the configs that failed on some problem, which the trees must not choose, except for the variants of
    Dataset.built. One of these may be the measured best of a problem, and is then among `configs`.

    Raises: IntegrityError for more than an artefact can name.
    """
    found = [config for config in data.failed if config not in configs]
    if len(found) > MAX_FAILED:
        raise errors.IntegrityError(
            f"{data.identity.op}: {len(found)} configs failed: an artefact names at most {MAX_FAILED}; see"
            " `python -m tuner inspect`, repair the kernels and measure again"
        )
    return found


def describe_op(part: Part) -> dict:
    """Return the metadata of one op kind."""
    record, configs = part.training.record, part.configs + part.quarantined
    is_failed = [config in part.data.failed for config in configs]
    return {
        **describe_estimate(record.identity.op),
        "kernel_hash": record.identity.kernel_hash,
        "regime": record.identity.regime,
        "margin": record.guards.margin,
        "quarantined": describe_quarantined(part, [index for index, failed in enumerate(is_failed) if failed]),
    }


def describe_quarantined(part: Part, indices: list[int]) -> list:
    """Return the metadata's `quarantined`: the indices of configs that failed, each with the variants that it built
    for. Where an artefact has no room for these, configs that some problem is best served by are left out.
    """
    configs = part.configs + part.quarantined
    entries = [
        join_quarantined(index, sorted(variant.to_json() for variant in part.data.built.get(configs[index], ())))
        for index in indices
    ]
    if len(json.dumps(entries)) <= MAX_QUARANTINE_BYTES:
        return entries
    return [index for index in indices if index >= len(part.configs)]


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
    selector = Selector(content)
    differing = selector.replay_golden()
    if differing:
        raise errors.IntegrityError(
            f"{differing} golden problems give another result in the native walk than in training; nothing was written"
        )
    for part in parts:
        configs = selector.configs(part.op)
        for problem, index in part.exact.items():
            choice = selector.choose(problem, part.data.device)
            if choice.source != "exact" or choice.config != configs[index]:
                raise errors.IntegrityError(
                    f"{problem}: the artefact chooses {choice} instead of its own exact entry {configs[index]}; nothing"
                    " was written"
                )
        check_choices(selector, part)


def check_choices(selector: Selector, part: Part) -> None:
    """Raise IntegrityError where the native choice for a recorded problem is not that of the training's own trees.

    Where a config of the shortlist is quarantined, nothing is compared.
    """
    data, record = part.data, part.training.record
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
