"""Outputs beside their inputs in one buffer: apart is fine, one element over either end is refused."""

import pytest
import torch

import deep_gemm
from deep_gemm.errors import LayoutError

ROWS, PITCH, K, N = 16, 256, 64, 96


def run(a_column: int, d_column: int) -> torch.Tensor:
    """Multiply with A and D as columns of one buffer, whose rows have PITCH elements; return the buffer's D."""
    buffer = torch.zeros((ROWS + 2) * PITCH, dtype=torch.bfloat16)
    a = buffer.as_strided((ROWS, K), (PITCH, 1), a_column)
    d = buffer.as_strided((ROWS, N), (PITCH, 1), d_column)
    a.copy_(torch.randn(ROWS, K))
    b, before = torch.randn(N, K).bfloat16(), a.clone()
    deep_gemm.bf16_gemm_nt(a, b, d)
    assert torch.equal(a, before)
    assert torch.allclose(d.float(), a.float() @ b.float().T, atol=0.2, rtol=0.02)
    return d


@pytest.mark.parametrize(
    "a_column, d_column", [(0, K), (0, PITCH - N), (N, 0), (PITCH - K, 0), (PITCH - K, PITCH - K - N)]
)
def test_columns_beside_each_other(a_column, d_column):
    run(a_column, d_column)


@pytest.mark.parametrize(
    "a_column, d_column", [(0, K - 8), (0, PITCH - N + 8), (N - 8, 0), (PITCH - K + 8, 0), (0, 0), (0, PITCH - 8)]
)
def test_columns_that_meet(a_column, d_column):
    with pytest.raises(LayoutError, match="d overlaps a"):
        run(a_column, d_column)


@pytest.mark.parametrize("is_a_first", [True, False])
def test_one_right_behind_the_other(is_a_first):
    """To the byte: the end of the one is the address of the other."""
    buffer = torch.zeros(ROWS * (K + N), dtype=torch.bfloat16)
    first, second = buffer.split([ROWS * K, ROWS * N] if is_a_first else [ROWS * N, ROWS * K])
    a, d = (first, second) if is_a_first else (second, first)
    a, d, b = a.view(ROWS, K), d.view(ROWS, N), torch.randn(N, K).bfloat16()
    a.copy_(torch.randn(ROWS, K))
    deep_gemm.bf16_gemm_nt(a, b, d)
    assert torch.allclose(d.float(), a.float() @ b.float().T, atol=0.2, rtol=0.02)
