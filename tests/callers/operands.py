"""Operands of the programs, and the products that they check against: of what the operands hold, in FP64."""

from collections.abc import Callable

import torch

import deep_gemm
from deep_gemm.testing import calc_diff

#: For BF16 results on random data.
LIMIT = 1e-5


def make(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return random numbers, the same in every run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


def per_row(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return FP8 and scales per row and 128 columns."""
    return deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False)


def per_block(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return FP8 and scales per block of 128 x 128."""
    return deep_gemm.per_block_cast_to_fp8(x, use_ue8m0=False)


def restore(pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return what an FP8 pair stands for, in FP64."""
    data, scales = pair
    for dim in (-2, -1):
        if scales.shape[dim] != data.shape[dim]:
            scales = scales.repeat_interleave(128, dim)
    return data.double() * scales[..., : data.shape[-2], : data.shape[-1]].double()


def check(found: torch.Tensor, expected: torch.Tensor, limit: float = LIMIT) -> None:
    """Compare a result with what it should be."""
    assert found.isfinite().all() and found.shape == expected.shape
    difference = calc_diff(found, expected)
    assert difference < limit, f"calc_diff = {difference}"


def expect_refusal(call: Callable[[], object], *texts: str) -> None:
    """Check that a call raises RuntimeError, which callers catch, with these texts."""
    try:
        call()
    except RuntimeError as error:
        message = str(error)
    else:
        raise AssertionError("the call was accepted")
    assert all(text in message for text in texts), message


def make_groups(rows: list[int], alignment: int, device: str, total: int | None = None) -> torch.Tensor:
    """Return m_indices for groups of so many rows, padded with -1."""
    parts = []
    for group, count in enumerate(rows):
        padded = deep_gemm.align(count, alignment)
        parts += [group] * count + [-1] * (padded - count)
    parts += [-1] * ((total or len(parts)) - len(parts))
    return torch.tensor(parts[: total or len(parts)], dtype=torch.int32, device=device)


def multiply_groups(a: torch.Tensor, b: torch.Tensor, m_indices: torch.Tensor) -> torch.Tensor:
    """Return the product of each row of a [m, k] with the matrix of its group of b [groups, n, k]; padding gives 0."""
    products = torch.einsum("mk,gnk->gmn", a.double(), b.double())
    chosen = products[m_indices.clamp(min=0).long(), torch.arange(a.shape[0], device=a.device)]
    return chosen * (m_indices >= 0)[:, None]
