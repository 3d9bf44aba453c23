"""The benchmark scripts on the CPU: what they time, that wrong and failing variants show, choices, resuming, and the
host's parts.
"""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import (
    choices,
    compile_time,
    dense_bf16,
    dense_fp8,
    harness,
    host_profile,
    host_time,
    pdl,
    transpose_fp8,
    wgrad_fp8,
)
from benchmarks.product import find_wrong
from benchmarks.stamp import DATA, SELECTOR, read_json, write_json
from benchmarks.stopwatch import time_each
from deep_gemm import _C
from deep_gemm.errors import CompileError
from tests.fakes import gpu_benchmark
from tests.fakes.gpu_benchmark import run_family

SIZES = {"m": 8, "n": 264, "k": 400}
KEYS = {
    "dense_fp8": [SIZES, {**SIZES, "m": 136}],
    "wgrad_fp8": [SIZES],
    "transpose_fp8": [SIZES],
    "dense_bf16": [
        {**SIZES, "layout": layout, "out": out} for layout in ("nt", "nn", "tn", "tt") for out in ("bf16", "fp32")
    ],
}
FAMILIES = [module.FAMILY for module in (dense_fp8, dense_bf16, wgrad_fp8)]
H200 = _C.Device.known("h200")


pytestmark = pytest.mark.usefixtures("analytic")


def install(monkeypatch, fault=None) -> None:
    """Let every family run its small problems on the CPU."""
    gpu_benchmark.install_families(monkeypatch, KEYS, fault)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_role_and_layout_is_timed(monkeypatch, tmp_path, family):
    install(monkeypatch)
    code, result = run_family(family, tmp_path)
    assert code == 0 and result["meta"]["complete"] and set(result["meta"]["kernel_hash"]) == set(family.ops)
    assert [family.identify(row) for row in result["rows"]] == [family.identify(key) for key in KEYS[family.name]]
    for row in result["rows"]:
        layouts = family.make_problems(row)
        assert {"cublaslt", *(f"auto {layout}" for layout in layouts)} <= set(row["times"])
        assert {"auto", "heuristic"} <= set(row["choices"]) and all(len(times) == 3 for times in row["times"].values())
        assert ("floor" in row["times"]) == (family.name == "dense_fp8" and row["m"] <= 64)


def test_every_memory_order_of_fp8_is_timed(monkeypatch, tmp_path):
    keys = [tuple(key.values()) for key in transpose_fp8.FAMILY.read_keys()]
    assert keys == [(128, 7168, 2048), (4096, 7168, 2048), (4096, 4096, 7168), (8192, 2112, 7168)]
    install(monkeypatch)
    code, result = run_family(transpose_fp8.FAMILY, tmp_path)
    assert code == 0 and set(result["meta"]["kernel_hash"]) == {"fp8_gemm", "deep_gemm_transpose_fp8"}
    layouts = {"auto nt", "auto nn", "auto tn", "auto tt"}
    assert [set(row["times"]) for row in result["rows"]] == [{"cublaslt", "copy", *layouts}]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_wrong_kernel_is_found(monkeypatch, tmp_path, family):
    install(monkeypatch, lambda kernel, d: d[0].mul_(1.5))
    code, result = run_family(family, tmp_path)
    assert code == 1 and not result["meta"]["complete"]
    assert all(row["wrong"] and not any(name.startswith("auto") for name in row["wrong"]) for row in result["rows"])


def test_other_bits_count_only_without_split_k(monkeypatch):
    install(monkeypatch)
    product = dense_fp8.DenseFp8(SIZES, H200)
    call = product.call_op("mn_major")

    def flip() -> None:
        call()
        smallest = product.d.abs().argmin()  # where a unit in the last place is nothing beside the bound
        product.d.view(torch.int16).view(-1)[smallest] ^= 1

    calls = {"auto mn_major": call, "tile mn_major": flip}
    assert find_wrong(product, calls, {"tile mn_major": 2}) == []
    assert find_wrong(product, calls, {"tile mn_major": 1}) == ["tile mn_major: other bits"]


def test_a_failing_variant_is_left_out_and_a_failing_problem_ends_nothing(monkeypatch, tmp_path):
    def fail(kernel, d):
        raise RuntimeError("no launch")

    install(monkeypatch, fail)
    code, result = run_family(dense_fp8.FAMILY, tmp_path)
    assert code == 1 and all(
        "no launch" in row["wrong"][0] and "auto mn_major" in row["times"] for row in result["rows"]
    )
    assert not any("swap" in name or "s2" in name for row in result["rows"] for name in row["times"])
    monkeypatch.setattr(harness, "find_wrong", lambda *_: 1 / 0)
    code, result = run_family(dense_fp8.FAMILY, tmp_path)
    assert code == 1 and [row["failed"] for row in result["rows"]] == ["ZeroDivisionError: division by zero"] * 2


def test_shards_resume_and_merge(monkeypatch, tmp_path):
    install(monkeypatch)
    parts = [tmp_path / f"part{index}.json" for index in (1, 2)]
    for index, part in enumerate(parts, 1):
        assert (
            harness.main(dense_fp8.FAMILY, "test", ["--out", str(part), "--rounds", "3", "--shard", f"{index}/2"]) == 0
        )
    out = tmp_path / "whole.json"
    assert harness.main(dense_fp8.FAMILY, "test", ["--out", str(out), "--merge", *map(str, parts)]) == 0
    assert len(read_json(out)["rows"]) == 2
    before = read_json(parts[0])["rows"]
    monkeypatch.setattr(harness.Benchmark, "run", lambda self, key: pytest.fail("ran again"))
    assert (
        harness.main(dense_fp8.FAMILY, "test", ["--out", str(parts[0]), "--rounds", "3", "--shard", "1/2", "--resume"])
        == 0
    )
    assert read_json(parts[0])["rows"] == before


def test_rows_that_another_selector_chose_for_are_not_joined(monkeypatch, tmp_path):
    install(monkeypatch)
    parts = [tmp_path / f"part{index}.json" for index in (1, 2)]
    for index, part in enumerate(parts, 1):
        harness.main(dense_fp8.FAMILY, "test", ["--out", str(part), "--rounds", "3", "--shard", f"{index}/2"])
    result = read_json(parts[0])
    assert result["meta"][SELECTOR] != "0" * 64
    result["meta"][SELECTOR] = "0" * 64
    write_json(parts[0], result)
    with pytest.raises(ValueError, match=f"{SELECTOR} differs between the shards"):
        harness.merge(dense_fp8.FAMILY, parts, tmp_path / "whole.json")
    monkeypatch.setattr(harness.Benchmark, "run", lambda self, key: pytest.fail("ran again"))
    with pytest.raises(pytest.fail.Exception, match="ran again"):
        harness.main(dense_fp8.FAMILY, "test", ["--out", str(parts[0]), "--rounds", "3", "--shard", "1/2", "--resume"])


def test_a_spent_budget_leaves_problems_out(monkeypatch, tmp_path):
    install(monkeypatch)
    code, result = run_family(dense_fp8.FAMILY, tmp_path, "--time-budget", "-1")
    assert code == 3 and result["rows"] == [] and not result["meta"]["complete"]


def test_choices_are_found_by_the_whole_problem(tmp_path):
    config = _C.Config(64, 32, 4)
    rows = [
        SIZES | {"config": config.as_dict()},
        SIZES | {"op": "bf16_gemm", "config": {**config.as_dict(), "block_k": 64}},
    ]
    rows.append(SIZES | {"recipe": "1d1d", "batch_invariant": 0, "config": {**config.as_dict(), "num_stages": 5}})
    write_json(tmp_path / "model.json", {"rows": rows})
    found = choices.Choices("fp8_gemm", H200, model=tmp_path / "model.json")
    roles = ("model", "heuristic", "invariant", "best")
    assert found.of(_C.Problem("fp8_gemm", **SIZES), roles)["model"] == choices.Choice(config, "out of fold")
    assert found.of(_C.Problem("fp8_gemm", **SIZES, recipe="1d1d"), roles)["model"].config.num_stages == 5
    assert set(found.of(_C.Problem("fp8_gemm", **SIZES, scale_layout="any"), roles)) == {
        "auto",
        "heuristic",
        "invariant",
    }
    assert found.of(_C.Problem("fp8_gemm", **SIZES), roles)["invariant"].config.split_k == 1


def test_the_shapes_are_those_of_the_data_files():
    assert [len(family.read_keys()) for family in FAMILIES] == [80, 71, 7]
    for family in FAMILIES:
        for key in family.read_keys():
            assert all(
                problem.op in family.ops and problem.m == key["m"] for problem in family.make_problems(key).values()
            )


def test_baselines_name_every_figure():
    for name in ("dense_bf16", "wgrad_fp8"):
        rows = read_json(DATA / f"{name}.json")["rows"]
        assert all(row["deepgemm_total_us"] >= row["deepgemm_us"] > 0 < row["cublaslt_us"] for row in rows)


def test_parts_of_a_call_add_up_on_the_cpu(monkeypatch):
    monkeypatch.setattr("benchmarks.stopwatch.CALLS_PER_BLOCK", 2)
    for entry in host_profile.time_parts((4, 128, 128), device="cpu").values():
        parts = entry["parts_us"]
        assert set(parts) == {"loop", "arguments", "dispatch", "launch", "driver"}
        assert sum(value for name, value in parts.items() if name != "driver") == pytest.approx(
            entry["calls_us"]["whole"], abs=0.01
        )


def test_a_busy_moment_of_the_host_reaches_no_figure(monkeypatch):
    """The first three of nine rounds are ten times as slow, for all choices."""
    clock, asked = [0.0], []

    def choose(problem):
        asked.append(problem)
        clock[0] += problem * (10.0 if len(asked) <= 3 * 18 else 1.0) * 1e-6

    monkeypatch.setattr("benchmarks.stopwatch.time.perf_counter", lambda: clock[0])
    assert time_each({"slow": (choose, [5, 7, 9]), "fast": (choose, [1, 2, 3])}, repeats=2) == {
        "slow": 7.0,
        "fast": 2.0,
    }
    assert asked == [problem for problem in (5, 7, 9, 1, 2, 3) for _ in range(3)] * 9


def test_what_chooses_is_timed_with_and_without_a_selector(monkeypatch):
    problems = host_time.list_dense_problems("fp8_gemm")[:2]

    def refuse(*_):
        raise CompileError("no artefact covers it")

    for choose, names in (
        (lambda problem, *_: problem, {"fp8_gemm", "fp8_gemm analytic"}),
        (refuse, {"fp8_gemm analytic"}),
        (None, {"fp8_gemm analytic"}),
    ):
        selector = choose and SimpleNamespace(choose=choose)
        monkeypatch.setattr(host_time, "get_selector", lambda device, found=selector: found)
        found = host_time.list_choosers("fp8_gemm", problems, H200)
        assert set(found) == names and all(asked == problems and ask(problems[0]) for ask, asked in found.values())


def test_host_calls_cover_both_op_kinds_and_report_failures(monkeypatch):
    monkeypatch.setattr("benchmarks.stopwatch.CALLS_PER_BLOCK", 1)
    monkeypatch.setattr(host_time, "SIZES", (4, 128, 128))
    found = host_time.time_calls("cpu", lambda: None)
    assert {"bf16_gemm_nt", "fp8_gemm_nt, row-major scales", "torch.mm(out=)"} <= set(found)
    grouped = {"m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_gemm_nt_masked", "k_grouped_fp8_gemm_nt_contiguous"}
    assert {name for name in found if "_grouped_" in name} == grouped
    assert not any("failed" in times for times in found.values()), found
    monkeypatch.setattr("deep_gemm.bf16_gemm_nt", lambda *_: (_ for _ in ()).throw(RuntimeError("lost")))
    assert host_time.time_calls("cpu", lambda: None)["bf16_gemm_nt"] == {"failed": "RuntimeError: lost"}


def test_a_config_that_does_not_compile_is_a_row(monkeypatch):
    def compile_source(source, name, compiler):
        raise CompileError("no such instruction")

    monkeypatch.setattr(compile_time.compile, "compile_source", compile_source)
    pairs = compile_time.list_pairs(H200)[:2]
    rows = compile_time.time_compiler("nvrtc", pairs)
    assert [row["failed"] for row in rows] == ["no such instruction"] * 2 and compile_time.summarise(rows) == {
        "count": 0
    }
    assert {variant.op for variant, _ in compile_time.list_pairs(H200)} == {"fp8_gemm", "bf16_gemm"}


def test_pdl_reports_a_failing_shape_and_leaves_it_on(monkeypatch):
    monkeypatch.setattr(pdl, "make_chain", lambda *_: 1 / 0)
    assert pdl.run_shape("fp8_gemm", (1, 576, 7168), 1) == [
        {"op": "fp8_gemm", "m": 1, "n": 576, "k": 7168, "failed": "ZeroDivisionError: division by zero"}
    ]
    assert pdl.deep_gemm.get_pdl()


def test_pdl_compares_bits(monkeypatch):
    outputs, state = [torch.zeros(2, 2)], {"on": False}
    monkeypatch.setattr(pdl.deep_gemm, "set_pdl", lambda is_on: state.update(on=is_on))
    monkeypatch.setattr(pdl, "time_once", lambda run: (run(), 2.0 if not state["on"] else 1.0)[1])
    row = pdl.time_mode([lambda: outputs[0].fill_(1.0)], outputs, "eager", 3)
    assert row["gain"] == 2.0 and row["off_us"] == [2.0] * 3 and "wrong" not in row
    row = pdl.time_mode([lambda: outputs[0].fill_(float(state["on"]))], outputs, "eager", 3)
    assert row["wrong"] == [0]
