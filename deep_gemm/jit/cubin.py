"""Check what a compiler produced: the ELF image of one kernel, and the resource report in the compiler's log.

An exit status of 0 is not enough. An image is accepted when it is a whole CUDA ELF file for SM90 with exactly one
kernel. Registers and local memory are read from the image (section `.nv.info`), spills and warnings from the log of
`ptxas -v`.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: A kernel that does nothing compiles to more than 2 KiB; anything shorter was cut.
MIN_IMAGE_BYTES = 1024
MAX_IMAGE_BYTES = 32 << 20
SM_ARCH = 90

_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PROGRAM_HEADER_BYTES = 56
_EM_CUDA = 190
_SHT_SYMTAB, _SHT_NOBITS, _STT_FUNC = 2, 8, 2
_STO_CUDA_ENTRY = 0x10  # symbol's `other`: a kernel, not a device function
_EIATTR_FRAME_SIZE, _EIATTR_REGCOUNT = 0x11, 0x2F  # .nv.info attributes: (symbol index, value)
_EIFMT_SIZED = 4  # the attribute's value has a 16-bit length; other formats hold 2 bytes inline

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
# ptxas reports lost optimisations (serialised WGMMA, ignored setmaxnreg) as "info (C7510)". Here they are warnings.
_WARNING = re.compile(r"\(C\d{4,5}\)|\bwarning\b", re.IGNORECASE)


class CompilerOutput(NamedTuple):
    """What one run of a compiler gave: `error` is '' on success, `status` None after a time-out."""

    argv: tuple[str, ...]
    status: int | None
    log: str
    image: bytes
    error: str


class CubinError(Exception):
    """An image that is not one whole SM90 kernel; compile_source turns it into a CompileError."""


@dataclass(frozen=True)
class KernelImage:
    """The kernel of a cubin: its symbol, and per thread the registers at launch and the bytes of stack and spills."""

    name: str
    registers: int
    local_bytes: int


class _Section(NamedTuple):
    name: str
    kind: int
    offset: int
    size: int
    link: int


def read_kernel(image: bytes) -> KernelImage:
    """Return the one kernel of a cubin.

    Raises:
        CubinError: not a CUDA ELF image for SM90, cut short, or without exactly one kernel.
    """
    try:
        return _read_kernel(image)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise CubinError(f"the image of {len(image)} bytes is malformed ({error})") from None


def read_code(image: bytes) -> bytes:
    """Return the machine code of a cubin's kernels: its .text sections, in their order. Raises: CubinError."""
    try:
        sections = _read_sections(image)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise CubinError(f"the image of {len(image)} bytes is malformed ({error})") from None
    code = [section for section in sections if section.name.startswith(".text")]
    return b"".join(image[section.offset : section.offset + section.size] for section in code)


def _read_kernel(image: bytes) -> KernelImage:
    sections = _read_sections(image)
    kernels = list(_kernels(image, sections))
    if len(kernels) != 1:
        raise CubinError(f"the image holds {len(kernels)} kernels, not one")
    index, name = kernels[0]
    info = next((section for section in sections if section.name == ".nv.info"), None)
    if info is None:
        raise CubinError("the image has no .nv.info section")
    attributes = dict(_attributes(image[info.offset : info.offset + info.size], index))
    if _EIATTR_REGCOUNT not in attributes:
        raise CubinError(f"the image does not state the registers of {name}")
    return KernelImage(name, attributes[_EIATTR_REGCOUNT], attributes.get(_EIATTR_FRAME_SIZE, 0))


def _read_sections(image: bytes) -> list[_Section]:
    if not MIN_IMAGE_BYTES <= len(image) <= MAX_IMAGE_BYTES:
        raise CubinError(f"the image has {len(image)} bytes, outside {MIN_IMAGE_BYTES}..{MAX_IMAGE_BYTES}")
    ident, _, machine, _, _, phoff, shoff, flags, _, _, phnum, shentsize, shnum, shstrndx = _ELF_HEADER.unpack_from(
        image
    )
    if ident[:6] != b"\x7fELF\x02\x01" or machine != _EM_CUDA:
        raise CubinError(f"the image is no 64-bit CUDA ELF file (it begins with {ident[:6].hex()}, machine {machine})")
    # ABI version 8 (CUDA 13) moved the SM number from the lowest byte of the flags to the next one.
    arch = flags >> 8 & 0xFF if ident[8] >= 8 else flags & 0xFF
    if arch != SM_ARCH:
        raise CubinError(f"the image is for SM{arch}, not SM{SM_ARCH}")
    if shentsize != _SECTION.size or phoff + phnum * _PROGRAM_HEADER_BYTES > len(image):
        raise CubinError("the image's section or program headers do not fit")
    raw = [_SECTION.unpack_from(image, shoff + i * shentsize) for i in range(shnum)]
    if any(kind != _SHT_NOBITS and offset + size > len(image) for _, kind, _, _, offset, size, *_ in raw):
        raise CubinError("the image is cut short: a section ends beyond it")
    names = raw[shstrndx][4]
    return [
        _Section(_string(image, names + name), kind, offset, size, link)
        for name, kind, _, _, offset, size, link, *_ in raw
    ]


def _kernels(image: bytes, sections: list[_Section]) -> Iterator[tuple[int, str]]:
    """Yield (symbol index, name) of every kernel."""
    for table in (section for section in sections if section.kind == _SHT_SYMTAB):
        for index in range(table.size // _SYMBOL.size):
            name, info, other, section, _, _ = _SYMBOL.unpack_from(image, table.offset + index * _SYMBOL.size)
            if info & 0xF == _STT_FUNC and other & _STO_CUDA_ENTRY and section:
                yield index, _string(image, sections[table.link].offset + name)


def _attributes(info: bytes, symbol: int) -> Iterator[tuple[int, int]]:
    """Yield (attribute, value) of the per-symbol attributes of `symbol` in a .nv.info section."""
    position = 0
    while position + 4 <= len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, position)
        if form == _EIFMT_SIZED and length == 8:
            owner, value = struct.unpack_from("<II", info, position + 4)
            if owner == symbol:
                yield attribute, value
        position += 4 + (length if form == _EIFMT_SIZED else 0)


def _string(image: bytes, offset: int) -> str:
    end = image.index(0, offset) if offset < len(image) else -1
    if end < 0:
        raise IndexError("a name lies beyond the image")
    return image[offset:end].decode("ascii")


def read_spill_bytes(log: str) -> int | None:
    """Return the bytes of spill stores and loads that `ptxas -v` reported, or None where the log holds no report."""
    found = _SPILLS.findall(log)
    return sum(int(stores) + int(loads) for stores, loads in found) if found else None


def read_warnings(log: str) -> tuple[str, ...]:
    """Return the log's lines that warn or report a lost optimisation, in order."""
    return tuple(line.strip() for line in log.splitlines() if _WARNING.search(line))
