"""Where commands that read take their data from: which database, which SKU, which device description."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deep_gemm import _C, environment
from deep_gemm.errors import DeepGemmError, DeviceError
from deep_gemm.selector_files import list_skus
from tuner import errors
from tuner.db import Store, is_recorded, queries, snapshot_path
from tuner.problems.fields import OPS

#: The GPU whose recording is read where no other is named or at hand.
RECORDED_SKU = "nvidia-h200-sm132"


def open_database(database: str, device: str = "") -> Store:
    """Open a database for reading.

    It is the one named, else the user's own if that holds measurements, else the recorded snapshot (find_recorded).
    Raises: UsageError, also where DG_TUNER_DB names a file that is not there; StoreError, IntegrityError.
    """
    if not database:
        check_named()
    target = database or environment.tuner_database()
    recorded, is_url = find_recorded(device), "://" in target
    if not database and not is_url and recorded.exists() and not holds_measurements(Path(target)):
        return Store.open(recorded, mode="immutable")
    return Store.open(target, mode="immutable" if is_recorded(target) else "ro")


@contextmanager
def open_priors(database: str, device: str) -> Iterator[list[Store]]:
    """Yield what open_database opens, and behind the user's own database the recorded snapshot.

    Once a calibration has measured, the user's own exists: it may have no rows but those of that calibration.
    """
    with ExitStack() as opened:
        stores = [opened.enter_context(open_database(database, device))]
        recorded = find_recorded(device)
        if not database and recorded.exists() and stores[0].target != recorded:
            stores.append(opened.enter_context(Store.open(recorded, mode="immutable")))
        yield stores


def check_named() -> None:
    """Raise UsageError where DG_TUNER_DB names a file that is not there: nothing else is read in its place."""
    named = environment.get_string("DG_TUNER_DB")
    if named and "://" not in named and not Path(named).exists():
        raise errors.UsageError(
            f"DG_TUNER_DB = {named}: no such file; correct it, or unset it to read ~/.deep_gemm/tuning.db or the"
            " recorded snapshot (`sweep` and `db init` create it)"
        )


def find_recorded(device: str = "") -> Path:
    """Return the recorded snapshot of the GPU called `device`, "" meaning the one at hand; of its model where the GPU
    has a lower power limit; of RECORDED_SKU where there is neither.
    """
    known = known_or_none(device) if device else gpu_or_none()
    paths = [snapshot_path(sku) for sku in (list_skus(known.sku) if known else ())]
    return next((path for path in paths if path.exists()), snapshot_path(RECORDED_SKU))


def holds_measurements(path: Path) -> bool:
    """Return whether there is a database at `path` that has measurements; a sweep that failed to start leaves none."""
    if not path.exists():
        return False
    with Store.open(path, mode="ro") as store:
        return store.has_measurements()


def find_device(store: Store, name: str) -> _C.Device:
    """Return the device called `name`: a SKU, or a short name such as h200. "" means the only one in the database.

    Raises: UsageError for an unknown name, or where a name is needed; InconclusiveError for an empty database.
    """
    boards = recorded_boards(store)
    if not name and not boards:
        raise errors.InconclusiveError(
            f"no measurements in {store.target}: run `python -m tuner sweep` on a GPU first, or name another --db"
        )
    if not name and len(boards) != 1:
        raise errors.UsageError(
            f"--device: the database holds {len(boards)} GPU models ({', '.join(sorted(boards))}); name one"
        )
    name = name or next(iter(boards))
    return boards[name] if name in boards else known_device(name)


def find_ops(store: Store, sku: str, op: str = "") -> list[str]:
    """Return the op kinds that the database has rows of on `sku`, or only `op`.

    Raises: UsageError for an unknown op kind; InconclusiveError where there are no rows.
    """
    if op not in ("", *OPS):
        raise errors.UsageError(f"--op {op}: must be one of {', '.join(OPS)}")
    recorded = store.list_ops(sku)
    found = [name for name in OPS if op in ("", name) and name in recorded]
    if not found:
        raise errors.InconclusiveError(
            f"no measurements of {op or 'any op kind'} on {sku}: run `python -m tuner sweep` there first, or name"
            " another --db or --device"
        )
    return found


def recorded_boards(store: Store) -> dict[str, _C.Device]:
    """Return {SKU: device} of the boards in the database; a known SKU has its own description, not the row's."""
    with store.reading() as connection:
        rows = list(queries.load_devices(connection, store.target).values())
    boards = {}
    for row in rows:
        device = known_or_none(row["sku"]) or queries.to_device(row)
        if device is not None:
            boards[row["sku"]] = device
    return boards


def known_device(name: str) -> _C.Device:
    """Return the description of a GPU as it is sold. Raises: UsageError for an unknown name."""
    try:
        return _C.Device.known(name)
    except DeepGemmError as error:
        raise errors.UsageError(f"--device {name}: {error}") from error


def known_or_none(name: str) -> _C.Device | None:
    """Return the description of a GPU as it is sold, None for an unknown name."""
    try:
        return _C.Device.known(name)
    except DeepGemmError:
        return None


def device_at_hand(name: str, ordinal: int | None = None) -> _C.Device:
    """Return the device called `name`; "" means the GPU `ordinal` (None: the current one), or without a GPU that of the
    recorded artefact.

    Raises: UsageError for an unknown name, and where there are GPUs but not this one.
    """
    if name:
        return known_device(name)
    try:
        return _C.get_device() if ordinal is None else _C.get_device(ordinal)
    except DeviceError as error:
        if ordinal and has_gpu():
            raise errors.UsageError(f"--device {ordinal}: {error}") from error
        return known_device(RECORDED_SKU)


def has_gpu() -> bool:
    """Return whether this process may use a GPU."""
    return gpu_or_none() is not None


def gpu_or_none() -> _C.Device | None:
    """Return this process's first GPU, None without one."""
    try:
        return _C.get_device(0)
    except DeviceError:
        return None
