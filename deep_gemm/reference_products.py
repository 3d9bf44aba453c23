"""What the ops of deep_gemm.reference are made of: products in FP32, and how they are written."""

import torch

from deep_gemm.quantize import SCALE_BLOCK


def multiply_fp8(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, recipe: str
) -> torch.Tensor:
    """Return A @ B.T in FP32 of operands as fp8_gemm takes them."""
    if recipe == "per_row":
        return sum_steps(a, b) * scale_a[:, None] * scale_b[None, :]
    columns = scale_b.repeat_interleave(SCALE_BLOCK, dim=0)[: b.shape[0]] if recipe == "1d2d" else scale_b
    return sum_steps(a, b, scale_a, columns)


def multiply_bf16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return A @ B.T in FP32."""
    return a.float() @ b.float().t()


def sum_steps(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the FP32 sum over steps of 128 of K, scaled [m, steps] and [n, steps] where scales are given."""
    (m, k), n = a.shape, b.shape[0]
    final = torch.zeros(m, n, dtype=torch.float32, device=a.device)
    for step, start in enumerate(range(0, k, SCALE_BLOCK)):
        block = slice(start, start + SCALE_BLOCK)
        partial = a[:, block].float() @ b[:, block].float().t()
        if scale_a is None or scale_b is None:
            final += partial
        else:
            final.addcmul_(scale_a[:, step, None] * scale_b[None, :, step], partial)
    return final


def store(final: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None, alpha: float = 1.0, beta: float = 1.0) -> None:
    """Write d = alpha * final + beta * c, rounded once; `final` is overwritten."""
    final.mul_(alpha)
    d.copy_(final if c is None else final.add_(c.float(), alpha=beta))


def store_heads(final: torch.Tensor, d: torch.Tensor, head_splits: tuple[int, int, int]) -> None:
    """Write `final` [m, heads * (left + right)] around the mid columns of each head of d."""
    left, mid, right = head_splits
    heads = final.shape[1] // (left + right)
    source, target = final.unflatten(1, (heads, left + right)), d.unflatten(1, (heads, left + mid + right))
    target[:, :, :left].copy_(source[:, :, :left])
    target[:, :, left + mid :].copy_(source[:, :, left:])
