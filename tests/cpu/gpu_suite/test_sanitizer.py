"""compute-sanitizer in the GPU suite: what it watches and in which order, how its output is judged, what a child that
is killed leaves, and the record.
"""

import os
import re
import time
import types
from typing import ClassVar

import pytest

from benchmarks import stale
from deep_gemm import _C
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit.plain_kernels import PLAIN_KERNELS
from tests.fakes.processes import wait_until_gone
from tests.fakes.sanitizer_tool import DONE, HAZARD, RAN, make_tool
from tests.gpu import (
    fault_kernels,
    grouped_sanitizer,
    op_calls,
    sanitizer,
    sanitizer_calls,
    sanitizer_tools,
    watched,
)
from tests.gpu.sanitizer_tools import merge_reports, read_output
from tests.gpu.variants import MAIN, get_space
from tests.gpu.watched import Program
from tests.gpu.world import ALL_OPS
from tuner.measure.stamp import read_json

H200 = _C.Device.known("h200")


# What is watched.


def test_the_sanitizer_watches_every_op_kind_and_plain_kernel():
    programs = sanitizer.list_watched(H200)
    assert len({program.name for program in programs}) == len(programs) < 460
    assert op_calls.list_kinds(sanitizer_calls.choose_calls()) == set(OP_KINDS)
    assert {name for call in sanitizer_calls.choose_calls() for name in call.kernels} == set(PLAIN_KERNELS)
    launched = {problem.op for problem, *_ in sanitizer.choose_all_pairs(H200, ALL_OPS)}
    assert launched == {op for op, kind in OP_KINDS.items() if not (kind.is_batched or kind.is_summed)}
    some = sanitizer.list_watched(H200, ("fp8_mqa_logits",))
    assert some and all("fp8_mqa_logits" in program.name for program in some)


def test_op_kinds_and_variants_take_turns_and_the_cheapest_come_first():
    programs = sanitizer.list_watched(H200, is_brief=True)
    kinds = {program.op for program in programs}
    assert kinds == {*OP_KINDS, ""} and {program.op for program in programs[: len(kinds)]} == kinds
    of_fp8 = [program for program in programs if program.op == "fp8_gemm"]
    variants = list(dict.fromkeys(program.variant for program in of_fp8))
    assert [program.variant for program in of_fp8[: len(variants)]] == variants
    for name in variants:
        costs = [program.cost for program in of_fp8 if program.variant == name]
        assert costs == sorted(costs)


def record_launches(monkeypatch) -> list[tuple]:
    """Make dense and grouped launches fakes that note (shape of D, SMs)."""
    found = []
    kernel = types.SimpleNamespace(cubin=b"", kernel_name="")
    monkeypatch.setattr(_C, "Kernel", lambda *_: kernel)
    for module in (sanitizer, grouped_sanitizer):
        monkeypatch.setattr(module, "get_cubin", lambda *_, **__: kernel)
        monkeypatch.setattr(module, "count_wrong" if module is sanitizer else "count_grouped_wrong", lambda *_: 0)

    def launch(kernel, operands, host, c, **options):
        found.append((tuple(host.d.shape), options["num_sms"]))

    monkeypatch.setattr(watched, "launch_on_copies", launch)
    return found


def test_racecheck_launches_a_config_once_with_several_tiles_a_block(monkeypatch):
    """As many K steps as wrap the ring are in the tail's shape already."""
    found = record_launches(monkeypatch)
    for config in get_space(MAIN[0], H200)[::40]:
        found.clear()
        assert sanitizer.run_config(MAIN[0], config, True) == []
        [(m, n), num_sms] = found[0]
        tiles = -(-m // config.block_m) * -(-n // config.block_n)
        assert len(found) == 1 and tiles > sanitizer.FEW_SMS
        assert num_sms == (0 if config.split_k > 1 else sanitizer.FEW_SMS)
        assert sanitizer.run_config(MAIN[0], config) == [] and len(found) == 3
    found.clear()
    variant, config = grouped_sanitizer.choose_grouped_pairs(H200)[0]
    assert grouped_sanitizer.run_grouped(variant, config, True) == []
    assert [num_sms for _, num_sms in found] == [grouped_sanitizer.FEW_SMS]


# A child.


def make_programs(done: list, names: str = "abcde") -> list[Program]:
    return [Program("op", name, lambda name=name: done.append(name) or []) for name in names]


def test_children_take_what_no_other_has_taken(tmp_path, capsys):
    done: list[str] = []
    (tmp_path / "1").touch()  # another child's
    assert sanitizer.run_child(make_programs(done), str(tmp_path)) == 0
    assert sanitizer.run_child(make_programs(done), str(tmp_path)) == 0
    assert done == list("acde")
    found = read_output("racecheck", capsys.readouterr().out)
    assert found.total == 5 and [row["program"] for row in found.rows] == done and found.is_done


def test_a_child_stops_at_its_deadline_and_survives_a_fault(capsys):
    def fail():
        raise ValueError("no such thing")

    programs = [Program("op", "bad", fail), *make_programs([])]
    assert sanitizer.run_child(programs, deadline=time.time() - 1) == 0
    found = read_output("racecheck", capsys.readouterr().out)
    assert (found.total, found.rows, found.is_done, found.is_clean) == (6, [], True, False)
    assert sanitizer.run_child(programs) == 1
    rows = read_output("racecheck", capsys.readouterr().out).rows
    assert rows[0]["failures"] == ["bad: ValueError: no such thing"] and len(rows) == 6


def test_a_child_without_claims_runs_its_part(monkeypatch):
    monkeypatch.setattr(_C, "get_device", lambda: H200, raising=False)
    parts = [sanitizer.choose_programs(sanitizer.parse_arguments(["--child", f"{part}/2"])) for part in (1, 2)]
    whole = [program.name for program in sanitizer.list_watched(H200)]
    assert sorted(program.name for part in parts for program in part) == sorted(whole)
    for op in {*OP_KINDS, ""}:
        counts = [sum(program.op == op for program in part) for part in parts]
        assert max(counts) - min(counts) <= 1, op
    assert abs(len(parts[0]) - len(parts[1])) <= 1


def test_shards_divide_what_the_tools_watch(monkeypatch):
    monkeypatch.setattr(sanitizer_tools, "Tool", lambda name, deadline, ops, part: (name, part))
    tools = sanitizer.Tools()
    for shard in ((1, 2), (2, 2)):
        sanitizer.start_tools(tools, 0.0, names=["memcheck"], shard=shard)
    parts = [part for _, part in tools]
    assert parts == [f"{part}/{2 * sanitizer_tools.PARTS}" for part in range(1, 2 * sanitizer_tools.PARTS + 1)]


# Reports.


def test_reports_are_kept_once_with_their_kernel_and_their_programs():
    events = [f'watched: {{"event": "begin", "program": "{name}", "at": 0}}\n' for name in "ab"]
    text = "".join(event + HAZARD.format(count=count) for event, count in zip(events, (511, 4), strict=True))
    found = read_output("racecheck", f"========= COMPUTE-SANITIZER\n{text}========= RACECHECK SUMMARY: 2 hazards\n")
    assert [program for _, program in found.reports] == ["a", "b"] and not found.is_clean
    [report] = merge_reports({"racecheck": [found]})
    assert (report["count"], report["beside"], report["kernel"]) == (2, ["a", "b"], "deep_gemm_fp8_gemm")
    assert "+0x90 in gemm.cuh:13\n" in report["text"] and "[511 hazards]" in report["text"]


@pytest.mark.parametrize(
    "place, kernel",
    [
        ("deep_cast_rows+0x90", "deep_cast_rows"),
        ("deep_gemm::Ring::advance in deep_gemm_fp8_gemm", "deep_gemm_fp8_gemm"),
        ("cast_rows.cuh", None),
    ],
)
def test_a_report_names_a_product_or_a_pass(place, kernel):
    found = read_output("racecheck", f"========= Error: Race reported at {place}\n")
    assert [report["kernel"] for report in merge_reports({"racecheck": [found]})] == [kernel]


def test_half_a_line_of_a_killed_child_is_left_out():
    assert read_output("racecheck", 'watched: {"event": "end", "prog').rows == []


@pytest.mark.parametrize(
    "name, clean, unclean",
    [
        ("memcheck", "ERROR SUMMARY: 0 errors", "ERROR SUMMARY: 1 error"),
        ("synccheck", "ERROR SUMMARY: 0 errors", "ERROR SUMMARY: 2 errors"),
        (
            "racecheck",
            "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
            "RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)",
        ),
    ],
)
def test_a_tool_is_clean_by_its_own_summary(monkeypatch, tmp_path, name, clean, unclean):
    def judge(code: str) -> bool:
        section, failures = make_tool(monkeypatch, tmp_path, name, code).finish()
        assert section["jobs"] == 1 and section["failed_jobs"] == bool(failures)
        return not failures

    right, summary = RAN % "[]", f"print('========= {clean}')"
    assert judge(f"{right}\n{DONE}\n{summary}")
    assert not judge(f"{right}\n{DONE}\nprint('========= {unclean}')")
    assert not judge(f"{right}\n{summary}"), "the child did not come to its end"
    assert not judge(f"{DONE}\n{summary}"), "nothing ran"
    wrong = RAN % '["wrong"]'
    assert not judge(f"{wrong}\n{DONE}\n{summary}")


def test_a_killed_child_keeps_what_it_did_and_fails_only_where_it_must_end(monkeypatch, tmp_path):
    begin = f'watched: {{"event": "begin", "program": "b", "at": {time.time()}}}'
    hang = f"{RAN % '[]'}\nprint({begin!r}, flush=True)\ntime.sleep(60)"
    tool = make_tool(monkeypatch, tmp_path, "racecheck", hang, 2.0, claims=str(tmp_path))
    section, failures = tool.finish()
    assert failures == [] and section["cases"] == 1 and tool.is_killed and tool.found.running == "b"
    assert sanitizer.count_left([tool.found]) == 2
    [failure] = make_tool(monkeypatch, tmp_path, "racecheck", hang, 2.0).finish()[1]
    assert failure == "racecheck: did not end in 2 s, during b"
    hazard = f"{hang.partition('time.sleep')[0]}print({HAZARD.format(count=3)!r}, flush=True)\ntime.sleep(60)"
    [failure] = make_tool(monkeypatch, tmp_path, "racecheck", hazard, 2.0, claims=str(tmp_path)).finish()[1]
    assert failure.startswith("racecheck: during b: Error: Race reported")


def test_a_program_that_hangs_is_a_failure_also_where_children_may_stop(monkeypatch, tmp_path):
    begin = f'watched: {{"event": "begin", "program": "b", "at": {time.time() - sanitizer_tools.HANG_S}}}'
    tool = make_tool(
        monkeypatch, tmp_path, "racecheck", f"print({begin!r}, flush=True)\ntime.sleep(60)", 2.0, claims="x"
    )
    [failure] = tool.finish()[1]
    assert re.fullmatch(r"racecheck: b hung for \d+ s", failure) and tool.is_killed


def test_children_whose_time_is_up_are_killed_together(monkeypatch, tmp_path):
    """One that gets the time in which others are waited for would seem to hang."""
    tools = []
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        tools.append(make_tool(monkeypatch, tmp_path / str(number), "racecheck", "time.sleep(60)", 0.5, claims="x"))
    assert sanitizer.finish_tools(tools)[1] == [] and all(tool.is_killed for tool in tools)
    ends = [tool.end for tool in tools]
    assert max(ends) - min(ends) < 0.7 and [tool.process.returncode for tool in tools] == [-9] * 4


def test_what_ends_early_leaves_no_child_behind(monkeypatch, tmp_path):
    """A child of the tool is what it watches, and that holds the GPU."""
    code = "import subprocess\nprint(subprocess.Popen(['sleep', '60']).pid, flush=True)\ntime.sleep(60)"
    tool = make_tool(monkeypatch, tmp_path, "memcheck", code)
    with sanitizer.Tools([tool]):
        while not (text := os.pread(tool.output.fileno(), 100, 0)):
            time.sleep(0.02)
    assert tool.process.returncode == -9 and wait_until_gone(int(text))


def test_racecheck_watches_our_kernels_with_few_threads():
    command = sanitizer_tools.make_command("racecheck", ["--child", "1/1"], 2)
    assert command[command.index("--kernel-name") + 1] == "kns=deep_"
    assert command[command.index("--racecheck-num-workers") + 1] == "2"
    assert sanitizer_tools.make_environment("racecheck", "3", 2) == {
        "CUDA_VISIBLE_DEVICES": "3",
        "OMP_NUM_THREADS": "2",
    }
    assert sanitizer_tools.make_environment("memcheck", "", 0) == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    assert "--racecheck-num-workers" not in sanitizer_tools.make_command("memcheck", [], 2)


# The run.


class FakeTool:
    """A child that ran one program; the last of them has faults."""

    started: ClassVar[list] = []
    faults: ClassVar[dict] = {}

    def __init__(self, name, deadline, ops, part="1/1", *, claims="", gpu="", threads=0):
        self.name, self.part, self.is_control, number = name, part, part == sanitizer.CONTROL, len(self.started)
        self.started.append((name, part, gpu, os.path.basename(claims)))
        own = self.faults if number == 2 else {}
        names = fault_kernels.CONTROLS if self.is_control else [str(number)]
        self.process, self.due, self.fault, self.is_over = None, 0.0, "", False
        reports = [(f"race in {fault_kernels.RACE}", "control")] if self.is_control else own.get("reports", [])
        if self.is_control and self.faults.get("is_blind"):
            reports = []
        rows = [{"program": name, "op": "x", "seconds": float(number), "failures": []} for name in names]
        rows = [] if own.get("running") else rows
        self.is_killed = bool(own.get("is_killed"))
        self.found = sanitizer_tools.Output(3, rows, own.get("running", ""), 0.0, reports, True, True, True)

    def wait(self, earliest):
        pass

    def finish(self):
        row = {"jobs": 1, "cases": len(self.found.rows), "failed_jobs": 0, "seconds": 5.0}
        return row, [f"{self.name}: {text}" for text, _ in self.found.reports]


@pytest.mark.parametrize(
    "faults, code, left",
    [
        ({}, 0, 0),
        ({"running": "x"}, 3, 1),
        ({"reports": [("Race in deep_gemm_x", "x")]}, 1, 0),
        ({"is_blind": 1}, 1, 0),
        ({"is_killed": True}, 3, 0),  # while it summed up
    ],
)
def test_children_are_spread_over_the_gpus_and_recorded(monkeypatch, tmp_path, capsys, faults, code, left):
    monkeypatch.setattr(FakeTool, "started", [])
    monkeypatch.setattr(FakeTool, "faults", faults)
    monkeypatch.setattr(sanitizer, "Tool", FakeTool)
    monkeypatch.setattr(sanitizer, "compile_ahead", lambda device, ops, timeout_s: [])
    monkeypatch.setattr(sanitizer, "find_tool", lambda: "compute-sanitizer")
    monkeypatch.setattr(sanitizer, "get_compiler_versions", lambda compilers: {"nvrtc": "13"})
    monkeypatch.setattr(_C, "get_device", lambda: H200, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    out = tmp_path / "racecheck.json"
    assert sanitizer.main(["--tools", "racecheck", "--parts", "3", "--out", str(out)]) == code
    children = [("racecheck", "1/1", gpu, "racecheck") for gpu in ("3", "5", "3")]
    assert FakeTool.started == [*children, ("racecheck", sanitizer.CONTROL, "5", "")]
    record = read_json(out)
    meta = record["meta"]
    assert meta["complete"] == (code != 3) and meta["left"] == left and meta["gpus"] == 2 and meta["children"] == 3
    assert set(ALL_OPS) < set(meta["kernel_hash"]) and stale.current_hashes(meta["kernel_hash"]) == meta["kernel_hash"]
    assert stale.read_result_hash(out) == meta["kernel_hash"] and meta["compilers"] == {"nvrtc": "13"}
    race, *right = fault_kernels.CONTROLS
    assert meta["controls"] == {race: not faults.get("is_blind"), **dict.fromkeys(right, False)}
    assert record["sections"]["sanitizer_racecheck"]["cases"] == 3 - left and len(record["rows"]) == 3
    assert bool(record["failures"]) == (code == 1) and len(record["reports"]) == len(faults.get("reports", []))
    if left:
        assert record["rows"][0] == {"tool": "racecheck", "program": "x", "seconds": None}
    assert f"{left} programs left" in capsys.readouterr().out


def test_without_a_gpu_or_a_tool_it_cannot_run(monkeypatch, capsys):
    monkeypatch.setattr(sanitizer, "find_tool", lambda: None)
    assert sanitizer.main(["--tools", "racecheck"]) == 2 and "no compute-sanitizer" in capsys.readouterr().err
