"""Writer and reader of selector artefacts (`<sku>.dgsel`): the one description of the file format on the Python side.

The file has the safetensors layout: a little-endian u64 header length, a header of canonical JSON, then the arrays'
bytes. The header maps every array name to `{"data_offsets": [begin, end], "dtype": "F64|F32|I32|U64", "shape": [...]}`
and `"__metadata__"` to `{"deep_gemm": "<canonical JSON>", "sha256": "<hash of that text>"}`. Canonical JSON = ascending
keys, no white space, ASCII. Arrays of 8-byte elements come first, then those of 4-byte elements, each group in
ascending order of the names, without gaps, so that every array is aligned to its elements. The header is padded with
spaces to a multiple of 8 bytes. `arrays_sha256` in the metadata is the SHA-256 of everything after the header.
deep_gemm._C.Selector reads the same layout and says what the arrays mean.
"""

import hashlib
import json
import struct

import numpy as np

from tuner.errors import IntegrityError

MAX_BYTES = 16 << 20
ALIGNMENT = 8
DTYPES = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "I32": np.dtype("<i4"), "U64": np.dtype("<u8")}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def canonical_json(value: object) -> str:
    """Return `value` as JSON with ascending keys, no white space, ASCII only.

    Raises: ValueError for NaN and infinities.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def build_artifact(metadata: dict, arrays: dict[str, np.ndarray]) -> bytes:
    """Return the bytes of an artefact; the same arguments give the same bytes.

    `metadata`: JSON values; its `arrays_sha256` is filled in here. `arrays`: contiguous or not, of dtype float64,
    float32, int32 or uint64, any shape. Raises: IntegrityError for another dtype or a file above 16 MiB.
    """
    header, data = {}, bytearray()
    for name in sorted(arrays, key=lambda name: (-arrays[name].itemsize, name)):
        header[name] = describe_array(name, arrays[name], len(data))
        data.extend(np.ascontiguousarray(arrays[name], DTYPES[header[name]["dtype"]]).tobytes())
    signed = {**metadata, "arrays_sha256": hashlib.sha256(data).hexdigest()}
    described = canonical_json(signed)
    header["__metadata__"] = {"deep_gemm": described, "sha256": hashlib.sha256(described.encode("ascii")).hexdigest()}
    text = canonical_json(header).encode("ascii")
    text += b" " * (-len(text) % ALIGNMENT)
    return check_size(struct.pack("<Q", len(text)) + text + bytes(data))


def describe_array(name: str, array: np.ndarray, begin: int) -> dict:
    """Return the header's entry for `array` placed at byte `begin` of the data area.

    Raises: IntegrityError for its dtype.
    """
    dtype = array.dtype.newbyteorder("<")
    if dtype not in NAMES:
        raise IntegrityError(
            f"array {name} has dtype {array.dtype}: must be one of {', '.join(str(d) for d in NAMES)}; convert it first"
        )
    return {"data_offsets": [begin, begin + array.nbytes], "dtype": NAMES[dtype], "shape": list(array.shape)}


def check_size(content: bytes) -> bytes:
    """Return `content`. Raises: IntegrityError above 16 MiB, which no reader accepts."""
    if len(content) > MAX_BYTES:
        raise IntegrityError(
            f"artefact of {len(content)} bytes: must be at most {MAX_BYTES}; use fewer trees or golden vectors"
        )
    return content


def read_artifact(content: bytes) -> tuple[dict, dict[str, np.ndarray]]:
    """Return metadata and arrays of an artefact, checked for integrity, not for meaning (load it as a Selector for
    that).

    Raises: IntegrityError for anything that `build_artifact` could not have written.
    """
    try:
        metadata, arrays = parse_artifact(check_size(content))
        unchanged = build_artifact(metadata, arrays) == content
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise IntegrityError(f"artefact is malformed: {type(error).__name__}: {error}; export it again") from error
    if not unchanged:
        raise IntegrityError(
            "artefact differs from what its content is written as (changed bytes or hash); export it again"
        )
    return metadata, arrays


def parse_artifact(content: bytes) -> tuple[dict, dict[str, np.ndarray]]:
    """Split an artefact into metadata and arrays; any exception means malformed."""
    (header_bytes,) = struct.unpack_from("<Q", content)
    if header_bytes > len(content) - 8:
        raise ValueError("header longer than the file")
    header = json.loads(content[8 : 8 + header_bytes].decode("ascii"))
    metadata = json.loads(header.pop("__metadata__")["deep_gemm"])
    data = content[8 + header_bytes :]
    return metadata, {name: read_array(entry, data) for name, entry in header.items()}


def read_array(entry: dict, data: bytes) -> np.ndarray:
    """Return one array of the data area as an own, writable copy."""
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= len(data):
        raise ValueError("array outside the file")
    return np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy()
