"""The results of casts, einsum and callers' programs: where they are recorded, whether they are whole; figures."""

import pytest

from benchmarks import host_ops, stale, summary
from benchmarks.plain_kernels import CASES
from benchmarks.plain_kernels import KERNELS as TIMED
from benchmarks.stamp import RESULTS, read_json, write_json
from benchmarks.tables import TITLES
from tests.callers.programs import PROGRAMS
from tests.gpu.einsum import KERNELS as MULTIPLIED
from tests.gpu.plain_kernels import KERNELS as CAST

#: Result file -> the kernels whose hashes it carries.
KERNELS = {
    "plain_kernels.json": TIMED,
    "plain_kernels_bits.json": CAST,
    "einsum.json": MULTIPLIED,
    "host_ops.json": host_ops.KERNELS,
    "callers.json": ("fp8_gemm", "fp8_mqa_logits", "batched_bf16_gemm"),
}


#: What no GPU has measured with the present files.
NOT_RECORDED = {"einsum.json"}


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_of_a_result_has_a_hash(name):
    assert all(stale.current_kernel_hash(kernel) for kernel in KERNELS[name])


def test_results_are_recorded():
    assert {name for name in KERNELS if not (RESULTS / name).exists()} == NOT_RECORDED


@pytest.mark.parametrize("name", sorted(KERNELS.keys() - NOT_RECORDED))
def test_recorded_results_are_whole_and_right(name):
    result = read_json(RESULTS / name)
    meta = result["meta"]
    assert meta["complete"] and meta["sku"] == "nvidia-h200-sm132" and meta["driver"] and meta["date"]
    assert set(KERNELS[name]) <= set(meta["kernel_hash"])
    assert result["rows"] and not result.get("num_wrong")
    if name == "callers.json":
        assert [row["case"] for row in result["rows"]] == list(PROGRAMS)
    if name == "host_ops.json":
        assert all(0 < row["floor_us"] < 1.1 * row["median_us"] for row in result["rows"])
    if name == "plain_kernels.json":
        assert [row["case"] for row in result["rows"]] == [case[0] for case in CASES]


def make_meta(kernels: tuple[str, ...]) -> dict:
    """Return the origin of a result of this tree."""
    return {"complete": True, "date": "2026-01-02", "kernel_hash": {k: stale.current_kernel_hash(k) for k in kernels}}


def write_results(folder, *, share: float = 0.9, host_us: float = 4.0, num_wrong: int = 0, error: str | None = None):
    """Write one result of each kind."""
    casts = [{"case": name, "of_copy": share} for name in ("per_token", "swiglu")]
    casts[0]["of_copy"] = 1.0
    products = [
        {"case": "einsum", "is_right": True, "repeats": num_wrong == 0, "us": 3.0},
        {"case": "sum onto C", "is_right": True},
    ]
    calls = [{"op": "einsum", "best_us": 4.0, "target_us": 6.0}, {"op": "cast", "best_us": host_us, "target_us": 5.0}]
    rows = {
        "plain_kernels.json": casts,
        "plain_kernels_bits.json": [{"case": "a", "num_wrong": 0}, {"case": "b", "num_wrong": num_wrong}],
        "einsum.json": products,
        "host_ops.json": calls,
        "callers.json": [{"case": "sglang", "seconds": 0.1, "error": None}, {"case": "vllm", "error": error}],
    }
    for name, kernels in KERNELS.items():
        write_json(folder / name, {"meta": make_meta(kernels), "rows": rows[name]})


NAMES = {"P15", "P16", "Q3", "Q4", "Q5"}


def test_figures_of_right_results_are_met(tmp_path):
    write_results(tmp_path)
    entries = summary.make_summary(tmp_path)
    assert set(entries) == NAMES <= set(TITLES) and all(entry["met"] for entry in entries.values())
    assert entries["P15"]["worst"] == 0.9 and entries["P15"]["worst_problem"] == "swiglu"
    assert entries["P15"]["value"] == pytest.approx(0.9**0.5, abs=1e-4)
    assert entries["P16"]["value"] == entries["P16"]["worst"] == 4.0 and entries["P16"]["problems"] == 2
    assert entries["Q3"]["value"] == entries["Q4"]["value"] == entries["Q5"]["value"] == 1.0
    assert entries["Q5"]["problems"] == 2


@pytest.mark.parametrize("changes, missed", [
    ({"share": 0.84}, {"P15"}), ({"host_us": 5.5}, {"P16"}),
    ({"num_wrong": 1}, {"Q4", "Q5"}), ({"error": "RuntimeError: x"}, {"Q3"}),
])  # fmt: skip
def test_what_is_slow_or_wrong_misses_its_target(tmp_path, changes, missed):
    write_results(tmp_path, **changes)
    assert {name for name, entry in summary.make_summary(tmp_path).items() if not entry["met"]} == missed


def test_results_of_other_kernels_are_stale(tmp_path):
    write_results(tmp_path)
    result = read_json(tmp_path / "plain_kernels.json")
    result["meta"]["kernel_hash"]["deep_gemm_cast_rows"] = "0" * 64
    write_json(tmp_path / "plain_kernels.json", result)
    assert summary.make_summary(tmp_path)["P15"]["stale"] == stale.UNEXPLAINED
