"""The child process of the GPU suite, run here on a fake GPU: what it reports, and which jobs it leaves out."""

import json
import os
import threading
import time

import pytest
import torch

from tests.fakes.gpu_world import FakeWorld
from tests.gpu import jobs, run, world


@pytest.fixture(autouse=True)
def fake_gpu(monkeypatch):
    monkeypatch.setattr(world, "World", FakeWorld)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def run_child(*options: str) -> list[dict]:
    """Run a child of the suite in this process; return its messages."""
    reader, writer = os.pipe()
    lines: list[str] = []
    with os.fdopen(reader) as report:
        thread = threading.Thread(target=lambda: lines.extend(report))
        thread.start()
        jobs.run_child(run.parse_arguments(["--report", str(writer), *options]))
        thread.join(30.0)
    return [json.loads(line) for line in lines]


SOME_JOBS = ("--sections", "configs", "--ops", "bf16_gemm", "--spread", "16", "--shard", "1/120")


def test_a_child_reports_every_job_of_its_shard():
    first, *messages, last = run_child(*SOME_JOBS)
    assert first["event"] == "idle" and first["total"] * 2 == len(messages) and last == {"event": "done"}
    begun, ended = messages[::2], messages[1::2]
    assert [message["index"] for message in begun] == list(range(first["total"]))
    assert all(message["event"] == "begin" and "bf16_gemm" in message["name"] for message in begun)
    assert all(message["event"] == "end" and message["cases"] > 0 and not message["failures"] for message in ended)
    assert not any(message["lost"] for message in ended)


def test_a_child_goes_on_where_another_died_and_skips_what_is_given_up():
    begun = [message for message in run_child(*SOME_JOBS) if message["event"] == "begin"]
    again = run_child(*SOME_JOBS, "--first", "1", "--skip", begun[-1]["name"])
    assert [message["name"] for message in again if message["event"] == "begin"] == [
        message["name"] for message in begun[1:-1]
    ]


def test_a_child_stops_at_the_deadline():
    messages = run_child(*SOME_JOBS, "--deadline", str(time.time() - 1))
    assert [message["event"] for message in messages] == ["idle"]
