"""docs/tune-your-model.md, command by command, on simulated times: record -> sweep -> train -> evaluate -> export."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from deep_gemm import _C, selection
from tests.fakes.in_process_worker import InProcessWorker
from tuner import cli
from tuner.problems import shapes
from tuner.search import sweep

PAGE = (Path(__file__).parents[3] / "docs" / "tune-your-model.md").read_text(encoding="utf-8")
SKU = "nvidia-h200-sm132"
#: What makes a step of the page quick, and possible without a GPU.
EXTRA = {
    "sweep": ["--backend", "simulated", "--effort", "quick"],
    "train": ["--trees", "4", "--portfolio-size", "4"],
    "evaluate": ["--jobs", "1"],
    "select": ["--device", "h200"],
}


def commands() -> list[list[str]]:
    """Return the tuner's command lines of the page, in order."""
    lines = "\n".join(re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)).splitlines()
    return [shlex.split(line)[3:] for line in lines if line.startswith("python -m tuner")]


@pytest.fixture
def home(own_home, monkeypatch):
    """A home folder with the page's shapes, in which commands run."""
    (recorded,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (own_home / "shapes.jsonl").write_text(recorded)
    monkeypatch.chdir(own_home)
    monkeypatch.setattr(sweep, "make_worker", lambda options: make_worker("graph-cold"))
    return own_home


def make_worker(regime: str) -> InProcessWorker:
    """Return a simulated GPU whose times pass for those of a regime."""
    worker = InProcessWorker()
    hello = worker.backend.hello()
    worker.backend.hello = lambda: hello | {"regime": regime}
    return worker


def test_recorded_lines_are_what_the_library_writes(home):
    problems = shapes.load_file(home / "shapes.jsonl")
    assert [problem.to_json() for problem in problems] == (home / "shapes.jsonl").read_text().splitlines()


@pytest.mark.full
def test_the_first_command_records_without_a_gpu(tmp_path):
    root = Path(__file__).parents[3]
    (command,) = re.findall(r"^DG_RECORD_SHAPES=shapes.jsonl python (.*)$", PAGE, re.MULTILINE)
    path = tmp_path / "shapes.jsonl"
    environment = os.environ | {"DG_RECORD_SHAPES": str(path), "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, *shlex.split(command)], cwd=root, env=environment, check=True, capture_output=True)
    problems = shapes.load_file(path)
    assert len(problems) == len(set(problems)) and {
        "m_grouped_fp8_gemm_contiguous",
        "m_grouped_fp8_gemm_masked",
        "m_grouped_bf16_gemm_masked",
    } <= {problem.op for problem in problems}


def test_the_page_leads_from_shapes_to_an_installed_choice(home, capsys):
    names, installed = [], home / ".deep_gemm" / "models" / f"{SKU}.dgsel"
    for words in commands():
        names.append(words[0])
        if words[:2] == ["models", "remove"]:
            check_choices(home)
        assert cli.run([*words, *EXTRA.get(words[0], [])]) == 0, (words, capsys.readouterr().err)
        assert installed.exists() == ("export" in names and words[:2] != ["models", "remove"])
    assert names == ["sweep", "db", "train", "evaluate", "export", "select", "models", "models"]
    assert "chosen (exact)" in capsys.readouterr().out


def check_choices(home: Path) -> None:
    """Check that the swept problems get what was measured, from the installed artefact."""
    selection.forget_selectors()
    device = _C.Device.known("h200")
    loaded = selection.load_selector(device.sku)
    assert loaded.file == str(home / ".deep_gemm" / "models" / f"{SKU}.dgsel")
    sources = [selection.explain(problem, device).source for problem in shapes.load_file(home / "shapes.jsonl")]
    assert sources.count("exact") >= len(sources) - 1  # one may be slower than the heuristic's pick by chance
