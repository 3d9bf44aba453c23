"""The calls whose host time is taken: each runs, takes as many tensors and launches as many kernels as the floor of its
time counts.
"""

import itertools

import torch

from benchmarks import host_ops
from deep_gemm import stream
from tests.fakes import stub_driver
from tests.fakes.cuda_tensors import Allocator, make_tensor, needs_exchange, use_fakes
from tests.fakes.stub_driver import select

pytestmark = needs_exchange


def use_fake_zeros() -> Allocator:
    """Let torch.zeros and the native module give memory that nobody reads."""
    allocator, numbers = use_fakes(), itertools.count(1)
    torch.zeros = lambda shape, dtype, device: make_tensor(
        next(numbers) << 32, shape if isinstance(shape, tuple) else (shape,), dtype
    )
    return allocator


def run_cases() -> list[tuple]:
    """Run every call twice; returns (name, tensors and launches of a call, tensors taken by the second one)."""
    allocator, found = use_fake_zeros(), []
    cases = host_ops.make_logits_cases() | host_ops.make_product_cases() | host_ops.make_cast_cases()
    for name, case in cases.items():
        case.call()
        del allocator.taken[:]
        case.call()
        found.append((name, case.tensors, case.launches, len(allocator.taken)))
    return found


def give_times(calls: dict, synchronize: object) -> dict[str, dict]:
    """Make every call, and say that a launch took 10 us, each tensor 1 us and all else 50."""
    for call in calls.values():
        call()
    best = {name: float(name) if name.isdigit() else 50.0 for name in calls} | {host_ops.LAUNCH: 10.0}
    return {name: {"best_us": value} for name, value in best.items()}


def run_measure() -> list[dict]:
    """Return the rows of such times."""
    allocator = use_fake_zeros()
    stream.find_allocator = lambda: allocator.take
    host_ops.warm_up, host_ops.time_in_turn = lambda seconds: None, give_times
    return host_ops.measure()


def test_a_floor_is_the_time_of_a_call_s_memory_and_launches(tmp_path):
    with stub_driver.start(tmp_path) as driver:
        rows, events = driver.call(run_measure)
    floors = {row["op"]: row["floor_us"] for row in rows}
    assert len(floors) == len(rows) > 12 and all(row["best_us"] == 50 for row in rows)
    assert floors["tf32_hc_prenorm_gemm"] == 10 and floors["packed scales"] == 11 and floors["per_token"] == 12
    assert any(event.get("transpose", [[1]])[0][-3:] == [0] * 3 for event in select(events, "LaunchKernelEx"))


def test_every_call_runs_and_its_parts_are_counted(tmp_path):
    with stub_driver.start(tmp_path) as driver:
        found, events = driver.call(run_cases)
    assert len(found) > 12 and all(tensors == taken for _, tensors, _, taken in found), found
    # The schedule is made once more before the calls.
    assert len(select(events, "LaunchKernelEx")) == 1 + 2 * sum(launches for _, _, launches, _ in found)
