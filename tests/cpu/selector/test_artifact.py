"""The artefact container: reproducible byte by byte, lossless, and refused as a whole if anything is wrong."""

import hashlib
import itertools
import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from deep_gemm import _C, models
from deep_gemm.artifact import ARRAYS, DTYPES, METADATA, OP_METADATA, canonical_json, read_artifact, read_json
from deep_gemm.errors import ModelError
from deep_gemm.selector import Selector
from tests.fakes.selectors import DEVICE, KERNEL_HASH, OP, make_artifact, make_parts, pack
from tuner.errors import IntegrityError
from tuner.learn.artifact import build_artifact


def split(content: bytes) -> tuple[dict, bytes]:
    """Return the header and the data of an artefact."""
    (size,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def join(header: dict | str, data: bytes) -> bytes:
    """Return an artefact of a header, written canonically unless it is text already, and data."""
    text = (header if isinstance(header, str) else canonical_json(header)).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def with_metadata(content: bytes, change) -> bytes:
    """Return the artefact with `change` applied to its metadata."""
    header, data = split(content)
    metadata = json.loads(header["__metadata__"]["deep_gemm"])
    return join(header | {"__metadata__": sign(canonical_json(change(metadata) or metadata))}, data)


def change_metadata(header: dict, **members: object) -> dict:
    """Return the header's metadata entry with other members."""
    return sign(canonical_json(json.loads(header["__metadata__"]["deep_gemm"]) | members))


def rehash(header: dict, data: bytes) -> bytes:
    """Return an artefact whose hashes are those of the data."""
    metadata = json.loads(header["__metadata__"]["deep_gemm"]) | {"arrays_sha256": hashlib.sha256(data).hexdigest()}
    return join(header | {"__metadata__": sign(canonical_json(metadata))}, data)


def sign(text: str) -> dict:
    """Return the header's metadata entry for `text`."""
    return {"deep_gemm": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def test_round_trip_and_reproducibility():
    content = make_artifact()
    metadata, arrays = read_artifact(content)
    assert build_artifact(metadata, arrays) == build_artifact(metadata, dict(reversed(arrays.items()))) == content
    assert Selector(content).metadata == metadata
    original = make_parts()[1]
    assert set(arrays) == {f"{OP}/{name}" for name in original}
    for name, array in original.items():
        assert arrays[f"{OP}/{name}"].dtype == array.dtype and np.array_equal(arrays[f"{OP}/{name}"], array)


def test_layout():
    header, data = split(make_artifact())
    metadata = json.loads(header["__metadata__"]["deep_gemm"])
    assert metadata["arrays_sha256"] == hashlib.sha256(data).hexdigest() and metadata["format"] == 2
    entries = sorted(
        (entry["data_offsets"], name, entry["dtype"])
        for name, entry in header.items()
        if name != "__metadata__" and entry["data_offsets"][1]
    )
    assert entries[0][0][0] == 0 and entries[-1][0][1] == len(data)
    assert all(left[0][1] == right[0][0] for left, right in itertools.pairwise(entries))
    assert all(offsets[0] % (4 if dtype in ("F32", "I32") else 8) == 0 for offsets, _, dtype in entries)


def test_unusual_arrays():
    arrays = {
        "a": np.zeros((0, 3), np.float32),
        "b": np.arange(6, dtype=np.int32).reshape(2, 3).T,
        "c": np.array(2.5),
        "d": np.array([2**64 - 1], np.uint64),
    }
    _, read = read_artifact(build_artifact({}, arrays))
    assert all(np.array_equal(read[name], array) and read[name].shape == array.shape for name, array in arrays.items())


def test_writer_refuses_what_no_reader_takes():
    with pytest.raises(IntegrityError, match="dtype int64"):
        build_artifact({}, {"a": np.zeros(1, np.int64)})
    with pytest.raises(IntegrityError, match="at most 16777216"):
        build_artifact({}, {"a": np.zeros(2**21 + 1)})
    with pytest.raises(ValueError, match="not JSON compliant"):
        build_artifact({"margin": float("nan")}, {})


BAD_ENTRY_CHANGES = (
    {"x": 1},
    {"dtype": "F16"},
    {"dtype": 3},
    {"dtype": []},
    {"shape": 3},
    {"shape": [-1]},
    {"shape": [2**40]},
    {"shape": [1, 1, 1]},
    {"shape": [2**24, 2**24]},
    {"shape": [1.0]},
    {"data_offsets": [8, 0]},
    {"data_offsets": [0]},
    {"data_offsets": [0, 2**62]},
    {"data_offsets": [-8, 8]},
)


def broken_containers():
    """Yield (name, content) of containers that are wrong in one way; hashes are right wherever the content says so."""
    content = make_artifact()
    header, data = split(content)
    text = canonical_json(header)
    yield "empty", b""
    yield "only a length", content[:8]
    yield "truncated header", content[:100]
    yield "truncated data", content[:-1]
    yield "junk appended", content + b"\0"
    yield "header length beyond the file", struct.pack("<Q", len(content)) + content[8:]
    yield "header length of 2^63", struct.pack("<Q", 2**63) + content[8:]
    yield "unaligned header", struct.pack("<Q", len(text) + len(text) % 2 + 1) + content[8:]
    yield "white space in the header", join(text.replace(",", ", ", 1), data)
    yield "data after the arrays", rehash(header, data + bytes(8))
    for name_of_length in ("x", "xx"):  # one of the two lengths is no multiple of 8
        odd = canonical_json({**header, "__metadata__": change_metadata(header, created=name_of_length)})
        if len(odd) % 8:
            yield f"a header of {len(odd) % 8} bytes too many", struct.pack("<Q", len(odd)) + odd.encode() + data
    yield "too much padding", join(text + " " * 64, data)
    yield "keys not ascending", join(json.dumps(dict(reversed(header.items())), separators=(",", ":")), data)
    yield "duplicate key", join("{" + f'"{OP}/configs":{{}},' + text[1:], data)
    yield "no metadata", join({key: value for key, value in header.items() if key != "__metadata__"}, data)
    yield "metadata of three members", join(header | {"__metadata__": header["__metadata__"] | {"x": "y"}}, data)
    yield "metadata no string", join(header | {"__metadata__": header["__metadata__"] | {"deep_gemm": {}}}, data)
    yield (
        "metadata without hash",
        join(header | {"__metadata__": {"deep_gemm": header["__metadata__"]["deep_gemm"]}}, data),
    )
    yield (
        "metadata changed",
        join(
            header
            | {
                "__metadata__": (
                    header["__metadata__"] | {"deep_gemm": header["__metadata__"]["deep_gemm"].replace("0.01", "0.02")}
                )
            },
            data,
        ),
    )
    yield "metadata nested deeply", join(header | {"__metadata__": sign('{"a":' * 5000 + "1" + "}" * 5000)}, data)
    yield "metadata no object", join(header | {"__metadata__": sign("[]")}, data)
    yield "nested 10,000 deep", join("[" * 10000 + "]" * 10000, data)
    yield "header over 1 MiB", join(text + " " * (1 << 20), data)
    yield "changed data", join(header, data[:-8] + b"\1" * 8)
    yield "file above 16 MiB", content + bytes(1 << 24)
    yield "header no object", join("[]", data)
    yield "header not ASCII", join(text.replace("metadata", "metad\u00e4ta", 1), data)
    for value in (
        "NaN",
        "Infinity",
        "-0",
        "1.0e0",
        "1e999",
        "9" * 33,
        "9" * 5000,
        "0." + "9" * 5000,
        "tru",
        '"\\ud8"',
        '"\t"',
    ):
        yield f"metadata with {value[:9]}", join(header | {"__metadata__": sign(f'{{"a":{value}}}')}, data)
    yield "a number of 33 digits", join(header | {"__metadata__": change_metadata(header, created=10**32)}, data)
    yield "long metadata", join(header | {"__metadata__": change_metadata(header, created="x" * 65537)}, data)
    zeros = {
        f"{OP}/{key}": {"data_offsets": [at, at + 9_000_000], "dtype": "F64", "shape": [1_125_000]}
        for key, at in (("a", 0), ("b", 9_000_000))
    }
    yield "arrays of 18 MB", rehash({"__metadata__": header["__metadata__"]} | zeros, bytes(18_000_000))
    yield "metadata of 65,537 bytes", join(header | {"__metadata__": sign(f'{{"a":"{"x" * 65529}"}}')}, data)


def broken_arrays():
    """Yield likewise (name, content) of containers whose entries of arrays are wrong."""
    header, data = split(make_artifact())
    name = f"{OP}/threshold"
    for change in BAD_ENTRY_CHANGES:
        yield f"entry with {change}", join(header | {name: header[name] | change}, data)
    yield "three dimensions", join(header | {name: header[name] | {"shape": [1, 1, *header[name]["shape"]]}}, data)
    for entry in (3, [], {}, header[f"{OP}/leaf_value"]):
        yield f"entry {str(entry)[:40]}", join(header | {name: entry}, data)
    first, second, *others = sorted(
        (key for key in header if key != "__metadata__"), key=lambda key: header[key]["data_offsets"]
    )
    end = header[first]["data_offsets"][1]
    shifted = {
        key: header[key] | {"data_offsets": [each + 8 for each in header[key]["data_offsets"]]} for key in others
    }
    moved = {second: header[second] | {"data_offsets": [each + 8 for each in header[second]["data_offsets"]]}}
    yield "a gap between arrays", rehash(header | moved | shifted, data[:end] + bytes(8) + data[end:])
    begin, size = header[second]["data_offsets"][0], end - header[first]["data_offsets"][0]
    closer = {key: [each - size for each in header[key]["data_offsets"]] for key in (second, *others)}
    overlapping = {key: header[key] | {"data_offsets": offsets} for key, offsets in closer.items()}
    yield "arrays that overlap", rehash(header | overlapping, data[: begin - size] + data[begin:])
    for bad in (f"{name}!", f"{name}\x7f", f"{name}T"):  # in the order of the names before
        yield (
            f"an array whose name ends with {bad[-1]!r}",
            join({key if key != name else bad: value for key, value in header.items()}, data),
        )
    for bad in ("../threshold", "fp8_gemm\\threshold", "", "x" * 65, "Fp8"):
        yield f"array named {bad}", join({key if key != name else bad: value for key, value in header.items()}, data)


BROKEN = [*broken_containers(), *broken_arrays()]


@pytest.mark.parametrize("size", [0, 7, (16 << 20) + 1])
def test_files_of_other_sizes_are_not_looked_at(size):
    with pytest.raises(ModelError, match=f"^file of {size} bytes"):
        read_artifact(bytes(size))


@pytest.mark.parametrize("content", [pytest.param(content, id=name) for name, content in BROKEN])
def test_broken_containers_are_refused(content):
    with pytest.raises(ModelError, match="export the selector again"):
        read_artifact(content)
    with pytest.raises(ModelError, match="export the selector again"):
        Selector(content)


CHANGES = {
    "unknown member": lambda m: m | {"path": "/etc/passwd"},
    "missing member": lambda m: {key: value for key, value in m.items() if key != "stale"},
    "format": lambda m: m | {"format": 3},
    "format of older packages": lambda m: m | {"format": 1},
    "format float": lambda m: m | {"format": 2.0},
    "sku number": lambda m: m | {"sku": 3},
    "sms": lambda m: m | {"sm_count": 0},
    "sms bool": lambda m: m | {"sm_count": True},
    "sms huge": lambda m: m | {"sm_count": 2**40},
    "stale list": lambda m: m | {"stale": []},
    "ops": lambda m: m | {"ops": []},
    "no ops": lambda m: m | {"ops": {}},
    "unknown op": lambda m: m | {"ops": m["ops"] | {"zz": {}}},
    "hash": lambda m: m | {"arrays_sha256": "0" * 64},
    "long stale": lambda m: m | {"stale": "x" * 1000},
    "lone surrogate": lambda m: m | {"stale": "\ud800"},
    "sku of a lone surrogate": lambda m: m | {"sku": "\udfff"},
    "op of a lone surrogate": lambda m: m | {"ops": {"\ud800": m["ops"][OP]}},
    "op not an object": lambda m: m | {"ops": {OP: []}},
    "op not known": lambda m: m | {"ops": {"zz": m["ops"][OP]}},
    "heuristic": lambda m: m | {"heuristic_version": 3},
    "created": lambda m: m | {"created": None},
    "version": lambda m: m | {"features_version": 0},
}
OP_CHANGES = {
    "hash": {"kernel_hash": "xyz"},
    "hash case": {"kernel_hash": "A" * 64},
    "margin": {"margin": -0.1},
    "margin bool": {"margin": True},
    "margin huge": {"margin": 1e300},
    "margin of older packages": {"max_spread": 1.0},
    "quarantine": {"quarantined": [99]},
    "quarantine order": {"quarantined": [2, 1]},
    "quarantine twice": {"quarantined": [1, 1]},
    "quarantine type": {"quarantined": ["1"]},
    "quarantine bool": {"quarantined": [True]},
    "quarantine of nothing": {"quarantined": [[]]},
    "quarantine with a number for a variant": {"quarantined": [[1, 2]]},
    "quarantine with no problem": {"quarantined": [[1, "fp8_gemm"]]},
    "quarantine with another op kind": {
        "quarantined": [[1, '{"fields":{"k":1,"m":1,"n":1},"op":"bf16_gemm"}']],
    },
    "quarantine with a problem that is no variant": {
        "quarantined": [[1, '{"fields":{"k":1,"m":2,"n":1},"op":"fp8_gemm"}']],
    },
    "quarantine of 2^63": {"quarantined": [2**63]},
    "unknown": {"x": 1},
    "regime": {"regime": 3},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_bad_metadata_is_refused(change):
    with pytest.raises(ModelError):
        Selector(with_metadata(make_artifact(), change))


@pytest.mark.parametrize("change", OP_CHANGES.values(), ids=OP_CHANGES.keys())
def test_bad_op_metadata_is_refused(change):
    with pytest.raises(ModelError):
        Selector(with_metadata(make_artifact(), lambda metadata: metadata["ops"][OP].update(change)))


def test_unchanged_metadata_is_accepted():
    assert with_metadata(make_artifact(), lambda metadata: None) == make_artifact()


def test_the_recursion_limit_bounds_no_header():
    """A header may be as deep as it likes: it is refused before anything recurses."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        for text in ('{"a":' * 10**5, '{"a":' * 5000, '{"a":' * 7 + "1" + "}" * 7):
            with pytest.raises(ModelError, match="deep|strings, values"):
                read_json(text, "header")
    finally:
        sys.setrecursionlimit(limit)
    assert read_json('{"a":' * 6 + "1" + "}" * 6, "header")["a"]["a"]
    assert read_json('{"a":"[[[[[[[["}', "header") == {"a": "[" * 8}, "brackets in a text are no nesting"


def test_an_empty_reason_to_be_stale_is_one():
    selector = Selector(with_metadata(make_artifact(), lambda metadata: metadata | {"stale": ""}))
    assert selector.choose(make_parts()[3][0], DEVICE).reason.startswith("stale")


@pytest.mark.parametrize(
    "change, words",
    [
        ({}, ""),
        ({"stale": "old"}, "stale: old"),
        ({"features_version": 1}, "trained on other features"),
        ({"heuristic_version": "other"}, "trained against another heuristic"),
    ],
)
def test_the_fault_of_a_part_is_the_reason_of_its_choices(change, words):
    selector = Selector(with_metadata(make_artifact(), lambda metadata: metadata | change))
    asked = _C.Problem(OP, 333, 4444, 5568)
    fault = selector.find_fault(OP, KERNEL_HASH)
    assert fault.startswith(words) and bool(fault) == bool(words)
    assert (selector.choose(asked, DEVICE, kernel_hash=KERNEL_HASH).reason == fault) == bool(words)
    other = selector.find_fault(OP, "ab" * 32)
    assert other == selector.choose(asked, DEVICE, kernel_hash="ab" * 32).reason
    assert other == fault if "stale" in change else other.startswith("measured with other kernels")
    assert selector.find_fault("bf16_gemm", KERNEL_HASH) == (fault if "stale" in change else "")


def test_the_description_is_that_of_the_files():
    """The description lists what the writer of the tests and that of the recorded artefact write."""
    recorded = Path(models.__file__).with_name("nvidia-h200-sm132.dgsel").read_bytes()
    for content in (make_artifact(), recorded):
        metadata, arrays = read_artifact(content)
        assert metadata.keys() == METADATA.keys()
        for op, members in metadata["ops"].items():
            first = {"estimate_revision"} if _C.estimate_revision(op) == 1 else set()  # which older parts lack
            assert OP_METADATA.keys() - first <= members.keys() <= OP_METADATA.keys()
            dtypes = {name: arrays.pop(f"{op}/{name}").dtype for name in ARRAYS}
            assert dtypes == {name: DTYPES[array.dtype] for name, array in ARRAYS.items()}
        assert not arrays


def test_arrays_are_views_of_the_file():
    """Reading copies no array, and nobody can change the file's bytes through one."""
    _, arrays = read_artifact(make_artifact())
    assert not any(array.flags.owndata or array.flags.writeable for array in arrays.values())


def test_an_array_of_another_dtype_is_refused():
    metadata, arrays, _, _ = make_parts()
    for name in ("feature_min", "leaf_value", "exact_config"):
        other = arrays[name].astype(np.float32 if arrays[name].dtype != np.float32 else np.float64)
        with pytest.raises(ModelError, match=f"array {name} has the wrong dtype"):
            Selector(pack(metadata, arrays | {name: other}))


def test_an_array_too_many_is_refused():
    metadata, arrays, _, _ = make_parts()
    with pytest.raises(ModelError, match=f"{len(ARRAYS) + 1} arrays: every op kind must have exactly its"):
        Selector(pack(metadata, arrays | {"more": np.zeros(3, np.float32)}))
