"""The command `ab` on simulated times: its words, its table, its JSON and its exit codes."""

import json
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree

import pytest

from deep_gemm import _C
from tests.fakes.sets_world import SetsWorker, make_side
from tuner import cli, errors
from tuner.commands import ab
from tuner.compare import comparison
from tuner.compare.kernel_sets import Clone, KernelSet
from tuner.measure.race import Check

H200 = _C.Device.known("h200")
WORDS = ["ab", "old", "new", "64", "2112", "7168"]


class Sets:
    """Stand-ins for two sets: what is asked of them, and what their kernels do."""

    def __init__(self):
        self.plant = lambda problem, entry: 1.0
        self.asked: list[tuple] = []

    def ask(self, asked: KernelSet, wanted: list, device, folder) -> list[dict]:
        """Answer as set_child does, without compiling."""
        found = []
        for problem, config, change in wanted:
            fields = config or _C.get_analytic_config(problem, H200).as_dict(with_defaults=False)
            self.asked.append((asked.name, config, change))
            found.append(make_side(_C.Config(**fields | change), asked.name))
        return found


@pytest.fixture
def sets(monkeypatch) -> Sets:
    """Two sets, `old` and `new`, and a simulated GPU."""
    made = Sets()
    monkeypatch.setattr(Clone, "make_set", lambda clone, name: KernelSet(name, f"revision {name}", Path("x"), None))
    monkeypatch.setattr(comparison, "ask", made.ask)
    monkeypatch.setattr(comparison, "GpuLock", lambda uuid: nullcontext())
    monkeypatch.setattr(comparison, "make_worker", lambda folder, device: SetsWorker(made.plant))
    return made


def run_json(capsys, *words: str) -> tuple[int, dict]:
    """Run the command with --json; return its exit code and report."""
    code = cli.run([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_equal_kernels_exit_with_0_and_a_table(sets, capsys):
    assert cli.run(WORDS) == 0
    out = capsys.readouterr().out
    assert "64x2112x7168" in out and " same" in out and "1 same" in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_without_a_gpu_no_set_is_built(capsys, monkeypatch):
    monkeypatch.setattr(Clone, "make_set", lambda *_: pytest.fail("built"))
    monkeypatch.setattr("tuner.measure.devices.count_visible_devices", lambda: 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cli.run(WORDS) == 1 and "no CUDA GPU" in capsys.readouterr().err


def test_a_slower_kernel_exits_with_1(sets, capsys):
    sets.plant = lambda problem, entry: 1.03 if entry.set == 1 else 1.0
    code, report = run_json(capsys, *WORDS)
    row = report["pairs"][0]
    assert code == report["exit_code"] == 1 and row["verdict"] == "slower"
    assert row["ratio"] == pytest.approx(1.03, abs=0.006) and row["ratio_low"] > 1.02
    assert report["device"]["sku"] == "nvidia-h200-sm132"


def test_a_wrong_kernel_exits_with_3(sets, capsys):
    wrong = Check("incorrect", error="D has other bits than entry 0's")
    sets.plant = lambda problem, entry: wrong if entry.set == 1 else 1.0
    assert cli.run(WORDS) == 3
    assert "new: D has other bits" in capsys.readouterr().out


def test_an_error_is_shown_with_its_remedy(sets, capsys):
    long = " ".join(["install the compiler"] * 20)
    sets.plant = lambda problem, entry: Check("incorrect", error=long) if entry.set == 1 else 1.0
    assert cli.run(WORDS) == 3
    out = capsys.readouterr().out
    assert " ".join(out.split()).count("install the compiler") == 20
    assert all(len(line) <= 100 for line in out.splitlines())


def test_markdown_and_junit_have_every_problem(sets, capsys, tmp_path):
    path = tmp_path / "shapes.jsonl"
    path.write_text("".join(f'{{"m": {m}, "n": 2112, "k": 7168}}\n' for m in (64, 128)))
    sets.plant = lambda problem, entry: 1.03 if entry.set == 1 and problem.m == 64 else 1.0
    assert cli.run(["ab", "old", "new", "--shapes", str(path), "--format", "markdown"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| fp8_gemm")]
    assert [line.split(" | ")[1] for line in lines] == ["64x2112x7168", "128x2112x7168"]
    assert [line.split(" | ")[-1] for line in lines] == ["slower |", "same |"]
    assert cli.run(["ab", "old", "new", "--shapes", str(path), "--format", "junit"]) == 1
    suite = ElementTree.fromstring(capsys.readouterr().out)
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "0")
    assert [len(case) for case in suite] == [1, 0] and suite[0][0].get("message").startswith("slower: NEW takes 1.0")
    assert cli.run([*WORDS, "--format", "html"]) == errors.EXIT_USAGE


def test_new_takes_the_config_that_old_chose(sets, capsys):
    assert cli.run([*WORDS, "--set", "num_stages=7"]) == 0
    chosen = _C.get_analytic_config(_C.Problem("fp8_gemm", 64, 2112, 7168), H200).as_dict(with_defaults=False)
    assert sets.asked == [("old", None, {}), ("new", chosen, {"num_stages": 7})]


def test_each_set_may_choose_for_itself(sets, capsys):
    assert cli.run([*WORDS, "--own-choice"]) == 0
    assert [config for _, config, _ in sets.asked] == [None, None]


def test_two_configs_of_this_tree_need_no_set(sets, capsys):
    _, report = run_json(capsys, "ab", "64", "2112", "7168", "--config", "64x64 s4", "--config", "64x96x128 s9 c1x1 k4")
    names = [report["pairs"][0][side]["name"] for side in ("old", "new")]
    assert names == ["64x64x128 s4 c1x1", "64x96x128 s9 c1x1 k4"] and report["old"]["name"] == "."


def test_problems_of_a_file_and_of_other_ops(sets, capsys, tmp_path):
    path = tmp_path / "shapes.jsonl"
    path.write_text('{"m": 64, "n": 2112, "k": 7168}\n{"op": "bf16_gemm", "m": 128, "n": 4096, "k": 7168}\n')
    assert len(run_json(capsys, "ab", "old", "--shapes", str(path))[1]["pairs"]) == 2
    words = ["4096", "4096", "7168", "--op", "m_grouped_fp8_gemm_nt_masked"]
    fields = ["--field", "num_groups=8", "--field", "expected_m=20"]
    assert cli.run(["ab", "old", *words, *fields]) == 0
    out = capsys.readouterr().out
    assert "num_groups=8" in out and all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.parametrize(
    "words",
    [
        ["ab"],
        ["ab", "64", "2112", "7168"],
        ["ab", "old"],
        ["ab", "a", "b", "c", "1", "2", "3"],
        [*WORDS, "--preset", "demo"],
        [*WORDS, "--config", "fast"],
        [*WORDS, "--config", "64x64 s4", "--config", "64x64 s4", "--config", "64x64 s4"],
        [*WORDS, "--set", "stages"],
        [*WORDS, "--op", "nope"],
        [*WORDS, "--field", "color=red"],
        [*WORDS, "--workload", "nope"],
        [*WORDS, "--seed", "-1"],
        [*WORDS, "--seed", "4294967296"],
    ],
)
def test_wrong_words_are_usage_errors(sets, words, capsys):
    assert cli.run(words) == errors.EXIT_USAGE


LOOPED = [{name: 1} for name in _C.LOOP_KNOBS] + [dict.fromkeys(_C.LOOP_KNOBS, 1)]


@pytest.mark.parametrize(
    "config",
    [
        *_C.get_candidates(_C.Problem("fp8_gemm", 64, 2112, 7168), H200)[::7],
        *(_C.Config(128, 128, 4, **cluster, **knobs) for cluster in ({}, {"cluster_n": 2}) for knobs in LOOPED),
    ],
    ids=str,
)
def test_configs_are_read_as_they_are_shown(config):
    assert _C.Config(**ab.read_config(str(config))) == config
    assert _C.Config(**ab.read_config(json.dumps(config.as_dict()))) == config
