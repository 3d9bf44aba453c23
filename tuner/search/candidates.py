"""Which configs a sweep measures for each problem, how many of them a search tries, and which kernels they need."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deep_gemm import _C
from tuner.problems.fields import kernel_identity
from tuner.problems.workload import DEFAULT
from tuner.search import propose, wide_space
from tuner.search.propose import Budget


@dataclass(frozen=True)
class SweepOptions:
    """What to measure, and how.

    `problems` are those of this shard. `configs` None means the space of each problem, one of wide_space.SPACES;
    `finalists` are the configs of single problems instead of either. `must_confirm` are more configs of single
    problems, which get confirmation rounds however slow they look.
    `study_storage` is the URL of an optuna storage to which the studies are copied.
    `sentinels`: whether to measure these, too (tuner/problems/sentinels.py). `rests`: whether finalists of long
    products are timed again after rests (rests.py). `energy`: of how many configs of a problem the energy is measured,
    energy.EVERY for all.
    `gpus` are several devices to measure on, in the place of `device`; with `mixed` they may be of several kinds.
    `scheduler` is the address of a Dask cluster, whose GPUs measure instead.
    """

    problems: list
    database: str | Path
    preset: str = ""
    configs: list | None = None
    finalists: dict = field(default_factory=dict)
    must_confirm: dict = field(default_factory=dict)
    space: str = "default"
    sampler: str = "auto"
    num_trials: int | None = None
    effort: str = "quick"
    seed: int = 0
    workload: str = DEFAULT
    shard: tuple[int, int] = (0, 1)
    device: int = 0
    time_budget_s: float | None = None
    resume: bool = True
    backend: str = "cuda"
    study_storage: str = ""
    sentinels: bool = False
    rests: bool = True
    energy: int = 0
    gpus: tuple[int, ...] = ()
    mixed: bool = False
    scheduler: str = ""
    argv: list = field(default_factory=list)


def choose_candidates(problem, device, options: SweepOptions, winners: Sequence = ()) -> list:
    """Return the configs to measure for `problem`: the given ones or its space, and the known `winners`, as far as they
    are legal; and the heuristic's pick. A winner from beyond the others must not lose its place because nobody measures
    it.
    """
    if problem in options.finalists:
        candidates = options.finalists[problem]
    elif options.configs is not None:
        candidates = options.configs
    else:
        candidates = wide_space.SPACES[options.space](problem, device)
    legal = [config for config in (*candidates, *winners) if _C.is_legal(problem, config, device)]
    return list(dict.fromkeys([*legal, _C.get_analytic_config(problem, device)]))


def choose_trials(problem, device, options: SweepOptions, configs: list) -> Budget:
    """Return which of `configs` a search counts as trials, and how many trials it makes.

    In a wide space, configs of the default space do not count: where those were swept already, the search beyond them
    still has all its trials.
    """
    beyond = frozenset(configs).difference(_C.get_candidates(problem, device))
    if options.space == "default" or options.configs is not None or not beyond:
        return Budget(frozenset(configs), min(options.num_trials or propose.default_trials(len(configs)), len(configs)))
    default = min(propose.default_trials(len(beyond)), wide_space.WIDE_TRIALS)
    return Budget(beyond, min(options.num_trials or default, len(beyond)))


def count_known(problem, configs: Iterable, keys: set[str]) -> int:
    """Return how many of `configs` are among the keys of configs."""
    return len(keys.intersection(config.key(problem.op) for config in configs))


def find_ops(problems: Iterable) -> list[str]:
    """Return the op kinds of problems, in order."""
    return list(dict.fromkeys(problem.op for problem in problems))


def find_kernels(candidates: dict) -> list[tuple]:
    """Return the different kernels of {problem: configs} as (problem, config), see fields.kernel_identity."""
    pairs = ((kernel_identity(problem), configs) for problem, configs in candidates.items())
    return list(dict.fromkeys((kernel, config) for kernel, configs in pairs for config in configs))


def count_measurements(options: SweepOptions, device, candidates: dict) -> int:
    """Return how many configs a sweep of {problem: configs} measures: all of them, or the trials of a search."""
    return sum(
        (
            len(configs)
            if propose.choose_sampler(options.sampler, len(configs)) == "exhaustive"
            else choose_trials(problem, device, options, configs).number
        )
        for problem, configs in candidates.items()
    )
