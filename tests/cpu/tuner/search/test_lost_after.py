"""A board that is lost once the last block of a search is stored: the problem is measured, the rest comes later."""

import pytest

from deep_gemm import _C
from tests.fakes.in_process_worker import FaultyBackend, InProcessWorker
from tests.fakes.sweeps import read_all, run_sweep
from tuner.measure.protocol import parse_job
from tuner.measure.worker_client import DeviceRetired, WorkerFailure
from tuner.problems import regimes
from tuner.search.failures import STRIKES

PROBLEM = _C.Problem("fp8_gemm", 4096, 7168, 4096)
FEW = _C.get_candidates(PROBLEM, _C.Device.known("h200"))[::3]
#: The field of a plan that tells the jobs of each stage.
STAGES = {"rests": "rest", "energy": "energy_s"}
JUDGES = {"rests": regimes.is_rested, "energy": regimes.is_energy}


class Board(InProcessWorker):
    """A board of a number. It is lost on the first job that it and others, which share `fatal`, have of that stage.

    Before that, the second config of the job crashes so often (`num_crashes`) that it is blamed.
    """

    def __init__(self, number: int, fatal: list[str], num_crashes: int = 0):
        super().__init__()
        self.backend, self.fatal, self.num_crashes = FaultyBackend(f"h200#{number}"), fatal, num_crashes

    def run(self, job, limit_s, *more):
        if self.fatal and job["plan"][STAGES[self.fatal[0]]]:
            if self.num_crashes:
                self.num_crashes -= 1
                raise WorkerFailure("crash", "planted", 1)
            self.fatal.clear()
            raise DeviceRetired("canary")
        return super().run(job, limit_s, *more)


def sweep(path, fatal: list[str], sampler: str = "exhaustive", num_crashes: int = 0, **more) -> tuple[dict, list[dict]]:
    """Sweep the problem on two boards; return the summary and all jobs."""
    boards = [Board(number, fatal, num_crashes) for number in range(2)]
    options = {"configs": FEW, "energy": 2, "sentinels": False, "sampler": sampler, "num_trials": 6} | more
    return run_sweep(path, [PROBLEM], boards, **options), [job for board in boards for job in board.jobs]


def count_rows(path) -> list[int]:
    """Return how many rows are of blocks back to back, after rests, and of energy."""
    rows = [row.block.regime for row in read_all(path)[0]]
    return [sum(map(judge, rows)) for judge in (regimes.is_own, regimes.is_rested, regimes.is_energy)]


def find_crashed(path) -> list:
    """Return the rows of configs that crashed."""
    return [row for row in read_all(path)[0] if row.status == "crash"]


@pytest.mark.usefixtures("few_sources")
@pytest.mark.parametrize("sampler", ["exhaustive", pytest.param("random", marks=pytest.mark.full)])
@pytest.mark.parametrize("stage", STAGES)
def test_a_measured_problem_stays_measured(tmp_path, stage, sampler):
    """Nobody measures it again, in this sweep or a later one, which makes up for what lacks and no more."""
    path = tmp_path / "a.db"
    summary, jobs = sweep(path, [stage], sampler)
    assert (summary["measured"], summary["failed"], summary["remaining"]) == (1, {}, 0)
    assert len(summary["retired"]) == 1 and not any(job["plan"]["energy_s"] for job in jobs)
    steady, rested, with_energy = count_rows(path)
    assert steady and bool(rested) == (stage == "energy") and not with_energy
    assert len({row.block.board for row in read_all(path)[0]}) == len(read_all(path)[1]) == 1
    summary, jobs = sweep(path, [], sampler)
    assert summary["measured"] == 1 and all(job["plan"]["rest"] or job["plan"]["energy_s"] for job in jobs)
    found = count_rows(path)
    assert found[0] == steady and found[1] and found[2]
    assert sweep(path, [], sampler)[0]["already_measured"] == 1


@pytest.mark.usefixtures("few_sources")
@pytest.mark.parametrize("stage", STAGES)
def test_what_crashed_before_the_board_was_lost_is_of_its_own_regime(tmp_path, stage):
    """The block stays open, so that a later sweep tries it again: it may have been the board's fault."""
    path = tmp_path / "a.db"
    assert sweep(path, [stage], num_crashes=STRIKES)[0]["measured"] == 1
    (crashed,) = find_crashed(path)
    assert JUDGES[stage](crashed.block.regime)
    assert crashed.block.status == "open"
    assert {row.block.status for row in read_all(path)[0] if regimes.is_own(row.block.regime)} == {"finished"}
    jobs = sweep(path, [])[1]
    assert any(job["plan"]["rest"] for job in jobs) == (stage == "rests")
    tried = {config for job in jobs if job["plan"][STAGES[stage]] for config in parse_job(job).configs}
    assert crashed.config in tried
    assert sweep(path, [])[0]["already_measured"] == 1


@pytest.mark.usefixtures("few_sources")
@pytest.mark.parametrize("num_crashes", [pytest.param(0, marks=pytest.mark.full), STRIKES])
@pytest.mark.parametrize("stage", STAGES)
def test_what_was_made_up_for_is_left_again(tmp_path, stage, num_crashes):
    """The problem was measured before: it has not failed, no other board is put at risk, and the next sweep goes on."""
    path = tmp_path / "a.db"
    sweep(path, [], rests=stage == "energy", energy=0)
    steady = count_rows(path)[0]
    lacking = {"rests": stage == "rests", "energy": 2 * (stage == "energy")}
    summary, jobs = sweep(path, [stage], num_crashes=num_crashes, **lacking)
    assert (summary["measured"], summary["failed"], summary["remaining"]) == (0, {}, 1)
    assert len(summary["retired"]) == 1 and not jobs
    assert [JUDGES[stage](row.block.regime) for row in find_crashed(path)] == [True] * bool(num_crashes)
    summary, jobs = sweep(path, [], **lacking)
    assert summary["measured"] == 1 and jobs and all(job["plan"][STAGES[stage]] for job in jobs)
    assert count_rows(path)[0] == steady
    assert sweep(path, [], **lacking)[0]["already_measured"] == 1
