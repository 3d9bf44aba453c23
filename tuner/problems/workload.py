"""Workloads: the group sizes with which a grouped problem is measured. A problem itself knows at most their mean.

    spread    (default) sizes between 0.7 and 1.3 times the mean, as a router trained to balance its experts leaves them
    uniform   equal sizes
    skewed    one group has nearly everything, half of the others the smallest size, the rest nothing

Sizes follow from the problem, the workload and the seed alone. Contiguous groups fill m: each takes whole units of the
alignment, and the rows behind its last one are padding. Groups of K fill k in units of 128, the K of one step. Masked
groups hold up to m rows.

Which config is best differs from one draw of the rows to the next. Of masked groups a round of tiles may be full or
nearly empty; of contiguous ones it is seldom the number of tiles that differs, but which are padding and which pairs
are of two groups. A measurement of a spread load therefore goes through several draws (make_draws), and its time is
the mean over them. The shares of K are drawn once: a group has a D of its own, whatever they are.
"""

import json
import random
from dataclasses import dataclass
from typing import NamedTuple

import torch

from deep_gemm.fields import OP_KINDS
from deep_gemm.numerics import SPREAD, divide, draw_factors, get_starts, make_m_indices
from deep_gemm.quantize import SCALE_BLOCK, ceil_div
from tuner import errors

WORKLOADS = ("spread", "uniform", "skewed")
DEFAULT = WORKLOADS[0]
#: Every group of K is a multiple of it, so that no scale covers two groups; BF16 keeps the rule.
K_UNIT = SCALE_BLOCK
#: Draws that a measurement of groups of rows goes through.
NUM_DRAWS = 4
REMEDY = "run `python -m tuner db check`, and merge what is sound into a new database"
#: Share of the mean that a group has which is neither the large one nor empty, where rows come one by one.
SMALL_SHARE = 1 / 16


class Groups(NamedTuple):
    """Groups of a problem: where each begins and how many rows it has, or how much of K; `starts` of masked groups
    count rows of all groups.
    """

    starts: list[int]
    sizes: list[int]


@dataclass(frozen=True)
class Workload:
    """One of WORKLOADS and the seed of its draws."""

    name: str = DEFAULT
    seed: int = 0

    def describe(self, problem) -> str:
        """Return what `block.workload` stores: canonical JSON, "" where no operand says what a group has."""
        if not OP_KINDS[problem.op].reads_groups:
            return ""
        spread: dict[str, float] = {"spread": SPREAD} if self.name == "spread" else {}
        if (draws := count_draws(problem, self)) > 1:
            spread["draws"] = draws
        return json.dumps({"seed": self.seed, "sizes": self.name} | spread, sort_keys=True, separators=(",", ":"))


def is_default(text: str) -> bool:
    """Return whether a stored workload is a dense problem's, or the default one at any seed."""
    return not text or json.loads(text).get("sizes") == DEFAULT


def name_regime(regime: str, op: str, workload: str) -> str:
    """Return the regime of measurements of an op kind: another workload than the default one is another regime for
    grouped ops.
    """
    return regime if workload == DEFAULT or not OP_KINDS[op].reads_groups else f"{regime}-{workload}"


def count_draws(problem, workload: Workload) -> int:
    """Return through how many draws of the group sizes a measurement goes."""
    kind = OP_KINDS[problem.op]
    is_drawn = kind.reads_groups and not kind.k_is_divided and workload.name == "spread"
    return NUM_DRAWS if is_drawn else 1


def count_stored_draws(text: str) -> int:
    """Return through how many draws the measurements of a stored workload went. Raises: IntegrityError."""
    try:
        draws = json.loads(text).get("draws", 1) if text else 1
    except (ValueError, AttributeError) as error:
        raise errors.IntegrityError(f"block.workload = {text!r}: is not a JSON object: {REMEDY}") from error
    if type(draws) is not int or draws < 1:
        raise errors.IntegrityError(f"block.workload = {text!r}: draws must be an integer of at least 1: {REMEDY}")
    return draws


def is_drawn_enough(block, workload: Workload) -> bool:
    """Return whether the measurements of a stored block went through as many draws as they would today."""
    return count_stored_draws(block.workload) >= count_draws(block.problem, workload)


def make_groups(problem, workload: Workload) -> Groups | None:
    """Return the first draw of make_draws, None where there is none. Raises: UsageError."""
    draws = make_draws(problem, workload)
    return draws[0] if draws else None


def make_draws(problem, workload: Workload) -> list[Groups]:
    """Return the groups of a problem in each draw, see count_draws; none for a dense one and for a sum over groups.

    Raises: UsageError where K cannot be divided among groups.
    """
    kind, name = OP_KINDS[problem.op], workload.name
    if not kind.is_grouped or kind.is_summed:  # a sum is one product with a long K: nothing is divided
        return []
    count = count_draws(problem, workload)
    if kind.has_room and count > 1:
        return make_masked_draws(problem, workload, count)
    generators = [random.Random(name_draw(problem, workload, draw)) for draw in range(count)]
    if kind.is_batched or kind.has_room:
        sizes = [problem.m] * problem.num_groups if kind.is_batched else make_masked_sizes(problem, name, generators[0])
        return [Groups([group * problem.m for group in range(problem.num_groups)], sizes)]
    make = make_groups_of_k if kind.k_is_divided else make_contiguous_groups
    if problem.expected_m and problem.expected_m < problem.alignment:
        make = make_expected_groups
    return [make(problem, name, generator) for generator in generators]


def name_draw(problem, workload: Workload, draw: int) -> str:
    """Return what the generator of a draw starts from."""
    return f"{workload.seed} {workload.name} {problem.key}" + (f" draw {draw}" if draw else "")


def make_masked_draws(problem, workload: Workload, count: int) -> list[Groups]:
    """Return draws of masked groups. Each group meets every part of the spread once, so that few draws have nearly the
    mean of many.
    """
    generator = random.Random(f"{workload.seed} draws {problem.key}")
    places = [generator.sample(range(count), count) for _ in range(problem.num_groups)]
    factors = [
        [1.0 + SPREAD * (2.0 * (place[draw] + generator.random()) / count - 1.0) for place in places]
        for draw in range(count)
    ]
    starts, mean = [group * problem.m for group in range(problem.num_groups)], get_masked_mean(problem)
    return [Groups(starts, [min(round(mean * factor), problem.m) for factor in draw]) for draw in factors]


def make_groups_of_k(problem, name: str, generator: random.Random) -> Groups:
    """Return groups that fill k in units of K_UNIT. Raises: UsageError."""
    if problem.k % K_UNIT:
        raise errors.UsageError(
            f"{problem}: k = {problem.k} is no multiple of {K_UNIT}, of which every group of K is one; round it up"
        )
    sizes = [K_UNIT * units for units in share_units(problem.k // K_UNIT, problem.num_groups, name, generator)]
    return Groups(get_starts(sizes), sizes)


def make_contiguous_groups(problem, name: str, generator: random.Random) -> Groups:
    """Return groups that fill m in units of the alignment."""
    units = share_units(ceil_div(problem.m, problem.alignment), problem.num_groups, name, generator)
    starts = get_starts([problem.alignment * count for count in units])
    return Groups(
        starts,
        [count_rows(problem, start, count, name, generator) for start, count in zip(starts, units, strict=True)],
    )


def make_expected_groups(problem, name: str, generator: random.Random) -> Groups:
    """Return groups of about the expected rows, each from the next multiple of the alignment on, as far as m goes."""
    if name == DEFAULT:
        sizes = [round(problem.expected_m * factor) for factor in draw_factors(problem.num_groups, generator)]
    else:
        sizes = make_masked_sizes(problem, name, generator)
    starts, row = [], 0
    for group, size in enumerate(sizes):
        starts.append(min(row, problem.m))
        sizes[group] = min(size, problem.m - starts[-1])
        row += ceil_div(size, problem.alignment) * problem.alignment
    return Groups(starts, sizes)


def count_rows(problem, start: int, units: int, name: str, generator: random.Random) -> int:
    """Return how many rows of a contiguous group hold tokens: all of equal groups, else all but less than a unit."""
    room = min(start + units * problem.alignment, problem.m) - start
    if room <= 0:  # an empty group, which may start where the last unit of a ragged m would end
        return 0
    padding = 0 if name == "uniform" else generator.randrange(problem.alignment)
    return max(room - padding, 1)


def share_units(total: int, num_groups: int, name: str, generator: random.Random) -> list[int]:
    """Divide `total` units among groups by the workload; they add up exactly."""
    if name == "skewed":
        large, small = choose_skewed(num_groups, generator)
        shares = [int(group in small[: max(total - 1, 0)]) for group in range(num_groups)]
        shares[large] = total - sum(shares)
        return shares
    return divide(total, [1.0] * num_groups if name == "uniform" else draw_factors(num_groups, generator))


def choose_skewed(num_groups: int, generator: random.Random) -> tuple[int, list[int]]:
    """Return the group that has nearly everything, and those that have a little: half of the others."""
    order = generator.sample(range(num_groups), num_groups)
    return order[0], order[1 : 1 + (num_groups - 1) // 2]


def get_masked_mean(problem) -> int:
    """Return the mean rows of masked groups; without an expected one, groups are half full."""
    return problem.expected_m or max(problem.m // 2, 1)


def make_masked_sizes(problem, name: str, generator: random.Random) -> list[int]:
    """Return the rows of masked groups."""
    mean, room = get_masked_mean(problem), problem.m
    if name == "uniform":
        return [min(mean, room)] * problem.num_groups
    large, small = choose_skewed(problem.num_groups, generator)
    sizes = [max(round(mean * SMALL_SHARE), 1) if group in small else 0 for group in range(problem.num_groups)]
    sizes[large] = min(problem.num_groups * mean - sum(sizes), room)
    return sizes


def make_group_tensor(problem, groups: Groups, device: str) -> torch.Tensor:
    """Return what a kernel reads: m_indices int32 [m] of contiguous groups with -1 for padding, the ends int32
    [num_groups] where groups have such, else the sizes int32 [num_groups].
    """
    kind = OP_KINDS[problem.op]
    if kind.has_ends:
        ends = [0]
        for start, size in zip(*groups, strict=True):  # an empty group ends where the one before does, within m
            ends.append(start + size if size else ends[-1])
        return torch.tensor(ends[1:], dtype=torch.int32, device=device)
    if not kind.m_is_shared:
        return torch.tensor(groups.sizes, dtype=torch.int32, device=device)
    return make_m_indices(*groups, problem.m).to(device)


def count_touched_rows(problem, groups: Groups) -> int:
    """Return the rows of A and D that a launch reads or writes: those that groups of their own hold, else all."""
    kind = OP_KINDS[problem.op]
    return sum(groups.sizes) if kind.has_room or kind.is_batched else problem.m


def count_touched_matrices(problem, groups: Groups) -> int:
    """Return the matrices of B that a launch reads: those of groups that are not empty."""
    return sum(size > 0 for size in groups.sizes)
