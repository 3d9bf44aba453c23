"""The sweep's driver: what it records, what it does about faults, and that a sweep killed anywhere resumes to the same
end.
"""

import json
import os
import shutil
import signal
from collections import Counter
from dataclasses import replace

import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tests.fakes.in_process_worker import InProcessWorker
from tests.fakes.spaces import make_space
from tuner import cli, errors
from tuner.db import Store
from tuner.db.rows import MeasurementRow, WinnerRow
from tuner.measure.devices import choose_visible_device
from tuner.measure.gpu_lock import GpuLock
from tuner.measure.worker_client import DeviceRetired
from tuner.problems.fields import kernel_problem
from tuner.search import past, precompile
from tuner.search.candidates import SweepOptions, find_kernels
from tuner.search.precompile import Compiled
from tuner.search.sweep import Sweep

PROBLEMS = [_C.Problem("fp8_gemm", m, n, k) for m, n, k in ((64, 2112, 7168), (16, 1280, 8192), (333, 512, 1024))]
DEVICE = _C.Device.known("h200")
#: A few configs, where a test is about something else than the space.
FEW = _C.get_candidates(PROBLEMS[0], DEVICE)[::8]
#: A problem for searches by proposals, with a space that is large enough for them.
SEARCHED = _C.Problem("fp8_gemm", 1024, 4096, 7168)
SPACE = make_space(SEARCHED, DEVICE)
HEURISTIC = [_C.get_analytic_config(problem, DEVICE) for problem in PROBLEMS]


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path, monkeypatch):
    """Keep the GPU's lock file out of the user's runtime folder."""
    (tmp_path / "runtime").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))


def run(path, worker=None, problems=PROBLEMS, store_class=None, **options) -> dict:
    """Run a sweep on simulated times in this process; return its summary."""
    with Store.open(path) as store:
        made = SweepOptions(problems, path, backend="simulated", **options)
        return Sweep(made, store_class(store) if store_class else store, worker or InProcessWorker()).run()


def read(path) -> tuple[list[MeasurementRow], list[WinnerRow]]:
    """Return all rows and all winners."""
    with Store.open(path, mode="ro") as store:
        assert store.check() == []
        return store.load_measurements(), store.load_best()


def winners(path) -> dict:
    """Return {problem key: (winner, tie set)}."""
    return {row.problem_key: (row.config, set(row.tie_set)) for row in read(path)[1]}


def failures_of(path, config) -> list[MeasurementRow]:
    """Return the rows of one config that are failures."""
    key = config.key("fp8_gemm")
    return [row for row in read(path)[0] if row.config_key == key and row.status not in ("ok", "censored")]


def test_a_sweep_records_every_candidate_and_a_winner(tmp_path):
    path = tmp_path / "a.db"
    summary = run(path)
    rows, best = read(path)
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
    assert {row.config_key for row in read(path)[0]} >= {config.key("fp8_gemm") for config in space}
    assert (
        run(path, problems=PROBLEMS[:1])["already_measured"]
        == run(path, problems=PROBLEMS[:1], configs=FEW)["already_measured"]
        == 1
    )


def test_four_fifths_of_the_space_are_enough(tmp_path):
    space = list(dict.fromkeys([HEURISTIC[0], *_C.get_candidates(PROBLEMS[0], DEVICE)]))
    for share, is_enough in ((0.78, 0), (0.82, 1)):
        path = tmp_path / f"{share}.db"
        run(path, problems=PROBLEMS[:1], configs=space[: round(share * len(space))])
        assert run(path, problems=PROBLEMS[:1], time_budget_s=1e-6)["already_measured"] == is_enough


def test_given_configs_are_measured_beside_the_heuristics_pick(tmp_path):
    configs = [_C.Config(64, 64, 4), _C.Config(128, 128, 4)]
    run(tmp_path / "a.db", configs=configs)
    rows, _ = read(tmp_path / "a.db")
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
    assert {(row.config_key, row.status, row.block.status) for row in read(path)[0]} == {
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
        for row in read(tmp_path / "a.db")[0]
        if row.role == "confirm" and row.config_key != HEURISTIC[0].key("fp8_gemm")
    ]
    bad = min(confirmed, key=lambda row: row.ratio).config
    run(tmp_path / "b.db", InProcessWorker(**{fault: [bad]}), problems=PROBLEMS[:1])
    assert {row.status for row in failures_of(tmp_path / "b.db", bad)} == {"incorrect"}
    assert all(row.median_us is None for row in failures_of(tmp_path / "b.db", bad))
    assert not any(bad in (row.config, *row.tie_set) for row in read(tmp_path / "b.db")[1])


@pytest.mark.parametrize("fault", ["crashing", "incorrect", "turning"])
def test_another_reference_stands_in_for_a_broken_heuristic_pick(tmp_path, fault):
    run(tmp_path / "a.db", InProcessWorker(**{fault: [HEURISTIC[0]]}), problems=PROBLEMS[:1], configs=FEW)
    assert failures_of(tmp_path / "a.db", HEURISTIC[0])
    rows, best = read(tmp_path / "a.db")
    assert len(best) == 1 and best[0].config != HEURISTIC[0]
    assert len({row.block.reference_config_id for row in rows}) == 1


def test_a_failure_that_nobody_explains_costs_its_problem_only(tmp_path):
    worker = InProcessWorker(unexplained=[PROBLEMS[1]])
    summary = run(tmp_path / "a.db", worker, configs=FEW)
    assert list(summary["failed"]) == [str(PROBLEMS[1])] and summary["measured"] == 2
    assert [job["plan"]["isolate"] for job in worker.jobs if job["problem"]["m"] == PROBLEMS[1].m] == [False, True]
    assert len(read(tmp_path / "a.db")[1]) == 2


def test_configs_that_do_not_compile_are_rows_and_not_launched(tmp_path, monkeypatch):
    first, second, *_ = _C.get_candidates(PROBLEMS[0], DEVICE)
    outcomes = {
        first: Compiled("compile_error", error="log"),
        second: Compiled("spill", 168, 64, 300.0, "nvrtc", "13.0", "64 bytes of registers spilled"),
    }
    monkeypatch.setattr(Sweep, "compile", lambda self, candidates: {kernel_problem(PROBLEMS[0]): outcomes})
    worker = InProcessWorker()
    run(tmp_path / "a.db", worker, problems=PROBLEMS[:1])
    assert [failures_of(tmp_path / "a.db", config)[0].status for config in (first, second)] == [
        "compile_error",
        "spill",
    ]
    assert failures_of(tmp_path / "a.db", second)[0].report.spill_bytes == 64
    launched = {tuple(row) for job in worker.jobs for row in job["configs"]}
    assert not {tuple(config.as_dict().values()) for config in (first, second)} & launched


def test_kernels_are_compiled_once_for_a_variant():
    few = _C.get_candidates(PROBLEMS[0], DEVICE)[:3]
    row_major = _C.Problem("fp8_gemm", 64, 2112, 7168, scale_layout="any")
    sized = _C.Problem("fp8_gemm", 64, 2112, 7168, compiled_dims="k")
    invariant = _C.Problem("fp8_gemm", 64, 2112, 7168, batch_invariant=True)
    kernels = find_kernels(dict.fromkeys([*PROBLEMS, invariant, row_major, sized], few))
    assert len(kernels) == 3 * len(few) and {problem.k for problem, _ in kernels} == {1, 7168}


def test_the_previous_winner_is_confirmed_again(tmp_path):
    path = tmp_path / "a.db"
    run(path, problems=PROBLEMS[:1], configs=FEW)
    worker = InProcessWorker()
    run(path, worker, problems=PROBLEMS[:1], configs=FEW, resume=False)
    assert worker.jobs[0]["must_confirm"]


def test_proposals_measure_a_share_and_resume_from_their_history(tmp_path):
    path, problem = tmp_path / "a.db", [SEARCHED]
    jobs = []

    def stop(job: dict) -> None:
        jobs.append(job)
        if len(jobs) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(path, InProcessWorker(on_job=stop), problem, configs=SPACE, sampler="tpe", num_trials=60)
    told = {row.config_key for row in read(path)[0]}
    worker = InProcessWorker()
    assert run(path, worker, problem, configs=SPACE, sampler="tpe", num_trials=60)["measured"] == 1
    rows, best = read(path)
    assert told < {row.config_key for row in rows} and len(best) == 1
    assert 60 <= len({row.config_key for row in rows}) <= 66 < len(SPACE)
    assert not any(row.role == "confirm" and row.block.status == "open" for row in rows)


def test_a_search_counts_as_done_with_its_trials(tmp_path):
    path, problem = tmp_path / "a.db", [SEARCHED]
    run(path, problems=problem, configs=SPACE, sampler="tpe", num_trials=40)
    assert run(path, problems=problem, configs=SPACE, sampler="tpe", num_trials=40)["already_measured"] == 1
    assert run(path, problems=problem, configs=SPACE, sampler="tpe", num_trials=55)["measured"] == 1
    assert run(path, problems=problem, configs=SPACE, sampler="tpe", num_trials=55)["already_measured"] == 1
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


def test_a_sweep_killed_anywhere_resumes_to_the_same_end(tmp_path):
    run(tmp_path / "whole.db", problems=PROBLEMS[:2], configs=FEW)
    expected_rows, expected = read(tmp_path / "whole.db")[0], winners(tmp_path / "whole.db")
    fatal = 0
    while True:
        fatal += 1
        path = tmp_path / f"killed{fatal}.db"
        if not run_killed(path, fatal):
            break
        told = {(row.block.problem_key, row.config_key, row.role, row.median_us) for row in read(path)[0]}
        run(path, problems=PROBLEMS[:2], configs=FEW)
        rows = read(path)[0]
        kept = Counter(
            (row.block.problem_key, row.config_key, row.role) for row in rows if row.block.status == "finished"
        )
        assert winners(path) == expected
        assert max(kept.values()) == 1 and len(kept) == len(expected_rows)
        assert told <= {(row.block.problem_key, row.config_key, row.role, row.median_us) for row in rows}
    assert fatal > 10


def test_a_winner_older_than_its_problems_newest_block_is_chosen_again(tmp_path):
    path = tmp_path / "a.db"
    run(path, problems=PROBLEMS[:1], configs=[HEURISTIC[0]])
    old = read(path)[1][0].block_id
    for fatal in range(1, 20):
        copy = tmp_path / f"killed{fatal}.db"
        shutil.copy(path, copy)
        assert run_killed(copy, fatal, PROBLEMS[:1], resume=False)
        rows, best = read(copy)
        if max(row.block.block_id for row in rows if row.block.status == "finished") > old == best[0].block_id:
            break
    assert run(copy, problems=PROBLEMS[:1], configs=FEW)["already_measured"] == 1
    run(tmp_path / "whole.db", problems=PROBLEMS[:1], configs=FEW)
    assert read(copy)[1][0].block_id > old and winners(copy) == winners(tmp_path / "whole.db")


def test_the_time_budget_stops_between_problems(tmp_path):
    summary = run(tmp_path / "a.db", time_budget_s=1e-6)
    assert summary["measured"] == 0 and summary["remaining"] == 3
    assert run(tmp_path / "a.db", time_budget_s=600.0, configs=FEW)["remaining"] == 0


def test_one_sweep_a_board():
    with GpuLock("ab" * 32), pytest.raises(errors.TunerError, match=f"process {os.getpid()}"):
        GpuLock("ab" * 32)
    with GpuLock("ab" * 32):
        pass


@pytest.mark.parametrize(
    ("visible", "ordinal", "chosen"),
    [(None, 2, "2"), ("3,5", 1, "5"), ("GPU-abc, GPU-def", 0, "GPU-abc"), ("MIG-1", 0, "MIG-1")],
)
def test_the_child_sees_one_gpu(monkeypatch, visible, ordinal, chosen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert choose_visible_device(ordinal) == chosen


@pytest.mark.parametrize(("visible", "ordinal"), [("", 0), ("0", 1), ("1,1", 0)])
def test_impossible_gpus_are_usage_errors(monkeypatch, visible, ordinal):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(errors.UsageError, match="CUDA_VISIBLE_DEVICES"):
        choose_visible_device(ordinal)


def test_shards_compile_from_different_places(monkeypatch):
    seen = []
    monkeypatch.setattr(
        precompile,
        "run_pool",
        lambda order, indices, processes, done, on_done: (
            seen.append(order),
            done.update({index: Compiled("ok") for index in indices}),
        ),
    )
    kernels = [("p", "a"), ("p", "b"), ("q", "a"), ("q", "d")]
    ok = Compiled("ok")
    assert precompile.compile_all(kernels, 2, lambda done, total: None, first=2) == {
        "p": {"a": ok, "b": ok},
        "q": {"a": ok, "d": ok},
    }
    assert seen == [kernels[2:] + kernels[:2]]


def test_a_compiling_process_that_dies_costs_its_kernel(monkeypatch):
    def die_at_c(order, indices, processes, done, on_done):
        done.update(
            {
                index: Compiled("ok")
                for index in indices
                if order[index] != ("p", "c") and (len(indices) == 1 or index < 2)
            }
        )

    monkeypatch.setattr(precompile, "run_pool", die_at_c)
    compiled = precompile.compile_all([("p", name) for name in "abcd"], 2, lambda done, total: None)["p"]
    assert {config: outcome.status for config, outcome in compiled.items()} == {
        "a": "ok",
        "b": "ok",
        "c": "compile_error",
        "d": "ok",
    }


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
    summary = json.loads(capsys.readouterr().out)
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
