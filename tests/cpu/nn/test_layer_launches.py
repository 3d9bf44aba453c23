"""What the ops of the layers launch, on the stub driver with tensors that say to be on a GPU: every operand passes the
checks of the public ops, whose messages a layer's user should never see.
"""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch

from deep_gemm.nn import dense_ops, grouped_ops, products
from tests.fakes.cuda_tensors import needs_exchange, use_fakes
from tests.fakes.stub_driver import select

BF16, FP8, FP32, INT32 = torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int32

pytestmark = [pytest.mark.full, needs_exchange]


@contextlib.contextmanager
def faked_torch() -> Iterator[Callable]:
    """Give a function that makes tensors of a shape and dtype; what the ops ask torch for on a GPU, memory and views of
    matrices as they are, works within.
    """
    allocator, make = use_fakes(), torch.empty

    def take(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
        return allocator.take(shape, make(shape, device="meta").stride(), dtype)

    def make_empty(*shape, dtype, device) -> torch.Tensor:
        return take(*(shape[0] if isinstance(shape[0], tuple) else shape), dtype=dtype)

    def pad(x: torch.Tensor, sides: tuple[int, ...]) -> torch.Tensor:
        return take(x.shape[0] + sides[3], x.shape[1], dtype=x.dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", make_empty)
        patch.setattr(torch.nn.functional, "pad", pad)
        patch.setattr(products, "_zero_rows", lambda data, first: None)
        for name in ("reshape", "view"):
            patch.setattr(torch.Tensor, name, lambda self, *shape: self)
        yield take


def run_dense(m: int, n: int, k: int, dtype: torch.dtype) -> list[tuple]:
    """Run the products of a layer whose weight trains; returns the shapes of the results."""
    with faked_torch() as take:
        weight = take(n, k, dtype=dtype)
        y = dense_ops._run_linear(take(m, k, dtype=dtype), weight, None, None, None, False, dtype)
        dx = dense_ops._run_dgrad(y, weight, None, dtype)
        dense_ops._run_wgrad_onto(y, take(m, k, dtype=dtype), take(n, k, dtype=FP32))
        return [tuple(one.shape) for one in (y, dx, dense_ops._run_wgrad(y, take(m, k, dtype=dtype), dtype))]


def run_stored(m: int, n: int, k: int) -> list[tuple]:
    """Run the products of a stored weight behind SwiGLU."""
    with faked_torch() as take:
        weight = torch.nn.Parameter(take(n, k, dtype=FP8), requires_grad=False)
        scale = torch.nn.Parameter(take(-(-n // 128), -(-k // 128), dtype=FP32), requires_grad=False)
        y = dense_ops._run_linear(take(m, 2 * k), weight, scale, None, None, True, BF16)
        return [tuple(one.shape) for one in (y, dense_ops._run_dgrad(y, weight, scale, FP32))]


def run_groups(groups: int, m: int, n: int, k: int) -> list[tuple]:
    """Run the products of groups of rows that lie one after the other."""
    with faked_torch() as take:
        ends, weight, d = take(groups, dtype=INT32), take(groups, n, k), take(groups, n, k, dtype=FP32)
        y = grouped_ops._run_grouped(take(m, 2 * k), weight, None, ends, None, True, BF16)
        dx = grouped_ops._run_dgrad(y, weight, None, ends, FP32)
        grouped_ops._run_wgrad_onto(y, dx, ends, d)
        return [tuple(one.shape) for one in (y, dx, grouped_ops._run_wgrad(y, dx, ends, FP32))]


def run_masked(groups: int, m: int, n: int, k: int) -> list[tuple]:
    """Run the product of groups with room."""
    with faked_torch() as take:
        weight, masked_m = take(groups, n, k), take(groups, dtype=INT32)
        return [tuple(grouped_ops._run_masked(take(groups, m, k), weight, None, masked_m, 3, False, BF16).shape)]


# Launches: casts and transposes of operands, and one product each.
@pytest.mark.parametrize("run, sizes, shapes, launches", [
    (run_dense, (127, 144, 272, BF16), [(127, 144), (127, 272), (144, 272)], 15),
    (run_dense, (1, 256, 512, FP32), [(1, 256), (1, 512), (256, 512)], 15),
    (run_dense, (0, 64, 128, BF16), [(0, 64), (0, 128), (64, 128)], 2),  # the weight alone is quantised, twice
    (run_stored, (37, 48, 144), [(37, 48), (37, 144)], 5),
    (run_stored, (0, 64, 128), [(0, 64), (0, 128)], 0),
    (run_groups, (3, 512, 144, 272), [(512, 144), (512, 272), (3, 144, 272)], 15),
    (run_masked, (6, 64, 256, 512), [(6, 64, 256)], 3),
    (run_masked, (6, 3, 48, 144), [(6, 3, 48)], 3),
])  # fmt: skip
def test_operands_of_every_size_pass_the_checks(driver, run, sizes, shapes, launches):
    found, events = driver.call(run, *sizes)
    assert found == shapes and len(select(events, "LaunchKernelEx")) == launches
