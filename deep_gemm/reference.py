"""The ops on CPU tensors: what the kernels compute, in plain torch, for tests and for programs that run without a GPU.

All take A [m, k] and B [n, k] whatever their memory, have no checks of their own (the public ops make them), and round to the dtype of D
once, after FP32 sums. m = 0 or n = 0: nothing to write. k = 0: the product is 0.
"""

import torch

_SCALE_BLOCK = 128


@torch.no_grad()
def fp8_gemm(
    a: torch.Tensor,
    scale_a: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    recipe: str = "1d2d",
    head_splits: tuple[int, int, int] | None = None,
) -> None:
    """Compute d = alpha * (A @ B.T) + beta * c from scaled FP8 operands by the kernels' formula.

    Per 128 of K: partial = A @ B.T in FP32, final += (scale_a * scale_b) * partial, with scales per row after the last of them.

    Args:
        a: float8_e4m3fn [m, k]. b: float8_e4m3fn [n, k]. d: bfloat16 or float32 [m, n], written.
        scale_a: float32 [m, ceil(k / 128)], or [m] with recipe "per_row".
        scale_b: float32 [ceil(n / 128), ceil(k / 128)] ("1d2d"), [n, ceil(k / 128)] ("1d1d") or [n] ("per_row").
        c: [m, n] of the dtype of d, which it may be. alpha, beta: factors of the product and of c.
        head_splits: (left, mid, right): d is [m, heads * (left + mid + right)], and the mid columns of each head are left alone.
    """
    if recipe == "per_row":
        final = _sum_steps(a, b) * scale_a[:, None] * scale_b[None, :]
    else:
        columns = scale_b.repeat_interleave(_SCALE_BLOCK, dim=0)[: b.shape[0]] if recipe == "1d2d" else scale_b
        final = _sum_steps(a, b, scale_a, columns)
    if head_splits is None:
        _store(final, d, c, alpha, beta)
    else:
        _store_heads(final.mul_(alpha), d, head_splits)


@torch.no_grad()
def bf16_gemm(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0
) -> None:
    """Compute d = alpha * (A @ B.T) + beta * c from BF16 operands: FP32 sums, one rounding.

    Args:
        a: bfloat16 [m, k]. b: bfloat16 [n, k]. d: bfloat16 or float32 [m, n], written.
        c: [m, n] of the dtype of d, which it may be. alpha, beta: factors of the product and of c.
    """
    _store(a.float() @ b.float().t(), d, c, alpha, beta)


def _sum_steps(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None) -> torch.Tensor:
    """Return the FP32 sum over steps of 128 of K, scaled [m, steps] and [n, steps] where scales are given."""
    (m, k), n = a.shape, b.shape[0]
    final = torch.zeros(m, n, dtype=torch.float32, device=a.device)
    for step, start in enumerate(range(0, k, _SCALE_BLOCK)):
        block = slice(start, start + _SCALE_BLOCK)
        partial = a[:, block].float() @ b[:, block].float().t()
        if scale_a is None:
            final += partial
        else:
            final.addcmul_(scale_a[:, step, None] * scale_b[None, :, step], partial)
    return final


def _store(final: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float) -> None:
    final.mul_(alpha)
    d.copy_(final if c is None else final.add_(c.float(), alpha=beta))


def _store_heads(final: torch.Tensor, d: torch.Tensor, head_splits: tuple[int, int, int]) -> None:
    left, mid, right = head_splits
    heads = final.shape[1] // (left + right)
    source, target = final.unflatten(1, (heads, left + right)), d.unflatten(1, (heads, left + mid + right))
    target[:, :, :left].copy_(source[:, :, :left])
    target[:, :, left + mid :].copy_(source[:, :, left:])
