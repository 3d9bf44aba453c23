"""Features are frozen per version: an artefact of one version must see the very same numbers in every later package.

There is one record for dense problems, one for these on an H100, whose estimates have rates of their own, and one for
grouped ones. Each holds two hashes over the features of 200 problems: one of the features that depend on shapes alone,
under FEATURES_VERSION, and one of those that use the heuristic's estimates (times, and the clusters that run at once,
which determine the waves), under heuristic_version of the GPU. There are hashes of each op kind, under its
estimate_revision, too.
An artefact with another version of either is not used. `python -m tests.data.regenerate_features` writes the records.
"""

import hashlib
import itertools
import json
import struct
from pathlib import Path

import pytest

from deep_gemm import _C
from tests.fakes.grouped_variants import CONTIGUOUS, K_GROUPED, MASKED, make_grouped

DATA = Path(__file__).parents[2] / "data"
RECORDS = {
    "dense": DATA / "features_frozen.json",
    "dense_h100": DATA / "h100_features_frozen.json",
    "grouped": DATA / "grouped_features_frozen.json",
}
NUM_PROBLEMS = 200
CONFIGS = [
    _C.Config(64, 16, 16),
    _C.Config(64, 64, 8, cluster_n=2),
    _C.Config(64, 112, 6),
    _C.Config(64, 192, 4, cluster_m=2),
    _C.Config(128, 32, 8),
    _C.Config(128, 96, 6, cluster_n=2),
    _C.Config(128, 128, 5),
    _C.Config(128, 160, 4, cluster_m=2),
    _C.Config(256, 64, 4),
    _C.Config(256, 128, 3, cluster_n=2),
    _C.Config(8, 64, 20, swap_ab=1),
    _C.Config(16, 64, 8, split_k=4, swap_ab=1),
    _C.Config(96, 128, 5, swap_ab=1),
]
CONFIGS_OF = {"dense": CONFIGS, "dense_h100": CONFIGS, "grouped": [config for config in CONFIGS if config.split_k == 1]}
#: The features that use the heuristic's estimates.
ESTIMATED = {
    *("log2_pick_us", "waves", "last_wave_fill", "rounds", "steps", "log_ratio"),
    *(f"{part}_share" for part in ("launch", "memory", "l2", "power", "sm", "math", "load", "latency", "epilogue")),
}
#: Half of the dense problems have no variant; BF16's features are the same numbers of its own tiles.
FIELDS = [
    {},
    {"recipe": "1d1d", "d_dtype": "fp32"},
    {},
    {"recipe": "per_row", "c_mode": "general"},
    {},
    {"scale_layout": "any"},
    {},
    {"recipe": "1d1d", "d_dtype": "fp32", "c_mode": "accumulate"},
    {},
    {"c_mode": "head_split"},
]
#: Op and fields of the grouped problems; `expected_m` as a share of m.
GROUPED_FIELDS = [
    (CONTIGUOUS[0], {}),
    (MASKED[0], {}),
    (K_GROUPED[0], {"c_mode": "accumulate"}),
    (CONTIGUOUS[0], {"alignment": 64, "scale_layout": "any"}),
    (MASKED[0], {"expected_m": 0.5}),
    (K_GROUPED[0], {"c_mode": "general", "group_layout": "blocks"}),
    (CONTIGUOUS[0], {"alignment": 256, "recipe": "1d1d"}),
    (MASKED[0], {"expected_m": 0.01, "d_dtype": "fp32"}),
]


def generate_sizes():
    """Yield (m, n, k, num_sms) from a linear congruential generator: round and odd sizes, a few with a limit of SMs."""
    state = 12345
    for index in range(NUM_PROBLEMS):
        sizes = []
        for limit in (14, 15, 14):
            state = (state * 1103515245 + 12345) % 2**31
            size = 1 + (state >> 8) % 2 ** (1 + (state >> 4) % limit)
            sizes.append(size * 64 if index % 3 == 0 else size)
        yield *sizes, (0, 0, 0, 20)[index % 4]


def make_dense_problems():
    """Yield 200 dense problems."""
    for fields, (m, n, k, num_sms) in zip(itertools.cycle(FIELDS), generate_sizes()):
        yield _C.Problem("fp8_gemm", m, n, k, num_sms=num_sms, **fields)


def make_grouped_problems():
    """Yield 200 grouped problems, of 1 to 256 groups."""
    for (op, fields), groups, (m, n, k, num_sms) in zip(
        itertools.cycle(GROUPED_FIELDS), itertools.cycle((4, 256, 1, 32, 7)), generate_sizes()
    ):
        hint = {"expected_m": max(1, int(m * fields["expected_m"]))} if "expected_m" in fields else {}
        yield make_grouped(op, m, n, k, groups, num_sms=num_sms, **(fields | hint))


PROBLEMS = {"dense": make_dense_problems, "dense_h100": make_dense_problems, "grouped": make_grouped_problems}


def digest(rows: list[list[float]]) -> str:
    """Return the sha256 over the bytes of all numbers."""
    return hashlib.sha256(b"".join(struct.pack(f"<{len(row)}d", *row) for row in rows)).hexdigest()


def digest_each(rows: dict[str, list], columns: list[int]) -> dict[str, str]:
    """Return the digest of some columns by op kind."""
    return {op: digest([[row[index] for index in columns] for row in own]) for op, own in rows.items()}


def compute(kind: str) -> dict:
    """Return what the record of `kind` should hold."""
    device = _C.Device.known("h100" if kind.endswith("h100") else "h200")
    configs, problems = CONFIGS_OF[kind], list(PROBLEMS[kind]())
    names = _C.config_feature_names()
    estimated = [index for index, name in enumerate(names) if name in ESTIMATED]
    shape = [index for index in range(len(names)) if index not in set(estimated)]
    rows: dict[str, list] = {problem.op: [] for problem in problems}
    for problem in problems:
        rows[problem.op] += _C.get_config_features(problem, device, configs).tolist()
    return {
        "revisions": {op: _C.estimate_revision(op) for op in rows},
        "names": hashlib.sha256("\n".join(names).encode()).hexdigest(),
        "shape": {"version": _C.FEATURES_VERSION, "sha256": digest_each(rows, shape)},
        "heuristic": {
            "version": _C.heuristic_version(device.sku),
            "sha256": digest_each(rows, estimated),
        },
    }


def read(kind: str) -> dict:
    """Return the record of `kind`."""
    return json.loads(RECORDS[kind].read_text(encoding="ascii"))


def write(kind: str, record: dict) -> None:
    """Write the record of `kind`."""
    RECORDS[kind].write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="ascii")


@pytest.mark.parametrize("kind", RECORDS)
def test_shape_features_are_those_of_their_version(kind):
    recorded, found = read(kind), compute(kind)
    assert found["shape"]["version"] == recorded["shape"]["version"], (
        "FEATURES_VERSION changed: run python -m tests.data.regenerate_features"
    )
    assert found["revisions"] == recorded["revisions"], (
        "estimate_revision changed: run python -m tests.data.regenerate_features"
    )
    assert found["names"] == recorded["names"] and found["shape"] == recorded["shape"], (
        "features changed: raise FEATURES_VERSION"
    )


@pytest.mark.parametrize("kind", RECORDS)
def test_estimated_features_are_those_of_their_heuristic(kind):
    recorded, found = read(kind)["heuristic"], compute(kind)["heuristic"]
    assert found["version"] == recorded["version"], (
        "heuristic_version changed: run python -m tests.data.regenerate_features"
    )
    assert found["sha256"] == recorded["sha256"], "the heuristic changed: raise its revision"


@pytest.mark.parametrize("kind", RECORDS)
def test_the_problems_are_diverse(kind):
    problems = list(PROBLEMS[kind]())
    assert len(set(problems)) > 190 and any(problem.num_sms for problem in problems)
    assert any(problem.n % 64 for problem in problems) and any(problem.n % 64 == 0 for problem in problems)


def test_the_configs_are_legal():
    problem, device = _C.Problem("fp8_gemm", 1, 1, 1), _C.Device.known("h200")
    for config in CONFIGS:
        assert _C.is_legal(problem, config, device), _C.legality_reason(problem, config, device)
