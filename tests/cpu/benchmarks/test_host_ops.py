"""The calls whose host time is taken: each runs, takes as many tensors and launches as many kernels as the floor of its
time counts.
"""

import itertools

import pytest
import torch

from benchmarks import host_ops
from tests.fakes import stub_driver
from tests.fakes.cuda_tensors import make_tensor, use_fakes
from tests.fakes.stub_driver import select

pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no exchange API of DLPack"
)


def run_cases() -> list[tuple]:
    """Run every call twice; returns (name, tensors and launches of a call, tensors taken by the second one)."""
    allocator, numbers, found = use_fakes(), itertools.count(1), []
    host_ops.empty = lambda *shape, dtype=torch.float32: make_tensor(next(numbers) << 32, shape, dtype)
    cases = host_ops.make_logits_cases() | host_ops.make_product_cases() | host_ops.make_cast_cases()
    for name, case in cases.items():
        case.call()
        del allocator.taken[:]
        case.call()
        found.append((name, case.tensors, case.launches, len(allocator.taken)))
    return found


def test_every_call_runs_and_its_parts_are_counted(tmp_path):
    with stub_driver.start(tmp_path) as driver:
        found, events = driver.call(run_cases)
    assert len(found) > 12 and all(tensors == taken for _, tensors, _, taken in found), found
    # The schedule is made once more before the calls.
    assert len(select(events, "LaunchKernelEx")) == 1 + 2 * sum(launches for _, _, launches, _ in found)
