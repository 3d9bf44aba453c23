"""Snapshots that are too large keep one visit of each board to a sentinel."""

import re

import pytest

import tuner.db.store
from tests.fakes.databases import SKU, add_block, add_context, make_problem
from tuner import cli
from tuner.db import Store, snapshot
from tuner.db.transfer import load_tables
from tuner.problems.regimes import name_sentinel

VISITS = 40
REGIME = name_sentinel("graph-cold")


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Return a database with one measured problem, and many visits to each of two sentinels."""
    path = tmp_path / "all.db"
    with Store.open(path) as store:
        context = add_context(store)
        add_block(store, context, make_problem(64))
        for visit in range(VISITS):
            for m in (128, 256):
                monkeypatch.setattr(tuner.db.store, "now", lambda: f"2026-11-28T01:{visit:02}:00.000Z")  # noqa: B023
                add_block(store, context, make_problem(m), seed=visit, regime=REGIME)
    return path


def test_all_visits_are_kept_where_they_fit(recorded, tmp_path):
    result = snapshot(recorded, tmp_path / "whole.db", sku=SKU)
    assert result["visits_left_out"] == 0 and result["tables"]["block"] == 1 + 2 * VISITS


def test_the_last_visit_of_a_board_to_each_sentinel_stays(recorded, tmp_path, capsys):
    whole, small = tmp_path / "whole.db", tmp_path / "small.db"
    size = snapshot(recorded, whole, sku=SKU)["bytes"]
    words = ["db", "snapshot", str(small), "--db", str(recorded), "--sku", "h200", "--max-bytes", str(size - 1)]
    assert cli.run(words) == 0
    assert re.search(rf"visits to sentinels +{2 * VISITS - 2}\n", capsys.readouterr().out)
    before, after = load_tables(whole), load_tables(small)
    newest: dict[str, str] = {}
    for row in before["block"].values():
        newest[row["problem_id"]] = max(row["created"], newest.get(row["problem_id"], ""))
    assert {row["problem_id"]: row["created"] for row in after["block"].values()} == newest
    assert all(before["measurement"][key] == row for key, row in after["measurement"].items())
    assert sum(row["regime"] != REGIME for row in after["block"].values()) == 1
    searches = sum(key[2] == "search" for key in after["measurement"])
    assert searches == sum(key[2] == "search" and key[:1] in after["block"] for key in before["measurement"])
