"""`warmup`: its arguments reach deep_gemm.warmup, its report is printed, and failures end with exit code 1."""

import json

import pytest

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import CompileError, DeviceError
from deep_gemm.identity import write_line
from deep_gemm.recorded_calls import PrenormCall
from deep_gemm.selector import Selector
from deep_gemm.warm_up import Failure, WarmUpReport
from tests.fakes.in_process_worker import InProcessWorker
from tuner import cli
from tuner.commands import warmup as command
from tuner.commands.warmup import parse_rows
from tuner.errors import EXIT_USAGE, UsageError
from tuner.problems.shapes import load_file
from tuner.search import sweep

DEVICE = _C.Device.known("h200")
SHAPE = _C.Problem("fp8_gemm", 64, 256, 512)
FAILURE = Failure("64x64x128 for a problem", CompileError("no such instruction"))


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "shapes.jsonl"
    path.write_text(SHAPE.to_json() + "\n")
    return str(path)


@pytest.fixture
def calls(monkeypatch):
    """Take the place of deep_gemm.warmup; return its calls and what it will report as failures."""
    made, failures = [], []

    def warmup(*arguments, **options):
        made.append((arguments, options))
        return WarmUpReport(2, 3, 2, 1 - len(failures), 0, 0.5, tuple(failures))

    monkeypatch.setattr(deep_gemm, "warmup", warmup)
    return made, failures


def test_arguments_and_report(shapes, calls, capsys):
    options = ["--m", "1,8-16:4", "--device", "h100", "--any-size", "--cores", "2"]
    assert cli.run(["warmup", shapes, *options]) == 0
    assert calls[0] == [(([SHAPE], [1, 8, 12, 16]), {"device": "h100", "any_size": True, "cores": 2})]
    assert capsys.readouterr().out == "2 problems need 3 kernels: 2 compiled, 1 found, 0 failed, in 0.5 s\n"
    assert cli.run(["warmup", shapes, "--json"]) == 0
    assert calls[0][1] == (([SHAPE], None), {"device": None, "any_size": False, "cores": 0})
    assert json.loads(capsys.readouterr().out) == {
        "problems": 2,
        "kernels": 3,
        "compiled": 2,
        "found": 1,
        "planned": 0,
        "seconds": 0.5,
        "failures": [],
    }


def test_calls_without_configs_are_warmed_up_and_nothing_else(tmp_path, calls, capsys):
    path = tmp_path / "calls.jsonl"
    line = '{"fields":{"k":7168,"m":64,"n":24},"op":"tf32_hc_prenorm_gemm"}\n'
    path.write_text(line)
    assert cli.run(["warmup", str(path), "--device", "h200"]) == 0
    path.write_text(line + SHAPE.to_json() + "\n")
    assert cli.run(["warmup", str(path), "--device", "h200"]) == 0
    assert [arguments[0] for arguments, _ in calls[0]] == [
        [PrenormCall(64, 24, 7168)],
        [SHAPE, PrenormCall(64, 24, 7168)],
    ]
    assert load_file(path) == [SHAPE]
    path.write_text(line)
    with pytest.raises(UsageError, match="it holds no problem with configs"):
        load_file(path)


def test_signals_are_warmed_up_and_never_measured(tmp_path, calls, monkeypatch):
    """They change no choice, and what measures passes none."""
    masked = _C.Problem("m_grouped_fp8_gemm_masked", 64, 256, 512, num_groups=2)
    path, few = tmp_path / "calls.jsonl", []
    path.write_text("".join(f"{write_line(problem)}\n" for problem in (masked.with_signals(), masked)))
    assert cli.run(["warmup", str(path), "--device", "h200"]) == 0
    assert calls[0][0][0][0] == [masked.with_signals(), masked] and load_file(path) == [masked]
    monkeypatch.setattr(command, "install_few", lambda problems, *arguments, **options: few.extend(problems))
    command.measure_few([masked.with_signals(), masked], None, 1, DEVICE)
    assert few == [masked]
    path.write_text(json.dumps(masked.as_dict() | {"has_signals": True}) + "\n")
    assert load_file(path) == [masked] and cli.run(["warmup", str(path), "--device", "h200"]) == 0
    assert calls[0][1][0][0] == [masked.with_signals()]
    path.write_text(json.dumps(masked.as_dict() | {"has_signals": 1}) + "\n")
    with pytest.raises(UsageError, match="has_signals = 1: must be a bool"):
        load_file(path)


def test_failures(shapes, calls, capsys):
    calls[1].append(FAILURE)
    assert cli.run(["warmup", shapes, "--device", "h200"]) == 1
    said = capsys.readouterr()
    assert "64x64x128 for a problem: CompileError: no such instruction" in said.out
    assert said.err == "tuner: 1 of 3 kernels failed\n"
    assert cli.run(["warmup", shapes, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["failures"][0]["error"] == "CompileError"


def test_wrong_arguments(shapes, capsys):
    for words in ([shapes, "--m", "8-"], [shapes, "--device", "h2000"], ["/missing/shapes.jsonl"], []):
        assert cli.run(["warmup", *words]) == 2
    assert "--m 8-: must be numbers" in capsys.readouterr().err


def test_without_a_gpu_the_remedy_is_an_option_of_the_command(shapes, capsys, monkeypatch):
    def get_device():
        raise DeviceError("no CUDA driver; use CPU tensors")

    monkeypatch.setattr(_C, "get_device", get_device)
    assert cli.run(["warmup", shapes]) == 2
    said = capsys.readouterr().err
    assert "no CUDA driver; name a GPU model, such as --device h200" in said and "Device.known" not in said


def test_an_unusable_cache_is_one_line(shapes, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "file"))
    assert cli.run(["warmup", shapes, "--device", "h200"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"tuner: DG_JIT_CACHE_DIR = {tmp_path}/file: Not a directory") and said.count("\n") == 1


def test_rows():
    assert parse_rows("") is None
    assert parse_rows("8") == [8]
    assert parse_rows("1-4, 4,64-128:32") == [1, 2, 3, 4, 64, 96, 128]
    for text in ("4-1", "x", "1,,2", "-3", "1-9:x", "1-9:0", "1-999999999", "1-60000,1-60000"):
        with pytest.raises(UsageError, match="--m"):
            parse_rows(text)


def test_the_best_few_are_measured_before_anything_is_compiled(in_process, shapes, calls, capsys, tmp_path):
    options = ["--measure", "2", "--m", "8,64", "--backend", "simulated", "--db", tmp_path / "t.db", "--out", tmp_path]
    assert cli.run(["warmup", shapes, *map(str, options), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["measured"]["problems"] == len(report["measured"]["installed"]) == 2
    selector = Selector((tmp_path / f"{DEVICE.sku}.dgsel").read_bytes())
    for m, found in zip((8, 64), report["measured"]["installed"], strict=True):
        choice = selector.choose(_C.Problem("fp8_gemm", m, 256, 512), DEVICE)
        assert choice.source == "exact" and choice.config.as_dict() == found["config"]
    [((_, rows), made)] = calls[0]
    assert rows == [8, 64] and made["device"].sku == DEVICE.sku
    assert cli.run(["warmup", shapes, *map(str, options)]) == 0
    assert "2 of 2 problems written" in (text := capsys.readouterr().out) and "2 problems need 3 kernels" in text


def test_what_could_not_be_measured_is_a_failure_after_all_is_compiled(shapes, calls, capsys, tmp_path, monkeypatch):
    bad = _C.Problem("fp8_gemm", 64, 256, 512)
    monkeypatch.setattr(sweep, "make_worker", lambda options: InProcessWorker(unexplained=[bad]))
    options = ["--measure", "2", "--m", "8,64", "--backend", "simulated", "--db", tmp_path / "t.db", "--out", tmp_path]
    assert cli.run(["warmup", shapes, *map(str, options)]) == 1
    said = capsys.readouterr()
    assert "1 of 2 problems written" in said.out and len(calls[0]) == 1
    assert said.err.splitlines()[-1].startswith(f"tuner: 1 of 2 problems could not be measured; {bad}: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--measure", "3", "--device", "h200"], "--measure 3: measures on this machine's GPU; drop --device h200"),
        (["--db", "t.db", "--out", "x"], "--db, --out: nothing is measured without --measure"),
    ],
)
def test_what_belongs_to_measuring_needs_it(shapes, calls, capsys, arguments, message):
    assert cli.run(["warmup", shapes, *arguments]) == EXIT_USAGE
    assert message in capsys.readouterr().err and not calls[0]
