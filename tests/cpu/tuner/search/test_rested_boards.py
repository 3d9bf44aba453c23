"""Rests that a sweep makes up for are taken on the board that measured the problem, or not at all."""

from types import SimpleNamespace

import pytest

from deep_gemm import _C
from tests.fakes.in_process_worker import FaultyBackend, InProcessWorker
from tests.fakes.sweeps import read_all, run_sweep
from tuner.db import Store
from tuner.db.naturals import find_rested
from tuner.db.rested import date, find_rests
from tuner.db.rows import BlockRow, Identity
from tuner.measure.worker_client import DeviceRetired
from tuner.problems import regimes
from tuner.problems.workload import Workload
from tuner.search import lanes
from tuner.search.candidates import SweepOptions
from tuner.search.past import Past
from tuner.search.sweep import Sweep

PROBLEMS = [_C.Problem("fp8_gemm", m, 7168, 4096) for m in (4096, 6144, 8192, 12288)]
FEW = _C.get_candidates(PROBLEMS[0], _C.Device.known("h200"))[::8]


class Board(InProcessWorker):
    """A board of a number; `dies` on the first job after rests."""

    def __init__(self, number: int, dies: bool = False):
        super().__init__()
        self.backend, self.dies = FaultyBackend(f"h200#{number}"), dies

    def run(self, job, limit_s, *more):
        if self.dies and job["plan"]["rest"]:
            raise DeviceRetired("canary")
        return super().run(job, limit_s, *more)


@pytest.fixture(autouse=True)
def hashes(few_sources):
    """Every test sweeps."""


@pytest.fixture
def path(tmp_path):
    """A database without rests: the first two problems are of board 0, the others of board 1."""
    for number in range(2):
        run_sweep(tmp_path / "a.db", PROBLEMS[2 * number :][:2], Board(number), configs=FEW, rests=False)
    return tmp_path / "a.db"


def find_boards(path) -> dict:
    """Return {problem: {board}} of the blocks back to back, and of those after rests."""
    found = {}
    for row in read_all(path)[0]:
        if not regimes.is_sentinel(row.block.regime):
            found.setdefault(row.block.problem, ({}, {}))[regimes.is_rested(row.block.regime)][row.block.board] = 1
    return found


def run(path, boards, **options) -> tuple[dict, list[str]]:
    """Sweep all problems; return the summary and the warnings."""
    warnings = []

    def note(name, facts):
        if name == "warning":
            warnings.append(facts["text"])

    with Store.open(path) as store:
        made = SweepOptions(PROBLEMS, path, backend="simulated", configs=FEW, **options)
        return Sweep(made, store, boards, note).run(), warnings


def test_rests_are_taken_on_the_board_that_measured_the_problem(path):
    summary, warnings = run(path, [Board(1), Board(2), Board(0)])
    assert (summary["measured"], summary["failed"], warnings) == (4, {}, [])
    assert all(len(steady) == 1 and steady == rested for steady, rested in find_boards(path).values())
    assert run(path, [Board(0)])[0]["measured"] == 0


def test_what_only_other_boards_may_measure_stays_and_is_said(path):
    worker = Board(1)
    summary, warnings = run(path, worker)
    assert summary["measured"] == 2 == len(worker.jobs)
    assert ["2 problems lack times after rests" in text for text in warnings] == [True]
    assert [len(rested) for _, rested in find_boards(path).values()] == [0, 0, 1, 1]


def test_a_lost_board_leaves_its_rests_to_a_later_sweep(path):
    summary, _ = run(path, [Board(0, dies=True), Board(1)])
    assert (summary["measured"], summary["failed"], summary["remaining"]) == (2, {}, 2)
    assert len(summary["retired"]) == 1
    assert run(path, [Board(0), Board(1)])[0]["measured"] == 2


def test_rests_are_looked_for_in_blocks_of_their_board(path, monkeypatch):
    """Those of another board do not stand for them, and rows are read of the problems alone that lack some."""
    run(path, Board(0))
    run_sweep(path, PROBLEMS[:1], Board(1), configs=FEW, rests=False, resume=False)
    with Store.open(path, "ro") as store:
        best = store.load_best()[0]
        identity = Identity("fp8_gemm", best.sku, best.kernel_hash, best.compiler, best.regime)
        asked, load = [], store.load_measurements
        monkeypatch.setattr(store, "load_measurements", lambda **more: asked.append(more) or load(**more))
        found = Past(store, {"fp8_gemm": identity}, Workload()).find_unrested(PROBLEMS)
    assert found.keys() == {problem.key for problem in (PROBLEMS[0], *PROBLEMS[2:])}
    assert [len(one["problem_ids"]) for one in asked] == [3]
    assert all({row.block.board for row in one.rows} == {one.board} for one in found.values())


#: (board, regime) of blocks in the order of time: rests of board b, which has no other block before them.
ORDER = (("a", "graph-cold"), ("b", regimes.name_rested("graph-cold")))
SHARED = {"kernel_hash": "cd" * 32, "compiler": "nvrtc", "status": "finished"}


def make_block(number: int, sku: str) -> BlockRow:
    """Return a block of ORDER, whose board is of GPU model `sku`."""
    board, regime = ORDER[number]
    problem = {"problem": PROBLEMS[0], "problem_id": 1, "problem_key": PROBLEMS[0].key}
    times = {"regime": regime, "created": str(number)}
    return BlockRow(block_id=number, sku=sku, board=board, **problem, **times, **SHARED)


@pytest.mark.parametrize("other, has_rests", [("h200-sm132", True), ("h100-sm132", False)])
def test_rests_belong_to_no_block_of_another_gpu_model(other, has_rests):
    """A merged database may hold several models. Both readers of blocks tell them apart."""
    skus = "h200-sm132", other
    found = find_rests(date(make_block(number, sku)) for number, sku in enumerate(skus))
    assert {number: each.block for number, each in found.items()} == ({0: 1} if has_rests else {})
    tables = {"device": {}, "block": {}}
    for (board, regime), sku in zip(ORDER, skus, strict=True):
        tables["device"][board,] = {"key": board, "sku": sku, "uuid_hash": None}
        own = {"uid": regime, "problem_id": PROBLEMS[0].key, "device_id": board, "regime": regime}
        tables["block"][regime,] = SHARED | own | {"created": board}
    assert find_rested(tables) == ({"graph-cold"} if has_rests else set())


def test_a_queue_keeps_no_task_for_a_board_that_is_gone():
    first, second = (SimpleNamespace(board=name) for name in "ab")
    own, free = lanes.Task(PROBLEMS[0], [], "a"), lanes.Task(PROBLEMS[1], [])
    queue = lanes.Queue([own, free], [first, second], lambda: False)
    assert queue.take(second) is free and queue.take(first) is own
    assert not queue.give_back(first, own, DeviceRetired("canary"))
    queue.tasks.append(own)
    queue.retire(first, DeviceRetired("canary"))
    assert not queue.tasks and queue.error is None
