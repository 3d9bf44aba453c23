"""The views for questions in SQL: they give what the package's own readers give, and the documented questions run."""

import re
import shutil
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex

from tests.fakes.databases import CONFIGS, IDENTITY, add_block, add_context, make_problem
from tests.fakes.old_databases import make_old_database
from tuner import errors
from tuner.db import Store, snapshot_path, tables, views
from tuner.problems import regimes
from tuner.problems.regimes import name_energy

PAGE = Path(__file__).parents[3] / "docs" / "database.md"
OLD, NEW = "cd" * 32, IDENTITY["kernel_hash"]
SHAPE = (64, 2112, 7168)
#: What v_latest has: kernels, rows and problems.
QUESTION = "SELECT kernel_hash, COUNT(*), COUNT(DISTINCT problem_key) FROM v_latest GROUP BY 1"


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database with two sweeps: one problem of an old kernel, then that and another of a new one."""
    path = tmp_path_factory.mktemp("views") / "tuning.db"
    with Store.open(path) as store:
        for seed, (kernel_hash, sizes) in enumerate([(OLD, [64]), (NEW, [64, 128])]):
            context = add_context(store, seed)
            for m in sizes:
                add_block(store, context, make_problem(m), seed=seed, kernel_hash=kernel_hash, noise=0.001 * m)
    return path


@pytest.fixture(scope="module")
def with_energy(database, tmp_path_factory):
    """A copy of the database, in which the energy of a config was measured, too."""
    path = tmp_path_factory.mktemp("energy") / "tuning.db"
    shutil.copyfile(database, path)
    with Store.open(path) as store:
        context = add_context(store, 1) | {"regime": name_energy(IDENTITY["regime"])}
        block_id = add_block(store, context, make_problem(64), kernel_hash=NEW)
        measured = {"role": "confirm", "status": "ok", "median_us": 10.0, "power_w": 500.0}
        config_id = store.get_or_add_config("fp8_gemm", CONFIGS[0])
        store.add_measurements([{"block_id": block_id, "config_id": config_id, **measured}])
    return path


def ask(path: Path, query: str) -> list[tuple]:
    """Return the answer of a query of a user."""
    with sqlite3.connect(path) as raw:
        found = raw.execute(query).fetchall()
    raw.close()
    return found


def test_v_measurement_has_every_row_once(database):
    with Store.open(database, "ro") as store:
        rows = store.load_measurements()
    wanted = {
        (row.block.problem_key, row.config_key, row.role, row.block.kernel_hash, row.median_us, int(row.is_reference))
        for row in rows
    }
    found = ask(
        database, "SELECT problem_key, config_key, role, kernel_hash, median_us, is_reference FROM v_measurement"
    )
    assert len(found) == len(rows) == len(wanted) and set(found) == wanted


def test_v_latest_leaves_older_kernels_out(database):
    assert ask(database, QUESTION) == [(NEW, 16, 2)]


@pytest.mark.parametrize("name", [regimes.name_rested, regimes.name_sentinel, regimes.name_energy])
def test_v_latest_is_of_kernels_that_a_sweep_measured_to_the_end(database, tmp_path, name):
    """A sweep of newer kernels that ended after its first sentinels hid everything before it."""
    path = shutil.copy(database, tmp_path / "newer.db")
    with Store.open(path) as store:
        context = add_context(store, 2) | {"kernel_hash": "ef" * 32}
        add_block(store, context | {"regime": name(context["regime"])}, make_problem(256), seed=2)
        block_id = add_block(store, context, make_problem(512), finish=False, seed=2)
        assert ask(path, QUESTION) == [(NEW, 16, 2)]
        store.finish_block(block_id)
    sentinels = name is regimes.name_sentinel
    assert ask(path, QUESTION) == [("ef" * 32, 8 if sentinels else 16, 1 if sentinels else 2)]


def test_v_latest_has_no_sentinels(database, tmp_path):
    path = shutil.copy(database, tmp_path / "sentinels.db")
    with Store.open(path) as store:
        context = add_context(store, 1)
        add_block(store, context | {"regime": regimes.name_sentinel(context["regime"])}, make_problem(256))
    assert ask(path, QUESTION) == [(NEW, 16, 2)]
    assert ask(path, "SELECT COUNT(*) FROM v_measurement") == [(32,)], "the view of all rows has them"


def test_a_database_of_schema_7_gets_the_view_of_today(tmp_path):
    path = make_old_database(tmp_path / "old.db", 7)
    with sqlite3.connect(path) as raw:
        for name in ("v_measurement", "v_latest"):
            raw.execute(f"CREATE VIEW {name} AS SELECT 1 AS one")
        (before,) = raw.execute("SELECT COUNT(*) FROM measurement").fetchone()
    raw.close()
    Store.open(path).close()
    assert ask(path, "SELECT COUNT(*) FROM v_latest") == [(before,)] == [(1,)]
    (statement,) = ask(path, "SELECT sql FROM sqlite_master WHERE name = 'v_latest'")[0]
    assert statement == views.get_statements()["v_latest"]


def test_v_best_has_the_confirmed_times_of_winner_and_reference(database):
    with Store.open(database, "ro") as store:
        winners, rows = store.load_best(), store.load_measurements(role="confirm")
    times = {(row.block.block_id, row.config_id): row.median_us for row in rows}
    references = {row.block.block_id: row.median_us for row in rows if row.is_reference}
    wanted = {
        (best.problem_key, best.config_key, times[best.block_id, best.config_id], references[best.block_id])
        for best in winners
    }
    assert set(ask(database, "SELECT problem_key, config_key, median_us, reference_us FROM v_best")) == wanted
    assert len(wanted) == 3


def test_v_noise_has_a_row_per_sweep(database):
    found = ask(database, "SELECT kernel_hash, blocks, mean_noise, max_noise FROM v_noise ORDER BY started, session")
    assert found == [(OLD, 1, 0.064, 0.064), (NEW, 2, pytest.approx(0.096), 0.128)]


def documented_questions() -> list[str]:
    """Return the queries of the page on tuning."""
    return re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_six_questions_are_documented_as_one_short_select_each():
    questions = documented_questions()
    assert len(questions) == 6
    for question in questions:
        assert question.startswith("SELECT ") and question.count("SELECT") == 1 and len(question) <= 320, question
    assert all(any(re.search(rf"\b{name}\b", question) for question in questions) for name in views.VIEWS)


@pytest.mark.parametrize("question", documented_questions(), ids=lambda text: " ".join(text.split())[:50])
def test_documented_questions_have_answers(with_energy, question):
    found = ask(with_energy, question.replace("nvidia-h200-sm132", IDENTITY["sku"]))
    assert found and all(value is not None for value in found[0])


@pytest.mark.parametrize("name", [regimes.name_rested, regimes.name_sentinel, regimes.name_energy])
@pytest.mark.parametrize("question", documented_questions(), ids=lambda text: " ".join(text.split())[:50])
def test_no_answer_mixes_both_ways_of_timing(database, tmp_path, question, name):
    """A block of another regime, with times far below all others, adds at most lines of its own."""
    if f"WHERE regime LIKE '%{name('')}'" in question:
        return  # it asks for these blocks alone
    path = tmp_path / "both.db"
    path.write_bytes(database.read_bytes())
    with Store.open(path) as store:
        context = add_context(store, 2)
        block_id = add_block(store, context | {"regime": name(context["regime"])}, make_problem(*SHAPE), seed=2)
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE measurement SET median_us = 0.5 WHERE block_id = ?", [block_id])
        raw.execute("ATTACH ? AS before", [str(database)])  # winners belong to blocks of a sweep's own regime
        raw.execute("DELETE FROM best")
        raw.execute("INSERT INTO best SELECT * FROM before.best")
    raw.close()
    before, after = ask(database, question), ask(path, question)
    assert [row for row in after if not any(str(value).endswith(name("")) for value in row)] == before


def test_the_best_config_of_a_shape_is_found_by_the_index(database):
    plan = ask(
        database,
        "EXPLAIN QUERY PLAN SELECT median_us FROM v_measurement WHERE problem_key = 'x' AND role = 'confirm'",
    )
    text = " ".join(str(row[-1]) for row in plan)
    assert "ix_block_problem_id" in text and "SCAN" not in text, text


def test_a_writer_adds_views_that_are_missing_and_a_reader_needs_none(database, tmp_path):
    path = tmp_path / "bare.db"
    path.write_bytes(database.read_bytes())
    with sqlite3.connect(path) as raw:
        for name in reversed(views.VIEWS):
            raw.execute(f"DROP VIEW {name}")
        raw.execute("DROP INDEX ix_block_problem_id")
    raw.close()
    with Store.open(path, "ro") as store:
        assert len(store.load_measurements()) == 24 and store.check() == []
    Store.open(path).close()
    assert ask(path, "SELECT COUNT(*) FROM v_measurement") == [(24,)]
    assert ask(path, "SELECT COUNT(*) FROM sqlite_master WHERE name LIKE 'ix_%'") == [(1,)]


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_something_else_under_the_name_of_a_view_is_refused(database, tmp_path, mode):
    path = tmp_path / "hostile.db"
    path.write_bytes(database.read_bytes())
    with sqlite3.connect(path) as raw:
        raw.execute("DROP VIEW v_noise")
        raw.execute("CREATE VIEW v_noise AS SELECT randomblob(1000000000) AS session")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(errors.IntegrityError, match="v_noise"):
        Store.open(path, mode)
    assert path.read_bytes() == before


def test_the_recorded_snapshot_is_read_as_it_is():
    path = snapshot_path("nvidia-h200-sm132")
    before = path.stat().st_mtime_ns
    with Store.open(path, "immutable") as store:
        with store.reading() as connection:
            count = connection.exec_driver_sql("SELECT COUNT(*) FROM v_measurement").scalar()
        assert count == store.stats()["tables"]["measurement"] > 0
    assert path.stat().st_mtime_ns == before


def test_postgresql_gets_the_same_index():
    (index,) = tables.block.indexes
    assert str(CreateIndex(index).compile(dialect=postgresql.dialect())) == views.get_statements()[index.name]
