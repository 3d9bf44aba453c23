"""`tune --quick`: a few problems make an artefact for these kernels out of older rows; simulated times."""

import json
import re
from functools import partial
from types import SimpleNamespace

import pytest

from deep_gemm import _C
from deep_gemm.errors import DeviceError
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.selector import Selector
from tests.fakes import databases, selectors, synthetic
from tests.fakes.sweeps import run_sweep
from tuner import cli, errors
from tuner.commands import tune as tune_command
from tuner.db import Store
from tuner.learn import quick, sources
from tuner.learn.learner import Settings
from tuner.ship import calibrate

DEVICE = _C.Device.known("h200")
POOL = [_C.Problem("fp8_gemm", m, n, k) for n, k in synthetic.SHAPES[1::8] for m in (16, 160, 1500)]


@pytest.fixture(autouse=True)
def few_problems(in_process, monkeypatch):
    """Measure in this process, on simulated times, and few problems."""
    monkeypatch.setattr(calibrate, "list_pool", lambda op: list(POOL))
    monkeypatch.setattr(quick, "ROUND", 4)
    settings = Settings(trees=24, sizes=(8,))
    monkeypatch.setattr(calibrate, "Calibration", partial(quick.Calibration, settings=settings))


def tune(tmp_path, *arguments: object) -> int:
    """Run `tune --quick` from the synthetic machine's rows and return the exit code."""
    folders = ["--db", tmp_path / "t.db", "--out", tmp_path / "models", "--prior", synthetic.make_small_database()]
    return cli.run(["tune", "--quick", "--backend", "simulated", *map(str, [*folders, *arguments])])


def check_artefact(tmp_path, report: dict) -> None:
    """Check that the artefact is of this tree's kernels and answers for measured and for other problems."""
    selector = Selector((tmp_path / "models" / f"{DEVICE.sku}.dgsel").read_bytes())
    with Store.open(tmp_path / "t.db", "ro") as store:
        measured = {row.problem for row in store.load_best(kernel_hash=kernel_hash("fp8_gemm"))}
    assert len(measured) == sum(row["problems"] for row in report["rounds"]) <= len(POOL)
    found = {problem: selector.choose(problem, DEVICE, "auto", kernel_hash("fp8_gemm")) for problem in POOL}
    assert {found[problem].source for problem in measured} >= {"exact"}
    assert {found[problem].source for problem in set(POOL) - measured} <= {"learned"}
    card = (tmp_path / "models" / f"{DEVICE.sku}.md").read_text()
    assert "before they were learned from" in card and synthetic.KERNEL_HASH[:16] in card


def test_older_rows_and_one_round_make_an_artefact_for_these_kernels(capsys, tmp_path):
    path = tmp_path / "models" / f"{DEVICE.sku}.dgsel"
    path.parent.mkdir()
    path.write_bytes(selectors.make_joined_artifact("fp8_gemm", "bf16_gemm"))
    before = Selector(path.read_bytes())
    assert tune(tmp_path, "--json", "--time-budget", 0) == 0
    report = json.loads(capsys.readouterr().out)
    [row] = report["rounds"]
    assert (row["round"], row["problems"], row["kept"], report["left_out"]) == (1, 4, False, [])
    check_artefact(tmp_path, report)
    check_kept(before, Selector(path.read_bytes()))
    assert "As they were in the artefact before it: `bf16_gemm`." in path.with_suffix(".md").read_text()


def check_kept(before: Selector, after: Selector) -> None:
    """Check that the calibrated op kind alone was replaced."""
    old, new = before.metadata["ops"], after.metadata["ops"]
    assert set(new) == {"fp8_gemm", "bf16_gemm"} and new["bf16_gemm"] == old["bf16_gemm"]
    assert new["fp8_gemm"]["kernel_hash"] == kernel_hash("fp8_gemm") != old["fp8_gemm"]["kernel_hash"]
    for problem in (_C.Problem("bf16_gemm", 64, n, k) for n, k in synthetic.SHAPES[1::4]):
        first, second = (selector.choose(problem, DEVICE) for selector in (before, after))
        assert (first.config, first.source) == (second.config, second.source)


def test_a_calibration_can_be_run_again_where_the_own_database_has_its_rows_alone(capsys, tmp_path, monkeypatch):
    """Of a GPU without a recording: the first run made ~/.deep_gemm/tuning.db, from which the second found no start."""
    monkeypatch.setattr(sources, "find_recorded", lambda device="": synthetic.make_small_database())
    arguments = ["tune", "--quick", "--backend", "simulated", "--out", str(tmp_path / "models"), "--time-budget", "0"]
    assert cli.run([*arguments, "--json"]) == 0
    assert (tmp_path / ".deep_gemm" / "tuning.db").is_file()
    first = json.loads(capsys.readouterr().out)
    assert cli.run([*arguments, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [[row["op"], row["problems"]] for report in (first, again) for row in report["rounds"]] == [
        ["fp8_gemm", 4]
    ] * 2


def add_lonely(path, op: str) -> None:
    """Add the block of one problem of other kernels."""
    with Store.open(path) as store:
        databases.add_block(store, databases.add_context(store), _C.Problem(op, 64, 2112, 7168), op=op)


def test_an_op_kind_without_a_start_is_skipped_and_said(capsys, tmp_path):
    prior = tmp_path / "prior.db"
    prior.write_bytes(synthetic.make_small_database().read_bytes())
    add_lonely(prior, "bf16_gemm")
    shared = ["--prior", prior, "--time-budget", 0]
    assert tune(tmp_path, *shared, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["skipped"] == ["bf16_gemm"] and {row["op"] for row in report["rounds"]} == {"fp8_gemm"}
    assert tune(tmp_path, *shared) == 0
    assert "without rows of other kernels to start from: bf16_gemm" in capsys.readouterr().out
    assert tune(tmp_path, *shared, "--op", "bf16_gemm") == errors.EXIT_INCONCLUSIVE
    assert "no rows of other kernels" in capsys.readouterr().err


@pytest.mark.parametrize("arguments, effort", [((), "quick"), (("--effort", "full"), "full")])
def test_rounds_are_swept_with_the_effort_asked_for_and_say_by_what_command(tmp_path, monkeypatch, arguments, effort):
    swept = []

    def measure(options):
        swept.append(options)
        raise errors.NothingMeasuredError("enough")

    monkeypatch.setattr(tune_command, "measure", measure)
    monkeypatch.setattr(tune_command.sys, "argv", ["tuner", "tune", "--quick"])
    run_sweep(tmp_path / "t.db", POOL[:1])
    assert tune(tmp_path, *arguments) == errors.EXIT_INCONCLUSIVE
    assert [(options.effort, options.argv, options.space) for options in swept] == [
        (effort, ["tune", "--quick"], "loops")
    ]


@pytest.mark.full
def test_rounds_follow_until_they_get_no_better(capsys, tmp_path):
    assert tune(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    numbers = [int(line.split()[0]) for line in lines if "fp8_gemm" in line]
    assert numbers == list(range(1, 1 + len(numbers))) and len(numbers) > 1 and lines[-1].startswith("written: ")


def test_where_the_heuristic_is_as_good_nothing_is_written(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate.Calibrator, "is_better", lambda self, calibration: False)
    assert tune(tmp_path, "--time-budget", 0) == errors.EXIT_INCONCLUSIVE
    message = capsys.readouterr().err
    assert re.search(r"fp8_gemm \d+\.\d% against \d+\.\d% of 4 problems\); sweep a whole preset", message)
    assert not (tmp_path / "models").exists()


def make_calibrator(tmp_path, backend: str) -> calibrate.Calibrator:
    """Return a calibrator of two op kinds, of which dense FP8 alone is measured, by simulated times."""
    prior = quick.make_source(synthetic.make_small_dataset(), quick.PRIOR_WEIGHT)
    pools = {"fp8_gemm": POOL, "bf16_gemm": [_C.Problem("bf16_gemm", p.m, p.n, p.k) for p in POOL]}
    calibrations = [calibrate.Calibration(op, DEVICE, prior, list(pool)) for op, pool in pools.items()]

    def measure(problems: list) -> None:
        run_sweep(tmp_path / "t.db", [problem for problem in problems if problem.op == "fp8_gemm"])

    return calibrate.Calibrator(DEVICE, str(tmp_path / "t.db"), measure, calibrations, backend)


def test_an_op_kind_of_which_nothing_was_measured_stays_as_it_is_and_the_others_go_on(few_sources, tmp_path):
    calibrator = make_calibrator(tmp_path, "simulated")
    calibrator.run(0.0)
    assert [(row["op"], row["problems"], row["regret"] is None) for row in calibrator.log] == [
        ("fp8_gemm", 4, False), ("bf16_gemm", 0, True),
    ]  # fmt: skip
    assert [each.is_given_up for each in calibrator.calibrations] == [False, True]
    assert calibrate.describe_costs(calibrator.calibrations[1]) == "bf16_gemm not measured"


@pytest.mark.full
def test_rows_of_other_problems_are_no_round(few_sources, tmp_path):
    """A second calibration into one database: a round that measured nothing was logged as one without regret."""
    run_sweep(tmp_path / "t.db", [_C.Problem("fp8_gemm", m, 7168, 2048) for m in (2048, 4096)])
    calibrator = make_calibrator(tmp_path, "simulated")
    calibrator.measure = lambda problems: None
    calibrator.run(0.0)
    assert [(row["problems"], row["regret"]) for row in calibrator.log] == [(0, None)] * 2
    assert all(each.is_given_up and not each.rounds for each in calibrator.calibrations)


def test_a_round_of_which_nothing_was_measured_keeps_those_before(capsys, tmp_path, monkeypatch):
    known, rounds = tune_command.measure, []

    def measure(options):
        rounds.append(len(options.problems))
        if len(rounds) > 1:
            raise errors.NothingMeasuredError("none of 4 problems could be measured; fp8_gemm: hung")
        return known(options)

    monkeypatch.setattr(tune_command, "measure", measure)
    assert tune(tmp_path, "--json") == 0
    out, err = capsys.readouterr()
    assert [row["problems"] for row in json.loads(out)["rounds"]] == [4, 0] and "none of 4 problems" in err


def test_simulated_times_teach_no_calibration_on_a_gpu(few_sources, tmp_path):
    """A database may hold both, and more of the simulated ones."""
    calibrator = make_calibrator(tmp_path, "cuda")
    calibrator.run(0.0)
    assert [row["problems"] for row in calibrator.log] == [0, 0]
    with pytest.raises(errors.InconclusiveError, match="fp8_gemm not measured; bf16_gemm not measured"):
        calibrator.export(tmp_path / "training", tmp_path / "models")


def test_a_selector_must_lose_less_than_the_heuristic_over_all_rounds():
    def make(*rounds: tuple) -> SimpleNamespace:
        return SimpleNamespace(
            rounds=[
                SimpleNamespace(mean=mean, heuristic=other, configs=dict.fromkeys(range(n)))
                for mean, other, n in rounds
            ]
        )

    is_better = calibrate.Calibrator.is_better
    assert is_better(None, make((0.01, 0.02, 8))) and not is_better(None, make((0.02, 0.02, 8)))
    assert is_better(None, make((0.03, 0.02, 2), (0.01, 0.02, 8)))
    assert not is_better(None, make((0.03, 0.02, 8), (0.01, 0.02, 2)))


def test_a_database_of_a_server_stays_a_url(capsys, tmp_path, monkeypatch):
    url, opened, known = "postgresql://me:hidden@127.0.0.1:1/tuning", [], Store.open

    def open_store(target, mode="rw", wait_s=0.0):
        if "postgresql" not in str(target):
            return known(target, mode, wait_s)
        opened.append(target)
        raise errors.StoreError(f"{target}: no server")

    monkeypatch.setattr("tuner.commands.tune.measure", lambda *arguments: {})
    monkeypatch.setattr(Store, "open", open_store)
    assert tune(tmp_path, "--time-budget", 0, "--db", url) == errors.EXIT_FAILURE
    assert opened == [url] and "hidden" not in "".join(capsys.readouterr())


def test_without_older_rows_there_is_nothing_to_start_from(capsys, tmp_path):
    assert tune(tmp_path, "--op", "bf16_gemm") == errors.EXIT_INCONCLUSIVE
    assert "no rows of other kernels" in capsys.readouterr().err


@pytest.mark.parametrize("ordinal, asked", [(0, "h200"), (1, "h100"), (2, None)])
def test_the_gpu_that_is_named_is_calibrated(capsys, tmp_path, monkeypatch, ordinal, asked):
    boards, targets = [DEVICE, _C.Device.known("h100")], []

    def get_device(number=0):
        if number >= len(boards):
            raise DeviceError(f"device = {number}: this process sees 2 GPUs; name another")
        return boards[number]

    def start(store, target, ops, backend):
        targets.append(target)
        raise errors.InconclusiveError("enough")

    monkeypatch.setattr(_C, "get_device", get_device)
    monkeypatch.setattr(calibrate, "start", start)
    code = tune(tmp_path, "--device", ordinal)
    assert targets == ([] if asked is None else [_C.Device.known(asked)])
    assert code == (errors.EXIT_USAGE if asked is None else errors.EXIT_INCONCLUSIVE)
    assert asked or f"--device {ordinal}: device = {ordinal}: this" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("tune", "--quick", "64"), ("tune", "64", "128"), ("tune",)])
def test_sizes_are_for_one_problem_and_quick_for_many(capsys, tmp_path, arguments):
    assert cli.run([*arguments, "--backend", "simulated", "--out", str(tmp_path)]) == errors.EXIT_USAGE
    assert "M, N and K" in capsys.readouterr().err


@pytest.mark.parametrize("given", [("--prior", "a.db"), ("--time-budget", "60")])
def test_what_only_a_calibration_takes_is_refused_for_one_problem(capsys, tmp_path, given):
    arguments = ["tune", "48", "512", "1024", "--backend", "simulated", "--db", tmp_path / "t.db", "--out", tmp_path]
    assert cli.run([*map(str, arguments), *given]) == errors.EXIT_USAGE
    assert f"{given[0]}: only for --quick; drop it" in capsys.readouterr().err and not (tmp_path / "t.db").exists()


@pytest.mark.parametrize("arguments", [("--op", "x"), ("--backend", "x"), ("--effort", "x")])
def test_wrong_arguments_are_usage_errors(capsys, tmp_path, arguments):
    assert tune(tmp_path, *arguments) == errors.EXIT_USAGE
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "models").exists()
