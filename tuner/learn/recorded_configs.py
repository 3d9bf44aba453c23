"""Which configs a sweep measures, where recorded measurements say so."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from deep_gemm import _C
from deep_gemm.jit.hashing import kernel_hash
from tuner import errors
from tuner.db import Store
from tuner.learn.dataset import CONFIRMED, SEARCHED, choose_identity, group_by_problem, load_parts
from tuner.learn.entries import Entry, read_problem
from tuner.learn.portfolio import choose_configs
from tuner.learn.sources import find_device
from tuner.problems.workload import DEFAULT, name_regime
from tuner.search.candidates import SweepOptions, find_ops
from tuner.search.recording import compiler_kind


@dataclass(frozen=True)
class Recorded:
    """How recorded rows choose a sweep's configs: either the `portfolio_size` that serve all problems of an op kind
    together, or the `best` fastest of each problem, to be measured again. `source` is the database of the rows.
    """

    source: str | Path
    portfolio_size: int
    best: int

    def narrow(self, options: SweepOptions, sku: str, regime: str = "") -> SweepOptions:
        """Return options with the configs that the rows of `sku` choose, and say how many problems have none.

        `regime`: of the worker that will measure; "": the one with most rows. Raises: UsageError where no problem has
        any; InconclusiveError where there are no rows for a portfolio.
        """
        if self.portfolio_size:
            configs = choose_configs(self.source, self.portfolio_size, sku, options.problems)
            return replace(options, configs=configs)
        found = choose_best(self.source, self.best, sku, options.problems, regime, options.workload)
        asked = len(options.problems)
        if asked and not found:
            raise errors.UsageError(
                f"--best {self.best}: {self.source} has times of none of the problems on {sku}, with the present"
                " kernels; sweep them first, without --best"
            )
        if len(found) < asked:
            left = asked - len(found)
            print(f"--best {self.best}: left out, without times on {sku}: {left} of {asked} problems", file=sys.stderr)
        # All are confirmed: a config that only one board confirmed would be judged by that board alone.
        return replace(options, problems=list(found), finalists=found, must_confirm=found, resume=False)


def choose_best(
    source: str | Path, count: int, sku: str, problems: list, regime: str = "", workload: str = DEFAULT
) -> dict:
    """Return {problem: its `count` fastest configs, best first} of those of `problems` that the database has timed with
    the present kernels; those measured longest ago come first, so that a sweep that was stopped goes on when run again.
    """
    found: dict = {}
    measured: dict = {}
    with Store.open(source, mode="ro") as store:
        device = find_device(store, sku)
        for op in find_ops(problems):
            # Rows of another compiler or regime are another table's, to which those of the sweep will not be joined.
            own = (compiler_kind(), name_regime(regime, op, workload)) if regime else (None, None)
            identity = choose_identity(store, sku, op, kernel_hash(op), *own)
            for part in load_parts(store, [identity], ()) if identity else ():
                for problem, rows in group_by_problem(part).items():
                    entry = read_problem(problem, rows, device, set())
                    if isinstance(entry, Entry) and (ranked := rank_timed(entry, device)):
                        found[problem] = ranked[:count]
                        measured[problem] = max(row.block.created for row in rows)
    return {
        problem: found[problem] for problem in sorted(filter(found.__contains__, problems), key=measured.__getitem__)
    }


def rank_timed(entry: Entry, device: _C.Device) -> list:
    """Return the timed configs of a problem, best first; those that were confirmed come before all others."""
    timed = [
        (state != CONFIRMED, value, str(config), config)
        for config, (value, state) in entry.best_known.items()
        if state >= SEARCHED and _C.is_legal(entry.problem, config, device)
    ]
    return [config for *_, config in sorted(timed, key=lambda one: one[:3])]
