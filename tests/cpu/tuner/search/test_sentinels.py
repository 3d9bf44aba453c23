"""Sentinels: measured first, in between and last, recorded in a regime of their own, and never ranked."""

import pytest

from deep_gemm import _C
from tests.fakes.databases import CONFIGS
from tests.fakes.in_process_worker import InProcessWorker
from tests.fakes.sweeps import read_all, run_sweep
from tuner.db import Store
from tuner.learn.dataset import load_dataset
from tuner.problems import regimes, sentinels, shapes
from tuner.problems.fields import OPS
from tuner.search.sentinels import VISITS

H200 = _C.Device.known("h200")
#: Few configs, so that the problems take little time.
FEW = {"configs": CONFIGS[:8]}
PROBLEMS = shapes.load_preset("demo")[:4]


def split(rows: list) -> tuple[list, list]:
    """Return (rows of sentinels, other rows)."""
    found = [row for row in rows if regimes.is_sentinel(row.block.regime)]
    return found, [row for row in rows if row not in found]


def test_every_visit_is_a_block_and_no_winner_comes_from_one(tmp_path):
    path = tmp_path / "a.db"
    run_sweep(path, PROBLEMS, sentinels=True, **FEW)
    rows, best = read_all(path)
    measured, others = split(rows)
    blocks = {row.block.block_id for row in measured}
    assert len(blocks) == VISITS * 2 and {row.block.status for row in measured} == {"open"}
    order = [row.block.problem.key for row in sorted(rows, key=lambda row: row.block.block_id)]
    wanted = [one.problem.key for one in sentinels.get_sentinels(["fp8_gemm"], H200)]
    assert order[0] == wanted[0] and order[-1] == wanted[1]  # first and last
    assert {row.block_id for row in best}.isdisjoint(blocks)
    assert {row.problem_key for row in best} == {problem.key for problem in PROBLEMS}
    confirmed = {row.config for row in measured if row.role == "confirm"}
    assert confirmed >= set(sentinels.get_sentinels(["fp8_gemm"], H200)[0].configs)
    with Store.open(path, mode="ro") as store:
        assert set(load_dataset(store, H200.sku).problems) == set(PROBLEMS)
    assert {row.block.problem for row in others} == set(PROBLEMS)


def test_what_a_sweep_measures_does_not_depend_on_them(tmp_path):
    found = []
    for has in (True, False):
        run_sweep(tmp_path / f"{has}.db", PROBLEMS, sentinels=has, **FEW)
        rows, best = read_all(tmp_path / f"{has}.db")
        found.append(
            ({(row.block.problem, row.config, row.role, row.median_us) for row in split(rows)[1]},
             {(row.problem, row.config) for row in best})
        )  # fmt: skip
    assert found[0] == found[1]


def test_a_resumed_sweep_measures_them_where_something_is_open(tmp_path):
    path = tmp_path / "a.db"
    run_sweep(path, PROBLEMS[:2], sentinels=True, **FEW)
    count = len(split(read_all(path)[0])[0])
    run_sweep(path, PROBLEMS[:2], sentinels=True, **FEW)
    assert len(split(read_all(path)[0])[0]) == count  # nothing was open
    summary = run_sweep(path, PROBLEMS[:3], sentinels=True, **FEW)
    assert summary["measured"] == 1 and len(split(read_all(path)[0])[0]) > count


def test_one_that_fails_is_left_out_and_the_sweep_goes_on(tmp_path, monkeypatch):
    first = sentinels.get_sentinels(["fp8_gemm"], H200)[0].problem
    run = InProcessWorker.run

    def fail(self, job, hang_limit_s):
        from tuner.search.problem_run import ProblemFailed

        if job["problem"] == first.as_dict():
            raise ProblemFailed("no memory")
        return run(self, job, hang_limit_s)

    monkeypatch.setattr(InProcessWorker, "run", fail)
    summary = run_sweep(tmp_path / "a.db", PROBLEMS[:2], sentinels=True, **FEW)
    assert summary["measured"] == 2 and not summary["failed"]
    assert {row.block.problem for row in split(read_all(tmp_path / "a.db")[0])[0]}.isdisjoint({first})


@pytest.mark.parametrize("device", ["h200", "h100", "h800", "h20", "gh200"])
def test_every_gpu_takes_their_configs(device):
    known = _C.Device.known(device)
    found = sentinels.get_sentinels(OPS, known)
    assert [one.problem for one in found] == [one.problem for one in sentinels.SENTINELS]
    assert all(len(one.configs) >= 2 for one in found)
