"""What `tune` and `refine` do around measuring: which configs are worth it, and how the best one of a problem enters
the artefact that the library uses.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deep_gemm import _C, selection, selector_files
from deep_gemm.artifact import read_artifact
from deep_gemm.errors import DeepGemmError, ModelError
from tuner import errors
from tuner.db import Store
from tuner.db.lock import WriterLock
from tuner.db.rows import BlockRow
from tuner.files import make_folder
from tuner.learn.ranking import Ranking, rank
from tuner.learn.sources import recorded_boards
from tuner.learn.train import write_file
from tuner.problems.regimes import is_simulated
from tuner.problems.workload import is_default
from tuner.ship.exact import add_entry
from tuner.ship.models import read_file

#: Configs that are shown beside the winner and the heuristic's pick.
NUM_SHOWN = 5
#: Seconds to wait for another process that adds to the same artefact.
WAIT_S = 60.0


@contextmanager
def locking(path: Path) -> Iterator[None]:
    """Hold the lock of an artefact while it is read, added to and written. Raises: StoreError."""
    lock = WriterLock(path, WAIT_S)
    try:
        yield
    finally:
        lock.release()


def install_best(problem: _C.Problem, database: str, folder: Path, sku: str, backend: str = "cuda") -> dict:
    """Write `<sku>.dgsel` with the measured best config of `problem` into `folder`; return what was done.

    Only blocks of the GPU model `sku` count, of the default load count, and of times that `backend` takes: a database
    may have other GPUs and simulated times, too. Raises: InconclusiveError where it was not measured there with this
    package's kernels; IntegrityError, StoreError.
    """

    def is_wanted(block: BlockRow) -> bool:
        return is_default(block.workload) and is_simulated(block.regime) == (backend == "simulated")

    with Store.open(database, "ro") as store:
        device = recorded_boards(store).get(sku)
        ranking = rank(store, problem, sku, selection.kernel_hash(problem.op), is_wanted)
    if ranking is None or device is None:
        raise errors.InconclusiveError(
            f"{problem}: nothing was measured on {sku} with this package's kernels in {database}"
        )
    path = folder / f"{device.sku}{selector_files.SUFFIX}"
    make_folder(folder, 0o755)
    with locking(path):  # another process may be adding its own problems
        before = choose_before(problem, device, path)
        entry = add_entry(read_base(device.sku, path), ranking, device)
        write_file(path, entry.content, 0o644)
    return {
        "problem": str(problem),
        "sku": device.sku,
        "artifact": str(path),
        "config": entry.config.as_dict(),
        "name": str(entry.config),
        "entries_lost": entry.num_lost,
        "before": str(before.config),
        "before_source": before.source,
        "configs": describe_configs(ranking, entry.config),
    }


def list_finalists(problems: list, device: _C.Device, folder: Path, count: int) -> dict:
    """Return {problem: configs}, see rank_finalists."""
    return {problem: rank_finalists(problem, device, folder, count) for problem in problems}


def rank_finalists(problem: _C.Problem, device: _C.Device, folder: Path, count: int) -> list:
    """Return the `count` configs that are predicted fastest for one problem, best first: by the selector, and behind
    those that it knows, or where it refuses, by the estimate.
    """
    choice = choose_before(problem, device, folder / f"{device.sku}{selector_files.SUFFIX}", "model")
    scores = {config: score for config, score in (choice.scores or {}).items() if score < float("inf")}
    ranked = sorted(scores, key=lambda config: scores[config])
    return list(dict.fromkeys([*ranked, *_C.get_shortlist(problem, device, count)]))[:count]


def check_base(sku: str, folder: Path) -> None:
    """Raise IntegrityError, before anything is measured, where the artefact in the folder is none to add to."""
    read_base(sku, folder / f"{sku}{selector_files.SUFFIX}")


def read_base(sku: str, path: Path) -> bytes | None:
    """Return the artefact to add to: the one in the folder, else the one that the library uses. Raises: IntegrityError
    where the one in the folder is damaged, or of another GPU model.
    """
    if path.is_file():
        try:
            content = read_file(path)
            of = read_artifact(content)[0]["sku"]
        except DeepGemmError as error:
            raise errors.IntegrityError(f"{path}: {error}; nothing is added to it: remove it, or mend it") from error
        if of not in (sku, _C.base_sku(sku)):
            raise errors.IntegrityError(f"{path}: is of {of}; nothing is added to it: move it to its own name")
        return content
    try:
        found = selector_files.read_selector_file(sku, None)
    except ModelError:
        return None
    return found[1] if found else None


def choose_before(problem: _C.Problem, device: _C.Device, path: Path, mode: str = "auto") -> _C.Choice:
    """Return what the artefact of the folder, else the library, chooses so far; `mode`: see Selector.choose."""
    from deep_gemm.selector import Selector

    try:
        base = read_base(device.sku, path)
        if base is not None:
            return Selector(base).choose(problem, device, mode, selection.kernel_hash(problem.op))
    except DeepGemmError:
        pass
    return selection.choose_analytic(problem, device, "no selector")


def describe_configs(ranking: Ranking, chosen: _C.Config) -> list[dict]:
    """Return the fastest configs, the chosen one and the reference, in the order of their times."""
    timed = [row for row in ranking.rows if row.median_us is not None]
    shown = [row for place, row in enumerate(timed) if place < NUM_SHOWN or row.is_reference or row.config == chosen]
    return [
        {
            "name": str(row.config),
            "median_us": row.median_us,
            "ratio": row.ratio,
            "role": ", ".join(
                role for role, holds in (("chosen", row.config == chosen), ("reference", row.is_reference)) if holds
            ),
        }
        for row in shown
    ]
