"""Statistics of paired timings: summaries, intervals, dropping, tie sets, winners.

Every config of a block runs once per round beside the reference config; what is compared is the per-round ratio of the
two, so that drifting clocks cancel. Intervals are order statistics of the ratios (exact for the median, whatever the
distribution).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Differences that no one can use: below them two configs tie (relative; absolute, in microseconds).
TIE_RATIO = 0.005
TIE_US = 0.2
#: A config this much slower than the best is out, the second figure counts after one round alone; later also one whose
#: 99 % lower bound exceeds the third.
DROP_RATIO = 1.5
DROP_RATIO_ONCE = 2.5
DROP_BOUND_RATIO = 1.1


def median(values: Sequence[float]) -> float:
    """Return the median of a non-empty sequence."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the `share` quantile (0..1) of a non-empty sequence, linear between order statistics."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarize(samples: Sequence[float]) -> dict:
    """Return median, median absolute deviation, 10 % and 90 % quantiles (microseconds) and the count of `samples`."""
    middle = median(samples)
    return {
        "median_us": middle,
        "mad_us": median([abs(sample - middle) for sample in samples]),
        "q10_us": quantile(samples, 0.1),
        "q90_us": quantile(samples, 0.9),
        "n": len(samples),
    }


def binomial_rank(count: int, tail: float) -> int:
    """Return the largest j with P(Binomial(count, 1/2) < j) <= tail: the j-th smallest value bounds the median from
    below.
    """
    total, rank = 0.0, 0
    while rank < count:
        total += math.comb(count, rank) * 0.5**count
        if total > tail:
            break
        rank += 1
    return rank


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval that holds the true median with at least `confidence`; the range of the values when they are
    too few.
    """
    ordered = sorted(values)
    rank = max(binomial_rank(len(ordered), (1.0 - confidence) / 2.0), 1)
    return ordered[rank - 1], ordered[-rank]


def lower_bound(values: Sequence[float], confidence: float = 0.99) -> float | None:
    """Return a one-sided lower bound of the median, or None when the values are too few for `confidence` (below 7 for
    99 %).
    """
    rank = binomial_rank(len(values), 1.0 - confidence)
    return sorted(values)[rank - 1] if rank >= 1 else None


def paired_ratios(samples: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Return the per-round ratios of two sample lists whose entries i were taken in the same round."""
    return [sample / base for sample, base in zip(samples, reference, strict=True)]


def is_hopeless(ratios: Sequence[float]) -> bool:
    """Return whether a config may be dropped, given its per-round ratios to the best config so far (same rounds).

    The lower of two middle ratios counts, and a first round alone must be far off: one launch that something held up is
    no verdict.
    """
    middle = sorted(ratios)[(len(ratios) - 1) // 2]
    if middle > (DROP_RATIO if len(ratios) > 1 else DROP_RATIO_ONCE):
        return True
    bound = lower_bound(ratios)
    return bound is not None and bound > DROP_BOUND_RATIO


def measure_noise(ratios: Sequence[float]) -> float:
    """Return the A/A noise from the per-round ratios of the reference to itself: the farther end of their median's
    interval from 1.
    """
    low, high = median_interval(ratios)
    return max(abs(low - 1.0), abs(high - 1.0)) if len(ratios) > 1 else 0.0


@dataclass(frozen=True)
class Timed:
    """One config's confirmation result: its ratio to the block's reference, and what breaks ties between configs."""

    config: object
    ratio: float
    is_heuristic: bool = False
    in_portfolio: bool = False


def tie_threshold_us(best_us: float, noise: float) -> float:
    """Return the difference in microseconds below which a config ties with the best: max(0.5 %, twice the A/A noise,
    0.2 us).
    """
    return max(best_us * max(TIE_RATIO, 2.0 * noise), TIE_US)


def find_tie_set(timed: Sequence[Timed], reference_us: float, noise: float) -> list[Timed]:
    """Return the configs that cannot be told from the fastest, fastest first. `reference_us` turns ratios into time."""
    ordered = sorted(timed, key=lambda entry: entry.ratio)
    best_us = ordered[0].ratio * reference_us
    limit = best_us + tie_threshold_us(best_us, noise)
    return [entry for position, entry in enumerate(ordered) if position == 0 or entry.ratio * reference_us < limit]


def tie_order(entry: Timed) -> tuple:
    """Sort key among ties: the heuristic's pick, in the portfolio, fewer stages, smaller cluster, then the config's
    key.
    """
    config = entry.config
    return (
        not entry.is_heuristic,
        not entry.in_portfolio,
        config.num_stages,
        config.cluster_m * config.cluster_n,
        config.key("fp8_gemm"),
    )


def choose_winner(ties: Sequence[Timed]) -> Timed:
    """Return the first of the tie set by the fixed order of `tie_order`."""
    return min(ties, key=tie_order)
