"""The transposing pass: its kernel executed on the CPU on every grid, and the code that compilers generate for it.

Its launches are in test_launch_variants.py and test_grouped_dispatch.py.
"""

import functools
import itertools
import re
from pathlib import Path

import pytest
import torch

from benchmarks import stale
from benchmarks.stamp import OPS
from deep_gemm.jit import compile, hashing, plain_kernels
from tests.fakes import sass
from tests.fakes.compiler import isolate, require_compiler
from tests.fakes.plain_host import make_kernel

ROOT = Path(__file__).parents[3]
LAUNCH = ROOT / "csrc" / "runtime" / "transpose.cpp"
HEADER = ROOT / "deep_gemm" / "include" / "deep_gemm" / "transpose_fp8.cuh"
TILE, UNTOUCHED = 128, 99
NOTHING = (0,) * 9


def align(value: int) -> int:
    """Round up to 16."""
    return -(-value // 16) * 16


class Matrices:
    """An operand of `groups` matrices in padded memory, and what its copy must be: rows of the result are columns,
    zeros up to 16 bytes behind them, and nothing further is written.
    """

    def __init__(self, groups: int, rows: int, columns: int):
        self.sizes = rows, columns, groups
        self.memory = torch.randint(0, 256, (groups, rows + 1, align(columns) + 16), dtype=torch.uint8)
        self.found = torch.full((groups, columns + 1, align(rows) + 32), UNTOUCHED, dtype=torch.uint8)
        self.expected = self.found.clone()
        copy = torch.nn.functional.pad(self.memory[:, :rows, :columns].mT, (0, align(rows) - rows))
        self.expected[:, :columns, : align(rows)] = copy

    def arguments(self) -> tuple:
        """Return the kernel's arguments."""
        self.found.fill_(UNTOUCHED)
        (in_group, in_pitch, _), (out_group, out_pitch, _) = self.memory.stride(), self.found.stride()
        return self.memory, self.found, in_pitch, out_pitch, in_group, out_group, *self.sizes

    def count_tiles(self) -> int:
        """Return the tiles of all groups."""
        rows, columns, groups = self.sizes
        return groups * -(-rows // TILE) * -(-columns // TILE)


@pytest.mark.parametrize(
    "sizes",
    [
        [(1, 1, 1)],
        [(1, 128, 128)],
        [(1, 129, 300)],
        [(1, 300, 129), (1, 300, 17)],
        [(1, 16, 1000), (3, 130, 144)],
        [(4, 140, 3)],
        [(2, 256, 272), (2, 256, 128)],
    ],
    ids=str,
)
def test_every_grid_transposes_everything(sizes):
    kernel = make_kernel("transpose_fp8", 256)
    operands = [Matrices(*each) for each in sizes]
    tiles = sum(each.count_tiles() for each in operands)
    for grid in sorted({1, 2, 3, tiles, tiles + 2}):
        arguments = [each.arguments() for each in operands] + [NOTHING] * (2 - len(operands))
        kernel((grid,), *arguments[0], *arguments[1])
        assert all(torch.equal(each.found, each.expected) for each in operands), grid


def test_the_launch_has_the_kernels_tile_and_threads():
    kernel, host = HEADER.read_text(encoding="utf-8"), LAUNCH.read_text(encoding="utf-8")
    for name in ("kTile", "kThreads"):
        assert re.search(rf"{name} = (\d+)", kernel)[1] == re.search(rf"{name} = (\d+)", host)[1]


def test_records_of_it_are_stale_once_it_changes_and_not_with_other_kernels(few_sources, monkeypatch):
    monkeypatch.setattr(hashing, "kernel_hash", functools.cache(hashing.kernel_hash.__wrapped__))
    monkeypatch.setattr(stale, "current_kernel_hash", stale.current_kernel_hash.__wrapped__)
    before = {name: hashing.kernel_hash(name) for name in (*OPS, hashing.name_plain("transpose_fp8"))}
    assert stale.current_hashes(before) == before and len(set(before.values())) == len(before)
    read = hashing._read_header
    monkeypatch.setattr(
        hashing, "_read_header", lambda path: read(path) + "int x;" * (path.name == "transpose_fp8.cuh")
    )
    changed = {name for name in before if hashing.kernel_hash.__wrapped__(name) != before[name]}
    assert changed == {hashing.name_plain("transpose_fp8")}


def test_whole_tiles_keep_their_loads_under_way_together():
    """Of the two paths, the first is that of whole tiles: every access is 16 bytes wide where memory is concerned, and
    no load waits for another one's store into shared memory.
    """
    require_compiler("nvrtc")
    source = plain_kernels.plain_source("transpose_fp8")
    cubin = compile.compile_source(source, plain_kernels.plain_symbol("transpose_fp8"), "nvrtc").cubin
    accesses = [each.opcode for each in sass.disassemble(cubin) if each.is_a("LDG", "STG", "STS", "LDS", "BAR")]
    path = [(opcode, len(list(same))) for opcode, same in itertools.groupby(accesses)][:6]
    assert path == [
        ("LDG.E.128", 4), ("STS.128", 4), ("BAR.SYNC.DEFER_BLOCKING", 1), ("LDS", 16), ("STG.E.128", 4),
        ("BAR.SYNC.DEFER_BLOCKING", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_it_compiles_without_spills_and_fills_an_sm(monkeypatch, tmp_path, compiler):
    require_compiler(compiler)
    isolate(monkeypatch, tmp_path)
    source, symbol = plain_kernels.plain_source("transpose_fp8"), plain_kernels.plain_symbol("transpose_fp8")
    result = compile.compile_source(source, symbol, compiler)
    assert (result.spill_bytes, result.local_bytes, list(result.warnings)) == (0, 0, [])
    threads = int(re.search(r"kThreads = (\d+)", HEADER.read_text(encoding="utf-8"))[1])
    ctas = int(re.search(r"kCtasPerSm = (\d+)", HEADER.read_text(encoding="utf-8"))[1])
    assert threads * ctas == 2048 and result.registers * threads * ctas <= 65536
