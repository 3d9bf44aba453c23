"""Snapshots that are too large keep the first and the last visit of each board to a sentinel."""

import re
from collections import defaultdict

import pytest

import tuner.db.store
from tests.fakes.databases import SKU, add_block, add_context, make_problem
from tuner import cli
from tuner.db import Store, snapshot
from tuner.db.transfer import load_tables
from tuner.problems.regimes import is_sentinel, name_sentinel

BOARDS, VISITS, SENTINELS = 2, 30, (128, 256)
REGIME = name_sentinel("graph-cold")


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
