"""The sweep: compile ahead, measure problem after problem in a child process, record, resume.

The parent owns what is durable, the proposals and the database; the child holds the GPU and two pipes. A problem is not
measured again when finished blocks of the same identity cover the requested configs. Configs that crashed or hung under
that identity stay quarantined when a sweep resumes.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from deep_gemm import _C
from tuner.db.interrupts import interrupt_deferred
from tuner.db.rows import Identity
from tuner.measure.devices import choose_visible_device, read_device
from tuner.measure.gpu_lock import GpuLock
from tuner.measure.records import Plan
from tuner.measure.worker_client import MeasuringWorker
from tuner.problems.fields import kernel_identity
from tuner.problems.sentinels import get_sentinels
from tuner.problems.workload import Workload, name_regime
from tuner.search import past, precompile, propose, recording
from tuner.search.candidates import (
    SweepOptions,
    choose_candidates,
    choose_trials,
    count_measurements,
    find_kernels,
    find_ops,
)
from tuner.search.problem_run import EFFORTS, Block, ProblemFailed, ProblemRun, Request, Suspects
from tuner.search.sentinels import SentinelVisits
from tuner.search.study import ProblemStudy, name_study
from tuner.search.study_storage import StudyStorage, hide_credentials
from tuner.search.winners import choose_winner

#: A problem counts as measured when its rows cover this share of the requested configs. A changed heuristic or a few
#: new candidates are then no reason to measure it again; a portfolio's few rows do not stand for the full space.
COVERED_SHARE = 0.8
#: How long a sweep waits for space on a full disk; then it ends, and what was committed stays.
FULL_DISK_S = 600.0


def make_worker(options: SweepOptions) -> MeasuringWorker:
    """Return the measuring process of the chosen backend and GPU, not yet started. Raises: UsageError."""
    extra = {"CUDA_VISIBLE_DEVICES": choose_visible_device(options.device)} if options.backend == "cuda" else {}
    return MeasuringWorker(options.backend, extra)


def make_identity(op: str, device, regime: str) -> Identity:
    """Return what identifies this sweep's measurements of one op kind."""
    from deep_gemm.jit import hashing

    return Identity(op, device.sku, hashing.kernel_hash(op), recording.compiler_kind(), regime)


def describe_identity(identity: Identity) -> dict:
    """Return an identity for the summary, where the op kind is the key."""
    return {name: value for name, value in asdict(identity).items() if name != "op"}


class Sweep:
    """One run of the tuner over the problems of one shard, on one GPU.

    `on_event(name, facts)` reports progress: "device" (sku, name, regime), "compile" (done, total), "problem" (done,
    total, problem, failed), "warning" (text). `predict(problem, device, configs)` returns {config: log of the time
    expected}; without it, searches that follow an order follow the heuristic's estimates.
    """

    def __init__(
        self,
        options: SweepOptions,
        store,
        worker,
        on_event: Callable[[str, dict], None] = lambda name, facts: None,
        predict: Callable | None = None,
    ):
        self.options, self.store, self.worker, self.on_event = options, store, worker, on_event
        self.predict = predict
        self.started = time.monotonic()
        self.suspects, self.workload = Suspects(), Workload(options.workload, options.seed)
        self.statuses: Counter = Counter()
        self.phase_seconds: Counter = Counter()
        self.failed: dict[str, str] = {}
        self.num_measured = 0
        self.compiled: dict = {}
        self.compile_seconds = 0.0

    def run(self) -> dict:
        """Measure until all is done or time is over.

        Return the summary. Raises: TunerError; what was committed stays.
        """
        hello = self.worker.start()
        self.device = read_device(hello["device"])
        self.on_event("device", {"sku": self.device.sku, "name": self.device.name, "regime": hello["regime"]})
        with GpuLock(hello["device"]["uuid_hash"]):
            self.regime = hello["regime"]
            self.identities = {
                op: make_identity(op, self.device, name_regime(self.regime, op, self.options.workload))
                for op in find_ops(self.options.problems)
            }
            self.store.patience_s = FULL_DISK_S
            self.store.on_wait = lambda reason: self.on_event("waiting", {"reason": reason})
            self.past = past.Past(self.store, self.identities)
            sweep_id = None
            try:
                with interrupt_deferred():
                    sweep_id = self.store.start_sweep(self.describe())
                return self.run_recorded(hello, sweep_id)
            except BaseException as error:
                self.store.patience_s = 0.0
                if sweep_id is not None:
                    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                    self.store.finish_sweep(sweep_id, status)
                raise

    def run_recorded(self, hello: dict, sweep_id: int) -> dict:
        """Compile, measure and close the sweep's row."""
        candidates = self.find_open_problems()
        sentinels = get_sentinels(find_ops(candidates), self.device) if self.options.sentinels else []
        self.compile_ahead(candidates, {sentinel.problem: list(sentinel.configs) for sentinel in sentinels})
        device_id = self.store.get_or_add_device(hello["device"])
        environment_id = self.store.get_or_add_environment(self.describe_environment(hello))
        self.recorder = recording.Recorder(
            self.store, self.identities, self.workload, device_id, environment_id, sweep_id
        )
        self.add_missing_winners()
        self.measure_all(candidates, SentinelVisits(sentinels, len(candidates), self.recorder, self.make_run))
        is_complete = self.num_measured + len(self.failed) == len(candidates)
        self.store.finish_sweep(sweep_id, "finished" if is_complete else "interrupted")
        return self.summarize(len(candidates))

    def describe(self) -> dict:
        """Return the fields of the sweep's row."""
        options = self.options
        fields = {name: getattr(options, name) for name in ("preset", "seed", "sampler", "effort")}
        regimes = sorted({identity.regime for identity in self.identities.values()})
        return fields | {
            "regime": regimes[-1] if regimes else self.regime,
            "shard": "/".join(map(str, options.shard)),
            "argv": list(map(hide_credentials, options.argv)),
        }

    def describe_environment(self, hello: dict) -> dict:
        """Return the fields of the environment's row."""
        from deep_gemm.jit import hashing

        outcomes = [outcome for of_problem in self.compiled.values() for outcome in of_problem.values()]
        versions = {outcome.compiler_version for outcome in outcomes if outcome.compiler_version}
        own = {
            "compiler": recording.compiler_kind(),
            "compiler_version": max(versions, default=None),
            "package_version": recording.package_version(),
            "tree_hash": hashing.tree_hash(),
        }
        return hello["environment"] | recording.describe_source() | own

    def find_open_problems(self) -> dict:
        """Return {problem: candidates} of the problems that are not measured yet.

        From here on, the configs that earlier sweeps quarantined are known.
        """
        rows = self.past.load_rows("search") if self.options.resume else []
        self.suspects.quarantined.update(past.find_quarantined(rows))
        winners, options = self.past.load_previous_winners(), self.options
        candidates = {
            problem: choose_candidates(problem, self.device, options, winners.get(problem.key, ()))
            for problem in options.problems
        }
        searched = past.find_covered(rows)
        finished = past.find_covered(row for row in rows if row.block.status == "finished")
        return {
            problem: configs
            for problem, configs in candidates.items()
            if not self.is_covered(problem, configs, searched.get(problem.key, set()), finished.get(problem.key, set()))
        }

    def is_covered(self, problem, configs: list, searched: set[str], finished: set[str]) -> bool:
        """Return whether enough of `configs` were measured: their keys are in `finished`, or for a search in
        `searched`.

        `searched` includes the batches of searches. Those stay open blocks, which no data set reads, so that a search
        never stands for a measured space.
        """
        if propose.choose_sampler(self.options.sampler, len(configs)) == "exhaustive":
            return count_known(problem, configs, finished) >= COVERED_SHARE * len(configs)
        budget = choose_trials(problem, self.device, self.options, configs)
        return count_known(problem, budget.counted, searched) >= budget.number

    def compile_ahead(self, candidates: dict, sentinels: dict) -> None:
        """Compile the kernels of all candidates and of {problem: configs} of the sentinels.

        Where searches of wide spaces will ask for fewer kernels than that, compile the heuristic's picks only: the
        searches then compile batch by batch.
        """
        if self.options.space == "wide" and len(find_kernels(candidates)) > count_measurements(
            self.options, self.device, candidates
        ):
            candidates = {problem: [_C.get_analytic_config(problem, self.device)] for problem in candidates}
        more = {problem: [*candidates.get(problem, ()), *configs] for problem, configs in sentinels.items()}
        self.compiled = self.compile(candidates | more)

    def compile_missing(self, problem, configs: list) -> dict:
        """Compile those of `configs` that are not compiled yet; return {config: Compiled} of the problem's variant."""
        known = self.compiled.setdefault(kernel_identity(problem), {})
        for outcomes in self.compile({problem: [config for config in configs if config not in known]}).values():
            known.update(outcomes)
        return known

    def compile(self, candidates: dict) -> dict:
        """Compile the candidates' kernels.

        Return {kernel's problem: {config: Compiled}}, {} for a backend without any.
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
        """Store the winners that an earlier sweep chose no more, because it was killed."""
        rows, best = self.past.load_rows("confirm"), self.past.load_best()
        for found in past.find_missing_winners(rows, best, self.device, self.portfolio()):
            self.recorder.set_best(found.problem, found.block_id, found.winner)

    def portfolio(self) -> set:
        """Return the given configs, which win ties against others."""
        return set(self.options.configs or ())

    def measure_all(self, candidates: dict, visits: SentinelVisits) -> None:
        """Measure problem after problem, with the sentinels in between; a failed problem is counted and the sweep goes
        on.
        """
        url = self.options.study_storage
        self.studies = StudyStorage(url, lambda text: self.on_event("warning", {"text": text})) if url else None
        try:
            self.show_earlier(candidates)
            self.measure_each(candidates, visits)
        finally:
            if self.studies:
                self.studies.close()

    def show_earlier(self, candidates: dict) -> None:
        """Show the studies of the problems that are not measured again, as the database has them."""
        if not self.studies:
            return
        history = past.find_history(self.past.load_rows("search"), self.device)
        for problem in self.options.problems:
            if problem not in candidates and problem.key in history:
                described = self.describe_study(problem)
                configs = list(dict.fromkeys(outcome.config for outcome in history[problem.key]))
                study = ProblemStudy(configs, "analytic", 0, None, described["name"], described["facts"])
                study.tell(history[problem.key])
                described["on_study"](study)

    def measure_each(self, candidates: dict, visits: SentinelVisits) -> None:
        """Measure problem after problem, until time is over."""
        self.measuring_from = time.monotonic()
        history, winners = self.load_history(), self.past.load_previous_winners()
        for number, (problem, configs) in enumerate(candidates.items()):
            if self.is_out_of_time():
                break
            visits.visit(number)
            budget = choose_trials(problem, self.device, self.options, configs)
            earlier = winners.get(problem.key, []), history.get(problem.key, [])
            request = Request(self.options.sampler, budget, *earlier, **self.describe_study(problem))
            try:
                self.measure(problem, configs, request)
                self.num_measured += 1
            except ProblemFailed as failure:
                self.failed[str(problem)] = str(failure)[:500]
            facts = {"problem": str(problem), "failed": str(problem) in self.failed}
            self.on_event("problem", {"done": number + 1, "total": len(candidates)} | facts)
        visits.finish()

    def describe_study(self, problem) -> dict:
        """Return the fields of a Request that concern the problem's study."""
        facts = asdict(self.identities[problem.op]) | {"problem": str(problem)}
        name = name_study(problem.op, problem, facts["kernel_hash"])
        show = self.studies.show if self.studies else None
        return {
            "name": name,
            "facts": facts,
            "predict": partial(self.predict, problem, self.device) if self.predict else None,
            "on_study": lambda study: show(name, facts, study.take_news()) if show else None,
        }

    def load_history(self) -> dict[str, list]:
        """Return the outcomes from which searches go on, {} where every config is measured anyway."""
        if self.options.sampler == "exhaustive" or not self.options.resume:
            return {}
        return past.find_history(self.past.load_rows("search"), self.device)

    def measure(self, problem, configs: list, request: Request) -> None:
        """Measure one problem and store its blocks and winner. Raises: ProblemFailed."""
        compiled = self.compiled.setdefault(kernel_identity(problem), {})
        run = self.make_run(problem, configs, EFFORTS[self.options.effort])

        def store_block(block: Block) -> None:
            block_id = self.recorder.add_block(problem, block, compiled, finish=block.is_last)
            self.statuses.update(result.status for result in block.results if result.role == "search")
            report = block.report
            if block.has_failed or report.reference_us is None or report.noise is None:
                return
            self.phase_seconds.update(report.seconds)
            winner = choose_winner(block.results, run.heuristic, report.reference_us, report.noise, self.portfolio())
            if winner is not None:
                self.recorder.set_best(problem, block_id, winner)

        run.run(request, store_block)

    def make_run(self, problem, configs: list, plan: Plan) -> ProblemRun:
        """Return what measures one problem."""
        compile_missing = partial(self.compile_missing, problem)
        return ProblemRun(
            problem, self.device, configs, compile_missing, self.worker, self.suspects, plan, self.workload
        )

    def is_out_of_time(self) -> bool:
        """Return whether one more problem of average cost would exceed the time budget."""
        now, budget = time.monotonic(), self.options.time_budget_s
        average = (now - self.measuring_from) / max(self.num_measured, 1)
        return budget is not None and now - self.started + average > budget

    def summarize(self, num_open: int) -> dict:
        """Return the summary that `--json` prints."""
        seconds = time.monotonic() - self.started
        compiled = (
            {"compile": precompile.summarize(self.compiled, self.compile_seconds)} if self.compile_seconds else {}
        )
        return compiled | {
            "identities": {op: describe_identity(identity) for op, identity in self.identities.items()},
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


def count_known(problem, configs, keys: set[str]) -> int:
    """Return how many of `configs` are among the keys of configs."""
    return len(keys.intersection(config.key(problem.op) for config in configs))
