"""benchmarks/tuned_models.py on the CPU: from the problems of a tiny model to an artefact that chooses for them."""

import json
import os

import pytest
import torch

from benchmarks import tuned_models
from deep_gemm import _C, selection
from tests.fakes.in_process_worker import InProcessWorker
from tuner.problems import shapes
from tuner.search import sweep


@pytest.fixture(autouse=True)
def without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sweep, "make_worker", lambda options: InProcessWorker())


def test_a_model_that_transformers_cannot_be_timed_with_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        tuned_models.main(["--work", str(tmp_path), "--model", "deepseek_v3", "--transformers"])
    assert "has no fixed cache for deepseek_v3" in capsys.readouterr().err


def test_a_selector_of_the_environment_does_not_choose_for_all_ways(tmp_path):
    assert tuned_models.get_settings("before", tmp_path) == {"DG_SELECTOR": "auto"}
    assert tuned_models.get_settings("tuned", tmp_path)["DG_SELECTOR"] == "auto"


def test_the_model_is_timed_in_all_ways(tmp_path, capsys, monkeypatch):
    ran = []
    monkeypatch.setattr(tuned_models.cli, "run", lambda words: ran.append((words[0], os.environ["DG_MODEL_DIR"])) or 0)
    work, out = tmp_path / "work", tmp_path / "tuned.json"
    assert tuned_models.main(["--work", str(work), "--rounds", "2", "--out", str(out)]) == 0
    assert ran == [(name, str(work / "models")) for name in ("sweep", "train", "evaluate", "export")]
    result = json.loads(out.read_text())
    assert result["meta"]["problems"] == len(shapes.load_file(work / "shapes.jsonl")) == 8
    assert result["meta"]["changed"] == 0, "nothing was exported"
    check_rows(result["rows"])
    printed = capsys.readouterr().out
    assert "| prefill | 16 |" in printed and "| decode | 2 |" in printed and "have another config now" in printed


def check_rows(rows: list[dict]) -> None:
    """Check that every case was timed in every way."""
    assert [row["phase"] for row in rows] == ["prefill", "decode"]
    for row in rows:
        assert all(len(row[f"{way}_ms"]) == 2 and row[f"{way}_tokens_s"] > 0 for way in tuned_models.WAYS)
        assert row["gain"] > 0 and row["heuristic_gain"] > 0


@pytest.mark.full
def test_a_dense_model_is_tuned(tmp_path):
    check_run(tmp_path, "llama_8b", {"fp8_gemm"})


@pytest.mark.full
def test_a_mixture_of_experts_is_tuned(tmp_path):
    check_run(tmp_path, "qwen3_30b", {"fp8_gemm", "m_grouped_fp8_gemm_masked"})


def check_run(folder, name: str, ops: set[str]) -> None:
    """Tune a tiny model on simulated times, and check problems, artefact and rows."""
    work, out = folder / "work", folder / "tuned.json"
    assert tuned_models.main(["--model", name, "--work", str(work), "--rounds", "2", "--out", str(out)]) == 0
    result, problems = json.loads(out.read_text()), shapes.load_file(work / "shapes.jsonl")
    assert {problem.op for problem in problems} == ops <= set(tuned_models.FAMILIES[name].ops)
    assert result["meta"]["problems"] == len(problems) >= 4
    assert result["meta"]["seconds"].keys() == {"sweep", "train", "evaluate", "export"}
    assert result["meta"]["changed"] == count_changes(problems, work) > 0
    check_rows(result["rows"])


def count_changes(problems: list, work) -> int:
    """Return how many problems the exact table of the artefact serves with another config than the shipped one's."""
    device, chosen = _C.Device.known("h200"), []
    for settings in ({}, {"DG_MODEL_DIR": str(work / "models")}):
        with tuned_models.use_environment(settings):
            chosen.append([selection.explain(problem, device) for problem in problems])
    assert [choice.source for choice in chosen[1]].count("exact") >= len(problems) - 1
    return sum(before.config != after.config for before, after in zip(*chosen))


def test_a_failed_command_ends_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tuned_models.cli, "run", lambda words: 2 if words[0] == "sweep" else 0)
    assert tuned_models.main(["--work", str(tmp_path), "--out", str(tmp_path / "tuned.json")]) == 1
    assert "tuner sweep --shapes" in capsys.readouterr().err and not (tmp_path / "tuned.json").exists()


def test_the_environment_is_as_before_afterwards(monkeypatch):
    monkeypatch.setenv("DG_SELECTOR", "model")
    monkeypatch.delenv("DG_MODEL_DIR", raising=False)
    with tuned_models.use_environment({"DG_SELECTOR": "analytic", "DG_MODEL_DIR": "x"}):
        assert os.environ["DG_SELECTOR"] == "analytic"
    assert os.environ["DG_SELECTOR"] == "model" and "DG_MODEL_DIR" not in os.environ


def test_a_failed_case_is_a_row_and_not_in_the_table():
    case = tuned_models.Case("decode", 1, 1)
    row = tuned_models.run_safely(tuned_models.time_case, case, lambda: 1 / 0, None, 1)
    assert "failed" in row and "decode" not in tuned_models.format_table([row])
