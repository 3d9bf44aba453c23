"""`doctor` and `cache`: what they find is what the library finds, with and without a GPU."""

import json
import os

import pytest

import deep_gemm
from deep_gemm import _C, selection
from deep_gemm.errors import CompileError, DeviceError, SelectorWarning
from deep_gemm.jit import build, cache
from deep_gemm.jit.compile import CompileResult
from tests.fakes.databases import REGIME, add_block, add_context, make_database, make_problem
from tuner import cli, errors
from tuner.db import Store
from tuner.problems.regimes import name_sentinel
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


def write_distribution(site, name: str) -> None:
    """Make a folder look as if a distribution had installed a module deep_gemm there. Its file exists: what setuptools
    puts in the place of Python's own search, wherever it was imported, passes over files that do not.
    """
    information = site / f"{name}-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "deep_gemm").mkdir(exist_ok=True)
    (site / "deep_gemm" / "__init__.py").touch()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "RECORD").write_text("deep_gemm/__init__.py,,\n")


def test_another_distribution_in_the_same_folder_is_a_fault(capsys, monkeypatch, tmp_path):
    for site, name in (("one", "sgl-deep-gemm"), ("one", "deep_gemm"), ("two", "a-third")):
        write_distribution(tmp_path / site, name)
        monkeypatch.syspath_prepend(tmp_path / site)
    assert diagnose(capsys)["package"]["state"] == "ok"  # in folders of their own
    others = diagnosis.find_others(tmp_path / "one" / "deep_gemm")
    monkeypatch.setattr(diagnosis, "find_others", lambda folder: others)
    found = diagnose(capsys)["package"]
    assert found["state"] == "FAULT" and found["found"].endswith("with files of sgl-deep-gemm among its own")
    assert "`pip uninstall sgl-deep-gemm deep_gemm`" in found["remedy"] and run(capsys, "doctor")[0] == 1


def test_it_describes_the_gpu_at_hand(capsys, monkeypatch):
    monkeypatch.setattr(_C, "get_device", lambda: _C.Device.known("h20"))
    monkeypatch.setattr(_C, "get_driver_version", lambda: 13010)
    found = diagnose(capsys)
    assert found["GPU"]["state"] == "ok" and "nvidia-h20-" in found["GPU"]["found"]
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


def test_a_machine_without_a_gpu_needs_no_compiler(capsys, monkeypatch):
    def fail():
        raise CompileError("NVRTC: not found; install nvidia-cuda-nvrtc")

    monkeypatch.setattr(diagnosis, "get_toolchain", fail)
    for name in ("DG_JIT_USE_NVRTC", "DG_JIT_NVCC_COMPILER"):
        monkeypatch.delenv(name, raising=False)
    found = diagnose(capsys)["compiler"]
    assert (found["state"], found["found"], found["remedy"]) == ("-", "NVRTC: not found", "")
    monkeypatch.setattr(_C, "get_device", lambda: _C.Device.known("h20"))
    found = diagnose(capsys)["compiler"]
    assert found["state"] == "FAULT" and found["remedy"] == "install nvidia-cuda-nvrtc"


def test_another_gpu_is_a_finding_beside_the_others(capsys, monkeypatch):
    fields = _C.Device.known("h200").as_dict()
    ampere = _C.Device(**fields | {"compute_capability": (8, 0), "name": "NVIDIA A100", "sku": "a100"})
    monkeypatch.setattr(_C, "get_device", lambda: ampere)
    code, out, _ = run(capsys, "doctor")
    found = diagnose(capsys)
    assert code == errors.EXIT_FAILURE and len(found) == 10 and all(part in out for part in found)
    assert found["GPU"]["state"] == found["choice"]["state"] == "FAULT" and found["compiler"]["found"]


def test_a_cache_folder_that_is_not_used_is_a_fault(capsys, monkeypatch):
    monkeypatch.setenv("DG_JIT_CACHE_DIR", "relative")
    found = diagnose(capsys)["cache"]
    assert found["state"] == "FAULT" and "absolute" in found["found"] and "DG_JIT_CACHE_DIR" in found["remedy"]


@pytest.mark.parametrize("name", ["afile", "afile/below"])
def test_a_cache_below_a_file_is_a_fault(capsys, monkeypatch, tmp_path, name):
    (tmp_path / "afile").touch()
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / name))
    found = diagnose(capsys)["cache"]
    assert found["state"] == "FAULT" and "Not a directory" in found["found"] and "DG_JIT_CACHE_DIR" in found["remedy"]


def test_a_named_selector_that_is_not_there_is_corrected_by_its_variable(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DG_SELECTOR", str(tmp_path / "none.dgsel"))
    selection.forget_selectors()
    found = diagnose(capsys)["selector"]
    assert found["state"] == "FAULT" and found["remedy"] == "correct DG_SELECTOR, or unset it"


def test_a_named_database_that_is_not_there_is_a_fault(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DG_TUNER_DB", str(tmp_path / "none.db"))
    found = diagnose(capsys)["database"]
    assert found["state"] == "FAULT" and "none.db: no such file" in found["found"] and "unset it" in found["remedy"]


def test_a_misspelt_variable_is_a_fault(capsys, monkeypatch):
    monkeypatch.setenv("DG_SELECTER", "analytic")
    found = diagnose(capsys)["variables"]
    assert found["state"] == "FAULT" and "DG_SELECTOR" in found["remedy"]


def test_an_own_database_is_counted(capsys, own_home, monkeypatch):
    path = make_database(own_home / "tuning.db")
    monkeypatch.setenv("DG_TUNER_DB", str(path))
    assert diagnose(capsys)["database"]["found"] == f"{path}, 24 measurements"
    with Store.open(path) as store:
        add_block(store, add_context(store) | {"regime": name_sentinel(REGIME)}, make_problem(128))
    assert diagnose(capsys)["database"]["found"] == f"{path}, 24 measurements and 8 of sentinels"
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


def test_clearing_the_cache_leaves_what_is_no_entry(capsys, own_home):
    disk, folder, key = cache.get_disk_cache(), own_home / ".deep_gemm" / "cache", "0" * 64
    disk.put(key, b"payload")
    (folder / f"{key}.kernel").write_bytes(b"damaged")
    assert disk.get(key) is None  # which sets it aside
    disk.put(key, b"payload")
    theirs = ["core.kernel", "copy.bad", f"{key}.kernel.mine.bad"]
    for name in theirs:
        (folder / name).write_text("mine")
    (own_home / "target").write_text("mine")
    (folder / f"{1:064x}.kernel").symlink_to(own_home / "target")
    assert json.loads(run(capsys, "cache", "clear", "--json")[1]) == {"removed": 2}
    assert {path.name for path in folder.iterdir()} == {*theirs, f"{1:064x}.kernel"} and (own_home / "target").exists()


def test_two_may_clear_the_cache_at_a_time(capsys, own_home, monkeypatch):
    for index in range(2):
        cache.get_disk_cache().put(f"{index:064x}", b"payload")
    unlink = os.unlink

    def lose(name, **place):
        unlink(name, **place)
        if name.startswith("0" * 63 + "0"):
            unlink(f"{1:064x}.kernel", **place)  # the other process

    monkeypatch.setattr(os, "unlink", lose)
    assert json.loads(run(capsys, "cache", "clear", "--json")[1]) == {"removed": 1}


def test_a_cache_that_others_may_write_to_is_refused(capsys, own_home):
    cache.get_disk_cache().put("0" * 64, build.encode_payload(RESULT))
    (own_home / ".deep_gemm" / "cache").chmod(0o777)
    for command in ("list", "clear"):
        code, _, err = run(capsys, "cache", command)
        assert code == errors.EXIT_FAILURE and "DG_JIT_CACHE_DIR" in err and err.count("\n") == 1
    assert len(list((own_home / ".deep_gemm" / "cache").iterdir())) == 1
