"""`tune --quick`: rounds of a calibration on a GPU, and the artefact that follows from them."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from deep_gemm import _C
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.selector_files import SUFFIX
from tuner import errors
from tuner.db import Store
from tuner.learn import train
from tuner.learn.dataset import Dataset, load_dataset
from tuner.learn.evaluate import evaluate
from tuner.learn.evaluation import Evaluation, Unconfirmed
from tuner.learn.quick import PRIOR_WEIGHT, Calibration, list_pool, list_priors, make_source
from tuner.learn.record import Record, to_json
from tuner.learn.sources import recorded_boards
from tuner.problems.fields import OPS
from tuner.ship.export import make_export, write_export
from tuner.ship.tuned import read_base


@dataclass
class Calibrator:
    """Calibrates all op kinds of a prior together: each round measures the problems of all of them in one sweep.

    `measure(problems)` records them by `backend` into `database`, a path or URL, which may have times of another one.
    `log` has a row for each round and op kind; its regrets are None where nothing was measured.
    """

    device: _C.Device
    database: str
    measure: Callable[[list], object]
    calibrations: list[Calibration]
    backend: str = "cuda"
    log: list[dict] = field(default_factory=list)

    def run(self, budget_s: float) -> None:
        """Run rounds until none is worth it, or one more of the usual length would exceed the budget."""
        start = time.monotonic()
        for number in range(1, 1 + max(len(each.pool) for each in self.calibrations)):
            began = time.monotonic()
            open_kinds = [each for each in self.calibrations if not each.is_done]
            is_late = number > 1 and (began - start) * number / (number - 1) > budget_s
            if not open_kinds or is_late:
                break
            batches = {each.op: each.choose_batch() for each in open_kinds}
            self.measure([problem for batch in batches.values() for problem in batch])
            rows = [self.learn(each, batches[each.op]) for each in open_kinds]
            shared = {"round": number, "seconds": round(time.monotonic() - began, 1)}
            self.log += [shared | row for row in rows]

    def learn(self, calibration: Calibration, batch: list) -> dict:
        """Learn from one batch; return what the log says of it. An op kind of which nothing was measured ends here."""
        found = None
        with Store.open(self.database, "ro") as store, contextlib.suppress(errors.InconclusiveError):
            data = load_dataset(
                store,
                self.device.sku,
                op=calibration.op,
                kernel_hash=kernel_hash(calibration.op),
                backend=self.backend,
            )
            found = calibration.learn(batch, data) if set(batch).intersection(data.problems) else None
        calibration.is_given_up = found is None
        return {
            "op": calibration.op,
            "problems": len(found.configs) if found else 0,
            "regret": found.mean if found else None,
            "heuristic": found.heuristic if found else None,
            "kept": calibration.is_kept,
        }

    def export(self, folder: Path, out: Path) -> dict:
        """Write a training folder and the artefact: that of `out`, else the one that the library uses, with other parts
        for the op kinds whose choices beat the heuristic's over all rounds.

        Return what was written and which op kinds were left out. Raises: InconclusiveError where none does.
        """
        good = [each for each in self.calibrations if each.rounds and self.is_better(each)]
        if not good:
            raise errors.InconclusiveError(
                "nothing was written: no op kind's choices beat the heuristic's on the problems measured"
                f" ({'; '.join(map(describe_costs, self.calibrations))}); sweep a whole preset: `python -m tuner sweep`"
            )
        for each in good:
            self.write_training(folder / each.op, each)
        trained = [train.load_with_data(folder / each.op, self.database) for each in good]
        base = read_base(self.device.sku, out / f"{self.device.sku}{SUFFIX}")
        made = make_export(trained, base=base)
        artifact, card = write_export(made, out, self.device.sku)
        left_out = [each.op for each in self.calibrations if each not in good]
        return {"artifact": str(artifact), "card": str(card), "left_out": left_out}

    def is_better(self, calibration: Calibration) -> bool:
        """Return whether the choices, made before the rounds were learned from, cost less than the heuristic's."""
        model, heuristic, problems = sum_costs(calibration)
        return problems > 0 and model < heuristic

    def write_training(self, folder: Path, calibration: Calibration) -> None:
        """Write the training folder of one op kind, with the rounds as its evaluation."""
        assert calibration.own is not None
        data, prior = calibration.own.data, calibration.prior.data
        described = (
            f"{len(prior.problems)} problems of {prior.identity.sku}, kernels {prior.identity.kernel_hash[:16]}, weight"
            f" {'1, alone' if calibration.is_kept else PRIOR_WEIGHT}"
        )
        record = train.save(folder, data, calibration.finish(), calibration.settings, self.database, described)
        train.write_file(folder / train.EVALUATION, to_json(describe_rounds(record, calibration).to_json()))


def sum_costs(calibration: Calibration) -> tuple[float, float, int]:
    """Return what the choices and the heuristic's cost over all rounds, and for how many problems."""
    sizes = [len(each.configs) for each in calibration.rounds]
    model = sum(each.mean * size for each, size in zip(calibration.rounds, sizes, strict=True))
    heuristic = sum(each.heuristic * size for each, size in zip(calibration.rounds, sizes, strict=True))
    return model, heuristic, sum(sizes)


def describe_costs(calibration: Calibration) -> str:
    """Return "fp8_gemm 5.1 % against 3.0 % of 8 problems": mean regrets of the choices and of the heuristic's."""
    model, heuristic, problems = sum_costs(calibration)
    if problems == 0:
        return f"{calibration.op} not measured"
    return f"{calibration.op} {model / problems:.1%} against {heuristic / problems:.1%} of {problems} problems"


def describe_rounds(record: Record, calibration: Calibration) -> Evaluation:
    """Return the evaluation of a calibration: its rounds, each scored before it was learned from."""
    assert calibration.own is not None
    splits = evaluate(calibration.own.data, calibration.make_results())
    identity = record.identity, record.fingerprint, record.estimator_sha256
    return Evaluation(*identity, 1, False, splits, [], [], Unconfirmed(0, 0))


def start(
    priors: Sequence[Store], device: _C.Device, ops: list[str], backend: str = "cuda"
) -> tuple[list[Calibration], list[str]]:
    """Return a calibration for each op kind, by default each that a database has rows of, and those op kinds among
    them that have nothing to start from.

    Each starts from the first database that has rows of other kernels or GPUs for it, see list_priors. Raises:
    InconclusiveError where none does.
    """
    recorded = {op for store in priors for sku in recorded_boards(store) for op in store.list_ops(sku)}
    asked = ops or [op for op in OPS if op in recorded]
    found = {op: data for op in asked if (data := find_start(priors, device.sku, op, backend)) is not None}
    if not found:
        raise errors.InconclusiveError(
            f"{', '.join(str(store.target) for store in priors)}: no rows of other kernels or of another GPU to start"
            " from, with two usable problems, one of them measured over its whole space; run `python -m tuner sweep`"
        )
    calibrations = [Calibration(op, device, make_source(found[op], PRIOR_WEIGHT), list_pool(op)) for op in found]
    return calibrations, [op for op in asked if op not in found]


def find_start(priors: Sequence[Store], sku: str, op: str, backend: str) -> Dataset | None:
    """Return the first table of the databases with a problem that was measured over its whole space."""
    tables = chain.from_iterable(list_priors(store, sku, op, kernel_hash(op), backend) for store in priors)
    return next((data for data in tables if data.full_space.any()), None)
