"""Trees are asked only about estimates of the revision that they were fitted to; parts without one are of the first."""

import copy

import pytest

from deep_gemm import _C
from deep_gemm.artifact import get_estimate_revision, read_artifact
from deep_gemm.selector import Selector
from tests.fakes.grouped_variants import K_GROUPED, MASKED
from tests.fakes.selectors import DEVICE, KERNEL_HASH, OP, make_parts, pack, widest_hull
from tests.fakes.variants import LOGITS
from tuner.learn import orders
from tuner.ship import export
from tuner.ship.exact import describe_estimate


def make_content(**members) -> tuple[bytes, list]:
    """Return an artefact of a dense op kind with such members of it and none of a revision else, and its problems."""
    metadata, arrays, _, problems = make_parts()
    own = copy.deepcopy(metadata)
    del own["ops"][OP]["estimate_revision"]
    own["ops"][OP] |= members
    return pack(own, arrays | widest_hull()), problems


@pytest.fixture
def revision(monkeypatch):
    """Return a function that sets the package's revision."""
    return lambda number: monkeypatch.setattr(_C, "estimate_revision", lambda op: number)


def test_the_first_revision_has_no_member():
    assert describe_estimate("batched_fp8_gemm") == {}
    for op, revision in ((OP, 3), (LOGITS[0], 2), (LOGITS[1], 2), (MASKED[0], 4), (K_GROUPED[1], 2)):
        assert describe_estimate(op) == {"estimate_revision": revision}
    content, _ = make_content()
    assert get_estimate_revision(read_artifact(content)[0]["ops"][OP]) == 1


@pytest.mark.parametrize(
    ("members", "own", "is_asked"),
    [({}, 1, True), ({}, 2, False), ({"estimate_revision": 2}, 2, True), ({"estimate_revision": 2}, 1, False)],
)
def test_trees_answer_for_their_own_estimate_alone(members, own, is_asked, revision):
    content, problems = make_content(**members)
    revision(own)
    selector = Selector(content)
    assert selector.choose(problems[0], DEVICE).source == "exact", "a table of measurements holds for any estimate"
    fault = selector.find_fault(OP, KERNEL_HASH)
    assert fault == ("" if is_asked else "trained against another estimate of this op kind (estimate revision differs)")
    sources = {selector.choose(problem, DEVICE).source for problem in problems[20:60]}
    assert "learned" in sources if is_asked else sources == {"analytic"}


@pytest.mark.parametrize(("own", "is_kept"), [(1, True), (2, False)])
def test_what_an_export_keeps_is_of_its_own_estimate(own, is_kept, revision, monkeypatch):
    content, _ = make_content()
    revision(own)
    monkeypatch.setattr(export, "kernel_hash", lambda op: KERNEL_HASH)
    assert export.is_current(OP, read_artifact(content)[0]["ops"][OP]) == is_kept


@pytest.mark.parametrize(("own", "is_asked"), [(1, True), (2, False)])
def test_a_sweep_asks_trees_of_its_own_estimate(own, is_asked, revision, monkeypatch, tmp_path):
    content, _ = make_content()
    revision(own)
    monkeypatch.setattr(orders.selection, "get_selector", lambda device: Selector(content))
    monkeypatch.setattr(orders.selector_files, "selection_mode", lambda: ("auto", tmp_path))
    monkeypatch.setattr(orders.selector_files, "read_selector_file", lambda sku, path: (tmp_path, content))
    assert bool(orders.find_trees(OP, DEVICE)) == is_asked
