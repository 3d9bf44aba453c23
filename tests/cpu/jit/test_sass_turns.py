"""What the assembler made of the main loops that are not unrolled: in turn and with two partial sums
(sm90/mainloop/fp8_mainloop.cuh), and of BF16 (bf16_mainloop.cuh). Most recorded choices have one of them.
"""

import functools

import pytest

from deep_gemm import _C
from deep_gemm.jit import compile, generator
from tests.fakes import sass
from tests.fakes.compiler import require_compiler

#: name -> (op kind, fields of the problem, tile and stages, other fields of the config).
PIPELINED = {
    "two partial sums": ("fp8_gemm", {}, (128, 128, 5), {"scale_warp": 1}),
    "one warpgroup": ("fp8_gemm", {}, (64, 96, 9), {}),
    "side by side": ("fp8_gemm", {}, (64, 224, 5), {"scale_warp": 1}),
    "swapped": ("fp8_gemm", {}, (16, 64, 10), {"swap_ab": 1}),
    "split": ("fp8_gemm", {}, (8, 64, 7), {"swap_ab": 1, "split_k": 4}),
    "masked": ("m_grouped_fp8_gemm_masked", {"num_groups": 1}, (128, 128, 5), {"scale_warp": 1}),
}
IN_TURN = {
    "in turn": ("fp8_gemm", {}, (128, 192, 4), {"scale_warp": 1}),
    "straddling": ("fp8_gemm", {}, (128, 144, 5), {}),
    "two waves": ("fp8_gemm", {}, (256, 128, 3), {}),
}
HALF = {
    "wide bf16": ("bf16_gemm", {}, (128, 256, 3), {"block_k": 64}),
    "bf16": ("bf16_gemm", {}, (64, 128, 6), {"block_k": 64}),
    "swapped bf16": ("bf16_gemm", {}, (16, 64, 8), {"block_k": 64, "swap_ab": 1}),
}
KERNELS = PIPELINED | IN_TURN | HALF
FEW = ("two partial sums", "one warpgroup", "in turn")
REGISTERS_OF_TWO, MAX_REGISTERS_OF_ONE = 168, 248  # at launch, by the number of math warpgroups


def some(names) -> list:
    """Return the names as parameters; all but a few are in the long run alone."""
    return [name if name in FEW else pytest.param(name, marks=pytest.mark.full) for name in names]


@functools.cache
def build(name: str) -> compile.CompileResult:
    require_compiler("nvrtc")
    op, fields, tile, others = KERNELS[name]
    problem, config = _C.Problem(op, 1, 1, 1, **fields), _C.Config(*tile, **others)
    assert _C.is_pipelined(problem, config) == (name in PIPELINED)
    return compile.compile_source(generator.generate_source(problem, config), generator.kernel_name(op), "nvrtc")


@functools.cache
def read(name: str) -> list[sass.Instruction]:
    return sass.disassemble(build(name).cubin)


@pytest.mark.parametrize("name", some(KERNELS))
def test_registers_are_as_declared_and_nothing_spills(name):
    result, (block_m, block_n, _), others = build(name), KERNELS[name][2], KERNELS[name][3]
    assert (result.spill_bytes, result.local_bytes, result.warnings) == (0, 0, ())
    has_one = (block_n if others.get("swap_ab") else block_m) == 64
    assert result.registers <= MAX_REGISTERS_OF_ONE if has_one else result.registers == REGISTERS_OF_TWO


@pytest.mark.parametrize("name", some(PIPELINED | IN_TURN))
def test_no_chain_of_the_loop_waits_for_a_load_within_it(name):
    """The last chain of a kernel with two partial sums is that of a tile's last step, behind the loop: there scales are
    multiplied between WGMMAs.
    """
    chains = sass.find_chains(read(name))
    assert len(chains) == (4 if name in PIPELINED else 2 if name == "two waves" else 1)
    for chain in chains[:3]:
        assert sum(one.is_multiplication for one in chain) == 4
        assert [one.opcode for one in chain if one.is_a("SYNCS", "BAR", "WARPSYNC", "FFMA")] == []
        assert [one.opcode for one in find_waiting(chain)] == []


def find_waiting(chain: list[sass.Instruction]) -> list[sass.Instruction]:
    """Return the instructions of a chain that read what a load within it brings."""
    loaded: set[int] = set()
    waiting = []
    for one in chain:
        if one.reads & loaded:
            waiting.append(one)
        loaded = loaded | one.writes if one.is_a("LDS") else loaded - one.writes
    return waiting


@pytest.mark.parametrize("name", some(PIPELINED | IN_TURN))
def test_a_stage_is_given_back_behind_a_wait_for_a_chain(name):
    """Never between a chain and its wait."""
    found, last = [], ""
    for one in read(name):
        if one.is_release:
            found.append(last)
        last = next(
            (event for event in ("DEPBAR", "PHASECHK") if event in one.opcode), "chain" if one.ends_chain else last
        )
    assert "chain" not in found and found.count("DEPBAR") >= (3 if name in PIPELINED else 1)


@pytest.mark.parametrize("name", some(IN_TURN))
def test_a_stage_is_given_back_after_every_scale_was_read(name):
    """The address of the arrival depends on all of them."""
    instructions = read(name)
    begin = next(at for at, one in enumerate(instructions) if one.begins_chain)
    last = max(at for at, one in enumerate(instructions) if one.ends_chain)
    end = next(at for at, one in enumerate(instructions) if at > last and one.is_release)
    step = instructions[begin : end + 1]
    sources, loads = sass.find_sources(step), [one for one in step if one.is_a("LDS")]
    assert loads and set(loads) <= set(sources)


def test_a_load_that_a_chain_waits_for_is_found():
    lines = ["LDS R4, [R16]", "FMUL R5, R4, R6", "LDS R7, [R17]", "FMUL R4, R5, R5"]
    chain = [sass._read(*line.split(None, 1)) for line in lines]
    assert [one.operands for one in find_waiting(chain)] == ["R5, R4, R6"]
