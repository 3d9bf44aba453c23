"""The parameters by which a search sees configs: whole numbers with a meaning, most of whose combinations are configs.

    rows         the side of the tile along the MMA's rows
    columns      the side along its columns
    swap_ab      1 where the operands are swapped, which exchanges block_m and block_n
    depth        the rank of num_stages among candidates that differ in nothing else, 0 being the deepest: the number of
                 stages itself means little across tiles
    the others   the fields of the config of the same name

All are integers, because optuna keeps one range of values per study and name for anything else, and one study may see
several spaces.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from optuna.distributions import IntDistribution

#: Parameters whose values double from one to the next.
DOUBLING = ("split_k",)
#: Fields of a config that other parameters stand for.
REPLACED = ("block_m", "block_n", "num_stages")


def sides_of(config) -> tuple[int, int]:
    """Return the sides of the tile along the MMA's rows and along its columns."""
    return (config.block_n, config.block_m) if config.swap_ab else (config.block_m, config.block_n)


def describe(candidates: Sequence) -> list[dict[str, int]]:
    """Return the parameters of each candidate; different candidates have different parameters."""
    depths: dict[tuple, set[int]] = {}
    for config in candidates:
        depths.setdefault(tile_of(config), set()).add(config.num_stages)
    ranked = {tile: sorted(stages, reverse=True) for tile, stages in depths.items()}
    return [
        dict(zip(("rows", "columns"), sides_of(config), strict=True))
        | {name: int(value) for name, value in config.as_dict().items() if name not in REPLACED}
        | {"depth": ranked[tile_of(config)].index(config.num_stages)}
        for config in candidates
    ]


def tile_of(config) -> tuple:
    """Return everything of a config but its stages."""
    return tuple(value for name, value in config.as_dict().items() if name != "num_stages")


class Space:
    """Different candidates, first come first served among equals, with their parameters.

    `distributions`: optuna's {parameter: IntDistribution} over the values that occur. Parameters with a single value
    are left out, unless every one has.
    """

    def __init__(self, candidates: Sequence):
        self.candidates = list(candidates)
        described = describe(self.candidates)
        values = {name: sorted({one[name] for one in described}) for name in described[0]}
        names = [name for name, found in values.items() if len(found) > 1] or ["rows"]
        self.parameters: list[dict[str, int]] = [{name: one[name] for name in names} for one in described]
        self.distributions: dict[str, Any] = {
            name: IntDistribution(values[name][0], values[name][-1], log=name in DOUBLING) for name in names
        }
        self.index = {freeze(one): place for place, one in enumerate(self.parameters)}
        self.points = np.array([self.to_point(one) for one in self.parameters])

    def find(self, parameters: dict[str, Any]) -> Any:
        """Return the candidate with these parameters."""
        return self.candidates[self.index[freeze(parameters)]]

    def fix(self, place: int, name: str) -> dict[str, Any]:
        """Return distributions that have one candidate only, by its number, the parameter called `name`."""
        fixed = {
            one: IntDistribution(value, value, log=one in DOUBLING) for one, value in self.parameters[place].items()
        }
        return {name: IntDistribution(0, len(self.candidates) - 1), **fixed}

    def to_point(self, parameters: dict[str, int]) -> list[float]:
        """Return parameters as a point of the unit cube."""
        return [scale(parameters[name], found) for name, found in self.distributions.items()]

    def find_nearest(self, parameters: dict[str, int], is_free: np.ndarray) -> int:
        """Return the candidate nearest to `parameters` among those that `is_free`, of several the first."""
        distances = np.square(self.points - self.to_point(parameters)).sum(axis=1)
        return int(np.where(is_free, distances, np.inf).argmin())


def scale(value: float, distribution: Any) -> float:
    """Return where `value` lies in an IntDistribution, from 0 to 1."""
    low, high = distribution.low, distribution.high
    if distribution.log:
        value, low, high = np.log2(value), np.log2(low), np.log2(high)
    return (value - low) / max(high - low, 1e-9)


def freeze(parameters: dict) -> tuple:
    """Return a hashable form of a trial's parameters."""
    return tuple(sorted(parameters.items()))
