"""Configs that failed: what a sweep knows of those that crash or hang, and the results that say so."""

from collections import Counter
from dataclasses import dataclass, field

from tuner.measure.records import Result

#: After its second crash or hang a config is quarantined for the rest of the sweep.
STRIKES = 2


@dataclass
class Suspects:
    """What the whole sweep knows about configs that crashed or hung, by (op kind, config)."""

    strikes: Counter = field(default_factory=Counter)
    quarantined: dict = field(default_factory=dict)


def make_failure(config, status: str, error: str | None) -> Result:
    """Return the search result of a config that failed."""
    return Result(config=config, role="search", status=status, error=error)
