"""Finalists of long products are timed a second time after rests, stored apart, and the choice is by both."""

import math
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from deep_gemm import _C
from tests.fakes.in_process_worker import FaultyBackend, InProcessWorker
from tests.fakes.sweeps import run_sweep
from tuner import cli
from tuner.db import Store, merge
from tuner.db.rested import Dated, find_rests
from tuner.learn.dataset import load_dataset
from tuner.learn.entries import CENSORED, CONFIRMED, SEARCHED, average_rested
from tuner.learn.ranking import rank
from tuner.measure.records import Plan, Result
from tuner.measure.worker_client import WorkerFailure
from tuner.problems import regimes
from tuner.search import rests
from tuner.search.problem_run import EFFORTS
from tuner.search.recording import Recorder
from tuner.ship import exact

H200 = _C.Device.known("h200")
LONG, SHORT = _C.Problem("fp8_gemm", 4096, 7168, 4096), _C.Problem("fp8_gemm", 16, 2112, 7168)
PLAN = EFFORTS["quick"]
CONFIGS = _C.get_candidates(LONG, H200)
#: A few configs, where a test is about something else than the space.
FEW = [config for config in CONFIGS if config.column_side <= 208][::6]


def confirmed(config, ratio, status="ok", role="confirm"):
    return Result(config=config, role=role, status=status, ratio=ratio, median_us=100.0 * ratio)


def load(path):
    with Store.open(path, "ro") as store:
        assert store.check() == []
        rows = store.load_measurements()
        return rows, store.load_best()


def split(rows):
    """Return (rows of the sweep's own regime, rows after rests) by their roles of confirmation."""
    found = [row for row in rows if row.role == "confirm"]
    return [[row for row in found if judge(row.block.regime)] for judge in (regimes.is_own, regimes.is_rested)]


def test_names_of_regimes_are_told_apart():
    names = ["graph-cold", regimes.name_rested("graph-cold"), regimes.name_sentinel("graph-cold")]
    assert list(map(regimes.is_own, names)) == [True, False, False]
    assert list(map(regimes.is_rested, names)) == [False, True, False]
    assert list(map(regimes.is_sentinel, names)) == [False, False, True]


def test_only_finalists_of_long_products_rest(tmp_path):
    worker = InProcessWorker()
    run_sweep(tmp_path / "a.db", [LONG, SHORT], worker)
    steady, rested = split(load(tmp_path / "a.db")[0])
    assert {row.block.problem for row in rested} == {LONG} < {row.block.problem for row in steady}
    assert 2 <= len({row.config for row in rested}) <= rests.MAX_FINALISTS + 1
    best = sorted((row for row in steady if row.block.problem == LONG), key=lambda row: row.ratio)
    assert {row.config for row in best[:4]} <= {row.config for row in rested}
    plans = [Plan(**job["plan"]) for job in worker.jobs]
    assert sorted(plan.rest for plan in plans) == [0.0, 0.0, rests.REST]


def test_the_choice_is_by_both_and_belongs_to_the_first_block(tmp_path, capsys):
    class Slower(InProcessWorker):
        """After rests, what won before is a tenth slower."""

        winner = None

        def run(self, job, limit_s, *more):
            document = super().run(job, limit_s, *more)
            rows = [row for row in document["results"] if row["role"] == "confirm"]
            if not job["plan"]["rest"]:
                best = min(rows, key=lambda row: row["ratio"])
                self.winner = job["configs"][best["config"]]
            else:
                for row in rows:
                    if job["configs"][row["config"]] == self.winner:
                        row["ratio"] *= 1.1
            return document

    run_sweep(tmp_path / "a.db", [LONG], Slower())
    rows, (best,) = load(tmp_path / "a.db")
    steady, rested = ({row.config: row.ratio for row in part} for part in split(rows))
    first = min(steady, key=steady.__getitem__)
    both = {config: math.sqrt(steady[config] * ratio) for config, ratio in rested.items()}
    assert first not in best.tie_set and best.config in best.tie_set
    assert min(both, key=both.__getitem__) in best.tie_set
    assert best.block_id == split(rows)[0][0].block.block_id
    with Store.open(tmp_path / "a.db", "ro") as store:
        shown = rank(store, LONG, H200.sku)
    assert shown.winner == best.config != first and shown.rows[0].config == first
    assert shown.num_rested == shown.to_json()["num_rested"] == len(rested) and shown.others == 0
    assert cli.run(["db", "show", "4096", "7168", "4096", "--db", str(tmp_path / "a.db")]) == 0
    assert f"\n{len(rested)} configs were timed after rests, too," in capsys.readouterr().out


def test_a_sweep_makes_up_for_missing_rests_and_measures_nothing_else(tmp_path):
    run_sweep(tmp_path / "a.db", [LONG, SHORT], rests=False)
    assert not split(load(tmp_path / "a.db")[0])[1]
    worker = InProcessWorker()
    summary = run_sweep(tmp_path / "a.db", [LONG, SHORT], worker)
    assert (summary["measured"], summary["already_measured"]) == (1, 1)
    assert [job["plan"]["rest"] for job in worker.jobs] == [rests.REST]
    rows, best = load(tmp_path / "a.db")
    steady, rested = split(rows)
    assert {row.block.problem for row in rested} == {LONG} and len(best) == 2
    blocks = {row.block.block_id for row in steady}
    assert {one.block_id for one in best} <= blocks
    assert run_sweep(tmp_path / "a.db", [LONG, SHORT])["measured"] == 0


def test_a_table_has_the_mean_of_both(tmp_path):
    problems = [LONG, replace_m(LONG, 2048)]
    run_sweep(tmp_path / "a.db", problems, rests=False)
    with Store.open(tmp_path / "a.db", "ro") as store:
        before = load_dataset(store, H200.sku)
    run_sweep(tmp_path / "a.db", problems)
    with Store.open(tmp_path / "a.db", "ro") as store:
        after, rows = load_dataset(store, H200.sku), store.load_measurements(role="confirm")
    row = after.problems.index(LONG)
    rested = {one.config: one.ratio for one in split(rows)[1] if one.block.problem == LONG}
    own = {one.config: one.ratio for one in split(rows)[0] if one.block.problem == LONG}
    assert (before.identity, before.configs) == (after.identity, after.configs)
    for config, ratio in rested.items():
        column = after.configs.index(config)
        assert after.log_ratio[row, column] == pytest.approx((math.log(ratio) + math.log(own[config])) / 2, abs=1e-9)


def test_a_config_that_is_wrong_after_rests_only_is_not_trusted(tmp_path):
    class Wrong(InProcessWorker):
        """After rests, what won back to back is wrong."""

        winner = None

        def run(self, job, limit_s, *more):
            document = super().run(job, limit_s, *more)
            if not job["plan"]["rest"]:
                rows = [row for row in document["results"] if row["role"] == "confirm"]
                self.winner = job["configs"][min(rows, key=lambda row: row["ratio"])["config"]]
                return document
            for row in document["results"]:
                if job["configs"][row["config"]] == self.winner:
                    row.update(status="incorrect", role="search", median_us=None, ratio=None)
            return document

    worker = Wrong()
    run_sweep(tmp_path / "a.db", [LONG, replace_m(LONG, 2048), SHORT], worker)
    rows, best = load(tmp_path / "a.db")
    wrong = {row.config for row in rows if row.status == "incorrect"}
    assert wrong and all(regimes.is_rested(row.block.regime) for row in rows if row.status == "incorrect")
    assert not wrong & {row.config for row in best if row.problem != SHORT}
    with Store.open(tmp_path / "a.db", "ro") as store:
        data = load_dataset(store, H200.sku)
    assert set(data.quarantined) == wrong == set(data.failed)
    assert not wrong & set(data.configs)


def test_what_was_not_timed_again_gained_as_the_others_did():
    pick, first, second, other = (_C.Config(64, block_n, 4) for block_n in (160, 192, 208, 176))
    steady = {(pick, CONFIRMED): 0.0, (first, CONFIRMED): -0.02, (second, CONFIRMED): 0.01}
    steady |= {(other, SEARCHED): 0.05, (other, CENSORED): 0.4}
    rested = {pick: 0.0, first: -0.22, second: -0.2}
    found = average_rested(steady, {(config, CONFIRMED): value for config, value in rested.items()})
    assert found[first, CONFIRMED] == pytest.approx(-0.12) and found[pick, CONFIRMED] == 0.0
    assert found[other, SEARCHED] == pytest.approx(0.05 - 0.1)
    assert found[other, CENSORED] == pytest.approx(0.4 - 0.1)
    assert average_rested(steady, {}) == steady


def test_finalists_are_few_where_products_are_very_long():
    rows = [confirmed(config, 1.0 + 0.01 * place) for place, config in enumerate(CONFIGS[:12])]
    assert rests.choose_finalists(rows, 99.0, 1, PLAN) == []
    assert rests.choose_finalists(rows[::-1], 150.0, 1, PLAN) == CONFIGS[: rests.MAX_FINALISTS]
    assert len(rests.choose_finalists(rows, 50_000.0, 1, PLAN)) == rests.MIN_FINALISTS
    assert 2 < len(rests.choose_finalists(rows, 5_000.0, 1, PLAN)) < rests.MAX_FINALISTS
    assert len(rests.choose_finalists(rows, 5_000.0, 4, PLAN)) == rests.MIN_FINALISTS
    assert rests.choose_finalists(rows[:1], 150.0, 1, PLAN) == []
    wrong = [confirmed(CONFIGS[0], 0.5, "incorrect"), confirmed(CONFIGS[1], 0.5, role="search"), *rows[2:4]]
    assert rests.choose_finalists(wrong, 150.0, 1, PLAN) == CONFIGS[2:4]


def test_a_config_that_fails_after_rests_does_not_cost_the_problem(tmp_path):
    class Crashing(InProcessWorker):
        def run(self, job, limit_s, *more):
            if job["plan"]["rest"]:
                self.blame(len(job["configs"]) - 1)
            return super().run(job, limit_s, *more)

        def blame(self, index):
            raise WorkerFailure("crash", "planted", index)

    summary = run_sweep(tmp_path / "a.db", [LONG], Crashing())
    rows, (best,) = load(tmp_path / "a.db")
    assert (summary["measured"], summary["failed"]) == (1, {})
    assert best.config in {row.config for row in split(rows)[0]} and summary["quarantined"]


def test_rests_that_fail_cost_few_configs_and_are_not_tried_again(tmp_path):
    class Broken(InProcessWorker):
        """Whatever is the reference crashes after rests."""

        def run(self, job, limit_s, *more):
            self.jobs.append(job)
            if job["plan"]["rest"]:
                raise WorkerFailure("crash", "planted", 0)
            return super().run(job, limit_s, *more)

    other, worker = replace_m(LONG, 2048), Broken()
    summary = run_sweep(tmp_path / "a.db", [LONG, other], worker)
    assert (summary["measured"], summary["failed"]) == (2, {})
    assert 1 <= len(summary["quarantined"]) <= 2 * (rests.MAX_FINALISTS + 1)
    rows, best = load(tmp_path / "a.db")
    assert {one.problem for one in best} == {LONG, other} and not split(rows)[1]
    assert len({row.config for row in split(rows)[0] if row.block.problem == other}) >= 4
    again = InProcessWorker()
    assert run_sweep(tmp_path / "a.db", [LONG, other], again)["measured"] == 0 and not again.jobs


def test_a_sweep_killed_before_the_winner_is_stored_rests_again(tmp_path, monkeypatch):
    class Killed(Exception):
        pass

    calls, real = [], Recorder.set_best

    def set_best(self, *arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise Killed
        real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "set_best", set_best)
        with pytest.raises(Killed):
            run_sweep(tmp_path / "a.db", [LONG])
    worker = InProcessWorker()
    assert run_sweep(tmp_path / "a.db", [LONG], worker)["measured"] == 1
    assert [job["plan"]["rest"] for job in worker.jobs] == [rests.REST]
    assert run_sweep(tmp_path / "a.db", [LONG])["measured"] == 0


class Turning(InProcessWorker):
    """A board on which what wins back to back is much slower after rests."""

    def __init__(self, number: int = 0):
        super().__init__()
        self.backend, self.winner = FaultyBackend(f"h200#{number}"), None

    def run(self, job, limit_s, *more):
        document = super().run(job, limit_s, *more)
        rows = [row for row in document["results"] if row["role"] == "confirm"]
        if not job["plan"]["rest"]:
            self.winner = job["configs"][min(rows, key=lambda row: row["ratio"])["config"]]
        for row in rows:
            if job["plan"]["rest"] and job["configs"][row["config"]] == self.winner:
                row["ratio"] *= 1.3
        return document


@pytest.fixture
def shards(tmp_path):
    """A database with rests, and a newer one of another board without any, which disagree."""
    run_sweep(tmp_path / "rested.db", [LONG], Turning(), configs=FEW)
    run_sweep(tmp_path / "newer.db", [LONG], Turning(1), configs=FEW, rests=False)
    return [tmp_path / "rested.db", tmp_path / "newer.db"]


def test_what_is_near_the_winner_is_so_by_both(shards, monkeypatch):
    """In a full exact table, what is fastest back to back must not stand in for the winner, which is faster by both."""
    monkeypatch.setattr(exact, "MAX_CONFIGS", 1)
    with Store.open(shards[0], "ro") as store:
        shown = rank(store, LONG, H200.sku)
    first, steady = shown.rows[0].config, {row.config: row.ratio for row in shown.rows}
    best, second = sorted(set(shown.judged) - {first}, key=shown.judged.__getitem__)[:2]
    assert steady[first] < steady[best] and shown.judged[first] > exact.TOLERANCE * shown.judged[best]
    assert exact.choose_allowed(shown, [first], best) == best
    monkeypatch.setattr(exact, "TOLERANCE", 1.2)
    by_both = min(first, second, key=shown.judged.__getitem__)
    assert exact.choose_allowed(shown, [first, second], best) == by_both
    assert len(shown.judged) == shown.num_rested < len(steady)


def test_without_rests_times_back_to_back_judge(shards):
    with Store.open(shards[1], "ro") as store:
        shown = rank(store, LONG, H200.sku)
    assert shown.judged == {row.config: row.ratio for row in shown.rows if row.status == "ok"}
    assert shown.num_rested == 0 and shown.judged


def test_a_merge_keeps_the_winner_that_was_chosen_by_rests_too(shards, tmp_path):
    (by_both,), (newer,) = (load(path)[1] for path in shards)
    assert by_both.config not in newer.tie_set and newer.created > by_both.created
    for number, order in enumerate((shards, shards[::-1])):
        target = tmp_path / f"{number}.db"
        for source in order:
            merge(target, [source])
        (best,) = load(target)[1]
        assert (best.config, best.tie_set) == (by_both.config, by_both.tie_set)
        assert not any(merge(target, order).values())
        run_sweep(target, [LONG], Turning(2), configs=FEW, rests=False)
        assert load(target)[1][0].config == by_both.config


def test_a_sweep_chooses_again_what_a_merge_lost(shards, tmp_path):
    """Databases may have been merged before rests counted: the winner is that of the newer block, or missing."""
    (by_both,), (newer,) = (load(path)[1] for path in shards)
    choose = "UPDATE best SET block_id = (SELECT MAX(id) FROM block WHERE regime = best.regime AND status = 'finished')"
    for number, statement in enumerate(("DELETE FROM best", f"{choose}, config_id = :winner, tie_set = :ties")):
        path = tmp_path / f"{number}.db"
        merge(path, shards)
        with closing(sqlite3.connect(path)) as connection, connection:
            query = "SELECT id FROM config WHERE key = ?"
            (winner,) = connection.execute(query, [newer.config_key]).fetchone()
            connection.execute(statement, {"winner": winner, "ties": f"[{winner}]"})
        assert by_both.config not in {row.config for row in load(path)[1]}
        run_sweep(path, [LONG], Turning(2), configs=FEW, rests=False)
        (best,) = load(path)[1]
        assert best.config == by_both.config and set(best.tie_set) == set(by_both.tie_set)


def test_rests_belong_to_the_block_before_them_on_their_board():
    def block(number, board, regime, created, status="finished"):
        return Dated(number, ("problem",), board, regime, status, created)

    rested = regimes.name_rested("graph-cold")
    blocks = [
        block(1, "a", "graph-cold", "1"),
        block(2, "b", "graph-cold", "2"),
        block(3, "a", rested, "3"),
        block(4, "a", "graph-cold", "4"),
        block(5, "b", rested, "5", "open"),
        block(6, "b", rested, "6", "failed"),
        block(7, "c", rested, "7"),
        block(8, "a", "graph-hot", "8"),
        block(9, "b", "graph-cold", "9", "open"),
        block(10, "b", rested, "9"),
        block(11, "d", rested, "9"),
        block(12, "d", "graph-cold", "9"),
    ]
    # Board c has no block, and d none before its rests: those follow the newest block of any board.
    assert {number: each.block for number, each in find_rests(blocks[::-1]).items()} == {1: 3, 2: 10, 4: 7, 12: 11}
    assert {number: each.block for number, each in find_rests(blocks[:9]).items()} == {1: 3, 2: 6, 4: 7}
    assert find_rests(blocks[2:3]) == {}


def test_the_noise_of_a_mean_is_that_of_both():
    assert rests.join_noise(0.03, 0.04) == pytest.approx(0.025)
    assert rests.join_noise(0.02, None) == pytest.approx(0.01)


def replace_m(problem, m):
    """Return the problem with another m."""
    return _C.Problem(problem.op, m, problem.n, problem.k)


def test_the_plan_of_rests_keeps_the_rounds_of_search():
    plan = rests.make_plan(replace(PLAN, search_rounds=5))
    assert plan.search_rounds == 5 and plan.rest == rests.REST and plan.confirm_rounds == 10
