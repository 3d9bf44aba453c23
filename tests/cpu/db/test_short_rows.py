"""Rows of a snapshot end with their last value, and are read as any other."""

import random
import shutil
import sqlite3

from tests.fakes.databases import CONFIGS, add_block, add_context, make_problem, make_row
from tests.fakes.large_database import write_large_database
from tuner.db import Store, export_json, short_rows

#: Values of the columns that may be left out, in their order.
VALUES = {
    **dict.fromkeys(("ratio_low", "ratio_high", "max_abs_error", "clock_mhz", "power_w"), 1.5),
    **{"mad_us": 0.25, "q10_us": 12.0, "q90_us": 13.0, "samples": [12.5], "error": "slow"},
}


def make_rows(path) -> None:
    """Write rows that end with each column that may be left out, alone and with all before it."""
    names = list(VALUES)
    with Store.open(path) as store:
        context = add_context(store)
        configs = [store.get_or_add_config("fp8_gemm", config) for config in CONFIGS[:2]]
        for number in range(len(names) + 1):
            block_id = add_block(store, context, make_problem(number + 1))
            for config_id, kept in zip(configs, (names[:number][-1:], names[:number]), strict=True):
                row = make_row(random.Random(number), block_id, config_id, "confirm")
                own = dict.fromkeys(names) | {name: VALUES[name] for name in kept}
                store.add_measurements([row | {"status": "ok"} | own])


def test_the_columns_that_may_be_left_out_stand_last():
    assert tuple(VALUES) == short_rows.NAMES[short_rows.NUM_BASE :]


def test_every_row_stays_what_it_was(tmp_path):
    path, copy = tmp_path / "tuning.db", tmp_path / "short.db"
    make_rows(path)
    shutil.copy(path, copy)
    short_rows.compact(copy)
    for name in (path, copy):
        export_json(name, name.with_suffix(".json"))
    assert path.with_suffix(".json").read_bytes() == copy.with_suffix(".json").read_bytes()
    with Store.open(copy, "immutable") as store:
        assert store.check() == []


def test_a_short_file_takes_new_rows_and_becomes_short_again(tmp_path):
    path = tmp_path / "tuning.db"
    write_large_database(path, 3000)
    short_rows.compact(path)
    with Store.open(path) as store:
        block_id = add_block(store, add_context(store), make_problem(10**6))
        row = make_row(random.Random(1), block_id, store.get_or_add_config("fp8_gemm", CONFIGS[0]), "confirm")
        store.add_measurements([row | {"status": "ok", "error": "the last column"}])
        assert store.check() == []
        with store.reading() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM v_measurement").scalar_one() > 3000
    short_rows.compact(path)
    size = path.stat().st_size
    short_rows.compact(path)
    assert path.stat().st_size == size
    with Store.open(path, "immutable") as store:
        assert store.check() == []


def test_short_rows_take_less(tmp_path):
    path, plain = tmp_path / "tuning.db", tmp_path / "plain.db"
    write_large_database(path, 20_000)
    with sqlite3.connect(path, isolation_level=None) as raw:
        raw.execute("UPDATE measurement SET ratio_low = NULL, ratio_high = NULL, mad_us = NULL")
        raw.execute("VACUUM")
    raw.close()
    shutil.copy(path, plain)
    short_rows.compact(path)
    assert path.stat().st_size < 0.88 * plain.stat().st_size
