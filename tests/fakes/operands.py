"""Operands of the op on the CPU, and the FP64 product that its results are compared with."""

import contextlib
from collections.abc import Callable, Iterator

import torch

from deep_gemm.numerics import LONG_FP8_SUMS, make_bound, widen
from deep_gemm.quantize import align, ceil_div


def make_fp8(rows: int, columns: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return a random FP8 matrix with rows at a pitch of 16 bytes."""
    values = torch.randn(rows, align(columns, 16), generator=generator).mul_(2.0).to(torch.float8_e4m3fn)
    return values if columns == values.shape[1] else values[:, :columns]


def make_operands(m: int, n: int, k: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return (a, scale_a, b, scale_b) of random data."""
    generator = torch.Generator().manual_seed(seed)
    steps, blocks = ceil_div(k, 128), ceil_div(n, 128)
    scale_a = torch.rand(m, steps, generator=generator) + 0.5
    scale_b = torch.rand(blocks, steps, generator=generator) + 0.5
    return make_fp8(m, k, generator), scale_a, make_fp8(n, k, generator), scale_b


def make_output(m: int, n: int) -> torch.Tensor:
    """Return a D full of NaN, with rows at a pitch of 16 bytes."""
    return torch.full((m, align(n, 8)), float("nan"), dtype=torch.bfloat16)[:, :n]


def make_reference(a, scale_a, b, scale_b) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (A @ B.T, |A| @ |B|.T) of the dequantised operands in FP64."""
    x, y = widen(a, scale_a, torch.float64), widen(b, scale_b, torch.float64)
    return x @ y.t(), x.abs() @ y.abs().t()


def count_wrong(
    d: torch.Tensor, reference: torch.Tensor, magnitude: torch.Tensor, sums_error: float = LONG_FP8_SUMS
) -> int:
    """Return how many elements of D lie outside their bound; sums_error: t of deep_gemm.numerics."""
    error = (d.double() - reference).abs()
    return int((~(error <= make_bound(reference, sums_error * magnitude, d.dtype))).sum())


@contextlib.contextmanager
def forgetting(forget: Callable[[], None]) -> Iterator[None]:
    """Call `forget`, e.g. plan.forget, before and after: no test sees another's."""
    forget()
    try:
        yield
    finally:
        forget()
