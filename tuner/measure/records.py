"""What a race is told (Plan) and what it reports (Result, Report), with the JSON form in which both travel.

Imports nothing of the library: the process that only passes messages on needs no more than this.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from tuner.measured import Measured

#: A replay lasts about this long: the launch of its graph, about 2 us, is then less than 1 %.
REPLAY_US = 300.0

#: How the error of a row begins whose config was skipped because it had crashed or hung before.
QUARANTINED = "quarantined: "


@dataclass(frozen=True, slots=True)
class Plan:
    """How thoroughly one problem is measured.

    `finalists` are confirmed at least, in `confirm_parts` parts of the rounds, see race.py. With `isolate` every timing
    is a message of its own, so that a fault can be blamed on one config. Before each timing the device rests for `rest`
    times as long. With `energy_s` nothing is raced: every config runs for that many seconds without pause, and its
    power is read, see energy.py.
    """

    search_rounds: int
    confirm_rounds: int
    finalists: int
    search_seconds: float
    confirm_seconds: float
    isolate: bool = False
    rest: float = 0.0
    energy_s: float = 0.0
    confirm_parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Measured):
    """What one config got in one role of a race. Ratios are to the job's reference config.

    `config` is the config's index in the job; where a report is read back, the config itself takes its place.
    """

    config: Any

    def to_json(self) -> dict:
        """Return the fields that are known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a race, and the device it ran on, report of one problem.

    `seconds` are those of each stage; `spread` is how far the ratios of a config differ between the parts of the
    confirmation, as a standard deviation, None with one part. The last four are the device's, None where they cannot be
    read.
    """

    results: list[Result] = field(default_factory=list)
    search_rounds: int | None = None
    confirm_rounds: int | None = None
    noise: float | None = None
    spread: float | None = None
    reference_us: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    anchor_us: float | None = None
    clock_mhz: float | None = None
    power_w: float | None = None
    throttle: int | None = None

    def to_json(self) -> dict:
        """Return the report as JSON values."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "results"}
        return own | {"results": [result.to_json() for result in self.results]}

    @classmethod
    def from_json(cls, document: dict, configs: Sequence) -> "Report":
        """Read a report of a job with these `configs`.

        Raises: ValueError, TypeError, KeyError, IndexError for anything that to_json does not write.
        """
        results = [Result(**row) for row in document["results"]]
        results = [replace(result, config=configs[result.config]) for result in results]
        return cls(**{**document, "results": results})
