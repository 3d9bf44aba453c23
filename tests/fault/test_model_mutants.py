"""Hostile artefacts are refused with a typed error or harmless; never wrong, slow or executed."""

import copy
import hashlib
import io
import itertools
import json
import math
import pickle
import random
import resource
import struct
import sys
import time

import joblib
import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.artifact import canonical_json
from deep_gemm.errors import ModelError
from deep_gemm.selector import Selector
from tests.fakes.selectors import DEVICE, KERNEL_HASH, make_artifact, make_parts, make_problems, pack

PARTS = (4, 4, 5)  # a small artefact: configs, trees, leaves
#: Of each kind; with --full 100,000 in all.
NUM_MUTANTS = [400, pytest.param(50_000, marks=[pytest.mark.full, pytest.mark.timeout(3600)])]
MAX_SECONDS, MAX_GROWTH_BYTES = 0.05, 64 << 20
PROBES = make_problems(4, seed=21)

_events: list[str] | None = None
_FORBIDDEN = (
    "import",
    "exec",
    "compile",
    "open",
    "os.system",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "pickle.find_class",
    "ctypes.dlopen",
    "socket.connect",
)


def record_event(event: str, _arguments: tuple) -> None:
    if _events is not None and event in _FORBIDDEN:
        _events.append(event)


sys.addaudithook(record_event)


def choose_from(content: bytes) -> tuple[bool, list, float]:
    """Load `content` and choose; return whether it was accepted, the choices and the seconds of this thread."""
    start = time.thread_time()
    try:
        selector = Selector(content)
        choices = [
            (problem, selector.choose(problem, DEVICE, mode, KERNEL_HASH))
            for problem in PROBES
            for mode in ("auto", "model")
        ]
    except ModelError:
        selector, choices = None, []
    return selector is not None, choices, time.thread_time() - start


def check_harmless(content: bytes) -> bool:
    """Assert that `content` is refused or gives legal configs, quickly and without running anything; return whether it
    was accepted.

    A slow one is slow each time; a collection of all the objects of this process may fall into one or two tries.
    """
    global _events
    _events = []
    for _ in range(3):
        is_accepted, choices, seconds = choose_from(content)
        if seconds <= MAX_SECONDS:
            break
    events, _events = _events, None
    assert seconds <= MAX_SECONDS and not events
    assert all(_C.is_legal(problem, choice.config, DEVICE) for problem, choice in choices)
    return is_accepted


@pytest.fixture
def bounded_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 <= MAX_GROWTH_BYTES


def mutate_bytes(content: bytes, generator_: random.Random) -> bytes:
    """Flip, cut, repeat or insert bytes somewhere, mostly in the header."""
    data = bytearray(content)
    kind = generator_.choice(("flip", "flip", "cut", "repeat", "insert"))
    limit = 2500 if generator_.random() < 0.7 else len(data)
    at = generator_.randrange(min(limit, len(data)))
    if kind == "flip":
        data[at] ^= 1 << generator_.randrange(8)
    elif kind == "cut":
        del data[at : at + generator_.randint(1, 64)]
    elif kind == "repeat":
        data[at:at] = data[at : at + generator_.randint(1, 64)]
    else:
        data[at:at] = bytes(generator_.randrange(256) for _ in range(generator_.randint(1, 16)))
    return bytes(data)


@pytest.mark.parametrize("count", NUM_MUTANTS)
def test_mutated_bytes(bounded_memory, count):
    generator_ = random.Random(1)
    content = make_artifact(*PARTS)
    assert check_harmless(content)
    accepted = sum(
        check_harmless(mutant)
        for mutant in (mutate_bytes(content, generator_) for _ in range(count))
        if mutant != content
    )
    assert accepted == 0


INTEGERS = (-(2**31), -2, -1, 0, 1, 2, 3, 7, 100, 2**20, 2**31 - 1)
FLOATS = (math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 0.0, 1.0, -1.0)


def mutate_array(array: np.ndarray, generator_: random.Random) -> np.ndarray:
    """Replace one element, drop or repeat the last row, change the shape or the dtype."""
    kind = generator_.choice(("element",) * 8 + ("shorter", "longer", "flat", "dtype"))
    if kind == "shorter":
        return array[:-1]
    if kind == "longer":
        return np.concatenate([array, array[-1:]])
    if kind == "flat":
        return array.reshape(-1) if array.ndim > 1 else array.reshape(-1, 1)
    if kind == "dtype":
        return array.astype(generator_.choice([np.float64, np.float32, np.int32, np.uint64]))
    array = array.copy()
    values = (
        FLOATS if array.dtype.kind == "f" else [value for value in INTEGERS if array.dtype.kind == "i" or value >= 0]
    )
    array.flat[generator_.randrange(array.size)] = generator_.choice(values)
    return array


@pytest.mark.parametrize("count", NUM_MUTANTS)
def test_mutated_values_with_a_right_hash(bounded_memory, count):
    """Only a value that is as good as another may pass: a leaf's score, a threshold, a bound of the hull, a golden
    vector.
    """
    generator_ = random.Random(2)
    metadata, arrays, _, _ = make_parts(*PARTS)
    harmless = {
        "leaf_value",
        "threshold",
        "feature_min",
        "feature_max",
        "golden_features",
        "golden_scores",
        "golden_start",
        "golden_choice",
        "exact_config",
        "feature",
        "left",
        "right",
        "exact_key",
        "configs",
        "tree_start",
    }
    accepted = 0
    with np.errstate(all="ignore"):
        for _ in range(count):
            name = generator_.choice(sorted(harmless))
            accepted += check_harmless(pack(metadata, arrays | {name: mutate_array(arrays[name], generator_)}))
    assert 0 < accepted < count * 0.6


JSON_VALUES = (None, True, 0, 7, -1, 2**63, 1.5, "", "x" * 70, "\ud800", "../x", [], [0], [None], [[]], {}, {"a": 1})


def list_paths(value: object, path: tuple = ()) -> list[tuple]:
    """Return the paths of all values inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for name, item in items for inner in list_paths(item, (*path, name)))]


def replace_at(value: object, path: tuple, new: object) -> object:
    """Return a copy of a JSON value with the one at `path` replaced."""
    if not path:
        return new
    changed = copy.copy(value)
    changed[path[0]] = replace_at(value[path[0]], path[1:], new)
    return changed


def join(header: object, data: bytes) -> bytes:
    """Return the artefact of a header and data."""
    text = canonical_json(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def test_mutated_json_with_a_right_hash():
    """Every value of the header and of the metadata is replaced by values of other types and ranges."""
    content = make_artifact(*PARTS)
    (size,) = struct.unpack_from("<Q", content)
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    metadata = json.loads(header["__metadata__"]["deep_gemm"])
    accepted = set()
    for path, value in itertools.product(list_paths(header), JSON_VALUES):
        mutant = join(replace_at(header, path, value), data)
        assert check_harmless(mutant) == (mutant == content)
    for path, value in itertools.product(list_paths(metadata), JSON_VALUES):
        text = canonical_json(replace_at(metadata, path, value))
        signed = {"deep_gemm": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        mutant = join(header | {"__metadata__": signed}, data)
        if check_harmless(mutant) and mutant != content:
            accepted.add(path[-1])
    free = {"created", "heuristic_version", "package_version", "regime", "sku", "stale"}  # texts
    # sm_count: any number of SMs that the configs fit.
    assert accepted == free | {"estimate_revision", "features_version", "margin", "quarantined", "sm_count"}


def node_changes() -> dict[str, dict[str, np.ndarray]]:
    """Return changed node arrays by what is wrong with them."""
    arrays = make_parts(*PARTS)[1]

    def put(name: str, index: int, value) -> dict[str, np.ndarray]:
        changed = arrays[name].copy()
        changed.flat[index] = value
        return {name: changed}

    inner, leaf = int(np.argmax(arrays["feature"] >= 0)), int(np.argmax(arrays["feature"] < 0))
    second = int(arrays["tree_start"][1])
    width = arrays["feature_min"].size
    return {
        "child is itself": put("left", inner, inner),
        "child before its parent": put("right", second, 0),
        "child in another tree": put("right", inner, second),
        "child beyond all": put("right", inner, 10**9),
        "negative child": put("left", inner, -1),
        "feature beyond all": put("feature", inner, width),
        "feature -2": put("feature", inner, -2),
        "threshold NaN": put("threshold", inner, math.nan),
        "threshold infinite": put("threshold", inner, math.inf),
        "leaf beyond all": put("left", leaf, arrays["leaf_value"].shape[0]),
        "negative leaf": put("left", leaf, -1),
        "leaf with a right child": put("right", leaf, 0),
        "leaf value NaN": put("leaf_value", 0, math.nan),
        "leaf value huge": put("leaf_value", 0, 1e300),
        "trees do not start at 0": put("tree_start", 0, 1),
        "trees do not ascend": put("tree_start", 1, 0),
        "trees end early": put("tree_start", -1, arrays["feature"].size - 1),
        "trees end late": put("tree_start", -1, 2**31 - 1),
        "config illegal": put("configs", 0, 192),
        "config negative": put("configs", 1, -8),
        "config twice": {"configs": arrays["configs"][[0, 0, 2, 3]]},
        "too many stages": put("configs", 3, 33),
        "cluster 2x2": {"configs": arrays["configs"] | np.array([0, 0, 0, 0, 2, 2, *[0] * 6], np.int32)},
        "split in three": put("configs", 6, 3),
        "swap 2": put("configs", 7, 2),
        "split 0": put("configs", 6, 0),
        "six columns": {"configs": np.ascontiguousarray(arrays["configs"][:, :6])},
        "exact key twice": put("exact_key", 1, arrays["exact_key"][0]),
        "exact config beyond": put("exact_config", 0, 4),
        "hull upside down": put("feature_min", 0, 1e6),
        "hull NaN": put("feature_max", 0, math.nan),
        "golden NaN": put("golden_scores", 0, math.nan),
        "golden choice": put("golden_choice", 0, 16),
        "negative golden choice": put("golden_choice", 0, -1),
        "golden problems do not start at 0": put("golden_start", 0, 1),
        "a golden problem without rows": put("golden_start", 1, 0),
        "golden problems end late": put("golden_start", -1, 2**31 - 1),
        "leaf values of two columns": {"leaf_value": np.tile(arrays["leaf_value"][:, None], (1, 2))},
        "golden features infinite": put("golden_features", 0, math.inf),
        "no trees": {"tree_start": np.zeros(1, np.int32)},
        "no configs": {"configs": arrays["configs"][:0]},
        "129 configs": {"configs": np.repeat(arrays["configs"], 33, axis=0)[:129]},
        "no hull": {"feature_min": arrays["feature_min"][:0], "feature_max": arrays["feature_max"][:0]},
        "unknown array": {"code": np.zeros(1)},
    }


@pytest.mark.parametrize("name", node_changes())
def test_arrays_wrong_in_one_way_are_refused(name):
    metadata, arrays, _, _ = make_parts(*PARTS)
    content = pack(metadata, arrays | node_changes()[name])
    assert not check_harmless(content)


@pytest.mark.parametrize("name", make_parts(*PARTS)[1])
def test_every_array_is_needed(name):
    metadata, arrays, _, _ = make_parts(*PARTS)
    assert not check_harmless(pack(metadata, {key: value for key, value in arrays.items() if key != name}))


def chain(length: int) -> dict[str, np.ndarray]:
    """Return one tree whose inner nodes form a chain: as deep as it has inner nodes."""
    inner = np.arange(length, dtype=np.int32)
    feature = np.where(np.arange(2 * length + 1) < length, 0, -1).astype(np.int32)
    left = np.concatenate([inner + length, np.zeros(length + 1, np.int32)]).astype(np.int32)
    right = np.concatenate([inner + 1, np.full(length + 1, -1)]).astype(np.int32)
    right[length - 1] = 2 * length
    return {
        "feature": feature,
        "left": left,
        "right": right,
        "threshold": np.zeros(2 * length + 1),
        "tree_start": np.array([0, 2 * length + 1], np.int32),
    }


@pytest.mark.parametrize("depth, is_accepted", [(31, True), (32, False), (30_000, False), (100_000, False)])
def test_trees_of_many_leaves(depth, is_accepted):
    """A chain has one leaf more than inner nodes."""
    metadata, arrays, _, _ = make_parts(*PARTS)
    assert check_harmless(pack(metadata, arrays | chain(depth))) == is_accepted


def test_too_many_nodes():
    """The number of nodes is judged before the other arrays of the tree are read."""
    metadata, arrays, _, _ = make_parts(*PARTS)
    count = 65_537
    header_only = {"feature": np.full(count, -1, np.int32), "tree_start": np.array([0, count], np.int32)}
    assert not check_harmless(pack(metadata, arrays | header_only))


def slow_headers() -> dict[str, str]:
    """Return headers of 1 MiB that would take long to read, or much memory, by what is in them."""
    size = (1 << 20) - 512
    metadata = '{"a":"' + "\\u00e9" * (size // 8) + '"}'
    digest = hashlib.sha256(metadata.encode()).hexdigest()
    return {
        "opening brackets": "[" * size,
        "pairs of brackets": "[" + "[]," * (size // 3),
        "small values": '{"a":[' + "1," * (size // 2),
        "quotes": '"' * size,
        "escapes": '"' + "\\" * size,
        "code points": '{"a":"' + "\\u00e9" * (size // 6) + '"}',
        "a long number": '{"a":' + "1" * size + "}",
        "a long fraction": '{"a":0.' + "1" * size + "}",
        "long metadata": canonical_json({"__metadata__": {"deep_gemm": metadata, "sha256": digest}}),
    }


@pytest.mark.parametrize("name", slow_headers())
def test_slow_headers(name, bounded_memory):
    header = slow_headers()[name].encode()
    header += b" " * (-len(header) % 8)
    assert not check_harmless(struct.pack("<Q", len(header)) + header + bytes(15 << 20))


def foreign_files() -> dict[str, bytes]:
    """Return files of other formats under the name of an artefact, among them such as run code when unpickled."""
    stream = io.BytesIO()
    joblib.dump(make_parts(*PARTS)[2], stream)
    zip_stream = io.BytesIO()
    np.savez(zip_stream, a=np.zeros(3))
    hostile = b"cos\nsystem\n(S'touch /tmp/owned'\ntR."
    return {
        "pickle": pickle.dumps({"format": 1}),
        "hostile pickle": hostile,
        "joblib": stream.getvalue(),
        "npz (as skops)": zip_stream.getvalue(),
        "json": b'{"format":1}',
        "zeros": bytes(4096),
        "ones": b"\xff" * 4096,
        "elf": b"\x7fELF" + bytes(1000),
        "python": b"import os; os.abort()",
    }


@pytest.mark.parametrize("name", foreign_files())
def test_files_of_other_formats(name):
    assert not check_harmless(foreign_files()[name])


def test_empty_bytes_and_wrong_types():
    assert not check_harmless(b"")
    for value in (None, 3, "x", bytearray(b"x"), memoryview(b"x"), [b"x"]):
        with pytest.raises(TypeError):
            Selector(value)
