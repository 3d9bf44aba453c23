"""Which config each role runs on each problem of a benchmark.

Roles:
  auto       the public op as installed (exact table, then model, then heuristic)
  best       the best measured config: from --best, else what the exact table holds
  model      the choice of a model that never saw the problem's family: from --model
  heuristic  the analytic heuristic alone
  invariant  the choice with batch invariance, where the benchmark asks for it: no config that splits K
"""

from pathlib import Path
from typing import NamedTuple

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.selection import explain

from .stamp import read_json

_PROBLEM_FIELDS = tuple(name for name in _C.Problem("fp8_gemm", 1, 1, 1).as_dict() if name != "op")


class Choice(NamedTuple):
    """A config and where it comes from."""

    config: object
    source: str


def read_problem(row: dict, default_op: str) -> "_C.Problem":
    """Return the problem of a row; fields that it leaves out have their defaults."""
    fields = {name: row[name] for name in _PROBLEM_FIELDS if name in row}
    return _C.Problem(
        row.get("op", default_op), fields.pop("m"), fields.pop("n"), fields.pop("k"), **_fix_types(fields)
    )


def _fix_types(fields: dict) -> dict:
    """Return the fields with booleans that a database keeps as numbers."""
    return {name: bool(value) if name == "batch_invariant" else value for name, value in fields.items()}


def read_choices(path: Path | None, op: str, sku: str) -> dict[str, object]:
    """Return {problem as JSON: Config} from a tuning database's winners, or JSON {"rows": [{problem fields, "config":
    fields}]}.
    """
    if path is None:
        return {}
    if path.suffix != ".db":
        rows = read_json(path)["rows"]
        found = [(read_problem(row, op), _C.Config(**row["config"])) for row in rows]
        return {problem.to_json(): config for problem, config in found if problem.op == op}
    from tuner.db import Store

    with Store.open(path, mode="ro") as store:
        winners = store.load_best(sku=sku, kernel_hash=kernel_hash(op), op=op)
    return {row.problem.to_json(): row.config for row in winners}


class Choices:
    """The choices of one op kind on one device."""

    def __init__(self, op: str, device, best: Path | None = None, model: Path | None = None):
        self.device = device
        self.best, self.model = read_choices(best, op, device.sku), read_choices(model, op, device.sku)

    def of(self, problem, roles: tuple[str, ...]) -> dict[str, Choice]:
        """Return {role: Choice} of those `roles` that have one; `auto` always has."""
        choice, key = explain(problem, self.device), problem.to_json()
        found = {"auto": Choice(choice.config, choice.source)}
        found["heuristic"] = Choice(_C.get_analytic_config(problem, self.device), "analytic")
        if key in self.best:
            found["best"] = Choice(self.best[key], "sweep")
        elif choice.source == "exact":
            found["best"] = Choice(choice.config, "exact")
        if key in self.model:
            found["model"] = Choice(self.model[key], "out of fold")
        if "invariant" in roles:
            found["invariant"] = self._choose_invariant(problem)
        return {
            role: choice
            for role, choice in found.items()
            if role in (*roles, "auto") and _is_legal(problem, choice.config, self.device)
        }

    def _choose_invariant(self, problem) -> Choice:
        fields = {**problem.as_dict(), "batch_invariant": True}
        choice = explain(read_problem(fields, problem.op), self.device)
        return Choice(choice.config, choice.source)


def _is_legal(problem, config, device) -> bool:
    """Return whether the config may run; one of an older space is left out."""
    try:
        return _C.is_legal(problem, config, device)
    except DeepGemmError:
        return False
