"""New shapes after a warm-up for any size: what the benchmark counts, and how few of them compile."""

import itertools
import os
import random
import types
from pathlib import Path

import pytest
import torch

from benchmarks import new_shapes
from benchmarks.variants import PLAIN
from deep_gemm import _C, plan, selection
from deep_gemm.jit import ahead, build
from tests.fakes import stub_driver
from tests.fakes.compiler import install_counting_nvcc, read_compiled
from tests.fakes.cuda_tensors import make_tensor, needs_exchange, use_fakes

FP8 = PLAIN["fp8_gemm"]
_REAL_BUILD = {name: getattr(build, name) for name in ("get_cubin", "get_cubin_for_source")}


def test_new_shapes_start_from_an_empty_cache(monkeypatch):
    monkeypatch.setenv("DG_JIT_CACHE_DIR", "kept")
    with new_shapes.empty_cache():
        folder = Path(os.environ["DG_JIT_CACHE_DIR"])
        assert folder.is_dir() and not list(folder.iterdir())
    assert os.environ["DG_JIT_CACHE_DIR"] == "kept" and not folder.exists()
    assert len(set(new_shapes.make_shapes("fp8_gemm"))) == new_shapes.NUM_SHAPES


def list_picks() -> list:
    device = _C.Device.known("h200")
    return [_C.get_analytic_config(FP8.problem(*shape), device) for shape in new_shapes.make_shapes(FP8.op)]


def run_benchmark(folder: str) -> tuple[dict, list[str], list]:
    """Return the benchmark's figures of FP8, the sources compiled by its calls, and the problems that they planned."""
    use_fakes()
    vars(build).update(_REAL_BUILD)
    numbers, problems, planned = itertools.count(1), [], plan.plan

    def make(*shape: int, dtype: torch.dtype = torch.float32, device: str) -> torch.Tensor:
        return make_tensor(next(numbers) << 32, shape, dtype)

    cuda = types.SimpleNamespace(synchronize=lambda: None)
    new_shapes.torch = types.SimpleNamespace(empty=make, randn=make, bfloat16=torch.bfloat16, cuda=cuda)
    ahead.list_any_size = lambda *_: [(config, None) for config in list_picks()]
    plan.plan = lambda problem, ordinal: problems.append(problem) or planned(problem, ordinal)
    os.environ |= {"DG_JIT_USE_NVRTC": "0", "DG_JIT_NVCC_COMPILER": str(install_counting_nvcc(Path(folder)))}
    with new_shapes.empty_cache():
        figures = new_shapes.time_op(FP8.op, _C.get_device())
    return figures, read_compiled(Path(folder))[figures["compiled_ahead"] :], problems


@needs_exchange
def test_new_shapes_compile_nothing_but_what_makes_their_operands(tmp_path):
    with stub_driver.start(tmp_path) as driver:
        (figures, compiled, problems), _ = driver.call(run_benchmark, str(tmp_path))
    assert set(compiled) == {"// cast_rows", "// cast_blocks"}
    assert (figures["compiles"], figures["sources"]) == (0, {"analytic": new_shapes.NUM_SHAPES})
    called = {(one.m, one.n, one.k): one for one in problems[1:]}  # the first one is the warm-up's
    assert called == {shape: FP8.problem(*shape) for shape in new_shapes.make_shapes(FP8.op)}


def test_a_warm_up_for_any_size_prepares_the_benchmark_s_shapes():
    device = _C.Device.known("h200")
    assert {(config, None) for config in list_picks()} <= set(ahead.list_any_size(FP8.problem(), device))


def draw_shapes(count: int) -> list[tuple[int, int, int]]:
    rng = random.Random(7)
    return [
        (int(2 ** rng.uniform(0, 13)), 8 * rng.randrange(8, 4096), 16 * rng.randrange(8, 1152)) for _ in range(count)
    ]


@pytest.mark.parametrize("op, num_groups", [("m_grouped_fp8_gemm_masked", 4), ("m_grouped_bf16_gemm_masked", 1)])
def test_it_leaves_seven_in_1000_of_few_masked_groups_with_their_second_tiles(op, num_groups):
    device = _C.Device.known("h200")
    prepared = set(ahead.list_any_size(_C.Problem(op, 8192, 128, 128, num_groups=num_groups, expected_m=64), device))
    problems = [_C.Problem(op, 8192, n, k, num_groups=num_groups, expected_m=m) for m, n, k in draw_shapes(2000)]
    runs = [selection.explain_tiles(problem, device) for problem in problems]
    assert sum(second is not None for _, second in runs) > 20
    assert sum((choice.config, second) not in prepared for choice, second in runs) <= 0.007 * len(runs)
    assert len(prepared) <= 220, "each is compiled"


@pytest.mark.parametrize("name", ["h200", pytest.param("h20", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "fields",
    [
        {"op": "fp8_gemm"},
        {"op": "fp8_gemm", "scale_layout": "any"},
        {"op": "bf16_gemm"},
        {"op": "fp8_gemm", "recipe": "1d1d", "d_dtype": "fp32", "c_mode": "accumulate"},
    ],
    ids=str,
)
def test_a_warm_up_for_any_size_leaves_two_new_shapes_in_1000(fields, name):
    device = _C.Device.known(name)
    prepared = {first for first, _ in ahead.list_any_size(_C.Problem(**fields, m=128, n=128, k=128), device)}
    shapes = draw_shapes(4000)
    picks = [_C.get_analytic_config(_C.Problem(**fields, m=m, n=n, k=k), device) for m, n, k in shapes]
    assert sum(pick not in prepared for pick in picks) <= 0.002 * len(shapes)
    learned = [selection.explain(_C.Problem(**fields, m=m, n=n, k=k), device).config for m, n, k in shapes[:2000]]
    assert sum(pick not in prepared for pick in learned) <= 0.002 * len(learned)
    # Of FP8 with MN-major scales the exact table of the H200 alone names 96.
    assert len(prepared) <= (165 if fields == {"op": "fp8_gemm"} else 160), "each is compiled"
