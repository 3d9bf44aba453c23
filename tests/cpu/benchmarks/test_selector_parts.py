"""A record of choices stays current while the selector holds the same of the record's op kinds."""

import json

import pytest

from benchmarks import stale, summary
from benchmarks.stamp import OPS, RESULTS, hash_parts, read_json, write_json
from deep_gemm import older_kernels
from deep_gemm.artifact import read_artifact
from tuner.learn.artifact import build_artifact

SKU = "nvidia-h200-sm132"
CONTIGUOUS, BY_ENDS = "m_grouped_fp8_gemm_contiguous", "m_grouped_fp8_gemm_psum"
KNOWN = ("fp8_gemm", "bf16_gemm", CONTIGUOUS, BY_ENDS)
DENSE_TARGETS = ("P11", "P13", "S4")


def read_packaged() -> bytes:
    """Return the shipped artefact."""
    return stale.find_packaged(SKU).read_bytes()


def change_margin(content: bytes, op: str) -> bytes:
    """Return an artefact that chooses otherwise for one op kind, by its metadata."""
    metadata, arrays = read_artifact(content)
    metadata["ops"][op]["margin"] += 0.01
    return build_artifact(metadata, arrays)


def change_array(content: bytes, op: str) -> bytes:
    """Return the same by an array."""
    metadata, arrays = read_artifact(content)
    name = f"{op}/leaf_value"
    arrays[name] = arrays[name].copy()
    arrays[name].flat[0] += 1
    return build_artifact(metadata, arrays)


@pytest.mark.parametrize("change", [change_margin, change_array])
def test_a_part_is_all_that_the_choices_of_an_op_kind_hang_on(change):
    before = hash_parts(read_packaged(), KNOWN)
    after = hash_parts(change(read_packaged(), CONTIGUOUS), KNOWN)
    differing = {op for op in KNOWN if before[op] != after[op]}
    assert differing == {CONTIGUOUS, BY_ENDS}, "which its records choose for"
    assert len(set(before.values())) == 4
    after = hash_parts(change(read_packaged(), CONTIGUOUS.replace("contiguous", "masked")), KNOWN)
    assert {op for op in KNOWN if before[op] != after[op]} == {BY_ENDS}, "which those of masked groups choose for, too"


@pytest.mark.parametrize("members", [{"heuristic_version": "0" * 16}, {"stale": "why"}, {"sm_count": 78}])
def test_what_an_artefact_is_of_belongs_to_every_part(members):
    metadata, arrays = read_artifact(read_packaged())
    before, after = hash_parts(read_packaged(), KNOWN), hash_parts(build_artifact(metadata | members, arrays), KNOWN)
    assert not set(before.values()) & set(after.values())


def test_trees_of_kernels_that_they_no_longer_choose_for_are_another_part(monkeypatch):
    before = hash_parts(read_packaged(), KNOWN)
    monkeypatch.setattr(older_kernels, "SERVED", {})
    after = hash_parts(read_packaged(), KNOWN)
    assert {op for op in KNOWN if before[op] != after[op]} == {CONTIGUOUS, BY_ENDS}, "the rest was swept again"


def test_the_heuristics_choices_have_a_part_and_plain_kernels_have_none():
    parts = hash_parts(read_packaged(), ("summed_bf16_gemm", "deep_gemm_transpose_fp8"))
    assert parts["summed_bf16_gemm"] and parts["deep_gemm_transpose_fp8"] is None


def make_meta(ops: tuple[str, ...]) -> dict:
    """Return the origin of a record of these op kinds that the shipped selector chose for."""
    content = read_packaged()
    hashes = {op: stale.current_kernel_hash(op) for op in ops}
    return {
        "kernel_hash": hashes,
        stale.SELECTOR: stale.hash_packaged(SKU),
        stale.SELECTOR_PARTS: hash_parts(content, ops),
    }


@pytest.fixture
def other_contiguous(tmp_path, monkeypatch):
    """Ship an artefact that differs in one op kind."""
    path = tmp_path / "other.dgsel"
    path.write_bytes(change_margin(read_packaged(), CONTIGUOUS))
    return lambda: monkeypatch.setattr(stale, "find_packaged", lambda sku: path)


@pytest.mark.parametrize(("ops", "is_current"), [(OPS, True), ((*OPS, CONTIGUOUS), False), ((BY_ENDS,), False)])
def test_a_record_is_stale_by_a_selector_that_differs_in_its_own_op_kinds(tmp_path, other_contiguous, ops, is_current):
    path, meta = tmp_path / "h200" / "pdl.json", make_meta(ops)
    write_json(path, {"meta": meta, "rows": []})
    assert stale.get_reason(path, meta) is None
    other_contiguous()
    assert (stale.get_reason(path, meta) is None) == is_current
    recorded = stale.read_result_hash(path)
    assert (recorded == stale.find_current(path, recorded)) == is_current
    assert stale.get_reason(path, meta | {stale.SELECTOR_PARTS: None}) is not None, "of the selector as a whole"
    assert stale.get_reason(path, meta | {stale.SELECTOR_PARTS: {"other": "0" * 64}}) is not None
    assert stale.State(path.name, recorded, None, None).of_older == ""


def test_targets_of_dense_op_kinds_are_current_beside_calls_of_others_that_are_not(tmp_path, other_contiguous):
    """A record of the times of calls has grouped ones, too."""
    path, record = tmp_path / "h200" / "host_time.json", read_json(RESULTS / "host_time.json")
    record["meta"] |= make_meta(tuple(record["meta"]["kernel_hash"]))
    write_json(path, record)
    other_contiguous()
    assert stale.get_reason(path, record["meta"]) is not None
    assert [summary.make_entry(name, path.parent)["stale"] for name in DENSE_TARGETS] == [None] * 3
    record["meta"]["kernel_hash"]["fp8_gemm"] = "0" * 64
    path.write_text(json.dumps(record))
    assert None not in [summary.make_entry(name, path.parent)["stale"] for name in DENSE_TARGETS]
