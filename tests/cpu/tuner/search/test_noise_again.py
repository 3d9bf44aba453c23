"""Noisy blocks are measured once more, and the quieter one is kept, with the failures of both; where nothing comes of
the second time, the first one stands.
"""

import math

import pytest

from deep_gemm import _C
from tests.fakes.in_process_worker import FaultyBackend, InProcessWorker
from tests.fakes.sweeps import read_all, run_sweep
from tuner.measure.race import Check
from tuner.measure.simulated import SimulatedTimer
from tuner.measure.statistics import MAX_NOISE
from tuner.measure.worker_client import DeviceRetired, WorkerFailure
from tuner.problems.regimes import is_rested

DEVICE = _C.Device.known("h200")
PROBLEM = _C.Problem("fp8_gemm", 64, 2112, 7168)
CONFIGS = _C.get_candidates(PROBLEM, DEVICE)[::8]
#: A product that is timed again after rests.
LONG = _C.Problem("fp8_gemm", 4096, 7168, 4096)


class PlannedTimer(SimulatedTimer):
    """Simulated times with noise of a given spread; configs of `wrong` are wrong."""

    def __init__(self, problem, configs: list, spread: float, wrong: tuple):
        super().__init__(problem, configs, DEVICE, 0)
        self.configs, self.spread, self.wrong = configs, spread, wrong

    def check(self, index: int) -> Check:
        return Check("incorrect", error="planted") if self.configs[index] in self.wrong else super().check(index)

    def time(self, sequence) -> list[float]:
        return [self.times_us[index] * math.exp(self.random.gauss(0.0, self.spread)) for index in sequence]


def plan_boards(count: int, attempts: tuple, begun: list) -> list[InProcessWorker]:
    """Return boards. Each attempt to measure the problem, on whatever board, is as planned, or raises an error; `begun`
    gets every attempt.
    """

    def make_timer(problem, configs: list, seed: int) -> SimulatedTimer:
        planned = attempts[min(len(begun), len(attempts) - 1)]
        begun.append(planned)
        if isinstance(planned, Exception):
            raise planned
        return PlannedTimer(problem, configs, **{"spread": 0.001, "wrong": ()} | planned)

    boards = [InProcessWorker() for _ in range(count)]
    for number, board in enumerate(boards):
        board.backend = FaultyBackend(f"h200#{number}")
        board.backend.make_timer = make_timer
    return boards


def sweep_on(count: int, path, *attempts: dict | Exception) -> tuple[dict, int]:
    """Sweep the problem on some boards. Return the summary and the number of attempts."""
    begun: list = []
    boards = plan_boards(count, attempts, begun)
    return run_sweep(path, [PROBLEM], boards, configs=CONFIGS, sentinels=False, rests=False), len(begun)


def sweep(path, *attempts: dict | Exception) -> tuple[list, int]:
    """Sweep the problem on one board. Return the rows and the number of attempts."""
    _, count = sweep_on(1, path, *attempts)
    return read_all(path)[0], count


NOISY, QUIET = {"spread": 0.3}, {"spread": 0.001}
#: What a job launches, in its order.
ORDER = list(dict.fromkeys([_C.get_analytic_config(PROBLEM, DEVICE), *CONFIGS]))


def crash(index: int) -> tuple[WorkerFailure, WorkerFailure]:
    """Return two attempts in which a config of ORDER crashes: it is not launched again."""
    return WorkerFailure("crash", "planted", index), WorkerFailure("crash", "planted", index)


@pytest.mark.usefixtures("few_sources")
@pytest.mark.parametrize("attempts, number", [((QUIET,), 1), ((NOISY, QUIET), 2), ((NOISY, {"spread": 0.9}), 2)])
def test_a_noisy_block_is_measured_once_more(tmp_path, attempts, number):
    rows, count = sweep(tmp_path / "a.db", *attempts)
    noise = {row.block.noise for row in rows}
    assert count == number and len(noise) == 1 and (noise.pop() <= MAX_NOISE) == (QUIET in attempts)


@pytest.mark.usefixtures("few_sources")
@pytest.mark.parametrize(
    "attempts", [({**NOISY, "wrong": CONFIGS[2:3]}, QUIET), (NOISY, {**QUIET, "wrong": CONFIGS[2:3]})]
)
def test_a_config_that_was_wrong_once_is_wrong(tmp_path, attempts):
    rows, _ = sweep(tmp_path / "a.db", *attempts)
    assert {row.status for row in rows if row.config == CONFIGS[2]} == {"incorrect"}
    assert {row.config for row in rows if row.status in ("ok", "censored")} >= set(CONFIGS) - {CONFIGS[2]}


@pytest.mark.usefixtures("few_sources")
def test_a_reference_that_fails_the_second_time_judges_nothing(tmp_path):
    heuristic = _C.get_analytic_config(PROBLEM, DEVICE)
    rows, _ = sweep(tmp_path / "a.db", NOISY, {**QUIET, "wrong": (heuristic,)})
    assert {row.status for row in rows if row.config == heuristic} == {"incorrect"}
    reference = next(row for row in rows if row.role == "confirm" and row.is_reference)
    assert reference.config != heuristic and reference.ratio == 1.0


@pytest.mark.usefixtures("few_sources")
def test_the_first_block_stands_where_the_board_is_lost_the_second_time(tmp_path):
    summary, count = sweep_on(2, tmp_path / "a.db", NOISY, DeviceRetired("canary"), QUIET)
    assert (summary["measured"], summary["failed"], len(summary["retired"]), count) == (1, {}, 1, 2)
    rows, (best,) = read_all(tmp_path / "a.db")
    (block,) = {row.block.block_id: row.block for row in rows}.values()
    assert block.status == "finished" and block.noise > MAX_NOISE and best.block_id == block.block_id


@pytest.mark.usefixtures("few_sources")
def test_the_last_board_leaves_its_first_block(tmp_path):
    with pytest.raises(DeviceRetired, match="canary"):
        sweep_on(1, tmp_path / "a.db", NOISY, DeviceRetired("canary"))
    assert {row.block.status for row in read_all(tmp_path / "a.db")[0]} == {"finished"}
    assert sweep_on(1, tmp_path / "a.db", QUIET)[1] == 0


@pytest.mark.usefixtures("few_sources")
def test_another_board_tells_whether_a_lost_one_or_a_config_is_at_fault(tmp_path):
    attempts = NOISY, *crash(2), DeviceRetired("canary"), QUIET
    summary, count = sweep_on(2, tmp_path / "a.db", *attempts)
    assert (summary["measured"], summary["failed"], count) == (1, {}, len(attempts))
    assert all(row.block.noise <= MAX_NOISE and row.status != "crash" for row in read_all(tmp_path / "a.db")[0])


@pytest.mark.usefixtures("few_sources")
def test_what_crashed_in_a_repeat_that_was_given_up_is_no_choice(tmp_path):
    attempts = NOISY, *crash(2), WorkerFailure("error", "no report")
    rows, count = sweep(tmp_path / "a.db", *attempts)
    assert count == len(attempts) and {row.block.status for row in rows} == {"finished"}
    assert [row.status for row in rows if row.config == ORDER[2]] == ["crash"]
    assert {row.config for row in rows if row.status in ("ok", "censored")} == set(ORDER) - {ORDER[2]}


@pytest.mark.usefixtures("few_sources")
def test_a_reference_that_crashes_in_a_repeat_that_was_given_up_judges_nothing(tmp_path):
    attempts = NOISY, *crash(0), WorkerFailure("error", "no report")
    summary, _ = sweep_on(1, tmp_path / "a.db", *attempts)
    assert (summary["measured"], len(summary["failed"])) == (0, 1)
    rows, best = read_all(tmp_path / "a.db")
    assert [(row.config, row.status) for row in rows] == [(ORDER[0], "crash")] and not best


def sweep_with_rests(path, *attempts: dict | Exception) -> tuple[dict, int]:
    """Sweep a long product. Return the noise of its blocks, {False: back to back, True: after rests}, and the number of
    attempts.
    """
    begun: list = []
    run_sweep(
        path, [LONG], plan_boards(1, attempts, begun), configs=_C.get_candidates(LONG, DEVICE)[::16], sentinels=False
    )
    return {is_rested(row.block.regime): row.block.noise for row in read_all(path)[0]}, len(begun)


@pytest.mark.usefixtures("few_sources")
@pytest.mark.parametrize(
    "attempts, number", [((QUIET, QUIET), 2), ((QUIET, NOISY, QUIET), 3), ((NOISY, QUIET, QUIET), 3)]
)
def test_a_noisy_block_after_rests_is_measured_once_more(tmp_path, attempts, number):
    noise, count = sweep_with_rests(tmp_path / "a.db", *attempts)
    assert count == number and set(noise) == {False, True} and max(noise.values()) <= MAX_NOISE


@pytest.mark.usefixtures("few_sources")
def test_a_board_that_is_lost_in_the_repeat_after_rests_keeps_the_noisy_block(tmp_path):
    path = tmp_path / "a.db"
    with pytest.raises(DeviceRetired, match="canary"):
        sweep_with_rests(path, QUIET, NOISY, DeviceRetired("canary"))
    rows, (best,) = read_all(path)
    rested = {row.block.block_id: row.block for row in rows if is_rested(row.block.regime)}
    assert [block.noise > MAX_NOISE for block in rested.values()] == [True]
    assert best.problem == LONG
    assert sweep_with_rests(path, QUIET)[1] == 0, "nothing is missing"


@pytest.mark.usefixtures("few_sources")
@pytest.mark.parametrize("ending", [WorkerFailure("error", "no report"), DeviceRetired("canary")])
def test_failures_of_both_attempts_are_stored_where_nothing_else_is(tmp_path, ending):
    attempts = *crash(2), NOISY, *crash(0), ending
    if isinstance(ending, DeviceRetired):
        with pytest.raises(DeviceRetired, match="canary"):
            sweep_on(1, tmp_path / "a.db", *attempts)
    else:
        assert len(sweep_on(1, tmp_path / "a.db", *attempts)[0]["failed"]) == 1
    failed = sorted((ORDER.index(row.config), row.status) for row in read_all(tmp_path / "a.db")[0])
    assert failed == [(0, "crash"), (2, "crash")]


@pytest.mark.usefixtures("few_sources")
def test_rests_that_were_made_up_for_count_where_the_board_is_lost_in_their_repeat(tmp_path):
    path, configs = tmp_path / "a.db", _C.get_candidates(LONG, DEVICE)[::16]
    run_sweep(path, [LONG], plan_boards(1, (QUIET,), []), configs=configs, sentinels=False, rests=False)
    begun: list = []
    boards = plan_boards(2, (NOISY, DeviceRetired("canary")), begun)
    summary = run_sweep(path, [LONG], boards, configs=configs, sentinels=False)
    assert (summary["measured"], summary["failed"], len(summary["retired"]), len(begun)) == (1, {}, 1, 2)
    assert {is_rested(row.block.regime) for row in read_all(path)[0]} == {False, True}
