"""What one config got in one role, whether a race has just measured it or the database has kept it.

Imports nothing of the library, because the process that only passes messages on needs no more than this.
"""

from dataclasses import dataclass

#: Statuses of results that have a time, of configs that cannot be used, and all; databases store a status as its place
#: among all, so that a new one goes to their end.
TIMED = ("ok", "censored")
FAILURES = ("incorrect", "compile_error", "crash", "timeout", "spill")
STATUSES = (*TIMED, *FAILURES, "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The outcome of one config in one role: `search` rounds choose, `confirm` rounds score.

    Times are microseconds, ratios are to a reference config; None: not known. A `censored` status makes them lower
    bounds: the race dropped the config early. `clock_mhz` and `power_w` are the config's alone in a block of energy,
    else those of its whole race.
    """

    role: str
    status: str
    error: str | None = None
    max_abs_error: float | None = None
    num_samples: int | None = None
    median_us: float | None = None
    mad_us: float | None = None
    q10_us: float | None = None
    q90_us: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    samples: list[float] | None = None
    clock_mhz: float | None = None
    power_w: float | None = None
