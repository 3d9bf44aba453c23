"""Configs for masked groups of uneven sizes, which the host cannot know.

Measured sizes differ by 30 % at most, and many configs tie there. Where one group has all rows, some of them take 1.2
times as long as others (H100, 32 groups of 192 rows on average, n 7168, k 3072: BF16 889 us with 88x128 swapped, 755
with 128x208; with sizes within 30 % 590 and 591).
"""

from collections import Counter

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
    for row in list_uneven(data):
        steady[row] = find_steady(data, row, chosen[row], columns, slack)
    return steady


def choose_steady_extra(data: Dataset, chosen: np.ndarray, columns: np.ndarray, slack: float, count: int) -> np.ndarray:
    """Return up to `count` columns outside `columns` that bear uneven sizes better than those, by UNEVEN_GAIN again.

    Those that serve most problems come first; each is a kernel more for the deployments that have one of these.
    """
    everything, served = np.arange(len(data.configs)), Counter[int]()
    for row in list_uneven(data):
        inside = find_steady(data, row, chosen[row], columns, slack)
        best = find_steady(data, row, chosen[row], everything, slack)
        if estimate_uneven(data, row, [best])[0] < (1.0 - UNEVEN_GAIN) * estimate_uneven(data, row, [inside])[0]:
            served[best] += 1
    return np.array(sorted(served, key=lambda column: (-served[column], column))[:count], int)


def list_uneven(data: Dataset) -> list[int]:
    """Return the rows of problems whose groups may have uneven sizes of which the host knows the mean."""
    return [
        row
        for row, problem in enumerate(data.problems)
        if OP_KINDS[problem.op].has_room and problem.num_groups > 1 and problem.expected_m
    ]


def find_steady(data: Dataset, row: int, chosen: int, columns: np.ndarray, slack: float) -> int:
    """Return what prefer_steady takes for the problem of one row."""
    limit = data.log_ratio[row, chosen] + slack
    tied = columns[(data.state[row, columns] == CONFIRMED) & (data.log_ratio[row, columns] <= limit)]
    own, *others = estimate_uneven(data, row, [chosen, *tied])
    return int(tied[np.argmin(others)]) if others and min(others) < (1.0 - UNEVEN_GAIN) * own else int(chosen)


def estimate_uneven(data: Dataset, row: int, columns: list[int]) -> list[float]:
    """Return the estimates in microseconds of some columns for one group with all rows."""
    return _C.estimate_times_us(make_uneven(data.problems[row]), [data.configs[one] for one in columns], data.device)


def make_uneven(problem: "_C.Problem") -> "_C.Problem":
    """Return the problem of one group that has all rows of `problem`, as far as there is room for them."""
    rows = min(problem.m, problem.num_groups * problem.expected_m)
    return replace_problem(problem, num_groups=1, expected_m=rows)
