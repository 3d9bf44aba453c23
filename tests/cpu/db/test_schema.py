"""The schema: migrations and metadata agree, everything is named and strict, and connections are configured as
promised.
"""

import itertools
import sqlite3
from itertools import chain

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import CheckConstraint, ForeignKeyConstraint, create_engine, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from deep_gemm.fields import CONFIG_FIELDS, PROBLEM_FIELDS
from tests.fakes.databases import make_database
from tests.fakes.old_databases import CONFIG, PROBLEM, make_old_database
from tuner import errors
from tuner.db import Store, engine, schema, tables, views
from tuner.problems.fields import PROBLEM_DEFAULTS

#: Read before fixtures change it.
WRITER_PRAGMAS = engine.WRITER_PRAGMAS
WITHOUT_ROWIDS = ("measurement", "best")


@pytest.fixture
def migrated(tmp_path):
    """A fresh database, made by the migrations."""
    path = tmp_path / "tuning.db"
    Store.open(path).close()
    return path


def test_migrations_give_the_metadata(migrated):
    with create_engine(f"sqlite:///{migrated}").connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
        found = {
            name: schema.normalize(sql)
            for name, sql in connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        }
    assert found == get_expected_objects()


def get_expected_objects() -> dict[str, str]:
    """Return the statement of everything in a database that a writer opened, in normal form."""
    derived = {name: schema.normalize(statement) for name, statement in views.get_statements().items()}
    assert len(derived) == len(views.VIEWS) + 1
    return schema.get_expected_tables() | derived


def test_there_is_one_head_and_it_is_the_recorded_one():
    script = ScriptDirectory.from_config(schema.make_alembic_config(None))
    assert script.get_heads() == [tables.REVISION]
    assert len(list(script.walk_revisions())) == tables.SCHEMA_VERSION


def test_file_is_marked_as_ours(migrated):
    header = migrated.read_bytes()[:100]
    assert int.from_bytes(header[68:72], "big") == tables.APPLICATION_ID and header[68:72] == b"DGMT"
    assert int.from_bytes(header[60:64], "big") == tables.SCHEMA_VERSION
    assert header[18:20] == b"\x01\x01"  # a rollback journal, not WAL


def test_every_constraint_is_named_and_every_table_strict(migrated):
    for table in tables.metadata.tables.values():
        assert all(constraint.name for constraint in table.constraints), table.name
        references = [constraint for constraint in table.constraints if isinstance(constraint, ForeignKeyConstraint)]
        assert {column.name for column in table.columns if column.name.endswith("_id")} == {
            constraint.column_keys[0] for constraint in references
        }
    assert list_tables(migrated) == {name: (name in WITHOUT_ROWIDS, True) for name in tables.metadata.tables}


def list_tables(path) -> dict[str, tuple[bool, bool]]:
    """Return {table: (whether it has no rowid, whether it is strict)}."""
    with sqlite3.connect(path) as raw:
        found = {
            name: (bool(has_no_rowid), bool(is_strict))
            for _, name, kind, _, has_no_rowid, is_strict in raw.execute("PRAGMA table_list")
            if kind == "table" and not name.startswith("sqlite_")
        }
    raw.close()
    return found


def test_fresh_measurements_have_no_rowid(tmp_path):
    path = make_database(tmp_path / "tuning.db")
    assert list_tables(path)["measurement"] == (True, True)
    with sqlite3.connect(path) as raw, pytest.raises(sqlite3.OperationalError, match="no such column: rowid"):
        raw.execute("SELECT rowid FROM measurement")
    raw.close()


def test_postgresql_gets_wide_types():
    for table in tables.metadata.tables.values():
        statement = str(CreateTable(table).compile(dialect=postgresql.dialect()))
        assert (
            " INTEGER" not in statement
            and " REAL" not in statement
            and "STRICT" not in statement
            and "ROWID" not in statement
        )
    statement = str(CreateTable(tables.measurement).compile(dialect=postgresql.dialect()))
    assert "median_us DOUBLE PRECISION" in statement and "block_id BIGINT" in statement and "samples BYTEA" in statement
    assert str(CreateTable(tables.block).compile(dialect=postgresql.dialect())).count("BIGSERIAL") == 1


def test_enumerations_have_checks():
    checks = {
        constraint.name
        for table in tables.metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }
    assert {
        "ck_measurement_status",
        "ck_measurement_role",
        "ck_sweep_status",
        "ck_block_status",
        "ck_block_compiler",
        "ck_problem_m",
        "ck_measurement_median_us",
    } <= checks


def test_connections_are_configured(migrated, monkeypatch):
    monkeypatch.setattr(engine, "WRITER_PRAGMAS", WRITER_PRAGMAS)
    wanted = {"busy_timeout": 60_000, "mmap_size": 0, "trusted_schema": 0, "foreign_keys": 1, "cell_size_check": 1}
    for mode, more in (
        ("rw", {"journal_mode": "delete", "synchronous": 2}),
        ("ro", {"query_only": 1}),
        ("immutable", {"query_only": 1}),
    ):
        connection = engine.connect(migrated, mode)
        for name, value in (wanted | more).items():
            found = connection.execute(f"PRAGMA {name}").fetchone()
            assert (found is None and name == "mmap_size") or found[0] == value, (mode, name)
        connection.close()


def test_writes_begin_immediately(migrated):
    statements = []
    with Store.open(migrated) as store:
        store.engine.pool.connect().driver_connection.set_trace_callback(statements.append)
        store.start_sweep({"preset": "x"})
    assert statements[0] == "BEGIN IMMEDIATE" and statements[-1] == "COMMIT" and len(statements) == 3


def test_the_schema_is_created_in_one_transaction(tmp_path, monkeypatch):
    statements = []

    def traced(path, mode):
        connection = connect(path, mode)
        connection.set_trace_callback(statements.append)
        return connection

    connect = engine.connect
    monkeypatch.setattr(engine, "connect", traced)
    Store.open(tmp_path / "tuning.db").close()
    creating = [index for index, statement in enumerate(statements) if "CREATE TABLE" in statement]
    created = {statements[index].split("CREATE TABLE")[1].split()[0].strip('"(') for index in creating}
    begun = [index for index, statement in enumerate(statements) if statement == "BEGIN IMMEDIATE"]
    ended = [index for index, statement in enumerate(statements) if statement == "COMMIT"]
    assert created == set(tables.metadata.tables)
    assert begun[0] < creating[0] and creating[-1] < ended[0]
    assert (
        begun[0]
        < next(index for index, statement in enumerate(statements) if "application_id =" in statement)
        < ended[0]
    )


def test_opening_again_changes_nothing(tmp_path):
    path = make_database(tmp_path / "tuning.db")
    before = path.read_bytes()
    Store.open(path).close()
    for mode in ("ro", "immutable"):
        with Store.open(path, mode) as store:
            store.load_measurements()
    assert path.read_bytes() == before and {file.name for file in tmp_path.iterdir()} == {"tuning.db", "tuning.db.lock"}


@pytest.mark.parametrize("version", range(1, tables.SCHEMA_VERSION))
def test_a_writer_upgrades_an_older_schema_and_keeps_its_rows(tmp_path, version):
    path = make_old_database(tmp_path / "old.db", version)
    Store.open(path).close()
    assert path.read_bytes()[60:64] == tables.SCHEMA_VERSION.to_bytes(4, "big")
    with Store.open(path, "ro") as store:
        assert store.check() == []
        (row,) = store.load_measurements()
        assert (row.block.problem_id, row.config_id, row.median_us, row.report.registers) == (3, 5, 12.5, 168)
        assert row.block.workload == "" and row.block.problem == PROBLEM and row.config == CONFIG
        assert [best.config for best in store.load_best()] == [CONFIG]
    with Store.open(path) as store:
        assert (store.get_or_add_problem(PROBLEM), store.get_or_add_config("fp8_gemm", CONFIG)) == (3, 5)
    with create_engine(f"sqlite:///{path}").connect() as connection:
        assert schema.read_tables(connection) == get_expected_objects()


@pytest.mark.parametrize("version", range(1, 3))
def test_an_upgraded_measurement_table_has_no_rowid_and_keeps_every_row(tmp_path, version):
    path = make_old_database(tmp_path / "old.db", version)
    assert list_tables(path)["measurement"] == (False, True)
    with sqlite3.connect(path, isolation_level=None) as raw:
        raw.execute(
            "INSERT INTO config (id, key, op, block_m, block_n, block_k, num_stages, cluster_m, cluster_n) VALUES (2,"
            " 'other', 'x', 64, 128, 128, 4, 1, 1)"
        )
        for role, config_id, status in itertools.product(("search", "confirm"), (5, 2), tables.STATUSES[:3]):
            raw.execute(OLD_MEASUREMENT, {"config": config_id, "role": role, "status": status})
        before = list_values(raw.execute("SELECT * FROM measurement ORDER BY block_id, config_id, role"))
    raw.close()
    with Store.open(path) as store, store.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall() == []
        query = select(tables.measurement).order_by(*tables.measurement.primary_key.columns)
        assert list_values(connection.execute(query)) == before and len(before) == 4
    assert list_tables(path) == {name: (name in WITHOUT_ROWIDS, True) for name in tables.metadata.tables}
    with sqlite3.connect(path) as raw:
        raw.execute("PRAGMA foreign_keys = ON")
        for broken in ({"config": 99, "role": 0, "status": 0}, {"config": 5, "role": 2, "status": 0}):
            with pytest.raises(sqlite3.IntegrityError):
                raw.execute(OLD_MEASUREMENT, broken)
        with pytest.raises(sqlite3.OperationalError, match="no such column: rowid"):
            raw.execute("SELECT rowid FROM measurement")
    raw.close()


#: A row whose every column has a value; of rows with one key the last stays.
OLD_MEASUREMENT = (
    "INSERT OR REPLACE INTO measurement (block_id, config_id, role, status, num_samples, median_us, mad_us, q10_us,"
    " q90_us, ratio, ratio_low, ratio_high, max_abs_error, clock_mhz, power_w, samples, error) VALUES (1, :config,"
    " :role, :status, 8, 12.5, 0.1, 12.25, 12.75, 1.1, 1.0, 1.2, 0.25, 1755.0, 612.5, x'0000803f0000a03f', '/tmp/x:"
    " error')"
)


def list_values(rows) -> list[dict]:
    """Return the values of the rows of a query by column, what is NULL left out; the order of columns may differ."""
    names = list(rows.keys()) if hasattr(rows, "keys") else [column[0] for column in rows.description]
    return [{name: value for name, value in zip(names, row, strict=True) if value is not None} for row in rows]


def test_a_reader_refuses_an_older_schema_and_names_the_remedy(tmp_path):
    path = make_old_database(tmp_path / "old.db")
    before = path.read_bytes()
    with pytest.raises(errors.IntegrityError, match="schema 1.*db upgrade"):
        Store.open(path, "ro")
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", range(1, tables.SCHEMA_VERSION))
def test_a_reader_of_a_snapshot_upgrades_a_copy(tmp_path, version):
    path = make_old_database(tmp_path / "old.db", version)
    before = path.read_bytes()
    with Store.open(path, "immutable") as store:
        (row,) = store.load_measurements()
        assert (row.block.problem, row.config, row.median_us) == (PROBLEM, CONFIG, 12.5) and store.check() == []
        with pytest.raises(errors.StoreError, match="readonly"), store.reading() as connection:
            connection.exec_driver_sql("DELETE FROM measurement")
    assert path.read_bytes() == before


def test_an_older_file_with_a_foreign_table_or_impossible_rows_is_left_alone(tmp_path):
    for number, statement in enumerate(
        ("CREATE TABLE extra (a)", "PRAGMA ignore_check_constraints = 1; UPDATE device SET sm_count = 0")
    ):
        path = make_old_database(tmp_path / f"{number}.db")
        with sqlite3.connect(path) as raw:
            raw.executescript(statement)
        raw.close()
        before = path.read_bytes()
        with pytest.raises(errors.IntegrityError):
            Store.open(path)
        assert path.read_bytes() == before


def test_columns_are_the_fields_of_the_library():
    assert set(PROBLEM_FIELDS) == set(tables.problem.columns.keys()) - {"id", "key", "op"}
    assert set(CONFIG_FIELDS) == set(tables.config.columns.keys()) - {"id", "key", "op", "extra"}
    for table, described in (("problem", PROBLEM_FIELDS), ("config", CONFIG_FIELDS)):
        listed = list(chain.from_iterable(tables.FIELD_COLUMNS[table]))
        assert set(listed) == set(described) and len(listed) == len(described)
    assert tables.get_added_defaults("problem").items() <= PROBLEM_DEFAULTS.items()
    zeros = dict.fromkeys(("swap_ab", "loop", "scale_warp", "tile_barrier", "reduce_add"), 0)
    assert tables.get_added_defaults("config") == {"split_k": 1} | zeros


@pytest.mark.parametrize(
    "names",
    [{*CONFIG_FIELDS, "lanes"}, CONFIG_FIELDS.keys() - {"swap_ab"}],
    ids=["a field without a column", "a column without a field"],
)
def test_a_field_that_the_order_of_columns_lacks_is_an_error(names):
    (different,) = names ^ CONFIG_FIELDS.keys()
    with pytest.raises(RuntimeError, match=rf"FIELD_COLUMNS\['config'\].* mend {different};"):
        tables.check_field_columns("config", names)


@pytest.mark.parametrize("column", list(tables.get_added_defaults("problem")))
def test_impossible_values_of_added_fields_are_refused(migrated, column):
    values = {
        "id": 1,
        "key": "'k'",
        "op": "'x'",
        "m": 1,
        "n": 1,
        "k": 1,
        "num_sms": 0,
        "compiled_dims": "''",
        column: "'x'" if PROBLEM_FIELDS[column].type == "word" else -1,
    }
    statement = f"INSERT INTO problem ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"
    with sqlite3.connect(migrated) as raw, pytest.raises(sqlite3.IntegrityError, match=f"ck_problem_{column}"):
        raw.execute(statement)
    raw.close()
