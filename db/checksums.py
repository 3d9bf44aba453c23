"""A checksum for every measured row: a file that is damaged, and yet readable, is found before anyone learns from it.

A row's checksum is the CRC-32 of its values, of its config's key, and of what says where they were measured: the uid,
problem, board, kernels, compiler, regime, group sizes and reference of its block. Nothing of it depends on local ids:
a merge copies checksums as they are. Problems, configs and boards have keys, which are hashes of their fields.

Rows that were recorded before there were checksums have none, and are read unverified. A checksum finds damage. It is
no signature: whoever changes a row can write the checksum that belongs to it.
"""

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from sqlalchemy import Connection, Select, func, select

from tuner.db import tables
from tuner.db.checks import MEASUREMENT_COLUMNS
from tuner.db.faults import damaged

#: The columns that are numbers, in the order in which a checksum covers them, whatever theirs is in the table; NULL
#: counts as NaN, which no row can hold.
NUMBERS = (
    *("num_samples", "median_us", "mad_us", "q10_us", "q90_us", "ratio", "ratio_low", "ratio_high"),
    *("max_abs_error", "clock_mhz", "power_w"),
)
#: What a checksum covers of a block, in this order; references as keys.
BLOCK_NAMES = (
    *("uid", "problem_id", "device_id", "reference_config_id"),
    *("kernel_hash", "compiler", "regime", "workload", "created"),
)
CHECKSUM = MEASUREMENT_COLUMNS.index("checksum")
#: Of a block or config, by its id in one database or by its key.
Digests = Mapping[int, int] | Mapping[str, int]
#: Tables in natural form, see naturals.py.
Tables = dict[str, dict[tuple, dict]]


def digest(text: str | bytes) -> int:
    """Return the CRC-32 of bytes, or of text in UTF-8. In a damaged file text may be anything, which has another."""
    text = text if isinstance(text, (str, bytes)) else name_value(text)
    return zlib.crc32(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)


def digest_block(names: Iterable[str | None]) -> int:
    """Return the CRC-32 of a block's BLOCK_NAMES."""
    return digest("\0".join(name or "" if isinstance(name, str | None) else name_value(name) for name in names))


def name_value(value: object) -> str:
    """Return text that no column of text holds."""
    return f"\0{value!r}"


def load_block_digests(connection: Connection, wanted: Select | Collection[int] | None = None) -> dict[int, int]:
    """Return the CRC-32 of blocks by id; `wanted` are the ids of some, or selects them."""
    block, problem, device, config = tables.block, tables.problem, tables.device, tables.config
    keys = {"problem_id": problem.c.key, "device_id": device.c.key, "reference_config_id": config.c.key}
    query = (
        select(block.c.id, *(keys.get(name, block.c.get(name)) for name in BLOCK_NAMES))
        .join(problem, problem.c.id == block.c.problem_id)
        .join(device, device.c.id == block.c.device_id)
        .outerjoin(config, config.c.id == block.c.reference_config_id)
    )
    if wanted is not None:
        query = query.where(block.c.id.in_(wanted))
    return {row[0]: digest_block(row[1:]) for row in connection.execute(query)}


def load_config_digests(connection: Connection, wanted: Collection[int] | None = None) -> dict[int, int]:
    """Return the CRC-32 of the keys of configs by id; `wanted` are the ids of some."""
    query = select(tables.config.c.id, tables.config.c.key)
    if wanted is not None:
        query = query.where(tables.config.c.id.in_(wanted))
    return {index: digest(key) for index, key in connection.execute(query)}


def digest_natural(found: Tables) -> tuple[dict[str, int], dict[str, int]]:
    """Return the CRC-32 of blocks and configs in natural form by key."""
    blocks = {key[0]: digest_block(row[name] for name in BLOCK_NAMES) for key, row in found["block"].items()}
    return blocks, {key[0]: digest(key[0]) for key in found["config"]}


def make_checksums(rows: Sequence[Sequence], blocks: Digests, configs: Digests) -> np.ndarray:
    """Return the checksum of each row as int32; values in the order of MEASUREMENT_COLUMNS.

    Every part is a float64, which holds a CRC-32 exactly; the checksum is the CRC-32 of them all, little-endian. What
    is missing, though required, is refused elsewhere.
    """
    if not rows:
        return np.empty(0, np.int32)
    columns = dict(zip(MEASUREMENT_COLUMNS, zip(*rows, strict=True), strict=True))
    words = {word: digest(word or "") for name in ("role", "status") for word in set(columns[name])}
    parts = [
        [blocks.get(reference) for reference in columns["block_id"]],
        [configs.get(reference) for reference in columns["config_id"]],
        [words[word] for word in columns["role"]],
        [words[word] for word in columns["status"]],
        *(columns[name] for name in NUMBERS),
        *([None if value is None else digest(value) for value in columns[name]] for name in ("samples", "error")),
    ]
    # SQLite keeps no sign of a zero.
    matrix = np.stack([np.array(part, np.float64) for part in parts], axis=1).astype("<f8") + 0.0
    width, payload = matrix.shape[1] * 8, memoryview(matrix.tobytes())
    checksums = [zlib.crc32(payload[start : start + width]) for start in range(0, len(payload), width)]
    return np.array(checksums, np.uint32).view(np.int32)


def verify(path: object, rows: Sequence[Sequence], blocks: Digests, configs: Digests) -> None:
    """Raise IntegrityError where a row with a checksum is not what was recorded."""
    known = [row for row in rows if row[CHECKSUM] is not None]
    wrong = make_checksums(known, blocks, configs) != np.array([row[CHECKSUM] for row in known], np.int64)
    if wrong.any():
        block_id, config_id, role = known[int(wrong.argmax())][:3]
        raise damaged(
            path,
            f"measurement (block {block_id}, config {config_id}, {role}): not what was recorded, by its checksum; so"
            f" are {int(wrong.sum())} of the {len(rows)} rows read with it",
        )


def with_checksums(rows: list[dict], blocks: Digests, configs: Digests) -> list[dict]:
    """Return rows with all columns of `measurement`, each with the checksum that belongs to it."""
    values = [tuple(row[name] for name in MEASUREMENT_COLUMNS) for row in rows]
    checksums = make_checksums(values, blocks, configs).tolist()
    return [row | {"checksum": checksum} for row, checksum in zip(rows, checksums, strict=True)]


def add_checksums(found: Tables) -> Tables:
    """Return tables in natural form, every measured row with the checksum that belongs to it."""
    rows = found["measurement"]
    checked = with_checksums(list(rows.values()), *digest_natural(found))
    return found | {"measurement": dict(zip(rows, checked, strict=True))}


def count_unverified(connection: Connection) -> int:
    """Return the number of measured rows without a checksum."""
    table = tables.measurement
    return connection.execute(select(func.count()).where(table.c.checksum.is_(None))).scalar_one()
