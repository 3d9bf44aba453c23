"""DeepGEMM as a peer of the same run: loading it, what counts of it, and the figures that follow."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import deep_gemm
from benchmarks import dense_fp8, dense_speedup, grouped_speedup, harness, k_grouped, summary, upstream
from benchmarks.stamp import DATA, OP, read_json, write_json
from tests.cpu.benchmarks.test_summary import make_dense, make_meta
from tests.fakes import gpu_benchmark
from tests.fakes.gpu_benchmark import run_family

SIZES = {"m": 8, "n": 264, "k": 400}
K_SIZES = {"num_groups": 2, "m": 32, "n": 144, "mean_k": 200, "sum_k": 640}
KEYS = {"dense_fp8": [SIZES], "k_grouped": [{"dtype": "fp8", **K_SIZES}]}

#: A package with this library's products under the names of DeepGEMM, in a module of its own.
PACKAGE = {
    "__init__.py": """
from .ops import *
__version__ = "9.9"
early_starts = []
set_pdl = early_starts.append
""",
    "ops.py": "from deep_gemm import fp8_gemm_nt, k_grouped_fp8_gemm_nt_contiguous",
}


pytestmark = pytest.mark.usefixtures("analytic")


@pytest.fixture(autouse=True)
def forget_upstream():
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == upstream.MODULE]:
        del sys.modules[name]


def make_package(folder, **changes: str):
    """Write a DeepGEMM; `changes`: other contents of its files, by their stems. Returns its folder."""
    package = folder / "deep_gemm"
    package.mkdir()
    for name, text in PACKAGE.items():
        (package / name).write_text(changes.get(name.removesuffix(".py").strip("_"), text))
    return package


def test_a_package_is_loaded_under_a_name_of_its_own(tmp_path):
    module = upstream.load(make_package(tmp_path))
    assert module.__name__ == upstream.MODULE and upstream.get_version(module) == "9.9"
    assert module.early_starts == [False] and sys.modules["deep_gemm"] is not module
    assert upstream.get_version(None) is None


def test_what_does_not_load_is_said(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"no __init__.py in it; name the folder of DeepGEMM's package itself"):
        upstream.load(tmp_path)
    with pytest.raises(ValueError, match="this library itself; name the folder of another DeepGEMM"):
        upstream.load(Path(deep_gemm.__file__).parent)
    broken = make_package(tmp_path, ops="raise ImportError('of another torch in /some/where/_C.so')")
    with pytest.raises(ValueError, match=r"of another torch in _C.so; it must be built for Python 3\.\d+ and torch"):
        upstream.load(broken)
    assert not any(name.startswith(upstream.MODULE) for name in sys.modules)
    for call in (lambda: upstream.main([str(broken)]), lambda: harness.main(dense_fp8.FAMILY, "", ["--deepgemm", "x"])):
        with pytest.raises(SystemExit) as exit_:
            call()
        assert exit_.value.code == 2
    assert "no __init__.py" in capsys.readouterr().err


def test_a_number_of_processes_below_one_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        upstream.main([str(tmp_path), "--jobs", "0"])
    assert exit_.value.code == 2 and "--jobs 0: below 1" in capsys.readouterr().err


def test_it_is_timed_beside_every_layout(monkeypatch, tmp_path):
    gpu_benchmark.install_families(monkeypatch, KEYS)
    code, result = run_family(dense_fp8.FAMILY, tmp_path, "--deepgemm", str(make_package(tmp_path)))
    assert code == 0 and result["meta"]["deepgemm"] == "9.9"
    times = result["rows"][0]["times"]
    assert {"deepgemm mn_major", "deepgemm row_major", "auto mn_major", "cublaslt"} <= set(times)


def test_with_it_variants_are_interleaved_and_what_it_lacks_is_named(monkeypatch, tmp_path):
    gpu_benchmark.install_families(monkeypatch, KEYS)
    _, alone = run_family(k_grouped.FAMILY, tmp_path)
    assert alone["meta"]["order"] != harness.INTERLEAVED and "deepgemm" not in alone["meta"]
    _, beside = run_family(k_grouped.FAMILY, tmp_path, "--deepgemm", str(make_package(tmp_path)), "--resume")
    (row,) = beside["rows"]
    assert beside["meta"]["order"] == harness.INTERLEAVED and "deepgemm nt" in row["times"]
    assert "k_grouped_fp8_gemm_tn_contiguous" in row["absent"]["deepgemm joint"]
    assert "deepgemm joint" not in row["times"] and harness.is_clean(row)


def test_a_wrong_product_does_not_count(monkeypatch, tmp_path):
    gpu_benchmark.install_families(monkeypatch, KEYS)
    module = upstream.load(make_package(tmp_path, ops="def fp8_gemm_nt(a, b, d): d.fill_(1.0)"))
    product = dense_fp8.DenseFp8(SIZES, None)
    assert upstream.call_layouts(product, module, ["mn_major"]) == {}
    assert product.absent == {"deepgemm mn_major": "D is not within the bound"}


def test_padding_does_not_count_of_it(monkeypatch):
    class Padded(dense_fp8.DenseFp8):
        def is_right(self, layout):
            return False

    gpu_benchmark.install_families(monkeypatch, KEYS)
    assert list(upstream.call_layouts(Padded(SIZES, None), deep_gemm, ["mn_major"])) == ["deepgemm mn_major"]


def test_every_problem_is_compiled_once_and_those_of_a_weight_together():
    for family in upstream.list_families():
        parts = upstream.group_keys(family, 5)
        assert sorted(str(key) for part in parts for key in part) == sorted(map(str, family.read_keys()))
    weights = [{(key["n"], key["k"]) for key in part} for part in upstream.group_keys(dense_fp8.FAMILY, 5)]
    assert sum(map(len, weights)) == len(set.union(*weights))


def test_a_failing_problem_does_not_end_the_others(monkeypatch, tmp_path):
    gpu_benchmark.install_families(monkeypatch, KEYS)
    monkeypatch.setattr(upstream._C, "get_device", lambda: None)
    part = [("dense_fp8", {}), ("dense_fp8", SIZES)]
    (failure,), num_right = upstream.compile_part(make_package(tmp_path), part)
    assert failure.startswith("dense_fp8 {}: KeyError") and num_right == 2
    assert torch.initial_seed() == 0


@pytest.mark.parametrize(("num_right", "code"), [(0, 1), (3, 0)])
def test_nothing_right_is_a_failure(monkeypatch, tmp_path, capsys, num_right, code):
    class Pool:
        def __init__(self, jobs):
            assert jobs == 2

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def starmap(self, call, parts, chunksize):
            assert call is upstream.compile_part and len(parts) == 2
            return [([], num_right), (["k_grouped: lost"], 0)]

    monkeypatch.setattr(upstream.multiprocessing, "get_context", lambda kind: SimpleNamespace(Pool=Pool))
    assert upstream.main([str(make_package(tmp_path)), "--jobs", "2", "--family", "k_grouped"]) == code
    assert f"DeepGEMM 9.9: {num_right} calls right, 1 without a result" in capsys.readouterr().out


def test_shards_with_and_without_it_are_not_joined(monkeypatch, tmp_path):
    gpu_benchmark.install_families(monkeypatch, KEYS)
    parts = [tmp_path / name for name in ("alone.json", "beside.json")]
    for part, options in zip(parts, ([], ["--deepgemm", str(make_package(tmp_path))]), strict=True):
        harness.main(dense_fp8.FAMILY, "test", ["--out", str(part), "--rounds", "3", *options])
    with pytest.raises(ValueError, match="deepgemm differs between the shards"):
        harness.merge(dense_fp8.FAMILY, parts, tmp_path / "whole.json")


# Figures.


def make_beside(factor: float, layouts: tuple[str, ...] = ("mn_major", "row_major")) -> dict:
    """Return a dense result of a run in which DeepGEMM takes `factor` times our time."""
    result = make_dense(0.8, deepgemm="9.9")
    for row in result["rows"]:
        row["times"] |= {f"deepgemm {name}": [factor * us for us in row["times"][f"auto {name}"]] for name in layouts}
    return result


def test_its_time_of_the_same_run_counts():
    entry = dense_speedup.make_p1(dense_speedup.Scaled(make_beside(1.25), "dense_fp8"))
    assert entry["value"] == entry["plain"] == entry["row_major"] == 1.25 and entry["worst"] >= 1.25
    recorded = dense_speedup.make_p1(dense_speedup.Scaled(make_dense(0.8), "dense_fp8"))
    assert recorded["value"] == 1.25 and recorded["row_major"] != 1.25


def make_grouped(name: str, lacking: tuple[str, ...] = ()) -> dict:
    """Return a result of a run in which DeepGEMM takes 1.1 times our time, but in the `lacking` layouts."""
    names = {"k_grouped": {"fp8": ("nt", "joint"), "bf16": ("tn",)}}
    rows = []
    for baseline in read_json(DATA / f"{name}.json")["rows"]:
        row = {key: value for key, value in baseline.items() if not key.startswith("deepgemm")}
        layouts = names.get(name, {"fp8": ("mn_major", "row_major"), "bf16": ("nt",)})[row["dtype"]]
        times = {f"auto {layout}": [100.0] * 5 for layout in layouts} | {"floor": [50.0] * 5}
        times |= {f"deepgemm {layout}": [110.0] * 5 for layout in layouts if layout not in lacking}
        rows.append({**row, "choices": {}, "times": times})
    return {"meta": {"deepgemm": "9.9"}, "rows": rows}


def make_figures(name: str, lacking: tuple[str, ...] = ()) -> dict | None:
    """Return the entry of a grouped benchmark beside DeepGEMM."""
    makers = {"m_grouped_contiguous": grouped_speedup.make_p7, "m_grouped_masked": grouped_speedup.make_p8}
    return makers.get(name, grouped_speedup.make_p9)(make_grouped(name, lacking))


@pytest.mark.parametrize("name", ["m_grouped_contiguous", "m_grouped_masked", "k_grouped"])
def test_grouped_products_are_compared_with_its_time_of_the_same_run(name):
    entry = make_figures(name)
    assert entry["value"] == 1.1 and entry["worst"] == 1.1


def test_recorded_times_do_not_stand_in_for_missing_ones():
    entry = make_figures("k_grouped", ("joint",))  # whose copies are ours alone: beside its `nt`
    assert entry["value"] == entry["with_transposes"] == 1.1
    assert make_figures("m_grouped_contiguous", ("row_major",))["row_major"] is None
    for name, layout in (("k_grouped", "nt"), ("m_grouped_contiguous", "nt"), ("m_grouped_masked", "mn_major")):
        assert make_figures(name, (layout,)) is None
    dense = dense_speedup.make_p1(dense_speedup.Scaled(make_beside(1.25, ("mn_major",)), "dense_fp8"))
    assert dense["row_major"] is None and dense["value"] == 1.25
    without = dense_speedup.Scaled(make_beside(1.25, ("row_major",)), "dense_fp8")
    assert not any(make(without) for make in (dense_speedup.make_p1, dense_speedup.make_p2, dense_speedup.make_p3))
    assert dense_speedup.make_p4(without)["value"] > 0


def test_a_folder_elsewhere_is_of_the_gpu_model_of_its_results(tmp_path):
    for sku, names in (("nvidia-h100-80gb-hbm3-sm132", {"P4"}), ("nvidia-h200-sm132", {"P1", "P2", "P3", "P4"})):
        write_json(tmp_path / "dense_fp8.json", make_dense(0.8, sku=sku))
        assert set(summary.make_summary(tmp_path)) == names


def test_another_gpu_model_has_the_figures_of_runs_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "RECORDS", tmp_path)
    path = tmp_path / "h100" / "dense_fp8.json"
    write_json(path, make_dense(0.8))
    assert set(summary.make_summary(path.parent)) == {"P4"}
    write_json(path, make_beside(1.25))
    entries = summary.make_summary(path.parent)
    assert {"P1", "P2", "P3", "P4"} <= set(entries) and entries["P1"]["value"] == 1.25
    assert entries["P1"]["peer"] == "DeepGEMM 9.9 of the same run, the plain ratio"
    assert "cuBLASLt" in entries["P4"]["peer"] and make_meta()["kernel_hash"].keys() == {OP}
