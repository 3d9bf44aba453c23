"""A real PostgreSQL server: the same schema, rows, commands and answers as a SQLite file, and many writers at once."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine

from tests.fakes.databases import CONFIGS, IDENTITY, add_block, add_context, make_problem, read_contents
from tests.fakes.old_databases import write_old_rows
from tests.fakes.sweeps import read_all, run_sweep
from tuner import cli, errors
from tuner.credentials import hide_credentials
from tuner.db import Store, export_json, import_json, merge, schema, snapshot, tables, views
from tuner.problems.regimes import name_sentinel

PROBLEMS = [make_problem(16), make_problem(64)]
#: What a schema consists of, without ids; a fresh table has its columns in another order than a migrated one.
CATALOG = {
    "columns": (
        "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        " WHERE table_schema = 'public'"
    ),
    "constraints": (
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = 'public'::regnamespace"
    ),
    "indices": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public'",
}
READING_COMMANDS = {
    "stats": ["db", "stats", "--json"],
    "check": ["db", "check", "--json"],
    "audit": ["db", "audit", "--json"],
    "show": ["db", "show", "16", "2112", "7168", "--json"],
    "inspect": ["inspect", "--json"],
    "compare": ["compare", "{db}", "{db}", "--format", "json"],
    "select": ["select", "1", "2112", "7168", "--device", "h200", "--explain", "--json"],
}


def read_catalog(url: str) -> dict[str, list]:
    """Return what the schema of a database consists of."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = {
            name: sorted(tuple(map(str, row)) for row in connection.exec_driver_sql(query))
            for name, query in CATALOG.items()
        }
    engine.dispose()
    return found


def test_a_sweep_is_recorded_and_merged(url, few_sources, tmp_path):
    """The same sweep has the same rows as in a file; nothing is lost on the way into a file and back."""
    summary = run_sweep(url, PROBLEMS, configs=CONFIGS[::4])
    run_sweep(tmp_path / "file.db", PROBLEMS, configs=CONFIGS[::4])
    assert summary["measured"] == 2 and run_sweep(url, PROBLEMS, configs=CONFIGS[::4])["already_measured"] == 2
    rows, best = read_all(url)
    wanted, wanted_best = read_all(tmp_path / "file.db")
    assert {(row.block.problem_key, row.config_key, row.role, row.median_us) for row in rows} == {
        (row.block.problem_key, row.config_key, row.role, row.median_us) for row in wanted
    }
    assert {(row.problem_key, row.tie_set) for row in best} == {(row.problem_key, row.tie_set) for row in wanted_best}
    merge(tmp_path / "copy.db", [url])
    assert read_contents(tmp_path / "copy.db") == read_contents(url)
    assert not any(merge(url, [tmp_path / "copy.db"]).values())


@pytest.mark.full
def test_the_view_of_latest_results_has_no_sentinels(url):
    with Store.open(url) as store:
        context = add_context(store)
        add_block(store, context, PROBLEMS[0])
        newer = {"regime": name_sentinel(context["regime"]), "kernel_hash": "cd" * 32}
        add_block(store, context | newer, PROBLEMS[1])
        with store.reading() as connection:
            query = "SELECT kernel_hash, problem_key FROM v_latest GROUP BY 1, 2"
            assert connection.exec_driver_sql(query).all() == [(IDENTITY["kernel_hash"], PROBLEMS[0].key)]


def test_the_driver_of_postgresql_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(errors.UsageError, match=r"install psycopg\[binary\]"):
        Store.open("postgresql://user:secret@host/tuning")


@pytest.mark.full
def test_migrations_give_the_fresh_schema(url, postgresql_server):
    Store.open(url).close()
    fresh = postgresql_server.create_database()
    engine = create_engine(fresh)
    with engine.begin() as connection:
        tables.metadata.create_all(connection)
        views.create(connection)
    engine.dispose()
    migrated = read_catalog(url)
    assert migrated == read_catalog(fresh)
    assert len(migrated["views"]) == len(views.VIEWS) and len(migrated["constraints"]) > 50


@pytest.mark.full
def test_an_older_schema_is_upgraded_with_its_rows(url):
    engine = create_engine(url)
    with engine.begin() as connection:
        write_old_rows(connection, 4)
    engine.dispose()
    with pytest.raises(errors.IntegrityError, match="db upgrade"):
        Store.open(url, "ro")
    assert cli.run(["db", "upgrade", "--db", url]) == 0
    with Store.open(url, "ro") as store, store.reading() as connection:
        assert schema.read_revision(connection) == tables.REVISION
        assert connection.exec_driver_sql("SELECT role, status FROM measurement").all() == [(1, 0)]
        assert connection.exec_driver_sql("SELECT role, status FROM v_measurement").all() == [("search", "ok")]
    with Store.open(url, "ro") as store:
        assert [(row.role, row.status) for row in store.load_measurements()] == [("search", "ok")]
        assert store.check() == []


@pytest.mark.full
def test_a_schema_is_not_changed_below_a_writer(url):
    with Store.open(url) as store:
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0004'")
        with pytest.raises(errors.StoreError, match="must be upgraded, and another process is writing"):
            Store.open(url)
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        for mode in ("rw", "ro"):
            with pytest.raises(errors.IntegrityError, match="newer deep_gemm"):
                Store.open(url, mode)


@pytest.mark.full
def test_a_reader_creates_nothing(url):
    with pytest.raises(errors.UsageError, match="holds no tuning database"):
        Store.open(url, "ro")
    with pytest.raises(errors.UsageError, match="of a SQLite file"):
        snapshot(url, "somewhere.db")


@pytest.mark.full
def test_many_writers_at_once(url):
    """All open an empty database together, add the same problems and configs, and each its own blocks."""

    def write(seed: int) -> None:
        with Store.open(url) as store:
            context = add_context(store, seed)
            for m in range(1, 5):
                add_block(store, context, make_problem(m), seed=seed)
            store.finish_sweep(context["sweep_id"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    with Store.open(url, "ro") as store:
        assert store.check() == []
        counts = store.stats()["tables"]
    assert (counts["sweep"], counts["device"], counts["block"], counts["measurement"]) == (8, 8, 32, 256)
    assert (counts["problem"], counts["config"], counts["best"], counts["environment"]) == (4, 6, 4, 1)


@pytest.mark.full
def test_merging_beside_a_writer_loses_nothing(url, shards):
    with Store.open(url) as store, ThreadPoolExecutor(len(shards)) as pool:
        context = add_context(store, 7)
        merges = [pool.submit(merge, url, [shard]) for shard in shards]
        for m in range(1, 7):
            add_block(store, context, make_problem(m), seed=7)
        for each in merges:
            each.result()
        assert not any(merge(url, shards).values())
    with Store.open(url, "ro") as store:
        assert store.check() == []
        assert store.stats()["tables"]["block"] == 6 + 7


@pytest.mark.full
def test_a_reader_sees_one_state(url):
    """A block that is written while a reader is at work does not appear in one of its queries and not in the other."""
    with Store.open(url) as store, Store.open(url, "ro") as reader:
        context = add_context(store)
        add_block(store, context, make_problem(1))
        with reader.reading() as connection:
            query = "SELECT count(*) FROM block"
            before = connection.exec_driver_sql(query).scalar()
            add_block(store, context, make_problem(2))
            assert connection.exec_driver_sql(query).scalar() == before == 1
        with pytest.raises(errors.UsageError, match="mode 'ro'"):
            reader.start_sweep({"preset": "x"})


@pytest.mark.full
def test_merge_and_json_between_both_kinds(url, shards, tmp_path, postgresql_server):
    merge(url, shards)
    merge(tmp_path / "all.db", shards)
    assert read_contents(url) == read_contents(tmp_path / "all.db")
    export_json(url, tmp_path / "all.json")
    other = postgresql_server.create_database()
    import_json(other, tmp_path / "all.json")
    assert read_contents(other) == read_contents(url)
    assert not any(import_json(url, tmp_path / "all.json").values())


@pytest.mark.full
def test_a_wrong_row_is_refused_whole(url):
    with Store.open(url) as store:
        context = add_context(store)
        block_id = add_block(store, context, make_problem(1))
        rows = [
            {"block_id": block_id, "config_id": 1, "role": "search", "status": "ok", "median_us": time}
            for time in (9.5, -1.0)
        ]
        with pytest.raises(errors.IntegrityError, match="row refused"):
            store.add_measurements(rows)
        assert 9.5 not in {row.median_us for row in store.load_measurements()}
        assert store.load_best(**{name: IDENTITY[name] for name in ("sku", "kernel_hash")})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, postgresql_server):
    """The same two simulated problems in a file and in a PostgreSQL database, with the same ids."""
    folder, url = tmp_path_factory.mktemp("recorded"), postgresql_server.create_database()
    run_sweep(folder / "swept.db", PROBLEMS)
    for target in (folder / "merged.db", url):
        merge(target, [folder / "swept.db"])
    return str(folder / "merged.db"), url


@pytest.mark.full
@pytest.mark.parametrize("name", READING_COMMANDS)
def test_reading_commands_answer_as_with_a_file(recorded, capsys, name):
    answers = []
    for target in recorded:
        words = [word.format(db=target) for word in READING_COMMANDS[name]]
        code = cli.run(words if name == "compare" else [*words, "--db", target])
        shown = capsys.readouterr()
        found = json.loads(shown.out)
        found.pop("file_bytes", None)
        named = hide_credentials(target)
        answers.append((code, json.dumps(found).replace(named, "X"), shown.err.replace(named, "X")))
    assert answers[0] == answers[1]
