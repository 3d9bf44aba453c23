"""Messages between the sweep (the parent) and its measuring process (the child).

A message is a length of 4 bytes, big-endian, followed by that many bytes of ASCII JSON: one object, at most 1 MiB.
Messages have pipes of their own, because compilers and drivers write to standard output. NaN and infinity are not JSON;
both sides refuse them.

    child -> parent   {"type": "hello", "protocol": 8, "package": hash, "regime": str, "device": {...},
                       "environment": {...}}
    parent -> child   {"type": "job", ...}                    see `make_job`
    child -> parent   {"type": "progress", "stage": str, "config": index or null}     restarts the parent's deadline
    child -> parent   {"type": "result", "result": {...}}     see records.Report
    child -> parent   {"type": "failure", "kind": str, "error": str, "config": index or null}

`package`: the package hash of the child (hashing.package_hash); the parent refuses one that would make other kernels.
After a failure the child ends itself, unless the kind is "reference": then config 0 is wrong, but the device is sound.
A job holds numbers and a few fixed words. Nothing in it is ever evaluated, opened or compiled as text.
"""

import json
import os
import select
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import get_type_hints

from tuner.measure.records import Plan

PROTOCOL_VERSION = 8
MAX_MESSAGE_BYTES = 1 << 20
HEADER = struct.Struct(">I")
MAX_PLAN_VALUE = 100_000
DEFAULT_WORKLOAD = "spread"
PLAN_FIELDS = get_type_hints(Plan)


class ProtocolError(Exception):
    """A message that breaks the rules of this module. Its sender cannot be trusted any further."""


class MessageTimeout(Exception):
    """No complete message came before the deadline."""


@dataclass(frozen=True)
class Job:
    """A checked job: `configs[0]` is the reference of all ratios; `must_confirm` are indices into `configs`.

    Group sizes follow from `workload` (one of workload.WORKLOADS) and `seed`, from which operands are drawn, too.
    `order` is how rounds are ordered, and `has_twin` whether config 0 runs twice in them, see race.Race.
    """

    problem: object
    configs: list
    must_confirm: list[int]
    plan: Plan
    seed: int
    workload: str
    order: Callable[[list, int], list] | None = None
    has_twin: bool = True


def encode_message(message: dict) -> bytes:
    """Return the bytes of one message. Raises: ProtocolError when it is not plain JSON or too long."""
    try:
        body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"message is not JSON: {error}") from error
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"message of {len(body)} bytes: at most {MAX_MESSAGE_BYTES}")
    return HEADER.pack(len(body)) + body


def write_message(fd: int, message: dict) -> None:
    """Write one message to a pipe. Raises: ProtocolError, OSError (BrokenPipeError when the reader is gone)."""
    data = memoryview(encode_message(message))
    while data:
        data = data[os.write(fd, data) :]


def read_message(fd: int, deadline: float | None = None) -> dict:
    """Read one message; `deadline` is a time.monotonic() value, and None means no deadline.

    Raises: EOFError at the end of the stream, MessageTimeout, ProtocolError.
    """
    (length,) = HEADER.unpack(read_exactly(fd, HEADER.size, deadline))
    if length > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"message announces {length} bytes: at most {MAX_MESSAGE_BYTES}")
    try:
        message = json.loads(read_exactly(fd, length, deadline).decode("ascii"), parse_constant=refuse_constant)
    except ValueError as error:
        raise ProtocolError(f"message is not ASCII JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError("message is not an object with a type")
    return message


def refuse_constant(name: str) -> None:
    """Refuse NaN and the infinities, which Python's JSON would accept."""
    raise ValueError(f"{name} is not JSON")


def read_exactly(fd: int, count: int, deadline: float | None) -> bytes:
    """Read `count` bytes from a pipe. Raises: EOFError, MessageTimeout."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    chunks, missing = [], count
    while missing:
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and (remaining <= 0 or not poll.poll(remaining * 1e3)):
            raise MessageTimeout(f"no message within the deadline ({count - missing} of {count} bytes came)")
        chunk = os.read(fd, missing)
        if not chunk:
            raise EOFError("the other side closed the pipe")
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)


def make_job(
    problem, configs: list, must_confirm: list[int], plan: Plan, seed: int, workload: str = DEFAULT_WORKLOAD
) -> dict:
    """Return the message that asks to measure `configs` on `problem`, see Job."""
    return {
        "type": "job",
        "problem": problem.as_dict(),
        "configs": [list(config.as_dict().values()) for config in configs],
        "must_confirm": sorted(must_confirm),
        "plan": encode_plan(plan),
        "seed": seed,
        "workload": workload,
    }


def check_job(job: dict) -> None:
    """Raise ProtocolError unless `job` has exactly the fields and types that `make_job` gives it."""
    # Imported here, because a process that only passes messages needs no library.
    from deep_gemm.fields import CONFIG_FIELDS
    from tuner.problems.fields import PROBLEM_DEFAULTS
    from tuner.problems.workload import WORKLOADS

    require(set(job) == {"type", "problem", "configs", "must_confirm", "plan", "seed", "workload"}, "fields")
    problem, configs, plan = job["problem"], job["configs"], job["plan"]
    require(isinstance(problem, dict) and set(problem) == set(PROBLEM_DEFAULTS), "problem")
    require(all(type(problem[name]) is type(default) for name, default in PROBLEM_DEFAULTS.items()), "problem")
    require(all(is_integer(value) for value in problem.values() if type(value) is int), "problem")
    require(isinstance(configs, list) and 1 <= len(configs) <= 4096, "configs")
    require(
        all(isinstance(row, list) and len(row) == len(CONFIG_FIELDS) and all(map(is_integer, row)) for row in configs),
        "configs",
    )
    require(isinstance(job["must_confirm"], list), "must_confirm")
    require(all(is_integer(index) and 0 <= index < len(configs) for index in job["must_confirm"]), "must_confirm")
    check_plan(plan)
    require(is_integer(job["seed"]), "seed")
    require(job["workload"] in WORKLOADS, "workload")


def check_plan(plan: object) -> None:
    """Raise ProtocolError unless `plan` has exactly the fields of a Plan."""
    require(isinstance(plan, dict) and set(plan) == set(PLAN_FIELDS), "plan")
    assert isinstance(plan, dict)
    require(
        all(type(plan[name]) is kind and 0 <= plan[name] <= MAX_PLAN_VALUE for name, kind in PLAN_FIELDS.items()),
        "plan",
    )


def encode_plan(plan: Plan) -> dict:
    """Return a Plan as messages have it."""
    return {name: PLAN_FIELDS[name](value) for name, value in asdict(plan).items()}


def is_integer(value: object) -> bool:
    """Return whether `value` is an integer of 64 bits; a truth value is none."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def require(condition: bool, what: str) -> None:
    """Raise ProtocolError naming the wrong part of a job."""
    if not condition:
        raise ProtocolError(f"job: bad {what}")


def parse_job(job: dict) -> Job:
    """Check a job's message and return it; the native module checks the range of every number again."""
    from deep_gemm.fields import CONFIG_FIELDS
    from tuner.problems.fields import to_config, to_problem

    check_job(job)
    configs = [to_config(dict(zip(CONFIG_FIELDS, row, strict=True))) for row in job["configs"]]
    plan = Plan(**job["plan"])
    return Job(to_problem(job["problem"]), configs, job["must_confirm"], plan, job["seed"], job["workload"])
