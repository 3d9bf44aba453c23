"""Which config each role runs on each problem of a benchmark.

Roles:
  auto       the public op as installed (exact table, then model, then heuristic)
  best       the best measured config: from --best, else what the exact table holds
  model      the choice of a model that never saw the problem's family: from --model, else what out_of_fold.py stored
  heuristic  the analytic heuristic alone
  invariant  the choice with batch invariance, where the benchmark asks for it: no config that splits K
  first      of a call whose kernel has two tiles the config chosen, alone
  second     and its second tile, alone
"""

from pathlib import Path
from typing import NamedTuple

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.selection import explain, explain_tiles
from tuner.problems.fields import PROBLEM_DEFAULTS, replace_problem, to_problem

from .stale import OUT_OF_FOLD, serving_hashes
from .stamp import read_json, results_of


class Choice(NamedTuple):
    """A config and where it comes from; `second`: the second tile of a call's kernel."""

    config: object
    source: str
    second: object = None

    @property
    def name(self) -> str:
        """What results call it."""
        return _C.name_tiles(self.config, self.second)


def read_choices(path: Path | None, op: str, sku: str) -> dict[str, object]:
    """Return {key of the problem: Config} for one op kind.

    path: a tuning database, whose winners count, or JSON {"rows": [{problem fields, "config": fields}]}; fields that a
        row leaves out have their defaults, and its op kind is this one.
    """
    if path is None:
        return {}
    if path.suffix != ".db":
        rows = read_json(path)["rows"]
        found = [(to_problem(PROBLEM_DEFAULTS | {"op": op} | row), _C.Config(**row["config"])) for row in rows]
        return {problem.key: config for problem, config in found if problem.op == op}
    from tuner.db import Store

    with Store.open(path, mode="ro") as store:
        winners = store.load_best(sku=sku, kernel_hash=kernel_hash(op), op=op)
    return {row.problem.key: row.config for row in winners}


def find_out_of_fold(op: str, sku: str) -> Path | None:
    """Return the record of a GPU model's choices out of fold, None where it has none of this op kind, or of kernels
    whose measurements do not choose for the tree's.
    """
    path = results_of(sku) / OUT_OF_FOLD
    recorded = read_json(path)["meta"]["kernel_hash"].get(op) if path.exists() else None
    return path if recorded is not None and serving_hashes({op: recorded}) == {op: recorded} else None


class Choices:
    """The choices of one op kind on one device."""

    def __init__(self, op: str, device, best: Path | None = None, model: Path | None = None):
        self.device = device
        self.best, self.model = read_choices(best, op, device.sku), read_choices(model, op, device.sku)

    def of(self, problem, roles: tuple[str, ...]) -> dict[str, Choice]:
        """Return {role: Choice} of those `roles` that have one; `auto`, what a call runs, always has."""
        call, key, run = self._choose_call(problem), problem.key, find_run(problem, "auto")
        found = {"auto": call}
        if call.second is not None:
            found |= {"first": call._replace(second=None), "second": call._replace(config=call.second, second=None)}
        found["heuristic"] = Choice(_C.get_analytic_config(problem, self.device), "analytic")
        if key in self.best:
            found["best"] = Choice(self.best[key], "sweep")
        elif call.source == "exact":
            found["best"] = Choice(call.config, "exact")
        if key in self.model:
            found["model"] = Choice(self.model[key], "out of fold")
        if "invariant" in roles:
            found["invariant"] = self._choose_invariant(problem)
        legal = {role: choice for role, choice in found.items() if _is_legal(problem, choice.config, self.device)}
        if run != problem:
            legal["auto"] = self._choose_call(run)
        return {role: choice for role, choice in legal.items() if role in (*roles, "auto")}

    def _choose_call(self, run) -> Choice:
        choice, second = explain_tiles(run, self.device)
        return Choice(choice.config, choice.source, second)

    def _choose_invariant(self, problem) -> Choice:
        choice = explain(replace_problem(problem, batch_invariant=True), self.device)
        return Choice(choice.config, choice.source)


def find_run(problem, role: str):
    """Return the problem whose kernel a role runs: a call copies row-major scales of large problems first."""
    return _C.with_scale_copies(problem) if role == "auto" else problem


def _is_legal(problem, config, device) -> bool:
    """Return whether the config may run; a config of an older space may be illegal by now."""
    try:
        return _C.is_legal(problem, config, device)
    except DeepGemmError:
        return False
