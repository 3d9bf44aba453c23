"""Reading rows inside a transaction that the caller holds.

Every value is checked: a database may come from anywhere.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from sqlalchemy import Connection, Select, Table, func, select
from tuner.db import schema, tables
from tuner.db.faults import damaged
from tuner.db.values import check_names

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from tuner import errors
from tuner.problems.fields import CONFIG_FIELDS, PROBLEM_FIELDS, kernel_variant, to_config, to_problem

BLOCK_FIELDS = (
    "id",
    "problem_id",
    "device_id",
    "regime",
    "kernel_hash",
    "compiler",
    "workload",
    "status",
    "created",
    "reference_config_id",
    "anchor_us",
    "noise",
    "clock_mhz",
    "power_w",
)
#: Sizes that legality never depends on, as the smallest problem has them; a grouped one has a group.
SMALLEST = {"m": 1, "n": 1, "k": 1, "expected_m": 0}
LEGALITY_FIELDS = tuple(name for name in PROBLEM_FIELDS if name not in SMALLEST)
FACTS = ("registers", "spill_bytes", "local_bytes", "smem_bytes", "compile_ms")
TIMES = ("median_us", "q10_us", "q90_us", "ratio", "ratio_low", "ratio_high")
OWN_FIELDS = tuple(column.name for column in tables.measurement.columns)


@dataclass(frozen=True)
class Filter:
    """What to load; None does not filter."""

    sku: str | None = None
    kernel_hash: str | None = None
    op: str | None = None
    role: str | None = None
    regime: str | None = None
    compiler: str | None = None

    def apply(self, query: Select, **columns) -> Select:
        """Add a WHERE for every field that is set and has a column."""
        for name, column in columns.items():
            value = getattr(self, name)
            query = query if value is None else query.where(column == value)
        return query


def load_problems(connection: Connection, path: object) -> dict[int, dict]:
    """Return {id: fields with `problem_id` and `problem_key`}.

    Raises: IntegrityError where a row is not a problem, or not its key's.
    """
    found = {}
    for row in connection.execute(select(tables.problem)).mappings():
        fields = {name: row[name] for name in PROBLEM_FIELDS}
        check_key(path, f"problem {row['id']}", row, problem_key)
        found[row["id"]] = {"problem_id": row["id"], "problem_key": row["key"]} | fields
    return found


def load_configs(connection: Connection, path: object) -> dict[int, dict]:
    """Return {id: fields with `config_id` and `config_key`} like load_problems."""
    found = {}
    for row in connection.execute(select(tables.config)).mappings():
        fields = {name: row[name] for name in CONFIG_FIELDS}
        check_key(path, f"config {row['id']}", row, config_key)
        found[row["id"]] = {"config_id": row["id"], "config_key": row["key"]} | fields
    return found


def problem_key(row: Mapping) -> str:
    """Return the key that a problem's row must have. Raises: ProblemError."""
    return to_problem(row).key


def config_key(row: Mapping) -> str:
    """Return the key that a config's row must have. Raises: ConfigError, ProblemError."""
    return to_config(row).key(row["op"])


def check_key(path: object, what: str, row: Mapping, make_key: Callable[[Mapping], str]) -> None:
    """Raise IntegrityError unless the row's fields are possible and give the stored key."""
    try:
        key = make_key(row)
    except (ValueError, TypeError) as error:
        raise damaged(path, f"{what}: {error}") from error
    if key != row["key"]:
        raise damaged(path, f"{what}: its key does not belong to its fields")


def load_devices(connection: Connection) -> dict[int, dict]:
    """Return {id: row} of the boards."""
    return {row["id"]: dict(row) for row in connection.execute(select(tables.device)).mappings()}


def to_device(row: dict) -> _C.Device | None:
    """Return the device that a row describes, None where it says too little."""
    needed = ("smem_bytes", "l2_bytes", "clock_mhz", "memory_gbps", "compute_capability")
    if any(row[name] is None for name in needed):
        return None
    capability = tuple(int(number) for number in row["compute_capability"].split("."))
    return _C.Device(
        row["name"],
        row["sm_count"],
        sku=row["sku"],
        mig=row["mig"] or "",
        compute_capability=capability,
        **{name: row[name] for name in needed[:4]},
    )


def check_devices(path: object, devices: dict[int, dict]) -> None:
    """Raise IntegrityError for a board that cannot be."""
    for index, row in devices.items():
        try:
            check_names("device", row)
            to_device(row)
        except (ValueError, TypeError, DeepGemmError, errors.IntegrityError) as error:
            raise damaged(path, f"device {index}: {error}") from error


class LegalPairs:
    """Whether a config may run on a board: the library's own predicate, asked once per pair."""

    def __init__(self, devices: dict[int, dict], configs: dict[int, dict]):
        self.devices, self.configs = devices, configs
        self.is_legal = lru_cache(maxsize=None)(self.ask)

    def ask(self, device_id: int, variant: tuple, config_id: int) -> bool:
        """Return is_legal for a config on a board; true where the board's row says too little to know.

        `variant`: a problem's values in the order of LEGALITY_FIELDS.
        """
        device = to_device(self.devices[device_id])
        problem = to_problem(dict(zip(LEGALITY_FIELDS, variant, strict=True)) | SMALLEST)
        return device is None or _C.is_legal(problem, to_config(self.configs[config_id]), device)


def load_measurements(connection: Connection, path: object, wanted: Filter) -> list[dict]:
    """Return measured rows, see Store.load_measurements."""
    rows, legal = join_measurements(connection, path, wanted)
    return [row for row, is_legal in zip(rows, legal, strict=True) if is_legal]


def join_measurements(connection: Connection, path: object, wanted: Filter) -> tuple[list[dict], list[bool]]:
    """Return measured rows with the fields of all that they refer to, and for each whether its config is legal on its
    board.
    """
    problems, configs, devices = (
        load_problems(connection, path),
        load_configs(connection, path),
        load_devices(connection),
    )
    check_devices(path, devices)
    blocks = load_blocks(connection, path, wanted, problems, devices)
    facts, ops = (
        load_facts(connection),
        dict(tuple(row) for row in connection.execute(select(tables.config.c.id, tables.config.c.op))),
    )
    variants = {index: tuple(block[name] for name in LEGALITY_FIELDS) for index, block in blocks.items()}
    pairs, rows, legal = LegalPairs(devices, configs), [], []
    for own in load_own_rows(connection, path, wanted, blocks):
        block, config = blocks[own["block_id"]], configs[own["config_id"]]
        if ops[own["config_id"]] != block["op"]:
            raise damaged(path, f"block {own['block_id']}: config {own['config_id']} is of another op kind")
        legal.append(pairs.is_legal(block["device_id"], variants[own["block_id"]], own["config_id"]))
        report = facts.get((own["config_id"], kernel_variant(block), block["kernel_hash"], block["compiler"]), NO_FACTS)
        for name in ("clock_mhz", "power_w"):
            if own[name] is None:
                own[name] = block[name]
        rows.append({**block, **config, **report, **own})
    return rows, legal


def load_blocks(connection: Connection, path: object, wanted: Filter, problems: dict, devices: dict) -> dict[int, dict]:
    """Return {id: fields of the block, its problem and its board}."""
    block, device = tables.block, tables.device
    query = select(*(block.c[name] for name in BLOCK_FIELDS)).join(device, device.c.id == block.c.device_id)
    query = wanted.apply(
        query, sku=device.c.sku, kernel_hash=block.c.kernel_hash, regime=block.c.regime, compiler=block.c.compiler
    )
    found = {}
    for row in connection.execute(query.order_by(block.c.id)).mappings():
        if wanted.op is None or problems[row["problem_id"]]["op"] == wanted.op:
            board = devices[row["device_id"]]
            fields = dict(row) | {
                "block_id": row["id"],
                "block_status": row["status"],
                "sku": board["sku"],
                "board": board["uuid_hash"],
            }
            check_block(path, fields)
            found[row["id"]] = fields | problems[row["problem_id"]]
            del found[row["id"]]["id"], found[row["id"]]["status"]
    return found


def check_block(path: object, row: dict) -> None:
    """Raise IntegrityError for a block whose names or times cannot be."""
    try:
        check_names("block", row)
    except errors.IntegrityError as error:
        raise damaged(path, f"block {row['block_id']}: {error}") from error
    if row["block_status"] not in tables.BLOCK_STATUSES or row["compiler"] not in tables.COMPILERS:
        raise damaged(path, f"block {row['block_id']}: unknown status or compiler")


NO_FACTS = dict.fromkeys(FACTS)


def load_facts(connection: Connection) -> dict[tuple, dict]:
    """Return {key of a compilation: what the compiler reported}."""
    rows = connection.execute(select(tables.compilation)).mappings()
    key = [column.name for column in tables.compilation.primary_key.columns]
    return {tuple(row[name] for name in key): {name: row[name] for name in FACTS} for row in rows}


def load_own_rows(connection: Connection, path: object, wanted: Filter, blocks: dict[int, dict]) -> list[dict]:
    """Return the checked rows of `measurement` itself that belong to `blocks`, samples as lists."""
    query = wanted.apply(select(tables.measurement), role=tables.measurement.c.role)
    result = connection.execute(query.order_by(*tables.measurement.primary_key.columns))
    raw = [tuple(row) for row in result if row[0] in blocks]
    check_rows(path, raw)
    samples = OWN_FIELDS.index("samples")
    rows = []
    for values in raw:
        row = dict(zip(OWN_FIELDS, values, strict=True))
        if values[samples] is not None:
            row["samples"] = np.frombuffer(values[samples], "<f4").tolist()
        rows.append(row)
    return rows


def check_rows(path: object, rows: list[tuple]) -> None:
    """Raise IntegrityError for measured values that cannot be; vectorised, because there are many rows."""
    columns = dict(zip(OWN_FIELDS, zip(*rows, strict=True), strict=True)) if rows else {}
    if not columns:
        return
    for name, allowed in (("role", tables.ROLES), ("status", tables.STATUSES)):
        if set(columns[name]) - set(allowed):
            raise damaged(path, f"measurement.{name}: unknown {sorted(set(columns[name]) - set(allowed))[:1]}")
    numbers = {name: np.array(columns[name], dtype=np.float64) for name in (*TIMES, "mad_us", "num_samples")}
    bad = np.zeros(len(rows), bool)
    for name, values in numbers.items():
        low_enough = values >= 0 if name == "mad_us" else values > 0
        bad |= ~(np.isnan(values) | (low_enough & (values < tables.MAX_TIME_US)))
    bad |= (np.array(columns["status"]) == "ok") & np.isnan(numbers["median_us"])
    bad |= np.array([not are_samples(blob) for blob in columns["samples"]])
    if bad.any():
        block_id, config_id, role = rows[int(bad.argmax())][:3]
        raise damaged(path, f"measurement (block {block_id}, config {config_id}, {role}): impossible values")


def are_samples(blob: bytes | None) -> bool:
    """Return whether `blob` is NULL or float32 times, all finite and positive."""
    if blob is None:
        return True
    if not blob or len(blob) % 4:
        return False
    values = np.frombuffer(blob, "<f4")
    return bool((np.isfinite(values) & (values > 0)).all())


def to_columns(rows: list[dict]) -> dict[str, np.ndarray]:
    """Return rows as one array per field."""
    return {name: to_array([row[name] for row in rows]) for name in (rows[0] if rows else {})}


def to_array(values: list) -> np.ndarray:
    """Return int64 where all are integers, float64 with NaN for None where all are numbers, else objects."""
    kinds = {type(value) for value in values}
    if kinds == {int}:
        return np.array(values, np.int64)
    if kinds <= {int, float, type(None)} and kinds != {type(None)}:
        return np.array(values, np.float64)
    array = np.empty(len(values), object)
    array[:] = values
    return array


def load_best(connection: Connection, path: object, wanted: Filter) -> list[dict]:
    """Return the winners, see Store.load_best."""
    problems, configs = load_problems(connection, path), load_configs(connection, path)
    best = tables.best
    query = wanted.apply(
        select(best), sku=best.c.sku, kernel_hash=best.c.kernel_hash, regime=best.c.regime, compiler=best.c.compiler
    )
    rows = []
    for row in connection.execute(query).mappings():
        tie_set = read_config_ids(path, f"best of problem {row['problem_id']}", row["tie_set"], configs)
        fields = (
            problems[row["problem_id"]]
            | configs[row["config_id"]]
            | dict(row)
            | {"tie_set": [configs[index] for index in tie_set]}
        )
        if wanted.op is None or fields["op"] == wanted.op:
            rows.append(fields)
    return rows


def read_config_ids(path: object, what: str, text: str, configs: dict) -> list[int]:
    """Return a JSON list of config ids. Raises: IntegrityError for anything else."""
    try:
        ids = json.loads(text)
    except ValueError as error:
        raise damaged(path, f"{what}: {error}") from error
    if not isinstance(ids, list) or not all(type(index) is int and index in configs for index in ids):
        raise damaged(path, f"{what}: not a list of configs")
    return ids


def load_compilations(
    connection: Connection, path: object, kernel_hash: str | None, compiler: str | None
) -> list[dict]:
    """Return compiler reports, see Store.load_compilations."""
    configs, table = load_configs(connection, path), tables.compilation
    query = Filter(kernel_hash=kernel_hash, compiler=compiler).apply(
        select(table), kernel_hash=table.c.kernel_hash, compiler=table.c.compiler
    )
    return [configs[row["config_id"]] | dict(row) for row in connection.execute(query).mappings()]


def measured_problems(
    connection: Connection, sku: str, kernel_hash: str, compiler: str, regime: str, op: str
) -> set[str]:
    """Return keys of problems with a finished block."""
    block, problem, device = tables.block, tables.problem, tables.device
    query = (
        select(problem.c.key)
        .join(block, block.c.problem_id == problem.c.id)
        .join(device, device.c.id == block.c.device_id)
    )
    query = query.where(block.c.status == "finished")
    wanted = Filter(sku=sku, kernel_hash=kernel_hash, compiler=compiler, regime=regime, op=op)
    query = wanted.apply(
        query,
        sku=device.c.sku,
        kernel_hash=block.c.kernel_hash,
        compiler=block.c.compiler,
        regime=block.c.regime,
        op=problem.c.op,
    )
    return set(connection.execute(query.distinct()).scalars())


def newest_kernel_hash(connection: Connection, op: str, sku: str) -> str | None:
    """Return the kernel hash of the newest block."""
    block, problem, device = tables.block, tables.problem, tables.device
    query = (
        select(block.c.kernel_hash)
        .join(problem, block.c.problem_id == problem.c.id)
        .join(device, device.c.id == block.c.device_id)
    )
    query = (
        query.where(problem.c.op == op, device.c.sku == sku)
        .order_by(block.c.created.desc(), block.c.id.desc())
        .limit(1)
    )
    return connection.execute(query).scalar()


def stats(connection: Connection, path: object) -> dict:
    """Return counts, see Store.stats."""
    rows, legal = join_measurements(connection, path, Filter())
    counts = {
        table.name: count_rows(connection, table)
        for table in tables.metadata.sorted_tables
        if table is not tables.alembic_version
    }
    return {"tables": counts, "illegal": len(legal) - sum(legal), "coverage": count_coverage(rows)}


def count_rows(connection: Connection, table: Table) -> int:
    """Return the number of rows of a table."""
    return connection.execute(select(func.count()).select_from(table)).scalar()


def count_coverage(rows: list[dict]) -> list[dict]:
    """Return per identity: problems, blocks, configs, rows and rows per status, first and last time."""
    identity = ("sku", "op", "kernel_hash", "compiler", "regime")
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in identity)].append(row)
    return [dict(zip(identity, key, strict=True)) | count_group(group) for key, group in sorted(groups.items())]


def count_group(rows: list[dict]) -> dict:
    """Return the counts of rows of one identity."""
    unique = {
        name: len({row[column] for row in rows})
        for name, column in (
            ("problems", "problem_id"),
            ("blocks", "block_id"),
            ("configs", "config_id"),
            ("boards", "board"),
        )
    }
    times = sorted(row["created"] for row in rows)
    return unique | {
        "rows": len(rows),
        "statuses": dict(sorted(Counter(row["status"] for row in rows).items())),
        "first": times[0],
        "last": times[-1],
    }


def check(connection: Connection, path: object) -> list[str]:
    """Return everything that is wrong, see Store.check."""
    if connection.dialect.name == "sqlite":
        found = schema.check_contents(connection, "integrity_check")
        if found:
            return found
    for read in (lambda: join_measurements(connection, path, Filter()), lambda: load_best(connection, path, Filter())):
        try:
            read()
        except errors.IntegrityError as error:
            return [str(error)]
    return []
