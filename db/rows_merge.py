"""Merging measured rows, which are nearly all of a database, some blocks at a time.

Rows are compared under the ids of the target, so that nothing but the ids of blocks and configs must be translated.
What is in memory does not grow with the databases' rows.
"""

from collections.abc import Iterator

from sqlalchemy import Connection, select

from tuner.db import checksums, tables
from tuner.db.checks import MEASUREMENT_COLUMNS, check_rows
from tuner.db.faults import damaged
from tuner.db.naturals import load_names, rank
from tuner.db.writing import upsert

BLOCKS_AT_A_TIME = 400
Row = tuple
Rows = dict[tuple, Row]


def merge_measurements(target: Connection, source: Connection, path: object) -> int:
    """Add the measured rows of `source` to `target`, which has its blocks and configs; return how many are new.

    Of two versions of a row the one that naturals.rank puts last stays. What a sweep has stored since the other tables
    were read is left out: its block or config is not in the target yet, and the next merge adds it.
    Raises: IntegrityError for an impossible row of `source`, whose name is `path`.
    """
    translate, late = {}, {}
    for name in ("block", "config"):
        translate[name], late[name] = make_translation(target, source, name)
    gained, digests = 0, (checksums.load_block_digests(source), checksums.load_config_digests(source))
    for blocks in list_blocks(source):
        rows = [
            row for row in read_rows(source, blocks) if row[0] not in late["block"] and row[1] not in late["config"]
        ]
        theirs = translate_rows(path, rows, translate)
        checksums.verify(path, rows, *digests)
        known = [translate["block"][block] for block in blocks if block in translate["block"]]
        ours = {row[:3]: row for row in read_rows(target, known)}
        upsert(target, tables.measurement, [to_row(row) for row in choose_rows(ours, theirs)])
        gained += len(theirs.keys() - ours.keys())
    return gained


def make_translation(target: Connection, source: Connection, table: str) -> tuple[dict[int, int], set[int]]:
    """Return {id in `source`: id in `target`} of the rows that both have, and the ids of the other rows of `source`."""
    ids = {key: index for index, key in load_names(target, (table,))[table].items()}
    names = load_names(source, (table,))[table]
    translation = {index: ids[key] for index, key in names.items() if key in ids}
    return translation, names.keys() - translation.keys()


def list_blocks(connection: Connection) -> Iterator[list[int]]:
    """Yield the ids of the blocks that have rows, some at a time."""
    query = select(tables.measurement.c.block_id).distinct().order_by(tables.measurement.c.block_id)
    ids = list(connection.execute(query).scalars())
    for start in range(0, len(ids), BLOCKS_AT_A_TIME):
        yield ids[start : start + BLOCKS_AT_A_TIME]


def read_rows(connection: Connection, blocks: list[int]) -> list[Row]:
    """Return the measured rows of some blocks, as values in the order of MEASUREMENT_COLUMNS."""
    table = tables.measurement
    query = select(table).where(table.c.block_id.in_(blocks)).order_by(*table.primary_key.columns)
    return [tuple(row) for row in connection.execute(query)]


def translate_rows(path: object, rows: list[Row], translate: dict[str, dict[int, int]]) -> Rows:
    """Return checked rows with the target's ids, by their keys. Raises: IntegrityError."""
    check_rows(path, rows)
    found = {}
    for block_id, config_id, role, *values in rows:
        try:
            key = translate["block"][block_id], translate["config"][config_id], role
        except KeyError as error:
            raise damaged(path, f"measurement: refers to a block or config {error} that does not exist") from error
        found[key] = (*key, *values)
    return found


def choose_rows(ours: Rows, theirs: Rows) -> list[Row]:
    """Return the rows of `theirs` that are new, or stay in the place of ours."""
    return [
        row
        for key, row in theirs.items()
        if key not in ours or (ours[key] != row and rank(to_row(row)) > rank(to_row(ours[key])))
    ]


def to_row(row: Row) -> dict:
    """Return a row as a dict."""
    return dict(zip(MEASUREMENT_COLUMNS, row, strict=True))
