"""Mutated cache entries. Every mutant is a miss and is built again; none of its bytes reaches the loader."""

import random

import pytest

from deep_gemm.jit import build, cache, compile
from deep_gemm.jit.cache import DiskCache
from tests.fakes.compiler import isolate
from tests.fakes.cubin import make_cubin

SOURCE, OTHER_SOURCE = "the one", "the other"


def make_result(source: str) -> compile.CompileResult:
    return compile.CompileResult(
        make_cubin(source.split()[1], text_bytes=2048), "kernel", 8, 0, 0, (), "log of " + source, 1.0, "nvrtc", "13.0"
    )


class Builder:
    """Stands for the compiler; counts its runs."""

    def __init__(self):
        self.count = 0

    def __call__(self, source, kernel_name, compiler):
        self.count += 1
        return make_result(source)


@pytest.fixture
def builder(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    monkeypatch.setattr(build, "compile_source", builder := Builder())
    monkeypatch.setattr(build, "get_toolchain", lambda compiler: None)
    monkeypatch.setattr(
        build.hashing, "compile_key", lambda source, headers, toolchain: build.hashing._hash_text(source)
    )
    # The rename gives the guarantee; a thousand syncs would only test the disk.
    monkeypatch.setattr(cache.os, "fsync", lambda descriptor: None)
    return builder


def mutate(entry: bytes, other: bytes, generator: random.Random, index: int) -> bytes:
    """Return mutant `index`: cut, with a flipped bit, with junk appended, mixed with another entry, or that entry."""
    header = cache._HEADER.size
    cuts = range(0, len(entry), 64)
    if index < len(cuts):
        return entry[: cuts[index]]
    kind = index % 5
    if kind == 0:
        position = generator.randrange(8 * len(entry))
        return flip(entry, position)
    if kind == 1:  # where every bit counts
        return flip(entry, generator.randrange(8 * header))
    if kind == 2:
        return entry + generator.randbytes(generator.randint(1, 200))
    if kind == 3:
        cut = generator.choice((8, 12, 44, 52, header, generator.randrange(1, len(entry))))
        return entry[:cut] + other[cut:]
    return other


def flip(entry: bytes, bit: int) -> bytes:
    mutant = bytearray(entry)
    mutant[bit // 8] ^= 1 << bit % 8
    return bytes(mutant)


LONG = pytest.mark.timeout(3600)


@pytest.mark.parametrize("num_mutants", [300, pytest.param(10_000, marks=[pytest.mark.full, LONG])])
def test_every_mutant_is_a_miss_and_is_rebuilt(builder, tmp_path, num_mutants):
    key, other_key = (build.hashing._hash_text(source) for source in (SOURCE, OTHER_SOURCE))
    good, folder = make_result(SOURCE), tmp_path / "cache"
    for source in (SOURCE, OTHER_SOURCE):
        build.get_cubin_for_source(source)
    entry, other = ((folder / f"{name}.kernel").read_bytes() for name in (key, other_key))
    generator, builder.count, tested = random.Random(3), 0, 0
    for index in range(num_mutants):
        mutant = mutate(entry, other, generator, index)
        if mutant == entry:  # mixed beyond the last byte that differs
            continue
        tested += 1
        (folder / f"{key}.kernel").write_bytes(mutant)
        build.clear_memory()
        assert build.get_cubin_for_source(SOURCE) == good, index
        assert (folder / f"{key}.kernel").read_bytes() == entry
    assert builder.count == tested > 0.9 * num_mutants
    assert len(list(folder.glob("*.bad"))) == cache.NUM_BAD_KEPT


def test_entry_of_another_schema_is_a_miss(builder, tmp_path, monkeypatch):
    build.get_cubin_for_source(SOURCE)
    monkeypatch.setattr(cache, "SCHEMA", cache.SCHEMA + 1)
    build.clear_memory()
    build.get_cubin_for_source(SOURCE)
    assert builder.count == 2


def test_unmutated_entry_is_a_hit(builder):
    first = build.get_cubin_for_source(SOURCE)
    for _ in range(3):
        build.clear_memory()
        assert build.get_cubin_for_source(SOURCE) == first
    assert builder.count == 1


def test_entry_that_fits_its_name_but_not_its_kernel_is_rebuilt(builder, tmp_path):
    """A payload whose hash is right but which holds another kernel is not returned."""
    build.get_cubin_for_source(SOURCE, "kernel")
    key = build.hashing._hash_text(SOURCE)
    result = compile.CompileResult(make_cubin("foreign"), "foreign", 8, 0, 0, (), "", 1.0, "nvrtc", "13.0")
    DiskCache(tmp_path / "cache").put(key, build.encode_payload(result))
    build.clear_memory()
    assert build.get_cubin_for_source(SOURCE, "kernel") == make_result(SOURCE)
