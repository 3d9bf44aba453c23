"""The exact table of an op kind: which config each measured problem gets, and the few configs that it may name."""

from collections import Counter

import numpy as np

from deep_gemm.artifact import exact_key
from tuner.learn.dataset import CONFIRMED, SEARCHED, Dataset
from tuner.ship.exact import MAX_CONFIGS
from tuner.ship.steady import choose_steady_extra, prefer_steady

#: The exact table leaves the portfolio only for a confirmed gain above 1 %.
EXACT_GAIN_LOG = np.log(1.01)


def choose_exact(data: Dataset, portfolio: list) -> tuple[list, dict]:
    """Return all configs of the artefact, the portfolio first, and {problem: config index} of the measured best.

    A config outside the portfolio joins only for gains above 1 %; those with the largest sum of gains come first. Of
    configs that tie, masked groups get one that bears uneven sizes, for which one may join, too. A problem gets no
    entry where the heuristic's pick is more than 1 % faster than the entry would be: forest and heuristic then choose.
    """
    column = {config: index for index, config in enumerate(data.configs)}
    timed = np.where(data.state >= SEARCHED, data.log_ratio, np.inf)
    inside = np.array([column[config] for config in portfolio])
    own = inside[timed[:, inside].argmin(axis=1)]
    # An oracle in the portfolio stays the choice: no lucky search round of another replaces it and makes it an extra.
    own = np.where(np.isin(data.oracle, inside), data.oracle, own)
    gain = confirmed_gain(data, own)
    extra = choose_extra(data.oracle, gain, MAX_CONFIGS - len(portfolio))
    # An oracle that joined for other problems costs no further kernel, and is the choice like one in the portfolio.
    is_confirmed = data.state[np.arange(len(own)), data.oracle] == CONFIRMED
    chosen = np.where(np.isin(data.oracle, extra) & is_confirmed, data.oracle, own)
    columns = np.array([*inside, *extra], int)
    room = MAX_CONFIGS - len(columns)
    columns = np.append(columns, choose_steady_extra(data, chosen, columns, EXACT_GAIN_LOG, room))
    chosen = prefer_steady(data, chosen, columns, EXACT_GAIN_LOG)
    configs = [data.configs[index] for index in columns]
    place = {config: index for index, config in enumerate(configs)}
    kept = np.flatnonzero(timed[np.arange(len(chosen)), chosen] <= EXACT_GAIN_LOG)
    return configs, {data.problems[row]: place[data.configs[chosen[row]]] for row in kept}


def confirmed_gain(data: Dataset, own: np.ndarray) -> np.ndarray:
    """Return log(time of column `own` / time of the oracle) per problem, 0 where the oracle has no confirmation rounds.

    A column without confirmation rounds was no finalist; it is then compared on the search rounds of both.
    """
    rows = np.arange(len(own))
    confirmed = data.state[rows, own] == CONFIRMED
    oracle = np.where(confirmed, data.log_ratio[rows, data.oracle], data.search[rows, data.oracle])
    gain = np.nan_to_num(data.log_ratio[rows, own] - oracle)
    return np.where(data.state[rows, data.oracle] == CONFIRMED, gain, 0.0)


def choose_extra(oracle: np.ndarray, gain: np.ndarray, count: int) -> list[int]:
    """Return up to `count` columns outside the portfolio, those with the largest total gain first."""
    sums: Counter = Counter()
    for column, value in zip(oracle.tolist(), gain.tolist(), strict=True):
        if value > EXACT_GAIN_LOG:
            sums[column] += value
    return sorted(sums, key=lambda column: (-sums[column], column))[:count]


def exact_arrays(exact: dict) -> dict:
    """Return the exact table: the problems' keys in it, ascending, and the index of the config of each."""
    entries = sorted((exact_key(problem), index) for problem, index in exact.items())
    keys, indices = ([entry[part] for entry in entries] for part in (0, 1))
    return {"exact_key": np.array(keys, np.uint64), "exact_config": np.array(indices, np.int32)}
