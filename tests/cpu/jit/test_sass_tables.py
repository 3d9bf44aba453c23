"""Kernels read no tables of their own, so that equal machine code means equal results (benchmarks/same_code.py)."""

import re

import pytest

from deep_gemm.fields import OP_KINDS
from deep_gemm.jit import generator, hashing, nvrtc
from tests.fakes import sass
from tests.fakes.compiler import require_compiler

#: Banks of constants. The first one has the arguments of a launch; the assembler keeps tables in others, or the
#: addresses of those in global memory.
BANK = re.compile(r"c\[(0x[0-9a-f]+)\]")
ARGUMENTS = "0x0"
LOOK_UP = """ int table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
extern "C" __global__ void look_up(int* out, int place) { out[threadIdx.x] = table[(place + threadIdx.x) & 7]; }
"""
#: A branch of many ways, whose targets are a table.
BRANCH = """extern "C" __global__ void look_up(int* out, int place) {
    switch (place) {
        case 0: out[1] = atomicAdd(out, 3); break;
        case 1: out[5] = atomicMax(out, 7); break;
        case 2: __nanosleep(9); break;
        case 3: out[threadIdx.x] = clock(); break;
        case 4: out[9] = atomicMin(out + 2, 4); break;
        case 5: __threadfence(); break;
        case 6: out[2] = atomicExch(out, 1); break;
        case 7: __syncthreads(); break;
    }
}
"""
TABLES = {"global": f"__device__ const{LOOK_UP}", "constant": f"__constant__{LOOK_UP}", "branch": BRANCH}
FEW = ("fp8_gemm", "fp8_paged_mqa_logits")
NAMES = [name if name in FEW else pytest.param(name, marks=pytest.mark.full) for name in OP_KINDS]


def reads_table(source: str) -> bool:
    require_compiler("nvrtc")
    output = nvrtc.get_nvrtc().compile(source, hashing.get_included_headers(source))
    assert not output.error, output.log
    banks = {bank for each in sass.disassemble(output.image) for bank in BANK.findall(each.operands)}
    return bool(banks - {ARGUMENTS})


@pytest.mark.parametrize("source", TABLES.values(), ids=TABLES)
def test_a_table_is_seen(source):
    assert reads_table(source)


@pytest.mark.parametrize("op", NAMES)
def test_no_kernel_reads_a_table(op):
    sources = generator.canonical_sources(op)[:-1]  # the last one is there for its text, and need not be legal
    assert not any(map(reads_table, (sources[0], sources[len(sources) // 2], sources[-1])))
