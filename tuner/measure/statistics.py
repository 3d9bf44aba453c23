"""Statistics of paired timings: summaries, intervals, when to drop a config, tie sets, winners.

In every round each config of a block runs once, beside the reference config. Configs are compared by the ratio of the
two times in the same round, so that drifting clocks cancel. Intervals are order statistics of these ratios: they are
exact for the median of any distribution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

#: Two configs tie when they differ by less than one of these (relative; absolute, in microseconds).
TIE_RATIO = 0.005
TIE_US = 0.2
#: A config is dropped when its median ratio to the best exceeds the first figure, or the 99 % lower bound of it the
#: second.
DROP_RATIO = 1.5
DROP_BOUND_RATIO = 1.1
#: It is never dropped on fewer samples than this: one launch in some hundreds is held up by something else.
LEAST_SAMPLES = 3
#: Where all launches of a config, those that checked it included, are slower than the slowest of the best one's by this
#: factor, two rounds are enough. A busy board does not feign that: what holds up a single launch does not meet the same
#: config in three passes through all of them, and what lasts longer slows the best config's launches, too.
FAR_RATIO = 2.5
FAR_ROUNDS = 2
#: A block with more noise than this is noisy: it is measured again.
MAX_NOISE = 0.02
#: Probabilities with which an interval of the median, and its one-sided bound, hold.
INTERVAL, BOUND = 0.95, 0.99


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


def medians_of_others(values: Sequence[float]) -> list[float]:
    """Return for each of at least two values the median of the others."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ordered = [values[index] for index in order]
    found = [0.0] * len(values)
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2  # middle places among the others
    for place, index in enumerate(order):
        found[index] = (ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2.0
    return found


class Summary(NamedTuple):
    """Median, median absolute deviation, 10 % and 90 % quantiles (microseconds), and the number of samples."""

    median_us: float
    mad_us: float
    q10_us: float
    q90_us: float
    num_samples: int


def summarize(samples: Sequence[float]) -> Summary:
    """Summarise a non-empty sequence of times in microseconds."""
    middle = median(samples)
    deviation = median([abs(sample - middle) for sample in samples])
    return Summary(middle, deviation, quantile(samples, 0.1), quantile(samples, 0.9), len(samples))


def binomial_rank(count: int, tail: float) -> int:
    """Return the largest j with P(Binomial(count, 1/2) < j) <= tail.

    The j-th smallest of `count` values is then a lower bound of the median that fails with probability `tail` at most.
    """
    total, rank = 0.0, 0
    while rank < count:
        total += math.comb(count, rank) * 0.5**count
        if total > tail:
            break
        rank += 1
    return rank


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the true median with a probability of at least 95 %.

    With too few values for that, it is their whole range.
    """
    ordered = sorted(values)
    rank = max(binomial_rank(len(ordered), (1.0 - INTERVAL) / 2.0), 1)
    return ordered[rank - 1], ordered[-rank]


def lower_bound(values: Sequence[float]) -> float | None:
    """Return a lower bound of the median that holds with 99 %; None with fewer than the seven values that needs."""
    rank = binomial_rank(len(values), 1.0 - BOUND)
    return sorted(values)[rank - 1] if rank >= 1 else None


def paired_ratios(samples: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Return the per-round ratios of two sample lists whose entries i were taken in the same round."""
    return [sample / base for sample, base in zip(samples, reference, strict=True)]


def is_hopeless(ratios: Sequence[float]) -> bool:
    """Return whether a config may be dropped, given its per-round ratios to the best config so far (same rounds).

    Of two middle ratios the lower one counts.
    """
    if len(ratios) < LEAST_SAMPLES:
        return False
    if sorted(ratios)[(len(ratios) - 1) // 2] > DROP_RATIO:
        return True
    bound = lower_bound(ratios)
    return bound is not None and bound > DROP_BOUND_RATIO


def is_far(samples: Sequence[float], best: Sequence[float]) -> bool:
    """Return whether every one of `samples`, at least LEAST_SAMPLES, is far slower than each of as many of `best`."""
    return min(len(samples), len(best)) >= LEAST_SAMPLES and min(samples) > FAR_RATIO * max(best)


def measure_noise(ratios: Sequence[float]) -> float:
    """Return the A/A noise: how far the interval of the median ratio of the reference to itself reaches from 1."""
    low, high = median_interval(ratios)
    return max(abs(low - 1.0), abs(high - 1.0)) if len(ratios) > 1 else 0.0


def pool_deviations(groups: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation within groups of at least two values each, pooled over all groups."""
    squares = sum(sum((value - sum(group) / len(group)) ** 2 for value in group) for group in groups)
    return math.sqrt(squares / sum(len(group) - 1 for group in groups))


@dataclass(frozen=True)
class Timed:
    """A config's confirmation result: its ratio to the block's reference, and two facts that break ties."""

    config: Any
    ratio: float
    is_heuristic: bool = False
    in_portfolio: bool = False


def tie_threshold_us(best_us: float, noise: float) -> float:
    """Return the difference in microseconds below which a config ties with the best.

    It is the largest of 0.5 % of the best time, twice the block's noise, and 0.2 us.
    """
    return max(best_us * max(TIE_RATIO, 2.0 * noise), TIE_US)


def find_tie_set(timed: Sequence[Timed], reference_us: float, noise: float) -> list[Timed]:
    """Return the configs that tie with the fastest one, fastest first; `reference_us` turns ratios into times."""
    ordered = sorted(timed, key=lambda entry: entry.ratio)
    best_us = ordered[0].ratio * reference_us
    limit = best_us + tie_threshold_us(best_us, noise)
    return [entry for position, entry in enumerate(ordered) if position == 0 or entry.ratio * reference_us < limit]


def tie_order(entry: Timed) -> tuple:
    """Return the sort key among ties.

    The heuristic's pick comes first, then configs of the portfolio, fewer stages, smaller clusters, the config's key.
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


def sign_test(values: Sequence[float], bound: float) -> float:
    """Return the chance of at least so many of `values` above `bound` where the true median is not above it.

    It is exact for any distribution; without values it is 1.
    """
    above = sum(value > bound for value in values)
    return sum(math.comb(len(values), count) for count in range(above, len(values) + 1)) * 0.5 ** len(values)


def adjust_for_many(chances: Sequence[float]) -> list[float]:
    """Return the p-values of several tests, adjusted (Benjamini and Hochberg, 1995).

    Of the tests with an adjusted value below q, at most a share of q is expected to be wrong.
    """
    adjusted, least = [1.0] * len(chances), 1.0
    for rank, index in sorted(enumerate(sorted(range(len(chances)), key=chances.__getitem__), 1), reverse=True):
        least = min(least, chances[index] * len(chances) / rank)
        adjusted[index] = least
    return adjusted
