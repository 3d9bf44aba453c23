"""Which steps of a GPU session measure again what is stale."""

import pytest

from benchmarks import due, stale, today
from benchmarks.gpu_session import split_budget
from benchmarks.stamp import RESULTS, read_json, write_json

#: Records that are made without a GPU.
OF_NO_GPU = {"evaluation.json", "fit_rates.json", "calibration.json", "out_of_fold.json", *stale.DERIVED}


@pytest.fixture
def explained(monkeypatch):
    """Take what the tree's records are for given, as if all were current."""
    monkeypatch.setattr(stale, "get_states", list)
    monkeypatch.setattr(stale, "get_selector_reason", lambda record: None)
    monkeypatch.setattr(today, "get_reason", lambda file, record: None)


def test_every_record_has_a_step():
    """A new record without one would never be measured again by a session that asks what is due."""
    written = {due.name_record(step) for step in due.STEPS}
    assert len(written) == len(due.STEPS) and {path.name for path in RESULTS.glob("*.json")} - OF_NO_GPU == written
    assert all(0.0 < split_budget(step, 0.0)[1] <= 560.0 for step in due.STEPS)


def test_nothing_is_due_while_records_are_the_tree_s(explained):
    assert due.list_due(RESULTS) == []


def test_what_is_stale_is_due_with_its_reason(explained, monkeypatch):
    states = [
        stale.State("benchmarks/results/h200/pdl.json", {"fp8_gemm": "old"}, {"fp8_gemm": "new"}, "another kernel"),
        stale.State("benchmarks/results/h100/callers.json", {"fp8_gemm": "old"}, {"fp8_gemm": "new"}, "of another GPU"),
        stale.State("benchmarks/results/h200/callers.json", {"fp8_gemm": "old"}, {"fp8_gemm": "new"}, None),
        stale.State("benchmarks/results/h200/host_ops.json", {"fp8_gemm": "new"}, {"fp8_gemm": "new"}, None),
    ]
    monkeypatch.setattr(stale, "get_states", lambda: states)
    found = [(split_budget(step, 0.0)[0], reason) for step, reason in due.list_due(RESULTS)]
    assert found == [("callers", stale.UNEXPLAINED), ("pdl", "another kernel")]  # in the order of STEPS


def test_other_choices_and_another_selector_are_due(explained, monkeypatch):
    monkeypatch.setattr(today, "get_reason", lambda file, record: "chosen anew" if file == "dense_fp8.json" else None)
    monkeypatch.setattr(stale, "get_selector_reason", lambda record: "another selector")
    found = [(split_budget(step, 0.0)[0], reason) for step, reason in due.list_due(RESULTS)]
    assert found == [("suite", "another selector"), ("dense_fp8", "chosen anew")]


def test_what_was_never_measured_is_due(explained, tmp_path):
    write_json(tmp_path / "pdl.json", {"meta": {}, "rows": []})
    steps = [split_budget(each.step, 0.0)[0] for each in due.list_due(tmp_path) if each.reason == due.MISSING]
    assert len(steps) == len(due.STEPS) - 1 and "pdl" not in steps


def test_the_list_is_printed_and_written(explained, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(today, "get_reason", lambda file, record: "chosen anew" if file == "k_grouped.json" else None)
    assert due.main(["--model", "h200"]) == 1
    assert capsys.readouterr().out.split(maxsplit=1) == ["k_grouped@70", "chosen anew\n"]
    assert due.main(["--model", "h200", "--out", str(tmp_path / "due.json")]) == 0
    assert read_json(tmp_path / "due.json") == {"due": [{"step": "k_grouped@70", "reason": "chosen anew"}]}
    with pytest.raises(SystemExit) as error:
        due.main(["--model", "h300"])
    assert error.value.code == 2 and "h300" in capsys.readouterr().err


def test_on_a_gpu_without_records_all_is_due(monkeypatch, tmp_path):
    monkeypatch.setattr(due, "find_results", lambda: tmp_path / "new")
    assert due.main(["--out", str(tmp_path / "due.json")]) == 0
    assert [each["step"] for each in read_json(tmp_path / "due.json")["due"]] == list(due.STEPS)
