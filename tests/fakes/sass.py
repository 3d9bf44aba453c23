"""Disassembled kernels: instructions with the registers that they write and read, and the chains of WGMMAs among them.

nvdisasm comes from a CUDA toolkit, from the package nvidia-cuda-nvdisasm, or with Triton.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_REGISTER = re.compile(r"\bR(\d+)\b")
_WIDTHS = {"64": 2, "128": 4}
_WITHOUT_RESULT = ("ST", "BRA", "BAR", "SYNCS", "WARP", "UTMA", "BSYNC", "EXIT", "NANOSLEEP", "RED", "FENCE", "DEPBAR")


@dataclass(frozen=True)
class Instruction:
    """One instruction: opcode with its suffixes, operands as text, numbers of the registers written and read."""

    opcode: str
    operands: str
    writes: frozenset[int]
    reads: frozenset[int]

    def is_a(self, *names: str) -> bool:
        """Return whether the opcode, without its suffixes, is one of these."""
        return self.opcode.partition(".")[0] in names

    @property
    def is_multiplication(self) -> bool:
        """A WGMMA of FP8 or BF16."""
        return self.is_a("QGMMA", "HGMMA")

    @property
    def begins_chain(self) -> bool:
        """A WGMMA that does not add to what its accumulator holds."""
        return self.is_multiplication and "RZ, !UPT" in self.operands

    @property
    def ends_chain(self) -> bool:
        """The last WGMMA of a committed group."""
        return self.is_multiplication and "gsb0" in self.operands

    @property
    def is_release(self) -> bool:
        """An arrival at a barrier whose address depends on a register that was computed."""
        return self.opcode.startswith("SYNCS.ARRIVE") and bool(self.reads)


def find_nvdisasm() -> str | None:
    """Return the path of nvdisasm, or None."""
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"]
    for path in map(Path, sys.path):
        folders += [path / "nvidia" / "cu13" / "bin", path / "triton" / "backends" / "nvidia" / "bin"]
    return shutil.which("nvdisasm") or shutil.which("nvdisasm", path=os.pathsep.join(map(str, folders)))


def disassemble(cubin: bytes) -> list[Instruction]:
    """Return the instructions of a cubin in their order. Skips the test without nvdisasm; fails it in CI."""
    done = run_nvdisasm(cubin)
    done.check_returncode()
    return [_read(match[1], match[2]) for match in map(_LINE.search, done.stdout.splitlines()) if match]


def run_nvdisasm(cubin: bytes) -> subprocess.CompletedProcess:
    """Return what nvdisasm says of a cubin, as `disassemble` asks it."""
    program = find_nvdisasm()
    message = "nvdisasm: not found; install nvidia-cuda-nvdisasm or a CUDA toolkit"
    if program is None and os.environ.get("CI"):
        pytest.fail(message)
    if program is None:
        pytest.skip(message)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([program, "-c", file.name], capture_output=True, text=True, timeout=120)


def _read(opcode: str, operands: str) -> Instruction:
    registers = [int(number) for number in _REGISTER.findall(operands)]
    writes: frozenset[int] = frozenset()
    if re.match(r"R\d+\b", operands) and not opcode.startswith(_WITHOUT_RESULT):
        writes = frozenset(range(registers[0], registers[0] + _count_results(opcode)))
        registers = registers[1:]
    return Instruction(opcode, operands, writes, frozenset(registers))


def _count_results(opcode: str) -> int:
    shape = re.search(r"GMMA\.64x(\d+)x", opcode)
    if shape:
        return int(shape[1]) // 2
    return next((_WIDTHS[part] for part in opcode.split(".")[1:] if part in _WIDTHS), 1)


def find_chains(instructions: list[Instruction]) -> list[list[Instruction]]:
    """Return what lies between the first and the last WGMMA of each chain, both included."""
    chains, start = [], None
    for at, instruction in enumerate(instructions):
        if instruction.begins_chain:
            start = at
        if instruction.ends_chain and start is not None:
            chains.append(instructions[start : at + 1])
            start = None
    return chains


def find_steps(instructions: list[Instruction]) -> list[list[Instruction]]:
    """Return the K steps of an unrolled loop: from the wait for a stage to its release, with a multiplication."""
    steps, start = [], None
    for at, instruction in enumerate(instructions):
        if instruction.opcode.startswith("SYNCS.PHASECHK"):
            start = at
        if instruction.is_release and start is not None:
            step = instructions[start : at + 1]
            steps += [step] if any(one.is_multiplication for one in step) else []
            start = None
    return steps


def find_sources(step: list[Instruction]) -> list[Instruction]:
    """Return the instructions of a step, without a branch within, on whose results its last one depends."""
    needed, found = set(step[-1].reads), []
    for instruction in reversed(step[:-1]):
        if instruction.writes & needed:
            found.append(instruction)
            needed -= instruction.writes
            needed |= instruction.reads
    return found
