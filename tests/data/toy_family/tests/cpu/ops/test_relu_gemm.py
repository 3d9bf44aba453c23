"""bf16_relu_gemm on the CPU against torch."""

import pytest
import torch

import deep_gemm
from deep_gemm.errors import LayoutError, ShapeError


@pytest.mark.parametrize("m, n, k", [(1, 8, 8), (64, 72, 136), (3, 16, 0)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_negative_elements_become_zero(m, n, k, dtype):
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
    d = torch.full((m, n), torch.nan, dtype=dtype)
    deep_gemm.bf16_relu_gemm_nt(a, b, d)
    torch.testing.assert_close(d, torch.relu(a.float() @ b.float().T).to(dtype))
    assert (d >= 0).all() and (k == 0 or (d > 0).any())


def test_operands_are_checked():
    a, b, d = torch.zeros(8, 16).bfloat16(), torch.zeros(8, 16).bfloat16(), torch.zeros(8, 8)
    with pytest.raises(ShapeError, match=r"^d\.shape"):
        deep_gemm.bf16_relu_gemm_nt(a, b, torch.zeros(8, 16))
    with pytest.raises(LayoutError, match="^b"):
        deep_gemm.bf16_relu_gemm_nt(a, torch.zeros(16, 8).bfloat16().T, d)
