"""`sweep --dry-run`: what would be measured, by op kind, and roughly how long that takes."""

import json
import re
from dataclasses import replace

import pytest

from deep_gemm import _C
from tuner import cli, errors
from tuner.commands.sweep import describe_seconds
from tuner.search.candidates import SweepOptions, choose_candidates
from tuner.search.plan import check_trials, estimate_seconds, plan_sweep

DEVICE = _C.Device.known("h200")
SMALL, LARGE = _C.Problem("fp8_gemm", 64, 2112, 7168), _C.Problem("fp8_gemm", 16384, 16384, 16384)
GROUPED = _C.Problem("m_grouped_bf16_gemm_masked", 64, 512, 1024, num_groups=4)
OPTIONS = SweepOptions([SMALL, LARGE, GROUPED], "")
COUNTS = ("problems", "space", "kernels", "measurements")


@pytest.fixture
def arguments(tmp_path):
    """Return the arguments of a dry run over the three problems."""
    shapes = tmp_path / "shapes.json"
    shapes.write_text("\n".join(problem.to_json() for problem in OPTIONS.problems))
    return ["sweep", "--shapes", str(shapes), "--db", str(tmp_path / "a.db"), "--dry-run"]


def estimate(problem, options=OPTIONS, configs=None) -> float:
    """Return the rough seconds of one problem."""
    return estimate_seconds(problem, configs or choose_candidates(problem, DEVICE, options), options, DEVICE)


def test_op_kinds_add_up():
    plan = plan_sweep(OPTIONS, DEVICE)
    assert list(plan["ops"]) == ["fp8_gemm", "m_grouped_bf16_gemm_masked"] and plan["ops"]["fp8_gemm"]["problems"] == 2
    assert all(plan[name] == sum(row[name] for row in plan["ops"].values()) for name in COUNTS)
    assert plan["rough_seconds"] == pytest.approx(sum(estimate(problem) for problem in OPTIONS.problems), abs=0.2)
    assert plan_sweep(replace(OPTIONS, problems=[]), DEVICE) | {
        "ops": {},
        "problems": 0,
        "rough_seconds": 0,
    } == plan_sweep(replace(OPTIONS, problems=[]), DEVICE)


def test_the_estimate_follows_the_kernels_the_configs_and_the_effort():
    configs = choose_candidates(SMALL, DEVICE, OPTIONS)
    assert estimate(SMALL) < estimate(LARGE)
    assert estimate(SMALL, configs=configs[-1:]) < estimate(SMALL, configs=configs[-8:]) < estimate(SMALL)
    assert estimate(SMALL) < estimate(SMALL, replace(OPTIONS, effort="full"))
    assert estimate(SMALL, replace(OPTIONS, sampler="random", num_trials=4)) < estimate(SMALL)


def test_a_number_of_trials_needs_a_search():
    """`auto` measures default spaces whole: the number did nothing."""
    for sampler in ("auto", "exhaustive"):
        with pytest.raises(errors.UsageError, match=f"--n-trials 8: .*--sampler {sampler} measures .* drop --n-trials"):
            check_trials(replace(OPTIONS, num_trials=8, sampler=sampler))
    check_trials(replace(OPTIONS, num_trials=8, sampler="forest"))
    check_trials(replace(OPTIONS, num_trials=8, space="wide"))
    check_trials(replace(OPTIONS, num_trials=8, problems=[]))
    check_trials(OPTIONS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--n-trials", "8"], "--n-trials 8: no problem would be searched"),
        (["--portfolio-from", "b.db"], "--portfolio-from b.db: only for --portfolio-size"),
        (["--mixed"], "--mixed: only for --gpus or --scheduler"),
    ],
)
def test_options_without_effect_are_refused_before_there_is_a_database(arguments, capsys, tmp_path, words, said):
    for more in ([], ["--backend", "simulated"]):
        command = [word for word in arguments if not more or word != "--dry-run"]
        assert cli.run([*command, *more, *words]) == errors.EXIT_USAGE
        assert said in capsys.readouterr().err and not (tmp_path / "a.db").exists()


def test_the_estimate_is_near_a_recorded_sweep():
    # 56 masked problems of the grouped preset took 24 s on an H200, 219 of the dense one 70 s at full effort, without
    # compiling.
    assert 0.1 < estimate(GROUPED) < 1.0 and 0.1 < estimate(SMALL, replace(OPTIONS, effort="full")) < 1.0


def test_a_line_for_each_op_kind(arguments, capsys):
    assert cli.run(arguments) == 0
    text = capsys.readouterr().out
    assert cli.run([*arguments, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert set(plan) == {
        "device",
        *COUNTS,
        "largest_space",
        "effort",
        "options",
        "configs",
        "best",
        "ops",
        "rough_seconds",
    }
    for name, row in {**plan["ops"], "total": plan}.items():
        cells = r"\s+".join(str(row[count]) for count in COUNTS)
        assert re.search(rf"^{name}\s+{cells}\s+{describe_seconds(row['rough_seconds'])}$", text, re.MULTILINE)
    assert "rough" in text and "Compiling the kernels comes on top" in text and "{" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "<1 s"), (0.5, "<1 s"), (1, "1 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2.0 h")],
)
def test_durations(seconds, text):
    assert describe_seconds(seconds) == text


def test_a_shard_and_given_configs_are_named(arguments, tmp_path, capsys):
    configs = tmp_path / "configs.json"
    configs.write_text(json.dumps([{"block_m": 64, "block_n": 64, "num_stages": 4}]))
    assert cli.run([*arguments, "--shard", "1/2", "--configs", str(configs)]) == 0
    text = capsys.readouterr().out
    assert "shard 1/2" in text and "1 given configs" in text


def test_finalists_are_measured_beside_the_winners_known():
    space = choose_candidates(SMALL, DEVICE, OPTIONS)
    made = replace(OPTIONS, finalists={SMALL: space[:2]})
    assert choose_candidates(SMALL, DEVICE, made, [space[-1]])[:3] == [*space[:2], space[-1]]
