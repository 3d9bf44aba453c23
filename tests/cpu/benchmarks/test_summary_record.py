"""Targets that the record of the GPU suite decides: right results, and the same bits of what the selector chooses."""

import hashlib

import pytest

from benchmarks import stale, stamp, summary
from benchmarks.stamp import OP, write_json


def make_gpu_record(failed: int) -> dict:
    """Return the record of a GPU run with `failed` failed jobs among its configs."""
    section = {"jobs": 100, "cases": 3000, "failed_jobs": 0, "seconds": 1.0}
    sections = {"configs": {**section, "failed_jobs": failed}, "nvcc": section, "portfolio_repeats": section}
    failures = ["configs x: wrong"] * failed
    return {
        "kernel_hash": {OP: stale.current_kernel_hash()},
        "date": "2026-01-02",
        "complete": True,
        "tree_hash": stale.current_tree_hash(),
        "sku": "gpu",
        stale.SELECTOR: None,
        "sections": sections,
        "failures": failures,
        "notes": {"kernels": 1300, "portfolio": {}},
    }


def test_correctness_is_the_share_of_clean_configs(tmp_path):
    write_json(tmp_path / "gpu_record.json", make_gpu_record(0))
    entries = summary.make_summary(tmp_path)
    assert set(entries) == {"Q1", "Q2"} and all(entry["value"] == 1.0 and entry["met"] for entry in entries.values())
    assert entries["Q1"]["problems"] == 200 and entries["Q1"]["kernels"] == 1300
    write_json(tmp_path / "gpu_record.json", make_gpu_record(1))
    entries = summary.make_summary(tmp_path)
    assert entries["Q1"]["value"] == 0.995 and not entries["Q1"]["met"] and entries["Q2"]["met"]
    write_json(tmp_path / "gpu_record.json", {**make_gpu_record(0), "tree_hash": "other"})
    assert all(entry["stale"] and not entry["met"] for entry in summary.make_summary(tmp_path).values())


@pytest.mark.parametrize("recorded, present, said", [
    ("own", True, None), ("other", True, "another selector than models/gpu.dgsel"),
    (None, True, "another selector than models/gpu.dgsel"), (None, False, None),
    ("own", False, "another selector than models/gpu.dgsel"), ("no key", True, "names no selector"),
])  # fmt: skip
def test_repeats_count_for_the_selector_that_chose(tmp_path, monkeypatch, recorded, present, said):
    """A new artefact chooses other configs, which nobody has repeated."""
    for module in (stale, stamp):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    artefact = tmp_path / "models" / "gpu.dgsel"
    artefact.parent.mkdir()
    artefact.write_bytes(b"trees")
    record = make_gpu_record(0)
    record[stale.SELECTOR] = hashlib.sha256(b"trees").hexdigest() if recorded == "own" else recorded
    if recorded == "no key":
        del record[stale.SELECTOR]
    if not present:
        artefact.unlink()
    write_json(tmp_path / "gpu_record.json", record)
    entries = summary.make_summary(tmp_path)
    assert entries["Q1"]["met"] and entries["Q1"]["stale"] is None, "every config is one of its, whoever chooses"
    reason = entries["Q2"]["stale"]
    assert entries["Q2"]["met"] == (said is None) and (reason is None if said is None else said in reason)
