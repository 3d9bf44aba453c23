"""What the problems of a sweep that were measured before still lack: configs, times after rests, energy."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tuner.problems.workload import Workload
from tuner.search import propose, rests
from tuner.search.candidates import SweepOptions, choose_trials, count_known
from tuner.search.past import Past, Steady
from tuner.search.problem_run import EFFORTS

#: A problem counts as measured when its rows cover this share of the requested configs. A changed heuristic or a few
#: new candidates are then no reason to measure it again; a portfolio's few rows do not stand for the full space.
COVERED_SHARE = 0.8


@dataclass
class Missing:
    """What is made up for, by the keys of problems: `steady` is what was found without rests, where no rests followed;
    `energy` are configs without energy. `candidates` maps the problems themselves to the configs of both.
    """

    steady: dict[str, Steady] = field(default_factory=dict)
    energy: dict[str, list] = field(default_factory=dict)
    candidates: dict = field(default_factory=dict)


def find_missing(
    past: Past,
    problems: Iterable,
    options: SweepOptions,
    workload: Workload,
    quarantined,
    boards: list,
    warn: Callable[[str], None],
) -> Missing:
    """Return what `problems`, whose configs were measured before, lack, without `quarantined` (op kind, config).

    Times after rests are of the board of their block: where that is none of `boards`, they are not made up for.
    """
    closed = list(problems)
    if not options.resume:
        return Missing()
    found = Missing()
    if options.rests:
        found.steady = past.find_unrested(closed)
        lacking = rests.find_open(closed, found.steady, workload, EFFORTS[options.effort])
        found.candidates |= rests.find_on_boards(lacking, found.steady, boards, warn)
        found.steady = {problem.key: found.steady[problem.key] for problem in found.candidates}
    if options.energy:
        unknown = past.find_without_energy(closed, options.energy)
        for problem in closed:
            left = [config for config in unknown.get(problem.key, ()) if (problem.op, config) not in quarantined]
            if left:
                found.energy[problem.key] = left
                found.candidates[problem] = list(dict.fromkeys([*found.candidates.get(problem, ()), *left]))
    return found


def is_covered(problem, device, options: SweepOptions, configs: list, searched: set[str], finished: set[str]) -> bool:
    """Return whether enough of `configs` were measured: their keys are in `finished`, or for a search in `searched`.

    `searched` includes the batches of searches. Those stay open blocks, which no data set reads, so that a search never
    stands for a measured space.
    """
    if propose.choose_sampler(options.sampler, len(configs)) == "exhaustive":
        return count_known(problem, configs, finished) >= COVERED_SHARE * len(configs)
    budget = choose_trials(problem, device, options, configs)
    return count_known(problem, budget.counted, searched) >= budget.number
