"""Resuming: a sweep measures what is missing, and one that was killed at any point ends with the same result."""

import os
import random
import shutil
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tests.fakes.grouped_variants import CONTIGUOUS, make_grouped
from tests.fakes.in_process_worker import InProcessWorker
from tests.fakes.spaces import make_space
from tests.fakes.sweeps import read_all, run_sweep
from tuner.db import Store, tables
from tuner.learn.dataset import load_dataset
from tuner.problems import regimes, workload
from tuner.search import past
from tuner.search.missing import COVERED_SHARE

PROBLEMS = [_C.Problem("fp8_gemm", m, n, k) for m, n, k in ((64, 2112, 7168), (16, 1280, 8192), (333, 512, 1024))]
DEVICE = _C.Device.known("h200")
#: A few configs, where a test is about something else than the space.
FEW = _C.get_candidates(PROBLEMS[0], DEVICE)[::8]
#: A problem for searches by proposals, with a space that is large enough for them.
SEARCHED = _C.Problem("fp8_gemm", 1024, 4096, 7168)
SPACE = make_space(SEARCHED, DEVICE)
HEURISTIC = [_C.get_analytic_config(problem, DEVICE) for problem in PROBLEMS]


def run(path, worker=None, problems=PROBLEMS, **options) -> dict:
    """Sweep the problems of this file, or others; return the summary."""
    return run_sweep(path, problems, worker, **options)


def winners(path) -> dict:
    """Return {problem key: (winner, tie set)}."""
    return {row.problem_key: (row.config, set(row.tie_set)) for row in read_all(path)[1]}


def test_finished_problems_are_not_measured_again(tmp_path):
    path = tmp_path / "a.db"
    run(path, problems=PROBLEMS[:2], configs=FEW)
    worker = InProcessWorker()
    summary = run(path, worker, configs=FEW)
    assert summary["already_measured"] == 2 and summary["measured"] == 1 and len(worker.jobs) == 1
    assert run(path, resume=False, configs=FEW)["measured"] == 3


def test_a_few_configs_do_not_count_as_the_whole_space(tmp_path):
    path, space = tmp_path / "a.db", _C.get_candidates(PROBLEMS[0], DEVICE)
    run(path, problems=PROBLEMS[:1], configs=FEW)
    summary = run(path, problems=PROBLEMS[:1])
    assert summary["already_measured"] == 0 and summary["measured"] == 1
    assert {row.config_key for row in read_all(path)[0]} >= {config.key("fp8_gemm") for config in space}
    assert (
        run(path, problems=PROBLEMS[:1])["already_measured"]
        == run(path, problems=PROBLEMS[:1], configs=FEW)["already_measured"]
        == 1
    )


def test_confirmed_configs_without_search_rows_count_as_measured(tmp_path):
    """A snapshot that would be too large leaves these rows out, and may then be merged."""
    path, configs = tmp_path / "a.db", FEW[:4]
    run(path, problems=PROBLEMS[:1], configs=configs)
    drop_confirmed_searches(path)
    left = [row.role for row in read_all(path)[0]]
    assert left.count("search") < COVERED_SHARE * len(configs) <= len(left)
    assert run(path, problems=PROBLEMS[:1], configs=configs)["already_measured"] == 1


def drop_confirmed_searches(path) -> None:
    """Delete what a snapshot leaves out that would be too large."""
    search, confirm = map(tables.ROLE.get_number, ("search", "confirm"))
    with closing(sqlite3.connect(path)) as connection, connection:
        confirmed = f"SELECT block_id, config_id FROM measurement WHERE role = {confirm}"
        connection.execute(f"DELETE FROM measurement WHERE role = {search} AND (block_id, config_id) IN ({confirmed})")


def test_a_search_knows_confirmed_configs_without_search_rows(tmp_path):
    """Those are the best ones, and the reference, without which no ratio of its block is known."""
    path, problem = tmp_path / "a.db", [SEARCHED]
    run(path, problems=problem, configs=SPACE[:16], sampler="exhaustive")
    before = {row.config_key for row in read_all(path)[0]}
    drop_confirmed_searches(path)
    assert {row.config_key for row in read_all(path)[0]} == before
    worker = InProcessWorker()
    assert run(path, worker, problem, configs=SPACE, sampler="analytic", num_trials=24)["measured"] == 1
    new = {row.config_key for row in read_all(path)[0]} - before
    assert len(new) == 24 - len(before) and len(worker.jobs) == 2, "one batch and the confirmation"


def test_four_fifths_of_the_space_are_enough(tmp_path):
    space = list(dict.fromkeys([HEURISTIC[0], *_C.get_candidates(PROBLEMS[0], DEVICE)]))
    for share, is_enough in ((0.78, 0), (0.82, 1)):
        path = tmp_path / f"{share}.db"
        run(path, problems=PROBLEMS[:1], configs=space[: round(share * len(space))])
        assert run(path, problems=PROBLEMS[:1], time_budget_s=1e-6)["already_measured"] == is_enough


def test_the_previous_winner_is_confirmed_again(tmp_path):
    path = tmp_path / "a.db"
    run(path, problems=PROBLEMS[:1], configs=FEW)
    worker = InProcessWorker()
    run(path, worker, problems=PROBLEMS[:1], configs=FEW, resume=False)
    assert worker.jobs[0]["must_confirm"]


def test_a_winner_that_is_not_among_the_given_configs_keeps_its_place(tmp_path):
    path, problem = tmp_path / "a.db", _C.Problem("fp8_gemm", 256, 4096, 2048)
    run(path, problems=[problem])
    (winner,) = read_all(path)[1]
    slow = max(_C.get_candidates(problem, DEVICE), key=lambda config: _C.estimate_time_us(problem, config, DEVICE))
    assert winner.config not in (slow, _C.get_analytic_config(problem, DEVICE))
    run(path, problems=[problem], configs=[slow], resume=False)
    (best,) = read_all(path)[1]
    assert best.config == winner.config and best.block_id != winner.block_id, "it was confirmed again"


def test_proposals_measure_a_share_and_resume_from_their_history(tmp_path):
    path, problem = tmp_path / "a.db", [SEARCHED]
    jobs = []

    def stop(job: dict) -> None:
        jobs.append(job)
        if len(jobs) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(path, InProcessWorker(on_job=stop), problem, configs=SPACE, sampler="tpe", num_trials=60)
    told = {row.config_key for row in read_all(path)[0]}
    worker = InProcessWorker()
    assert run(path, worker, problem, configs=SPACE, sampler="tpe", num_trials=60)["measured"] == 1
    rows, best = read_all(path)
    assert told < {row.config_key for row in rows} and len(best) == 1
    assert 60 <= len({row.config_key for row in rows}) <= 66 < len(SPACE)
    assert not any(row.role == "confirm" and row.block.status == "open" for row in rows)


def test_a_search_counts_as_done_with_its_trials(tmp_path):
    path, problem = tmp_path / "a.db", [SEARCHED]
    run(path, problems=problem, configs=SPACE, sampler="tpe", num_trials=16)
    assert run(path, problems=problem, configs=SPACE, sampler="tpe", num_trials=16)["already_measured"] == 1
    assert run(path, problems=problem, configs=SPACE, sampler="tpe", num_trials=24)["measured"] == 1
    assert run(path, problems=problem, configs=SPACE, sampler="tpe", num_trials=24)["already_measured"] == 1
    assert run(path, problems=problem, configs=SPACE, sampler="exhaustive")["measured"] == 1


def test_open_batches_of_a_killed_search_are_no_cover():
    machine, made = synthetic.Machine(), []
    for config, status in zip(FEW, ("open", "finished", "open"), strict=False):
        machine.block_id += 1
        block = replace(machine.make_block(PROBLEMS[0], FEW[0]), status=status)
        made.append(machine.make_row(block, config, "search", 1.0, 1.0, 0.0))
    assert past.find_covered(made) == {PROBLEMS[0].key: {row.config_key for row in made[:2]}}
    assert past.find_covered(made[2:]) == {}


class DyingStore:
    """A store whose process is killed right before its n-th writing call."""

    WRITES = ("add_block", "add_measurements", "set_best", "start_sweep", "finish_sweep", "get_or_add_problem")
    fatal = 0

    def __init__(self, store):
        self.store, self.count = store, 0

    def __getattr__(self, name: str):
        method = getattr(self.store, name)
        if name not in self.WRITES:
            return method

        def counted(*arguments, **options):
            self.count += 1
            if self.count == DyingStore.fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*arguments, **options)

        return counted


def run_killed(path, fatal: int, problems=PROBLEMS[:2], **options) -> bool:
    """Run a sweep in a child that is killed before its `fatal`-th write; return whether it was."""
    DyingStore.fatal = fatal
    child = os.fork()
    if child == 0:
        run(path, problems=problems, store_class=DyingStore, **({"configs": FEW} | options))
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.full)])
def test_a_sweep_killed_anywhere_resumes_to_the_same_end(tmp_path, stride):
    run(tmp_path / "whole.db", problems=PROBLEMS[:2], configs=FEW)
    expected_rows, expected = read_all(tmp_path / "whole.db")[0], winners(tmp_path / "whole.db")
    fatal = 1 - stride
    while True:
        fatal += stride
        path = tmp_path / f"killed{fatal}.db"
        if not run_killed(path, fatal):
            break
        told = {(row.block.problem_key, row.config_key, row.role, row.median_us) for row in read_all(path)[0]}
        run(path, problems=PROBLEMS[:2], configs=FEW)
        rows = read_all(path)[0]
        kept = Counter(
            (row.block.problem_key, row.config_key, row.role) for row in rows if row.block.status == "finished"
        )
        assert winners(path) == expected
        assert max(kept.values()) == 1 and len(kept) == len(expected_rows)
        assert told <= {(row.block.problem_key, row.config_key, row.role, row.median_us) for row in rows}
    assert fatal > 10


#: 300 trials of 12 problems, and the moments at which a sweep of them is killed.
TRIED = [_C.Problem("fp8_gemm", m, 2112, 7168) for m in range(64, 832, 64)]
TRIALS, MOMENTS = _C.get_candidates(TRIED[0], DEVICE)[:25], 100


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_a_sweep_of_300_trials_killed_at_random_moments_ends_as_if_it_was_not(tmp_path):
    """At moments, not at writes: also in between, and while SQLite writes its files."""
    assert len(TRIED) * len(TRIALS) == 300
    start = time.monotonic()
    run(tmp_path / "whole.db", problems=TRIED, configs=TRIALS)
    seconds = time.monotonic() - start
    expected, rows = winners(tmp_path / "whole.db"), read_all(tmp_path / "whole.db")[0]
    expected_rows = Counter((row.block.problem_key, row.config_key, row.role) for row in rows)
    draw, killed, sweeps = random.Random(6), 0, 0
    while killed < MOMENTS and sweeps < 10 * MOMENTS:  # one that had ended before its moment does not count
        sweeps += 1
        path = tmp_path / f"{sweeps}.db"
        child = os.fork()
        if child == 0:
            try:
                run(path, problems=TRIED, configs=TRIALS)
            finally:
                os._exit(0)
        time.sleep(draw.uniform(0.0, seconds))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        run(path, problems=TRIED, configs=TRIALS)
        rows = [row for row in read_all(path)[0] if row.block.status == "finished"]
        assert Counter((row.block.problem_key, row.config_key, row.role) for row in rows) == expected_rows
        assert winners(path) == expected
        path.unlink()
    assert killed == MOMENTS


def test_a_winner_older_than_its_problems_newest_block_is_chosen_again(tmp_path):
    path = tmp_path / "a.db"
    run(path, problems=PROBLEMS[:1], configs=[HEURISTIC[0]])
    old = read_all(path)[1][0].block_id
    for fatal in range(1, 20):
        copy = tmp_path / f"killed{fatal}.db"
        shutil.copy(path, copy)
        assert run_killed(copy, fatal, PROBLEMS[:1], resume=False)
        rows, best = read_all(copy)
        if max(row.block.block_id for row in rows if row.block.status == "finished") > old == best[0].block_id:
            break
    assert run(copy, problems=PROBLEMS[:1], configs=FEW)["already_measured"] == 1
    run(tmp_path / "whole.db", problems=PROBLEMS[:1], configs=FEW)
    assert read_all(copy)[1][0].block_id > old and winners(copy) == winners(tmp_path / "whole.db")


def test_a_problem_of_fewer_draws_is_measured_again(tmp_path, monkeypatch):
    path, problems = tmp_path / "a.db", [make_grouped(CONTIGUOUS[0], m, 512, 1024, 8) for m in (1024, 2048)]
    with monkeypatch.context() as once:
        once.setattr(workload, "NUM_DRAWS", 1)
        run_sweep(path, problems, rests=False)
    assert run_sweep(path, problems)["measured"] == 2
    assert run_sweep(path, problems)["measured"] == 0
    with Store.open(path, mode="ro") as store:
        data = load_dataset(store, DEVICE.sku, op=problems[0].op)
    assert data.problems == problems and data.full_space.all()


@pytest.mark.parametrize("sampler", ["analytic", "random"])
def test_a_search_over_fewer_draws_begins_anew_and_ends(tmp_path, monkeypatch, sampler):
    path, problems = tmp_path / "a.db", [make_grouped(CONTIGUOUS[0], 4096, 4096, 4096, 8)]
    options = {"sampler": sampler, "num_trials": 12, "rests": False}
    with monkeypatch.context() as once:
        once.setattr(workload, "NUM_DRAWS", 1)
        run_sweep(path, problems, **options)
    assert [run_sweep(path, problems, **options)["measured"] for _ in range(3)] == [1, 0, 0]


def test_a_winner_of_fewer_draws_does_not_come_back(tmp_path, monkeypatch):
    """Its block has rests, which else decide which block is the best."""
    path, problems = tmp_path / "a.db", [make_grouped(CONTIGUOUS[0], 32768, 4096, 4096, 8)]
    with monkeypatch.context() as once:
        once.setattr(workload, "NUM_DRAWS", 1)
        run_sweep(path, problems)
    for _ in range(2):
        run_sweep(path, problems, rests=False)
    with Store.open(path, mode="ro") as store:
        (best,), blocks = store.load_best(), {block.block_id: block for block in store.load_blocks()}
    assert any(regimes.is_rested(block.regime) for block in blocks.values())
    assert '"draws":4' in blocks[best.block_id].workload
