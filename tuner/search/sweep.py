"""The sweep: compile ahead, measure problem after problem in a child process, record, resume.

The parent owns everything durable (the proposals and the database); the child holds the GPU and two pipes. Problems
whose finished blocks of the same identity (sku, kernel hash, compiler, regime) cover the requested configs are not
measured again, and configs that crashed or hung under that identity stay quarantined when a sweep resumes.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from tuner import errors
from tuner.measure.gpu_lock import GpuLock
from tuner.measure.worker_client import MeasuringWorker
from tuner.problems.fields import kernel_problem, to_config, to_problem
from tuner.problems.workload import DEFAULT, Workload, name_regime
from tuner.search import precompile, propose, recording, wide_space
from tuner.search.problem_run import EFFORTS, Block, ProblemFailed, ProblemRun, Suspects

BACKENDS = ("cuda", "simulated")
#: A problem counts as measured when its rows cover this share of the requested configs: a changed heuristic or a few
#: new candidates are no reason to measure everything again, a portfolio's few rows are no reason to skip the full
#: space.
COVERED_SHARE = 0.8


@dataclass(frozen=True)
class SweepOptions:
    """What to measure and how.

    `problems` are those of this shard; `configs` None means the space of each problem, one of wide_space.SPACES.
    """

    problems: list
    database: str | Path
    preset: str = ""
    configs: list | None = None
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
    argv: list = field(default_factory=list)


def choose_visible_device(ordinal: int) -> str:
    """Return CUDA_VISIBLE_DEVICES for a child that sees only device `ordinal` of those that this process may see.

    Raises: UsageError when there is no such device.
    """
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        return str(ordinal)
    visible = [entry.strip() for entry in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if entry.strip()]
    if len(set(visible)) != len(visible):
        raise errors.UsageError("CUDA_VISIBLE_DEVICES names a device twice: name each once")
    if not 0 <= ordinal < len(visible):
        raise errors.UsageError(f"--device {ordinal}: CUDA_VISIBLE_DEVICES shows {len(visible)} devices")
    return visible[ordinal]


def make_worker(options: SweepOptions) -> MeasuringWorker:
    """Return the measuring process of the chosen backend and GPU, not yet started."""
    extra = {"CUDA_VISIBLE_DEVICES": choose_visible_device(options.device)} if options.backend == "cuda" else {}
    return MeasuringWorker(options.backend, extra)


def make_device(hello: dict):
    """Return the Device that a worker's hello describes. Raises: TunerError for an impossible one."""
    row = hello["device"]
    try:
        return _C.Device(
            row["name"],
            row["sm_count"],
            sku=row["sku"],
            smem_bytes=row["smem_bytes"],
            l2_bytes=row["l2_bytes"],
            compute_capability=tuple(row["compute_capability"]),
            clock_mhz=row["clock_mhz"],
            memory_gbps=row["memory_gbps"],
            mig=row["mig"],
        )
    except (KeyError, TypeError, DeepGemmError) as error:
        raise errors.TunerError(f"the measuring process described no device: {error}") from error


def choose_candidates(problem, device, options: SweepOptions, winners: Sequence = ()) -> list:
    """Return what is measured for `problem`: its space, or the given configs that are legal; the heuristic's pick is
    added.

    To a space, known `winners` are added too: one from beyond it must not lose its place because nobody measures it.
    """
    if options.configs is not None:
        candidates = [config for config in options.configs if _C.is_legal(problem, config, device)]
    else:
        space = (
            _C.get_candidates(problem, device)
            if options.space == "default"
            else wide_space.get_wide_space(problem, device)
        )
        candidates = [*space, *(config for config in winners if _C.is_legal(problem, config, device))]
    return list(dict.fromkeys([*candidates, _C.get_analytic_config(problem, device)]))


def choose_trials(problem, device, options: SweepOptions, configs: list) -> tuple[frozenset, int]:
    """Return which of `configs` a search counts as trials, and how many it makes.

    In a wide space the default space's are free: a sweep of that space leaves the search beyond it everything to do.
    """
    beyond = frozenset(configs).difference(_C.get_candidates(problem, device))
    if options.space == "default" or options.configs is not None or not beyond:
        return frozenset(configs), min(options.num_trials or propose.default_trials(len(configs)), len(configs))
    return beyond, min(
        options.num_trials or min(propose.default_trials(len(beyond)), wide_space.WIDE_TRIALS), len(beyond)
    )


class Sweep:
    """One run of the tuner over the problems of one shard on one GPU.

    `on_event(name, facts)` reports progress: "device", "compile" (done, total), "problem" (done, total, problem,
    status).
    """

    def __init__(
        self, options: SweepOptions, store, worker, on_event: Callable[[str, dict], None] = lambda name, facts: None
    ):
        self.options, self.store, self.worker, self.on_event = options, store, worker, on_event
        self.started = time.monotonic()
        self.suspects, self.workload = Suspects(), Workload(options.workload, options.seed)
        self.statuses: Counter = Counter()
        self.phase_seconds: Counter = Counter()
        self.failed: dict[str, str] = {}
        self.num_measured = 0
        self.compiled: dict = {}
        self.compile_seconds = 0.0

    def run(self) -> dict:
        """Measure until done or out of time; return the summary. Raises: TunerError; what was committed stays."""
        hello = self.worker.start()
        self.device = make_device(hello)
        self.on_event("device", {"sku": self.device.sku, "name": self.device.name})
        with GpuLock(hello["device"]["uuid_hash"]):
            self.regime = hello["regime"]
            self.identities = {
                op: make_identity(op, self.device, name_regime(self.regime, op, self.options.workload))
                for op in self.find_ops()
            }
            sweep_id = self.store.start_sweep(self.describe())
            try:
                return self.run_recorded(hello, sweep_id)
            except BaseException as error:
                self.store.finish_sweep(sweep_id, "interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
                raise

    def find_ops(self) -> list[str]:
        """Return the op kinds of the sweep's problems."""
        return list(dict.fromkeys(problem.op for problem in self.options.problems))

    def run_recorded(self, hello: dict, sweep_id: int) -> dict:
        """Compile, measure and close the sweep's row."""
        candidates = self.find_open_problems()
        self.compile_ahead(candidates)
        device_id = self.store.get_or_add_device(hello["device"])
        environment_id = self.store.get_or_add_environment(self.describe_environment(hello))
        self.recorder = recording.Recorder(
            self.store, self.identities, self.workload, device_id, environment_id, sweep_id
        )
        self.add_missing_winners()
        self.measure_all(candidates)
        is_complete = self.num_measured + len(self.failed) == len(candidates)
        self.store.finish_sweep(sweep_id, "finished" if is_complete else "interrupted")
        return self.summarize(len(candidates))

    def describe(self) -> dict:
        """Return the fields of the sweep's row."""
        options = self.options
        fields = {name: getattr(options, name) for name in ("preset", "seed", "sampler", "effort")}
        regimes = sorted({identity["regime"] for identity in self.identities.values()})
        return fields | {
            "regime": regimes[-1] if regimes else self.regime,
            "shard": "/".join(map(str, options.shard)),
            "argv": list(options.argv),
        }

    def describe_environment(self, hello: dict) -> dict:
        """Return the fields of the environment's row."""
        from deep_gemm.jit import hashing

        outcomes = [outcome for of_problem in self.compiled.values() for outcome in of_problem.values()]
        versions = {outcome.compiler_version for outcome in outcomes if outcome.compiler_version}
        return hello["environment"] | recording.describe_source() | {
            "compiler": recording.compiler_kind(),
            "compiler_version": max(versions, default=None),
            "package_version": recording.package_version(),
            "tree_hash": hashing.tree_hash(),
        }  # fmt: skip

    def find_open_problems(self) -> dict:
        """Return {problem: candidates} of those that are not measured yet; what earlier sweeps quarantined is known
        from here on.
        """
        rows = self.load_rows("search") if self.options.resume else []
        self.suspects.quarantined.update(recording.find_quarantined(rows))
        winners, options = self.load_previous_winners(), self.options
        candidates = {
            problem: choose_candidates(problem, self.device, options, winners.get(problem.key, ()))
            for problem in options.problems
        }
        searched, finished = (
            recording.find_covered(rows),
            recording.find_covered([row for row in rows if row["block_status"] == "finished"]),
        )
        return {
            problem: configs
            for problem, configs in candidates.items()
            if not self.is_covered(problem, configs, searched.get(problem.key, set()), finished.get(problem.key, set()))
        }

    def is_covered(self, problem, configs: list, searched: set[str], finished: set[str]) -> bool:
        """Return whether enough of the `configs` of `problem` are among the keys that a search, or finished blocks
        alone, measured.

        The batches of a search stay open and are no table's rows, so that they never stand for a measured space.
        """
        if propose.choose_sampler(self.options.sampler, len(configs)) == "exhaustive":
            return count_known(problem, configs, finished) >= COVERED_SHARE * len(configs)
        counted, num_trials = choose_trials(problem, self.device, self.options, configs)
        return count_known(problem, counted, searched) >= num_trials

    def load_rows(self, role: str) -> list[dict]:
        """Return the stored rows of the sweep's identities."""
        return [
            row
            for op, identity in self.identities.items()
            for row in self.store.load_measurements(role=role, op=op, **identity)
        ]

    def compile_ahead(self, candidates: dict) -> None:
        """Compile every kernel of the candidates, unless searches of wide spaces will ask for fewer: those compile
        batch by batch.
        """
        if self.options.space == "wide" and len(find_kernels(candidates)) > count_measurements(
            self.options, self.device, candidates
        ):
            candidates = {problem: [_C.get_analytic_config(problem, self.device)] for problem in candidates}
        self.compiled = self.compile(candidates)

    def compile_missing(self, problem, configs: list) -> dict:
        """Compile those of `configs` that were not compiled yet; return {config: Compiled} of all kernels of the
        problem's variant so far.
        """
        known = self.compiled.setdefault(kernel_problem(problem), {})
        for outcomes in self.compile({problem: [config for config in configs if config not in known]}).values():
            known.update(outcomes)
        return known

    def compile(self, candidates: dict) -> dict:
        """Compile the kernels of the candidates; return {kernel's problem: {config: Compiled}}, empty for a backend
        that runs none.
        """
        kernels = find_kernels(candidates)
        if self.options.backend != "cuda" or not kernels:
            return {}
        start = time.monotonic()
        index, count = self.options.shard
        compiled = precompile.compile_all(
            kernels,
            precompile.count_processes(count),
            lambda done, total: self.on_event("compile", {"done": done, "total": total}),
            first=index * len(kernels) // count,
        )
        self.compile_seconds += time.monotonic() - start
        return compiled

    def add_missing_winners(self) -> None:
        """Choose the winners that an earlier sweep was killed before storing."""
        best = [row for op, identity in self.identities.items() for row in self.store.load_best(op=op, **identity)]
        for problem, block_id, winner, ties in recording.find_missing_winners(
            self.load_rows("confirm"), best, self.device, self.portfolio()
        ):
            self.recorder.set_best(problem, block_id, winner, ties)

    def portfolio(self) -> set:
        """Return the given configs, which break ties before others."""
        return set(self.options.configs or ())

    def measure_all(self, candidates: dict) -> None:
        """Measure problem after problem; a failed problem is counted and the sweep goes on."""
        self.measuring_from = time.monotonic()
        history, winners = self.load_history(), self.load_previous_winners()
        for number, (problem, configs) in enumerate(candidates.items()):
            if self.is_out_of_time():
                return
            try:
                self.measure(problem, configs, winners.get(problem.key, []), history.get(problem.key, []))
                self.num_measured += 1
            except ProblemFailed as failure:
                self.failed[str(problem)] = str(failure)[:500]
            self.on_event(
                "problem",
                {
                    "done": number + 1,
                    "total": len(candidates),
                    "problem": str(problem),
                    "failed": str(problem) in self.failed,
                },
            )

    def measure(self, problem, configs: list, must_confirm: list, history: list) -> None:
        """Measure one problem and store its blocks and winner."""
        compiled = self.compiled.setdefault(kernel_problem(problem), {})
        plan, compile_missing = EFFORTS[self.options.effort], partial(self.compile_missing, problem)
        run = ProblemRun(
            problem, self.device, configs, compile_missing, self.worker, self.suspects, plan, self.workload
        )

        def store_block(block: Block) -> None:
            block_id = self.recorder.add_block(problem, block, compiled, finish=block.is_last)
            self.statuses.update(row["status"] for row in block.rows if row["role"] == "search")
            if block.has_failed:
                return
            report = block.report
            self.phase_seconds.update(report["seconds"])
            winner = recording.choose_winner(
                block.rows, run.heuristic, report["reference_us"], report["noise"], self.portfolio()
            )
            if winner is not None:
                self.recorder.set_best(problem, block_id, *winner)

        run.run(
            self.options.sampler,
            choose_trials(problem, self.device, self.options, configs),
            must_confirm,
            history,
            store_block,
        )

    def is_out_of_time(self) -> bool:
        """Return whether one more problem of average cost would exceed the time budget."""
        now, budget = time.monotonic(), self.options.time_budget_s
        average = (now - self.measuring_from) / max(self.num_measured, 1)
        return budget is not None and now - self.started + average > budget

    def load_history(self) -> dict[str, list]:
        """Return {problem key: [(config, log ratio, status)]} of stored search rows, from which a search by proposals
        goes on.

        Ratios are to a block's reference. Those to another config than today's pick (the heuristic has changed since)
        cannot be compared.
        """
        if self.options.sampler == "exhaustive" or not self.options.resume:
            return {}
        history: dict[str, list] = {}
        rows, picks = self.load_rows("search"), {}
        configs = {row["config_id"]: to_config(row) for row in rows}
        for row in rows:
            pick = picks.get(row["problem_key"]) or picks.setdefault(
                row["problem_key"], _C.get_analytic_config(to_problem(row), self.device)
            )
            if configs.get(row["reference_config_id"]) != pick:
                continue
            log_ratio = math.log(row["ratio"]) if row["ratio"] else None
            history.setdefault(row["problem_key"], []).append((to_config(row), log_ratio, row["status"]))
        return history

    def load_previous_winners(self) -> dict[str, list]:
        """Return {problem key: winners under any kernel hash on this SKU and regime}: they are confirmed again."""
        winners: dict[str, list] = {}
        for op, identity in self.identities.items():
            for row in self.store.load_best(sku=self.device.sku, op=op, regime=identity["regime"]):
                winners.setdefault(row["problem_key"], []).append(to_config(row))
        return winners

    def summarize(self, num_open: int) -> dict:
        """Return the summary that `--json` prints."""
        seconds = time.monotonic() - self.started
        compiled = (
            {"compile": precompile.summarize(self.compiled, self.compile_seconds)} if self.compile_seconds else {}
        )
        return compiled | {
            "identities": self.identities,
            "database": str(self.options.database),
            "problems": len(self.options.problems),
            "already_measured": len(self.options.problems) - num_open,
            "measured": self.num_measured,
            "failed": self.failed,
            "remaining": num_open - self.num_measured - len(self.failed),
            "statuses": dict(self.statuses),
            "phase_seconds": {name: round(value, 2) for name, value in self.phase_seconds.items()},
            "quarantined": {f"{op} {config}": reason for (op, config), reason in self.suspects.quarantined.items()},
            "seconds": round(seconds, 2),
            "seconds_per_problem": round(seconds / self.num_measured, 3) if self.num_measured else None,
        }


def make_identity(op: str, device, regime: str) -> dict:
    """Return what identifies measurements of one op kind besides problem and config."""
    from deep_gemm.jit import hashing

    return {
        "sku": device.sku,
        "kernel_hash": hashing.kernel_hash(op),
        "compiler": recording.compiler_kind(),
        "regime": regime,
    }


def find_kernels(candidates: dict) -> list[tuple]:
    """Return the different kernels of {problem: configs} as (problem, config), see fields.kernel_problem."""
    return list(
        dict.fromkeys(
            (kernel, config)
            for problem, configs in candidates.items()
            for kernel in [kernel_problem(problem)]
            for config in configs
        )
    )


def count_known(problem, configs: Iterable, keys: set[str]) -> int:
    """Return how many of `configs` are among the keys of configs."""
    return len(keys.intersection(config.key(problem.op) for config in configs))


def count_measurements(options: SweepOptions, device, candidates: dict) -> int:
    """Return how many configs a sweep of {problem: configs} measures: all of them, or the trials of a search."""
    return sum(
        (
            len(configs)
            if propose.choose_sampler(options.sampler, len(configs)) == "exhaustive"
            else choose_trials(problem, device, options, configs)[1]
        )
        for problem, configs in candidates.items()
    )
