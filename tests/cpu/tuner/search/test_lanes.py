"""Several boards in one sweep: work goes to whoever is free, a lost board's problem to another, kinds never mix."""

import json
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.fakes.databases import CONFIGS, make_problem
from tests.fakes.in_process_worker import FaultyBackend, InProcessWorker
from tests.fakes.sweeps import read_all, run_sweep
from tuner import cli, errors
from tuner.db import Store
from tuner.measure.devices import choose_ordinals
from tuner.measure.race import Check
from tuner.measure.simulated import SimulatedTimer
from tuner.measure.worker_client import DeviceRetired, WorkerFailure
from tuner.problems import shapes
from tuner.search import lanes, sweep

FEW = CONFIGS[::16]
PROBLEMS = [make_problem(m) for m in (1, 16, 64, 100, 128, 256)]


class Board(InProcessWorker):
    """A fake board. It dies for good on the job of the number `dies_at`, or on a problem of `deadly`."""

    def __init__(self, number: int, kind: str = "h200", dies_at: int = -1, deadly=(), **options):
        super().__init__(**options)
        self.backend, self.dies_at, self.deadly, self.is_dead = (
            FaultyBackend(f"{kind}#{number}"),
            dies_at,
            deadly,
            False,
        )

    def start(self) -> dict:
        """Return the hello, unless the board is dead."""
        if self.is_dead:
            raise DeviceRetired("the measuring process failed to start 3 times: canary")
        return super().start()

    def run(self, job: dict, limit_s: float, *more) -> dict:
        """Run one job, or die."""
        self.is_dead |= len(self.jobs) == self.dies_at or any(job["problem"]["m"] == each.m for each in self.deadly)
        self.start()
        return super().run(job, limit_s, *more)


class WrongTimer(SimulatedTimer):
    """No config is right."""

    def check(self, index: int) -> Check:
        """Return a failed check."""
        return Check("incorrect", error="D differs")


class WrongBackend(FaultyBackend):
    """A board that multiplies wrongly, without any other sign."""

    def make_timer(self, problem, configs, seed):
        """Return a timer whose checks fail."""
        return WrongTimer(problem, configs, self.device, seed)


@pytest.fixture(autouse=True)
def hashes(few_sources):
    """Every test sweeps."""


def run_on(path, boards, problems=PROBLEMS, **options) -> dict:
    """Sweep a few configs of some problems on fake boards."""
    return run_sweep(path, problems, boards, configs=FEW, **options)


def count_boards(path) -> Counter:
    """Return how many problems each board measured; each problem must be of one finished block of one board."""
    rows, best = read_all(path)
    boards = {row.block.problem_key: row.block.board for row in rows if row.block.status == "finished"}
    assert len({(row.block.problem_key, row.block.board) for row in rows if row.block.status == "finished"}) == len(
        boards
    )
    assert {row.problem_key for row in best} == set(boards)
    return Counter(boards.values())


def test_a_lost_board_and_a_slow_one_leave_nothing_undone(tmp_path):
    """A board that dies at its first job, one that works slowly, one that hangs once, and a good one."""
    paused = threading.Event()
    boards = [Board(0, dies_at=0), Board(1, on_job=lambda job: paused.wait(0.05)), Board(2), Board(3)]
    hung = let_hang_once(boards[2])
    summary = run_on(tmp_path / "a.db", boards)
    assert (summary["measured"], summary["failed"], summary["boards"]) == (6, {}, 4)
    (lost,) = summary["retired"]
    found = count_boards(tmp_path / "a.db")
    assert found.total() == 6 and lost not in found and len(hung) == 1
    assert lost == boards[0].backend.hello()["device"]["uuid_hash"]
    assert run_on(tmp_path / "a.db", [Board(9)])["already_measured"] == 6


def let_hang_once(board: Board) -> list:
    """Let a board's first job end without a reply; return where the job will be."""
    hung, measure = [], board.backend.run

    def hang_once(job, progress):
        if not hung:
            hung.append(job)
            raise WorkerFailure("timeout", "no reply in time", 1)
        return measure(job, progress)

    board.backend.run = hang_once
    return hung


@pytest.mark.full
def test_eight_boards_with_every_fault_at_once(tmp_path):
    """One dies, one is lost later, one hangs once, one is slow, one multiplies wrongly; three are fine."""
    paused, problems = threading.Event(), [make_problem(m) for m in range(1, 121, 5)]
    boards = [
        *(Board(0, dies_at=0), Board(1, dies_at=2), Board(2), Board(3, on_job=lambda job: paused.wait(0.05))),
        *(Board(number) for number in range(4, 8)),
    ]
    hung, boards[4].backend = let_hang_once(boards[2]), WrongBackend("h200#4")
    summary = run_on(tmp_path / "a.db", boards, problems)
    names = [board.backend.hello()["device"]["uuid_hash"] for board in boards]
    assert (summary["measured"], summary["failed"], summary["boards"]) == (len(problems), {}, 8)
    assert {names[0], names[4]} <= set(summary["retired"]) <= {names[0], names[1], names[4]} and len(hung) == 1
    found = count_boards(tmp_path / "a.db")
    assert found.total() == len(problems) and not {names[0], names[4]} & set(found) and found[names[1]] <= 2
    alone = run_on(tmp_path / "alone.db", [Board(9)], problems)
    assert alone["measured"] == len(problems)
    assert {row.problem_key for row in read_all(tmp_path / "a.db")[1]} == {
        row.problem_key for row in read_all(tmp_path / "alone.db")[1]
    }


@pytest.mark.full
def test_a_problem_on_which_two_boards_are_lost_fails_and_the_others_go_on(tmp_path):
    boards = [Board(number, deadly=PROBLEMS[2:3]) for number in range(3)]
    summary = run_on(tmp_path / "a.db", boards)
    assert summary["measured"] == 5 and len(summary["retired"]) == 2
    assert list(summary["failed"]) == [str(PROBLEMS[2])] and "2 boards were lost" in summary["failed"][str(PROBLEMS[2])]


@pytest.mark.full
def test_the_last_board_lost_ends_the_sweep_and_what_it_measured_stays(tmp_path):
    with pytest.raises(DeviceRetired, match="canary"):
        run_on(tmp_path / "a.db", [Board(0, dies_at=1), Board(1, dies_at=1)])
    assert sum(count_boards(tmp_path / "a.db").values()) == 2
    with Store.open(tmp_path / "a.db", "ro") as store, store.reading() as connection:
        assert connection.exec_driver_sql("SELECT status FROM sweep").scalars().all() == ["failed"]
    assert run_on(tmp_path / "a.db", [Board(0), Board(1)])["measured"] == 4


@pytest.mark.full
def test_a_board_that_multiplies_wrongly_is_retired_and_blamed_for_nothing(tmp_path):
    boards = [Board(0), Board(1)]
    boards[0].backend = WrongBackend("h200#0")
    summary = run_on(tmp_path / "a.db", boards)
    wrong = boards[0].backend.hello()["device"]["uuid_hash"]
    assert summary["measured"] == 6 and summary["failed"] == {} and summary["quarantined"] == {}
    assert wrong not in count_boards(tmp_path / "a.db")
    assert "incorrect" not in {row.status for row in read_all(tmp_path / "a.db")[0]}


@pytest.mark.full
@pytest.mark.parametrize("error, status", [(KeyboardInterrupt, "interrupted"), (errors.StoreError, "failed")])
def test_an_error_ends_every_lane_and_keeps_what_was_committed(tmp_path, error, status):
    def fail(job):
        if job["problem"]["m"] == PROBLEMS[3].m:
            raise error("now")

    boards, threads = [Board(number, on_job=fail) for number in range(2)], threading.active_count()
    with pytest.raises(error):
        run_on(tmp_path / "a.db", boards)
    assert count_boards(tmp_path / "a.db").total() >= 2 and threading.active_count() == threads
    with Store.open(tmp_path / "a.db", "ro") as store, store.reading() as connection:
        assert connection.exec_driver_sql("SELECT status FROM sweep").scalars().all() == [status]
    assert run_on(tmp_path / "a.db", [Board(0), Board(1)])["remaining"] == 0


def test_one_lock_per_board(tmp_path):
    with pytest.raises(errors.TunerError, match="is being measured by process"):
        run_on(tmp_path / "a.db", [Board(5), Board(5)])


def test_kinds_are_not_mixed_unless_told_and_then_measured_apart(tmp_path, monkeypatch, capsys):
    kinds = {0: "h200", 1: "h100", 2: "h200"}
    monkeypatch.setattr(sweep, "make_worker", lambda options: Board(options.device, kinds[options.device]))
    path, configs, problems = tmp_path / "a.db", tmp_path / "configs.json", tmp_path / "shapes.json"
    configs.write_text(json.dumps([config.as_dict() for config in FEW]))
    problems.write_text(json.dumps([{"m": problem.m, "n": problem.n, "k": problem.k} for problem in PROBLEMS[:2]]))
    words = ["sweep", "--shapes", str(problems), "--configs", str(configs), "--db", str(path), "--backend", "simulated"]
    assert cli.run([*words, "--gpus", "0,1,2"]) == 2
    assert "--mixed" in capsys.readouterr().err and not path.exists()
    assert cli.run([*words, "--gpus", "0,1,2", "--mixed", "--json"]) == 0
    sweeps = json.loads(capsys.readouterr().out)["sweeps"]
    assert [(each["measured"], each["boards"]) for each in sweeps] == [(2, 2), (2, 1)]
    found = {(row.problem.m, row.sku) for row in read_all(path)[1]}
    assert len(found) == 4 and len({sku for _, sku in found}) == 2


def test_what_one_kind_cannot_choose_ends_the_sweep_before_another_is_measured(tmp_path, monkeypatch, capsys):
    """The first kind was measured, and its summary lost."""
    run_on(tmp_path / "a.db", [Board(0)], problems=PROBLEMS[:1])
    before = len(read_all(tmp_path / "a.db")[0])
    monkeypatch.setattr(sweep, "make_worker", lambda options: Board(options.device, ("h200", "h100")[options.device]))
    (tmp_path / "shapes.json").write_text(json.dumps([PROBLEMS[0].as_dict()]))
    words = ["sweep", "--shapes", tmp_path / "shapes.json", "--best", 2, "--db", tmp_path / "a.db"]
    words += ["--backend", "simulated", "--gpus", "0,1", "--mixed"]
    assert cli.run(list(map(str, words))) == errors.EXIT_USAGE
    assert "h100" in capsys.readouterr().err and len(read_all(tmp_path / "a.db")[0]) == before


def test_gpus_are_named_once(monkeypatch):
    assert choose_ordinals("0, 2") == (0, 2) and choose_ordinals("all", lambda: 3) == (0, 1, 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,MIG-2")
    assert choose_ordinals("all") == (0, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for wrong in ("all", "", "0,0", "x", "-1", "0,", "1" * 9):
        with pytest.raises(errors.UsageError, match="--gpus"):
            choose_ordinals(wrong)
    assert cli.run(["sweep", "--gpus", "0,1", "--device", "1", "--backend", "simulated"]) == 2


@pytest.mark.full
def test_processes_measure_side_by_side(tmp_path, capsys):
    """Two real measuring processes with simulated times; the answers are those of one."""
    words = ["sweep", "--preset", "demo", "--backend", "simulated", "--json", "--db"]
    assert cli.run([*words, str(tmp_path / "two.db"), "--gpus", "0,1"]) == 0
    assert cli.run([*words, str(tmp_path / "one.db")]) == 0
    assert count_boards(tmp_path / "two.db").total() == len(shapes.load_preset("demo"))
    found = [
        {(row.block.problem_key, row.config_key, row.role, row.median_us) for row in read_all(tmp_path / name)[0]}
        for name in ("one.db", "two.db")
    ]
    assert found[0] == found[1]


def test_a_board_lost_on_its_last_sentinels_costs_nothing_else():
    error, lost = DeviceRetired("gone"), []

    def fail() -> None:
        raise error

    lane = SimpleNamespace(visits=SimpleNamespace(finish=fail))
    sweep.Sweep.visit_last(SimpleNamespace(lose_board=lambda *facts: lost.append(facts)), lane)
    assert lost == [(None, lane, error)]


def drive(task: lanes.Task, faults: list) -> tuple[list, list]:
    """Measure a problem on boards of which each has its fault, None for a good one, one after the other.

    Return the places of those that began with it, and the tasks that were given up.
    """
    boards = [lanes.Lane(None, {"device": {"uuid_hash": str(place)}}, None) for place in range(len(faults))]
    driver = lanes.Driver(boards, None, lambda task, lane, error: lost.append(task), lambda: False)
    queue, begun, lost = lanes.Queue([task], boards, lambda: False), [], []
    for place, (lane, fault) in enumerate(zip(boards, faults, strict=True)):
        if task in queue.tasks and task.may_run_on(lane, len(queue.lanes) == 1):
            queue.tasks.remove(task)
            begun.append(place)
            if fault is not None:
                driver.move(queue, task, lane, fault)
    return begun, [each for each in lost if each is not None]


LOST, WRONG = DeviceRetired("canary"), lanes.TryElsewhere("every config is wrong")
BEFORE, AFTER, AGAIN = lanes.LostBefore("canary"), lanes.LostAfter("canary"), lanes.LostMakingUp("canary")


@pytest.mark.parametrize(
    "faults, num_begun, is_lost",
    [
        ([WRONG, LOST, None], 3, False),
        ([LOST, WRONG, None], 3, False),
        ([BEFORE, BEFORE, LOST, WRONG, None], 5, False),
        ([LOST, LOST, None, None], 3, False),
        ([LOST, WRONG, LOST, None, None], 4, False),
        ([LOST, LOST, LOST, None, None], 3, True),
        ([LOST, LOST, None], 2, True),  # the last board is not put at risk
        ([LOST, None], 2, False),
        ([WRONG, WRONG, None], 2, False),  # the sweep reports it: it does not ask for another board a second time
        ([AFTER, None], 1, True),  # it is measured
        ([AFTER], 1, True),
        ([AGAIN, None, None], 1, False),  # it was measured before: neither measured now nor failed
        ([BEFORE, AGAIN, None], 2, False),
    ],
    ids=[
        *("wrong-lost", "lost-wrong", "before", "lost-twice", "lost-wrong-lost", "lost-thrice", "last-but-one", "last"),
        *("wrong-twice", "after", "after on the last", "making up", "before and making up"),
    ],
)
def test_one_board_that_is_wrong_and_one_that_is_lost_cost_no_problem(faults, num_begun, is_lost):
    task = lanes.Task(PROBLEMS[0], [])
    begun, lost = drive(task, faults)
    assert len(begun) == num_begun and lost == [task] * is_lost


def test_a_problem_on_which_a_board_was_lost_comes_last():
    """A second board that is about to die seldom gets the same problem, and one that kills boards kills few."""
    boards = [lanes.Lane(None, {"device": {"uuid_hash": name}}, None) for name in "abc"]
    failed, lost, other = (lanes.Task(problem, []) for problem in PROBLEMS[:3])
    queue = lanes.Queue([failed, lost, other], boards, lambda: False)
    assert queue.take(boards[0]) is failed and queue.take(boards[1]) is lost
    queue.retire(boards[1], LOST)
    assert queue.give_back(boards[1], lost, LOST) and queue.give_back(boards[0], failed, WRONG)
    assert list(queue.tasks) == [failed, other, lost]


def take_in_turn(monkeypatch, boards: list) -> None:
    """Let each board ask for a problem only when as many have ended as there are boards before it."""
    ended, take, finish = [], lanes.Queue.take, lanes.Queue.finish

    def wait_and_take(queue, lane):
        while len(ended) < boards.index(lane.worker):
            time.sleep(0.01)
        return take(queue, lane)

    monkeypatch.setattr(lanes.Queue, "take", wait_and_take)
    monkeypatch.setattr(lanes.Queue, "finish", lambda queue: (ended.append(1), finish(queue)))


@pytest.mark.parametrize("is_wrong_first", [True, False])
def test_a_sweep_measures_what_a_wrong_and_a_dying_board_had(tmp_path, monkeypatch, is_wrong_first):
    """The wrong board has the problem first, then the one that dies, or the other way round; then a good one."""
    wrong, dying, good = Board(0), Board(1, dies_at=0), Board(2)
    wrong.backend = WrongBackend("h200#0")
    boards = [*((wrong, dying) if is_wrong_first else (dying, wrong)), good]
    take_in_turn(monkeypatch, boards)
    summary = run_on(tmp_path / "a.db", boards, PROBLEMS[:1])
    assert (summary["measured"], summary["failed"]) == (1, {})
    assert list(count_boards(tmp_path / "a.db")) == [good.backend.hello()["device"]["uuid_hash"]]


def test_boards_lost_on_their_sentinels_cost_no_problem(tmp_path, monkeypatch):
    boards = [*(Board(number, dies_at=0) for number in range(2)), Board(2)]
    take_in_turn(monkeypatch, boards)
    summary = run_on(tmp_path / "a.db", boards, PROBLEMS[:1], sentinels=True)
    assert (summary["measured"], summary["failed"], len(summary["retired"])) == (1, {}, 2)


def test_failing_problems_never_retire_the_last_board():
    task, board = lanes.Task(PROBLEMS[0], []), lanes.Lane(None, {}, None, failures=lanes.MAX_FAILURES)
    queue = lanes.Queue([], [board], lambda: False)
    driver = lanes.Driver([board], lambda *facts: None, lambda *facts: None, lambda: False)
    assert driver.move(queue, task, board, lanes.TryElsewhere("wrong")) is False
    assert queue.lanes == [board] and list(queue.tasks) == [task] and queue.error is None
