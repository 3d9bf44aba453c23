"""The sweep: compile ahead, measure problem after problem in a child process, record, resume.

The parent owns what is durable, the proposals and the database; the child holds the GPU and two pipes. A problem is not
measured again when finished blocks of the same identity cover the requested configs. Configs that crashed or hung under
that identity stay quarantined when a sweep resumes.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from deep_gemm import _C
from tuner.db.interrupts import interrupt_deferred
from tuner.measure.devices import choose_visible_device
from tuner.measure.records import Plan
from tuner.measure.simulated import name_backend
from tuner.measure.worker_client import DeviceRetired, MeasuringWorker
from tuner.problems.fields import kernel_identity
from tuner.problems.regimes import name_energy, name_rested
from tuner.problems.sentinels import get_sentinels
from tuner.problems.workload import Workload, name_regime
from tuner.search import energy, lanes, missing, past, precompile, recording, summary
from tuner.search.block import Block
from tuner.search.candidates import (
    SweepOptions,
    choose_candidates,
    choose_trials,
    count_measurements,
    find_kernels,
    find_ops,
)
from tuner.search.failures import Suspects
from tuner.search.problem_run import EFFORTS, ProblemFailed, ProblemRun, Request
from tuner.search.sentinels import SentinelVisits
from tuner.search.sweep_studies import SweepStudies
from tuner.search.winners import choose_winner

#: How long a sweep waits for space on a full disk; then it ends, and what was committed stays.
FULL_DISK_S = 600.0


def make_worker(options: SweepOptions) -> MeasuringWorker:
    """Return the measuring process of the chosen backend and GPU, not yet started. Raises: UsageError."""
    if options.backend == "simulated":
        return MeasuringWorker(name_backend(options.device))
    extra = {"CUDA_VISIBLE_DEVICES": choose_visible_device(options.device)} if options.backend == "cuda" else {}
    return MeasuringWorker(options.backend, extra)


@contextmanager
def open_workers(options: SweepOptions) -> Iterator[list]:
    """Yield a measuring process for each GPU of the options, not yet started; all end with the body.

    With a scheduler these are the GPUs of its Dask cluster. Raises: UsageError, TunerError.
    """
    with ExitStack() as cleanup:
        if options.scheduler:
            from tuner.measure.remote import open_remote

            yield cleanup.enter_context(open_remote(options.scheduler, options.backend))
            return
        yield [
            cleanup.enter_context(make_worker(replace(options, device=ordinal)))
            for ordinal in options.gpus or (options.device,)
        ]


class Sweep:
    """One run of the tuner over the problems of one shard, on one GPU or on several equal ones.

    `worker` is a measuring process, or a list of one for each board; every board has its turn as soon as it is free.

    `on_event(name, facts)` reports progress: "device" (sku, name, regime), "compile" (done, total), "problem" (done,
    total, problem, failed), "warning" (text). `predict(device, problem, configs)` returns {config: log of the time
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
        self.options, self.store, self.on_event, self.predict = options, store, on_event, predict
        self.workers = worker if isinstance(worker, list) else [worker]
        self.lock = threading.RLock()  # the threads of several boards count and compile one after the other
        self.started = time.monotonic()
        self.suspects, self.workload = Suspects(), Workload(options.workload, options.seed)
        self.statuses: Counter = Counter()
        self.phase_seconds: Counter = Counter()
        self.failed: dict[str, str] = {}
        self.retired: dict[str, str] = {}
        self.num_measured, self.has_warned = 0, False
        self.compiled: dict = {}
        self.compile_seconds = 0.0

    def run(self) -> dict:
        """Measure until all is done or time is over.

        Return the summary. Raises: TunerError; what was committed stays.
        """
        self.lanes = lanes.start(self.workers, self.on_event)
        lanes.check_alike(self.lanes)
        hello, self.device = self.lanes[0].hello, self.lanes[0].device
        name = f"{len(self.lanes)} x {self.device.name}" if len(self.lanes) > 1 else self.device.name
        self.on_event("device", {"sku": self.device.sku, "name": name, "regime": hello["regime"]})
        with ExitStack() as cleanup:
            lanes.lock_boards(self.lanes, cleanup)
            cleanup.callback(precompile.close_pool)
            self.regime = hello["regime"]
            self.identities = {
                op: recording.make_identity(op, self.device, name_regime(self.regime, op, self.options.workload))
                for op in find_ops(self.options.problems)
            }
            self.store.patience_s = FULL_DISK_S
            self.store.on_wait = lambda reason: self.on_event("waiting", {"reason": reason})
            self.past = past.Past(self.store, self.identities, self.workload)
            sweep_id = None
            try:
                fields = recording.describe_sweep(self.options, self.identities, self.regime)
                with interrupt_deferred():
                    sweep_id = self.store.start_sweep(fields)
                return self.run_recorded(sweep_id)
            except BaseException as error:
                self.store.patience_s = 0.0
                if sweep_id is not None:
                    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                    self.store.finish_sweep(sweep_id, status)
                raise

    def run_recorded(self, sweep_id: int) -> dict:
        """Compile, measure and close the sweep's row."""
        candidates = self.find_open_problems()
        candidates |= self.find_missing(candidates)
        sentinels = get_sentinels(find_ops(candidates), self.device) if self.options.sentinels else []
        self.compile_ahead(candidates, {sentinel.problem: list(sentinel.configs) for sentinel in sentinels})
        for lane in self.lanes:
            device_id = self.store.get_or_add_device(lane.hello["device"])
            environment_id = self.store.get_or_add_environment(
                recording.describe_environment(lane.hello, self.compiled)
            )
            lane.recorder = recording.Recorder(
                self.store, self.identities, self.workload, device_id, environment_id, sweep_id
            )
            share = -(-len(candidates) // len(self.lanes))
            lane.rested, lane.energy = (
                lane.recorder.copy_for(
                    {op: replace(one, regime=name(one.regime)) for op, one in self.identities.items()}
                )
                for name in (name_rested, name_energy)
            )
            lane.visits = SentinelVisits(sentinels, share, lane.recorder, partial(self.make_run, lane))
        self.add_missing_winners()
        self.measure_all(candidates)
        is_complete = self.num_measured + len(self.failed) == len(candidates)
        self.store.finish_sweep(sweep_id, "finished" if is_complete else "interrupted")
        return summary.summarize(self, len(candidates))

    def find_open_problems(self) -> dict:
        """Return {problem: candidates} of the problems that are not measured yet.

        From here on, the configs that earlier sweeps quarantined are known.
        """
        rows = self.past.load_all() if self.options.resume else []
        self.suspects.quarantined.update(past.find_quarantined(rows))
        wanted, options = self.load_wanted(), self.options
        candidates = {
            problem: choose_candidates(problem, self.device, options, wanted.get(problem.key, ()))
            for problem in options.problems
        }
        drawn = self.past.keep_drawn(rows)
        searched = past.find_covered(drawn)
        finished = past.find_covered(row for row in drawn if row.block.status == "finished")
        return {
            problem: configs
            for problem, configs in candidates.items()
            if not missing.is_covered(
                problem, self.device, options, configs, *(keys.get(problem.key, set()) for keys in (searched, finished))
            )
        }

    def find_missing(self, candidates: dict) -> dict:
        """Return {problem: configs} of those measured before, of which times after rests or energy are missing."""
        closed = [problem for problem in self.options.problems if problem not in candidates]
        world = self.suspects.quarantined, [lane.board for lane in self.lanes], self.warn
        self.missing = missing.find_missing(self.past, closed, self.options, self.workload, *world)
        return self.missing.candidates

    def warn(self, text: str) -> None:
        """Tell the user of something that stops nothing."""
        self.on_event("warning", {"text": text})

    def load_wanted(self) -> dict[str, list]:
        """Return {problem key: configs that are confirmed in any case}: earlier winners, and those of the options."""
        wanted = self.past.load_previous_winners()
        for problem, configs in self.options.must_confirm.items():
            wanted[problem.key] = [*wanted.get(problem.key, ()), *configs]
        return wanted

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
        with self.lock:
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
            index * len(kernels) // count,
            self.options.space == "wide",  # whose searches compile batch by batch
        )
        self.compile_seconds += time.monotonic() - start
        return compiled

    def add_missing_winners(self) -> None:
        """Store the winners that an earlier sweep chose no more, because it was killed, or a merge lost."""
        rows, rested = map(self.past.keep_drawn, (self.past.load_rows("confirm"), self.past.load_rested()))
        best = self.past.load_best()
        for found in past.find_missing_winners(rows, rested, best, self.device, self.portfolio()):
            self.lanes[0].recorder.set_best(found.problem, found.block_id, found.winner)

    def portfolio(self) -> set:
        """Return the given configs, which win ties against others."""
        return set(self.options.configs or ())

    def measure_all(self, candidates: dict) -> None:
        """Measure all problems, each on one board, with the sentinels in between; a failed problem is counted and the
        sweep goes on.
        """
        studies = self.studies = SweepStudies(
            self.options.study_storage,
            self.warn,
            self.identities,
            self.predict and partial(self.predict, self.device),
        )
        try:
            if studies.storage:
                closed = [problem for problem in self.options.problems if problem not in candidates]
                studies.show_earlier(closed, past.find_history(self.past.keep_drawn(self.past.load_all()), self.device))
            self.measure_each(candidates)
        finally:
            studies.close()

    def measure_each(self, candidates: dict) -> None:
        """Measure problem after problem on all boards, until time is over, and the sentinels a last time."""
        self.measuring_from, self.num_open = time.monotonic(), len(candidates)
        self.history, self.wanted = self.load_history(), self.load_wanted()
        boards = {key: steady.board for key, steady in self.missing.steady.items()}
        tasks = [lanes.Task(problem, configs, boards.get(problem.key)) for problem, configs in candidates.items()]
        lanes.Driver(self.lanes, self.measure_task, self.lose_board, self.is_out_of_time).run(tasks)
        for lane in self.lanes:
            if lane.board not in self.retired:
                self.visit_last(lane)

    def visit_last(self, lane: lanes.Lane) -> None:
        """Measure a board's sentinels a last time; a board that is lost on them costs no problem."""
        try:
            lane.visits.finish()
        except DeviceRetired as error:
            self.lose_board(None, lane, error)

    def measure_task(self, task: lanes.Task, lane: lanes.Lane) -> None:
        """Measure one problem on one board, and before it the sentinels where they are due."""
        problem, configs, may_move = task.problem, task.configs, len(self.lanes) > 1 and not (task.tried or task.board)
        try:
            lane.visits.visit(lane.num_taken)
        except DeviceRetired as error:
            raise lanes.LostBefore(str(error)) from error
        lane.num_taken += 1
        budget = choose_trials(problem, self.device, self.options, configs)
        earlier = self.wanted.get(problem.key, []), self.history[lane.board].get(problem.key, [])
        lacking = self.missing.steady.get(problem.key), self.missing.energy.get(problem.key, [])
        request = Request(self.options.sampler, budget, *earlier, *lacking, **self.studies.describe(problem))
        try:
            self.measure(problem, configs, request, lane, may_move)
        except ProblemFailed as failure:
            if may_move:
                raise lanes.TryElsewhere(str(failure)) from failure
            if task.tried is not None:  # it was the problem's fault, not the first board's
                task.tried.failures = max(task.tried.failures - 1, 0)
            self.report(problem, str(failure))
        else:
            self.report(problem)

    def report(self, problem, failure: str | None = None) -> None:
        """Count a problem as measured, or as failed."""
        with self.lock:
            if failure is None:
                self.num_measured += 1
            else:
                self.failed[str(problem)] = failure[:500]
            done = self.num_measured + len(self.failed)
            facts = {"done": done, "total": self.num_open, "problem": str(problem), "failed": failure is not None}
            self.on_event("problem", facts)

    def lose_board(self, task: lanes.Task | None, lane: lanes.Lane, error: DeviceRetired) -> None:
        """Count a board that is not used any further, and a problem that no other board measures: one that had been
        measured before the board was lost, or one that failed.
        """
        with self.lock:
            self.retired[lane.board] = str(error)[:500]
            self.on_event("retired", {"reason": str(error)})
        if isinstance(error, lanes.LostAfter) and task is not None:
            self.report(task.problem)
        elif task is not None:
            self.report(task.problem, f"{task.num_lost} boards were lost on it: {error}")

    def load_history(self) -> dict[str, dict[str, list]]:
        """Return for each board the outcomes from which searches go on there, {} where all configs are measured."""
        boards = [lane.board for lane in self.lanes]
        if self.options.sampler == "exhaustive" or not self.options.resume:
            return {board: {} for board in boards}
        return self.past.load_histories(boards, self.device)

    def measure(self, problem, configs: list, request: Request, lane: lanes.Lane, may_move: bool) -> None:
        """Measure one problem on one board and store its blocks and winner. Raises: ProblemFailed.

        With `may_move` the failures of a problem that is given up are not stored: another board will tell whether they
        are the problem's or the board's.
        """
        compiled = self.compiled.setdefault(kernel_identity(problem), {})
        run = self.make_run(lane, problem, configs, EFFORTS[self.options.effort], is_own=True)
        last_id = request.steady.block_id if request.steady else None

        def store_block(block: Block) -> None:
            nonlocal last_id
            if block.has_failed and may_move and last_id is None and not block.is_energy:
                return
            block_id = lane.choose_recorder(block).add_block(problem, block, compiled, finish=block.is_last)
            last_id = block_id if block.is_last and not block.is_energy else last_id
            with self.lock:
                self.statuses.update(block.statuses)
                self.phase_seconds.update(block.report.seconds)
            if block.is_energy:
                self.warn_of_energy(block)
                return
            if block.has_failed or (reference_us := block.report.reference_us) is None or block.report.noise is None:
                return
            winner = choose_winner(block.timed, run.heuristic, reference_us, block.noise, self.portfolio())
            if winner is not None:
                lane.recorder.set_best(problem, last_id or block_id, winner)
            if block.is_rested:  # last: a sweep that is killed before this times the finalists again
                self.store.finish_block(block_id)

        run.run(request, store_block)

    def warn_of_energy(self, block: Block) -> None:
        """Say once why no energy of a config could be measured, where that is so."""
        with self.lock:
            reason = energy.find_reason(block.results)
            if reason is not None and not self.has_warned:
                self.has_warned = True
                self.warn(f"the energy of some configs is not known: {reason}")

    def make_run(self, lane: lanes.Lane, problem, configs: list, plan: Plan, is_own: bool = False) -> ProblemRun:
        """Return what measures one problem on a board; where it is one of the sweep's own, as its options say."""
        compile_missing = partial(self.compile_missing, problem)
        more = (self.options.rests, self.options.energy) if is_own else ()
        world = lane, self.suspects, plan, self.workload, *more
        return ProblemRun(problem, self.device, configs, compile_missing, *world)

    def is_out_of_time(self) -> bool:
        """Return whether one more problem of average cost would exceed the time budget."""
        now, budget = time.monotonic(), self.options.time_budget_s
        average = len(self.lanes) * (now - self.measuring_from) / max(self.num_measured, 1)
        return budget is not None and now - self.started + average > budget
