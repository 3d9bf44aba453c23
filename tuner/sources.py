"""Where the reading commands take their data from: which database, which SKU, which device description."""

from pathlib import Path

from deep_gemm import _C, environment
from deep_gemm.errors import DeepGemmError, DeviceError
from tuner import errors
from tuner.db import Store, queries, snapshot_path
from tuner.problems.fields import OPS

#: The GPU whose recorded snapshot and artefact come with the package.
RECORDED_SKU = "nvidia-h200-sm132"


def open_database(database: str) -> Store:
    """Open a database for reading: the one named, else the user's own where it holds measurements, else the recorded
    snapshot.

    Raises: UsageError, StoreError, IntegrityError.
    """
    target = database or environment.tuner_database()
    recorded = snapshot_path(RECORDED_SKU)
    if not database and "://" not in target and recorded.exists() and not holds_measurements(Path(target)):
        return Store.open(recorded, mode="immutable")
    return Store.open(
        target, mode="immutable" if "://" not in target and Path(target).absolute() == recorded.absolute() else "ro"
    )


def holds_measurements(path: Path) -> bool:
    """Return whether the database at `path` exists and has any measurement; a sweep that could not start leaves none."""
    if not path.exists():
        return False
    with Store.open(path, mode="ro") as store:
        return store.stats()["tables"]["measurement"] > 0


def find_device(store: Store, name: str) -> _C.Device:
    """Return the device `name` (SKU or short name such as h200); without a name, the only one that the database has
    rows of.

    Raises: UsageError for an unknown name, or where a name is needed.
    """
    boards = recorded_boards(store)
    if not name and len(boards) != 1:
        raise errors.UsageError(
            f"--device: the database holds {len(boards)} GPU models ({', '.join(sorted(boards)) or 'none'}); name one"
        )
    name = name or next(iter(boards))
    return boards[name] if name in boards else known_device(name)


def find_ops(store: Store, sku: str, op: str = "") -> list[str]:
    """Return the op kinds that the database has rows of on `sku`, or `op` where one is asked for.

    Raises: UsageError, InconclusiveError.
    """
    if op not in ("", *OPS):
        raise errors.UsageError(f"--op {op}: must be one of {', '.join(OPS)}")
    found = [name for name in OPS if op in ("", name) and store.newest_kernel_hash(name, sku)]
    if not found:
        raise errors.InconclusiveError(
            f"no measurements of {op or 'any op kind'} on {sku}: run `python -m tuner sweep` there first, or name"
            " another --db or --device"
        )
    return found


def recorded_boards(store: Store) -> dict:
    """Return {SKU: device} of the boards in the database; a known SKU by its own description."""
    with store.reading() as connection:
        rows = list(queries.load_devices(connection).values())
    boards = {}
    for row in rows:
        device = known_or_none(row["sku"]) or queries.to_device(row)
        if device is not None:
            boards[row["sku"]] = device
    return boards


def known_device(name: str) -> _C.Device:
    """Return the description of a GPU as sold. Raises: UsageError for an unknown name."""
    try:
        return _C.Device.known(name)
    except DeepGemmError as error:
        raise errors.UsageError(f"--device {name}: {error}") from error


def known_or_none(name: str) -> _C.Device | None:
    """Return the description of a GPU as sold, None for an unknown name."""
    try:
        return _C.Device.known(name)
    except DeepGemmError:
        return None


def device_at_hand(name: str) -> _C.Device:
    """Return the device `name`, without a name the current GPU, without a GPU the one whose artefact comes with the
    package.
    """
    if name:
        return known_device(name)
    try:
        return _C.get_device()
    except DeviceError:
        return known_device(RECORDED_SKU)
