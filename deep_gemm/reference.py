"""The ops on CPU tensors: what the kernels compute, in plain torch, for tests and for programs that run without a GPU."""

import torch

_SCALE_BLOCK = 128


@torch.no_grad()
def fp8_gemm_nt(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, d: torch.Tensor, alpha: float = 1.0
) -> None:
    """Compute d = alpha * (A @ B.T) from block-scaled FP8 operands by the kernels' formula.

    Per 128 of K: partial = A @ B.T in FP32, final += (scale_a * scale_b) * partial; then d = round(alpha * final), once.
    Operands are expected to have passed the checks of the public op.

    Args:
        a: float8_e4m3fn [m, k]. b: float8_e4m3fn [n, k]. d: bfloat16 [m, n], written.
        scale_a: float32 [m, ceil(k / 128)]. scale_b: float32 [ceil(n / 128), ceil(k / 128)].
        alpha: factor of the product.

    m = 0 or n = 0: nothing to write. k = 0: d becomes 0.
    """
    (m, k), n = a.shape, b.shape[0]
    column_scales = scale_b.repeat_interleave(_SCALE_BLOCK, dim=0)[:n]
    final = torch.zeros(m, n, dtype=torch.float32, device=a.device)
    for step, start in enumerate(range(0, k, _SCALE_BLOCK)):
        block = slice(start, start + _SCALE_BLOCK)
        partial = a[:, block].float() @ b[:, block].float().t()
        final.addcmul_(scale_a[:, step, None] * column_scales[None, :, step], partial)
    d.copy_(final.mul_(alpha))
