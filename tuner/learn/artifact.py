"""Writer of selector artefacts (`<sku>.dgsel`), in the format that deep_gemm.artifact describes and reads."""

import hashlib
import struct

import numpy as np

from deep_gemm.artifact import ALIGNMENT, DTYPES, MAX_BYTES, METADATA_NAME, canonical_json
from tuner.errors import IntegrityError

NAMES = {dtype: name for name, dtype in DTYPES.items()}


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
    header[METADATA_NAME] = {"deep_gemm": described, "sha256": hashlib.sha256(described.encode("ascii")).hexdigest()}
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
