"""What the assembler made of the unrolled main loop (sm90/mainloop/fp8_unrolled.cuh), on which its speed and its safety
rest: nothing is loaded, waited for at a barrier or promoted between the WGMMAs of a chain, a stage is given back only
when everything read from it has arrived, no thread spills, and registers are as declared. Of 1D2D, products of scales
that were loaded ahead of the chain are computed behind its first WGMMA: held back they lost (docs/kernels.md).
"""

import functools

import pytest

from deep_gemm import _C
from deep_gemm.jit import compile, generator
from tests.fakes import sass
from tests.fakes.compiler import require_compiler

ACCUMULATE = {"recipe": "1d1d", "d_dtype": "fp32", "c_mode": "accumulate"}
GROUPS = {"num_groups": 1}
#: Registers at launch of kernels with two math warpgroups; setmaxnreg then moves them from the producers.
REGISTERS_OF_TWO = 168
MAX_REGISTERS_OF_ONE = 248
#: name -> (op kind, fields of the problem, tile and stages, knobs). The first ones are in every run.
KERNELS = {
    "blocks": ("fp8_gemm", {}, (128, 128, 4), {"loop": 1, "scale_warp": 1}),
    "vectors": ("fp8_gemm", ACCUMULATE, (128, 128, 4), {"loop": 1, "reduce_add": 1}),
    "vectors, two waves": ("fp8_gemm", ACCUMULATE, (256, 96, 3), {"loop": 1}),
    "two waves": ("fp8_gemm", {}, (256, 128, 3), {"loop": 1, "scale_warp": 1, "tile_barrier": 1}),
    "straddling": ("fp8_gemm", {}, (128, 112, 6), {"loop": 1, "scale_warp": 1}),
    "wide": ("fp8_gemm", {}, (128, 192, 4), {"loop": 1, "scale_warp": 1}),
    "narrow": ("fp8_gemm", {}, (128, 64, 8), {"loop": 1, "scale_warp": 1}),
    "one warpgroup": ("fp8_gemm", {}, (64, 64, 12), {"loop": 1, "scale_warp": 1}),
    "side by side": ("fp8_gemm", {}, (64, 256, 4), {"loop": 1, "scale_warp": 1}),
    "side by side, straddling": ("fp8_gemm", {}, (64, 224, 5), {"loop": 1, "scale_warp": 1}),
    "stage blocks": ("fp8_gemm", {}, (128, 96, 7), {"loop": 1}),
    "pair": ("fp8_gemm", {}, (128, 192, 4), {"loop": 1, "scale_warp": 1, "cluster_n": 2}),
    "any layout": ("fp8_gemm", {"scale_layout": "any"}, (128, 128, 4), {"loop": 1}),
    "contiguous": (
        "m_grouped_fp8_gemm_contiguous",
        {"alignment": _C.ANY_TILE_ALIGNMENT, **GROUPS},
        (128, 192, 4),
        {"loop": 1, "scale_warp": 1},
    ),
    "masked": ("m_grouped_fp8_gemm_masked", GROUPS, (256, 128, 3), {"loop": 1, "scale_warp": 1}),
    "k-grouped": (
        "k_grouped_fp8_gemm_contiguous",
        {"group_layout": "blocks", **ACCUMULATE, **GROUPS},
        (128, 128, 4),
        {"loop": 1, "reduce_add": 1},
    ),
}
FEW = ("blocks", "vectors", "two waves")
NAMES = [name if name in FEW else pytest.param(name, marks=pytest.mark.full) for name in KERNELS]


@functools.cache
def build(name: str) -> compile.CompileResult:
    require_compiler("nvrtc")
    op, fields, tile, knobs = KERNELS[name]
    source = generator.generate_source(_C.Problem(op, 1, 1, 1, **fields), _C.Config(*tile, **knobs))
    return compile.compile_source(source, generator.kernel_name(op), "nvrtc")


@functools.cache
def read(name: str) -> list[sass.Instruction]:
    return sass.disassemble(build(name).cubin)


@pytest.mark.parametrize("name", NAMES)
def test_registers_are_as_declared_and_nothing_spills(name):
    result, (op, fields, tile, _) = build(name), KERNELS[name]
    has_one = _C.num_threads(_C.Problem(op, 1, 1, 1, **fields), _C.Config(*tile)) == 256
    assert (result.spill_bytes, result.local_bytes, result.warnings) == (0, 0, ())
    assert result.registers <= MAX_REGISTERS_OF_ONE if has_one else result.registers == REGISTERS_OF_TWO


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_loaded_or_promoted_between_the_multiplications_of_a_chain(name):
    """Where columns have scales of their own, those are read there: behind the chain it is too late."""
    _, fields, (block_m, _, num_stages), _ = KERNELS[name]
    chains, parts = sass.find_chains(read(name)), 2 if block_m == 256 else 1
    assert len(chains) == (num_stages + 1) * parts  # those of a round, and a step of any stage
    slow = ("SYNCS", "BAR", "WARPSYNC", "FFMA") if fields.get("recipe") == "1d1d" else ("LDS", "SYNCS", "BAR", "FFMA")
    for chain in chains:
        assert [one.opcode for one in chain if one.is_a(*slow)] == []
        assert sum(one.is_multiplication for one in chain) == 4


@pytest.mark.parametrize("name", ["vectors", pytest.param("k-grouped", marks=pytest.mark.full)])
def test_scales_of_columns_are_read_before_a_chain_ends(name):
    """H200, 4096 x 4096 x 7168, tile 128x128: read behind the chain 283 us, within it 241 to 252."""
    for step in sass.find_steps(read(name)):
        end = max(at for at, one in enumerate(step) if one.ends_chain)
        assert [one.opcode for one in step[end:] if one.is_a("LDS")] == []
        assert sum(one.is_a("LDS") for one in step) >= 16  # a pair for every 8 columns, and rows


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_is_given_back_after_everything_read_from_it(name):
    """The address of the arrival depends on every scale that was read and on a WGMMA's result."""
    _, _, (_, _, num_stages), _ = KERNELS[name]
    steps = sass.find_steps(read(name))
    assert len(steps) == num_stages + 1
    for step in steps:
        sources, loads = sass.find_sources(step), [one for one in step if one.is_a("LDS")]
        assert loads and set(loads) <= set(sources) and any(one.is_multiplication for one in sources)


@pytest.mark.parametrize("name", NAMES)
def test_lanes_part_nowhere_in_a_round(name):
    """A branch for some lanes between two stages cost 3 to 27 % of a kernel's time on an H200."""
    instructions, (_, _, (*_, num_stages), _) = read(name), KERNELS[name]
    ends = [at for at, one in enumerate(instructions) if one.ends_chain]
    parts = len(ends) // (num_stages + 1)
    whole = instructions[ends[0] : ends[num_stages * parts - 1]]
    assert [one.opcode for one in whole if one.is_a("BSSY", "BSYNC", "WARPSYNC", "SHFL")] in (
        [],
        ["WARPSYNC"] * (num_stages - 1),
    )


@pytest.mark.parametrize(
    "tile, swap_ab",
    [((64, 64, 13), 0)]
    + [pytest.param(*case, marks=pytest.mark.full) for case in (((128, 128, 5), 0), ((8, 64, 11), 1))],
)
def test_two_partial_sums_with_scales_of_any_layout_overlap(tile, swap_ab):
    """The assembler serialises the WGMMAs of a kernel where a branch lies between one and its wait, and says so."""
    require_compiler("nvrtc")
    problem, config = _C.Problem("fp8_gemm", 1, 1, 1, scale_layout="any"), _C.Config(*tile, swap_ab=swap_ab)
    assert _C.is_pipelined(problem, config)
    source = generator.generate_source(problem, config)
    result = compile.compile_source(source, generator.kernel_name("fp8_gemm"), "nvrtc")
    assert (result.spill_bytes, result.warnings) == (0, ())


@pytest.mark.parametrize("tile, knobs", [((128, 144, 5), {}), ((128, 192, 4), {"scale_warp": 1})])
def test_scales_are_selected_behind_the_chain(tile, knobs):
    """Not in the unrolled loop: between the WGMMAs they made a kernel take 6 to 15 % longer (H100, 128x144)."""
    require_compiler("nvrtc")
    source = generator.generate_source(_C.Problem("fp8_gemm", 1, 1, 1), _C.Config(*tile, **knobs))
    cubin = compile.compile_source(source, generator.kernel_name("fp8_gemm"), "nvrtc").cubin
    (chain,) = sass.find_chains(sass.disassemble(cubin))
    assert sum(one.is_multiplication for one in chain) == 4
    assert [one.opcode for one in chain if one.is_a("LDS", "FSEL", "FMUL", "FFMA")] == []


def test_a_release_that_depends_on_nothing_is_found():
    """The reader of SASS sees it: without the scales' bits the address takes none of what was read."""
    lines = ["LDS R4, [R16]", "QGMMA.64x8x32.F32.E4M3.E4M3 R24, gdesc[UR4], RZ, !UPT, gsb0", "LOP3.LUT R5, R4, R24, RZ"]
    step = [sass._read(*line.split(None, 1)) for line in [*lines, "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R5+UR7+0x8], RZ"]]
    assert [one.opcode for one in sass.find_sources(step)] == ["LOP3.LUT", lines[1].split()[0], "LDS"]
    assert step[1].writes == {24, 25, 26, 27} and step[-1].is_release
    unbound = [*step[:-1], sass._read("SYNCS.ARRIVE.TRANS64.A1T0", "RZ, [R6+UR7+0x8], RZ")]
    assert sass.find_sources(unbound) == []
