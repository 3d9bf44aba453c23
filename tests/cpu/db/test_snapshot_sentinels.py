"""Snapshots: sentinels are counted apart, and are no results. Of those that are too large, the first and the last visit
of each board to a sentinel stay.
"""

import re
from collections import defaultdict

import pytest

import tuner.db.store
from deep_gemm import _C
from tests.fakes.databases import SKU, add_block, add_context, make_problem
from tuner import cli, errors
from tuner.db import Store, snapshot
from tuner.db.transfer import load_tables
from tuner.problems.regimes import is_sentinel, name_sentinel

BOARDS, VISITS, SENTINELS = 2, 30, (128, 256)
REGIME = name_sentinel("graph-cold")
OLD, NEW = "ab" * 32, "cd" * 32


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Return a database with a measured problem of each of two boards, which visited two sentinels in turns."""
    path = tmp_path / "all.db"
    with Store.open(path) as store:
        contexts = [add_context(store, seed) for seed in range(BOARDS)]
        for board, context in enumerate(contexts):
            add_block(store, context, make_problem(64 + board))
        for visit in range(VISITS):
            monkeypatch.setattr(tuner.db.store, "now", lambda: f"2026-11-28T01:{visit:02}:00.000Z")  # noqa: B023
            for context in contexts:
                for m in SENTINELS:
                    add_block(store, context, make_problem(m), seed=visit, regime=REGIME)
    return path


def find_visits(path) -> dict[tuple, list[str]]:
    """Return {(board, sentinel): the times of its visits}."""
    found = defaultdict(list)
    for row in load_tables(path)["block"].values():
        if is_sentinel(row["regime"]):
            found[row["device_id"], row["problem_id"]].append(row["created"])
    return {key: sorted(times) for key, times in found.items()}


def count_searches(path) -> int:
    """Return how many search rows a database has in blocks that are no visits."""
    found = load_tables(path)
    own = {key[0] for key, row in found["block"].items() if not is_sentinel(row["regime"])}
    return sum(role == "search" for block, _, role in found["measurement"] if block in own)


def test_all_visits_are_kept_where_they_fit(recorded, tmp_path):
    result = snapshot(recorded, tmp_path / "whole.db", sku=SKU)
    assert result["visits_left_out"] == 0
    assert result["tables"]["block"] == BOARDS * (1 + VISITS * len(SENTINELS))


def test_the_first_and_the_last_visit_of_a_board_to_each_sentinel_stay(recorded, tmp_path, capsys):
    whole, small = tmp_path / "whole.db", tmp_path / "small.db"
    size = snapshot(recorded, whole, sku=SKU)["bytes"]
    words = ["db", "snapshot", str(small), "--db", str(recorded), "--sku", "h200", "--max-bytes", str(size - 1)]
    assert cli.run(words) == 0
    shown = capsys.readouterr().out
    before, after = find_visits(whole), find_visits(small)
    assert len(before) == BOARDS * len(SENTINELS) and all(len(times) == VISITS for times in before.values())
    assert after == {key: [times[0], times[-1]] for key, times in before.items()}
    rows, fewer = (load_tables(path)["measurement"] for path in (whole, small))
    assert re.search(rf"visits to sentinels +{len(rows) - len(fewer)}\n", shown)
    assert all(rows[key] == row for key, row in fewer.items())
    assert count_searches(small) == count_searches(whole), "they fit"


def test_search_rows_stay_where_fewer_visits_fit_to_the_byte(recorded, tmp_path):
    limit = snapshot(recorded, tmp_path / "whole.db", sku=SKU)["bytes"] - 1
    size = snapshot(recorded, tmp_path / "fewer.db", sku=SKU, max_bytes=limit)["bytes"]
    exact = snapshot(recorded, tmp_path / "exact.db", sku=SKU, max_bytes=size)
    assert exact["visits_left_out"] and not exact["searches_left_out"]


def count_rows(path, is_counted) -> int:
    """Return how many measured rows are in blocks of counted regimes."""
    found = load_tables(path)
    blocks = {key[0] for key, row in found["block"].items() if is_counted(row["regime"])}
    return sum(block in blocks for block, _, _ in found["measurement"])


def test_sentinels_are_counted_apart(recorded, tmp_path, capsys):
    published = tmp_path / "published.db"
    assert cli.run(["db", "snapshot", str(published), "--db", str(recorded), "--sku", "h200"]) == 0
    count = count_rows(published, is_sentinel)
    assert f"; {count} measured rows are of sentinels\n" in capsys.readouterr().out
    assert snapshot(recorded, tmp_path / "again.db")["sentinels"] == count > 0


def test_kernels_with_sentinels_alone_take_the_place_of_no_others(tmp_path):
    """A sweep that was stopped before its first problem ended made results older ones, which leave for lack of room."""
    path = tmp_path / "all.db"
    with Store.open(path) as store:
        context = add_context(store)
        add_block(store, context, make_problem(64))
        newer = add_context(store, 1) | {"kernel_hash": NEW}
        for number in range(2):
            add_block(store, newer | {"regime": REGIME}, make_problem(128), seed=number, kernel_hash="ef" * 32)
        add_block(store, newer | {"regime": REGIME}, make_problem(128))
        add_block(store, newer, make_problem(64), finish=False)
        other = _C.Problem("bf16_gemm", 64, 2112, 7168)
        add_block(store, newer | {"regime": REGIME}, other, op=other.op)
    result = snapshot(path, tmp_path / "published.db", sku=SKU)
    found = load_tables(tmp_path / "published.db")
    assert {row["kernel_hash"] for row in found["block"].values()} == {OLD} and result["left_out"] == []
    assert {row["op"] for row in found["problem"].values()} == {"fp8_gemm"} and result["sentinels"] == 0


def test_a_database_of_sentinels_alone_has_nothing_to_publish(tmp_path):
    path, target = tmp_path / "all.db", tmp_path / "published.db"
    with Store.open(path) as store:
        add_block(store, add_context(store), make_problem(128), regime=REGIME)
        assert not store.has_measurements() and store.count_sentinels() == store.count_measurements() == 8
    for sku in (SKU, None):
        with pytest.raises(errors.UsageError, match="sentinels do not count"):
            snapshot(path, target, sku=sku)
    with Store.open(path) as store:
        add_block(store, add_context(store), make_problem(64), finish=False)
        assert store.has_measurements()
    with pytest.raises(errors.UsageError, match=f"--sku {SKU}: nothing was measured on it to the end"):
        snapshot(path, target, sku=SKU)
    assert not target.exists()


def test_fewer_sentinels_are_no_loss(recorded, tmp_path):
    """A snapshot with more results replaces one with more visits."""
    published, trial = tmp_path / "published.db", tmp_path / "trial.db"
    snapshot(recorded, published, sku=SKU)
    before = count_rows(published, lambda regime: True)
    with Store.open(recorded) as store:
        add_block(store, add_context(store), make_problem(4096))
    limit = snapshot(recorded, trial, sku=SKU)["bytes"] - 1
    result = snapshot(recorded, published, sku=SKU, max_bytes=limit)
    assert result["visits_left_out"] > 0 and not result["searches_left_out"]
    assert count_rows(published, lambda regime: True) < before
    assert count_rows(published, lambda regime: not is_sentinel(regime)) == 8 * (BOARDS + 1)
