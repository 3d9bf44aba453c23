"""Public ops on the emulator: the library checks, chooses, compiles and launches as on a GPU, on tensors of the CPU.

Functions here run in the child process of the stub driver.
"""

import torch

import deep_gemm
from tests.gpu.operands import FP8, make_reference, quantise_blocks, quantise_rows

from .host import use_host_memory, view


def run_gemm(m: int, n: int, k: int) -> float:
    """Run fp8_gemm_nt; return the largest error relative to the sum of magnitudes."""
    use_host_memory()
    a, b = quantise_rows(torch.randn(m, k)), quantise_blocks(torch.randn(n, k))
    d = torch.full((m, n), torch.nan, dtype=torch.bfloat16)
    deep_gemm.fp8_gemm_nt(view(a), view(b), view(d), stream=0)
    return _error(d, *make_reference(*a, *b))


def run_sum(b: int, m: int, n: int, k: int) -> float:
    """Run einsum("bmk,bnk->mn"), whose parts another kernel adds up; return the error as run_gemm."""
    use_host_memory()
    x, y = torch.randn(b, m, k).bfloat16(), torch.randn(b, n, k).bfloat16()
    d = torch.full((m, n), torch.nan)
    deep_gemm.einsum("bmk,bnk->mn", view(x), view(y), view(d), stream=0)
    wide_x, wide_y = x.double(), y.double()
    return _error(
        d, torch.einsum("bmk,bnk->mn", wide_x, wide_y), torch.einsum("bmk,bnk->mn", wide_x.abs(), wide_y.abs())
    )


def run_batches(heads: int, tokens: int, r: int, d: int) -> float:
    """Run fp8_einsum("bhd,hdr->bhr"), which transposes an operand first; return the error as run_gemm."""
    use_host_memory()
    x, y = torch.randn(tokens, heads, d).to(FP8), torch.randn(heads, d, r).to(FP8)
    scale_x, scale_y = torch.rand(tokens, heads, d // 128) + 0.5, torch.rand(heads, d // 128, r // 128) + 0.5
    out = torch.full((tokens, heads, r), torch.nan, dtype=torch.bfloat16)
    deep_gemm.fp8_einsum("bhd,hdr->bhr", view((x, scale_x)), view((y, scale_y)), view(out), stream=0)
    wide_x = x.double() * scale_x.double().repeat_interleave(128, 2)
    wide_y = y.double() * scale_y.double().repeat_interleave(128, 1).repeat_interleave(128, 2)
    return _error(
        out, torch.einsum("bhd,hdr->bhr", wide_x, wide_y), torch.einsum("bhd,hdr->bhr", wide_x.abs(), wide_y.abs())
    )


def _error(d: torch.Tensor, reference: torch.Tensor, magnitude: torch.Tensor) -> float:
    error = (d.double() - reference).abs() - 2.0**-8 * (d.dtype == torch.bfloat16) * reference.abs()
    return float((error / magnitude).max()) if not bool(d.isnan().any()) else torch.inf
