"""`sweep --energy`: blocks of a regime of their own after all others, which nothing that ranks by time reads."""

import json
from types import SimpleNamespace

import pytest

from deep_gemm import _C
from tests.fakes.in_process_worker import InProcessWorker
from tests.fakes.sweeps import run_sweep
from tuner import cli, errors
from tuner.compare.blocks import take_repeated
from tuner.db import Store
from tuner.learn.dataset import load_dataset
from tuner.learn.energy import read_energies
from tuner.measure.energy import ROUNDS
from tuner.measure.power import PowerUnknown
from tuner.measure.records import Result
from tuner.measure.simulated import SimulatedTimer, simulate_power_w
from tuner.measure.worker_client import WorkerFailure
from tuner.problems import regimes
from tuner.search import energy
from tuner.search.candidates import SweepOptions
from tuner.search.plan import plan_sweep

H200 = _C.Device.known("h200")
LONG, SHORT = _C.Problem("fp8_gemm", 4096, 7168, 4096), _C.Problem("fp8_gemm", 16, 2112, 7168)
CONFIGS = _C.get_candidates(SHORT, H200)


def load(path):
    """Return (rows of energy, all others) of a sound database."""
    with Store.open(path, "ro") as store:
        assert store.check() == []
        rows = store.load_measurements()
    is_energy = [regimes.is_energy(row.block.regime) for row in rows]
    return [[row for row, holds in zip(rows, is_energy, strict=True) if holds == wanted] for wanted in (True, False)]


def jobs_of(worker):
    """Return the jobs that measure energy."""
    return [job for job in worker.jobs if job["plan"]["energy_s"]]


def test_a_sweep_measures_no_energy_unless_asked(tmp_path):
    worker = InProcessWorker()
    run_sweep(tmp_path / "a.db", [SHORT], worker)
    assert not jobs_of(worker) and not load(tmp_path / "a.db")[0]


def test_the_fastest_confirmed_configs_have_power_and_time(tmp_path):
    run_sweep(tmp_path / "a.db", [LONG, SHORT], energy=3)
    found, others = load(tmp_path / "a.db")
    for problem in (LONG, SHORT):
        rows = [row for row in found if row.block.problem == problem]
        confirmed = [
            row
            for row in others
            if (row.role, row.block.problem) == ("confirm", problem) and regimes.is_own(row.block.regime)
        ]
        wanted = {row.config for row in sorted(confirmed, key=lambda row: row.ratio)[:3]}
        assert {row.config for row in rows} == wanted | {_C.get_analytic_config(problem, H200)}
        for row in rows:
            assert (row.role, row.status, row.num_samples) == ("confirm", "ok", ROUNDS)
            assert row.power_w == pytest.approx(simulate_power_w(problem, row.config, H200)) and row.clock_mhz
            same = next(one for one in confirmed if one.config == row.config)
            assert row.median_us == pytest.approx(same.median_us, rel=0.03)
    assert {row.block.regime for row in found} == {"simulated-energy"}
    assert {row.block.status for row in found} == {"finished"} and all(0 < row.block.noise < 0.05 for row in found)
    assert not any(row.power_w for row in others)


def test_all_means_every_config_that_was_right_in_small_blocks(tmp_path):
    worker = InProcessWorker(incorrect=CONFIGS[-1:])
    run_sweep(tmp_path / "a.db", [SHORT], worker, energy=energy.EVERY)
    found, others = load(tmp_path / "a.db")
    right = {row.config for row in others if row.status in ("ok", "censored")}
    assert {row.config for row in found} == right and CONFIGS[-1] not in right and len(right) > energy.BLOCK_CONFIGS
    assert all(len(job["configs"]) <= energy.BLOCK_CONFIGS + 1 for job in jobs_of(worker))


def test_a_sweep_makes_up_for_missing_energy_and_measures_nothing_else(tmp_path):
    path = tmp_path / "a.db"
    run_sweep(path, [LONG, SHORT], energy=2)
    before, others = load(path)
    worker = InProcessWorker()
    assert run_sweep(path, [LONG, SHORT], worker, energy=5)["measured"] == 2
    assert worker.jobs == jobs_of(worker) and all(len(job["configs"]) <= 4 for job in worker.jobs)
    after, same = load(path)
    assert len(same) == len(others) and len({row.config for row in after}) > len({row.config for row in before})
    worker = InProcessWorker()
    assert run_sweep(path, [LONG, SHORT], worker, energy=5)["measured"] == 0 and not worker.jobs


def test_rests_and_energy_are_made_up_for_together(tmp_path):
    run_sweep(tmp_path / "a.db", [LONG, SHORT], rests=False)
    worker = InProcessWorker()
    assert run_sweep(tmp_path / "a.db", [LONG, SHORT], worker, energy=2)["measured"] == 2
    kinds = [("rest" if job["plan"]["rest"] else "", bool(job["plan"]["energy_s"])) for job in worker.jobs]
    assert sorted(kinds) == [("", True), ("", True), ("rest", False)]


def test_a_board_without_readings_says_why_and_the_sweep_goes_on(tmp_path, monkeypatch):
    def check_power(self):
        raise PowerUnknown("NVML gives neither")

    path, worker, events = tmp_path / "a.db", InProcessWorker(), []
    with monkeypatch.context() as patch, Store.open(path) as store:
        from tuner.search.sweep import Sweep

        patch.setattr(SimulatedTimer, "check_power", check_power)
        options = SweepOptions([LONG, SHORT], path, backend="simulated", energy=energy.EVERY)
        sweep = Sweep(options, store, worker, lambda name, facts: events.append((name, facts)))
        assert sweep.run()["failed"] == {}
    rows = load(path)[0]
    assert {(row.status, row.error, row.median_us) for row in rows} == {("skipped", "NVML gives neither", None)}
    assert [facts["text"] for name, facts in events if name == "warning"] == [
        "the energy of some configs is not known: NVML gives neither"
    ]
    assert len(jobs_of(worker)) == 2  # one a problem: the others would find nothing either
    assert run_sweep(path, [SHORT], energy=1)["measured"] == 1
    assert any(row.status == "ok" for row in load(path)[0])


def test_energy_that_nothing_compares_is_measured_again(tmp_path, monkeypatch):
    """Where the reference was not read, the others have power and no ratio: who reads energies leaves them out."""
    real, path, worker = SimulatedTimer.draw, tmp_path / "a.db", InProcessWorker()

    def miss_reference(self, index, seconds):
        if index == 0:
            raise PowerUnknown("planted")
        return real(self, index, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedTimer, "draw", miss_reference)
        run_sweep(path, [SHORT], energy=4)
    rows = load(path)[0]
    others = [row for row in rows if not row.is_reference]
    assert {(row.status, row.ratio, bool(row.power_w)) for row in others} == {("ok", None, True)}
    assert not read_energies(rows)
    assert run_sweep(path, [SHORT], worker, energy=4)["measured"] == 1
    assert read_energies(load(path)[0]).keys() == {row.config for row in rows} and worker.jobs == jobs_of(worker)
    worker = InProcessWorker()
    assert run_sweep(path, [SHORT], worker, energy=4)["measured"] == 0 and not worker.jobs


def test_a_row_without_power_of_its_own_has_no_energy(tmp_path):
    """The power that the board showed at the end of the block is that of another config."""

    class Unread(InProcessWorker):
        def run(self, job, limit_s, *more):
            document = super().run(job, limit_s, *more)
            document |= {"power_w": 650.0, "clock_mhz": 1500.0}
            if job["plan"]["energy_s"]:
                document["results"][-1] |= {"power_w": None, "clock_mhz": None}
            return document

    path, worker = tmp_path / "b.db", InProcessWorker()
    run_sweep(tmp_path / "a.db", [SHORT], Unread(), energy=4)
    assert cli.run(["db", "merge", str(path), str(tmp_path / "a.db")]) == 0
    rows, others = load(path)
    assert {(row.power_w, row.clock_mhz) for row in others} == {(650.0, 1500.0)}  # these have their block's
    (lacking,) = [row for row in rows if row.power_w is None]
    assert (lacking.status, lacking.clock_mhz, lacking.block.power_w) == ("ok", None, 650.0)
    assert read_energies(rows).keys() == {row.config for row in rows} - {lacking.config}
    assert run_sweep(path, [SHORT], worker, energy=4)["measured"] == 1 and len(worker.jobs) == 1
    assert lacking.config in read_energies(load(path)[0])


def test_what_counts_as_known_energy():
    def row(status, ratio=None, power_w=None, block="finished"):
        return SimpleNamespace(status=status, ratio=ratio, power_w=power_w, block=SimpleNamespace(status=block))

    assert energy.is_known(row("ok", 1.0, 500.0))
    assert all(energy.is_known(row(status)) for status in ("incorrect", "crash", "timeout", "compile_error", "spill"))
    lacking = [row("ok", 1.0), row("ok", None, 500.0), row("skipped"), row("skipped", 1.0, 500.0)]
    lacking.append(row("crash", block="open"))  # before its board was lost
    assert not any(map(energy.is_known, lacking))


def test_a_config_that_crashes_there_costs_nothing_else(tmp_path):
    class Crashing(InProcessWorker):
        def run(self, job, limit_s, *more):
            if job["plan"]["energy_s"] and len(job["configs"]) == 4:
                raise WorkerFailure("crash", "planted", 3)
            return super().run(job, limit_s, *more)

    summary = run_sweep(tmp_path / "a.db", [SHORT], Crashing(), energy=4)
    rows = load(tmp_path / "a.db")[0]
    assert (summary["measured"], summary["failed"], len(summary["quarantined"])) == (1, {}, 1)
    assert sorted(row.status for row in rows) == ["crash", "ok", "ok", "ok"]
    worker = InProcessWorker()
    run_sweep(tmp_path / "a.db", [SHORT], worker, energy=4)
    assert not worker.jobs


def test_readers_of_times_see_none_of_it(tmp_path):
    problems = [LONG, SHORT]
    run_sweep(tmp_path / "a.db", problems)
    run_sweep(tmp_path / "b.db", problems, energy=energy.EVERY)
    tables = []
    for name in ("a.db", "b.db"):
        with Store.open(tmp_path / name, "ro") as store:
            tables.append((load_dataset(store, H200.sku), store.load_best(), take_repeated(store.load_measurements())))
    (first, best, rows), (second, same, others) = tables
    assert first.identity == second.identity and first.configs == second.configs and len(rows) == len(others)
    assert (first.log_ratio == second.log_ratio).all() and (first.state == second.state).all()
    assert [(one.config, one.tie_set) for one in best] == [(one.config, one.tie_set) for one in same]


def test_the_choice_of_configs():
    def row(config, ratio, role="confirm", status="ok"):
        return Result(config=config, role=role, status=status, ratio=ratio, median_us=ratio)

    rows = [row(CONFIGS[0], 1.2), row(CONFIGS[1], 1.1), row(CONFIGS[2], 0.5, status="incorrect")]
    rows += [row(CONFIGS[0], 0.9, "search"), row(CONFIGS[3], 1.9, "search", "censored")]
    assert energy.choose_configs(rows, 0) == []
    assert energy.choose_configs(rows, 1) == [CONFIGS[1]]
    assert energy.choose_configs(rows, 9) == [CONFIGS[1], CONFIGS[0]]
    assert energy.choose_configs(rows, energy.EVERY) == [CONFIGS[1], CONFIGS[0], CONFIGS[3]]
    assert [len(part) for part in energy.split(CONFIGS[:33])] == [16, 16, 1]


@pytest.mark.parametrize("text", ["-1", "some", "1.5", ""])
def test_other_words_are_refused(text):
    with pytest.raises(errors.UsageError, match="--energy .*: must be a number of configs"):
        energy.parse_count(text)


def test_the_command_takes_it_and_a_dry_run_counts_it(tmp_path, capsys):
    shapes = tmp_path / "shapes.json"
    shapes.write_text(SHORT.to_json())
    arguments = ["sweep", "--shapes", str(shapes), "--db", str(tmp_path / "a.db"), "--json"]
    seconds = {}
    for count in ("0", "4", "all"):
        assert cli.run([*arguments, "--dry-run", "--energy", count]) == 0
        seconds[count] = json.loads(capsys.readouterr().out)["rough_seconds"]
    assert seconds["0"] + 4 < seconds["4"] < seconds["all"]
    assert plan_sweep(SweepOptions([SHORT], ""), H200)["rough_seconds"] == seconds["0"]
    assert cli.run([*arguments, "--backend", "simulated", "--no-sentinels", "--energy", "2"]) == 0
    assert {row.status for row in load(tmp_path / "a.db")[0]} == {"ok"}


def test_snapshots_and_merges_keep_it(tmp_path):
    run_sweep(tmp_path / "a.db", [LONG, SHORT], energy=2)
    assert cli.run(["db", "snapshot", str(tmp_path / "b.db"), "--db", str(tmp_path / "a.db"), "--sku", "h200"]) == 0
    for _ in range(2):
        assert cli.run(["db", "merge", str(tmp_path / "c.db"), str(tmp_path / "a.db")]) == 0
    wanted, *others = (
        sorted((row.block.problem_key, row.config_key, row.power_w, row.clock_mhz) for row in load(tmp_path / name)[0])
        for name in ("a.db", "b.db", "c.db")
    )
    assert wanted and others == [wanted, wanted]
