"""What `evaluation.json` holds: the statistics of every method per split, the folds, and the worst problems."""

from dataclasses import asdict, dataclass

from tuner.db.rows import Identity
from tuner.learn.typed import make_typed

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How one method did on the held-out problems of one split.

    `mean`, `p95` and `max` are regrets; intervals cover 95 %. `wins`, `losses` and `worst_against_heuristic` compare
    with the heuristic's pick. `confirmed` is the share of choices that were scored on confirmation rounds, `removed`
    the share of the heuristic's regret that the method removes, `answered` the share of problems that the model
    answered.
    """

    problems: int
    families: int
    mean: float
    mean_interval: list[float]
    p95: float
    p95_interval: list[float]
    max: float
    within_2_percent: float
    wins: int
    losses: int
    worst_against_heuristic: float
    confirmed: float
    removed: float | None = None
    answered: float | None = None

    def to_json(self) -> dict:
        """Return the statistics as JSON values; only the guarded model has `answered`."""
        found = asdict(self)
        if self.answered is None:
            del found["answered"]
        return found


#: {method: its statistics} of one split; empty where no held-out problem was measured over its whole space.
Table = dict[str, Statistics]


@dataclass(frozen=True, slots=True)
class FoldSummary:
    """One fold: its sizes, and the guarded model's mean regret on full-space problems, None without any."""

    split: str
    label: str
    problems: int
    full_space: int
    portfolio: int
    mean: float | None


@dataclass(frozen=True, slots=True)
class WorstProblem:
    """A held-out problem with a large regret; configs in their short form."""

    m: int
    n: int
    k: int
    groups: str
    variant: str
    regret: float
    chosen: str
    best: str
    heuristic: str


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """How many picks of folds and baselines, on how many problems, have no confirmation rounds."""

    pairs: int
    problems: int


@dataclass(frozen=True)
class Evaluation:
    """The contents of `evaluation.json`; a split without folds is absent from `splits`.

    `nested`: whether each fold chose the settings of its trees by itself.
    """

    identity: Identity
    fingerprint: str
    estimator_sha256: str
    seeds: int
    nested: bool
    splits: dict[str, Table]
    worst: list[WorstProblem]
    folds: list[FoldSummary]
    unconfirmed: Unconfirmed

    def to_json(self) -> dict:
        """Return the evaluation as JSON values."""
        return self.describe_source() | {
            "seeds": self.seeds,
            "nested": self.nested,
            "splits": {
                split: {method: statistics.to_json() for method, statistics in table.items()}
                for split, table in self.splits.items()
            },
            "worst": [asdict(problem) for problem in self.worst],
            "folds": [asdict(fold) for fold in self.folds],
            "unconfirmed": asdict(self.unconfirmed),
        }

    def describe_source(self) -> dict:
        """Return what every file of an evaluation says: of which selector and data it is."""
        return {
            "format": FORMAT,
            "identity": asdict(self.identity),
            "fingerprint": self.fingerprint,
            "estimator_sha256": self.estimator_sha256,
        }

    @classmethod
    def from_json(cls, document: dict) -> "Evaluation":
        """Read an evaluation. Raises: KeyError, TypeError, AttributeError for anything that to_json does not write."""
        return cls(
            make_typed(Identity, document["identity"]),
            document["fingerprint"],
            document["estimator_sha256"],
            int(document["seeds"]),
            bool(document["nested"]),
            {
                split: {method: make_typed(Statistics, statistics) for method, statistics in table.items()}
                for split, table in document["splits"].items()
            },
            [make_typed(WorstProblem, problem) for problem in document["worst"]],
            [make_typed(FoldSummary, fold) for fold in document["folds"]],
            make_typed(Unconfirmed, document["unconfirmed"]),
        )
