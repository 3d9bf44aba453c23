"""Which configs of a problem have their energy measured, and in which blocks (tuner/measure/energy.py measures).

It comes last of all blocks of a problem, under a regime of its own: nothing that ranks configs by time reads it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tuner import errors
from tuner.measure.energy import ROUNDS
from tuner.measure.power import AVERAGED_S, TICK_LIMIT_S, WARM_UP_S
from tuner.measure.records import Plan
from tuner.measured import TIMED

#: How long a config runs while its power is read. NVML's counter has one to ten ticks in this time.
WINDOW_S = 0.25
#: About what a config costs: both rounds, each with its warm-up, half a tick at both ends, and the end of the queue.
CONFIG_S = ROUNDS * (WARM_UP_S + WINDOW_S + 0.1 + 0.03)
#: So many configs share a block, with the reference, to which their energies are compared: a sweep that is killed loses
#: no more than half a minute, and a board that drifts does so within a block only.
BLOCK_CONFIGS = 16
#: As a number of configs: all that are right.
EVERY = -1
ALL = "all"

assert WARM_UP_S + AVERAGED_S + 2 * TICK_LIMIT_S + 2 * WINDOW_S < 10.0, "a measuring process counts as hung after 10 s"


def parse_count(text: str) -> int:
    """Return the number of configs that --energy names, EVERY for all. Raises: UsageError."""
    if text == ALL:
        return EVERY
    if not (text.isascii() and text.isdecimal()):
        raise errors.UsageError(
            f"--energy {text}: must be a number of configs, 0 for none, or {ALL}; name for example --energy 8"
        )
    return int(text)


def make_plan(plan: Plan) -> Plan:
    """Return how energy is measured, where `plan` is how the configs were raced."""
    return replace(plan, search_rounds=0, confirm_rounds=ROUNDS, rest=0.0, energy_s=WINDOW_S)


def choose_configs(results: Iterable, count: int) -> list:
    """Return the configs whose energy is measured, the fastest first, given what a problem's last block found.

    These are the `count` fastest of those with confirmation rounds, or EVERY one that was right, slow ones included.
    `results` are Results or MeasurementRows.
    """
    right = [row for row in results if row.status in TIMED and row.ratio is not None]
    right.sort(key=lambda row: (row.role != "confirm", row.ratio))
    if count == EVERY:
        return list(dict.fromkeys(row.config for row in right))
    confirmed = [row.config for row in right if row.role == "confirm"]
    return list(dict.fromkeys(confirmed))[:count]


def is_known(row: Any) -> bool:
    """Return whether a MeasurementRow of energy says all that it can: power and ratio, or that its config fails.

    Where a reading was missed, its own (`skipped`) or that of the reference (no ratio), its config is measured again.
    So is one that failed before its board was lost, in a block that stayed open: it may have been the board's fault.
    """
    if row.status in TIMED:
        return row.power_w is not None and row.ratio is not None
    return row.status != "skipped" and row.block.status != "open"


def split(configs: Sequence) -> list[list]:
    """Return the configs of each block."""
    return [list(configs[start : start + BLOCK_CONFIGS]) for start in range(0, len(configs), BLOCK_CONFIGS)]


def estimate_seconds(num_configs: int, count: int) -> float:
    """Return roughly how long the energy of `count` of so many configs takes, with the reference in each block."""
    measured = num_configs if count == EVERY else min(count, num_configs)
    return CONFIG_S * (measured + -(-measured // BLOCK_CONFIGS))


def find_reason(results: Iterable[Any]) -> str | None:
    """Return why a config of a block has no energy though it is right, None where all have it."""
    return next((row.error for row in results if row.role == "confirm" and row.status == "skipped"), None)
