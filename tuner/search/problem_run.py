"""Measure one problem: batches of configs, faults and their suspects, the final confirmation, the winner."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from deep_gemm import _C
from tuner.measure.protocol import make_job
from tuner.measure.worker_client import DeviceRetired, WorkerFailure
from tuner.problems.workload import Workload
from tuner.search import propose
from tuner.search.precompile import Compiled

#: How thoroughly one problem is measured. `quick`: about 0.3 s with 30 configs on an H200; `full`: 1 to 3 s with 130.
EFFORTS = {
    "quick": {
        "search_rounds": 3,
        "confirm_rounds": 30,
        "finalists": 5,
        "search_seconds": 4.0,
        "confirm_seconds": 0.3,
        "isolate": False,
    },
    "full": {
        "search_rounds": 8,
        "confirm_rounds": 40,
        "finalists": 5,
        "search_seconds": 8.0,
        "confirm_seconds": 1.2,
        "isolate": False,
    },
}
#: A child that sends nothing for this long is hung: 10 s, or 500 times the heuristic's estimate, because a whole round
#: is one message.
HANG_LIMIT_S = 10.0
HANG_ESTIMATES = 500.0
#: A config is retried once after a crash or hang, then quarantined for the rest of the sweep.
STRIKES = 2


class ProblemFailed(Exception):
    """No config of this problem could be measured; the sweep goes on with the next one."""


@dataclass
class Block:
    """One job's outcome: `rows` name configs as objects; `report` is the child's without its rows.

    A block that `has_failed` holds only the failures of a problem that was given up: no reference, no report.
    """

    reference: object
    rows: list[dict]
    report: dict
    configs: list
    is_last: bool = True
    has_failed: bool = False


@dataclass
class Suspects:
    """What the whole sweep knows about configs that crashed or hung, by (op kind, config)."""

    strikes: Counter = field(default_factory=Counter)
    quarantined: dict = field(default_factory=dict)


class ProblemRun:
    """Measures one problem with one worker. `on_block` stores each finished block before the next one starts.

    `compile_missing(configs)` compiles what is not compiled yet and returns {config: Compiled} of everything that is.
    """

    def __init__(
        self,
        problem,
        device,
        candidates: list,
        compile_missing: Callable[[list], dict],
        worker,
        suspects: Suspects,
        plan: dict,
        workload: Workload,
    ):
        self.problem, self.worker, self.suspects, self.plan, self.workload = problem, worker, suspects, plan, workload
        self.compile_missing, compiled = compile_missing, compile_missing([])
        self.heuristic = _C.get_analytic_config(problem, device)
        self.estimates = {
            config: _C.estimate_time_us(problem, config, device) for config in {*candidates, self.heuristic}
        }
        self.failures = [row for config in self.estimates if (row := self.find_failure(config, compiled.get(config)))]
        self.failed = {row["config"] for row in self.failures}
        self.usable = [config for config in candidates if config not in self.failed]
        self.reference = self.heuristic if self.heuristic not in self.failed else None

    def find_failure(self, config, compiled: Compiled | None) -> dict | None:
        """Return the row of a config that must not be launched, None for one that may."""
        reason = self.suspects.quarantined.get((self.problem.op, config))
        if reason is not None:
            return {"config": config, "role": "search", "status": "skipped", "error": f"quarantined: {reason}"[:500]}
        if compiled is not None and compiled.status != "ok":
            return {"config": config, "role": "search", "status": compiled.status, "error": compiled.error}
        return None

    def run(
        self,
        sampler: str,
        trials: tuple[frozenset, int],
        must_confirm: list,
        history: list,
        on_block: Callable[[Block], None],
    ) -> None:
        """Measure the problem; `history` holds (config, log ratio, status) of rows of the same identity. Raises:
        ProblemFailed.

        `trials`: which configs count as trials of a search, and how many of them it makes; it begins with estimates of
        the others, if any. Where it gives up, the failures so far are stored all the same: a resumed sweep must not
        repeat what cost a crash or a hang.
        """
        try:
            self.run_sampler(sampler, trials, must_confirm, history, on_block)
        except (ProblemFailed, DeviceRetired):
            if any(row["status"] != "skipped" for row in self.failures):
                on_block(Block(None, self.failures, {}, [], is_last=False, has_failed=True))
            raise

    def run_sampler(
        self,
        sampler: str,
        trials: tuple[frozenset, int],
        must_confirm: list,
        history: list,
        on_block: Callable[[Block], None],
    ) -> None:
        """Measure all usable candidates or search among them. Raises: ProblemFailed."""
        if not self.usable:
            raise ProblemFailed("no candidate may be launched")
        sampler = propose.choose_sampler(sampler, len(self.usable))
        if sampler == "exhaustive":
            return on_block(self.measure(self.usable, must_confirm, self.plan))
        self.search(sampler, trials, must_confirm, history, on_block)

    def search(
        self,
        sampler: str,
        trials: tuple[frozenset, int],
        must_confirm: list,
        history: list,
        on_block: Callable[[Block], None],
    ) -> None:
        """Let optuna propose batches, each raced with the incumbent; then confirm the best of them all."""
        counted, num_trials = trials
        usable, free = set(self.usable), set(self.usable) - counted
        proposer = propose.OptunaProposer(
            self.usable, sampler, self.workload.seed, {config: self.estimates[config] for config in free or usable}
        )
        proposer.tell(history)
        known = {config: log_ratio for config, log_ratio, status in history if status == "ok" and config in usable}
        # Rows repeat configs (every batch races the reference and the incumbent): trials are different configs.
        left = num_trials - len({config for config, _, _ in history} & counted)
        while left > 0 and (batch := proposer.propose(min(left, propose.BATCH_SIZE))):
            incumbent = [min(known, key=known.get)] if known else []
            block = self.measure([*batch, *incumbent], [], self.plan | {"confirm_rounds": 0})
            block.is_last = False
            on_block(block)
            results = to_results(block.rows)
            proposer.tell(results)
            known |= {config: log_ratio for config, log_ratio, status in results if status == "ok"}
            left -= len(counted.intersection(batch))
        finalists = sorted(known, key=known.get)[: 2 * self.plan["finalists"]]
        on_block(self.measure(finalists, must_confirm, self.plan))

    def measure(self, configs: list, must_confirm: list, plan: dict) -> Block:
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
            try:
                report = self.worker.run(
                    make_job(self.problem, order, must, plan, self.workload.seed, self.workload.name),
                    self.hang_limit_s(),
                )
            except WorkerFailure as failure:
                plan = self.learn_from(failure, order, plan)
                continue
            rows = [row | {"config": order[row["config"]]} for row in report.pop("rows")]
            block = Block(reference, rows + self.failures, report, order)
            self.failures = []
            return block
        raise ProblemFailed(f"gave up after {self.max_attempts()} attempts")

    def find_unbuilt(self, configs: list) -> bool:
        """Have what is missing compiled; return whether some of `configs`, which become failures, must not be launched."""
        compiled = self.compile_missing(configs)
        failures = [row for config in configs if (row := self.find_failure(config, compiled.get(config)))]
        for row in failures:
            self.remove(row["config"], row["status"], row["error"])
        return bool(failures)

    def max_attempts(self) -> int:
        """Return an upper bound of useful attempts: each is a strike of some config, the one that turns isolation on,
        or the last.
        """
        return STRIKES * len(self.estimates) + 2

    def choose_reference(self):
        """Return the heuristic's pick, or where it failed the usable config with the smallest estimate.

        Raises: ProblemFailed.
        """
        if self.reference is None:
            if not self.usable:
                raise ProblemFailed("every candidate failed")
            self.reference = min(self.usable, key=self.estimates.get)
        return self.reference

    def hang_limit_s(self) -> float:
        """Return how long the child may be silent."""
        return max(HANG_LIMIT_S, HANG_ESTIMATES * self.estimates[self.reference] * 1e-6)

    def learn_from(self, failure: WorkerFailure, order: list, plan: dict) -> dict:
        """Blame a config for a failure and return the plan of the next attempt.

        Raises: ProblemFailed when none can be blamed.
        """
        detail = f"{failure} {failure.log[-1000:]}".strip()
        config = order[failure.config] if failure.config is not None and 0 <= failure.config < len(order) else None
        if failure.kind == "reference":
            self.remove(order[0], "incorrect", detail)
        elif failure.kind == "error":
            raise ProblemFailed(detail)
        elif config is not None:
            self.strike(config, failure.kind, detail)
        elif plan["isolate"]:
            raise ProblemFailed(f"no config can be blamed: {detail}")
        return plan | {"isolate": plan["isolate"] or config is None}

    def strike(self, config, kind: str, detail: str) -> None:
        """Count a crash or hang of `config`; quarantine it at the second one."""
        suspect = self.problem.op, config
        self.suspects.strikes[suspect] += 1
        if self.suspects.strikes[suspect] >= STRIKES:
            self.suspects.quarantined[suspect] = f"{kind} on {self.problem}"
            self.remove(config, kind, detail)

    def remove(self, config, status: str, detail: str) -> None:
        """Take `config` out of this problem and keep its failure as a row."""
        self.failures.append({"config": config, "role": "search", "status": status, "error": detail[:2000]})
        self.failed.add(config)
        self.usable = [other for other in self.usable if other != config]
        if self.reference == config:
            self.reference = None


def to_results(rows: list[dict]) -> list[tuple]:
    """Return (config, log ratio to the reference or None, status) of search rows, as the proposers take them."""
    return [
        (
            row["config"],
            math.log(row["ratio"]) if row["status"] in ("ok", "censored") and row.get("ratio") else None,
            row["status"],
        )
        for row in rows
        if row["role"] == "search"
    ]
