"""Configs of attention logits compile without spills. The sample has the tiles that take the most registers; with
--full, NVRTC builds the default space of every variant that the GPU suite runs.
"""

import pytest

from deep_gemm import _C
from deep_gemm.jit import compile, generator, plain_kernels
from tests.cpu.jit.test_compile_space import get_all_faults
from tests.fakes.compiler import require_compiler
from tests.gpu.logits_jobs import list_kernels

H200 = _C.Device.known("h200")
PREFILL = _C.Problem("fp8_mqa_logits", 64, 64, 128, heads=64, d_dtype="fp32")
PAGED = _C.Problem("fp8_paged_mqa_logits", 64, 64, 128, heads=64, next_n=2, block_kv=64)


def choose_widest(problem, keys: int):
    """Return the config of the default space with so many keys and the most tokens."""
    space = [config for config in _C.get_default_space(problem, H200) if config.block_n == keys]
    return max(space, key=lambda config: (config.block_m, -config.num_stages))


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_sample(compiler):
    require_compiler(compiler, "a few compilations")
    problems = (PREFILL, PAGED) if compiler == "nvrtc" else (PREFILL,)
    assert get_all_faults([(problem, choose_widest(problem, 192)) for problem in problems], compiler) == []


def test_metadata_compiles():
    require_compiler("nvrtc", "a compilation")
    source, name = plain_kernels.plain_source("mqa_metadata"), plain_kernels.plain_symbol("mqa_metadata")
    result = compile.compile_source(source, name, "nvrtc")
    assert not result.spill_bytes and not result.warnings


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_every_candidate_by_nvrtc():
    kernels = list_kernels()
    require_compiler("nvrtc", f"{len(kernels)} NVRTC compilations")
    assert get_all_faults(kernels, "nvrtc") == []


def test_a_kernel_differs_by_its_variant_alone():
    config = _C.Config(2, 128, 8)
    sources = {
        generator.generate_source(_C.Problem("fp8_mqa_logits", 1, n, k, heads=heads, d_dtype=d_dtype), config)
        for n in (64, 4096)
        for k in (32, 128)
        for heads in (32, 64)
        for d_dtype in ("fp32", "bf16")
    }
    assert len(sources) == 8
