"""The GPU suite on several GPUs of one host: which child runs what where, and the record of all."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.gpu import gpus, parent, processes, run, spread_run
from tuner.measure.stamp import read_json

#: A run that writes the record of its shard, with the GPU and the cores that it has.
CHILD = """
import json, os, sys, time
from pathlib import Path
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
index = int(options["--shard"][0])
if index == {broken}: sys.exit({code})
section = {{"jobs": 1, "cases": 5, "failed_jobs": 0, "seconds": 1.0}}
own = {{"gpu": os.environ["CUDA_VISIBLE_DEVICES"], "cores": len(os.sched_getaffinity(0)), "arguments": sys.argv[1:]}}
Path(options["--out"] + ".own").write_text(json.dumps(own))
Path(options["--out"]).write_text(json.dumps({{
    "sku": {{2: "{sku}"}}.get(index, "gpu"), "driver": "1", "torch": "2", "tree_hash": "t", "kernel_hash": {{}},
    "device": "GPU", "shard": options["--shard"], "complete": index != {incomplete}, "cases": 5, "failures": [],
    "sections": {{"configs": section}}, "notes": {{"jobs": 1, "wall_s": 9.0}},
}}))
"""


@pytest.fixture
def spread(monkeypatch, tmp_path):
    """Return a function that runs on two GPUs with children of CHILD, and gives exit code, record and their words."""

    def start(broken: int = 0, code: int = 1, sku: str = "gpu", incomplete: int = 0):
        source = CHILD.format(broken=broken, code=code, sku=sku, incomplete=incomplete)
        real = spread_run.subprocess.Popen

        def popen(command, **options):
            return real([sys.executable, "-c", source, *command[3:]], **options)

        monkeypatch.setattr(spread_run.subprocess, "Popen", popen)
        out = tmp_path / "gpu_record.json"
        code = run.main(["--gpus", "0,1", "--out", str(out), "--workers", "3", "--worker-faults", "20"])
        words = [read_json(path) for path in sorted(tmp_path.glob("*.own"))]
        return code, read_json(out) if out.exists() else None, words

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    return start


def test_each_gpu_runs_a_shard_and_the_record_is_of_all(spread, tmp_path):
    before = os.sched_getaffinity(0)
    code, record, words = spread()
    assert code == 0 and record["shard"] == "1/1" and record["cases"] == 10 and record["notes"]["gpus"] == 2
    assert record["notes"]["jobs"] == 2 and record["notes"]["wall_s"] < 9.0, "side by side, not one after the other"
    assert [word["gpu"] for word in words] == ["4", "6"] and os.sched_getaffinity(0) == before
    assert sum(word["cores"] for word in words) == (len(before) if len(before) > 1 else 2)
    assert not list(tmp_path.glob("gpu_record_*.json"))
    for index, word in enumerate(words, 1):
        args = run.parse_arguments(word["arguments"])
        assert (args.shard, args.gpus, args.workers, args.worker_faults) == ((index, 2), "", 3, 20)
        assert args.out.name == f"gpu_record_{index}of2.json" and args.deadline > 0


def test_an_incomplete_shard_makes_all_incomplete(spread):
    code, record, _ = spread(incomplete=2)
    assert code == 3 and not record["complete"]


@pytest.mark.parametrize("faults, code, said", [
    ({"broken": 2, "code": 2}, 1, "gpu_record_2of2.json (exit code 2)"), ({"sku": "other"}, 1, "sku differs"),
])  # fmt: skip
def test_without_a_record_of_all_those_of_the_others_stay(spread, tmp_path, capsys, faults, code, said):
    assert spread(**faults)[:2] == (code, None) and said in capsys.readouterr().err
    assert (tmp_path / "gpu_record_1of2.json").exists()


def start_endless(tmp_path, code: str) -> tuple[subprocess.Popen, int]:
    """Start a run that has a child of its own; return it and the child's number."""
    word = tmp_path / "child"
    run_code = f"""
import subprocess, sys, time
from tests.gpu.processes import ending_on_sigterm, kill_group
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
open({str(word)!r}, "w").write(str(child.pid) + " ")
{code}
"""
    run_of_it = subprocess.Popen([sys.executable, "-c", run_code])
    while not (word.exists() and word.read_text().endswith(" ")):
        time.sleep(0.02)
    return run_of_it, int(word.read_text())


def test_runs_that_are_ended_end_their_children(tmp_path):
    """A shard's children lead sessions of their own, so that only the shard can end them."""
    code = """
with ending_on_sigterm():
    try:
        print(flush=True)
        time.sleep(60)
    finally:
        kill_group(child)
"""
    shard, child = start_endless(tmp_path, code)
    time.sleep(0.3)
    processes.end_all([shard])
    assert shard.returncode == 128 + signal.SIGTERM and not os.path.exists(f"/proc/{child}")


def test_a_run_that_does_not_end_is_killed(tmp_path):
    stubborn, child = start_endless(tmp_path, "import signal; signal.signal(15, signal.SIG_IGN); time.sleep(60)")
    time.sleep(0.3)
    try:
        processes.end_all([stubborn], 0.2)
        assert stubborn.returncode == -signal.SIGKILL
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_interrupted_run_ends_the_children_of_all_its_workers(monkeypatch):
    """Ctrl-C reaches the main thread alone."""
    started = []

    def start(parent):
        reader, writer = os.pipe()
        parent.child = subprocess.Popen(["sleep", "60"], start_new_session=True, stdout=writer)
        os.close(writer)  # so that the pipe ends with the child, as a real one does
        started.append(parent.child)
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return parent.child, reader

    monkeypatch.setattr(parent.Parent, "_start_child", start)
    args = run.parse_arguments(["--workers", "2"])
    with pytest.raises(KeyboardInterrupt):
        parent.run_together(parent.list_parents(args))
    assert [child.returncode for child in started] == [-signal.SIGKILL] * 2


def test_unknown_gpus_are_a_wrong_argument(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    assert run.main(["--gpus", "0,1"]) == 2 and "1 devices" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run.parse_arguments(["--gpus", "all", "--shard", "1/2"])


def test_cores_are_shared_without_overlap(monkeypatch):
    monkeypatch.setattr(gpus.os, "sched_getaffinity", lambda pid: set(range(3, 10)))
    assert gpus.share_cores(2) == [{3, 4, 5}, {6, 7, 8, 9}]
    assert gpus.share_cores(8) == [set(range(3, 10))] * 8


def test_shards_compile_their_share_first():
    assert run.put_share_first(list(range(6)), (1, 1)) == list(range(6))
    assert run.put_share_first(list(range(7)), (2, 3)) == [1, 4, 0, 2, 3, 5, 6]
