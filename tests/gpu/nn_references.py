"""What layers compute, written once more from the definition: values and scales of each operand, FP32 products."""

import contextlib
from collections.abc import Iterator

import torch

from deep_gemm.quantize import per_block_cast_to_fp8, per_token_cast_to_fp8


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Fill memory that torch does not initialise with NaN, so that what no product wrote shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def round_rows(x: torch.Tensor) -> torch.Tensor:
    """Return x [..., m, k] after the rounding of an operand with a scale for each row and 128 columns."""
    values, scales = per_token_cast_to_fp8(x.float(), use_ue8m0=False)
    return values.float() * scales.repeat_interleave(128, -1)[..., : x.shape[-1]]


def round_columns(x: torch.Tensor) -> torch.Tensor:
    """Return x [m, k] after the rounding of an operand with a scale for each column and 128 rows."""
    return round_rows(x.t().contiguous()).t()


def round_blocks(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight [..., n, k] after the rounding with a scale for each 128 x 128."""
    values, scales = per_block_cast_to_fp8(weight.float(), use_ue8m0=False)
    wide = scales.repeat_interleave(128, -1).repeat_interleave(128, -2)
    return values.float() * wide[..., : weight.shape[-2], : weight.shape[-1]]


def multiply(x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return (y, dx, dw) of y = x @ weight.T with rounded operands, in FP32; x [m, k], weight [n, k], grad [m, n]."""
    rounded = round_blocks(weight)
    dw = round_columns(grad).t() @ round_columns(x) if len(x) else torch.zeros_like(weight)
    return round_rows(x) @ rounded.t(), round_rows(grad) @ rounded, dw
