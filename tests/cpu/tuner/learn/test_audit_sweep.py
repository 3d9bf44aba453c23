"""From an audit to new measurements, by the commands that docs/database.md shows, on simulated times."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from deep_gemm import _C
from tests.fakes.in_process_worker import FaultyBackend, FaultyTimer, InProcessWorker
from tests.fakes.sweeps import read_all, run_sweep
from tuner import cli, errors
from tuner.db import Store
from tuner.measure.simulated import simulate_time_us
from tuner.problems.regimes import is_rested

PAGE = Path(__file__).parents[4] / "docs" / "database.md"
DEVICE = _C.Device.known("h200")
#: Two neighbours, and a product that is long enough for times after rests.
HERE, NEAR, LONG = (
    _C.Problem("fp8_gemm", m, n, k) for m, n, k in ((64, 2112, 7168), (56, 2112, 7168), (4096, 7168, 7168))
)
FEW = [*_C.get_shortlist(HERE, DEVICE, 24), *_C.get_shortlist(LONG, DEVICE, 4)]
PICKS = [_C.get_analytic_config(problem, DEVICE) for problem in (HERE, NEAR)]
CONFIG = min(set(FEW).difference(PICKS), key=lambda config: simulate_time_us(HERE, config, DEVICE))


@pytest.fixture
def shell(in_process, monkeypatch, tmp_path, capsys):
    """Return what runs a documented line in a folder of this test, with simulated times; it returns the exit code."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> int:
        command, _, target = line.partition(" > ")
        words = shlex.split(command)
        capsys.readouterr()
        if words[1] == "-c":
            code, out = 0, subprocess.check_output([sys.executable, *words[1:]], text=True)
        else:
            simulated = ["--backend", "simulated"] if words[3] == "sweep" else []
            code, out = cli.run([*words[3:], *simulated]), capsys.readouterr().out
        if target:
            Path(target).write_text(out)
        return code

    return run


def read_lines() -> list[str]:
    """Return the lines of the page's block about audits."""
    (block,) = re.findall(r"^```text\n(python -m tuner db audit .*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return block.splitlines()


class HeldUp(FaultyBackend):
    """A backend where something holds up all launches of a config of HERE that is near the best."""

    def make_timer(self, problem, configs: list, seed: int) -> FaultyTimer:
        """Return the timer of one job."""
        timer = super().make_timer(problem, configs, seed)
        if problem == HERE:
            timer.times_us[configs.index(CONFIG)] *= 3.0
        return timer


def sweep_disturbed(path) -> None:
    """Sweep all problems while something holds up CONFIG."""
    worker = InProcessWorker()
    worker.backend = HeldUp()
    run_sweep(path, [HERE, NEAR, LONG], worker, configs=FEW)


def plant_noise(path) -> None:
    """Let the times after rests of LONG have been noisy."""
    (rested,) = {row.block.block_id for row in read_all(path)[0] if is_rested(row.block.regime)}
    with Store.open(path) as store:
        store.finish_block(rested, noise=0.05)


def test_the_documented_commands_measure_what_an_audit_names(shell, tmp_path):
    path = tmp_path / "tuning.db"
    sweep_disturbed(path)
    plant_noise(path)
    audit, sweep_doubted, take_whole, sweep_whole = read_lines()

    assert shell(audit) == 0
    found = json.loads(Path("audit.json").read_text())
    assert (found["problems"], found["configs"]) == ([HERE.as_dict()], [CONFIG.as_dict()])
    assert found["whole"] == [LONG.as_dict()] and found["ops"]["fp8_gemm"]["rested"] == 1
    before = {row.block.block_id for row in read_all(path)[0]}
    assert shell(sweep_doubted) == 0
    new = [row for row in read_all(path)[0] if row.block.block_id not in before and row.block.problem == HERE]
    assert {row.status for row in new if row.config == CONFIG} == {"ok"}
    assert 2 <= len({row.config for row in new}) <= 3, "the doubted one, the pick, and the earlier winner"

    assert shell(take_whole) == 0 == shell(sweep_whole)
    rows = read_all(path)[0]
    assert {row.config for row in rows if row.block.problem == LONG} >= set(_C.get_candidates(LONG, DEVICE))
    assert shell(audit) == 0
    found = json.loads(Path("audit.json").read_text())
    assert (found["problems"], found["configs"]) == ([], None), "the doubt is settled"
    assert shell(sweep_doubted) == errors.EXIT_USAGE, "there is nothing left to measure"
