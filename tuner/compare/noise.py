"""How far the times of equal kernels are apart from block to block, and what a difference says in view of that.

The model of the logarithm of a time, of a config c of a problem p in a block b of a sweep s:

    y = mean(p, c) + sweep(s) + block(b) + own(b, c)

`block` is common to all configs of a block, `own` is a config's alone. Of both, one parameter is wanted: the scale of
the difference between two blocks of the same kernels. It comes from problems that one sweep measured more than once,
above all its sentinels (tuner/search/sentinels.py), together with what was recorded on H200s, which counts like
PRIOR_PAIRS pairs of blocks. A few blocks differ by ten times the others, so the differences are taken as Student's t
with 3 degrees of freedom, and their scale is read from the quantile that nine of ten differences do not exceed.

Sentinels are few, and their scale of `own` varies from sweep to sweep. Two sweeps that are compared have hundreds of
values, most of them of configs that did not change; what did change makes their scale larger. Where it is smaller than
that of the sentinels, it takes its place (narrow_own), down to half of that. Blocks that are the same on both sides, as
in a database that was merged, say nothing.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tuner.db.rows import MeasurementRow
from tuner.measure import statistics

#: Scales of differences between two blocks, on one board within a few minutes: 45 problems of the recorded H200 sweep.
BLOCK_SCALE, OWN_SCALE = 0.036, 0.0068
PRIOR_PAIRS = 20
#: The quantile that a scale is read from, and where it is in Student's t of 3 degrees of freedom with scale 1.
SHARE, T3_AT_SHARE = 0.9, 2.3534
#: Values beyond this many scales count as that many in a mean, whose standard deviation is then SPREAD over root n.
FAR, SPREAD = 2.35, 1.2
#: The variance of the median of n values is about this over n - 1 of their own.
MEDIAN_FACTOR = math.pi / 2.0
#: Fewer problems of a comparison say nothing about its scale: some blocks differ by ten times the others.
MIN_OWN_PROBLEMS = 20


@dataclass(frozen=True)
class Noise:
    """Scales of the differences between two blocks of equal kernels (logarithms), and the repeated blocks that they
    rest on, beside what was recorded before.
    """

    block: float = BLOCK_SCALE
    own: float = OWN_SCALE
    pairs: int = 0

    def own_beside(self, others: int) -> float:
        """Return the scale of a config's difference beside the median of that many others."""
        return self.own * math.sqrt(1.0 + MEDIAN_FACTOR / others)

    def to_json(self) -> dict:
        """Return the scales as JSON values."""
        return {"block": self.block, "own": self.own, "pairs": self.pairs}


def estimate_noise(sides: Iterable[Iterable[MeasurementRow]]) -> Noise:
    """Return the noise, from the confirmed rows of sweeps in which some problems were measured more than once."""
    blocks, owns = [], []
    for rows in sides:
        for earlier, later in pair_repeats(rows):
            common = [config for config in earlier if config in later]
            if len(common) < 2:
                continue
            differences = [math.log(later[config] / earlier[config]) for config in common]
            middle = statistics.median(differences)
            blocks.append(abs(middle))
            # The median of few differences is near each of them.
            inflate = math.sqrt(len(common) / (len(common) - 1.0))
            owns += [abs(difference - middle) * inflate for difference in differences]
    return Noise(mix(BLOCK_SCALE, blocks), mix(OWN_SCALE, owns), len(blocks))


def narrow_own(noise: Noise, blocks: Iterable[Sequence[float]]) -> Noise:
    """Return the noise with the smaller `own`: its own, or that of `blocks`, but at least half of its own.

    blocks: the logarithms of the ratios of all configs that two blocks have in common, at least two for each problem. A
        block that is the same on both sides has none but 0, and does not count.
    """
    compared = [list(values) for values in blocks if any(values)]
    found = [
        abs(value - middle) / math.sqrt(1.0 + MEDIAN_FACTOR / (len(values) - 1))
        for values in compared
        for value, middle in zip(values, statistics.medians_of_others(values), strict=True)
    ]
    if len(compared) < MIN_OWN_PROBLEMS:
        return noise
    seen = statistics.quantile(found, SHARE) / T3_AT_SHARE
    return replace(noise, own=min(noise.own, max(seen, 0.5 * noise.own)))


def pair_repeats(rows: Iterable[MeasurementRow]) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Return ({config: time}, {config: time}) of every two blocks that follow each other on the same problem."""
    found: defaultdict[tuple, dict[tuple, dict[str, float]]] = defaultdict(dict)
    for row in rows:
        block = row.block
        what = (block.problem_key, block.workload, block.identity, block.board)
        times = found[what].setdefault((block.created, block.block_id), {})
        assert row.median_us is not None
        times[row.config_key] = row.median_us
    ordered = [[blocks[key] for key in sorted(blocks)] for blocks in found.values()]
    return [pair for blocks in ordered for pair in itertools.pairwise(blocks)]


def mix(prior: float, differences: Sequence[float]) -> float:
    """Return the scale of some absolute differences, together with a prior one."""
    if not differences:
        return prior
    seen = statistics.quantile(differences, SHARE) / T3_AT_SHARE
    count = len(differences)
    return math.sqrt((PRIOR_PAIRS * prior**2 + count * seen**2) / (PRIOR_PAIRS + count))


def median_chance(values: Sequence[float]) -> float:
    """Return the chance that the lower median of so many values is at least as large as theirs, if each is drawn from
    Student's t with 3 degrees of freedom and scale 1; without values it is 1.
    """
    if not values:
        return 1.0
    count, needed = len(values), len(values) // 2 + 1
    share = t3_tail(sorted(values)[count - needed])
    return sum(
        math.comb(count, above) * share**above * (1.0 - share) ** (count - above) for above in range(needed, count + 1)
    )


def mean_interval(differences: Sequence[float], scales: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of some differences and its 95 % interval. Nothing is bounded: how large they are is the
    question, not whether there are any.
    """
    mean = sum(differences) / len(differences)
    reach = 1.96 * SPREAD * math.sqrt(sum(scale * scale for scale in scales)) / len(differences)
    return mean, mean - reach, mean + reach


def mean_chance(values: Sequence[float]) -> float:
    """Return the chance that the mean of so many values is at least theirs, drawn as for median_chance.

    Values beyond FAR count as FAR. Of many problems this finds smaller differences than the median does.
    """
    if not values:
        return 1.0
    mean = sum(max(-FAR, min(FAR, value)) for value in values) / len(values)
    return 0.5 * math.erfc(mean * math.sqrt(len(values)) / (SPREAD * math.sqrt(2.0)))


def t3_tail(value: float) -> float:
    """Return the chance that Student's t with 3 degrees of freedom exceeds `value`."""
    scaled = value / math.sqrt(3.0)
    return 0.5 - (scaled / (1.0 + scaled * scaled) + math.atan(scaled)) / math.pi
