"""What stored rows must satisfy before anyone may use them: a database may come from anywhere.

Exception contract: every check raises IntegrityError, which names the database and the row.
"""

import json
from collections.abc import Callable, Container, Mapping

import numpy as np

from tuner import errors
from tuner.db import tables
from tuner.db.faults import damaged
from tuner.db.values import check_names
from tuner.problems.fields import to_config, to_problem

TIMES = ("median_us", "q10_us", "q90_us", "ratio", "ratio_low", "ratio_high")
#: The columns of `measurement`, in the order of its rows.
MEASUREMENT_COLUMNS = tuple(column.name for column in tables.measurement.columns)


def problem_key(row: Mapping) -> str:
    """Return the key that a problem's row must have. Raises: ProblemError."""
    return to_problem(row).key


def config_key(row: Mapping) -> str:
    """Return the key that a config's row must have. Raises: ConfigError, ProblemError."""
    return to_config(row).key(row["op"])


def check_key(path: object, what: str, row: Mapping, make_key: Callable[[Mapping], str]) -> None:
    """Check that the row's fields are possible and give the stored key."""
    try:
        key = make_key(row)
    except (ValueError, TypeError) as error:
        raise damaged(path, f"{what}: {error}") from error
    if key != row["key"]:
        raise damaged(path, f"{what}: its key does not belong to its fields")


def check_block(path: object, row: Mapping) -> None:
    """Check the names, times and status of a row of `block`."""
    try:
        check_names("block", row)
    except errors.IntegrityError as error:
        raise damaged(path, f"block {row['id']}: {error}") from error
    if row["status"] not in tables.BLOCK_STATUSES or row["compiler"] not in tables.COMPILERS:
        raise damaged(path, f"block {row['id']}: unknown status or compiler")


def check_rows(path: object, rows: list[tuple]) -> None:
    """Check rows of `measurement` (values in the order of MEASUREMENT_COLUMNS), vectorised because there are many."""
    columns = dict(zip(MEASUREMENT_COLUMNS, zip(*rows, strict=True), strict=True)) if rows else {}
    if not columns:
        return
    for name, allowed in (("role", tables.ROLES), ("status", tables.STATUSES)):
        if set(columns[name]) - set(allowed):
            raise damaged(path, f"measurement.{name}: unknown {sorted(set(columns[name]) - set(allowed), key=str)[:1]}")
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


def read_config_ids(path: object, what: str, text: str, known: Container[int]) -> list[int]:
    """Return the config ids of a JSON list; all must be among `known`."""
    try:
        ids = read_references(text)
    except ValueError as error:
        raise damaged(path, f"{what}: {error}") from error
    known_ids = [index for index in ids if type(index) is int and index in known]
    if len(known_ids) != len(ids):
        raise damaged(path, f"{what}: not a list of configs")
    return known_ids


def read_references(text: str) -> list[int | str]:
    """Return the ids or keys of a JSON list. Raises: ValueError for anything else."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    if not isinstance(found, list) or not all(type(each) in (int, str) for each in found):
        raise ValueError("not a list of configs")
    return found
