"""The measuring protocol: messages, jobs, and a simulated job through a real child process."""

import contextlib
import json
import os
import struct
import subprocess
import sys
import sysconfig
import time

import pytest

from deep_gemm import _C
from tuner.measure import protocol, simulated, worker_client
from tuner.measure.protocol import MAX_MESSAGE_BYTES, MessageTimeout, ProtocolError, make_job
from tuner.measure.worker_client import MeasuringWorker
from tuner.search.problem_run import EFFORTS

PROBLEM = _C.Problem("fp8_gemm", 64, 2112, 7168)
CONFIGS = _C.get_candidates(PROBLEM, _C.Device.known("h200"))
PLAN = EFFORTS["quick"]


@pytest.fixture
def pipe():
    """The two ends of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


def read_bytes(pipe, data: bytes, timeout_s: float = 0.2) -> dict:
    """Send raw bytes and read them as a message; the writing end closes behind them."""
    reader, writer = pipe
    os.write(writer, data)
    os.close(writer)
    return protocol.read_message(reader, time.monotonic() + timeout_s)


def frame(body: bytes) -> bytes:
    """Return a body with its length."""
    return struct.pack(">I", len(body)) + body


def test_messages_round_trip(pipe):
    message = {"type": "x", "text": "é\x1b\n", "numbers": [1, 2.5, None, True]}
    protocol.write_message(pipe[1], message)
    assert protocol.read_message(pipe[0], time.monotonic() + 1.0) == message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"type": 1}',
        b"\xff",
        b'{"type": "x", "a": NaN}',
        b'{"type": "x", "a": Infinity}',
        '{"type": "é"}'.encode(),
    ],
)
def test_broken_bodies_are_protocol_errors(pipe, body):
    with pytest.raises(ProtocolError):
        read_bytes(pipe, frame(body))


@pytest.mark.parametrize("data", [b"", b"\x00\x00", b"\x00\x00\x00\x05{}"])
def test_cut_messages_end_the_stream(pipe, data):
    with pytest.raises(EOFError):
        read_bytes(pipe, data)


def test_long_messages_are_refused_on_both_sides(pipe):
    with pytest.raises(ProtocolError, match="at most"):
        protocol.encode_message({"type": "x", "text": "a" * MAX_MESSAGE_BYTES})
    with pytest.raises(ProtocolError, match="announces"):
        read_bytes(pipe, struct.pack(">I", MAX_MESSAGE_BYTES + 1))


def test_what_json_cannot_hold_is_refused():
    for value in (float("nan"), float("inf"), object(), {1, 2}):
        with pytest.raises(ProtocolError):
            protocol.encode_message({"type": "x", "value": value})


def test_a_late_message_is_a_timeout(pipe):
    start = time.monotonic()
    os.write(pipe[1], b"\x00\x00\x00\x05{")
    with pytest.raises(MessageTimeout, match="1 of 5"):
        protocol.read_message(pipe[0], time.monotonic() + 0.1)
    assert time.monotonic() - start < 5.0


def test_jobs_round_trip():
    job = json.loads(json.dumps(make_job(PROBLEM, CONFIGS, [3, 1], PLAN, 5)))
    parsed = protocol.parse_job(job)
    assert parsed.problem == PROBLEM and parsed.configs == CONFIGS and parsed.must_confirm == [1, 3]
    assert parsed.plan == PLAN and (parsed.seed, parsed.workload) == (5, "spread")


def test_a_job_of_the_largest_space_fits_a_message():
    assert len(protocol.encode_message(make_job(PROBLEM, CONFIGS * 20, [], PLAN, 0))) < MAX_MESSAGE_BYTES


BAD_VALUES = ["1", 1.5, True, None, [], {}, 1 << 70, "__import__('os')"]


@pytest.mark.parametrize(
    "path",
    [
        ("problem", "m"),
        ("problem", "compiled_dims"),
        ("configs", 0, 2),
        ("configs",),
        ("must_confirm", 0),
        ("plan", "search_rounds"),
        ("seed",),
    ],
)
def test_jobs_with_anything_else_are_refused(path):
    for value in BAD_VALUES:
        job = json.loads(json.dumps(make_job(PROBLEM, CONFIGS[:2], [1], PLAN, 0)))
        place = job
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        with pytest.raises((ProtocolError, ValueError, TypeError)):
            protocol.parse_job(job)


def test_jobs_with_other_fields_are_refused():
    job = make_job(PROBLEM, CONFIGS[:2], [], PLAN, 0)
    for changed in (job | {"path": "/etc/passwd"}, {name: value for name, value in job.items() if name != "seed"}):
        with pytest.raises(ProtocolError, match="fields"):
            protocol.parse_job(changed)


def test_a_simulated_job_runs_through_a_real_child():
    job = make_job(PROBLEM, CONFIGS, [7], PLAN, 5)
    stages = []
    with MeasuringWorker("simulated") as worker:
        hello = worker.start()
        report = worker.run(job, 10.0, stages.append)
    assert hello["regime"] == "simulated" and hello["device"]["sku"] == "nvidia-h200-sm132"
    assert report == simulated.SimulatedBackend().run(job, lambda stage, config: None) | {"seconds": report["seconds"]}
    assert set(stages) == {"setup", "check", "prepare", "search", "confirm", "recheck"}
    confirmed = [row["config"] for row in report["results"] if row["role"] == "confirm"]
    assert {0, 7} <= set(confirmed) and len(confirmed) >= 6
    assert {row["config"] for row in report["results"]} == set(range(len(CONFIGS)))


def test_a_race_finds_the_fastest_config():
    backend = simulated.SimulatedBackend()
    times = [simulated.simulate_time_us(PROBLEM, config, backend.device) for config in CONFIGS]
    rows = backend.run(make_job(PROBLEM, CONFIGS, [], EFFORTS["full"], 1), lambda stage, config: None)["results"]
    confirmed = {row["config"]: row["ratio"] for row in rows if row["role"] == "confirm"}
    assert times[min(confirmed, key=confirmed.get)] < 1.005 * min(times)
    for index, ratio in confirmed.items():
        assert ratio == pytest.approx(times[index] / times[0], rel=0.01)


def test_confirmation_rounds_are_not_the_search_rounds():
    rows = simulated.SimulatedBackend().run(make_job(PROBLEM, CONFIGS, [], PLAN, 1), lambda stage, config: None)[
        "results"
    ]
    by_role = {(row["config"], row["role"]): row for row in rows}
    finalist = next(row for row in rows if row["role"] == "confirm" and row.get("samples") and row["config"])
    assert finalist["num_samples"] == len(finalist["samples"]) == PLAN.confirm_rounds
    assert by_role[finalist["config"], "search"]["num_samples"] == PLAN.search_rounds
    assert by_role[finalist["config"], "search"]["ratio"] != finalist["ratio"]


def test_the_child_finds_the_package_of_its_parent(tmp_path):
    """From a checkout that is not installed, in another folder."""
    command = [sys.executable, "-S", "-P", "-c", f"import sys; sys.argv = ['-c', '--help']; {worker_client.START}"]
    dependencies = {"PYTHONPATH": sysconfig.get_paths()["purelib"], "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, env=dependencies, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0 and "Measuring process" in done.stdout, done.stderr
