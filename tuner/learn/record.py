"""What `training.json` holds: data, software and settings of a training, and its result without the forest."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, fields

import numpy as np
import sklearn

from deep_gemm import _C
from deep_gemm._version import __version__
from tuner.db.rows import Identity
from tuner.learn.dataset import CONFIRMED, UNMEASURED, Dataset
from tuner.learn.learner import Guards, Learned, Settings
from tuner.learn.typed import make_typed
from tuner.problems.fields import describe_variant, get_tokens, to_config
from tuner.problems.shapes import list_public

FORMAT = 4


@dataclass(frozen=True)
class DataCounts:
    """The size of the data that a selector was trained on; `dropped` counts problems that were left out, by reason,
    `older` those, used or not, whose rows are of older kernels.
    """

    problems: int
    full_space_problems: int
    families: int
    configs: int
    models: list[str]
    values_of_m: int
    variants: dict[str, int]
    timed: int
    confirmed: int
    quarantined: list[str]
    dropped: dict[str, int]
    older: int = 0


@dataclass(frozen=True)
class Record:
    """The contents of `training.json`.

    `portfolio_curve` is the score of each portfolio size on left-out families; `feature_min` and `feature_max`, F64[F],
    already include the slack of the guards. `estimator_sha256` is the SHA-256 of the file with the forest.
    """

    identity: Identity
    database: str
    fingerprint: str
    newest_row: str
    features_version: int
    heuristic_version: str
    package_version: str
    sklearn_version: str
    data: DataCounts
    settings: Settings
    portfolio: list
    portfolio_curve: dict[str, float]
    guards: Guards
    feature_min: np.ndarray
    feature_max: np.ndarray
    estimator_sha256: str
    prior: str = ""

    def to_json(self) -> dict:
        """Return the record as JSON values."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return own | {
            "format": FORMAT,
            "identity": asdict(self.identity),
            "data": asdict(self.data),
            "settings": asdict(self.settings) | {"sizes": list(self.settings.sizes)},
            "portfolio": [config.as_dict() for config in self.portfolio],
            "guards": asdict(self.guards),
            "feature_min": self.feature_min.tolist(),
            "feature_max": self.feature_max.tolist(),
        }

    @classmethod
    def from_json(cls, document: dict) -> "Record":
        """Read a record. Raises: ValueError, KeyError, TypeError for anything that to_json does not write."""
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}: this package reads format {FORMAT}")
        if not (isinstance(document["portfolio"], list) and document["portfolio"]):
            raise ValueError("portfolio: must be a list of configs")
        settings = document["settings"]
        own = {each.name: document[each.name] for each in fields(cls)}
        return make_typed(
            cls,
            own
            | {
                "identity": make_typed(Identity, document["identity"]),
                "data": make_typed(DataCounts, document["data"]),
                "settings": make_typed(Settings, settings | {"sizes": tuple(settings["sizes"])}),
                "portfolio": [to_config(config) for config in document["portfolio"]],
                "guards": make_typed(Guards, document["guards"]),
                "feature_min": np.array(document["feature_min"], np.float64),
                "feature_max": np.array(document["feature_max"], np.float64),
            },
        )


def make_record(
    data: Dataset,
    learned: Learned,
    settings: Settings,
    database: str,
    fingerprint: str,
    estimator_sha256: str,
    prior: str = "",
) -> Record:
    """Return the record of a selector that was just trained."""
    return Record(
        identity=data.identity,
        database=database,
        fingerprint=fingerprint,
        newest_row=data.newest,
        features_version=_C.FEATURES_VERSION,
        heuristic_version=_C.heuristic_version(data.identity.sku),
        package_version=__version__,
        sklearn_version=sklearn.__version__,
        data=count_data(data),
        settings=settings,
        portfolio=[data.configs[column] for column in learned.portfolio.columns],
        portfolio_curve={str(size): score for size, score in learned.portfolio.curve.items()},
        guards=learned.guards,
        feature_min=learned.feature_min,
        feature_max=learned.feature_max,
        estimator_sha256=estimator_sha256,
        prior=prior,
    )


def count_data(data: Dataset) -> DataCounts:
    """Return the counts of a data set."""
    return DataCounts(
        problems=len(data.problems),
        full_space_problems=int(data.full_space.sum()),
        families=len(np.unique(data.families)),
        configs=len(data.configs),
        models=list_public(data.models),
        values_of_m=len({get_tokens(problem) for problem in data.problems}),
        variants=count_variants(data.problems),
        timed=int((data.state > UNMEASURED).sum()),
        confirmed=int((data.state == CONFIRMED).sum()),
        quarantined=[str(config) for config in data.quarantined],
        dropped=data.dropped,
        older=data.older,
    )


def count_variants(problems: list) -> dict[str, int]:
    """Return {variant: problems}; a variant is described by what differs from the defaults, else as "default"."""
    return dict(Counter(describe_variant(problem.as_dict()) or "default" for problem in problems))


def to_json(value: object) -> bytes:
    """Return indented ASCII JSON with sorted keys and a final newline."""
    return (json.dumps(value, sort_keys=True, indent=1) + "\n").encode("ascii")
