"""The schema: migrations and metadata agree, everything is named and strict, and connections are configured as promised."""

import sqlite3

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import CheckConstraint, ForeignKeyConstraint, create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable
from tuner.db import Store, engine, schema, tables

from tests.fakes.databases import make_database


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
    assert found == schema.get_expected_tables()


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
        assert {column for column in table.columns.keys() if column.endswith("_id")} == {
            constraint.column_keys[0] for constraint in references
        }
    with sqlite3.connect(migrated) as raw:
        strict = {
            name: flag
            for _, name, kind, _, _, flag in raw.execute("PRAGMA table_list")
            if kind == "table" and not name.startswith("sqlite_")
        }
    raw.close()
    assert set(strict) == set(tables.metadata.tables) and set(strict.values()) == {1}


def test_postgresql_gets_wide_types():
    for table in tables.metadata.tables.values():
        statement = str(CreateTable(table).compile(dialect=postgresql.dialect()))
        assert " INTEGER" not in statement and " REAL" not in statement and "STRICT" not in statement
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


def test_connections_are_configured(migrated):
    wanted = {"busy_timeout": 60_000, "mmap_size": 0, "trusted_schema": 0, "foreign_keys": 1, "cell_size_check": 1}
    for mode, more in (("rw", {"journal_mode": "delete", "synchronous": 2}), ("ro", {"query_only": 1}), ("immutable", {"query_only": 1})):
        connection = engine.connect(migrated, mode)
        for name, value in (wanted | more).items():
            found = connection.execute(f"PRAGMA {name}").fetchone()
            assert found is None and name == "mmap_size" or found[0] == value, (mode, name)
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
    begun = [index for index, statement in enumerate(statements) if statement == "BEGIN IMMEDIATE"]
    ended = [index for index, statement in enumerate(statements) if statement == "COMMIT"]
    assert len(creating) == len(tables.metadata.tables)
    assert begun[0] < creating[0] and creating[-1] < ended[0]
    assert begun[0] < next(index for index, statement in enumerate(statements) if "application_id =" in statement) < ended[0]


def test_opening_again_changes_nothing(tmp_path):
    path = make_database(tmp_path / "tuning.db")
    before = path.read_bytes()
    Store.open(path).close()
    for mode in ("ro", "immutable"):
        with Store.open(path, mode) as store:
            store.load_measurements()
    assert path.read_bytes() == before and {file.name for file in tmp_path.iterdir()} == {"tuning.db", "tuning.db.lock"}
