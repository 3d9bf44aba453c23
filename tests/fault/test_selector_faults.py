"""Unusable selectors leave the heuristic's choice; no hostile config reaches the generator's output."""

import copy
import math
import random
import warnings

import numpy as np
import pytest

from deep_gemm import _C, selection
from deep_gemm.errors import ConfigError, SelectorWarning
from deep_gemm.jit import generator
from tests.fakes.selectors import (
    DEVICE,
    OP,
    make_artifact,
    make_parts,
    make_problems,
    pack,
    private_models,
)

PARTS = (4, 4, 5)  # a small artefact: portfolio, trees, depth
NUM_CONFIGS = 5000


class RaisingSelector:
    def choose(self, *_arguments):
        raise RuntimeError("broken")


class IllegalSelector:
    def choose(self, *_arguments):
        return _C.Choice(_C.Config(256, 192, 30), "learned", "hostile")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    with private_models(monkeypatch, tmp_path):
        yield tmp_path


def explain_all(problems) -> tuple[list, int]:
    """Return the choices for `problems` and how many SelectorWarnings they caused."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        choices = [selection.explain(problem, DEVICE) for problem in problems]
    return choices, sum(warning.category is SelectorWarning for warning in caught)


def stale_parts() -> bytes:
    metadata, arrays, _, _ = make_parts(*PARTS)
    return pack(copy.deepcopy(metadata) | {"stale": "old kernels"}, arrays)


UNUSABLE = {
    "missing": (None, 1),  # once, because the package has one for this GPU model
    "corrupt": (make_artifact(*PARTS)[:-1], 1),
    "stale": (stale_parts(), 1),
    "raising": (RaisingSelector, 1),
    "illegal": (IllegalSelector, 1),
}


@pytest.mark.parametrize("count", [2000, pytest.param(10_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_selectors_leave_the_heuristic(name, count, folder, monkeypatch):
    content, num_warnings = UNUSABLE[name]
    if isinstance(content, bytes):
        (folder / f"{DEVICE.sku}.dgsel").write_bytes(content)
        (folder / f"{DEVICE.sku}.dgsel").chmod(0o600)
    elif content:
        monkeypatch.setitem(
            selection._loaded, DEVICE.sku, selection.LoadedSelector("auto", content(), "model.dgsel", "")
        )
    problems = make_problems(count, seed=len(name))
    choices, caught = explain_all(problems)
    assert caught == num_warnings
    for problem, choice in zip(problems, choices, strict=True):
        assert choice.source == "analytic" and choice.config == _C.get_analytic_config(problem, DEVICE)


def test_a_usable_selector_is_always_legal(folder):
    path = folder / f"{DEVICE.sku}.dgsel"
    path.write_bytes(make_artifact(*PARTS))
    path.chmod(0o600)
    problems = make_problems(10000, seed=5)
    choices, caught = explain_all(problems[:5000])
    path.write_bytes(b"changed under us")
    more, caught_later = explain_all(problems[5000:])
    assert caught == caught_later == 0 and len({choice.source for choice in choices + more}) > 1
    for problem, choice in zip(problems, choices + more, strict=True):
        assert _C.is_legal(problem, choice.config, DEVICE)


VALUES = (
    0,
    1,
    2,
    3,
    7,
    8,
    16,
    24,
    64,
    96,
    100,
    112,
    128,
    192,
    200,
    256,
    512,
    4096,
    65535,
    65536,
    2**31,
    2**63,
    2**64,
    10**30,
    -1,
    -64,
    True,
    False,
    None,
    1.0,
    64.0,
    math.nan,
    "64",
    "64; int x",
    b"64",
    [64],
    {},
    (64,),
    np.float32(64),
    "${HOME}",
)
FIELDS = ("block_m", "block_n", "num_stages", "block_k", "cluster_m", "cluster_n", "split_k", "swap_ab")
SENSIBLE = {
    "block_m": (16, 64, 128, 256),
    "block_n": (8, 64, 112, 128, 192),
    "num_stages": (2, 3, 4, 8),
    "block_k": (128,),
    "cluster_m": (1, 2),
    "cluster_n": (1, 2),
    "split_k": (1, 2),
    "swap_ab": (0, 1),
}


def test_fuzzed_configs():
    generator_ = random.Random(4)
    problem, legal = _C.Problem(OP, 64, 64, 64), 0
    for _ in range(NUM_CONFIGS):
        fields = {name: generator_.choice(SENSIBLE[name] if generator_.random() < 0.8 else VALUES) for name in FIELDS}
        try:
            config = _C.Config(**fields)
        except ConfigError:
            continue
        assert all(type(fields[name]) is int for name in FIELDS)
        if _C.is_legal(problem, config, DEVICE):
            legal += 1
            assert (
                config.block_m % 8 == config.block_n % 8 == 0
                and max(config.block_m, config.block_n) <= 256
                and config.block_k == 128
            )
            assert (
                config.cluster_m * config.cluster_n <= 2
                and config.split_k <= 8
                and config.swap_ab <= 1 < config.num_stages <= 32
            )
            continue
        with pytest.raises(ConfigError):
            generator.generate_source(problem, config)
    assert 100 < legal < NUM_CONFIGS / 2
