"""Replay recorded energies: how much of the area under the (time, energy) front does a search find, and how soon?

NSGA-II proposes configs for both at once. Beside it are chance, the order of the heuristic's estimates, and that of the
measured times, which no search can know before: it says what `sweep --energy N` finds. All are told the heuristic's
pick first, and their score is the share of the hypervolume of all recorded configs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import optuna

from deep_gemm import _C
from tuner.db.rows import MeasurementRow
from tuner.learn.energy import Energy, find_corner, find_front, measure_area, read_energies
from tuner.measure.statistics import median
from tuner.problems.regimes import is_energy
from tuner.search.samplers import make_sampler
from tuner.search.space import Space

BUDGETS = (4, 8, 12, 16, 24, 32, 48)
#: Problems of which fewer configs have their energy say nothing about searches.
LEAST_CONFIGS = 8
#: Samplers that propose for time and energy, and orders.
DRAWN, ORDERED = ("nsga2", "random"), ("analytic", "time")
SEARCHERS = (*DRAWN, *ORDERED)


class Recorded(NamedTuple):
    """The energies of one problem; `noise` is that of its blocks in the median, None where none is known."""

    problem: _C.Problem
    heuristic: _C.Config
    energies: Mapping[_C.Config, Energy]
    noise: float | None = None


def load_recorded(store, device: _C.Device, op: str, limit: int = 0, least: int = LEAST_CONFIGS) -> list[Recorded]:
    """Return the problems of one op kind with the energy of at least `least` configs under the newest such kernels.

    They are in the order of their sizes; up to `limit` of them, evenly spread; 0: all.
    """
    found = []
    for problem, rows in group_newest(store.load_measurements(sku=device.sku, op=op, role="confirm")):
        energies = read_energies(rows)
        if len(energies) >= max(least, LEAST_CONFIGS):
            found.append(Recorded(problem, _C.get_analytic_config(problem, device), energies, find_noise(rows)))
    if 0 < limit < len(found):
        found = [found[place] for place in np.linspace(0, len(found) - 1, limit).round().astype(int)]
    return found


def group_newest(rows: Sequence[MeasurementRow]) -> Iterator[tuple[_C.Problem, list[MeasurementRow]]]:
    """Yield each problem with its rows of energy, those of the identity and group sizes that were measured last."""
    groups: dict[_C.Problem, dict[tuple, list[MeasurementRow]]] = {}
    for row in rows:
        if is_energy(row.block.regime):
            kind = row.block.identity, row.block.workload
            groups.setdefault(row.block.problem, {}).setdefault(kind, []).append(row)
    for problem in sorted(groups, key=lambda problem: (problem.m, problem.n, problem.k, problem.key)):
        yield problem, max(groups[problem].values(), key=lambda own: max(row.block.created for row in own))


def find_noise(rows: Sequence[MeasurementRow]) -> float | None:
    """Return the median noise of the blocks of some rows of energy, None without any."""
    blocks = {row.block.block_id: row.block.noise for row in rows}
    known = [noise for noise in blocks.values() if noise is not None]
    return median(known) if known else None


class Order:
    """Proposes configs in a fixed order."""

    def __init__(self, configs: Sequence[_C.Config]):
        self.left = list(configs)

    def ask(self) -> _C.Config:
        """Return the next config."""
        return self.left.pop(0)

    def tell(self, config: _C.Config, point: tuple[float, float]) -> None:
        """Strike out a config."""
        self.left = [other for other in self.left if other != config]


class FrontStudy:
    """An optuna study of one problem with two directions, time and energy; it never asks for a config twice."""

    def __init__(self, configs: Sequence[_C.Config], sampler: str, seed: int):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space = Space(configs)
        self.study = optuna.create_study(
            directions=["minimize", "minimize"], sampler=make_sampler(sampler, self.space, seed)
        )
        self.asked: dict[_C.Config, optuna.Trial] = {}

    def ask(self) -> _C.Config:
        """Return the config of a new trial."""
        trial = self.study.ask(self.space.distributions)
        config = self.space.find(trial.params)
        self.asked[config] = trial
        return config

    def tell(self, config: _C.Config, point: tuple[float, float]) -> None:
        """Finish the trial of a config, or of one that nobody asked for."""
        if config not in self.asked:  # asked for after all, so that it is one of the sampler's generations
            self.study.enqueue_trial(self.space.parameters[self.space.candidates.index(config)])
            self.ask()
        self.study.tell(self.asked.pop(config), point)


def make_searcher(name: str, seed: int, one: Recorded, device: _C.Device) -> Order | FrontStudy:
    """Return what proposes the configs of a problem. The spaces of samplers are in the order of the estimates."""
    estimated = sorted(one.energies, key=lambda config: _C.estimate_time_us(one.problem, config, device))
    if name == "analytic":
        return Order(estimated)
    if name == "time":
        return Order(sorted(one.energies, key=lambda config: one.energies[config].time_ratio))
    return FrontStudy(estimated, name, seed)


def replay(name: str, seed: int, one: Recorded, device: _C.Device, budgets: Sequence[int] = BUDGETS) -> list[float]:
    """Search one problem; return the share of the whole area that is found at each budget."""
    points = {config: energy.point for config, energy in one.energies.items()}
    corner = find_corner(list(points.values()))
    whole, searcher = measure_area(points.values(), corner), make_searcher(name, seed, one, device)
    found, shares = [one.heuristic] if one.heuristic in points else [], []
    for config in found:
        searcher.tell(config, points[config])
    for budget in budgets:
        while len(found) < min(budget, len(points)):
            config = searcher.ask()
            searcher.tell(config, points[config])
            found.append(config)
        shares.append(measure_area((points[config] for config in found), corner) / whole)
    return shares


def compare(
    recorded: Sequence[Recorded],
    device: _C.Device,
    seeds: Sequence[int],
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict]:
    """Return for each problem its configs, the front, and the mean share of each searcher over all seeds, by budget."""
    rows = []
    for place, one in enumerate(recorded):
        shares = {}
        for name in SEARCHERS:
            runs = [replay(name, seed, one, device) for seed in (seeds if name in DRAWN else seeds[:1])]
            shares[name] = [sum(column) / len(runs) for column in zip(*runs, strict=True)]
        rows.append({"problem": one.problem, "front": describe_front(one), "shares": shares})
        on_done(place + 1, len(recorded))
    return rows


def describe_front(one: Recorded) -> dict:
    """Return how many configs were measured, and the two ends of the front: what the least energy costs in time."""
    front = find_front(one.energies)
    fast, frugal = one.energies[front[0]], one.energies[front[-1]]
    return {
        "configs": len(one.energies),
        "front": len(front),
        "energy_saved": 1.0 - frugal.energy_ratio / fast.energy_ratio,
        "time_added": frugal.time_ratio / fast.time_ratio - 1.0,
        "noise": one.noise,
        "fastest": str(front[0]),
        "least_energy": str(front[-1]),
    }


def average(rows: Sequence[dict]) -> dict[str, list[float]]:
    """Return {searcher: mean share over the problems, by budget}."""
    return {
        name: [sum(column) / len(rows) for column in zip(*(row["shares"][name] for row in rows), strict=True)]
        for name in SEARCHERS
    }
