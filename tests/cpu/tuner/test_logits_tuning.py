"""Attention logits through the whole tuner, on simulated times: sweep, train, evaluate, export, snapshot, select."""

import itertools

import numpy as np
import pytest

from deep_gemm import _C, selection
from deep_gemm.artifact import OP_METADATA, get_estimate_revision
from deep_gemm.errors import ModelError
from deep_gemm.jit import hashing
from deep_gemm.selector import Selector, describe_op
from tests.fakes.grouped_variants import BATCHED, K_GROUPED, MASKED
from tests.fakes.sweeps import run_sweep, train_and_export
from tests.fakes.variants import LOGITS
from tuner import cli
from tuner.db import Store, queries
from tuner.learn.validate import name_weight
from tuner.problems import shapes
from tuner.ship import models

H200 = _C.Device.known("h200")
#: Weights: heads and head_dim, four families.
WEIGHTS = ((16, 64), (32, 128), (64, 128), (64, 32))
PREFILL = [
    _C.Problem(LOGITS[0], m, n, k, heads=heads, d_dtype="fp32")
    for (heads, k), (m, n) in itertools.product(WEIGHTS, ((1, 8192), (512, 1001), (2048, 65536)))
]
PAGED = [
    _C.Problem(LOGITS[1], next_n * batch, n, k, heads=heads, d_dtype="fp32", next_n=next_n, block_kv=64)
    for (heads, k), (batch, next_n, n) in itertools.product(WEIGHTS, ((1, 1, 4096), (64, 1, 65536), (16, 3, 8192)))
]


@pytest.fixture(scope="module", autouse=True)
def kernel_hashes():
    """Keep the compiler out: no simulated sweep compiles."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (hashing, selection):
            patch.setattr(module, "kernel_hash", lambda op: {LOGITS[0]: "a", LOGITS[1]: "b"}[op] * 64)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a swept database, a training folder and an artefact of both op kinds."""
    path = tmp_path_factory.mktemp("logits")
    summary = run_sweep(path / "tuning.db", [*PREFILL, *PAGED])
    assert summary["measured"] == len(PREFILL) + len(PAGED) and not summary["failed"]
    train_and_export(path / "tuning.db", path / "training", trees=4, portfolio_size=8)
    return path


def read_content(folder) -> bytes:
    """Return the bytes of the artefact."""
    return next((folder / "training" / "models").glob("*.dgsel")).read_bytes()


def test_measured_problems_are_exact_and_others_are_learned(folder):
    selector = Selector(read_content(folder))
    assert selector.replay_golden() == 0 and set(selector.metadata["ops"]) == set(LOGITS)
    assert {selector.choose(problem, H200).source for problem in (*PREFILL, *PAGED)} == {"exact"}
    between = [
        _C.Problem(LOGITS[0], m, n, 128, heads=heads, d_dtype="fp32")
        for heads, (m, n) in itertools.product((32, 64), ((100, 8192), (777, 10007), (1500, 60000)))
    ]
    choices = [selector.choose(problem, H200) for problem in between]
    assert {"learned"} <= {choice.source for choice in choices} <= {"learned", "analytic"}
    assert all(_C.is_legal(problem, one.config, H200) for problem, one in zip(between, choices, strict=True))


def test_the_card_and_the_folds_name_heads(folder):
    card = next((folder / "training" / "models").glob("*.md")).read_text()
    assert all(f"## {op}" in card for op in LOGITS)
    assert [name_weight(problem) for problem in PREFILL[::3]] == [f"heads{heads}-k{k}" for heads, k in WEIGHTS]
    assert name_weight(_C.Problem("fp8_gemm", 1, 2, 3)) == "n2-k3"


def test_a_forest_of_another_estimate_is_not_asked(folder, monkeypatch):
    content, problem = read_content(folder), _C.Problem(LOGITS[0], 777, 10007, 128, heads=64, d_dtype="fp32")
    current = _C.estimate_revision
    monkeypatch.setattr(_C, "estimate_revision", lambda op: current(op) + 1)
    selector = Selector(content)
    choice = selector.choose(problem, H200)
    assert choice.source == "analytic" and "estimate revision differs" in choice.reason
    model = models.Model(folder, "installed", selector.sku, "", selector, {})
    monkeypatch.setattr(selection, "kernel_hash", lambda op: selector.metadata["ops"][op]["kernel_hash"])
    assert set(model.list_outdated()) == set(LOGITS) and set(model.list_outdated().values()) == {choice.reason}
    assert selector.choose(PREFILL[0], H200).source == "exact"


def test_a_part_without_a_revision_is_of_the_first():
    assert get_estimate_revision({}) == 1 == get_estimate_revision({"estimate_revision": 1})
    revisions = {op: _C.estimate_revision(op) for op in (*LOGITS, "fp8_gemm", BATCHED[0], MASKED[0], K_GROUPED[1])}
    assert revisions == {LOGITS[0]: 2, LOGITS[1]: 2, "fp8_gemm": 3, BATCHED[0]: 1, MASKED[0]: 4, K_GROUPED[1]: 2}
    members = {"margin": 0, "kernel_hash": "0" * 64, "quarantined": [], "regime": "graph-cold"}
    assert members.keys() | {"estimate_revision"} == OP_METADATA.keys()
    for revision in ("2", 0, None):
        with pytest.raises(ModelError, match="estimate_revision = "):
            describe_op(LOGITS[1], members | {"estimate_revision": revision}, {})
    for broken in ({"kernel_hash": "0" * 64}, ["estimate_revision"]):
        with pytest.raises(ModelError, match="must have exactly the members"):
            describe_op(LOGITS[1], broken, {})


def test_rows_are_loaded_with_their_legality_and_published(folder, tmp_path):
    with Store.open(folder / "tuning.db", "ro") as store:
        assert store.check() == []
        rows = store.load_measurements(op=LOGITS[1])
    assert {row.block.problem for row in rows} == set(PAGED)
    target = tmp_path / "snapshot.db"
    assert cli.run(["db", "snapshot", str(target), "--db", str(folder / "tuning.db"), "--max-bytes", "1000000"]) == 0
    with Store.open(target, "ro") as store:
        assert {row.block.problem for row in store.load_measurements(op=LOGITS[0])} == set(PREFILL)


def test_the_smallest_problem_of_logits_keeps_what_its_kernel_is_made_for():
    for problem in (*PREFILL, *PAGED):
        small = queries.get_smallest(problem)
        assert (small.m, small.n, small.k) == (problem.next_n, 1, problem.k)
        assert _C.kernel_identity(small) == _C.kernel_identity(problem)
    assert queries.get_smallest(_C.Problem("fp8_gemm", 7, 8, 9)) == _C.Problem("fp8_gemm", 1, 1, 1)


def test_features_of_configs_that_the_heads_cannot_have_are_numbers():
    """An exact table holds configs for all numbers of heads."""
    for problems in (PREFILL, PAGED):
        configs = list(dict.fromkeys(c for problem in problems for c in _C.get_candidates(problem, H200)))
        features = np.array([_C.get_config_features(problem, H200, configs) for problem in problems])
        assert np.isfinite(features).all()


@pytest.mark.parametrize("preset, families, problems", [("attention", 10, 180), ("batched", 8, 110)])
def test_presets_have_enough_for_validation(preset, families, problems):
    """Left-out families are predicted from others, and sizes lie between measured ones."""
    found = shapes.load_preset(preset)
    assert len(found) >= problems
    for op in {problem.op for problem in found}:
        own = [problem for problem in found if problem.op == op]
        assert len({shapes.get_weight_shape(problem) for problem in own}) >= families - 2
    if preset == "attention":
        assert {problem.next_n for problem in found} == {1, 2, 3, 4} and {problem.n % 2 for problem in found} == {0, 1}
        assert {512, 131072} <= {problem.n for problem in found} and max(p.m // p.next_n for p in found) >= 128
