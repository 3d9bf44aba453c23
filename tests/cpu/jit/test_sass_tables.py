"""Kernels read no tables of their own, so that equal machine code means equal results (benchmarks/same_code.py)."""

import pytest

from deep_gemm.fields import OP_KINDS
from deep_gemm.jit import generator, hashing, nvrtc
from tests.fakes import sass
from tests.fakes.compiler import require_compiler

#: Where the assembler keeps the addresses of what a kernel has in global memory.
ADDRESSES = "c[0x4]"
#: What the plain rules refuse: a table that is read with an index.
TABLE = """__device__ const int table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
extern "C" __global__ void look_up(int* out, int place) { out[threadIdx.x] = table[(place + threadIdx.x) & 7]; }
"""
FEW = ("fp8_gemm", "k_grouped_bf16_gemm_contiguous", "fp8_paged_mqa_logits")
NAMES = [name if name in FEW else pytest.param(name, marks=pytest.mark.full) for name in OP_KINDS]


def reads_table(source: str) -> bool:
    require_compiler("nvrtc")
    output = nvrtc.get_nvrtc().compile(source, hashing.get_included_headers(source))
    assert not output.error, output.log
    return any(ADDRESSES in each.operands for each in sass.disassemble(output.image))


def test_a_table_is_seen():
    assert reads_table(TABLE)


@pytest.mark.parametrize("op", NAMES)
def test_no_kernel_reads_a_table(op):
    sources = generator.canonical_sources(op)[:-1]  # the last one is there for its text, and need not be legal
    assert not any(map(reads_table, (sources[0], sources[len(sources) // 2], sources[-1])))
