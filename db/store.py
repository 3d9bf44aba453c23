"""The store: the sweep writes to it, everything else reads from it.

Guarantees: every writing method is one transaction, durable when the method returns. If it raises, nothing was written,
    and the store can still be used. Ctrl-C takes effect when the transaction has ended. One Store at a time writes to a
    file; readers may open the file at any time and see committed rows only. Of a board's UUID only the SHA-256 is
    stored.

Exception contract: UsageError (wrong field or mode), StoreError (disk, lock, permissions), IntegrityError (a row that
must not be stored, or a file that must not be trusted). Errors of the database driver never leave this module.
"""

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Self

import numpy as np
from sqlalchemy import Connection, Table, select, update

from deep_gemm import _C
from tuner import errors
from tuner.credentials import hide_credentials
from tuner.db import checksums, coverage, origins, queries, summaries, tables, writing
from tuner.db.engine import open_engine
from tuner.db.faults import translated
from tuner.db.interrupts import interrupt_deferred
from tuner.db.rows import BlockRow, Identity, MeasurementRow, WinnerRow
from tuner.db.summaries import BlockSummary
from tuner.db.values import make_key, make_uid, now, to_device_row, to_row
from tuner.problems.fields import problem_row

#: Seconds between two attempts to write to a full disk.
RETRY_S = 5.0


def waits_for_space(write):
    """Let a writing method of Store wait for `patience_s` seconds, as they are by then, where the disk is full."""

    @functools.wraps(write)
    def call(self, *arguments, **named):
        start = time.monotonic()
        while True:
            try:
                return write(self, *arguments, **named)
            except errors.DiskFullError as error:
                if time.monotonic() >= start + self.patience_s:
                    raise
                self.on_wait(str(error))
                time.sleep(RETRY_S)

    return call


class Store:
    """An open tuning database; use it as a context manager.

    Where the disk is full, writing methods try again for `patience_s` seconds (0 by default) and call `on_wait` with
    the reason each time.
    """

    def __init__(self, engine, close, target: str | Path, mode: str):
        self.patience_s = 0.0
        self.on_wait: Callable[[str], None] = lambda reason: None
        self.engine, self.target, self.mode = engine, target, mode
        is_fleet = engine.dialect.name == "postgresql"
        self.reader = engine.execution_options(isolation_level="REPEATABLE READ") if is_fleet else engine
        self._close = close
        self._ids: dict[tuple[str, str], int] = {}

    @classmethod
    def open(cls, target: str | os.PathLike, mode: str = "rw", wait_s: float = 0.0) -> Self:
        """Open a SQLite file by path, or a PostgreSQL database by URL.

        `mode`: "rw" creates the file and its folder where there is none, and takes the writer's lock, waiting `wait_s`
        seconds for it; "ro" reads beside a writer; "immutable" reads a finished snapshot, even from a read-only disk.
        Raises: UsageError, StoreError, IntegrityError.
        """
        engine, close = open_engine(target, mode, wait_s)
        name = hide_credentials(str(target)) if "://" in str(target) else Path(target).absolute()
        return cls(engine, close, name, mode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and give the writer's lock back; a second call does nothing."""
        self._close()
        self._close = lambda: None

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open one transaction for writing. Raises: UsageError where the store was opened for reading."""
        if self.mode != "rw":
            raise errors.UsageError(f"{self.target}: opened with mode {self.mode!r}; open it with mode 'rw' to write")
        with interrupt_deferred(), translated(self.target), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open one transaction for reading, which sees one state of the database."""
        with interrupt_deferred(), translated(self.target), self.reader.begin() as connection:
            yield connection

    # Who, what and how.

    def get_or_add_device(self, fields: dict) -> int:
        """Return the id of a board.

        Fields: those of `_C.Device.as_dict()`, `memory_bytes`, `power_limit_w`, and `uuid` (hashed here) or
            `uuid_hash`.
        """
        row = to_row(tables.device, to_device_row(fields), own=("id", "key"))
        return self._get_or_add(tables.device, row | {"key": make_key(row)})

    def get_or_add_environment(self, fields: dict) -> int:
        """Return the id of a software environment (see tables.environment for the fields)."""
        row = to_row(tables.environment, fields, own=("id", "key"))
        return self._get_or_add(tables.environment, row | {"key": make_key(row)})

    def get_or_add_problem(self, problem: _C.Problem) -> int:
        """Return the id of a problem."""
        return self._get_or_add(tables.problem, problem_row(problem) | {"key": problem.key})

    def get_or_add_config(self, op: str, config: _C.Config) -> int:
        """Return the id of a config of op kind `op`."""
        return self._get_or_add(tables.config, config.as_dict() | {"op": op, "key": config.key(op)})

    @waits_for_space
    def _get_or_add(self, table: Table, row: dict) -> int:
        """Return the id of the row with this natural key, adding it where it is new."""
        known = self._ids.get((table.name, row["key"]))
        if known is not None:
            return known
        with self.writing() as connection:
            found = writing.get_or_add(connection, table, row)
        self._ids[table.name, row["key"]] = found
        return found

    # Sweeps and what they measure.

    def start_sweep(self, fields: dict) -> int:
        """Record the start of a sweep and return its id.

        Fields: preset, seed, sampler, effort, regime, shard, argv (list), host.
        """
        row = to_row(tables.sweep, fields, own=("id", "uid", "status", "created", "ended"))
        return self._add(tables.sweep, row | {"uid": make_uid(), "status": "running", "created": now()})

    def finish_sweep(self, sweep_id: int, status: str = "finished") -> None:
        """Record how a sweep ended: one of tables.SWEEP_STATUSES."""
        self._update(tables.sweep, sweep_id, {"status": status, "ended": now()})

    @waits_for_space
    def add_block(self, fields: dict) -> int:
        """Record a block and return its id. A block is one problem on one board in one go; it is `open` until finished.

        Fields: sweep_id, problem_id, device_id, environment_id, regime, kernel_hash (64 hex digits), compiler.
        Optional:
        reference_config_id, order (config ids, the reference first), rounds, confirm_rounds, anchor_us, noise,
        clock_mhz, power_w, throttle, status, extra (dict), workload (group sizes, see tuner.problems.workload).
        """
        row = to_row(tables.block, fields, own=("id", "uid", "created"))
        with self.writing() as connection:
            writing.check_config_ids(connection, "block.order", row.get("order"))
            return writing.add_row(
                connection, tables.block, {"status": "open"} | row | {"uid": make_uid(), "created": now()}
            )

    def add_measurements(self, rows: Iterable[dict], finish: bool = False) -> None:
        """Store the rows of one or more blocks; a row of the same (block, config, role) is replaced.

        Keys: block_id, config_id, role, status; the other fields of rows.MeasurementRow and rows.CompilerReport are
            optional. Of `error` the last 4 KiB are kept. `finish` also sets the blocks' status to `finished`, in the
            same transaction.
        """
        self._add_measurements([dict(row) for row in rows], finish)

    @waits_for_space
    def _add_measurements(self, rows: list[dict], finish: bool) -> None:
        """Store copies of `rows`."""
        with self.writing() as connection:
            writing.add_measurements(connection, [dict(row) for row in rows])
            if finish:
                blocks = {row["block_id"] for row in rows}
                connection.execute(update(tables.block).where(tables.block.c.id.in_(blocks)).values(status="finished"))

    def finish_block(self, block_id: int, **fields: object) -> None:
        """Set a block's status to `finished`, or to `status`, and set other fields of add_block.

        What the checksums of its rows cover stays as it was added.
        """
        row = to_row(tables.block, {"status": "finished"} | fields, own=("id", "order", *checksums.BLOCK_NAMES))
        self._update(tables.block, block_id, row)

    @waits_for_space
    def set_best(self, fields: dict) -> None:
        """Store the winner of a problem, replacing an earlier one.

        Fields: problem_id, sku, kernel_hash, compiler, regime, config_id, tie_set (config ids, the winner first),
            block_id.
        """
        with self.writing() as connection:
            writing.set_best(connection, fields)

    @waits_for_space
    def _add(self, table: Table, row: dict) -> int:
        """Insert a row and return its id."""
        with self.writing() as connection:
            return writing.add_row(connection, table, row)

    @waits_for_space
    def _update(self, table: Table, row_id: int, row: dict) -> None:
        """Change a row. Raises: UsageError where there is none."""
        with self.writing() as connection:
            if connection.execute(update(table).where(table.c.id == row_id).values(row)).rowcount != 1:
                raise errors.UsageError(f"{table.name} {row_id}: no such row")

    # Readers.

    def load_measurements(
        self,
        sku: str | None = None,
        kernel_hash: str | None = None,
        op: str | None = None,
        role: str | None = None,
        regime: str | None = None,
        compiler: str | None = None,
        problem_key: str | None = None,
        problem_ids: tuple[int, ...] | None = None,
    ) -> list[MeasurementRow]:
        """Return measured rows, every value checked; a filter that is None takes everything.

        `problem_ids` come from list_problems: who wants all rows of a large database takes them part by part. Rows
        whose config is no longer legal on their board are left out; stats() counts them. Raises: IntegrityError for a
        row that cannot be true, or is not what was recorded.
        """
        with self.reading() as connection:
            return queries.load_measurements(
                connection,
                self.target,
                queries.Filter(sku, kernel_hash, op, role, regime, compiler, problem_key, problem_ids),
            )

    def load_blocks(
        self,
        sku: str | None = None,
        kernel_hash: str | None = None,
        op: str | None = None,
        regime: str | None = None,
        compiler: str | None = None,
    ) -> list[BlockRow]:
        """Return the blocks without their rows; a filter that is None takes everything. Raises: IntegrityError."""
        wanted = queries.Filter(sku, kernel_hash, op, None, regime, compiler)
        with self.reading() as connection:
            devices = queries.load_devices(connection, self.target)
            return list(queries.load_blocks(connection, self.target, wanted, devices).values())

    def load_best(
        self,
        sku: str | None = None,
        kernel_hash: str | None = None,
        op: str | None = None,
        regime: str | None = None,
        compiler: str | None = None,
        problem_key: str | None = None,
    ) -> list[WinnerRow]:
        """Return the winners; a filter that is None takes everything. Raises: IntegrityError."""
        with self.reading() as connection:
            return queries.load_best(
                connection, self.target, queries.Filter(sku, kernel_hash, op, None, regime, compiler, problem_key)
            )

    def load_summaries(self, sku: str | None = None, op: str | None = None) -> list[BlockSummary]:
        """Return what each block with rows measured, counted by the database; a filter that is None takes everything.

        Raises: IntegrityError.
        """
        with self.reading() as connection:
            return summaries.load_summaries(connection, self.target, queries.Filter(sku, op=op))

    def load_spreads(self, sku: str, kernel_hash: str | None, op: str) -> dict[str, np.ndarray]:
        """Return summaries.SPREAD_FIELDS of the right confirmation rows, a column each. Raises: IntegrityError."""
        with self.reading() as connection:
            return summaries.load_spreads(connection, self.target, queries.Filter(sku, kernel_hash, op))

    def load_failures(
        self, sku: str, kernel_hash: str | None, op: str, statuses: Sequence[str]
    ) -> list[summaries.Failure]:
        """Return the rows of some statuses, those of configs that are no longer legal included."""
        with self.reading() as connection:
            return summaries.load_failures(connection, queries.Filter(sku, kernel_hash, op), statuses)

    def describe_failure(self, failure: summaries.Failure) -> tuple[_C.Config, _C.Problem, str]:
        """Return the config, the problem and the end of the log of a row that failed. Raises: IntegrityError."""
        with self.reading() as connection:
            return summaries.describe_failure(connection, self.target, failure)

    def check_blocks(self) -> None:
        """Raise IntegrityError unless every block is what its first row was recorded in."""
        with self.reading() as connection:
            queries.check_blocks(connection, self.target)

    def list_problems(self, identity: Identity, statuses: Sequence[str] = ()) -> list[int]:
        """Return the ids of the problems measured with an identity, or of those with rows of some statuses."""
        with self.reading() as connection:
            return queries.list_problems(connection, queries.Filter(**asdict(identity)), statuses)

    def list_ops(self, sku: str) -> set[str]:
        """Return the op kinds that have blocks of a sweep's own regime on this SKU."""
        with self.reading() as connection:
            return queries.list_ops(connection, sku)

    def newest_kernel_hash(self, op: str, sku: str) -> str | None:
        """Return the kernel hash of the newest block of this op kind and SKU that is finished and of a sweep's own
        regime, None where there is none.
        """
        with self.reading() as connection:
            return queries.newest_kernel_hash(connection, op, sku)

    def has_measurements(self) -> bool:
        """Return whether there is any measured row of a sweep's own regime."""
        measured = select(tables.measurement.c.block_id).join(
            tables.block, tables.block.c.id == tables.measurement.c.block_id
        )
        with self.reading() as connection:
            return connection.execute(measured.where(origins.has_own_regime()).limit(1)).first() is not None

    def count_measurements(self) -> int:
        """Return the number of measured rows."""
        with self.reading() as connection:
            return coverage.count_rows(connection, tables.measurement)

    def count_sentinels(self) -> int:
        """Return the number of measured rows of sentinels."""
        with self.reading() as connection:
            return origins.count_sentinels(connection)

    def stats(self) -> dict:
        """Count rows per table and per identity, rows whose config is no longer legal, and those without a checksum;
        give the file's size in bytes.

        `file_bytes` is None for a PostgreSQL database.
        """
        with self.reading() as connection:
            found = coverage.count(connection, self.target)
        size = self.target.stat().st_size if isinstance(self.target, Path) else None
        return {"database": str(self.target), "file_bytes": size, "schema": tables.SCHEMA_VERSION} | found

    def check(self) -> list[str]:
        """Return what is wrong with the database: damaged pages, dangling references, impossible rows, rows that are
        not what was recorded; [] if sound.
        """
        with self.reading() as connection:
            return coverage.check(connection, self.target)

    def count_unverified(self) -> int:
        """Return the number of measured rows without a checksum, which were recorded before there were any."""
        with self.reading() as connection:
            return checksums.count_unverified(connection)
