"""`select`: what it shows is what the run time does, with and without an artefact, and without a GPU."""

import json

import pytest

from deep_gemm import _C, selection
from tests.fakes import selectors
from tuner import cli

SKU = "nvidia-h200-sm132"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install an artefact whose kernels are this package's, and return its problems."""
    (tmp_path / f"{SKU}.dgsel").write_bytes(selectors.make_artifact())
    monkeypatch.setenv("DG_MODEL_DIR", str(tmp_path))
    monkeypatch.setattr(selection, "kernel_hash", lambda op: selectors.KERNEL_HASH)
    selection.forget_selectors()
    yield selectors.make_parts()[3]
    selection.forget_selectors()


@pytest.fixture
def without(tmp_path, monkeypatch):
    """Make the heuristic the only one to choose."""
    monkeypatch.setenv("DG_SELECTOR", "analytic")
    selection.forget_selectors()
    yield
    selection.forget_selectors()


def run(capsys, *arguments):
    """Run `select` and return (exit code, standard output, standard error)."""
    code = cli.run(["select", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def shape(problem):
    """Return a problem's sizes as arguments."""
    return problem.m, problem.n, problem.k


def test_it_shows_the_run_times_choice(installed, capsys):
    for problem in (installed[0], installed[50], _C.Problem("fp8_gemm", 64, 2112, 7168), _C.Problem("fp8_gemm", 5, 7, 11)):
        code, text, _ = run(capsys, *shape(problem), "--device", "h200", "--json")
        choice = selection.explain(problem, _C.Device.known("h200"))
        found = json.loads(text)
        assert code == 0 and found["config"] == choice.config.as_dict()
        assert (found["source"], found["reason"]) == (choice.source, choice.reason)
        assert found["problem"] == problem.as_dict() and found["predicted_us"] > 0


def test_an_exact_answer_still_shows_the_scores(installed, capsys):
    found = json.loads(run(capsys, *shape(installed[0]), "--device", SKU, "--json")[1])
    assert found["source"] == "exact" and len(found["scores"]) == 8
    assert [entry["score"] for entry in found["scores"]] == sorted(entry["score"] for entry in found["scores"])


def test_it_explains_guards_and_scores(installed, capsys):
    code, text, _ = run(capsys, *shape(installed[60]), "--device", "h200", "--explain")
    assert code == 0 and "heuristic's pick" in text and "margin 1.0%" in text and text.count("ok ") == 5 and "x the heuristic's pick" in text


@pytest.mark.filterwarnings("ignore::deep_gemm.errors.SelectorWarning")
def test_it_names_the_guard_that_refuses(installed, monkeypatch, capsys):
    monkeypatch.setattr(selection, "kernel_hash", lambda op: "ab" * 32)
    code, text, _ = run(capsys, *shape(installed[60]), "--device", "h200", "--explain")
    assert code == 0 and "analytic" in text and "NOT same kernels" in text


def test_without_an_artefact_the_heuristic_answers(without, capsys):
    problem = _C.Problem("fp8_gemm", 64, 2112, 7168)
    code, text, _ = run(capsys, 64, 2112, 7168, "--device", "h100", "--explain")
    assert code == 0 and str(_C.get_analytic_config(problem, _C.Device.known("h100"))) in text and "no selector" in text
    assert json.loads(run(capsys, 64, 2112, 7168, "--device", "h100", "--json")[1])["selector"] is None


def test_the_number_of_sms_is_part_of_the_problem(without, capsys):
    problem = _C.Problem("fp8_gemm", 4096, 4096, 4096, num_sms=20)
    found = json.loads(run(capsys, 4096, 4096, 4096, "--num-sms", 20, "--device", "h200", "--json")[1])
    assert found["problem"] == problem.as_dict() and found["name"] == str(_C.get_analytic_config(problem, _C.Device.known("h200")))


def test_every_field_of_a_problem_is_an_option(without, capsys):
    device = _C.Device.known("h200")
    gradient = _C.Problem("fp8_gemm", 4096, 4096, 7168, recipe="1d1d", d_dtype="fp32", c_mode="accumulate")
    arguments = ["--recipe", "1d1d", "--d-dtype", "fp32", "--c-mode", "accumulate"]
    found = json.loads(run(capsys, 4096, 4096, 7168, *arguments, "--device", "h200", "--json")[1])
    assert found["problem"] == gradient.as_dict() and found["name"] == str(_C.get_analytic_config(gradient, device))
    other = _C.Problem("bf16_gemm", 64, 512, 1024, a_major="mn", b_major="mn", batch_invariant=True)
    arguments = ["--op", "bf16_gemm", "--a-major", "mn", "--b-major", "mn", "--batch-invariant"]
    found = json.loads(run(capsys, 64, 512, 1024, *arguments, "--device", "h200", "--json")[1])
    assert found["problem"] == other.as_dict() and found["config"] == _C.get_analytic_config(other, device).as_dict()
    assert json.loads(run(capsys, 64, 512, 1024, "--scale-layout", "any", "--device", "h200", "--json")[1])["problem"]["scale_layout"] == "any"


def test_an_op_kind_that_the_artefact_does_not_know(installed, capsys):
    code, text, _ = run(capsys, 64, 2112, 7168, "--op", "bf16_gemm", "--device", "h200", "--explain")
    assert code == 0 and "does not know this op kind" in text and "no selector" in text


def test_no_gpu_means_the_recorded_model_of_gpu(without, monkeypatch, capsys):
    def refuse(*_):
        from deep_gemm.errors import DeviceError

        raise DeviceError("no driver")

    monkeypatch.setattr(_C, "get_device", refuse, raising=False)
    assert json.loads(run(capsys, 64, 2112, 7168, "--json")[1])["sku"] == SKU


@pytest.mark.parametrize("arguments", [(0, 1, 1), (1, 1, 2**31), (1, 1), ("a", 1, 1), (1, 1, 1, "--device", "b200"), (1, 1, 1, "--num-sms", "-1"), (1, 1, 1, "--op", "x"), (1, 1, 1, "--recipe", "x"), (1, 1, 1, "--a-major", "mn")])
def test_wrong_arguments_are_usage_errors_in_one_line(without, capsys, arguments):
    code, text, error = run(capsys, *arguments)
    assert code == 2 and not text and error.count("\n") == 1 and "Traceback" not in error
