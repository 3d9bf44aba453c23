"""The store: what is written comes back, checked; what must not be stored is refused."""

import math
import random
import sqlite3

import numpy as np
import pytest
from sqlalchemy import select

from deep_gemm import _C
from tests.fakes.databases import (
    CONFIGS,
    DEVICE,
    IDENTITY,
    KERNEL_HASH,
    SKU,
    add_block,
    add_context,
    make_database,
    make_problem,
    make_row,
    make_rows,
)
from tuner import errors
from tuner.db import Store, tables
from tuner.db.rows import CompilerReport


@pytest.fixture
def store(tmp_path):
    """An empty store, open for writing."""
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened


def test_measurements_come_back_as_they_were_stored(store):
    context = add_context(store)
    block_id = add_block(store, context, make_problem(64))
    rows = store.load_measurements(**IDENTITY)
    assert len(rows) == 8
    row = next(row for row in rows if row.role == "confirm")
    assert row.block.problem == make_problem(64) and row.config in CONFIGS[:2]
    assert (row.block.block_id, row.block.status, row.block.sku, row.block.created[-1]) == (
        block_id,
        "finished",
        SKU,
        "Z",
    )
    assert row.block.problem_key == make_problem(64).key and row.config_key == row.config.key("fp8_gemm")
    assert row.samples == [7.25] * 30 and row.num_samples == 8
    assert (row.report.registers, row.report.spill_bytes, row.report.compile_ms, row.clock_mhz) == (
        168,
        0,
        250.0,
        1980.0,
    )
    failed = next(row for row in rows if row.status == "compile_error")
    assert (
        failed.median_us is None
        and failed.samples is None
        and failed.report == CompilerReport()
        and "error" in failed.error
    )


def test_a_grouped_problem_comes_back_with_its_workload(store):
    problem = _C.Problem("m_grouped_fp8_gemm_masked", 4096, 4096, 7168, num_groups=32, expected_m=20)
    block_id = add_block(store, add_context(store), problem, op=problem.op, workload={"sizes": "spread", "spread": 0.3})
    rows = store.load_measurements(op=problem.op)
    assert {row.block.block_id for row in rows} == {block_id} and {row.block.problem for row in rows} == {problem}
    assert {row.block.workload for row in rows} == {'{"sizes":"spread","spread":0.3}'} and rows[
        0
    ].report.registers == 168
    assert store.load_best(op=problem.op)[0].problem == problem and not store.load_measurements(op="fp8_gemm")
    add_block(store, add_context(store), make_problem(64))
    assert {row.block.workload for row in store.load_measurements(op="fp8_gemm")} == {""}
    assert {row.block.problem.op for row in store.load_measurements()} == {problem.op, "fp8_gemm"}


@pytest.mark.parametrize("workload", ["skewed", '{"path":"/home/x"}', '{"a":"' + "b" * 2000 + '"}', 5, None])
def test_a_workload_that_is_none_is_refused(store, workload):
    with pytest.raises(errors.IntegrityError):
        add_block(store, add_context(store), make_problem(), workload=workload)


def test_block_telemetry_fills_rows_without_their_own(store):
    context = add_context(store)
    add_block(store, context, make_problem(), clock_mhz=1755.0, power_w=600.0, throttle=2**63 - 1)
    by_status = {row.status: row for row in store.load_measurements()}
    assert (by_status["ok"].clock_mhz, by_status["compile_error"].clock_mhz) == (1980.0, 1755.0)


def test_filters_select(store):
    context = add_context(store)
    add_block(store, context, make_problem(1))
    add_block(store, context, make_problem(2), kernel_hash="cd" * 32)
    assert {row.block.problem.m for row in store.load_measurements(kernel_hash=KERNEL_HASH)} == {1}
    assert {row.role for row in store.load_measurements(role="confirm")} == {"confirm"}
    for nothing in ({"sku": "other-sm1"}, {"regime": "hot"}, {"compiler": "nvcc"}, {"op": "bf16_gemm"}):
        assert store.load_measurements(**nothing) == []
    assert len(store.load_measurements()) == len(store.load_measurements(op=None)) == 16
    assert (
        store.newest_kernel_hash("fp8_gemm", SKU) == "cd" * 32
        and store.newest_kernel_hash("fp8_gemm", "other-sm1") is None
    )


def test_only_finished_blocks_say_so(store):
    context = add_context(store)
    block_id = add_block(store, context, make_problem(5), finish=False)
    assert {row.block.status for row in store.load_measurements()} == {"open"}
    store.finish_block(block_id, confirm_rounds=40, anchor_us=191.0)
    assert {(row.block.status, row.block.anchor_us) for row in store.load_measurements()} == {("finished", 191.0)}
    failed = add_block(store, context, make_problem(6), finish=False)
    store.finish_block(failed, status="failed")
    assert {(row.block.problem.m, row.block.status) for row in store.load_measurements()} == {
        (5, "finished"),
        (6, "failed"),
    }


def test_a_row_stored_again_is_replaced(store):
    block_id = add_block(store, add_context(store), make_problem())
    config_id = store.get_or_add_config("fp8_gemm", CONFIGS[0])
    store.add_measurements(
        [{"block_id": block_id, "config_id": config_id, "role": "search", "status": "crash", "error": "signal 11"}]
    )
    (row,) = [row for row in store.load_measurements(role="search") if row.config_id == config_id]
    assert (row.status, row.median_us, row.samples, row.report.registers) == ("crash", None, None, 168)


def test_best_is_the_last_one_set(store):
    context = add_context(store)
    block_id = add_block(store, context, make_problem())
    ids = [store.get_or_add_config("fp8_gemm", config) for config in CONFIGS[:3]]
    store.set_best(
        IDENTITY
        | {
            "problem_id": store.get_or_add_problem(make_problem()),
            "config_id": ids[2],
            "tie_set": [ids[2], ids[0]],
            "block_id": block_id,
        }
    )
    (best,) = store.load_best(**IDENTITY)
    assert best.config == CONFIGS[2] and best.tie_set == (CONFIGS[2], CONFIGS[0])
    assert store.load_best(sku="other-sm1") == []


def test_ids_are_stable_and_shared(store):
    first = [
        store.get_or_add_problem(make_problem()),
        store.get_or_add_config("fp8_gemm", CONFIGS[0]),
        store.get_or_add_device(DEVICE.as_dict() | {"uuid": "GPU-1"}),
    ]
    store._ids.clear()
    second = [
        store.get_or_add_problem(make_problem()),
        store.get_or_add_config("fp8_gemm", CONFIGS[0]),
        store.get_or_add_device(DEVICE.as_dict() | {"uuid": "GPU-1"}),
    ]
    assert first == second
    assert store.get_or_add_device(DEVICE.as_dict() | {"uuid": "GPU-2"}) != first[2]


def test_uuid_is_stored_as_a_hash_only(store):
    store.get_or_add_device(DEVICE.as_dict() | {"uuid": "GPU-8d6bf6f2-1111-2222-3333-444455556666"})
    assert b"GPU-8d6bf6f2" not in store.target.read_bytes()


def test_compile_reports_are_kept_once_per_config(store):
    context = add_context(store)
    for m in range(1, 5):
        add_block(store, context, make_problem(m))
    assert load_registers(store) == [168] * 5


def load_registers(store) -> list[int]:
    """Return the registers of every stored compiler report."""
    with store.reading() as connection:
        return list(connection.execute(select(tables.compilation.c.registers)).scalars())


def test_compiled_dims_do_not_overwrite_the_config_report(store):
    context = add_context(store)
    add_block(store, context, make_problem())
    special = _C.Problem("fp8_gemm", 64, 2112, 7168, compiled_dims="n")
    block_id = store.add_block(context | {"problem_id": store.get_or_add_problem(special)})
    rows = make_rows(block_id, [store.get_or_add_config("fp8_gemm", config) for config in CONFIGS[:3]])
    store.add_measurements([row | {"registers": 255} for row in rows])
    assert set(load_registers(store)) == {168}


def test_rows_of_configs_that_became_illegal_are_left_out_and_counted(store):
    block_id = add_block(store, add_context(store), make_problem())
    illegal = store.get_or_add_config("fp8_gemm", _C.Config(128, 128, 31))
    store.add_measurements([make_row(random.Random(0), block_id, illegal, "search")])
    assert illegal not in {row.config_id for row in store.load_measurements()}
    assert store.stats()["illegal"] == 1 and store.check() == []


def test_stats_count(store):
    context = add_context(store)
    add_block(store, context, make_problem(1))
    add_block(store, context, make_problem(2))
    found = store.stats()
    assert found["tables"] == {
        "device": 1,
        "environment": 1,
        "problem": 2,
        "config": 6,
        "sweep": 1,
        "block": 2,
        "measurement": 16,
        "compilation": 5,
        "best": 2,
    }
    (entry,) = found["coverage"]
    assert entry | IDENTITY == entry and (entry["problems"], entry["blocks"], entry["boards"], entry["rows"]) == (
        2,
        2,
        1,
        16,
    )
    assert entry["statuses"] == {"ok": 14, "compile_error": 2}


BAD_ROWS = [
    {"median_us": math.nan},
    {"median_us": math.inf},
    {"median_us": -1.0},
    {"median_us": 0.0},
    {"median_us": None},
    {"median_us": "five"},
    {"ratio": 0.0},
    {"mad_us": -1e-9},
    {"num_samples": 0},
    {"status": "fine"},
    {"role": "final"},
    {"status": None},
    {"samples": []},
    {"samples": [1.0, math.nan]},
    {"samples": [1.0, -1.0]},
    {"config_id": 10**6},
    {"registers": -1},
    {"spill_bytes": 2**31},
    {"registers": 2**70},
    {"compile_ms": math.nan},
]


@pytest.mark.parametrize("bad", BAD_ROWS, ids=str)
def test_impossible_measurements_are_refused_whole(store, bad):
    block_id = add_block(store, add_context(store), make_problem())
    before = store.load_measurements()
    good = make_rows(block_id, [store.get_or_add_config("fp8_gemm", config) for config in CONFIGS[6:10]])
    with pytest.raises(errors.IntegrityError):
        store.add_measurements([*good, good[0] | bad])
    assert store.load_measurements() == before


@pytest.mark.parametrize(
    "field, value",
    [
        ("regime", "a b"),
        ("regime", "../x"),
        ("kernel_hash", "abc"),
        ("compiler", "gcc"),
        ("status", "done"),
        ("anchor_us", 0.0),
        ("problem_id", 99),
        ("regime", None),
    ],
)
def test_impossible_blocks_are_refused(store, field, value):
    fields = add_context(store) | {"problem_id": store.get_or_add_problem(make_problem())}
    with pytest.raises(errors.IntegrityError):
        store.add_block(fields | {field: value})


def test_wrong_fields_are_usage_errors(store):
    context = add_context(store)
    with pytest.raises(errors.UsageError, match="unknown field 'colour'"):
        store.add_block(context | {"colour": "red"})
    with pytest.raises(errors.UsageError, match="no such block"):
        store.add_measurements([{"block_id": 7, "config_id": 1, "role": "search", "status": "crash"}])
    with pytest.raises(errors.UsageError, match="no such row"):
        store.finish_sweep(99)
    with pytest.raises(errors.UsageError, match=r"block\.order"):
        store.add_block(context | {"problem_id": store.get_or_add_problem(make_problem()), "order": [1, 2, 3]})
    with pytest.raises(errors.UsageError, match="tie_set"):
        store.set_best(IDENTITY | {"problem_id": 1, "config_id": 1, "tie_set": [], "block_id": 1})


def test_numpy_values_are_stored_as_numbers(store):
    block_id = add_block(store, add_context(store), make_problem())
    config_id = np.int64(store.get_or_add_config("fp8_gemm", CONFIGS[9]))
    row = {
        "block_id": block_id,
        "config_id": config_id,
        "role": "search",
        "status": "ok",
        "median_us": np.float32(2.5),
        "samples": np.array([2.5, 2.75]),
    }
    store.add_measurements([row])
    (found,) = [row for row in store.load_measurements() if row.config_id == config_id]
    assert found.median_us == 2.5 and found.samples == [2.5, 2.75]


def test_logs_keep_their_end_only(store):
    block_id = add_block(store, add_context(store), make_problem())
    config_id = store.get_or_add_config("fp8_gemm", CONFIGS[9])
    store.add_measurements(
        [
            {
                "block_id": block_id,
                "config_id": config_id,
                "role": "search",
                "status": "crash",
                "error": "x" * 9000 + "\udcff the end",
            }
        ]
    )
    (found,) = [row.error for row in store.load_measurements() if row.config_id == config_id]
    assert found.endswith("the end") and len(found) <= 4096


def test_readers_cannot_write_and_see_committed_rows(tmp_path):
    path = make_database(tmp_path / "tuning.db")
    for mode in ("ro", "immutable"):
        with Store.open(path, mode) as reader:
            assert len(reader.load_measurements()) == 24
            with pytest.raises(errors.UsageError, match="mode 'rw'"):
                reader.start_sweep({})
    with Store.open(path) as writer, Store.open(path, "ro") as reader:
        add_block(writer, add_context(writer), make_problem(99))
        assert len(reader.load_measurements()) == 32


def test_stored_rows_are_checked_when_read(tmp_path):
    path = make_database(tmp_path / "tuning.db")
    changes = {
        "UPDATE problem SET m = 77 WHERE id = 1": "key does not belong",
        "UPDATE config SET num_stages = 3 WHERE id = 1": "key does not belong",
        "UPDATE problem SET op = 'other' WHERE id = 1": "problem 1",
        "UPDATE measurement SET samples = x'0000c0ff' WHERE config_id = 1": "impossible values",
        "UPDATE measurement SET samples = x'00' WHERE config_id = 1": "impossible values",
        "UPDATE block SET regime = '../x'": "block 1",
        "UPDATE best SET tie_set = '[999]'": "not a list of configs",
        "UPDATE device SET compute_capability = 'nine'": "device 1",
    }
    original = path.read_bytes()
    for statement, message in changes.items():
        path.write_bytes(original)
        with sqlite3.connect(path) as raw:
            raw.execute(statement)
        raw.close()
        with Store.open(path, "ro") as store:
            assert any(message in problem for problem in store.check()), statement
            with pytest.raises(errors.IntegrityError):
                (store.load_measurements(), store.load_best())


def test_a_measurement_that_refers_to_nothing_is_named(tmp_path):
    path = make_database(tmp_path / "tuning.db")
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE measurement SET config_id = 999 WHERE block_id = 1 AND config_id = 1")
    raw.close()
    with pytest.raises(errors.IntegrityError, match=r"measurement row \? refers to a config that does not exist"):
        Store.open(path, "ro")


def test_modes_and_targets_are_checked(tmp_path):
    for target, mode in (
        (tmp_path / "none.db", "ro"),
        (tmp_path / "none.db", "write"),
        ("http://x/y", "rw"),
        ("sqlite:///x.db", "rw"),
        (tmp_path, "rw"),
        ("", "rw"),
        ("a\0b", "ro"),
    ):
        with pytest.raises(errors.UsageError):
            Store.open(target, mode)
    assert list(tmp_path.iterdir()) == []


def test_close_twice_is_fine(tmp_path):
    store = Store.open(tmp_path / "new" / "tuning.db")
    store.close()
    store.close()
    with Store.open(tmp_path / "new" / "tuning.db") as again:  # the writer's lock was given back
        assert again.check() == []
