"""The exact table of an op kind: which config each measured problem gets, and the few configs that it may name."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from deep_gemm.artifact import SIZES, exact_key
from deep_gemm.selector import Selector, join_quarantined
from tuner import errors
from tuner.learn.dataset import CONFIRMED, SEARCHED, Dataset
from tuner.ship.exact import MAX_CONFIGS, to_rows
from tuner.ship.model_card import Counts
from tuner.ship.steady import choose_steady_extra, prefer_steady

#: The exact table leaves the portfolio only for a confirmed gain above 1 %.
EXACT_GAIN_LOG = np.log(1.01)
MAX_FAILED = SIZES["configs"][1] - MAX_CONFIGS
#: Of an op kind's entries in quarantine as JSON: all op kinds together stay within the metadata's limit.
MAX_QUARANTINE_BYTES = 4096


@dataclass(frozen=True)
class ExactTable:
    """What an artefact holds of the measured problems of an op kind.

    `exact` maps a problem to the index of its config in `configs`, behind which those in quarantine follow; `kept` does
    so for the keys of problems that the data lack. `num_lost` entries of such problems had no room.
    """

    data: Dataset
    configs: list
    quarantined: list
    exact: dict
    kept: dict[int, int] = field(default_factory=dict)
    num_lost: int = 0

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of an artefact."""
        entries = {exact_key(problem): index for problem, index in self.exact.items()} | self.kept
        keys = sorted(entries)
        return {
            "configs": to_rows(self.configs + self.quarantined),
            "exact_key": np.array(keys, np.uint64),
            "exact_config": np.array([entries[key] for key in keys], np.int32),
        }

    def count(self, arrays: Mapping[str, np.ndarray]) -> Counts:
        """Return what an artefact with the table and these `arrays` of its trees holds of the op kind."""
        return Counts(
            exact=len(self.exact) + len(self.kept),
            configs=len(self.configs),
            trees=len(arrays["tree_start"]) - 1,
            nodes=len(arrays["feature"]),
            golden=len(arrays["golden_scores"]),
        )

    def describe_quarantined(self) -> list:
        """Return the metadata's `quarantined`: the indices of configs that failed, each with the variants that it built
        for. Where an artefact has no room for these, configs that some problem is best served by are left out.
        """
        configs, data = self.configs + self.quarantined, self.data
        indices = [index for index, config in enumerate(configs) if config in data.failed]
        entries = [
            join_quarantined(index, sorted(variant.to_json() for variant in data.built.get(configs[index], ())))
            for index in indices
        ]
        if len(json.dumps(entries)) <= MAX_QUARANTINE_BYTES:
            return entries
        return [index for index in indices if index >= len(self.configs)]

    def check(self, selector: Selector) -> None:
        """Raise IntegrityError where the run time chooses something else for a problem of the table."""
        for problem, index in self.exact.items():
            choice = selector.choose(problem, self.data.device)
            if choice.source != "exact" or choice.config != self.configs[index]:
                raise errors.IntegrityError(
                    f"{problem}: the artefact chooses {choice} instead of its own exact entry {self.configs[index]};"
                    " nothing was written"
                )


def make_table(data: Dataset, portfolio: list) -> ExactTable:
    """Return the exact table of an op kind's data. Raises: IntegrityError for more failures than it can name."""
    configs, exact = choose_exact(data, portfolio)
    return ExactTable(data, configs, find_quarantined(data, configs), exact)


def keep_entries(table: ExactTable, before: dict) -> ExactTable:
    """Return a table that keeps those of {key of a problem: config} of whose problems its data have no rows.

    Configs that serve most of them come first, as far as there is room.
    """
    known = {exact_key(problem) for problem in table.data.problems}
    others = {key: config for key, config in before.items() if key not in known}
    served = Counter(config for config in others.values() if config not in table.configs)
    configs = table.configs + [config for config, _ in served.most_common(MAX_CONFIGS - len(table.configs))]
    place = {config: index for index, config in enumerate(configs)}
    kept = {key: place[config] for key, config in others.items() if config in place}
    quarantined = [config for config in table.quarantined if config not in place]
    return replace(table, configs=configs, quarantined=quarantined, kept=kept, num_lost=len(others) - len(kept))


def replay(content: bytes) -> Selector:
    """Return the run time's reader of an artefact. Raises: IntegrityError where it replays its golden vectors otherwise
    than they were written.
    """
    selector = Selector(content)
    if differing := selector.replay_golden():
        raise errors.IntegrityError(
            f"{differing} golden problems give another result in the native walk than in training; nothing was written"
        )
    return selector


def choose_exact(data: Dataset, portfolio: list) -> tuple[list, dict]:
    """Return all configs of the artefact, the portfolio first, and {problem: config index} of the measured best.

    A config outside the portfolio joins only for gains above 1 %; those with the largest sum of gains come first. Of
    configs that tie, masked groups get one that bears uneven sizes, for which one may join, too. A problem gets no
    entry where the heuristic's pick is more than 1 % faster than the entry would be, nor where others have confirmation
    rounds and the entry has none: forest and heuristic then choose.
    """
    column = {config: index for index, config in enumerate(data.configs)}
    timed = np.where(data.state >= SEARCHED, data.log_ratio, np.inf)
    inside = np.array([column[config] for config in portfolio])
    proved = find_proved(data)
    sure = np.where(proved, timed, np.inf)[:, inside]
    own = inside[np.where(np.isfinite(sure).any(axis=1), sure.argmin(axis=1), timed[:, inside].argmin(axis=1))]
    # An oracle in the portfolio stays the choice: no lucky search round of another replaces it and makes it an extra.
    own = np.where(np.isin(data.oracle, inside), data.oracle, own)
    gain = confirmed_gain(data, own)
    extra = choose_extra(data.oracle, gain, MAX_CONFIGS - len(portfolio))
    # An oracle that joined for other problems costs no further kernel, and is the choice like one in the portfolio.
    is_confirmed = data.state[np.arange(len(own)), data.oracle] == CONFIRMED
    chosen = np.where(np.isin(data.oracle, extra) & is_confirmed, data.oracle, own)
    is_proved = proved[np.arange(len(chosen)), chosen]
    columns = np.array([*inside, *extra], int)
    room = MAX_CONFIGS - len(columns)
    columns = np.append(columns, choose_steady_extra(data, chosen, columns, EXACT_GAIN_LOG, room))
    chosen = prefer_steady(data, chosen, columns, EXACT_GAIN_LOG)
    configs = [data.configs[index] for index in columns]
    place = {config: index for index, config in enumerate(configs)}
    kept = np.flatnonzero(is_proved & (timed[np.arange(len(chosen)), chosen] <= EXACT_GAIN_LOG))
    return configs, {data.problems[row]: place[data.configs[chosen[row]]] for row in kept}


def find_proved(data: Dataset) -> np.ndarray:
    """Return bool[R, C]: which times speak for an entry.

    Where a problem has confirmation rounds, only these do: the few search rounds of a config that was no finalist may
    have been of a cooler GPU.
    """
    confirmed = data.state == CONFIRMED
    return np.where(confirmed.any(axis=1, keepdims=True), confirmed, data.state >= SEARCHED)


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
