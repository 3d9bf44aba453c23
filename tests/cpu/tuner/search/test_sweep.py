"""The sweep: what it records, how it handles faults, and its command."""

import json
from collections import Counter
from contextlib import nullcontext

import pytest

from deep_gemm import _C
from tests.fakes.in_process_worker import InProcessWorker
from tests.fakes.sweeps import read_all, run_sweep
from tuner import cli
from tuner.commands import sweep as command
from tuner.db.rows import MeasurementRow
from tuner.measure.worker_client import DeviceRetired
from tuner.problems.fields import kernel_identity
from tuner.search import sweep
from tuner.search.precompile import Compiled
from tuner.search.sweep import Sweep

PROBLEMS = [_C.Problem("fp8_gemm", m, n, k) for m, n, k in ((64, 2112, 7168), (16, 1280, 8192), (333, 512, 1024))]
DEVICE = _C.Device.known("h200")
#: A few configs, where a test is about something else than the space.
FEW = _C.get_candidates(PROBLEMS[0], DEVICE)[::8]
HEURISTIC = [_C.get_analytic_config(problem, DEVICE) for problem in PROBLEMS]


def run(path, worker=None, problems=PROBLEMS, **options) -> dict:
    """Sweep the problems of this file, or others; return the summary."""
    return run_sweep(path, problems, worker, **options)


def failures_of(path, config) -> list[MeasurementRow]:
    """Return the rows of one config that are failures."""
    key = config.key("fp8_gemm")
    return [row for row in read_all(path)[0] if row.config_key == key and row.status not in ("ok", "censored")]


def test_a_sweep_records_every_candidate_and_a_winner(tmp_path):
    path = tmp_path / "a.db"
    summary = run(path)
    rows, best = read_all(path)
    assert summary["measured"] == 3 and summary["remaining"] == 0 and not summary["failed"]
    for problem in PROBLEMS:
        mine = [row for row in rows if row.block.problem_key == problem.key]
        candidates = {config.key("fp8_gemm") for config in _C.get_candidates(problem, DEVICE)}
        assert {row.config_key for row in mine if row.role == "search"} == candidates
        confirmed = [row for row in mine if row.role == "confirm"]
        assert len(confirmed) >= 5 and all(row.num_samples >= 30 for row in confirmed)
        assert any(row.samples for row in confirmed)
        assert {row.block.reference_config_id for row in mine} == {
            row.config_id for row in mine if row.ratio == 1.0 and row.role == "confirm"
        }
        assert all(row.block.regime == "simulated" and row.block.status == "finished" for row in mine)
    assert {row.problem_key for row in best} == {problem.key for problem in PROBLEMS}


def test_given_configs_are_measured_beside_the_heuristics_pick(tmp_path):
    configs = [_C.Config(64, 64, 4), _C.Config(128, 128, 4)]
    run(tmp_path / "a.db", configs=configs)
    rows, _ = read_all(tmp_path / "a.db")
    for problem, pick in zip(PROBLEMS, HEURISTIC, strict=True):
        measured = {row.config_key for row in rows if row.block.problem_key == problem.key}
        assert measured == {config.key("fp8_gemm") for config in {*configs, pick}}


@pytest.mark.parametrize("fault", ["crashing", "hanging"])
def test_a_config_that_fails_twice_is_quarantined(tmp_path, fault):
    bad = FEW[3]
    worker = InProcessWorker(**{fault: [bad]})
    summary = run(tmp_path / "a.db", worker, configs=FEW)
    assert summary["measured"] == 3 and list(summary["quarantined"]) == [f"fp8_gemm {bad}"]
    statuses = [row.status for row in failures_of(tmp_path / "a.db", bad)]
    assert Counter(statuses) == {"crash" if fault == "crashing" else "timeout": 1, "skipped": 2}
    assert len(worker.jobs) == 2 + 3  # two attempts that failed, then one job a problem


@pytest.mark.parametrize("fault", ["crashing", "hanging"])
def test_many_failing_configs_do_not_cost_their_problem(tmp_path, fault):
    bad = [config for config in FEW if config != HEURISTIC[0]][:6]
    worker = InProcessWorker(**{fault: bad})
    summary = run(tmp_path / "a.db", worker, problems=PROBLEMS[:1], configs=FEW)
    assert summary["measured"] == 1 and not summary["failed"] and len(worker.jobs) == 2 * len(bad) + 1
    assert all(failures_of(tmp_path / "a.db", config) for config in bad)


def test_a_problem_that_is_given_up_keeps_its_failures(tmp_path):
    path, bad = tmp_path / "a.db", [FEW[3], HEURISTIC[0]]
    summary = run(path, InProcessWorker(crashing=bad), problems=PROBLEMS[:1], configs=bad)
    assert summary["measured"] == 0 and summary["failed"] and summary["statuses"] == {"crash": 2}
    assert {(row.config_key, row.status, row.block.status) for row in read_all(path)[0]} == {
        (config.key("fp8_gemm"), "crash", "failed") for config in bad
    }
    worker = InProcessWorker(crashing=bad)
    assert run(path, worker, problems=PROBLEMS[:1], configs=FEW)["measured"] == 1
    assert len(worker.jobs) == 1, "a resumed sweep must not repeat the crashes"


def test_failures_survive_a_device_that_is_retired(tmp_path):
    worker = InProcessWorker(crashing=[FEW[3]])

    def retire(job: dict) -> None:
        if len(worker.jobs) == 3:
            raise DeviceRetired("no start")

    worker.on_job = retire
    with pytest.raises(DeviceRetired):
        run(tmp_path / "a.db", worker, problems=PROBLEMS[:1], configs=FEW)
    assert [row.status for row in failures_of(tmp_path / "a.db", FEW[3])] == ["crash"]


@pytest.mark.parametrize("fault", ["incorrect", "turning"])
def test_wrong_results_are_incorrect_and_never_win(tmp_path, fault):
    run(tmp_path / "a.db", problems=PROBLEMS[:1])
    confirmed = [
        row
        for row in read_all(tmp_path / "a.db")[0]
        if row.role == "confirm" and row.config_key != HEURISTIC[0].key("fp8_gemm")
    ]
    bad = min(confirmed, key=lambda row: row.ratio).config
    run(tmp_path / "b.db", InProcessWorker(**{fault: [bad]}), problems=PROBLEMS[:1])
    assert {row.status for row in failures_of(tmp_path / "b.db", bad)} == {"incorrect"}
    assert all(row.median_us is None for row in failures_of(tmp_path / "b.db", bad))
    assert not any(bad in (row.config, *row.tie_set) for row in read_all(tmp_path / "b.db")[1])


@pytest.mark.parametrize("fault", ["crashing", "incorrect", "turning"])
def test_another_reference_stands_in_for_a_broken_heuristic_pick(tmp_path, fault):
    run(tmp_path / "a.db", InProcessWorker(**{fault: [HEURISTIC[0]]}), problems=PROBLEMS[:1], configs=FEW)
    assert failures_of(tmp_path / "a.db", HEURISTIC[0])
    rows, best = read_all(tmp_path / "a.db")
    assert len(best) == 1 and best[0].config != HEURISTIC[0]
    assert len({row.block.reference_config_id for row in rows}) == 1


def test_a_failure_that_nobody_explains_costs_its_problem_only(tmp_path):
    worker = InProcessWorker(unexplained=[PROBLEMS[1]])
    summary = run(tmp_path / "a.db", worker, configs=FEW)
    assert list(summary["failed"]) == [str(PROBLEMS[1])] and summary["measured"] == 2
    assert [job["plan"]["isolate"] for job in worker.jobs if job["problem"]["m"] == PROBLEMS[1].m] == [False, True]
    assert len(read_all(tmp_path / "a.db")[1]) == 2


def test_configs_that_do_not_compile_are_rows_and_not_launched(tmp_path, monkeypatch):
    first, second, *_ = _C.get_candidates(PROBLEMS[0], DEVICE)
    outcomes = {
        first: Compiled("compile_error", error="log"),
        second: Compiled("spill", 168, 64, 300.0, "nvrtc", "13.0", "64 bytes of registers spilled"),
    }
    monkeypatch.setattr(Sweep, "compile", lambda self, candidates: {kernel_identity(PROBLEMS[0]): outcomes})
    worker = InProcessWorker()
    run(tmp_path / "a.db", worker, problems=PROBLEMS[:1])
    assert [failures_of(tmp_path / "a.db", config)[0].status for config in (first, second)] == [
        "compile_error",
        "spill",
    ]
    assert failures_of(tmp_path / "a.db", second)[0].report.spill_bytes == 64
    launched = {tuple(row) for job in worker.jobs for row in job["configs"]}
    assert not {tuple(config.as_dict().values()) for config in (first, second)} & launched


def test_the_time_budget_stops_between_problems(tmp_path):
    summary = run(tmp_path / "a.db", time_budget_s=1e-6)
    assert summary["measured"] == 0 and summary["remaining"] == 3
    assert run(tmp_path / "a.db", time_budget_s=600.0, configs=FEW)["remaining"] == 0


def test_a_sweep_without_a_gpu_leaves_no_database(tmp_path, monkeypatch, capsys):
    def refuse():
        raise DeviceRetired("no CUDA GPU is visible")

    worker = InProcessWorker()
    worker.start = refuse
    monkeypatch.setattr(sweep, "make_worker", lambda options: nullcontext(worker))
    assert cli.run(["sweep", "--preset", "demo", "--db", str(tmp_path / "a.db")]) == 1
    assert "no CUDA GPU" in capsys.readouterr().err and not list(tmp_path.glob("a.db*"))


def test_command(tmp_path, capsys):
    shapes, configs, path = tmp_path / "shapes.json", tmp_path / "configs.json", tmp_path / "a.db"
    shapes.write_text(json.dumps([{"m": 64, "n": 2112, "k": 7168}, {"m": 17, "n": 512, "k": 1024}]))
    configs.write_text(
        json.dumps(
            {
                "configs": [
                    {"block_m": 64, "block_n": 64, "num_stages": 4},
                    {"block_m": 64, "block_n": 32, "num_stages": 6},
                ]
            }
        )
    )
    arguments = ["sweep", "--shapes", str(shapes), "--db", str(path), "--backend", "simulated", "--json"]
    assert cli.run([*arguments, "--configs", str(configs)]) == 0
    said = capsys.readouterr()
    summary = json.loads(said.out)
    assert "simulating NVIDIA H200" in said.err and "measuring" not in said.err
    assert summary["measured"] == 2 and summary["identities"]["fp8_gemm"]["regime"] == "simulated"
    assert cli.run([*arguments, "--dry-run", "--shard", "1/2"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--preset", "nothing"],
        ["--shard", "4/4"],
        ["--sampler", "grid"],
        ["--effort", "some"],
        ["--backend", "os:system"],
        ["--configs", "absent.json"],
        ["--portfolio-size", "33"],
    ],
)
def test_bad_flags_are_usage_errors(tmp_path, capsys, arguments):
    assert cli.run(["sweep", "--backend", "simulated", "--db", str(tmp_path / "a.db"), *arguments]) == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_preset_beside_shapes_and_an_empty_list_of_configs_are_refused(tmp_path, capsys):
    files = {"shapes": '{"m": 1, "n": 64, "k": 128}', "none": "[]"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    arguments = [
        "sweep",
        "--backend",
        "simulated",
        "--db",
        str(tmp_path / "a.db"),
        "--shapes",
        str(tmp_path / "shapes"),
    ]
    assert cli.run([*arguments, "--preset", "demo"]) == 2
    assert "--preset demo: cannot be combined with --shapes" in capsys.readouterr().err
    assert cli.run([*arguments, "--configs", str(tmp_path / "none")]) == 2
    assert "none: not a list of configs (ValueError: it is empty)" in capsys.readouterr().err
    assert not (tmp_path / "a.db").exists()
    assert cli.run([*arguments, "--shard", "1/2", "--dry-run"]) == 0
    assert capsys.readouterr().err == "--shard 1/2: holds none of the 1 problems\n"


@pytest.mark.parametrize(
    "option",
    [
        ("--seed", "-1"),
        ("--seed", str(2**32)),
        ("--sampler", "bogus"),
        ("--configs", "configs.json", "--portfolio-size", "4"),
    ],
)
def test_what_no_search_takes_is_refused_before_there_is_a_database(capsys, tmp_path, option):
    arguments = ["sweep", "--preset", "demo", "--backend", "simulated", "--db", str(tmp_path / "a.db"), *option]
    assert cli.run(arguments) == 2 and not (tmp_path / "a.db").exists()
    assert option[0] in capsys.readouterr().err


def test_a_sweep_that_could_not_measure_a_problem_fails_and_keeps_the_others(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "make_worker", lambda options: InProcessWorker(unexplained=[PROBLEMS[0]]))
    (tmp_path / "shapes").write_text(json.dumps([problem.as_dict() for problem in PROBLEMS]))
    options = ["--shapes", tmp_path / "shapes", "--db", tmp_path / "a.db", "--backend", "simulated", "--json"]
    assert cli.run(["sweep", *map(str, options)]) == 1
    said = capsys.readouterr()
    summary = json.loads(said.out)
    assert summary["measured"] == len(PROBLEMS) - 1 and list(summary["failed"]) == [str(PROBLEMS[0])]
    assert f"1 of {len(PROBLEMS)} problems could not be measured; {PROBLEMS[0]}: " in said.err.splitlines()[-1]


def test_the_summary_is_short_lines_and_a_table(capsys):
    summary = {
        "database": "tuning.db",
        "problems": 7,
        "already_measured": 2,
        "measured": 3,
        "failed": {"fp8_gemm m=1 n=2 k=3": "it hangs"},
        "remaining": 1,
        "identities": {
            "fp8_gemm": {"sku": DEVICE.sku, "kernel_hash": "ab" * 32, "compiler": "nvrtc", "regime": "graph-cold"}
        },
        "statuses": {"ok": 30, "censored": 12},
        "phase_seconds": {"check_all": 1.25, "recheck": 0.0},
        "quarantined": {},
        "retired": {},
        "seconds": 3.5,
        "seconds_per_problem": 1.1,
    }
    command.print_summary(summary, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("tuning.db: 3 of 7 problems measured now, 2 measured before, 1 failed, 1 left for the next run")
    assert lines[2].split() == ["fp8_gemm", DEVICE.sku, "abababab", "nvrtc", "graph-cold"]
    assert "configs: 12 censored, 30 ok" in lines[3] and lines[4] == "time: 4 s: check all 1.2 s"
    assert lines[6].split("  ")[1:] == ["fp8_gemm m=1 n=2 k=3", "it hangs"]
    assert "{" not in "".join(lines) and max(map(len, lines)) <= 100
