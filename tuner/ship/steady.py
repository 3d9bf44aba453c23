"""Configs for masked groups of uneven sizes, which the host cannot know.

Measured sizes differ by 30 % at most, and many configs tie there. Where one group has all rows, some of them take 1.2
times as long as others (H100, 32 groups of 192 rows on average, n 7168, k 3072: BF16 889 us with 88x128 swapped, 755
with 128x208; with sizes within 30 % 590 and 591).
"""

import numpy as np

from deep_gemm import _C
from deep_gemm.fields import OP_KINDS
from tuner.learn.dataset import CONFIRMED, Dataset
from tuner.problems.fields import replace_problem

#: What a config must gain by the estimate for uneven sizes to be chosen for it.
UNEVEN_GAIN = 0.1


def prefer_steady(data: Dataset, chosen: np.ndarray, columns: np.ndarray, slack: float) -> np.ndarray:
    """Return `chosen`, but for masked groups another one of `columns` where it ties and bears uneven sizes better.

    Of those that were confirmed and whose log ratio is at most `slack` above that of the first choice, it is the one
    with the smallest estimate for one group with all rows, if that is by UNEVEN_GAIN below the first choice's.
    """
    steady = chosen.copy()
    for row, problem in enumerate(data.problems):
        if not OP_KINDS[problem.op].has_room or problem.num_groups < 2 or not problem.expected_m:
            continue
        limit = data.log_ratio[row, chosen[row]] + slack
        tied = columns[(data.state[row, columns] == CONFIRMED) & (data.log_ratio[row, columns] <= limit)]
        configs = [data.configs[index] for index in (chosen[row], *tied)]
        own, *others = _C.estimate_times_us(make_uneven(problem), configs, data.device)
        if others and min(others) < (1.0 - UNEVEN_GAIN) * own:
            steady[row] = tied[int(np.argmin(others))]
    return steady


def make_uneven(problem: "_C.Problem") -> "_C.Problem":
    """Return the problem of one group that has all rows of `problem`, as far as there is room for them."""
    rows = min(problem.m, problem.num_groups * problem.expected_m)
    return replace_problem(problem, num_groups=1, expected_m=rows)
