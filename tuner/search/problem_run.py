"""Measure one problem: batches of configs, faults and whom to blame for them, the final confirmation."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from deep_gemm import _C
from tuner.measure.protocol import make_job
from tuner.measure.records import QUARANTINED, Plan, Report, Result
from tuner.measure.worker_client import DeviceRetired, WorkerFailure
from tuner.problems.workload import Workload, count_draws
from tuner.search import energy, propose, rests
from tuner.search.block import Block, choose_quiet, find_failed
from tuner.search.failures import STRIKES, Suspects, make_failure
from tuner.search.lanes import LostAfter, LostMakingUp
from tuner.search.past import Steady
from tuner.search.precompile import Compiled
from tuner.search.propose import Budget, Outcome, find_timed, to_outcomes
from tuner.search.study import ProblemStudy

#: How thoroughly one problem is measured. On an H200, `quick` took about 0.3 s with 30 configs, `full` 1 to 3 s with
#: 130. That was before a drop needed three samples: slow configs are timed longer now.
EFFORTS = {
    "quick": Plan(
        search_rounds=3, confirm_rounds=30, finalists=5, search_seconds=4.0, confirm_seconds=0.3, confirm_parts=3
    ),
    "full": Plan(
        search_rounds=8, confirm_rounds=40, finalists=5, search_seconds=8.0, confirm_seconds=1.2, confirm_parts=3
    ),
}
#: A child that sends nothing for this long is hung: 10 s, or 500 times the heuristic's estimate, because a whole round
#: is one message.
HANG_LIMIT_S = 10.0
HANG_ESTIMATES = 500.0


class ProblemFailed(Exception):
    """No config of this problem could be measured; the sweep goes on with the next problem."""


@dataclass(frozen=True)
class Request:
    """How to measure one problem.

    `budget` limits a search. `must_confirm` are configs that are confirmed however slow they look. `history` are
    outcomes of earlier blocks of the same identity, from which a search goes on. `steady` is what an earlier block
    found, where nothing but its finalists' times after rests is missing, `energy` are configs of which only the energy
    is. `predict(configs)` returns {config: log of the time expected}, by which orders are searched. `name` and `facts`
    are the study's; `on_study` is called whenever the study has news.
    """

    sampler: str
    budget: Budget
    must_confirm: list = field(default_factory=list)
    history: list[Outcome] = field(default_factory=list)
    steady: Steady | None = None
    energy: list = field(default_factory=list)
    predict: Callable[[list], dict] | None = None
    name: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    on_study: Callable[[ProblemStudy], None] = lambda study: None


class ProblemRun:
    """Measures one problem with one worker. `on_block` stores each block before the next one starts.

    `compile_missing(configs)` compiles what is not compiled yet and returns {config: Compiled} of everything that is.
    With `has_rests` the finalists of a long product are timed again, see rests.py. Of `num_energies` configs the energy
    is measured, see energy.py.
    """

    def __init__(
        self,
        problem,
        device,
        candidates: list,
        compile_missing: Callable[[list], dict],
        worker,
        suspects: Suspects,
        plan: Plan,
        workload: Workload,
        has_rests: bool = False,
        num_energies: int = 0,
    ):
        self.has_rests, self.num_energies = has_rests, num_energies
        self.problem, self.worker, self.suspects, self.plan, self.workload = problem, worker, suspects, plan, workload
        self.compile_missing = compile_missing
        self.heuristic = _C.get_analytic_config(problem, device)
        self.estimates = {
            config: _C.estimate_time_us(problem, config, device) for config in {*candidates, self.heuristic}
        }
        self.failures = self.find_failures(self.estimates, compile_missing([]))
        self.failed = {result.config for result in self.failures}
        self.usable = [config for config in candidates if config not in self.failed]
        self.reference = self.heuristic if self.heuristic not in self.failed else None
        self.loss: DeviceRetired | None = None  # the board is gone; raised when what it measured is stored

    def find_failures(self, configs: Iterable, compiled: dict[object, Compiled]) -> list[Result]:
        """Return the results of those of `configs` that must not be launched."""
        found = []
        for config in configs:
            reason, outcome = self.suspects.quarantined.get((self.problem.op, config)), compiled.get(config)
            if reason is not None:
                found.append(make_failure(config, "skipped", f"{QUARANTINED}{reason}"[:500]))
            elif outcome is not None and outcome.status != "ok":
                found.append(make_failure(config, outcome.status, outcome.error))
        return found

    def run(self, request: Request, on_block: Callable[[Block], None]) -> None:
        """Measure the problem. Raises: ProblemFailed; LostAfter where the board is lost once the last block of the
        search is stored, LostMakingUp where an earlier sweep stored it, else DeviceRetired.

        The failures of a problem that is given up are stored all the same: a resumed sweep must not repeat what cost a
        crash or a hang.
        """
        try:
            self.run_sampler(request, on_block)
        except (ProblemFailed, DeviceRetired):
            self.store_failures(on_block)
            raise

    def store_failures(self, on_block: Callable[[Block], None], has_failed: bool = True, **kind: Any) -> None:
        """Store the failures that no block has, where there are any, in a block of their own; `kind` is is_rested=True
        or is_energy=True where it is such a block. It stays open unless it `has_failed`.
        """
        if any(result.status != "skipped" for result in self.failures):
            on_block(Block(None, self.failures, Report(), [], is_last=False, has_failed=has_failed, **kind))
        self.failures = []

    def run_sampler(self, request: Request, on_block: Callable[[Block], None]) -> None:
        """Measure all usable candidates, or search among them, or make up for what lacks. Raises: ProblemFailed."""
        if request.steady is not None or request.energy:
            self.make_up(request, on_block)
            return
        if not self.usable:
            raise ProblemFailed("no candidate may be launched")
        sampler = propose.choose_sampler(request.sampler, len(self.usable))
        study = self.make_study(request, sampler)
        if sampler == "exhaustive":  # all of them: to ask for each costs optuna the square of their number
            self.race(study, request, on_block, self.usable, request.must_confirm)
        else:
            self.search(study, request, on_block)

    def make_up(self, request: Request, on_block: Callable[[Block], None]) -> None:
        """Take what an earlier sweep left: times after rests, energy. Raises: LostMakingUp where they are left again,
        LostAfter where energy alone is.
        """
        try:
            if request.steady is not None:
                self.rest(*request.steady[2:], request.must_confirm, on_block)
            self.measure_energy(request.energy, on_block)
        except DeviceRetired as error:
            if self.loss is not None:  # while a noisy block was repeated: the rests are stored
                raise LostAfter(str(error)) from error
            raise LostMakingUp(str(error)) from error

    def make_study(self, request: Request, sampler: str) -> ProblemStudy:
        """Return the problem's study, which knows what cannot be launched, and in a search what was measured before."""
        candidates = list(dict.fromkeys([*self.usable, *(failure.config for failure in self.failures)]))
        expected = request.predict(candidates) if request.predict and sampler == "forest" else self.estimates
        study = ProblemStudy(candidates, sampler, self.workload.seed, expected, request.name, request.facts)
        study.tell(to_outcomes(self.failures))
        if sampler != "exhaustive":
            study.tell(request.history)
        request.on_study(study)
        return study

    def search(self, study: ProblemStudy, request: Request, on_block: Callable[[Block], None]) -> None:
        """Race batches that the study asks for, each with the best config so far; then confirm the best of them all."""
        counted, number = request.budget
        known = find_timed(request.history, set(self.usable))
        # Outcomes repeat configs, because every batch races the reference and the best one: count different configs.
        left = number - len({outcome.config for outcome in request.history} & counted)
        search_plan = replace(self.plan, confirm_rounds=0)
        while left > 0 and (batch := study.ask(min(left, propose.BATCH_SIZE))):
            incumbent = [min(known, key=known.__getitem__)] if known else []
            outcomes = self.race(study, request, on_block, [*batch, *incumbent], [], search_plan)
            known |= find_timed(outcomes)
            left -= len(counted.intersection(batch))
        finalists = sorted(known, key=known.__getitem__)[: 2 * self.plan.finalists]
        block = self.measure_quietly(finalists, request.must_confirm)
        on_block(block)
        self.complete(block, request.must_confirm, on_block)

    def race(
        self,
        study: ProblemStudy,
        request: Request,
        on_block: Callable[[Block], None],
        configs: list,
        must_confirm: list,
        plan: Plan | None = None,
    ) -> list[Outcome]:
        """Measure configs that the study asked for, and others; store the block, then tell the study.

        With a `plan`, which confirms nothing, other blocks of the search follow.
        """
        block = self.measure(configs, must_confirm, plan) if plan else self.measure_quietly(configs, must_confirm)
        outcomes = to_outcomes(block.results)
        block.is_last = plan is None
        on_block(block)
        study.tell(outcomes)
        request.on_study(study)
        if block.is_last:
            self.complete(block, must_confirm, on_block)
        return outcomes

    def complete(self, block: Block, must_confirm: list, on_block: Callable[[Block], None]) -> None:
        """After the last block of a search, time its finalists after rests and measure energy, where these are due.

        Raises: LostAfter. A later sweep makes up for what is then missing.
        """
        report = block.report
        try:
            if self.loss is not None:
                raise self.loss
            if self.has_rests:
                self.rest(block.results, report.reference_us or 0.0, report.noise or 0.0, must_confirm, on_block)
            self.measure_energy(energy.choose_configs(block.results, self.num_energies), on_block)
        except DeviceRetired as error:
            raise LostAfter(str(error)) from error

    def rest(
        self,
        steady: list,
        reference_us: float,
        noise: float,
        must_confirm: list,
        on_block: Callable[[Block], None],
    ) -> None:
        """Time the best of `steady` again after rests, and what must be confirmed; these are results, or stored rows.

        Where that fails, the failures are stored, and what is known of the problem stays. Raises: DeviceRetired, with
        the failures stored, too: no other board of this sweep takes these rests and would tell whose fault they are.
        """
        draws = count_draws(self.problem, self.workload)
        finalists = rests.choose_finalists(steady, reference_us, draws, self.plan)
        if not finalists:
            return
        again = {*finalists, *must_confirm}
        self.usable = [config for config in self.usable if config in again]  # who stands in for a failed reference
        try:
            block = self.measure_quietly(finalists, must_confirm, rests.make_plan(self.plan))
        except ProblemFailed:
            self.store_failures(on_block, is_rested=True)
            return
        except DeviceRetired:  # a block that has failed would stand for rests, which a later sweep is to take
            self.store_failures(on_block, is_rested=True, has_failed=False)
            raise
        block.is_last, block.is_rested = False, True
        block.judged = rests.judge(steady, block.results)
        block.judged_noise = rests.join_noise(noise, block.report.noise)
        on_block(block)
        if self.loss is not None:  # while a noisy block was repeated: what is to come needs a board
            raise self.loss

    def measure_quietly(self, configs: list, must_confirm: list, plan: Plan | None = None) -> Block:
        """Measure with a plan, or the problem's, and where that block is noisy once more; return the quieter block,
        with the failures of both.

        Where the board is lost the second time, that is kept in `loss`, and the first block stands. Raises:
        ProblemFailed, DeviceRetired.
        """
        plan = plan or self.plan
        first = self.measure(configs, must_confirm, plan)
        if not first.is_noisy:
            return first
        try:
            return choose_quiet(first, self.measure(configs, must_confirm, plan))
        except ProblemFailed:
            failures, self.failures = self.failures, []
            failed = {result.config for result in failures}
            if first.reference in failed:  # there is nothing left to compare with
                self.failures = [*find_failed(first, failed), *failures]
                raise
            first.results = [result for result in first.results if result.config not in failed] + failures
            return first
        except DeviceRetired as error:
            if self.failures:  # the configs' fault or the board's: another board will tell
                self.failures += find_failed(first, {result.config for result in self.failures})
                raise
            self.loss = error
            return first

    def measure_energy(self, configs: list, on_block: Callable[[Block], None]) -> None:
        """Measure the energy of some configs, and beside them the reference's; what fails does not cost the problem.

        Raises: DeviceRetired, with the failures stored as in rest.
        """
        for part in energy.split(configs):
            self.usable = [config for config in part if config not in self.failed]
            if not self.usable:
                continue
            try:
                block = self.measure(part, [], energy.make_plan(self.plan))
            except (ProblemFailed, DeviceRetired) as error:
                is_lost = isinstance(error, DeviceRetired)
                self.store_failures(on_block, is_energy=True, has_failed=not is_lost)
                if is_lost:
                    raise
                continue
            block.is_energy = True
            on_block(block)
            if block.report.noise is None:  # no power can be read: the block says why
                return

    def measure(self, configs: list, must_confirm: list, plan: Plan) -> Block:
        """Run one job to its end, whatever configs crash, hang or are wrong on the way. Raises: ProblemFailed."""
        for _ in range(self.max_attempts()):
            reference = self.choose_reference()
            order = [
                config
                for config in dict.fromkeys([reference, *configs, *must_confirm])
                if config in self.estimates and config not in self.failed
            ]
            if self.find_unbuilt(order):
                continue
            must = [index for index, config in enumerate(order) if config in must_confirm]
            job = make_job(self.problem, order, must, plan, self.workload.seed, self.workload.name)
            try:
                report = self.read_report(self.worker.run(job, self.hang_limit_s(plan)), order)
            except WorkerFailure as failure:
                plan = self.learn_from(failure, order, plan)
                continue
            block = Block(reference, report.results + self.failures, report, order)
            self.failures = []
            return block
        raise ProblemFailed(f"gave up after {self.max_attempts()} attempts")

    def read_report(self, document: dict, order: list) -> Report:
        """Return the child's report on the configs of `order`. Raises: ProblemFailed for one that is malformed."""
        try:
            return Report.from_json(document, order)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise ProblemFailed(f"the measuring process sent no report: {type(error).__name__}: {error}") from error

    def find_unbuilt(self, configs: list) -> bool:
        """Compile what is missing; return whether some of `configs`, which become failures, must not be launched."""
        failures = self.find_failures(configs, self.compile_missing(configs))
        for result in failures:
            self.remove(result.config, result.status, result.error)
        return bool(failures)

    def max_attempts(self) -> int:
        """Return how many attempts can help: one per strike, the one that turns on isolation, and the last."""
        return STRIKES * len(self.estimates) + 2

    def choose_reference(self):
        """Return the heuristic's pick, or where it failed the usable config with the smallest estimate.

        Raises: ProblemFailed.
        """
        if self.reference is None:
            if not self.usable:
                raise ProblemFailed("every candidate failed")
            self.reference = min(self.usable, key=self.estimates.__getitem__)
        return self.reference

    def hang_limit_s(self, plan: Plan) -> float:
        """Return how long the child may be silent."""
        return max(HANG_LIMIT_S, HANG_ESTIMATES * self.estimates[self.reference] * 1e-6 * (1.0 + plan.rest))

    def learn_from(self, failure: WorkerFailure, order: list, plan: Plan) -> Plan:
        """Blame a config for a failure and return the plan of the next attempt.

        Raises: ProblemFailed where no config can be blamed.
        """
        detail = f"{failure} {failure.log[-1000:]}".strip()
        config = order[failure.config] if failure.config is not None and 0 <= failure.config < len(order) else None
        if failure.kind == "reference":
            self.remove(order[0], "incorrect", detail)
        elif failure.kind == "error":
            raise ProblemFailed(detail)
        elif config is not None:
            self.strike(config, failure.kind, detail)
        elif plan.isolate:
            raise ProblemFailed(f"no config can be blamed: {detail}")
        return replace(plan, isolate=plan.isolate or config is None)

    def strike(self, config, kind: str, detail: str) -> None:
        """Count a crash or hang of `config`; quarantine it at the second one."""
        suspect = self.problem.op, config
        self.suspects.strikes[suspect] += 1
        if self.suspects.strikes[suspect] >= STRIKES:
            self.suspects.quarantined[suspect] = f"{kind} on {self.problem}"
            self.remove(config, kind, detail)

    def remove(self, config, status: str, detail: str | None) -> None:
        """Take `config` out of this problem and keep its failure as a result."""
        self.failures.append(make_failure(config, status, None if detail is None else detail[:2000]))
        self.failed.add(config)
        self.usable = [other for other in self.usable if other != config]
        if self.reference == config:
            self.reference = None
