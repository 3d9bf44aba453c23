"""Reading and writing a database as JSON, part by part: what is in memory does not grow with the measured rows.

JSON format 1: {"application": "deep_gemm tuning database", "format": 1, "tables": {name: {"columns": [...], "rows":
[[...]]}}}. The tables are in natural form (see naturals.py), the rows sorted by natural key, bytes are hexadecimal
text. Equal databases give equal bytes. A reader takes tables in any order, and a table's columns before its rows.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO, NoReturn, TextIO

import ijson

from tuner import errors
from tuner.db import tables
from tuner.db.faults import one_line
from tuner.db.naturals import KEYS, Tables, encode, natural_key

APPLICATION = "deep_gemm tuning database"
FORMAT = 1
#: Measured rows that are read and checked together.
ROWS_AT_A_TIME = 20_000
MEASURED = "measurement"
SMALL_TABLES = tuple(name for name in KEYS if name != MEASURED)
BLOBS = {"samples"}
#: The values of columns that an export of an older schema does not have.
ADDED: dict[str, dict[str, Any]] = (
    {name: {} for name in KEYS}
    | {name: tables.get_added_defaults(name) for name in tables.FIELDS}
    | {"block": {"workload": ""}, "compilation": {"variant": ""}, MEASURED: {"checksum": None}}
)
SCALARS = ("null", "boolean", "number", "integer", "double", "string")


def write_document(file: TextIO, found: Tables, measurements: Iterable[dict]) -> None:
    """Write tables as a JSON document, the measured rows one after the other."""
    file.write(f'{{"application":{dump(APPLICATION)},"format":{FORMAT},"tables":{{')
    for place, name in enumerate(sorted(KEYS)):
        columns = [column.name for column in tables.metadata.tables[name].columns if column.name != "id"]
        rows = measurements if name == MEASURED else (found[name][key] for key in sorted(found[name]))
        file.write(f'{"," * bool(place)}{dump(name)}:{{"columns":{dump(columns)},"rows":[')
        for number, row in enumerate(rows):
            file.write("," * bool(number) + dump([encode(row[column]) for column in columns]))
        file.write("]}")
    file.write("}}\n")


def dump(value: object) -> str:
    """Return compact JSON of finite numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read_small_tables(path: object, file: BinaryIO) -> Tables:
    """Return the tables of a document without the measured rows, which are only passed over. Raises: IntegrityError."""
    found: Tables = {}
    try:
        for name, rows in walk(file):
            if name in found or name == MEASURED:
                sum(1 for _ in rows)
            else:
                found[name] = by_key(name, rows)
    except READING_ERRORS as error:
        refuse(path, error)
    return {name: found[name] for name in SMALL_TABLES}


def read_measured_rows(path: object, file: BinaryIO) -> Iterator[list[dict]]:
    """Yield the measured rows of a document, some at a time. Raises: IntegrityError."""
    try:
        for name, rows in walk(file):
            while part := list(islice(rows, ROWS_AT_A_TIME)):
                if name == MEASURED:
                    yield part
    except READING_ERRORS as error:
        refuse(path, error)


#: What a document that export never wrote leads to.
READING_ERRORS = (ValueError, KeyError, TypeError, ijson.JSONError)


def refuse(path: object, error: Exception) -> NoReturn:
    """Raise the IntegrityError of a document that is no export."""
    raise errors.IntegrityError(
        f"{path}: not an export of a tuning database ({type(error).__name__}: {one_line(error)}); write one with"
        " `python -m tuner db export`"
    ) from error


def by_key(name: str, rows: Iterable[dict]) -> dict[tuple, dict]:
    """Return rows by their natural keys. Raises: ValueError where two have one key."""
    found: dict[tuple, dict] = {}
    for row in rows:
        if found.setdefault(natural_key(name, row), row) is not row:
            raise ValueError(f"{name} has two rows of one key")
    return found


def walk(file: BinaryIO) -> Iterator[tuple[str, Iterator[dict]]]:
    """Yield every table of a document with its rows, which must be taken before the next table.

    Raises: ValueError, also where a table is missing, unknown or there twice; ijson.JSONError.
    """
    reader, head, names = Reader(file), {}, []
    for part in reader.read_keys():
        if part in head:
            raise ValueError(f"{part!r} twice")
        head[part] = None if part == "tables" else reader.read_scalar()
        for name in reader.read_keys() if part == "tables" else ():
            names.append(name)
            if name not in KEYS:
                raise ValueError(f"table {name!r}")
            yield name, read_rows(name, reader)
    if (head.get("application"), head.get("format")) != (APPLICATION, FORMAT):
        raise ValueError(f"application {head.get('application')!r}, format {head.get('format')!r}")
    if sorted(names) != sorted(KEYS):
        raise ValueError(f"{len(names)} tables, not each of {len(KEYS)} once")
    reader.end()


def read_rows(name: str, reader: "Reader") -> Iterator[dict]:
    """Yield the rows of the table that comes next, in natural form."""
    columns, seen = [], []
    for part in reader.read_keys():
        seen.append(part)
        if seen == ["columns"]:
            columns = [str(column) for column in reader.read_list()]
        elif seen == ["columns", "rows"]:
            for values in reader.read_lists():
                row = ADDED[name] | dict(zip(columns, values, strict=True))
                for column in BLOBS & row.keys():
                    row[column] = None if row[column] is None else bytes.fromhex(row[column])
                yield row
        else:
            break
    if seen != ["columns", "rows"]:
        raise ValueError(f"{name} has {seen}, not columns and then rows")


class Reader:
    """The values of a JSON document, one after the other; every method raises ValueError where another kind comes."""

    def __init__(self, file: BinaryIO):
        self.events = iter(ijson.basic_parse(file, use_float=True))

    def take(self, *wanted: str) -> tuple[str, Any]:
        """Return the next event, which is one of `wanted`, and its value."""
        event, value = next(self.events, ("end", None))
        if event not in wanted:
            raise ValueError(f"{event} in the place of {' or '.join(wanted)}")
        return event, value

    def read_scalar(self) -> Any:
        """Return a text, a number, true, false or null."""
        return self.take(*SCALARS)[1]

    def read_keys(self) -> Iterator[str]:
        """Yield the keys of an object; the caller reads the value of each."""
        self.take("start_map")
        while (found := self.take("map_key", "end_map"))[0] == "map_key":
            yield found[1]

    def read_list(self) -> list:
        """Return a list of scalars."""
        self.take("start_array")
        return self.read_rest()

    def read_lists(self) -> Iterator[list]:
        """Yield the lists of scalars that a list consists of."""
        self.take("start_array")
        while self.take("start_array", "end_array")[0] == "start_array":
            yield self.read_rest()

    def read_rest(self) -> list:
        """Return the scalars up to the end of a list."""
        values = []
        while (found := self.take("end_array", *SCALARS))[0] != "end_array":
            values.append(found[1])
        return values

    def end(self) -> None:
        """Check that nothing follows."""
        for event, _ in self.events:
            raise ValueError(f"{event} behind the end")
