"""What was measured of kernels whose machine code a change left as it was."""

import json
from pathlib import Path

import pytest

from benchmarks import same_code, stale
from benchmarks.stamp import RECORDS
from deep_gemm import _C
from deep_gemm.jit import cubin, generator, hashing, nvrtc

K_MAJOR = frozenset({"k k"})
MIXED = frozenset({"k k", "k mn"})


def change(before: str, now: str, op: str = "bf16_gemm", **fields) -> dict:
    return {"op": op, "before": before, "now": now, "kernels": 8, "of": 8, "differ": {}, "gone": 0} | fields


@pytest.fixture
def changes(monkeypatch):
    """Two changes: the first one leaves all code as it was, the second one that of K-major operands."""
    found = [
        change("a", "b"),
        change("b", "c", differ={"k mn": 2, "mn mn": 1}),
        change("x", "c", op="fp8_gemm", gone=1),
    ]
    monkeypatch.setattr(same_code, "read_changes", lambda: found)
    return found


@pytest.mark.parametrize("layouts, reaches", [(K_MAJOR, True), (frozenset(), True), (MIXED, False), (None, False)])
def test_what_holds_after_a_change_of_some_layouts(changes, layouts, reaches):
    assert same_code.holds("bf16_gemm", "b", "c", layouts) is reaches
    assert same_code.holds("bf16_gemm", "a", "c", layouts) is reaches
    assert same_code.holds("bf16_gemm", "a", "b", layouts)


def test_nothing_holds_without_a_comparison(changes):
    assert not same_code.holds("bf16_gemm", "z", "c", K_MAJOR)
    assert not same_code.holds("batched_bf16_gemm", "b", "c", K_MAJOR)
    assert not same_code.holds("bf16_gemm", "c", "b", K_MAJOR)  # never back
    assert not same_code.holds("fp8_gemm", "x", "c", K_MAJOR)  # a kernel that the generator writes differently


def test_a_record_stays_current_with_the_code_of_its_layouts(changes, monkeypatch):
    monkeypatch.setattr(stale, "current_kernel_hash", lambda op="": "c")
    monkeypatch.setattr(same_code, "find_layouts", lambda path, op: K_MAJOR if path.name == "a.json" else MIXED)
    recorded = {"bf16_gemm": "b"}
    assert stale.holding_hashes(Path("a.json"), recorded) == recorded
    assert stale.holding_hashes(Path("b.json"), recorded) == {"bf16_gemm": "c"}


def test_records_say_which_layouts_they_are_of():
    folder = RECORDS / "h200"
    assert same_code.find_layouts(folder / "dense_fp8.json", "fp8_gemm") == K_MAJOR
    assert same_code.find_layouts(folder / "dense_bf16.json", "bf16_gemm") == {"k k", "k mn", "mn k", "mn mn"}
    assert same_code.find_layouts(folder / "evaluation.json", "k_grouped_bf16_gemm_contiguous") == {"mn mn"}
    assert same_code.find_layouts(folder / "host_time.json", "bf16_gemm") == frozenset()
    assert same_code.find_layouts(folder / "callers.json", "bf16_gemm") is None


def test_a_comparison_tells_a_change_of_the_code_from_one_of_comments(tmp_path):
    problem, config = _C.Problem("bf16_gemm", 128, 256, 512), _C.Config(64, 64, 2, block_k=64)
    source = generator.generate_source(problem, config)
    for name, text in hashing.get_included_headers(source).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("// as before\n" + text)
    assert same_code.is_same(source, tmp_path)
    ring = tmp_path / "deep_gemm/sm90/mainloop/loader.cuh"
    assert "kMostPrefilled = 6;" in ring.read_text()
    ring.write_text(ring.read_text().replace("kMostPrefilled = 6;", "kMostPrefilled = 1;"))
    assert not same_code.is_same(source, tmp_path)


def test_machine_code_is_read_from_the_image():
    problem, config = _C.Problem("bf16_gemm", 128, 256, 512), _C.Config(64, 64, 2, block_k=64)
    source = generator.generate_source(problem, config)
    image = nvrtc.get_nvrtc().compile(source, hashing.get_included_headers(source)).image
    assert len(image) > len(cubin.read_code(image)) > 1000
    with pytest.raises(cubin.CubinError, match="100 bytes"):
        cubin.read_code(image[:100])


def test_the_comparison_covers_every_op_kind_that_it_names():
    document = json.loads(same_code.PROOF.read_text())
    assert document["compiler"].startswith("NVRTC ") and document["changes"]
    for one in document["changes"]:
        assert one["gone"] == 0 and 0 < one["kernels"] <= one["of"] and len(one["before"]) == len(one["now"]) == 64
