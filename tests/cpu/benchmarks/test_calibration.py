"""The replay of `tune --quick`: seconds of problems, and regrets of the problems that no round measured."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from benchmarks import calibration
from benchmarks.stamp import read_json
from tests.fakes import synthetic
from tuner.learn import quick
from tuner.learn.learner import Settings
from tuner.problems.regimes import name_rested, name_sentinel

FEW = Settings(trees=8, sizes=(8,))
OTHER_HASH = "cd" * 32


@pytest.fixture
def database(tmp_path, monkeypatch):
    """Return a database with rows of two kernel hashes; the later ones are of the synthetic machine, too."""
    monkeypatch.setattr(quick, "ROUND", 4)
    monkeypatch.setattr(calibration, "Calibration", partial(quick.Calibration, settings=FEW))
    monkeypatch.setattr(calibration, "Settings", lambda: FEW)
    rows = list(synthetic.make_small_rows())
    older = [replace(row, block=replace(row.block, kernel_hash=OTHER_HASH)) for row in rows]
    for part in (older, rows):
        synthetic.write_database(tmp_path / "t.db", part)
    return tmp_path / "t.db"


def test_the_problems_of_a_round_are_not_among_those_that_score_it(database, tmp_path):
    out = tmp_path / "out.json"
    assert calibration.main(["--db", str(database), "--op", "fp8_gemm", "--rounds", "1", "--out", str(out)]) == 0
    result = read_json(out)
    before, after, every = result["rows"]
    full = len(synthetic.FEW_SHAPES) * len(synthetic.FEW_M)
    assert [row["round"] for row in result["rows"]] == [0, 1, "all"]
    assert [(row["problems"], row["left"]) for row in (before, after)] == [(0, full), (4, full - 4)]
    assert before["seconds"] == 0 and every["left"] == full and every["problems"] > full
    assert before["regret"] < before["heuristic"], "the prior is of the same machine"
    assert before["heuristic"] == every["heuristic"] and every["regret"] == every["all"] == before["all"]


def test_the_replay_ends_when_the_calibration_is_done(database, tmp_path, monkeypatch):
    monkeypatch.setattr(quick.Calibration, "is_done", property(lambda self: bool(self.rounds)))
    out = tmp_path / "out.json"
    assert calibration.main(["--db", str(database), "--op", "fp8_gemm", "--rounds", "3", "--out", str(out)]) == 0
    assert [(row["round"], row["done"]) for row in read_json(out)["rows"]] == [(0, False), (1, True), ("all", True)]


@pytest.mark.full
def test_the_replay_goes_on_for_so_many_seconds(database, tmp_path, monkeypatch):
    monkeypatch.setattr(quick.Calibration, "is_done", property(lambda self: bool(self.rounds)))
    monkeypatch.setattr(calibration, "time_problems", lambda blocks, _: {block.problem: 1.0 for block in blocks})
    out, arguments = tmp_path / "out.json", ["--db", str(database), "--op", "fp8_gemm", "--rounds", "9"]
    assert calibration.main([*arguments, "--seconds", "6", "--out", str(out)]) == 0
    rows = [(row["round"], row["seconds"], row["done"]) for row in read_json(out)["rows"][:-1]]
    assert rows == [(0, 0, False), (1, 4, True), (2, 8, True)]


def test_without_other_kernels_there_is_nothing_to_replay(tmp_path):
    out = tmp_path / "out.json"
    assert calibration.main(["--db", str(synthetic.make_small_database()), "--op", "fp8_gemm", "--out", str(out)]) == 3
    assert read_json(out)["rows"] == []


def test_a_problem_takes_the_time_since_the_block_before_but_no_pause():
    def block(problem: str, created: str, board: str = "x", regime: str = "graph-cold", hash_: str = "new"):
        return SimpleNamespace(problem=problem, created=created, board=board, regime=regime, kernel_hash=hash_)

    def time_them(*blocks) -> dict:
        return calibration.time_problems(list(blocks), "new")

    times = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:02Z", "2026-01-01T00:00:05Z", "2026-01-01T01:00:00Z"]
    own = [block(problem, created) for problem, created in zip("abba", times, strict=True)]
    assert time_them(*own) == {"b": 5.0, "a": calibration.LONGEST}
    beside = [block("c", times[0], "y"), block("d", times[1], "y"), block("c", times[2], "y")]
    assert time_them(*own, *beside) == {"b": 5.0, "a": calibration.LONGEST, "d": 2.0, "c": 3.0}
    others = [block("a", times[1], regime=name_sentinel("graph-cold")), block("z", times[2], hash_="old")]
    assert time_them(own[0], *others, own[3]) == {"a": calibration.LONGEST}, "what lies between is not the problem's"
    between = [block("z", "2026-01-01T00:59:59Z", hash_="old"), block("a", times[3], regime=name_rested("graph-cold"))]
    assert time_them(own[0], *between) == {"a": 1.0}
