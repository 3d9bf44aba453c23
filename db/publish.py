"""Publishing a snapshot: a copy of a database without private data, small enough to ship with the package."""

import math
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, cast

from sqlalchemy import Connection, func, select

from tuner import errors
from tuner.db import coverage, origins, tables
from tuner.db.checksums import add_checksums
from tuner.db.documents import MEASURED, SMALL_TABLES
from tuner.db.engine import check_path
from tuner.db.faults import translated
from tuner.db.naturals import KEYS, Tables, check_tables, natural_key, read_tables
from tuner.db.newest import (
    Kernels,
    choose_left_out,
    count_sentinels,
    find_mixed,
    find_newest,
    find_sku,
    leave_superseded,
    leave_visits,
    select_kernels,
)
from tuner.db.short_rows import compact
from tuner.db.store import Store
from tuner.db.transfer import add_tables, open_source, read_measurements_of
from tuner.db.values import make_key
from tuner.files import replacing
from tuner.problems.regimes import is_energy, is_own

#: The recorded snapshot is part of the package and must stay smaller than this.
MAX_SNAPSHOT_BYTES = 8_000_000
#: No measured row of a snapshot takes less: the lengths of its values, its place in a page, two references, a checksum.
LEAST_ROW_BYTES = 18
#: Matches a path, an address or a board's UUID, none of which may be in a snapshot; a slash between digits is a shard.
PRIVATE = re.compile(r"(?<!\d)/|/(?!\d)|\\|GPU-|MIG-[0-9a-f]{8}|@")
#: What nothing needs of a snapshot: of every row, of search rows, and of those that the race dropped: a ratio says it.
EXTRAS = ("error", "samples", "q10_us", "q90_us", "mad_us")
SEARCH_EXTRAS = ("max_abs_error", "ratio_low", "ratio_high")
CENSORED_EXTRAS = ("median_us",)
#: Numbers of a block that are whole in a snapshot, in a quarter of the room.
ROUNDED = ("anchor_us", "power_w")
#: Times of search rows are whole from this on.
WHOLE_FROM_US = 250.0
#: Blocks that are asked about together: a query takes so many values, and no more.
BLOCKS_AT_A_TIME = 500
#: What nothing needs of a config that is slower than the best of its block by more than this factor.
FAR, FAR_EXTRAS = 1.005, ("ratio_low", "ratio_high")


def snapshot(
    source: str | os.PathLike, target: str | os.PathLike, sku: str | None = None, max_bytes: int = MAX_SNAPSHOT_BYTES
) -> dict:
    """Write a copy of `source` that may be published to `target`; return {"bytes", "tables", "left_out",
    "visits_left_out", "searches_left_out", "sentinels"}.

    Host names, command lines, paths and logs are removed; UUIDs are hashed in every database. What nothing needs of a
    snapshot is removed, too: all samples, quantiles and deviations, what compilers reported, in which order a block's
    configs ran, and the statistics of search rows except the median and the ratio (where the race dropped one, the
    ratio alone), the intervals of configs that are more than 0.5 % slower than the best of their block, and fractions
    of a block's watts and its anchor's microseconds, and of times of search rows from 250 us on. Every row gets a
    checksum. With `sku` (or a short name), only that SKU's blocks with the newest two kernel hashes of each op kind are
    kept, those of older ones that training joins to the newest, and the energies of problems of which no newer kernels
    have any, but no block whose configs were all measured with more draws of the group sizes, too. Where that makes
    more than `max_bytes`, the other older kernels of the op kinds with most rows are left out. Where that is not
    enough, so are the visits to a sentinel between the first and the last one of a board in a sweep, then the search
    row of each config that its block confirmed, of as few op kinds as need be: the confirmation is better. Those
    energies of older kernels are left out last. Sentinels stay for `compare`; "sentinels" says how many of the measured
    rows are theirs. Kernels that no problem was measured with to the end are no newer ones, and none of the kept ones.
    SQLite's backup API copies the source, so that a sweep can go on meanwhile.

    Guarantees: the copy is written to a temporary file and checked for private text before it replaces `target`.
    Raises: UsageError, also where nothing was measured (on `sku`) or `target` holds more than the copy would;
    StoreError; IntegrityError where private text is left, or the result is larger than `max_bytes`.
    """
    path = check_target(source, target)
    with tempfile.TemporaryDirectory() as folder, replacing(path) as fresh, translated(path):
        with Store.open(back_up(source, Path(folder) / "backup.db"), "ro") as store, store.reading() as connection:
            copy = Copy.read(connection, source)
            if not any(is_own(copy.found["block"][(uid,)]["regime"]) for uid in copy.rows_of):
                raise errors.UsageError(
                    f"{source}: holds no measurements, so nothing was written; sweep first (sentinels do not count)"
                )
            if sku:
                kept, left_out = write_newest(fresh, path, copy, find_sku(copy.found, sku), max_bytes)
            else:
                copy.check_fits(path, copy.found, max_bytes)
                kept, left_out = write(fresh, path, copy.load(copy.found)), LeftOut()
        check_size(fresh, path, max_bytes)
    return {
        "bytes": path.stat().st_size,
        "tables": {name: len(rows) for name, rows in kept.items()},
        "left_out": [each.describe() for each in left_out.kernels],
        "visits_left_out": left_out.visits,
        "searches_left_out": left_out.searches,
        "sentinels": count_sentinels(kept),
    }


@dataclass
class LeftOut:
    """What a snapshot has not, so that it is small: older kernels, rows of sentinels, and search rows by op kind."""

    kernels: list[Kernels] = field(default_factory=list)
    visits: int = 0
    searches: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Copy:
    """The copy that a snapshot is made of: its tables without the measured rows, how many of these each block has, and
    which blocks hold energies.

    Measured rows come into memory when they are asked for; that they can fit into a snapshot is checked before.
    """

    connection: Connection
    source: str | os.PathLike
    found: Tables
    rows_of: dict[str, int]
    powered: set[tuple]

    @classmethod
    def read(cls, connection: Connection, source: str | os.PathLike) -> "Copy":
        """Return the copy that `connection` reads. Raises: IntegrityError, which names `source`."""
        found, table, block = read_tables(connection, source, SMALL_TABLES), tables.measurement, tables.block
        check_tables(source, found)
        query = select(block.c.uid, func.count(), func.max(table.c.power_w)).group_by(block.c.uid)
        counts = connection.execute(query.join(table, table.c.block_id == block.c.id)).all()
        powered = {(uid,) for uid, _, power_w in counts if power_w and is_energy(found["block"][(uid,)]["regime"])}
        return cls(connection, source, found, {uid: count for uid, count, _ in counts}, powered)

    def leave_superseded(self) -> Tables:
        """Return the tables without the blocks that newest.leave_superseded names."""
        uids = sorted({key[0] for draws in find_mixed(self.found).values() for key in draws})
        told: dict[str, set[int]] = {}
        table, block = tables.measurement, tables.block
        query = select(block.c.uid, table.c.config_id).join(block, table.c.block_id == block.c.id)
        for start in range(0, len(uids), BLOCKS_AT_A_TIME):
            some = block.c.uid.in_(uids[start : start + BLOCKS_AT_A_TIME]) & (table.c.status != "skipped")
            for uid, config in self.connection.execute(query.where(some)):
                told.setdefault(uid, set()).add(config)
        return leave_superseded(self.found, told)

    def load(self, selected: Tables) -> Tables:
        """Return tables with the measured rows of their blocks. Raises: IntegrityError."""
        uids = {uid for (uid,) in selected["block"]}
        rows = read_measurements_of(self.connection, self.source, self.found, uids)
        loaded = selected | {MEASURED: {natural_key(MEASURED, row): row for row in rows}}
        return {name: loaded[name] for name in KEYS}

    def count_bytes(self, selected: Tables) -> int:
        """Return what the measured rows of some blocks take at least."""
        return LEAST_ROW_BYTES * sum(self.rows_of.get(uid, 0) for (uid,) in selected["block"])

    def check_fits(self, target: Path, selected: Tables, max_bytes: int) -> None:
        """Raise IntegrityError where no snapshot of these blocks can be small enough, before their rows are read.

        A config may have a search row beside its confirmed one, which may be left out.
        """
        if self.count_bytes(selected) > 2 * max_bytes:
            refuse_size(target, f"more than {self.count_bytes(selected) // 2}", max_bytes)


def write_newest(fresh: Path, target: Path, copy: Copy, sku: str, max_bytes: int) -> tuple[Tables, LeftOut]:
    """Write the newest kernels of a SKU to `fresh`, and of the kernels before them as many as fit; energies go last.

    Return what was written and what was left out.
    """
    newest, energies, older = find_newest(copy.leave_superseded(), copy.rows_of, copy.powered, sku)
    left_out = LeftOut()

    def leave_out(kernels: list[Kernels], excess: float, bytes_of_row: float) -> None:
        for _ in range(choose_left_out(kernels, excess, bytes_of_row)):
            left_out.kernels.append(kernels.pop())

    while True:
        selected = select_kernels(copy.found, newest + energies + older)
        if older and copy.count_bytes(selected) > max_bytes:
            leave_out(older, copy.count_bytes(selected) - max_bytes, LEAST_ROW_BYTES)
            continue
        copy.check_fits(target, selected, max_bytes)
        kept = write(fresh, target, loaded := copy.load(selected))
        size = fresh.stat().st_size
        if size <= max_bytes:
            return kept, left_out
        fresh.write_bytes(b"")
        excess, bytes_of_row = size - max_bytes, size / max(len(kept[MEASURED]), 1)
        if older:
            leave_out(older, excess, bytes_of_row)
            continue
        fewer = leave_visits(loaded)
        left_out.visits = len(loaded[MEASURED]) - len(fewer[MEASURED])
        # What the visits save besides their rows shows when it is written.
        excess_rows = 0.0 if left_out.visits else excess / bytes_of_row
        kept, left_out.searches = write_fewer_searches(fresh, target, fewer, max_bytes, excess_rows)
        size = fresh.stat().st_size
        if size <= max_bytes or not energies:
            return kept, left_out
        fresh.write_bytes(b"")
        leave_out(energies, size - max_bytes, bytes_of_row)
        left_out.visits, left_out.searches = 0, {}  # all of them are tried again


def write_fewer_searches(
    fresh: Path, target: Path, found: Tables, max_bytes: int, excess_rows: float
) -> tuple[Tables, dict[str, int]]:
    """Write without the search rows of configs that were confirmed in the same block, of as few op kinds as need be.

    Return what was written, and how many rows of which op kinds were left out.
    """
    searches, left_out = find_confirmed_searches(found), dict[str, int]()
    while True:
        gone: set[tuple] = set()
        while searches and len(gone) < excess_rows:
            op = choose_op(searches, excess_rows - len(gone))
            left_out[op] = len(searches[op])
            gone |= searches.pop(op)
        found = found | {MEASURED: {key: row for key, row in found[MEASURED].items() if key not in gone}}
        kept = write(fresh, target, found)
        size = fresh.stat().st_size
        if size <= max_bytes or not searches:
            return kept, left_out
        fresh.write_bytes(b"")
        excess_rows = (size - max_bytes) * len(kept[MEASURED]) / size


def choose_op(searches: dict[str, set[tuple]], count: float) -> str:
    """Return the op kind with the fewest rows of those with `count` of them, else the one with most."""
    enough = [op for op, keys in searches.items() if len(keys) >= count]
    return min(enough or searches, key=lambda op: (len(searches[op]) if enough else -len(searches[op]), op))


def find_confirmed_searches(found: Tables) -> dict[str, set[tuple]]:
    """Return {op kind: keys of the search rows of configs that were confirmed in the same block}."""
    confirmed = {(block, config) for block, config, role in found[MEASURED] if role == "confirm"}
    searches: dict[str, set[tuple]] = {}
    for key in found[MEASURED]:
        if key[2] != "confirm" and key[:2] in confirmed:
            problem = found["block"][key[:1]]["problem_id"]
            searches.setdefault(found["problem"][(problem,)]["op"], set()).add(key)
    return searches


def write(fresh: Path, target: Path, found: Tables) -> Tables:
    """Write what may be published of `found` to the empty file `fresh`, which will replace `target`; return it."""
    scrubbed = scrub(found)
    check_private(scrubbed, target)
    check_loss(scrubbed, target)
    add_tables(fresh, [scrubbed])
    compact(fresh)
    return scrubbed


def check_target(source: str | os.PathLike, target: str | os.PathLike) -> Path:
    """Return the absolute target.

    Raises: UsageError where it is the source; IntegrityError where it is something else's file.
    """
    path = check_path(target, "TARGET")
    if path.exists():
        if "://" not in str(source) and Path(source).exists() and path.samefile(source):
            raise errors.UsageError(
                f"{path}: source and target are one file; a snapshot drops data, so name another target"
            )
        Store.open(path, "ro").close()
    return path


def check_loss(found: Tables, path: Path) -> None:
    """Raise UsageError where replacing `path` would lose data.

    It is then a database that sweeps write to, or a snapshot with more measurements than `found`, sentinels aside.
    """
    if not path.exists():
        return
    with open_source(path) as store, store.reading() as connection:
        old = read_tables(connection, path, ("sweep",))
        count = coverage.count_rows(connection, tables.measurement) - origins.count_sentinels(connection)
    if any(row["argv"] or row["host"] for row in old["sweep"].values()):
        raise errors.UsageError(f"{path}: a database of sweeps, not a snapshot, and would be lost; name another target")
    if count > (own := len(found[MEASURED]) - count_sentinels(found)):
        counts = f"{count} measurements, the snapshot would have {own} (sentinels do not count)"
        raise errors.UsageError(f"{path}: holds {counts}; name another target, or remove the file first")


def back_up(source: str | os.PathLike, copy: Path) -> Path:
    """Copy a SQLite database page by page; its writer may go on meanwhile. Raises: UsageError for a PostgreSQL URL."""
    if "://" in str(source):
        raise errors.UsageError(
            f"--db {str(source).partition('://')[0]}://...: a snapshot is made of a SQLite file; merge the database"
            " into one first"
        )
    with Store.open(source, "ro") as store, store.reading() as connection:
        destination = sqlite3.connect(copy)
        cast(sqlite3.Connection, connection.connection.driver_connection).backup(destination)
        destination.close()
    return copy


def scrub(found: Tables) -> Tables:
    """Return the tables without private data and without what nothing reads from a snapshot."""
    scrubbed = dict(found)
    scrubbed["sweep"] = {
        key: row | {"argv": None, "host": None, "preset": without_path(row["preset"])}
        for key, row in found["sweep"].items()
    }
    scrubbed["compilation"] = {}
    best = find_best_ratios(found[MEASURED].values())
    scrubbed[MEASURED] = {
        key: scrub_measurement(row, FAR * best.get(row["block_id"], math.inf)) for key, row in found[MEASURED].items()
    }
    environments = {key[0]: scrub_environment(row) for key, row in found["environment"].items()}
    scrubbed["environment"] = {(row["key"],): row for row in environments.values()}
    dropped = {"extra": None, "order": "[]"}
    scrubbed["block"] = {
        key: row
        | dropped
        | {name: row[name] and max(round(row[name]), 1) for name in ROUNDED}
        | {"environment_id": environments[row["environment_id"]]["key"]}
        for key, row in found["block"].items()
    }
    return add_checksums(scrubbed)


def find_best_ratios(rows: Iterable[dict]) -> dict[str, float]:
    """Return {block: the smallest ratio of its confirmed rows}."""
    best: dict[str, float] = {}
    for row in rows:
        if row["role"] == "confirm" and row["ratio"] is not None:
            best[row["block_id"]] = min(row["ratio"], best.get(row["block_id"], math.inf))
    return best


def scrub_measurement(row: dict, far: float) -> dict:
    """Return a measured row as a snapshot has it, see snapshot; `far` is the ratio from which on a config is slow."""
    dropped: tuple[str, ...] = EXTRAS
    if row["role"] == "search":
        dropped += SEARCH_EXTRAS
        if row["ratio"] is not None and (row["median_us"] or 0.0) >= WHOLE_FROM_US:
            row = row | {"median_us": float(round(row["median_us"]))}
    if row["status"] == "censored" and row["ratio"] is not None:
        dropped += CENSORED_EXTRAS
    if row["ratio"] is not None and row["ratio"] > far:
        dropped += FAR_EXTRAS
    return row | dict.fromkeys(dropped)


def scrub_environment(row: dict) -> dict:
    """Return an environment without the compiler flags that name a path."""
    flags = " ".join(flag for flag in (row["flags"] or "").split() if without_path(flag)) or None
    row = row | {"flags": flags}
    return row | {"key": make_key(row)}


def without_path(text: str | None) -> str | None:
    """Return `text`, or None where it looks private."""
    return None if text is None or PRIVATE.search(text) else text


def check_private(found: Tables, target: Path) -> None:
    """Raise IntegrityError where a text is left that looks private."""
    for name, rows in found.items():
        for row in rows.values():
            for column, value in row.items():
                if isinstance(value, str) and PRIVATE.search(value):
                    raise errors.IntegrityError(
                        f"{target}: {name}.{column} = {value[:60]!r} looks private; nothing was written: correct the"
                        " row first"
                    )


def check_size(path: Path, target: Path, max_bytes: int) -> None:
    """Raise IntegrityError where the new snapshot is too large."""
    size = path.stat().st_size
    if size > max_bytes:
        refuse_size(target, str(size), max_bytes)


def refuse_size(target: Path, size: str, max_bytes: int) -> NoReturn:
    """Raise the IntegrityError of a snapshot that is too large."""
    raise errors.IntegrityError(
        f"{target}: {size} bytes, at most {max_bytes}; nothing was written: select one --sku, or raise --max-bytes"
    )
