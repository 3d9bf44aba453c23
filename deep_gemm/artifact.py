"""The file format of selector artefacts (`<sku>.dgsel`), and their reader.

The file has the safetensors layout: a little-endian u64 header length (a multiple of 8, at most 1 MiB), a header of
canonical JSON, padded with spaces, then the data of the arrays. Canonical JSON: ascending keys, no white space, ASCII.
The header maps

- every array's name to `{"data_offsets": [begin, end], "dtype": "F64|F32|I32|U64", "shape": [...]}`,
- `"__metadata__"` to `{"deep_gemm": "<the metadata as canonical JSON>", "sha256": "<hash of that text>"}`.

The arrays of 8-byte elements come first, then those of 4-byte elements, each group in ascending order of the names and
without gaps, so that every array is aligned to its elements. Nothing follows them. The metadata's `arrays_sha256` is
the SHA-256 of the data. The file holds at most 16 MiB.

METADATA and OP_METADATA list the metadata's members, ARRAYS the arrays of each op kind, whose names in the file begin
with the op kind and a slash (`fp8_gemm/configs`). The writer is tuner.learn.artifact; deep_gemm.selector gives the
content its meaning.

Exception contract: ModelError for every file that is not exactly as described; nothing of it is used.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from deep_gemm.errors import ModelError

FORMAT = 2
MAX_BYTES, MAX_HEADER_BYTES = 16 << 20, 1 << 20
ALIGNMENT = 8
DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
}
METADATA_NAME = "__metadata__"

#: Bounds that no artefact reaches. They keep the time to read a hostile header short.
_MAX_ARRAYS, _MAX_DIMENSIONS, _MAX_METADATA_BYTES = 256, 2, 1 << 16
_MAX_DEPTH, _MAX_TOKENS, _MAX_DIGITS = 6, 1 << 15, 32
_ARRAY_NAME = re.compile(r"[a-z0-9_/]{1,64}")
#: A string, terminated or not, or a bracket. The possessive quantifiers keep the search linear.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|\[|\]|\{|\}', re.DOTALL)


class Rule(NamedTuple):
    """What a member of the metadata must be: in words, and as a test that never raises."""

    words: str
    is_met: Callable[[Any], bool]


def integer_within(minimum: int, maximum: int) -> Rule:
    """Return the rule for an integer in minimum..maximum."""
    return Rule(f"an integer of {minimum}..{maximum}", lambda value: type(value) is int and minimum <= value <= maximum)


def number_within(minimum: float, maximum: float) -> Rule:
    """Return the rule for a number in minimum..maximum."""
    return Rule(
        f"a number of {minimum}..{maximum}", lambda value: type(value) in (int, float) and minimum <= value <= maximum
    )


def text_within(maximum: int) -> Rule:
    """Return the rule for a text of at most `maximum` characters, without lone surrogates (not valid UTF-8)."""
    return Rule(
        f"a text of at most {maximum} characters",
        lambda value: isinstance(value, str) and len(value) <= maximum and not re.search("[\ud800-\udfff]", value),
    )


_HASH = Rule(
    "64 lower-case hexadecimal digits",
    lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None,
)


def is_quarantined(entry: object) -> bool:
    """Return whether `entry` is an index of a config, or a list of one and of texts."""
    index, *variants = entry if isinstance(entry, list) and entry else [entry]
    return integer_within(0, SIZES["configs"][1] - 1).is_met(index) and all(map(text_within(1024).is_met, variants))


class Array(NamedTuple):
    """An array of an op kind: its dtype, the names of its dimensions (see SIZES), what it holds."""

    dtype: str
    dimensions: tuple[str, ...]
    meaning: str


#: Dimension -> smallest and largest size. `fields` is the number of fields of a config. The number of trees bounds the
#: time of a choice.
SIZES = {
    "configs": (1, 160),
    "fields": (1, 64),
    "exact": (0, MAX_BYTES),
    "trees + 1": (2, 257),
    "nodes": (1, 65536),
    "leaves": (1, 65536),
    "features": (1, 256),
    "golden": (0, 65536),
    "golden problems": (0, 65536),
    "golden problems + 1": (1, 65537),
}

ARRAYS = {
    "configs": Array(
        "I32",
        ("configs", "fields"),
        "distinct configs that other members name; each is legal on the SKU for some problem of the op kind",
    ),
    "exact_key": Array("U64", ("exact",), "exact_key() of the measured problems, ascending"),
    "exact_config": Array("I32", ("exact",), "index of the config measured best for each"),
    "tree_start": Array("I32", ("trees + 1",), "tree t has the nodes tree_start[t]..tree_start[t+1]-1, the root first"),
    "feature": Array("I32", ("nodes",), "index of the feature that the node compares; -1 for a leaf"),
    "threshold": Array("F64", ("nodes",), "a feature of at most this goes to the left child"),
    "left": Array("I32", ("nodes",), "node index of the left child, above its own; for a leaf its place in leaf_value"),
    "right": Array("I32", ("nodes",), "node index of the right child, above its own; for a leaf -1"),
    "leaf_value": Array("F64", ("leaves",), "what a tree adds to log(time / analytic estimate) of a config"),
    "feature_min": Array("F64", ("features",), "smallest value in the training rows, less a slack"),
    "feature_max": Array("F64", ("features",), "largest value in the training rows, plus a slack"),
    "golden_features": Array("F32", ("golden", "features"), "rows whose scores are recorded, for replay"),
    "golden_scores": Array("F64", ("golden",), "the sum of the trees for each"),
    "golden_start": Array(
        "I32",
        ("golden problems + 1",),
        "problem p has the rows golden_start[p]..golden_start[p+1]-1, the heuristic's pick first",
    ),
    "golden_choice": Array(
        "I32", ("golden problems",), "which of its rows the guards leave; 0 for the heuristic's pick"
    ),
}

METADATA = {
    "arrays_sha256": _HASH,
    "created": text_within(32),  # YYYY-MM-DD
    "features_version": integer_within(1, 1 << 20),
    "format": integer_within(FORMAT, FORMAT),
    "heuristic_version": text_within(64),
    "ops": Rule("an object", lambda value: isinstance(value, dict)),  # op kind -> OP_METADATA
    "package_version": text_within(64),
    "sku": text_within(128),
    "sm_count": integer_within(1, 65535),
    "stale": Rule(
        "null or a text of at most 256 characters", lambda value: value is None or text_within(256).is_met(value)
    ),
}

OP_METADATA = {
    "estimate_revision": integer_within(1, 1 << 20),  # of _C.estimate_revision; see get_estimate_revision
    "kernel_hash": _HASH,
    "margin": number_within(0, 1000),  # a log ratio: what must be gained over the heuristic's pick
    "quarantined": Rule(  # configs that must not be chosen, in ascending order of their indices
        "a list of config indices, or [index, variant, ...] of one that may be chosen for these (Problem.to_json)",
        lambda value: isinstance(value, list) and all(map(is_quarantined, value)),
    ),
    "regime": text_within(64),
}


def get_estimate_revision(members: Mapping[str, Any]) -> Any:
    """Return the revision of the estimate that the trees of an op kind were trained against. Artefacts from before
    every op kind had one lack it where it is the first.
    """
    return members.get("estimate_revision", 1)


def exact_key(problem) -> int:
    """Return the first 8 bytes of a problem's key as a big-endian number."""
    return int(problem.key[:16], 16)


def canonical_json(value: object) -> str:
    """Return `value` as JSON with ascending keys, no white space, ASCII only.

    Raises: ValueError for NaN and infinities.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def read_artifact(content: bytes) -> tuple[dict, dict[str, np.ndarray]]:
    """Return the metadata and the arrays of an artefact; layout and hashes are checked, the meaning is not.

    The arrays are read-only views of `content`. Raises: ModelError for anything that the writer could not have written.
    """
    header_bytes = read_header_length(content)
    data = memoryview(content)[ALIGNMENT + header_bytes :]
    header = read_json(read_padded(content[ALIGNMENT : ALIGNMENT + header_bytes]), "header")
    metadata = read_metadata(header.pop(METADATA_NAME, None))
    if metadata.get("arrays_sha256") != hashlib.sha256(data).hexdigest():
        refuse("the arrays differ from their SHA-256")
    return metadata, read_arrays(header, data)


def refuse(what: str) -> NoReturn:
    """Raise ModelError with the remedy."""
    raise ModelError(f"{what}; export the selector again")


def check_members(members: object, rules: Mapping[str, Rule], what: str) -> None:
    """Raise ModelError unless `members` is an object with exactly the members of `rules`, each as its rule says."""
    if not isinstance(members, dict) or members.keys() != rules.keys():
        refuse(f"{what} must have exactly the members {', '.join(rules)}")
    for name, rule in rules.items():
        if not rule.is_met(members[name]):
            refuse(f"{what}: {name} = {ascii(members[name])[:64]}: must be {rule.words}")


def read_header_length(content: bytes) -> int:
    """Return the length of the header in bytes."""
    if not ALIGNMENT <= len(content) <= MAX_BYTES:
        refuse(f"file of {len(content)} bytes: must have {ALIGNMENT}..{MAX_BYTES}")
    length = int.from_bytes(content[:ALIGNMENT], "little")
    if length > min(MAX_HEADER_BYTES, len(content) - ALIGNMENT) or length % ALIGNMENT:
        refuse(f"header of {length} bytes: must be a multiple of {ALIGNMENT} within the file and {MAX_HEADER_BYTES}")
    return length


def read_padded(header: bytes) -> str:
    """Return the header's text without its padding."""
    stripped = header.rstrip(b" ")
    if len(header) - len(stripped) >= ALIGNMENT:
        refuse(f"the header must be padded with fewer than {ALIGNMENT} spaces")
    try:
        return stripped.decode("ascii")
    except UnicodeDecodeError as error:
        refuse(f"header: {error.reason} at byte {error.start}")


def read_json(text: str, what: str) -> dict:
    """Return an object of canonical JSON, in bounded time and without deep recursion."""
    check_bounded(text, what)
    try:
        value = json.loads(text, parse_int=_read_integer, parse_float=_read_float, parse_constant=_refuse_constant)
        is_canonical = isinstance(value, dict) and canonical_json(value) == text
    except ValueError as error:
        refuse(f"{what}: {error}")
    if not is_canonical:
        refuse(f"{what}: must be an object in canonical JSON (ascending keys, no white space, ASCII)")
    return value


def check_bounded(text: str, what: str) -> None:
    """Raise ModelError for JSON with more strings, values or nesting than any artefact has."""
    if sum(map(text.count, '",[]{}')) > _MAX_TOKENS:
        refuse(f"{what}: has more than {_MAX_TOKENS} strings, values and brackets")
    depth = 0
    for token in _STRING_OR_BRACKET.findall(text):
        depth += (token in "[{") - (token in "]}")
        if depth > _MAX_DEPTH:
            refuse(f"{what}: nested more than {_MAX_DEPTH} deep")


def _read_integer(digits: str) -> int:
    return int(_check_number(digits))


def _read_float(digits: str) -> float:
    return float(_check_number(digits))


def _check_number(digits: str) -> str:
    """Return `digits`. Raises: ValueError for more than any number needs: converting them could take long."""
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return digits


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_metadata(entry: object) -> dict:
    """Return the metadata from the header's entry, whose hash must be right."""
    if not isinstance(entry, dict) or entry.keys() != {"deep_gemm", "sha256"} or type(entry["deep_gemm"]) is not str:
        refuse("not a deep_gemm selector: its metadata is missing")
    described = entry["deep_gemm"]
    if len(described) > _MAX_METADATA_BYTES:
        refuse(f"metadata of {len(described)} bytes: must be at most {_MAX_METADATA_BYTES}")
    if not described.isascii() or entry["sha256"] != hashlib.sha256(described.encode("ascii")).hexdigest():
        refuse("the metadata differs from its SHA-256")
    return read_json(described, "metadata")


def read_arrays(entries: dict, data: memoryview) -> dict[str, np.ndarray]:
    """Return the arrays of the data area, which they must fill without gaps and in the format's order."""
    if len(entries) > _MAX_ARRAYS:
        refuse(f"{len(entries)} arrays: must be at most {_MAX_ARRAYS}")
    for name, entry in entries.items():
        check_entry(name, entry)
    arrays, position = {}, 0
    for name in sorted(entries, key=lambda name: (-DTYPES[entries[name]["dtype"]].itemsize, name)):
        begin, end = entries[name]["data_offsets"]
        if begin != position or end > len(data):
            refuse(f"array {name} lies at byte {begin} of the data: must begin at {position} and end in the file")
        arrays[name] = np.frombuffer(data[begin:end], DTYPES[entries[name]["dtype"]]).reshape(entries[name]["shape"])
        position = end
    if position != len(data):
        refuse(f"the arrays end at byte {position} of {len(data)}")
    return arrays


def check_entry(name: str, entry: object) -> None:
    """Raise ModelError unless an array's header entry is complete and its shape fits its offsets."""
    if not _ARRAY_NAME.fullmatch(name):
        refuse(f"array {ascii(name)[:64]}: a name must be 1 to 64 of a-z, 0-9, _ and /")
    if not isinstance(entry, dict) or entry.keys() != {"data_offsets", "dtype", "shape"}:
        refuse(f"array {name}: must have data_offsets, dtype and shape")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if type(dtype) is not str or dtype not in DTYPES:
        refuse(f"array {name}: dtype must be one of {', '.join(DTYPES)}")
    if not is_sizes(shape) or len(shape) > _MAX_DIMENSIONS or not is_sizes(offsets) or len(offsets) != 2:
        refuse(f"array {name}: must have at most {_MAX_DIMENSIONS} dimensions and two offsets, within 0..{MAX_BYTES}")
    if offsets[1] - offsets[0] != DTYPES[dtype].itemsize * math.prod(shape):
        refuse(f"array {name}: the size of the data does not match dtype and shape")


def is_sizes(value: object) -> bool:
    """Return whether `value` is a list of integers that are possible sizes."""
    return isinstance(value, list) and all(type(size) is int and 0 <= size <= MAX_BYTES for size in value)
