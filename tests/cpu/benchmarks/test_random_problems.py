"""The problems drawn at random are those of their seed, within their bounds, and no sweep measured them."""

import sqlite3
from contextlib import closing

from benchmarks import random_fp8
from benchmarks.dense_speedup import make_r1
from benchmarks.stamp import DATA, ROOT, read_json

ROWS = read_json(DATA / "random_fp8.json")["rows"]


def test_the_file_holds_what_the_seed_gives():
    assert random_fp8.draw() == ROWS and len(ROWS) == random_fp8.COUNT == 60
    assert random_fp8.FAMILY.read_keys() == ROWS
    assert all(1 <= row["m"] <= 8192 and row["n"] % 64 == 0 and row["k"] % 128 == 0 for row in ROWS)
    assert min(row["m"] for row in ROWS) < 10 and max(row["n"] for row in ROWS) > 30000


def test_no_recorded_sweep_measured_them():
    for path in sorted((ROOT / "db" / "snapshots").glob("*.db")):
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
            swept = set(connection.execute("SELECT m, n, k FROM problem WHERE op = 'fp8_gemm'"))
        assert swept and not swept & {(row["m"], row["n"], row["k"]) for row in ROWS}


def test_the_figure_is_the_mean_over_the_peer_and_its_worst_problem():
    def make_row(index: int, ours: float) -> dict:
        times = {"auto mn_major": [ours] * 9, "cublaslt": [10.0] * 9, "A mn_major": [20.0] * 9}
        choices = {"auto": {"config": "A"}, "heuristic": {"config": "A"}}
        return {"m": index, "n": 64, "k": 128, "times": times, "choices": choices}

    entry = make_r1({"rows": [make_row(1, 5.0), make_row(2, 12.5)]})
    assert (entry["value"], entry["worst"], entry["worst_problem"]) == (1.2649, 0.8, [2, 64, 128])
    assert (entry["heuristic"], entry["below"], entry["problems"], entry["is_met"]) == (0.5, 1, 2, False)
    assert make_r1({"rows": [make_row(1, 9.0)]})["is_met"]
