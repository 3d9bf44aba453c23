"""The recorded files: complete, without failures, of this tree or marked stale with a reason; and the tools that make
them.
"""

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import time

import pytest

from benchmarks import stale, today
from benchmarks.stamp import OP, OPS, RECORDS, RESULTS, format_json, read_json, results_of, write_json
from deep_gemm import _C, older_kernels, selection
from deep_gemm.jit.hashing import SECOND_TILE
from tests.gpu import jobs, parent, run, sanitizer
from tests.gpu import record as records
from tests.gpu.record import make_record, make_section, merge_records

GPU_RECORDS = sorted(RECORDS.glob(f"*/{stale.GPU_RECORD}"))


def is_explained(state: stale.State) -> bool:
    """Return whether a file is current without a reason, or stale with one."""
    return state.is_stale == (state.reason is not None)


@pytest.fixture(scope="module")
def states() -> list[stale.State]:
    """The state of every recorded file."""
    return stale.get_states()


def test_recorded_files_are_current_or_say_why_not(states):
    """A stale file needs a reason in benchmarks/stale.json, a current one must have none."""
    assert not [(state.path, state.is_stale, state.reason) for state in states if not is_explained(state)]


def test_no_record_names_a_folder_of_the_machine_that_it_is_of():
    folder = re.compile(r"(?:^|[\s\"(])/(?:[\w.-]+/){2,}")
    found = {path.name: folder.search(path.read_text(encoding="utf-8")) for path in RECORDS.rglob("*.json")}
    assert found and not {name: match[0] for name, match in found.items() if match}


def test_every_record_has_a_program_that_makes_or_reads_it():
    """One that no program knows is out of date, and nobody would notice."""
    root = RECORDS.parents[1]
    sources = [
        path.read_text(encoding="utf-8")
        for name in ("benchmarks", "examples", "tests/gpu")
        for path in (root / name).glob("*.py")
    ]
    words = set(re.findall(r"\w+", " ".join(sources)))
    assert not sorted(path.name for path in RECORDS.rglob("*.json") if path.stem not in words)


def test_reasons_name_existing_records(states):
    assert set(stale.read_reasons()) <= {state.path for state in states}


SANITIZERS = tuple(f"sanitizer_{tool}" for tool in sanitizer.DEFAULT_TOOLS)


def check_whole(record: dict, sections: set[str], sku: str = "nvidia-h200-sm132") -> None:
    """Check that a record is of a whole run without failures on a GPU model and has these sections."""
    assert record["complete"] and record["shard"] == "1/1" and record["failures"] == []
    assert record["cases"] == sum(section["cases"] for section in record["sections"].values()) > 0
    assert record["sku"] == sku and record["driver"] and set(record["compilers"]) == {"nvrtc", "nvcc"}
    assert sections <= set(record["sections"]) and all(record["sections"][name]["cases"] for name in sections)


def test_figures_have_a_correctness_record():
    assert RESULTS / stale.GPU_RECORD in GPU_RECORDS


@pytest.mark.parametrize("path", GPU_RECORDS, ids=lambda path: path.parent.name)
def test_gpu_record_is_whole_and_clean(path):
    record = read_json(path)
    assert path.parent == results_of(record["sku"])
    sections = {*jobs.SECTIONS, *SANITIZERS}
    # Later than the record, or begun too late: the record then must be made again.
    later = {name for name in sections if not record["sections"].get(name, {}).get("cases")}
    assert not later or stale.get_reason(path, record)
    needed = {"nvcc", *jobs.DENSE_SECTIONS, *jobs.GROUPED_SECTIONS, *SANITIZERS}
    # A run that the time budget cut is kept until there is a whole one, but counts as stale.
    is_whole = record["complete"] or not stale.get_reason(path, record)
    check_whole(record | ({} if is_whole else {"complete": True}), (sections - later) | needed, record["sku"])


def test_the_record_of_two_shards_counts_as_a_whole_one():
    """The first shard alone has the sanitizer's sections, and some sections are smaller than the shards."""
    origin = {"sku": "nvidia-h200-sm132", "driver": "1", "compilers": {"nvrtc": "13.0", "nvcc": "13.0"}}
    parts = []
    for number, names in ((1, (*jobs.SECTIONS, *SANITIZERS)), (2, jobs.SECTIONS)):
        part = make_part(f"{number}/2", **origin)
        part["sections"] = {name: {"jobs": 1, "cases": 3, "failed_jobs": 0, "seconds": 1.0} for name in names}
        parts.append(part)
    parts[1]["sections"]["nvcc"] = make_section()
    merged = merge_records(parts)
    check_whole(merged, {*jobs.SECTIONS, *SANITIZERS})
    assert merged["cases"] == 3 * (2 * len(jobs.SECTIONS) + len(SANITIZERS) - 1)
    del parts[1]["sections"]["ops"], parts[0]["sections"]["ops"]
    with pytest.raises(AssertionError):
        check_whole(merge_records(parts), {*jobs.SECTIONS, *SANITIZERS})


def test_workers_divide_a_shard_and_add_up(monkeypatch):
    args = run.parse_arguments(["--sections", "configs", "--shard", "2/3", "--workers", "2"])
    parents = parent.list_parents(args)
    jobs_of = [set(range(30)[one.args.shard[0] - 1 :: one.args.shard[1]]) for one in parents]
    assert not jobs_of[0] & jobs_of[1] and jobs_of[0] | jobs_of[1] == set(range(30)[1::3])

    def finish(one):
        one.sections["configs"]["cases"], one.notes["jobs"] = 5, 2
        one.failures.append(f"of {one.args.shard}")
        one.is_complete = one.args.shard[0] == 2

    monkeypatch.setattr(parent.Parent, "run", finish)
    whole = parent.run_together(parents)
    assert whole.sections["configs"]["cases"] == 10 and whole.notes["jobs"] == 4 and not whole.is_complete
    assert whole.failures == ["of (2, 6)", "of (5, 6)"]


def test_children_of_one_tool_make_one_section():
    def finish(cases, seconds, reasons):
        row = {"jobs": 1, "cases": cases, "failed_jobs": int(bool(reasons)), "seconds": seconds}
        own = {"name": "memcheck", "due": 0.0, "wait": lambda *_: None, "finish": lambda self: (row, reasons)}
        return type("Tool", (), own)()

    sections, failures = sanitizer.finish_tools([finish(7, 5.0, []), finish(6, 9.0, ["wrong"])])
    assert sections == {"sanitizer_memcheck": {"jobs": 2, "cases": 13, "failed_jobs": 1, "seconds": 9.0}}
    assert failures == ["wrong"]


def make_part(shard: str, **changes) -> dict:
    """Return the record of one shard."""
    stamp = {"sku": "gpu", "driver": "1", "torch": "2", "tree_hash": "t", "kernel_hash": {OP: "k"}, "device": "GPU"}
    sections = {"configs": {"jobs": 2, "cases": 10, "failed_jobs": 0, "seconds": 1.5}}
    notes = {"jobs": 2, "kernels": 7, "wall_s": 10.25}
    return make_record({**stamp, **changes}, sections, [], shard=shard, is_complete=True, notes=notes)


def test_a_record_names_the_selector_that_chose(monkeypatch):
    h200 = _C.Device.known("h200")
    monkeypatch.setattr(_C, "get_device", lambda: h200, raising=False)
    monkeypatch.setattr(records, "get_compiler_versions", lambda compilers: {})
    monkeypatch.delenv("DG_MODEL_DIR", raising=False)
    found = {}
    try:
        for mode in ("auto", "analytic"):
            monkeypatch.setenv("DG_SELECTOR", mode)
            selection.forget_selectors()
            found[mode] = records.make_origin(("nvrtc",))
    finally:
        selection.forget_selectors()
    assert found["auto"]["sku"] == h200.sku and stale.get_selector_reason(found["auto"]) is None
    assert found["auto"][stale.SELECTOR] and found["analytic"][stale.SELECTOR] is None


def test_shards_add_up():
    merged = merge_records([make_part("2/2"), make_part("1/2")])
    assert merged["shard"] == "1/1" and merged["cases"] == 20 and merged["complete"]
    assert merged["sections"]["configs"] == {"jobs": 4, "cases": 20, "failed_jobs": 0, "seconds": 3.0}
    assert merged["notes"] == {"jobs": 4, "kernels": 7, "wall_s": 20.5}


@pytest.mark.parametrize("parts", [
    [make_part("1/2")],
    [make_part("1/2"), make_part("1/2")],
    [make_part("1/2"), make_part("2/2", tree_hash="other")],
    [make_part("1/2"), make_part("2/2", sku="other")],
    [make_part("1/2", selector_sha256="s"), make_part("2/2", selector_sha256=None)],
])  # fmt: skip
def test_shards_that_do_not_belong_together_are_refused(parts):
    with pytest.raises(ValueError, match="differs between the shards|expected each of"):
        merge_records(parts)


def test_failures_and_unfinished_shards_survive_the_merge():
    failed = make_part("1/2")
    failed["failures"], failed["complete"] = ["configs x: wrong"], False
    merged = merge_records([failed, make_part("2/2")])
    assert merged["failures"] == ["configs x: wrong"] and not merged["complete"]
    assert make_section()["cases"] == 0


def test_json_files_have_one_row_a_line_and_read_back(tmp_path):
    value = {"meta": {"a": 1}, "rows": [{"m": 1}, {"m": 2}]}
    write_json(tmp_path / "x.json", value)
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert read_json(tmp_path / "x.json") == value
    assert text.count('{"m":') == 2 and '\n{"m":2}' in text
    for value in ({"meta": {}, "rows": []}, {"rows": [{"m": 1}]}, {"meta": {}}):
        assert json.loads(format_json(value)) == value
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def write_artifact(path, kernel_hash: str) -> None:
    """Write a file with an artefact's header."""
    metadata = json.dumps({"ops": {OP: {"kernel_hash": kernel_hash}}})
    header = json.dumps({"__metadata__": {"deep_gemm": metadata}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def test_states_tell_current_from_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(stale, "ROOT", tmp_path)
    monkeypatch.setattr(stale, "REASONS", tmp_path / "stale.json")
    folder = tmp_path / "benchmarks" / "results" / "h200"
    write_json(folder / "dense.json", {"meta": {"kernel_hash": {OP: stale.current_kernel_hash()}}})
    write_json(folder / "old.json", {"meta": {"kernel_hash": {OP: "0" * 64}}})
    current = {op: stale.current_kernel_hash(op) for op in OPS}
    write_json(folder / "both.json", {"meta": {"kernel_hash": current}})
    write_json(folder / "half.json", {"meta": {"kernel_hash": {**current, "bf16_gemm": "0" * 64}}})
    write_json(folder / stale.GPU_RECORD, {"tree_hash": stale.current_tree_hash()})
    (tmp_path / "models").mkdir()
    write_artifact(tmp_path / "models" / "gpu.dgsel", "0" * 64)
    write_json(
        tmp_path / "stale.json",
        {"models/gpu.dgsel": "the kernel changed", "benchmarks/results/h200/dense.json": "left over"},
    )
    states = {state.path: (state.is_stale, is_explained(state)) for state in stale.get_states()}
    assert states == {
        "benchmarks/results/h200/dense.json": (False, False), "benchmarks/results/h200/old.json": (True, False),
        "benchmarks/results/h200/both.json": (False, True), "benchmarks/results/h200/half.json": (True, False),
        "benchmarks/results/h200/gpu_record.json": (False, True), "models/gpu.dgsel": (True, True),
    }  # fmt: skip
    assert stale.main() == 1


def test_a_record_that_was_cut_speaks_for_no_tree(tmp_path):
    path = tmp_path / stale.GPU_RECORD
    for complete, is_current in ((True, True), (False, False)):
        record = {"tree_hash": stale.current_tree_hash(), "complete": complete}
        write_json(path, record)
        assert (stale.get_reason(path, record) is None) == is_current
        assert (stale.read_result_hash(path) == stale.current_tree_hash()) == is_current


@pytest.mark.parametrize("named, is_current", [({"own": True}, True), ({"own": False}, False), ({}, False)])
def test_figures_that_hang_on_choices_are_current_only_by_the_selector_that_chose(tmp_path, named, is_current):
    own = stale.hash_packaged("nvidia-h200-sm132")
    meta = {"kernel_hash": {OP: stale.current_kernel_hash()}}
    meta |= {stale.SELECTOR: own if named["own"] else "0" * 64} if named else {}
    for name in ("dense_fp8.json", *stale.OF_CHOICES):
        path = tmp_path / "h200" / name
        write_json(path, {"meta": meta, "rows": []})
        is_of_choices = name in stale.OF_CHOICES
        assert (stale.get_reason(path, meta) is None) == (is_current or not is_of_choices)
        recorded = stale.read_result_hash(path)
        assert (recorded == stale.find_current(path, recorded)) == (is_current or not is_of_choices)
        assert stale.State(name, recorded, None, None).of_older == ""


@pytest.mark.parametrize("choice, is_current", [("own", True), ("0" * 64, False), (None, False)])
def test_records_of_few_masked_groups_hang_on_the_choice_of_their_tile(tmp_path, choice, is_current):
    """Also where they were made before there was one."""
    ops = ("m_grouped_fp8_gemm_masked", "m_grouped_bf16_gemm_masked")
    hashes = {op: stale.current_kernel_hash(op) for op in ops}
    if choice:
        hashes[SECOND_TILE] = stale.current_kernel_hash(SECOND_TILE) if choice == "own" else choice
    path = tmp_path / "h200" / "m_grouped_masked.json"
    write_json(path, {"meta": {"kernel_hash": hashes}, "rows": []})
    for named in ((), ops[:1]):
        assert (stale.get_reason(path, {"kernel_hash": hashes}, named) is None) == is_current
    recorded = stale.read_result_hash(path)
    assert (recorded == stale.find_current(path, recorded)) == is_current


def test_a_record_of_choices_without_hashes_is_stale(tmp_path):
    path = tmp_path / "h200" / "pdl.json"
    write_json(path, {"meta": {stale.SELECTOR: stale.hash_packaged("nvidia-h200-sm132")}, "rows": []})
    recorded = stale.read_result_hash(path)
    assert recorded != stale.find_current(path, recorded)


def test_every_record_says_what_its_figures_hang_on():
    """On choices that its rows name, on other choices, on none; the GPU record asks by itself."""
    kinds = [{*today.FAMILIES, today.REGRET}, set(stale.OF_CHOICES), set(stale.OF_NO_CHOICE), set(stale.DERIVED)]
    known = [name for kind in kinds for name in kind]
    assert len(known) == len(set(known))
    assert {path.name for path in RECORDS.glob("*/*.json")} <= {*known, stale.GPU_RECORD}


def test_artefacts_of_older_kernels_that_choose_are_current_and_results_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(older_kernels, "SERVED", {OP: (stale.current_kernel_hash(), "0" * 64)})
    for recorded in ("0" * 64, "1" * 64):
        found = {name: stale.find_current(tmp_path / name, {OP: recorded}) for name in ("a.dgsel", "b.db", "c.json")}
        own = {OP: stale.current_kernel_hash()}
        serving = {OP: recorded} if recorded == "0" * 64 else own
        assert found == {"a.dgsel": serving, "b.db": serving, "c.json": own}
        state = stale.State("a.dgsel", {OP: recorded}, found["a.dgsel"], None)
        assert state.is_stale == (recorded == "1" * 64) and "older kernels" in state.of_older
    assert stale.State("a.dgsel", own, own, None).of_older == ""
    assert stale.serving_hashes({"none_such": "0" * 64}) == {"none_such": None}
    assert stale.serving_hashes({}) == own, "of an artefact without op kinds, which is stale"


CHILD = """
import json, os, sys, time
report = os.fdopen(int(sys.argv[1]), "w", buffering=1)
for index in range(int(sys.argv[2]), 4):
    print(json.dumps({"event": "begin", "index": index, "section": "configs", "name": f"job {index}"}), file=report)
    if index == 1: os.kill(os.getpid(), 11)
    if index == 2: time.sleep(60)
    failures = ["wrong"] if index == 3 else []
    end = {"event": "end", "index": index, "section": "configs", "cases": 5, "failures": failures, "seconds": 0.5}
    end["lost"] = False
    print(json.dumps(end), file=report)
print(json.dumps({"event": "done"}), file=report)
"""


def test_a_job_that_crashes_or_hangs_costs_itself_only(monkeypatch):
    def start_child(watched):
        reader, writer = os.pipe()
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(writer), str(watched.first)], pass_fds=[writer], start_new_session=True
        )
        os.close(writer)
        return child, reader

    monkeypatch.setattr(parent.Parent, "_start_child", start_child)
    monkeypatch.setattr(parent, "JOB_TIMEOUT_S", 1.0)
    watched = parent.Parent(argparse.Namespace(sections=["configs"], deadline=time.time() + 60))
    watched.run()
    assert watched.is_complete and watched.died == ["job 1", "job 2"]
    assert watched.sections["configs"] == {"jobs": 4, "cases": 10, "failed_jobs": 3, "seconds": 1.0}
    assert [failure.partition(":")[0] for failure in watched.failures] == [
        "configs job 1",
        "configs job 2",
        "configs job 3",
    ]


GROUP_CHILD = """
import json, os, sys
report, skipped = os.fdopen(int(sys.argv[1]), "w", buffering=1), sys.argv[3].split("|")
for index in range(int(sys.argv[2]), 8):
    name = f"bad: {index}" if index < 6 else f"good: {index}"
    if name in skipped or name.partition(":")[0] in skipped: continue
    print(json.dumps({"event": "begin", "index": index, "section": "configs", "name": name}), file=report)
    if index < 6: os.kill(os.getpid(), 11)
    end = {"event": "end", "index": index, "section": "configs", "cases": 5, "failures": [], "seconds": 0.5}
    print(json.dumps({**end, "lost": False}), file=report)
print(json.dumps({"event": "done"}), file=report)
"""


def test_a_group_whose_jobs_keep_dying_is_given_up(monkeypatch):
    def start_child(watched):
        reader, writer = os.pipe()
        command = [
            sys.executable,
            "-c",
            GROUP_CHILD,
            str(writer),
            str(watched.first),
            "|".join(watched._list_skipped()),
        ]
        child = subprocess.Popen(command, pass_fds=[writer], start_new_session=True)
        os.close(writer)
        return child, reader

    monkeypatch.setattr(parent.Parent, "_start_child", start_child)
    watched = parent.Parent(argparse.Namespace(sections=["configs"], deadline=time.time() + 60))
    watched.run()
    assert watched.is_complete and watched.died == ["bad: 0", "bad: 1"]
    assert watched.sections["configs"] == {"jobs": 4, "cases": 10, "failed_jobs": 2, "seconds": 1.0}


def test_a_section_that_cannot_be_planned_is_one_failed_job():
    def maker(world):
        raise ValueError("no such artefact")

    [(name, job)] = jobs.make_jobs(maker, None)
    assert name == "planning: all" and job()[1][0] == "ValueError: no such artefact"


def test_shards_are_merged_on_the_command_line(tmp_path, capsys):
    parts = [tmp_path / f"part{index}.json" for index in (1, 2)]
    for index, part in enumerate(parts, 1):
        write_json(part, make_part(f"{index}/2"))
    out = tmp_path / "gpu_record.json"
    assert run.main(["--merge", *map(str, parts), "--out", str(out)]) == 0
    assert read_json(out) == merge_records([read_json(part) for part in parts])
    assert "20 cases on GPU: all right" in capsys.readouterr().out
    write_json(parts[1], {**make_part("2/2"), "complete": False})
    assert run.main(["--merge", *map(str, parts), "--out", str(out)]) == 3
