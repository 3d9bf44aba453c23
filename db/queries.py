"""Reading rows inside a transaction that the caller holds: SQL columns become the records of `rows.py` here.

Every value is checked, because a database may come from anywhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection, Select, func, select

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.fields import OP_KINDS
from tuner import errors
from tuner.db import checksums, tables
from tuner.db.checks import (
    MEASUREMENT_COLUMNS,
    check_block,
    check_key,
    check_rows,
    config_key,
    problem_key,
    read_config_ids,
)
from tuner.db.faults import damaged
from tuner.db.origins import has_own_regime, list_kernel_hashes
from tuner.db.rows import BlockRow, CompilerReport, MeasurementRow, WinnerRow
from tuner.db.values import check_names, make_key
from tuner.problems.fields import kernel_variant, replace_problem, to_config, to_problem
from tuner.problems.regimes import is_energy

REPORT_FIELDS = tuple(field.name for field in fields(CompilerReport))
NO_REPORT = CompilerReport()
#: Rows of `measurement` that are checked together.
ROWS_AT_A_TIME = 10_000
#: Columns of a block that its record takes under the same name; the other fields come from what the block refers to.
BLOCK_FIELDS = tuple(
    field.name for field in fields(BlockRow) if field.name != "block_id" and field.name in tables.block.c
)


@dataclass(frozen=True)
class Filter:
    """What to load; None does not filter."""

    sku: str | None = None
    kernel_hash: str | None = None
    op: str | None = None
    role: str | None = None
    regime: str | None = None
    compiler: str | None = None
    problem_key: str | None = None
    problem_ids: tuple[int, ...] | None = None

    def apply(self, query: Select, **columns) -> Select:
        """Add a WHERE for every field that is set and has a column."""
        for name, column in columns.items():
            value = getattr(self, name)
            if value is not None:
                query = query.where(column.in_(value) if isinstance(value, tuple) else column == value)
        return query

    def apply_to_blocks(self, query: Select) -> Select:
        """Add a WHERE for every field that a block or what it refers to has; `query` must read blocks."""
        block, device, problem = tables.block, tables.device, tables.problem
        query = query.join(device, device.c.id == block.c.device_id).join(problem, problem.c.id == block.c.problem_id)
        return self.apply(
            query,
            sku=device.c.sku,
            kernel_hash=block.c.kernel_hash,
            regime=block.c.regime,
            compiler=block.c.compiler,
            op=problem.c.op,
            problem_key=problem.c.key,
            problem_ids=problem.c.id,
        )


class StoredProblem(NamedTuple):
    """A row of `problem`."""

    key: str
    problem: _C.Problem


class StoredConfig(NamedTuple):
    """A row of `config`."""

    key: str
    op: str
    config: _C.Config


def load_problems(connection: Connection, path: object, wanted: Filter) -> dict[int, StoredProblem]:
    """Return the problems by id, those of other op kinds and keys left out.

    Raises: IntegrityError where a row is no problem, or its key belongs to another.
    """
    found, problem = {}, tables.problem
    query = wanted.apply(select(problem), op=problem.c.op, problem_key=problem.c.key, problem_ids=problem.c.id)
    for row in connection.execute(query).mappings():
        check_key(path, f"problem {row['id']}", row, problem_key)
        found[row["id"]] = StoredProblem(row["key"], to_problem(row))
    return found


def load_configs(connection: Connection, path: object) -> dict[int, StoredConfig]:
    """Return the configs by id. Raises: IntegrityError where a row is no config, or its key belongs to another."""
    found = {}
    for row in connection.execute(select(tables.config)).mappings():
        check_key(path, f"config {row['id']}", row, config_key)
        found[row["id"]] = StoredConfig(row["key"], row["op"], to_config(row))
    return found


def load_devices(connection: Connection, path: object) -> dict[int, dict]:
    """Return the rows of the boards by id. Raises: IntegrityError for a row that describes no possible device."""
    found = {row["id"]: dict(row) for row in connection.execute(select(tables.device)).mappings()}
    check_devices(path, found)
    return found


def to_device(row: dict) -> _C.Device | None:
    """Return the device that a row describes, None where the row lacks a limit or a clock."""
    needed = ("smem_bytes", "l2_bytes", "clock_mhz", "memory_gbps", "compute_capability")
    if any(row[name] is None for name in needed):
        return None
    major, minor = (int(number) for number in row["compute_capability"].split("."))
    return _C.Device(
        row["name"],
        row["sm_count"],
        sku=row["sku"],
        mig=row["mig"] or "",
        compute_capability=(major, minor),
        **{name: row[name] for name in needed[:4]},
    )


def check_devices(path: object, devices: dict[int, dict]) -> None:
    """Raise IntegrityError for a board whose row describes no possible device."""
    for index, row in devices.items():
        try:
            check_names("device", row)
            check_key(path, f"device {index}", row, make_key)
            to_device(row)
        except (ValueError, TypeError, DeepGemmError, errors.IntegrityError) as error:
            raise damaged(path, f"device {index}: {error}") from error


def get_smallest(problem: _C.Problem) -> _C.Problem:
    """Return the smallest problem that has the same legal configs: of the same variant, groups and policy. The k of
    attention logits stays, because a kernel is made for it.
    """
    sizes = {"m": problem.next_n, "n": 1, "expected_m": 0} | ({} if OP_KINDS[problem.op].is_logits else {"k": 1})
    return replace_problem(problem, **sizes)


class LegalPairs:
    """Whether a config may run on a board: the library's own predicate, asked once per board, variant and config."""

    def __init__(self, devices: dict[int, dict], configs: dict[int, StoredConfig]):
        self.devices = {index: to_device(row) for index, row in devices.items()}
        self.configs = configs
        self.get_variant = lru_cache(maxsize=None)(get_smallest)
        self.ask = lru_cache(maxsize=None)(self.is_variant_legal)

    def is_legal(self, block: BlockRow, config_id: int) -> bool:
        """Return whether a config is legal for a block's problem on its board; true where the board is not known."""
        return self.ask(block.device_id, self.get_variant(block.problem), config_id)

    def is_variant_legal(self, device_id: int, variant: _C.Problem, config_id: int) -> bool:
        """Return what is_legal says of all problems of a variant."""
        device = self.devices[device_id]
        return device is None or _C.is_legal(variant, self.configs[config_id].config, device)


def load_measurements(connection: Connection, path: object, wanted: Filter) -> list[MeasurementRow]:
    """Return measured rows, see Store.load_measurements."""
    rows, legal = join_measurements(connection, path, wanted)
    return [row for row, is_legal in zip(rows, legal, strict=True) if is_legal]


def join_measurements(connection: Connection, path: object, wanted: Filter) -> tuple[list[MeasurementRow], list[bool]]:
    """Return measured rows with all that they refer to, and for each whether its config is legal on its board."""
    configs, devices = load_configs(connection, path), load_devices(connection, path)
    blocks, reports = load_blocks(connection, path, wanted, devices), load_reports(connection)
    variants = {index: kernel_variant(block.problem.as_dict()) for index, block in blocks.items()}
    pairs, rows, legal = LegalPairs(devices, configs), [], []
    for block_id, config_id, own in load_own_rows(connection, path, wanted):
        block, stored = blocks[block_id], configs[config_id]
        if stored.op != block.problem.op:
            raise damaged(path, f"block {block_id}: config {config_id} is of another op kind")
        legal.append(pairs.is_legal(block, config_id))
        for name in () if is_energy(block.regime) else ("clock_mhz", "power_w"):  # there each row has its own, or none
            if own[name] is None:
                own[name] = getattr(block, name)
        report = reports.get((config_id, variants[block_id], block.kernel_hash, block.compiler), NO_REPORT)
        rows.append(
            MeasurementRow(
                block=block, config=stored.config, config_id=config_id, config_key=stored.key, report=report, **own
            )
        )
    return rows, legal


def load_blocks(connection: Connection, path: object, wanted: Filter, devices: dict[int, dict]) -> dict[int, BlockRow]:
    """Return the blocks by id, with their problems and boards."""
    problems, block = load_problems(connection, path, wanted), tables.block
    query = wanted.apply_to_blocks(select(block.c.id, *(block.c[name] for name in BLOCK_FIELDS)))
    found = {}
    for row in connection.execute(query.order_by(block.c.id)).mappings():
        stored, board = problems[row["problem_id"]], devices[row["device_id"]]
        check_block(path, row)
        found[row["id"]] = BlockRow(
            block_id=row["id"],
            problem=stored.problem,
            problem_key=stored.key,
            sku=board["sku"],
            board=board["uuid_hash"],
            **{name: row[name] for name in BLOCK_FIELDS},
        )
    return found


def load_reports(connection: Connection) -> dict[tuple, CompilerReport]:
    """Return what the compilers reported, by the key of `compilation`."""
    rows = connection.execute(select(tables.compilation)).mappings()
    key = [column.name for column in tables.compilation.primary_key.columns]
    return {tuple(row[name] for name in key): CompilerReport(*(row[name] for name in REPORT_FIELDS)) for row in rows}


def load_own_rows(connection: Connection, path: object, wanted: Filter) -> Iterator[tuple[int, int, dict]]:
    """Yield (block id, config id, other columns) of the checked rows of `measurement` in blocks that are wanted.

    Samples are lists. Rows are read part by part.
    """
    for part in load_parts(connection, path, wanted):
        for block_id, config_id, *values in part:
            own = dict(zip(MEASUREMENT_COLUMNS[2:], values, strict=True))
            del own["checksum"]
            if own["samples"] is not None:
                own["samples"] = np.frombuffer(own["samples"], "<f4").tolist()
            yield block_id, config_id, own


def load_parts(connection: Connection, path: object, wanted: Filter) -> Iterator[list[tuple]]:
    """Yield the checked rows of `measurement` in blocks that are wanted, part by part, by their key.

    Values are in the order of MEASUREMENT_COLUMNS. Raises: IntegrityError.
    """
    measurement = tables.measurement
    query = wanted.apply(select(measurement), role=measurement.c.role)
    blocks = None
    if wanted != Filter(role=wanted.role):
        blocks = wanted.apply_to_blocks(select(tables.block.c.id))
        query = query.where(measurement.c.block_id.in_(blocks))
    digests = checksums.load_block_digests(connection, blocks), checksums.load_config_digests(connection)
    result = connection.execute(query.order_by(*measurement.primary_key.columns))
    for part in result.partitions(ROWS_AT_A_TIME):
        rows = [tuple(row) for row in part]
        check_rows(path, rows)
        checksums.verify(path, rows, *digests)
        yield rows


def check_measurements(connection: Connection, path: object) -> None:
    """Raise IntegrityError unless every row of `measurement` is possible, and what was recorded."""
    for _ in load_parts(connection, path, Filter()):
        pass


def check_blocks(connection: Connection, path: object) -> None:
    """Raise IntegrityError unless every block is what its first row was recorded in: a block whose regime or kernels
    are damaged is not among those that a filter reads.
    """
    measurement = tables.measurement
    first = select(measurement.c.block_id, func.min(measurement.c.config_id).label("config_id"))
    found = first.group_by(measurement.c.block_id).subquery()
    is_first = (measurement.c.block_id == found.c.block_id) & (measurement.c.config_id == found.c.config_id)
    digests = checksums.load_block_digests(connection), checksums.load_config_digests(connection)
    for part in connection.execute(select(measurement).join(found, is_first)).partitions(ROWS_AT_A_TIME):
        rows = [tuple(row) for row in part]
        check_rows(path, rows)
        checksums.verify(path, rows, *digests)


def load_best(connection: Connection, path: object, wanted: Filter) -> list[WinnerRow]:
    """Return the winners, see Store.load_best."""
    problems, configs = load_problems(connection, path, wanted), load_configs(connection, path)
    best, problem = tables.best, tables.problem
    query = wanted.apply(
        select(best).join(problem, problem.c.id == best.c.problem_id),
        sku=best.c.sku,
        kernel_hash=best.c.kernel_hash,
        regime=best.c.regime,
        compiler=best.c.compiler,
        op=problem.c.op,
        problem_key=problem.c.key,
    )
    rows = []
    for row in connection.execute(query).mappings():
        stored, winner = problems[row["problem_id"]], configs[row["config_id"]]
        ties = read_config_ids(path, f"best of problem {row['problem_id']}", row["tie_set"], configs)
        if ties[:1] != [row["config_id"]]:
            raise damaged(path, f"best of problem {row['problem_id']}: its ties do not begin with the winner")
        own = dict(row) | {"tie_set": tuple(configs[index].config for index in ties)}
        rows.append(
            WinnerRow(
                problem=stored.problem, problem_key=stored.key, config=winner.config, config_key=winner.key, **own
            )
        )
    return rows


def list_problems(connection: Connection, wanted: Filter, statuses: Sequence[str] = ()) -> list[int]:
    """Return the ids of the problems with blocks that are wanted, or of those with rows of some statuses there."""
    block, measurement = tables.block, tables.measurement
    query = wanted.apply_to_blocks(select(block.c.problem_id).distinct())
    if statuses:
        failed = select(measurement.c.block_id).where(measurement.c.status.in_(statuses))
        query = query.where(block.c.id.in_(failed))
    return list(connection.execute(query.order_by(block.c.problem_id)).scalars())


def list_ops(connection: Connection, sku: str) -> set[str]:
    """Return the op kinds that have blocks of a sweep's own regime on a SKU."""
    query = select(tables.problem.c.op).distinct().select_from(tables.block).where(has_own_regime())
    return set(connection.execute(Filter(sku).apply_to_blocks(query)).scalars())


def newest_kernel_hash(connection: Connection, op: str, sku: str) -> str | None:
    """Return the newest kernel hash, see list_kernel_hashes."""
    return next(iter(list_kernel_hashes(connection, op, sku)), None)
