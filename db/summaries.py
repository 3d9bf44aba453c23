"""What a block measured, counted: for questions about a whole database that need no single row.

The database groups the rows of each block, and sends one row a block. Blocks of the same configs and statuses share one
count. A database of 10^7 rows is counted in this way without any of them becoming an object.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection, Select, Text, cast, func, select

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.fields import OP_KINDS
from tuner import errors
from tuner.db import tables
from tuner.db.faults import damaged
from tuner.db.queries import Filter, StoredConfig, get_smallest, load_configs, load_devices, to_device
from tuner.db.rows import Identity
from tuner.db.values import check_names
from tuner.problems.fields import to_problem

ROWS_AT_A_TIME = 20_000
PROBLEM_FIELDS = tuple(chain.from_iterable(tables.FIELD_COLUMNS["problem"]))
BLOCK_FIELDS = ("id", "problem_id", "device_id", "kernel_hash", "compiler", "regime", "status", "workload", "created")
BLOCK_NUMBERS = ("anchor_us", "noise")
SPREAD_FIELDS = ("block_id", "config_id", "mad_us", "median_us", "ratio_low", "ratio_high")


@dataclass(frozen=True, slots=True)
class Counts:
    """The rows of a block: how many of each status, of which configs, and how many in all. Blocks share them."""

    statuses: Counter
    configs: frozenset[int]
    rows: int


@dataclass(frozen=True, slots=True)
class BlockSummary:
    """A block that has rows: all that are stored, and those whose config is legal on its board."""

    block_id: int
    problem_id: int
    problem_key: str
    identity: Identity
    device_id: int
    board: str | None
    status: str
    workload: str
    created: str
    anchor_us: float | None
    noise: float | None
    stored: Counts
    legal: Counts

    @property
    def regime(self) -> str:
        """Return the regime."""
        return self.identity.regime


def add_statuses(counts: Iterable[Counts]) -> Counter:
    """Return how many rows of each status all blocks have together."""
    known: dict[int, Counts] = {}
    times: Counter = Counter()
    for each in counts:
        known[id(each)] = each
        times[id(each)] += 1
    found: Counter = Counter()
    for index, number in times.items():
        found.update({name: number * rows for name, rows in known[index].statuses.items()})
    return found


class Failure(NamedTuple):
    """A row of a config that failed; ids are local to the database."""

    block_id: int
    config_id: int
    status: str


class Legality:
    """Which configs are legal, asked once for each board and variant of problems.

    Raises: IntegrityError for a row that is no problem, or a config that does not exist.
    """

    def __init__(self, path: object, devices: Mapping[int, dict], configs: Mapping[int, StoredConfig]):
        self.path, self.configs = path, configs
        self.devices = {index: to_device(row) for index, row in devices.items()}
        self.variants: dict[tuple, tuple[_C.Device | None, _C.Problem]] = {}
        self.known: dict[tuple, bool] = {}
        self.counted: dict[tuple, tuple[Counts, Counts]] = {}

    def find_variant(self, device_id: int, op: str, fields: Sequence) -> tuple:
        """Return the key of a board and a variant. `fields` are those of a problem, in the order of PROBLEM_FIELDS."""
        is_logits = op in OP_KINDS and OP_KINDS[op].is_logits
        # m and n are the first two columns; k is the third, and only attention logits compile it in.
        key = (device_id, op, fields[2] if is_logits else 0, *fields[3:])
        if key not in self.variants:
            try:
                problem = get_smallest(to_problem({"op": op} | dict(zip(PROBLEM_FIELDS, fields, strict=True))))
            except (ValueError, TypeError, DeepGemmError) as error:
                raise damaged(self.path, f"problem of {op}: {error}") from error
            self.variants[key] = self.devices[device_id], problem
        return key

    def is_legal(self, variant: tuple, config_id: int) -> bool:
        """Return whether a config is legal; true where the board is not known."""
        if (variant, config_id) not in self.known:
            device, problem = self.variants[variant]
            stored = self.configs.get(config_id)
            if stored is None or stored.op != problem.op:
                raise damaged(self.path, f"config {config_id}: does not exist, or is of another op kind")
            self.known[variant, config_id] = device is None or _C.is_legal(problem, stored.config, device)
        return self.known[variant, config_id]

    def count(self, variant: tuple, configs: str, statuses: str) -> tuple[Counts, Counts]:
        """Return the counts of all rows of a block and of the legal ones; lists are of numbers, as text with commas."""
        key = variant, configs, statuses
        if key not in self.counted:
            ids = [int(part) for part in configs.split(",")]
            names = [tables.STATUS.get_word(int(part)) for part in statuses.split(",")]
            if not set(tables.STATUSES).issuperset(names):
                raise damaged(self.path, f"measurement.status: unknown {sorted({*names} - {*tables.STATUSES})[:1]}")
            stored = Counts(Counter(names), frozenset(ids), len(ids))
            illegal = {config for config in stored.configs if not self.is_legal(variant, config)}
            legal = stored
            if illegal:
                kept = [name for config, name in zip(ids, names, strict=True) if config not in illegal]
                legal = Counts(Counter(kept), stored.configs - illegal, len(kept))
            self.counted[key] = stored, legal
        return self.counted[key]


def load_summaries(connection: Connection, path: object, wanted: Filter) -> list[BlockSummary]:
    """Return the blocks that have rows, by id. Raises: IntegrityError."""
    devices, configs = load_devices(connection, path), load_configs(connection, path)
    blocks, legality = load_raw_blocks(connection, wanted), Legality(path, devices, configs)
    identities: dict[tuple, Identity] = {}
    found = []
    for block_id, config_ids, statuses in count_rows_of_blocks(connection, wanted):
        own = blocks.get(block_id)
        if own is None or own["device_id"] not in devices:
            raise damaged(path, f"block {block_id}: it, its problem or its board does not exist")
        device = devices[own["device_id"]]
        variant = legality.find_variant(own["device_id"], own["op"], own["fields"])
        stored, legal = legality.count(variant, config_ids, statuses)
        key = (own["op"], device["sku"], own["kernel_hash"], own["compiler"], own["regime"])
        if key not in identities:
            check_identity(path, block_id, own, device)
            identities[key] = Identity(*key)
        found.append(
            BlockSummary(
                block_id,
                own["problem_id"],
                own["problem_key"],
                identities[key],
                own["device_id"],
                device["uuid_hash"],
                own["status"],
                own["workload"],
                own["created"],
                own["anchor_us"],
                own["noise"],
                stored,
                legal,
            )
        )
    return found


def check_identity(path: object, block_id: int, block: Mapping, device: Mapping) -> None:
    """Raise IntegrityError where the names of an identity are none."""
    try:
        check_names("block", block)
        check_names("device", device)
    except errors.IntegrityError as error:
        raise damaged(path, f"block {block_id}: {error}") from error
    if block["compiler"] not in tables.COMPILERS or block["op"] not in OP_KINDS:
        raise damaged(path, f"block {block_id}: unknown compiler or op kind")


def fetch_raw(connection: Connection, query: Select) -> Iterator[tuple]:
    """Yield the rows of a query as the driver gives them: to make each a row of SQLAlchemy takes as long again."""
    with connection.execute(query) as result:
        while part := result.cursor.fetchmany(ROWS_AT_A_TIME):
            yield from part


def load_raw_blocks(connection: Connection, wanted: Filter) -> dict[int, dict]:
    """Return the columns of blocks by id, with `problem_key`, `op` and the problem's fields as the tuple `fields`."""
    block, problem = tables.block, tables.problem
    columns = [block.c[name] for name in (*BLOCK_FIELDS, *BLOCK_NUMBERS)]
    names = (*BLOCK_FIELDS, *BLOCK_NUMBERS, "problem_key", "op")
    query = wanted.apply_to_blocks(
        select(*columns, problem.c.key, problem.c.op, *(problem.c[name] for name in PROBLEM_FIELDS))
    )
    found = {}
    for row in fetch_raw(connection, query):
        own = dict(zip(names, row))
        own["fields"] = row[len(names) :]
        found[own["id"]] = own
    return found


def count_rows_of_blocks(connection: Connection, wanted: Filter):
    """Yield (block id, config ids, statuses) of every block with rows, the lists as numbers in text with commas."""
    table = tables.measurement
    query = select(
        table.c.block_id,
        func.aggregate_strings(cast(table.c.config_id, Text), ","),
        func.aggregate_strings(cast(table.c.status, Text), ","),
    )
    if wanted != Filter():
        query = query.where(table.c.block_id.in_(wanted.apply_to_blocks(select(tables.block.c.id))))
    yield from fetch_raw(connection, query.group_by(table.c.block_id).order_by(table.c.block_id))


def load_spreads(connection: Connection, path: object, wanted: Filter) -> dict[str, np.ndarray]:
    """Return SPREAD_FIELDS of the confirmation rows that are right, a column each; a missing value is NaN.

    Raises: IntegrityError where a number is impossible.
    """
    table = tables.measurement
    query = (
        select(*(table.c[name] for name in SPREAD_FIELDS))
        .where(table.c.role == "confirm", table.c.status == "ok")
        .where(table.c.block_id.in_(wanted.apply_to_blocks(select(tables.block.c.id))))
    )
    rows = fetch_raw(connection, query)
    parts = [np.empty((0, len(SPREAD_FIELDS)))]
    while part := list(islice(rows, ROWS_AT_A_TIME)):
        parts.append(np.array(part, np.float64))
    values = np.concatenate(parts)
    if (values < 0).any() or (values[:, 3:] == 0).any() or np.isinf(values).any():
        raise damaged(path, "measurement: impossible values")
    return {name: values[:, column] for column, name in enumerate(SPREAD_FIELDS)}


def load_failures(connection: Connection, wanted: Filter, statuses: Sequence[str]) -> list[Failure]:
    """Return the rows of some statuses, by block and config."""
    table = tables.measurement
    query = (
        select(table.c.block_id, table.c.config_id, table.c.status)
        .where(table.c.status.in_(statuses))
        .where(table.c.block_id.in_(wanted.apply_to_blocks(select(tables.block.c.id))))
    )
    return [Failure(*row) for row in connection.execute(query.order_by(*table.primary_key.columns))]


def describe_failure(connection: Connection, path: object, failure: Failure) -> tuple[_C.Config, _C.Problem, str]:
    """Return the config, the problem and the end of the log of a row that failed. Raises: IntegrityError."""
    block, problem, table = tables.block, tables.problem, tables.measurement
    log = select(table.c.error).where(
        table.c.block_id == failure.block_id,
        table.c.config_id == failure.config_id,
        table.c.status == failure.status,
    )
    of_block = select(problem).join(block, block.c.problem_id == problem.c.id).where(block.c.id == failure.block_id)
    try:
        asked = to_problem(connection.execute(of_block).mappings().one())
    except (ValueError, TypeError, DeepGemmError) as error:
        raise damaged(path, f"block {failure.block_id}: {error}") from error
    config = load_configs(connection, path)[failure.config_id].config
    return config, asked, connection.execute(log).scalars().first() or ""
