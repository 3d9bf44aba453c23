"""`doctor` and `cache`: what they find is what the library finds, with and without a GPU."""

import json

import pytest

import deep_gemm
from deep_gemm import _C, selection
from deep_gemm.errors import DeviceError, SelectorWarning
from deep_gemm.jit import build, cache
from deep_gemm.jit.compile import CompileResult
from tests.fakes.databases import make_database
from tuner import cli, errors
from tuner.ship import diagnosis

pytestmark = pytest.mark.usefixtures("own_home")
RESULT = CompileResult(b"\x7fELF", "deep_gemm_fp8_gemm", 168, 0, 0, (), "", 12.5, "nvrtc", "13.0")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Run one command line; return (exit code, standard output, standard error)."""
    code = cli.run(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def diagnose(capsys) -> dict[str, dict]:
    """Return the findings of `doctor --json` by part."""
    return {finding["part"]: finding for finding in json.loads(run(capsys, "doctor", "--json")[1])["findings"]}


def refuse_gpu(*_):
    raise DeviceError("no CUDA driver: libcuda.so.1 is missing; use CPU tensors")


def test_without_a_gpu_nothing_is_wrong(capsys, monkeypatch):
    monkeypatch.setattr(_C, "get_device", refuse_gpu)
    monkeypatch.setattr(_C, "get_driver_version", refuse_gpu)
    code, out, err = run(capsys, "doctor")
    found = diagnose(capsys)
    assert code == 0 and not err and max(map(len, out.splitlines())) <= 100
    assert found["GPU"]["state"] == found["driver"]["state"] == found["database"]["state"] == "-"
    assert found["package"]["found"].startswith(f"deep_gemm {deep_gemm.__version__} ")
    choice = selection.explain(_C.Problem(*diagnosis.PROBE), _C.Device.known("h200"))
    assert str(choice.config) in found["choice"]["found"] and choice.source in found["choice"]["found"]
    assert found["selector"]["found"].startswith(selection.load_selector("nvidia-h200-sm132").file)


def test_it_describes_the_gpu_at_hand(capsys, monkeypatch):
    monkeypatch.setattr(_C, "get_device", lambda: _C.Device.known("h100"))
    monkeypatch.setattr(_C, "get_driver_version", lambda: 13010)
    found = diagnose(capsys)
    assert found["GPU"]["state"] == "ok" and "nvidia-h100" in found["GPU"]["found"]
    assert found["driver"]["found"] == "CUDA 13.1" and found["selector"]["state"] == "-"
    assert "analytic" in found["choice"]["found"] and found["choice"]["state"] == "ok"


def test_faults_are_named_with_a_remedy_and_exit_1(capsys, monkeypatch, own_home):
    monkeypatch.setenv("DG_SELECTOR", str(own_home / "none.dgsel"))
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(own_home / "file"))
    monkeypatch.setenv("DG_JIT_USE_NVRTC", "0")
    monkeypatch.setenv("DG_JIT_NVCC_COMPILER", str(own_home / "no-nvcc"))
    (own_home / "file").write_text("")
    with pytest.warns(SelectorWarning):
        code, _, err = run(capsys, "doctor")
    assert code == errors.EXIT_FAILURE and all(part in err for part in ("compiler", "selector"))
    selection.forget_selectors()
    with pytest.warns(SelectorWarning):
        found = diagnose(capsys)
    assert found["compiler"]["state"] == found["selector"]["state"] == "FAULT"
    assert found["compiler"]["remedy"] and found["selector"]["remedy"]


def test_a_misspelt_variable_is_a_fault(capsys, monkeypatch):
    monkeypatch.setenv("DG_SELECTER", "analytic")
    found = diagnose(capsys)["variables"]
    assert found["state"] == "FAULT" and "DG_SELECTOR" in found["remedy"]


def test_an_own_database_is_counted(capsys, own_home, monkeypatch):
    path = make_database(own_home / "tuning.db")
    monkeypatch.setenv("DG_TUNER_DB", str(path))
    assert diagnose(capsys)["database"]["found"] == f"{path}, 24 measurements"
    path.write_bytes(b"no database" * 1000)
    assert diagnose(capsys)["database"]["state"] == "FAULT"


def test_the_cache_is_listed_and_cleared(capsys, own_home):
    assert run(capsys, "cache", "list")[1].splitlines()[1] == "0 kernels, 0.0 MB"
    assert json.loads(run(capsys, "cache", "clear", "--json")[1]) == {"removed": 0}
    keys = [f"{index:064x}" for index in range(3)]
    for key in keys:
        cache.get_disk_cache().put(key, build.encode_payload(RESULT))
    found = json.loads(run(capsys, "cache", "list", "--json")[1])
    assert found["folder"] == str(own_home / ".deep_gemm" / "cache")
    assert {one["key"] for one in found["entries"]} == set(keys)
    assert {(one["kernel_name"], one["registers"], one["compiler"]) for one in found["entries"]} == {
        ("deep_gemm_fp8_gemm", 168, "nvrtc")
    }
    out = run(capsys, "cache", "list", "--top", "2")[1]
    assert "3 kernels" in out and "... and 1 more" in out and max(map(len, out.splitlines()[1:])) <= 100
    (own_home / ".deep_gemm" / "cache" / "other.txt").write_text("mine")
    assert run(capsys, "cache", "clear")[1] == "3 files removed\n"
    assert [path.name for path in (own_home / ".deep_gemm" / "cache").iterdir()] == ["other.txt"]
    assert cache.get_disk_cache().get(keys[0]) is None


def test_a_cache_that_others_may_write_to_is_refused(capsys, own_home):
    cache.get_disk_cache().put("0" * 64, build.encode_payload(RESULT))
    (own_home / ".deep_gemm" / "cache").chmod(0o777)
    for command in ("list", "clear"):
        code, _, err = run(capsys, "cache", command)
        assert code == errors.EXIT_FAILURE and "DG_JIT_CACHE_DIR" in err and err.count("\n") == 1
    assert len(list((own_home / ".deep_gemm" / "cache").iterdir())) == 1
