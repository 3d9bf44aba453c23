"""Measure the suspects of a comparison again: both kernel hashes in turns in one process, see comparison.py."""

from collections.abc import Callable
from pathlib import Path

from deep_gemm import _C
from deep_gemm.errors import DeviceError
from tuner import errors
from tuner.compare import comparison, recorded, revisions, suspects
from tuner.compare.comparison import Options
from tuner.compare.kernel_sets import Clone
from tuner.compare.recorded import Part


def explain_absence(sku: str) -> str:
    """Return why nothing can be measured on this machine, "" where it has such a GPU."""
    try:
        device = _C.get_device()
    except DeviceError as error:
        return f"no GPU here ({error})"
    return "" if device.sku == sku else f"this machine has {device.sku}, the sweeps are of {sku}"


def measure_again(
    parts: list[Part], work: Path | None = None, on_event: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, str]:
    """Measure the suspects of every op kind and give them their verdicts.

    Return {op kind: what was done}. A kernel hash whose revision is not found leaves its op kind as it was.
    """
    clone, done = Clone.here(work), {}
    for part in parts:
        pairs = suspects.list_suspects([part])
        if not pairs:
            continue
        if part.has_same_kernels:
            done[part.op] = "the same kernels on both sides: nothing to measure in turns"
            continue
        try:
            verdicts = measure_part(part, pairs, clone, on_event)
        except errors.TunerError as error:
            done[part.op] = f"not measured again: {error}"
            continue
        suspects.settle([part], verdicts)
        slower = sum(verdict == "slower" for verdict in verdicts.values())
        done[part.op] = f"{len(verdicts)} measured again, {slower} of them slower"
    return done


def measure_part(
    part: Part,
    pairs: list[tuple[_C.Problem, _C.Config]],
    clone: Clone,
    on_event: Callable[[int, int], None],
) -> dict[tuple[_C.Problem, _C.Config], str]:
    """Return the verdict of every suspect. Raises: TunerError."""
    old, new = (revisions.make_set(clone, find_hash(side)) for side in (part.a, part.b))
    configs = [config.as_dict() for _, config in pairs]
    options = Options([problem for problem, _ in pairs], configs=configs)
    report = comparison.compare_sets(old, new, options, on_event)
    return {pair: row["verdict"] for pair, row in zip(pairs, report["pairs"], strict=True)}


def find_hash(side: recorded.Side) -> str:
    """Return the digits of a side's kernel hash. Raises: InconclusiveError where it has several."""
    if len(side.kernel_hashes) != 1:
        raise errors.InconclusiveError("a side has rows of several kernel hashes; name one behind @")
    return next(iter(side.kernel_hashes))[:16]
