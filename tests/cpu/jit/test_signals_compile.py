"""Kernels that signal the rows they have stored, by the real compilers: nothing more spills than without signals, the
main loop stays as it is, and additions come behind a fence of what was stored.
"""

from collections import Counter

import pytest

from deep_gemm import _C
from deep_gemm.jit import compile, generator
from tests.fakes import sass
from tests.fakes.compiler import require_compiler

FP8, BF16 = (_C.Problem(f"m_grouped_{dtype}_gemm_masked", 1, 1, 1, num_groups=1) for dtype in ("fp8", "bf16"))
KERNELS = {
    "fp8": (FP8, _C.Config(128, 128, 5, scale_warp=1)),
    "fp8, any layout": (_C.Problem(FP8.op, 1, 1, 1, num_groups=1, scale_layout="any"), _C.Config(128, 128, 4)),
    "fp8, pair": (FP8, _C.Config(64, 96, 8, cluster_m=2)),
    "bf16, swap": (BF16, _C.Config(240, 128, 3, block_k=64, swap_ab=1)),
    "bf16, direct": (
        _C.Problem(BF16.op, 1, 1, 1, num_groups=1, d_dtype="fp32"), _C.Config(256, 128, 3, block_k=64),
    ),
}  # fmt: skip
NAMES = [name if name in ("fp8", "bf16, swap") else pytest.param(name, marks=pytest.mark.full) for name in KERNELS]


def build(problem, config, compiler):
    source = generator.generate_source(problem, config)
    return compile.compile_source(source, generator.kernel_name(problem.op), compiler)


def count(result) -> Counter:
    opcodes = [one.opcode for one in sass.disassemble(result.cubin)]
    return Counter(opcodes) + Counter(opcode.partition(".")[0] for opcode in opcodes if "." in opcode)


@pytest.mark.parametrize("compiler", ["nvrtc", pytest.param("nvcc", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", NAMES)
def test_signals_add_little_code_and_spill_nothing(name, compiler):
    require_compiler(compiler)
    problem, config = KERNELS[name]
    plain, signalling = (build(one, config, compiler) for one in (problem, problem.with_signals()))
    assert signalling.warnings == plain.warnings
    assert signalling.spill_bytes <= plain.spill_bytes and signalling.registers <= plain.registers + 16
    before, after = count(plain), count(signalling)
    for opcode in ("QGMMA", "HGMMA", "UTMALDG", "UTMASTG", "SYNCS"):
        assert after[opcode] == before[opcode], opcode
    assert after["REDG.E.ADD.STRONG.GPU"] == 1 and after["MEMBAR.ALL.GPU"] == 1
