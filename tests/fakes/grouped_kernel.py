"""_C.Kernel of a grouped op on the CPU, for the GPU suite's own tests: multiplies group by group in float64, right or
wrong as a test wants.
"""

import torch

from deep_gemm.numerics import widen
from deep_gemm.stream import add_signals


class FakeGroupedKernel:
    """_C.Kernel: the rounded products of the dequantised operands; `fault(kernel, d)` spoils them afterwards."""

    max_clusters, local_bytes = 0, 0

    def __init__(self, problem, config, fault=None):
        self.problem, self.config, self.fault, self.count = problem, config, fault, 0

    def launch(self, a, scale_a, b, scale_b, d, c=None, *, groups, num_sms=0, signal=None, stream=None) -> None:
        """Multiply at once; num_sms and stream change nothing here."""
        assert (c is None) == (self.problem.c_mode == "none") and (scale_a is None) == (scale_b is None) == (
            "fp8" not in self.problem.op
        )
        assert groups.dtype == torch.int32 and (c is d) == (self.problem.c_mode == "accumulate")
        if self.problem.op.startswith("k_grouped"):
            self._add_groups(a, scale_a, b, scale_b, d, c, groups.tolist())
        elif self.problem.op.endswith("masked"):
            for group, size in enumerate(groups.clamp(0, a.shape[1]).tolist()):
                scales = (None, None) if scale_a is None else (scale_a[group, :size], scale_b[group])
                d[group, :size] = multiply(a[group, :size], scales[0], b[group], scales[1]).to(d.dtype)
        else:
            self._select_rows(a, scale_a, b, scale_b, d, groups)
        if signal is not None:
            add_signals(signal, groups, a.shape[1], 64, 8 * -(-d.shape[-1] // 8), None)
        self.count += 1
        if self.fault is not None:
            self.fault(self, d)

    def _select_rows(self, a, scale_a, b, scale_b, d, groups) -> None:
        d.zero_()
        for group in range(b.shape[0]):
            rows = (groups == group).nonzero().flatten()
            scales = (None, None) if scale_a is None else (scale_a[rows], scale_b[group])
            picked = a.view(torch.uint8 if a.element_size() == 1 else torch.int16)[rows].view(a.dtype)
            d[rows] = multiply(picked, scales[0], b[group], scales[1]).to(d.dtype)

    def _add_groups(self, a, scale_a, b, scale_b, d, c, ks) -> None:
        (m, n), start = d.shape[1:], 0
        if self.problem.group_layout == "blocks":
            a, b = join_blocks(a, m, ks), join_blocks(b, n, ks)
        wide_a, wide_b = widen(a, scale_a, torch.float64), widen(b, scale_b, torch.float64)
        for group, k in enumerate(ks):
            product = wide_a[:, start : start + k] @ wide_b[:, start : start + k].T
            d[group] = (product if c is None else product + c[group].double()).to(d.dtype)
            start += k


def multiply(a, scale_a, b, scale_b) -> torch.Tensor:
    """Return A @ B^T of the dequantised operands in FP64."""
    return widen(a, scale_a, torch.float64) @ widen(b, scale_b, torch.float64).T


def join_blocks(blocks: torch.Tensor, rows: int, ks: list[int]) -> torch.Tensor:
    """Return the 1-D concatenation of contiguous [rows, K_g] as one [rows, sum_k]."""
    parts = blocks.view(torch.uint8).split([rows * k for k in ks])
    return torch.cat([part.view(rows, k) for part, k in zip(parts, ks, strict=True)], dim=1).view(blocks.dtype)
