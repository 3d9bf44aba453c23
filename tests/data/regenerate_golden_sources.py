"""Write golden_sources.json: one hash for each of 200 (problem, config) pairs, over the generated source and the keys.

Run `python -m tests.data.regenerate_golden_sources` after a change of the generator, of a key or of the compile flags
that was meant; the diff shows how many kernels it touches.
"""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

from deep_gemm import _C
from deep_gemm.jit import generator, hashing, nvrtc

PATH = Path(__file__).with_name("golden_sources.json")
NUM_PAIRS = 200

OP = "fp8_gemm"
#: The compiler and the headers are fixed, so that the hashes depend on this project's generator and keys alone.
TOOLCHAIN = SimpleNamespace(
    kind="nvrtc", version_text="13.0", fingerprint="0" * 64, flags=tuple(flag for _, flag in nvrtc.FLAGS)
)
HEADERS = {"deep_gemm/types.cuh": "fixed"}
SHAPES = [
    (1, 576, 7168),
    (64, 2112, 7168),
    (65, 4096, 7168),
    (128, 7168, 2048),
    (4096, 24576, 1536),
    (8191, 7168, 16384),
    (2147483647, 1, 1),
]
COMPILED_DIMS = ["", "n", "k", "nk", "mnk"]


def make_pairs() -> list[tuple["_C.Problem", "_C.Config"]]:
    """Return NUM_PAIRS pairs that cover the default space, the shapes and the compiled dims evenly."""
    space = _C.get_default_space(_C.Problem("fp8_gemm", 1, 1, 1), _C.Device.known("h200"))
    problems = [_C.Problem(OP, *shape, compiled_dims=dims) for shape in SHAPES for dims in COMPILED_DIMS]
    return [(problems[i % len(problems)], space[i * len(space) // NUM_PAIRS]) for i in range(NUM_PAIRS)]


def hash_pair(problem: "_C.Problem", config: "_C.Config") -> str:
    """Return SHA-256 over the source, the keys of problem and config, and the cache key under a fixed compiler."""
    source = generator.generate_source(problem, config)
    parts = [source, problem.key, config.key(problem.op), hashing.compile_key(source, HEADERS, TOOLCHAIN)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def main() -> None:
    """Write the file."""
    rows = [
        {"config": config.to_json(), "hash": hash_pair(problem, config), "problem": problem.to_json()}
        for problem, config in make_pairs()
    ]
    PATH.write_text("[\n" + ",\n".join(json.dumps(row, sort_keys=True) for row in rows) + "\n]\n", encoding="ascii")


if __name__ == "__main__":
    main()
