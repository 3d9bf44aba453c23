"""The kernels of groups with ends compile, and no thread spills: a tile of each op kind. With --full, every config that
a call of the main variants may choose.
"""

import pytest

from deep_gemm import _C
from deep_gemm.jit import compile, generator
from tests.fakes.compiler import require_compiler

DEVICE = _C.Device.known("h200")
_K = {"d_dtype": "fp32", "c_mode": "accumulate"}
VARIANTS = {
    "m fp8": ("m_grouped_fp8_gemm_psum", {"alignment": _C.ANY_TILE_ALIGNMENT}),
    "m fp8 1d1d any": (
        "m_grouped_fp8_gemm_psum",
        {"alignment": _C.ANY_TILE_ALIGNMENT, "recipe": "1d1d", "scale_layout": "any"},
    ),
    "m bf16": ("m_grouped_bf16_gemm_psum", {"alignment": _C.ANY_TILE_ALIGNMENT}),
    "k fp8 blocks": ("k_grouped_fp8_gemm_psum", {"recipe": "1d1d", "group_layout": "blocks", **_K}),
    "k fp8 any": ("k_grouped_fp8_gemm_psum", {"recipe": "1d1d", "scale_layout": "any", **_K}),
    "k bf16": ("k_grouped_bf16_gemm_psum", {"a_major": "mn", "b_major": "mn", **_K}),
}


def make_problem(name: str) -> "_C.Problem":
    op, fields = VARIANTS[name]
    return _C.Problem(op, 1, 1, 1, num_groups=1, **fields)


def find_fault(problem: "_C.Problem", config: "_C.Config", compiler: str) -> str:
    """Compile one kernel past every cache; return what is wrong with it, or ""."""
    source = generator.generate_source(problem, config)
    result = compile.compile_source(source, generator.kernel_name(problem.op), compiler)
    return f"{config}: {result.spill_bytes} bytes spilled" if result.spill_bytes or result.local_bytes else ""


@pytest.mark.parametrize("name", ["m fp8", "m bf16", "k fp8 blocks", "k bf16"])
def test_a_small_tile_compiles(name):
    require_compiler("nvrtc")
    problem = make_problem(name)
    space = _C.get_default_space(problem, DEVICE)
    smallest = min(space, key=lambda config: (config.block_m * config.block_n, config.num_stages))
    assert find_fault(problem, smallest, "nvrtc") == ""


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", VARIANTS)
def test_the_whole_space_compiles_without_spills(name):
    require_compiler("nvrtc")
    problem = make_problem(name)
    faults = [find_fault(problem, config, "nvrtc") for config in _C.get_default_space(problem, DEVICE)]
    assert list(filter(None, faults)) == []
