"""Artefacts of older kernels choose where a measurement showed that their choices hold, and nowhere else."""

import copy

import pytest

from deep_gemm import _C, older_kernels
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.selector import Selector
from tests.fakes.selectors import DEVICE, KERNEL_HASH, OP, make_artifact, make_parts, pack
from tuner.db.rows import Identity
from tuner.ship import exact, export

NEW, OTHER, OLDEST = "5e" * 32, "0f" * 32, "1d" * 32


@pytest.fixture(autouse=True)
def served(monkeypatch):
    """Kernels NEW of the op kind, for which measurements of KERNEL_HASH choose."""
    monkeypatch.setattr(older_kernels, "SERVED", {OP: (NEW, KERNEL_HASH, OLDEST)})


def test_an_entry_is_of_its_hashes_alone():
    find, listed = older_kernels.find_serving, older_kernels.list_serving
    assert listed(OP, NEW) == [NEW, KERNEL_HASH, OLDEST] and listed(OP, OTHER) == [OTHER]
    assert listed("bf16_gemm", NEW) == [NEW]
    assert listed(OP, KERNEL_HASH) == [KERNEL_HASH, OLDEST], "tables of kernels before the present ones"
    assert find(OP, NEW, KERNEL_HASH) == KERNEL_HASH and find(OP, NEW, OLDEST) == OLDEST
    assert find(OP, KERNEL_HASH, OLDEST) == KERNEL_HASH, "an older one serves the package's, not another older one"
    assert find(OP, NEW, OTHER) == find("bf16_gemm", NEW, KERNEL_HASH) == find(OP, NEW, NEW) == NEW
    assert find(OP, OTHER, KERNEL_HASH) == OTHER and find(OP, KERNEL_HASH, NEW) == KERNEL_HASH


def test_an_artefact_chooses_for_the_kernels_that_it_serves():
    selector, problems = Selector(make_artifact()), make_parts()[3]
    for problem, mode, source in ((problems[0], "auto", "exact"), (problems[0], "model", "learned")):
        own = selector.choose(problem, DEVICE, mode, KERNEL_HASH)
        found = selector.choose(problem, DEVICE, mode, NEW)
        assert found.source == source and (found.config, found.reason) == (own.config, own.reason)
    assert selector.find_fault(OP, NEW) == selector.find_fault(OP, KERNEL_HASH) == ""
    assert "kernel hash differs" in selector.find_fault(OP, OTHER)
    assert selector.choose(problems[0], DEVICE, "auto", OTHER).source == "analytic"
    assert selector.find_fault("bf16_gemm", NEW) == "", "an op kind that it lacks"


def read(content: bytes, hash_: str, is_strict: bool = False) -> dict:
    """Return the op kinds that an entry measured with kernels `hash_` would find in an artefact."""
    return exact.read_base(content, Identity(OP, DEVICE.sku, hash_, "nvrtc", "cold-graph"), DEVICE, is_strict)[0]["ops"]


def test_a_new_entry_joins_what_serves_its_kernels():
    content = make_artifact()
    own = Selector(content).metadata["ops"]
    assert read(content, KERNEL_HASH) == own and OP not in read(content, OTHER)
    joined = read(content, NEW)
    assert joined[OP].pop("kernel_hash") == NEW, "the older kernels must not take a time of the new ones for theirs"
    assert joined == {OP: {name: value for name, value in own[OP].items() if name != "kernel_hash"}}


def test_an_export_keeps_what_serves_this_package(monkeypatch):
    described = copy.deepcopy(make_parts()[0]["ops"][OP])
    for current, is_kept in ((NEW, True), (KERNEL_HASH, True), (OTHER, False)):
        monkeypatch.setattr(export, "kernel_hash", lambda op, current=current: current)
        assert export.is_current(OP, described) == is_kept


def test_entries_of_the_package_are_of_its_kernels(monkeypatch):
    """An entry for kernels that are gone would only be in the way."""
    monkeypatch.undo()
    kinds = {kind.name for kind in _C.OP_KINDS}
    for op, (current, *older) in older_kernels.SERVED.items():
        assert op in kinds and current == kernel_hash(op) and older and current not in older, op
    assert Selector(pack(*make_parts()[:2])).find_fault(OP, NEW)
