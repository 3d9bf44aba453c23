"""What `select` shows: the run time's choice, and what it was chosen from."""

import math
from typing import Any

from deep_gemm import _C
from deep_gemm import selection as runtime
from deep_gemm.errors import DeepGemmError
from deep_gemm.fields import PROBLEM_FIELDS
from deep_gemm.older_kernels import list_serving
from deep_gemm.selector_files import list_skus
from tuner import errors
from tuner.learn.ranking import rank
from tuner.learn.sources import device_at_hand, open_database
from tuner.problems.fields import OP_NAMES, default_fields, read_op_name, replace_problem, to_problem

#: What predicted a time. None is measured: an artefact knows which config was measured best, but not its time.
HEURISTIC, FOREST = "heuristic", "trees"


def make_problem(name: str, m: int, n: int, k: int, **given: Any):
    """Return the problem of an op kind, or of a function.

    A field that is None gets the value that the name implies, else the op kind's default. `expected_m` is rounded as
    the library rounds it. Raises: UsageError for an impossible problem.
    """
    try:
        op, named = read_op_name(name)
    except KeyError as error:
        rule = "the op kind is the function's name without _nt, _nn, _tn, _tt"
        raise errors.UsageError(f"--op {name}: no such op kind or function; {rule}: use one of {OP_NAMES}") from error
    fields = default_fields(op) | named
    fields |= {name: read_value(name, value) for name, value in given.items() if value is not None}
    try:
        if fields.get("expected_m", 0) > 0:
            fields["expected_m"] = _C.round_expected_m(fields["expected_m"], m)
        return _C.Problem(op, m, n, k, **fields)
    except DeepGemmError as error:
        raise errors.UsageError(str(error)) from error


def make_asked_problem(name: str, m: int, n: int, k: int, batch_invariant: bool | None, **given: Any):
    """Return the problem of a call of the library, see make_problem; None: as batch invariant as its calls are."""
    problem = make_problem(name, m, n, k, **given)
    is_invariant = _C.is_batch_invariant(problem.op) if batch_invariant is None else batch_invariant
    return replace_problem(problem, batch_invariant=is_invariant)


def read_value(name: str, value: object) -> object:
    """Return the value of a problem's field as it was typed: words in lower case."""
    return value.lower() if isinstance(value, str) and PROBLEM_FIELDS[name].type == "word" else value


def describe_choice(
    op: str, m: int, n: int, k: int, device: str = "", batch_invariant: bool | None = None, **fields: object
) -> dict:
    """Return the choice for a problem (see make_problem), with scores, guards and predicted times, and the second tile
    of a call's kernel (None: it has one tile); of batch invariance None is what the library's calls of this op kind ask
    for.

    Raises: UsageError for an impossible problem or device.
    """
    problem = make_asked_problem(op, m, n, k, batch_invariant, **fields)
    target = device_at_hand(device)
    choice, second = runtime.explain_tiles(problem, target)
    pick = _C.get_analytic_config(problem, target)
    pick_us = _C.estimate_time_us(problem, pick, target)
    scores = choice.scores
    return {
        "problem": problem.as_dict(),
        "sku": target.sku,
        "config": choice.config.as_dict(),
        "name": str(choice.config),
        "second": {"config": second.as_dict(), "name": str(second)} if second else None,
        "source": choice.source,
        "reason": choice.reason,
        "predicted_us": predict_us(problem, choice.config, target, scores, pick_us),
        "predicted_by": FOREST if scores else HEURISTIC,
        "heuristic": {"config": pick.as_dict(), "name": str(pick), "predicted_us": pick_us, "predicted_by": HEURISTIC},
        "scores": describe_scores(problem, target, scores, pick_us),
        "selector": describe_selector(runtime.load_selector(target.sku), target, problem.op),
    }


def add_measured(found: dict, database: str) -> None:
    """Add to a described choice what was measured of its problem with this package's kernels, else with older ones that
    choose for these, None without such.

    `measured` has the database, the day, whether the kernels are older ones, the reference config, and of each config
    its time and its ratio to the reference; both are lower bounds where the config was dropped early, and a snapshot
    has only the ratio of such.
    """
    problem = to_problem(found["problem"])
    with open_database(database, found["sku"]) as store:
        hashes = list_serving(problem.op, runtime.kernel_hash(problem.op))
        rankings = [rank(store, problem, found["sku"], kernel_hash) for kernel_hash in hashes]
    ranking = next(filter(None, rankings), None)
    found["measured"] = ranking and {
        "database": str(store.target),
        "created": ranking.block.created,
        "is_older": ranking is not rankings[0],
        "reference": str(ranking.reference.config) if ranking.reference else None,
        "configs": {
            str(row.config): {"median_us": row.median_us, "ratio": row.ratio, "is_bound": row.status != "ok"}
            for row in ranking.rows
            if row.median_us is not None or row.ratio is not None
        },
    }


def predict_us(problem, config, device, scores: dict | None, pick_us: float) -> float:
    """Return the trees' prediction for `config` if it has a score, else the heuristic's."""
    if scores and config in scores:
        return pick_us * math.exp(scores[config])
    return _C.estimate_time_us(problem, config, device)


def describe_scores(problem, device, scores: dict | None, pick_us: float) -> list[dict] | None:
    """Return the shortlist by predicted log ratio to the heuristic's pick, best first, even if the exact table
    answered. What lies outside the training hull is left out.
    """
    selector = runtime.get_selector(device)
    if scores is None and selector is not None:
        try:
            scores = selector.choose_learned(problem, device).scores
        except DeepGemmError:
            return None
    if scores is None:
        return None
    ordered = sorted((item for item in scores.items() if math.isfinite(item[1])), key=lambda item: item[1])
    return [
        {
            "name": str(config),
            "config": config.as_dict(),
            "score": score,
            "predicted_us": pick_us * math.exp(score),
            "predicted_by": FOREST,
        }
        for config, score in ordered
    ]


def describe_selector(loaded: runtime.LoadedSelector, device, op_kind: str) -> dict | None:
    """Return an artefact's file and identity, and which guards hold here; None if it does not have the op kind."""
    selector = loaded.selector
    if selector is None or op_kind not in selector.metadata["ops"]:
        return None
    metadata = selector.metadata
    op = metadata["ops"][op_kind]
    fault = selector.find_fault(op_kind, runtime.kernel_hash(op_kind))
    guards = {
        "same GPU model": metadata["sku"] in list_skus(device.sku) and metadata["sm_count"] == device.sm_count,
        "fits this package": not fault,
    }
    return {name: op[name] for name in ("kernel_hash", "margin", "regime")} | {
        "created": metadata["created"],
        "file": loaded.file,
        "guards": guards,
        "fault": fault,
    }
