"""Features are frozen per version: an artefact of one version must see the very same numbers in every later package.

The record holds one hash over the features of 200 problems that depend on shapes alone, named by FEATURES_VERSION, and one over
those that hold what the heuristic estimates (times, and the clusters that run at once, which make the waves), named by HEURISTIC_VERSION; an
artefact of another of either is not used. `python -m tests.data.regenerate_features` renews it.
"""

import hashlib
import json
import struct
from pathlib import Path

from deep_gemm import _C

RECORD = Path(__file__).parents[1] / "data" / "features_frozen.json"
NUM_PROBLEMS = 200
PORTFOLIO = [
    _C.Config(64, 16, 16), _C.Config(64, 64, 8, cluster_n=2), _C.Config(64, 112, 6), _C.Config(64, 192, 4, cluster_m=2),
    _C.Config(128, 32, 8), _C.Config(128, 96, 6, cluster_n=2), _C.Config(128, 128, 5), _C.Config(128, 160, 4, cluster_m=2), _C.Config(256, 64, 4), _C.Config(256, 128, 3, cluster_n=2),
    _C.Config(8, 64, 20, swap_ab=1), _C.Config(16, 64, 8, split_k=4, swap_ab=1), _C.Config(96, 128, 5, swap_ab=1),
]  # fmt: skip
#: Half of the problems have no variant; BF16's features are the same numbers of its own tiles.
FIELDS = [
    {}, {"recipe": "1d1d", "d_dtype": "fp32"}, {}, {"recipe": "per_row", "c_mode": "general"}, {}, {"scale_layout": "any"}, {},
    {"recipe": "1d1d", "d_dtype": "fp32", "c_mode": "accumulate"}, {}, {"c_mode": "head_split"},
]  # fmt: skip


def make_problems():
    """Return 200 problems from a linear congruential generator: round and odd sizes, a few limited to fewer SMs."""
    state = 12345
    for index in range(NUM_PROBLEMS):
        sizes = []
        for limit in (14, 15, 14):
            state = (state * 1103515245 + 12345) % 2**31
            size = 1 + (state >> 8) % 2 ** (1 + (state >> 4) % limit)
            sizes.append(size * 64 if index % 3 == 0 else size)
        yield _C.Problem("fp8_gemm", *sizes, num_sms=(0, 0, 0, 20)[index % 4], **FIELDS[index % len(FIELDS)])


def digest(rows: list[list[float]]) -> str:
    """Return the sha256 over the bytes of all numbers."""
    return hashlib.sha256(b"".join(struct.pack(f"<{len(row)}d", *row) for row in rows)).hexdigest()


def compute() -> dict:
    """Return what the record should hold."""
    device = _C.Device.known("h200")
    names = _C.feature_names(PORTFOLIO)
    estimated = [index for index, name in enumerate(names) if "heuristic" in name or "wave" in name]
    shape = [index for index in range(len(names)) if index not in set(estimated)]
    rows = [_C.get_features(problem, device, PORTFOLIO) for problem in make_problems()]
    return {
        "names": hashlib.sha256("\n".join(names).encode()).hexdigest(),
        "shape": {"version": _C.FEATURES_VERSION, "sha256": digest([[row[index] for index in shape] for row in rows])},
        "heuristic": {"version": _C.HEURISTIC_VERSION, "sha256": digest([[row[index] for index in estimated] for row in rows])},
    }


def read() -> dict:
    """Return the record."""
    return json.loads(RECORD.read_text(encoding="ascii"))


def write(record: dict) -> None:
    """Write the record."""
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="ascii")


def test_shape_features_are_those_of_their_version():
    recorded, found = read(), compute()
    assert found["shape"]["version"] == recorded["shape"]["version"], "FEATURES_VERSION changed: run python -m tests.data.regenerate_features"
    assert found["names"] == recorded["names"] and found["shape"] == recorded["shape"], "features changed: raise FEATURES_VERSION"


def test_estimated_features_are_those_of_their_heuristic():
    recorded, found = read()["heuristic"], compute()["heuristic"]
    assert found["version"] == recorded["version"], "HEURISTIC_VERSION changed: run python -m tests.data.regenerate_features"
    assert found["sha256"] == recorded["sha256"], "the heuristic changed: raise its revision"


def test_the_problems_are_diverse():
    problems = list(make_problems())
    assert len(set(problems)) > 190 and any(problem.num_sms for problem in problems)
    assert any(problem.n % 64 for problem in problems) and any(problem.n % 64 == 0 for problem in problems)
    for config in PORTFOLIO:
        assert _C.is_legal(problems[0], config, _C.Device.known("h200")), _C.legality_reason(problems[0], config, _C.Device.known("h200"))
