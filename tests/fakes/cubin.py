"""A minimal cubin: just enough of a CUDA ELF file to pass for a compiled kernel, with every field to choose.

Imports nothing of the project, because the fake nvcc runs it in a bare interpreter.
"""

import struct

EM_CUDA = 190


def make_cubin(
    name: str = "kernel",
    *,
    registers: int = 8,
    frame_bytes: int = 0,
    arch: int = 90,
    machine: int = EM_CUDA,
    num_kernels: int = 1,
    text_bytes: int = 1024,
) -> bytes:
    """Return an ELF file with `num_kernels` kernels, the first called `name`, whose code is `text_bytes` zeros."""
    names = [name, *(f"{name}_{i}" for i in range(1, num_kernels))][:num_kernels]
    strings, offsets = _string_table(names)
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", offsets[kernel], 0x12, 0x10, 5, 0, text_bytes) for kernel in names
    )
    info = struct.pack("<BBHII", 4, 0x2F, 8, 1, registers) + struct.pack("<BBHII", 4, 0x11, 8, 1, frame_bytes)
    section_names = ["", ".shstrtab", ".strtab", ".symtab", ".nv.info", ".text"]
    section_strings, section_offsets = _string_table(section_names)
    bodies = [b"", section_strings, strings, symbols, info, bytes(text_bytes)]
    kinds, links = [0, 3, 3, 2, 0x70000000, 1], [0, 0, 0, 2, 3, 0]
    return _link(section_offsets, section_names, kinds, links, bodies, arch, machine)


def _string_table(names: list[str]) -> tuple[bytes, dict[str, int]]:
    table, offsets = b"\0", {}
    for name in names:
        offsets[name] = len(table)
        table += name.encode() + b"\0"
    return table, offsets


def _link(section_offsets, section_names, kinds, links, bodies, arch, machine) -> bytes:
    data, sections = bytes(64), b""
    for name, kind, link, body in zip(section_names, kinds, links, bodies):
        sections += struct.pack("<IIQQQQIIQQ", section_offsets[name], kind, 0, 0, len(data), len(body), link, 0, 1, 0)
        data += body
    ident = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", ident, 2, machine, 1, 0, 0, len(data), arch << 8, 64, 56, 0, 64, len(bodies), 1
    )
    return header + data[64:] + sections
