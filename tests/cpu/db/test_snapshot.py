"""Snapshots: they hold what training reads and nothing private, and never replace a file that holds more."""

import itertools
import random
import shutil
import socket
import sqlite3
import time
from dataclasses import replace

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tests.fakes.databases import CONFIGS, DEVICE, SKU, add_block, add_context, make_database, make_problem, make_row
from tuner import errors
from tuner.db import Store, merge, snapshot, snapshot_path, tables
from tuner.db.naturals import KEYS
from tuner.db.rows import CompilerReport, MeasurementRow
from tuner.db.transfer import load_tables
from tuner.learn import inspection
from tuner.learn.dataset import CENSORED, CONFIRMED, load_dataset
from tuner.learn.ranking import rank
from tuner.problems.regimes import is_own


def test_a_snapshot_does_not_replace_what_it_was_made_of(shards, tmp_path):
    source = tmp_path / "full.db"
    merge(source, shards)
    before = load_tables(source)
    snapshot(source, tmp_path / "published.db")
    merge(source, [tmp_path / "published.db"])
    after = load_tables(source)
    assert all(after[name] == before[name] for name in KEYS if name != "environment")


def test_snapshot_holds_nothing_private(shards, tmp_path):
    merge(tmp_path / "all.db", shards)
    with Store.open(tmp_path / "all.db") as store:
        context = add_context(store) | {
            "environment_id": store.get_or_add_environment({"compiler": "nvrtc", "flags": "-I/opt/cuda -O3"})
        }
        add_block(store, context, make_problem(500), extra={"host": socket.gethostname(), "log": "/srv/x"})
    result = snapshot(tmp_path / "all.db", tmp_path / "out" / "published.db")
    payload = (tmp_path / "out" / "published.db").read_bytes()
    assert result["bytes"] == len(payload) and result["tables"]["block"] == 8
    for word in (b"GPU-0000", b"node17", b"someone", b'["tuner"', b"kernel.cu", b"/tmp", b"/home", b"/srv", b"/opt"):
        assert word not in payload
    with sqlite3.connect(tmp_path / "out" / "published.db") as raw:
        texts = [
            text
            for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for row in raw.execute(f'SELECT * FROM "{name}"')
            for text in row
            if isinstance(text, str)
        ]
    raw.close()
    assert len(texts) > 100 and not [
        text for text in texts if ("/" in text and text != "1/4") or "\\" in text or socket.gethostname() in text
    ]
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["published.db"]


def test_snapshot_keeps_what_training_reads(shards, tmp_path):
    snapshot(shards[0], tmp_path / "published.db")
    with Store.open(tmp_path / "published.db", "immutable") as after, Store.open(shards[0], "ro") as before:
        assert after.check() == []
        best, num_far = {}, 0
        for row in before.load_measurements(role="confirm"):
            if row.ratio is not None:
                best[row.block.block_id] = min(row.ratio, best.get(row.block.block_id, row.ratio))
        for old, new in zip(by_key(before.load_measurements()), by_key(after.load_measurements()), strict=True):
            left_out = ["error", "samples", "q10_us", "q90_us", "mad_us"]
            if old.role == "search":
                left_out += ["max_abs_error", "ratio_low", "ratio_high"]
            if old.status == "censored":
                left_out.append("median_us")
            if old.ratio is not None and old.ratio > 1.05 * best.get(old.block.block_id, old.ratio):
                left_out += ["ratio_low", "ratio_high"]
                num_far += old.role == "confirm"
            block = replace(old.block, anchor_us=round(old.block.anchor_us))
            expected = replace(old, block=block, report=CompilerReport(), **dict.fromkeys(left_out))
            assert without_ids(expected) == without_ids(new)
        assert num_far
        assert [row.config_key for row in after.load_best()] == [row.config_key for row in before.load_best()]
        assert [load_flags(after)] == ["-std=c++20"]


def test_snapshot_rows_hold_what_it_says_and_nothing_else(tmp_path):
    path, key = tmp_path / "tuning.db", ["block_id", "config_id", "role", "status"]
    with Store.open(path) as store:
        block_id = add_block(store, add_context(store), make_problem())
        config_id = store.get_or_add_config("fp8_gemm", CONFIGS[9])
        censored = make_row(random.Random(0), block_id, config_id, "search") | {
            "status": "censored",
            "samples": [5.5],
            "error": "slow",
        }
        store.add_measurements([censored, censored | {"role": "confirm"}])
    snapshot(path, tmp_path / "published.db")
    found = {name: set() for name in itertools.product(("search", "confirm"), tables.STATUSES)}
    for row in load_tables(tmp_path / "published.db")["measurement"].values():
        assert row["checksum"] is not None
        found[row["role"], row["status"]].add(
            tuple(name for name, value in row.items() if value is not None and name != "checksum")
        )
    telemetry, interval = ["clock_mhz", "power_w"], ["ratio_low", "ratio_high"]
    confirmed = [*key, "num_samples", "median_us", "ratio", *interval, "max_abs_error", *telemetry]
    assert {name: columns for name, columns in found.items() if columns} == {
        ("search", "ok"): {(*key, "num_samples", "median_us", "ratio", *telemetry)},
        ("search", "censored"): {(*key, "num_samples", "ratio", *telemetry)},
        ("search", "compile_error"): {tuple(key)},
        ("confirm", "ok"): {tuple(confirmed), tuple(name for name in confirmed if name not in interval)},
        ("confirm", "censored"): {tuple(name for name in confirmed if name not in ("median_us", *interval))},
    }


def test_the_tuner_finds_in_a_snapshot_what_the_database_had(tmp_path):
    source = synthetic.make_small_database()
    snapshot(source, tmp_path / "published.db", sku=SKU)
    with Store.open(source, "ro") as before, Store.open(tmp_path / "published.db", "immutable") as after:
        found, kept = (inspection.inspect(store, SKU, "fp8_gemm") for store in (before, after))
        assert found["noise"].pop("confirmation_mad")["count"] > 100 and kept["noise"].pop("confirmation_mad") is None
        whole, near = (one["noise"].pop("ratio_interval")["count"] for one in (found, kept))
        assert kept == found and 50 < near < whole, "a snapshot has no intervals of slow configs"
        old, new = vars(load_dataset(before, SKU)), vars(load_dataset(after, SKU))
    assert (old["state"] == CENSORED).any() and (old["state"] == CONFIRMED).any()
    np.testing.assert_allclose(old.pop("heuristic_us"), new["heuristic_us"], rtol=0.002)  # some are whole now
    for name, value in old.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, new[name])
        elif name != "device":
            assert value == new[name], name


def test_a_snapshot_ranks_dropped_configs_by_their_ratio_and_before_failed_ones(tmp_path):
    make_database(tmp_path / "own.db", 1)
    problem, drops = make_problem(1), {"status": "censored", "median_us": 50.0}
    with Store.open(tmp_path / "own.db") as store:
        block_id = store.load_measurements(problem_key=problem.key)[0].block.block_id
        others = [_C.Config(64, 64, stages) for stages in (9, 10, 11, 12)]
        added = [drops | {"ratio": 3.0}, {"status": "spill"}, drops | {"ratio": 2.0}, {"status": "timeout"}]
        store.add_measurements(
            [
                {"block_id": block_id, "config_id": store.get_or_add_config(problem.op, config), "role": "search"} | row
                for config, row in zip(others, added, strict=True)
            ]
        )
    snapshot(tmp_path / "own.db", tmp_path / "published.db")
    with Store.open(tmp_path / "own.db", "ro") as own, Store.open(tmp_path / "published.db", "immutable") as published:
        ranked, kept = ([str(row.config) for row in rank(store, problem, SKU).rows] for store in (own, published))
    places = [ranked.index(str(config)) for config in others]
    assert kept == ranked and places[2] < places[0] < min(places[1], places[3])


def without_ids(row: MeasurementRow) -> MeasurementRow:
    """Return a row without the ids, which are local to one file."""
    block = replace(row.block, block_id=0, problem_id=0, device_id=0, reference_config_id=None)
    return replace(row, block=block, config_id=0)


def by_key(rows: list[MeasurementRow]) -> list[MeasurementRow]:
    """Return rows in an order that does not depend on ids."""
    return sorted(rows, key=lambda row: (row.block.problem_key, row.config_key, row.role))


def load_flags(store) -> str:
    """Return the compiler flags of the only environment."""
    with store.reading() as connection:
        return connection.execute(tables.environment.select()).mappings().one()["flags"]


def test_snapshot_of_one_sku_keeps_its_newest_two_kernel_hashes(tmp_path):
    path = tmp_path / "all.db"
    with Store.open(path) as store:
        context = add_context(store)
        for m, kernel_hash in enumerate(("ab", "89", "cd"), 1):
            add_block(store, context, make_problem(m), kernel_hash=kernel_hash * 32)
            time.sleep(0.002)  # blocks are ordered by milliseconds
        other = store.get_or_add_device(DEVICE.as_dict() | {"sku": "nvidia-h100-sm132", "uuid": "GPU-1"})
        add_block(store, context | {"device_id": other}, make_problem(3), kernel_hash="ef" * 32)
    result = snapshot(path, tmp_path / "published.db", sku=SKU)
    assert (result["tables"]["block"], result["tables"]["problem"], result["tables"]["device"]) == (2, 2, 1)
    assert result["left_out"] == []
    with Store.open(tmp_path / "published.db", "immutable") as store:
        assert {row.block.kernel_hash for row in store.load_measurements()} == {"cd" * 32, "89" * 32}
        assert store.newest_kernel_hash("fp8_gemm", SKU) == "cd" * 32


def test_a_block_of_fewer_draws_is_left_out_where_one_of_more_is_finished(tmp_path):
    once, often = '{"seed":0,"sizes":"spread"}', '{"draws":4,"seed":0,"sizes":"spread"}'
    path = tmp_path / "all.db"
    with Store.open(path) as store:
        context = add_context(store)
        for m, workload, is_finished in ((1, once, True), (1, often, True), (2, once, True), (2, often, False)):
            add_block(store, context, make_problem(m), workload=workload, finish=is_finished)
        add_block(store, context | {"regime": "graph-cold-uniform"}, make_problem(1), workload=once)
        for workload in (once, often):
            add_block(store, context | {"regime": "graph-cold-energy"}, make_problem(1), workload=workload)
        add_block(store, context, make_problem(3), workload=once)
        add_block(store, context, make_problem(3), workload=often, num_configs=4)  # the other has two more
    result = snapshot(path, tmp_path / "published.db", sku=SKU)
    assert result["tables"]["block"] == 8
    with Store.open(tmp_path / "published.db", "immutable") as store:
        own = [block for block in store.load_blocks() if is_own(block.regime) and "uniform" not in block.regime]
    assert sorted((block.problem.m, block.workload) for block in own) == [
        *((1, often), (2, often), (2, once)),
        *((3, often), (3, once)),
    ]


def test_a_block_of_fewer_draws_stays_where_older_kernels_have_no_others(tmp_path):
    """`compare` pairs blocks with as many draws: without it the two kernels of a snapshot had nothing in common."""
    once, often = '{"seed":0,"sizes":"spread"}', '{"draws":4,"seed":0,"sizes":"spread"}'
    path = tmp_path / "all.db"
    with Store.open(path) as store:
        context = add_context(store)
        for kernel_hash, workloads in (("89", (once,)), ("cd", (once, often))):
            for m, workload in itertools.product((1, 2), workloads):
                add_block(store, context, make_problem(m), workload=workload, kernel_hash=kernel_hash * 32)
        add_block(store, context, make_problem(2), workload=often, kernel_hash="89" * 32)
    snapshot(path, tmp_path / "published.db", sku=SKU)
    with Store.open(tmp_path / "published.db", "immutable") as store:
        own = sorted((block.problem.m, block.kernel_hash[:2], block.workload) for block in store.load_blocks())
    assert own == [(1, "89", once), (1, "cd", often), (1, "cd", once), (2, "89", often), (2, "cd", often)]


def test_snapshot_replaces_nothing_that_holds_more(shards, tmp_path):
    merge(tmp_path / "all.db", shards)
    published = tmp_path / "published.db"
    snapshot(tmp_path / "all.db", published)
    before = published.read_bytes()
    with pytest.raises(errors.UsageError, match="measurements, the snapshot would have"):
        snapshot(shards[0], published)
    assert published.read_bytes() == before
    snapshot(tmp_path / "all.db", published)
    with Store.open(tmp_path / "sweeps.db") as store:
        store.start_sweep(
            {
                "preset": "demo",
                "seed": 0,
                "sampler": "exhaustive",
                "effort": "full",
                "regime": "cold-graph",
                "argv": ["sweep"],
            }
        )
    with pytest.raises(errors.UsageError, match="a database of sweeps"):
        snapshot(shards[0], tmp_path / "sweeps.db")


def test_snapshot_refuses_private_text_size_and_wrong_targets(shards, tmp_path):
    shutil.copy(shards[0], tmp_path / "odd.db")
    with Store.open(tmp_path / "odd.db") as store:
        store.get_or_add_environment({"driver": "/usr/lib/libcuda.so"})
    target = tmp_path / "published.db"
    with pytest.raises(errors.IntegrityError, match="looks private"):
        snapshot(tmp_path / "odd.db", target)
    with pytest.raises(errors.IntegrityError, match="at most 1000"):
        snapshot(shards[0], target, max_bytes=1000)
    assert not target.exists()
    with pytest.raises(errors.UsageError, match="one file"):
        snapshot(shards[0], shards[0])
    target.write_text("not ours")
    with pytest.raises(errors.IntegrityError):
        snapshot(shards[0], target)
    assert target.read_text() == "not ours"
    with pytest.raises(errors.UsageError, match="PostgreSQL|SQLite"):
        snapshot("postgresql://host/x", tmp_path / "y.db")


@pytest.mark.parametrize("sku", [None, "h200"])
def test_a_snapshot_of_nothing_is_refused_and_leaves_nothing(tmp_path, sku):
    Store.open(tmp_path / "empty.db").close()
    for target in (tmp_path / "published.db", tmp_path / "new" / "published.db"):
        with pytest.raises(errors.UsageError, match="holds no measurements, so nothing was written"):
            snapshot(tmp_path / "empty.db", target, sku)
        assert not target.exists() and not (tmp_path / "new").exists()


def test_snapshot_while_a_sweep_writes(shards, tmp_path):
    path = make_database(tmp_path / "tuning.db")
    with Store.open(path) as writer:
        context = add_context(writer)
        snapshot(path, tmp_path / "published.db")
        add_block(writer, context, make_problem(77))
        result = snapshot(path, tmp_path / "published.db")
    assert result["tables"]["block"] == 4


def test_snapshot_path_is_where_the_package_keeps_it():
    path = snapshot_path(SKU)
    assert (
        path.name == f"{SKU}.db"
        and path.parent.name == "snapshots"
        and path.parent.parent.joinpath("store.py").exists()
    )


def test_the_recorded_snapshot_is_sound():
    path = snapshot_path(SKU)
    with Store.open(path, "immutable") as store:
        assert store.check() == [] and path.stat().st_size <= 8_000_000
        assert store.newest_kernel_hash("fp8_gemm", SKU)
