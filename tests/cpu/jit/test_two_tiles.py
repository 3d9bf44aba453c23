"""Kernels of two tiles for masked groups: their source, and that each tile has the code that it has alone."""

import functools
from collections import Counter

import pytest

from deep_gemm import _C
from deep_gemm.errors import ConfigError
from deep_gemm.jit import compile, generator
from tests.fakes import sass
from tests.fakes.compiler import require_compiler

FP8, BF16 = (_C.Problem(f"m_grouped_{dtype}_gemm_masked", 1, 1, 1, num_groups=1) for dtype in ("fp8", "bf16"))
PAIRS = {
    "fp8": (FP8, _C.Config(128, 128, 5, scale_warp=1), _C.Config(128, 192, 4, loop=1, scale_warp=1)),
    "fp8, side by side": (FP8, _C.Config(64, 256, 4, loop=1, scale_warp=1), _C.Config(128, 128, 5, scale_warp=1)),
    "fp8, one warpgroup": (FP8, _C.Config(64, 96, 10, scale_warp=1), _C.Config(64, 64, 13, scale_warp=1)),
    "bf16": (BF16, _C.Config(64, 128, 8, block_k=64), _C.Config(64, 192, 6, block_k=64)),
    "bf16, swap": (
        BF16, _C.Config(104, 128, 6, block_k=64, swap_ab=1), _C.Config(128, 256, 3, block_k=64),
    ),
    "fp8, any layout": (
        _C.Problem(FP8.op, 1, 1, 1, num_groups=1, scale_layout="any"), _C.Config(128, 128, 4), _C.Config(128, 192, 3),
    ),
}  # fmt: skip
PAIRS["fp8, ends"] = (
    _C.Problem("m_grouped_fp8_gemm_psum", 1, 1, 1, num_groups=1, alignment=_C.ANY_TILE_ALIGNMENT),
    _C.Config(128, 128, 5, scale_warp=1), _C.Config(32, 256, 5, swap_ab=1),
)  # fmt: skip
NAMES = [name if name in ("bf16", "fp8, ends") else pytest.param(name, marks=pytest.mark.full) for name in PAIRS]
#: Of the choice itself: the sums over lanes, the rows or two ends of groups, descriptors of both tiles.
OF_THE_CHOICE = {"REDUX": 2, "LDG": 2, "UTMACCTL": 8}


@functools.cache
def build(name: str, tiles: tuple[int, ...]) -> tuple:
    problem, *configs = PAIRS[name]
    source = generator.generate_source(problem, *(configs[tile] for tile in tiles))
    return compile.compile_source(source, generator.kernel_name(problem.op), "nvrtc")


def count(name: str, *tiles: int) -> Counter:
    return Counter(one.opcode.partition(".")[0] for one in sass.disassemble(build(name, tiles).cubin))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_more_spills_and_no_multiplication_is_serialised(name):
    """The newest NVRTC spills 12 bytes where scales have any layout, also of one tile."""
    require_compiler("nvrtc")
    both, *alone = (build(name, tiles) for tiles in ((0, 1), (0,), (1,)))
    assert both.warnings == ()
    assert both.spill_bytes <= max(one.spill_bytes for one in alone)
    assert both.registers <= max(one.registers for one in alone) + 8


@pytest.mark.parametrize("name", NAMES)
def test_each_tile_has_the_code_that_it_has_alone(name):
    """A branch that the assembler takes for one of lanes parts them at each barrier of both tiles."""
    require_compiler("nvrtc")
    both, alone = count(name, 0, 1), count(name, 0) + count(name, 1)
    assert "ENDCOLLECTIVE" not in both
    for opcode in ("QGMMA", "HGMMA", "UTMALDG", "UTMASTG", "SYNCS", "WARPSYNC"):
        assert both[opcode] == alone[opcode], opcode
    for opcode, number in OF_THE_CHOICE.items():
        assert both[opcode] <= alone[opcode] + number, opcode


def test_a_source_names_both_tiles():
    problem, first, second = PAIRS["fp8"]
    source = generator.generate_source(problem, first, second)
    assert source.startswith(f"// {problem.op}: {first} or {second}\n")
    assert source.count("struct Config {") == source.count("struct SecondConfig {") == 1
    assert "tile_choice.cuh" in source and "tile_choice.cuh" not in generator.generate_source(problem, first)
    assert generator.generate_source(problem, first, None) == generator.generate_source(problem, first)


REFUSED = {
    "second = 64x64x128 s4 c1x1: threads = 256": (FP8, _C.Config(128, 128, 4), _C.Config(64, 64, 4)),
    "second = 128x64x128 s4 c1x1: op = fp8_gemm": (
        _C.Problem("fp8_gemm", 1, 1, 1), _C.Config(128, 128, 4), _C.Config(128, 64, 4),
    ),
    "second = 128x250x128 s4 c1x1: block_n = 250": (FP8, _C.Config(128, 128, 4), _C.Config(128, 250, 4)),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_tiles_that_no_kernel_holds_have_no_source(text):
    with pytest.raises(ConfigError) as refused:
        generator.generate_source(*REFUSED[text])
    assert text in str(refused.value)
