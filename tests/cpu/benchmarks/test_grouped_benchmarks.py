"""The benchmarks of the grouped ops on the CPU: sizes of their groups, operands and references, what is timed, and that
faults show.
"""

import pytest
import torch

from benchmarks import k_grouped, m_grouped_contiguous, m_grouped_masked
from benchmarks.group_sizes import (
    ALIGNMENT,
    count_masked_bytes,
    draw_contiguous_rows,
    draw_ks,
    draw_masked_rows,
    draw_sizes,
)
from benchmarks.product import find_wrong
from benchmarks.stamp import DATA, read_json
from deep_gemm import _C
from deep_gemm.quantize import align
from tests.fakes import gpu_benchmark
from tests.fakes.gpu_benchmark import run_family

FAMILIES = [module.FAMILY for module in (m_grouped_contiguous, m_grouped_masked, k_grouped)]
H200 = _C.Device.known("h200")
CONTIGUOUS = {"num_groups": 2, "mean_m": 150, "n": 136, "k": 192, "m": 384}
MASKED = {"load": "uniform", "num_groups": 3, "max_m": 40, "mean_m": 20, "n": 136, "k": 192, "sum_m": 61}
K_GROUPED = {"num_groups": 2, "m": 32, "n": 144, "mean_k": 200, "sum_k": 640}
KEYS = {
    "m_grouped_contiguous": [{"dtype": dtype, **CONTIGUOUS} for dtype in ("fp8", "bf16")],
    "m_grouped_masked": [
        {"dtype": dtype, **MASKED, "load": load} for dtype in ("fp8", "bf16") for load in ("uniform", "skewed")
    ],
    "k_grouped": [{"dtype": dtype, **K_GROUPED} for dtype in ("fp8", "bf16")],
}
DRAWS = {
    "m_grouped_contiguous": (draw_contiguous_rows, "m", ALIGNMENT),
    "m_grouped_masked": (draw_masked_rows, "sum_m", 1),
    "k_grouped": (draw_ks, "sum_k", 1),
}


pytestmark = pytest.mark.usefixtures("analytic")


def install(monkeypatch, fault=None) -> None:
    """Let every family run its small problems on the CPU."""
    gpu_benchmark.install_families(monkeypatch, KEYS, fault)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_sizes_add_up_to_the_baselines(family):
    draw, total, unit = DRAWS[family.name]
    for key in family.read_keys():
        sizes, mean = draw(key), key.get("mean_m") or key["mean_k"]
        assert len(sizes) == key["num_groups"] and sum(align(size, unit) for size in sizes) == key[total]
        if key.get("load", "uniform") == "uniform":
            slack = 1 if unit == 1 and family.name != "k_grouped" else ALIGNMENT
            assert all(0.7 * mean - slack <= size <= 1.3 * mean + slack for size in sizes)


def test_sizes_are_the_same_for_every_dtype_n_and_k():
    keys = [
        key
        for key in m_grouped_masked.FAMILY.read_keys()
        if key["load"] == "uniform" and key["num_groups"] == 32 and key["mean_m"] == 20
    ]
    assert len(keys) == 8 and len({tuple(draw_masked_rows(key)) for key in keys}) == 1
    with pytest.raises(ValueError, match="between 28 and 52"):
        draw_sizes(2, 20, 60, 1)


def test_a_skewed_load_has_nearly_all_rows_in_one_group():
    skewed = [key for key in m_grouped_masked.FAMILY.read_keys() if key["load"] == "skewed"]
    assert len(skewed) == 8 and {key["mean_m"] for key in skewed} == {20, 192}
    for key in skewed:
        *others, most = draw_masked_rows(key)
        assert most == min(key["max_m"], key["sum_m"] - 62) and max(others) - min(others) <= 1 and min(others) > 0


def test_bytes_of_a_masked_product():
    key = {"dtype": "fp8", "num_groups": 2, "n": 256, "k": 512, "sum_m": 10}
    assert count_masked_bytes(key) == 2 * 256 * 512 + 10 * 512 + 4 * (10 + 2 * 2) * 4 + 2 * 10 * 256
    assert count_masked_bytes({**key, "dtype": "bf16"}) == 2 * (2 * 256 * 512 + 10 * 512) + 2 * 10 * 256


def test_the_shapes_are_those_of_the_data_files():
    assert [len(family.read_keys()) for family in FAMILIES] == [16, 64, 12]
    for family in FAMILIES:
        for key in family.read_keys():
            problems = family.make_problems(key)
            assert set(problems) <= set(family.roles) and {problem.op for problem in problems.values()} <= set(
                family.ops
            )
            for problem in problems.values():
                assert (problem.n, problem.num_groups) == (key["n"], key["num_groups"])
                assert _C.is_legal(problem, _C.get_analytic_config(problem, H200), H200)


def test_baselines_name_every_figure_of_upstream():
    for family in FAMILIES:
        for row in read_json(DATA / f"{family.name}.json")["rows"]:
            is_timed = row.get("load", "uniform") == "uniform"
            assert ("deepgemm_us" in row) == is_timed
            assert not is_timed or row["deepgemm_total_us"] >= row["deepgemm_us"] > 0


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_role_and_layout_is_timed(monkeypatch, tmp_path, family):
    install(monkeypatch)
    code, result = run_family(family, tmp_path)
    assert code == 0 and result["meta"]["complete"], [row.get("wrong") or row.get("failed") for row in result["rows"]]
    assert set(family.ops) <= set(result["meta"]["kernel_hash"])
    assert [family.identify(row) for row in result["rows"]] == [family.identify(key) for key in KEYS[family.name]]
    for row in result["rows"]:
        assert {"cublaslt", *(f"auto {layout}" for layout in family.make_problems(row))} <= set(row["times"])
        assert {"auto", "heuristic"} <= set(row["choices"]) and all(len(times) == 3 for times in row["times"].values())
        assert ("floor" in row["times"]) == (family.name == "m_grouped_masked")
        assert ("grouped_mm" in row["times"]) != ("grouped_mm" in row.get("absent", {}))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_wrong_kernel_is_found(monkeypatch, tmp_path, family):
    install(monkeypatch, lambda kernel, d: d.view(-1, d.shape[-1])[0].mul_(1.5))
    code, result = run_family(family, tmp_path)
    assert code == 1 and not result["meta"]["complete"]
    assert all(row["wrong"] and not any(name.startswith("auto") for name in row["wrong"]) for row in result["rows"])


def test_padding_must_be_positive_zero(monkeypatch):
    install(monkeypatch)
    product = m_grouped_contiguous.ContiguousProduct(KEYS["m_grouped_contiguous"][1], H200)
    call, padding = product.call_op("nt"), int((product.m_indices < 0).nonzero()[0])

    def negate() -> None:
        call()
        product.d[padding].neg_()

    assert find_wrong(product, {"auto nt": call, "tile nt": negate}, {}) == ["tile nt"]


def test_rows_beyond_a_groups_own_are_not_compared(monkeypatch):
    install(monkeypatch)
    product = m_grouped_masked.MaskedProduct(KEYS["m_grouped_masked"][1], H200)
    call, size = product.call_op("mn_major"), draw_masked_rows(KEYS["m_grouped_masked"][1])[0]

    def write(row: int) -> None:
        call()
        product.operand_d[0, row] = 1.0

    calls = {"auto mn_major": call, "beyond mn_major": lambda: write(size), "within mn_major": lambda: write(size - 1)}
    assert [name for name in find_wrong(product, calls, {}) if "within" not in name] == []
    assert any("within" in name for name in find_wrong(product, calls, {}))


def test_peers_compute_the_product_of_each_group(monkeypatch):
    """The FP8 stand-in of torch._scaled_mm is a plain product; so are the peers of BF16."""
    install(monkeypatch)
    for family in FAMILIES:
        product = family.make_product(KEYS[family.name][-1], H200)
        for group, d in enumerate(product.call_each()()):
            a, _, b, _ = product.get_group(group)
            torch.testing.assert_close(d.float(), a.float() @ b.float().T, rtol=0.02, atol=0.5)
