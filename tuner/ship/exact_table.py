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

    A config outside the portfolio joins only for gains above 1 %; those with the largest sum of gains come first. It
    then serves other problems, too: that costs no further kernel. Of configs that tie, masked groups get one that bears
    uneven sizes, for which one may join, too. A problem gets no entry where none of these configs has a time that
    speaks for it (find_proved), or the heuristic's pick has one that is more than 1 % faster: forest and heuristic then
    choose.
    """
    column = {config: index for index, config in enumerate(data.configs)}
    inside, rows = np.array([column[config] for config in portfolio]), np.arange(len(data.problems))
    proved = find_proved(data)
    timed = np.where(proved, data.log_ratio, np.inf)
    extra = choose_extra(*find_gains(data, inside, timed), MAX_CONFIGS - len(portfolio))
    # Search rounds speak for configs of the portfolio alone.
    is_apart = np.isin(np.arange(len(data.configs)), extra) & (data.state != CONFIRMED)
    columns = np.array([*inside, *extra], int)
    chosen = columns[np.where(is_apart, np.inf, timed)[:, columns].argmin(axis=1)]
    room = MAX_CONFIGS - len(columns)
    columns = np.append(columns, choose_steady_extra(data, chosen, columns, EXACT_GAIN_LOG, room))
    chosen = prefer_steady(data, chosen, columns, EXACT_GAIN_LOG)
    configs = [data.configs[index] for index in columns]
    place = {config: index for index, config in enumerate(configs)}
    pick = np.where(proved[rows, data.heuristic], data.log_ratio[rows, data.heuristic], np.inf)
    kept = np.flatnonzero(np.isfinite(timed[rows, chosen]) & (timed[rows, chosen] - EXACT_GAIN_LOG <= pick))
    return configs, {data.problems[row]: place[data.configs[chosen[row]]] for row in kept}


def find_proved(data: Dataset) -> np.ndarray:
    """Return bool[R, C]: which times speak for an entry.

    Where a problem has confirmation rounds, only these do: the few search rounds of a config that was no finalist may
    have been of a cooler GPU, and those of a finalist were the luckiest of many.
    """
    confirmed = data.state == CONFIRMED
    return np.where(confirmed.any(axis=1, keepdims=True), confirmed, data.state >= SEARCHED)


def find_gains(data: Dataset, inside: np.ndarray, timed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each problem's best config by `timed`, and log(time of the best column of `inside` / its time), 0 where it
    has no confirmation rounds.

    Where no column of `inside` has a time that speaks, none was a finalist; then search rounds of both are compared.
    """
    rows, best = np.arange(len(timed)), timed.argmin(axis=1)
    searched = np.where(data.state >= SEARCHED, data.log_ratio, np.inf)[:, inside].min(axis=1)
    own = timed[:, inside].min(axis=1)
    gain = np.where(np.isfinite(own), own - timed[rows, best], searched - data.search[rows, best])
    is_sure = (data.state[rows, best] == CONFIRMED) & np.isfinite(gain)
    return best, np.where(is_sure, gain, 0.0)


def choose_extra(best: np.ndarray, gain: np.ndarray, count: int) -> list[int]:
    """Return up to `count` columns outside the portfolio, those with the largest total gain first."""
    sums: Counter = Counter()
    for column, value in zip(best.tolist(), gain.tolist(), strict=True):
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
