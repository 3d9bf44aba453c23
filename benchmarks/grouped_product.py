"""Grouped products under test: the common part of the grouped ops' benchmarks.

The reference of a group is that of a dense product. The peers compute the valid rows only: `cublaslt` is one dense
product of torch per group (a call's time is the sum over its kernels), `grouped_mm` is torch's own grouped product, if
this torch has one. On FP8 both apply no scales, or scales of 1, and therefore do less work.
"""

from collections.abc import Callable
from itertools import accumulate

import torch

from deep_gemm import _C
from deep_gemm.layout import get_mn_major_tma_aligned_tensor
from deep_gemm.quantize import per_block_cast_to_fp8, per_token_cast_to_fp8

from .dense_fp8 import SCALE_LAYOUTS
from .product import REFERENCE_ROWS, Product, multiply_rows

FP8 = torch.float8_e4m3fn
#: The errors of a torch that lacks an op or has it with another signature.
UNSUPPORTED = (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError)


#: Roles by layout of the m-grouped products, and what their peers compute.
M_GROUPED_ROLES = {
    "mn_major": ("best", "model", "heuristic"),
    "row_major": ("model",),
    "nt": ("best", "model", "heuristic"),
}
M_GROUPED_PEER = (
    "torch.mm, or torch._scaled_mm with scales of 1 and use_fast_accum=False, for each group; torch's grouped product"
    " beside it"
)


def make_m_grouped_problems(op: str, key: dict, m: int, **fields: object) -> dict[str, object]:
    """Return the problem of a key for each layout of A's scales (FP8), or as `nt` (BF16); `fields`: further ones."""
    layouts = SCALE_LAYOUTS if key["dtype"] == "fp8" else {"nt": "mn_major"}
    return {
        name: _C.Problem(op, m, key["n"], key["k"], num_groups=key["num_groups"], scale_layout=layout, **fields)
        for name, layout in layouts.items()
    }


class GroupedProduct(Product):
    """D_g = A_g @ B_g^T [+ C_g] for every group; D [rows, n] has `sizes[g]` rows of group g from row `starts[g]` on."""

    def __init__(self, d: torch.Tensor, c: torch.Tensor | None, starts: list[int], sizes: list[int]):
        super().__init__(None, None, None, None, d, c)
        self.starts, self.sizes = starts, sizes
        per_group = -(-REFERENCE_ROWS // len(sizes))
        self.local_rows = [torch.arange(0, size, max(1, size // per_group), device=d.device) for size in sizes]
        self.rows = torch.cat([rows + start for rows, start in zip(self.local_rows, starts, strict=True)])

    def get_group(self, group: int) -> tuple:
        """Return (A_g [m, k], its scales, B_g [n, k], its scales): nt views."""
        raise NotImplementedError

    def _make_reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [multiply_rows(*self.get_group(group), rows) for group, rows in enumerate(self.local_rows)]
        reference, sums_error = (torch.cat(part) for part in zip(*parts, strict=True))
        return reference, sums_error

    def call_each(self) -> Callable[[], object]:
        """Return a peer that runs one dense product of torch per group: `mm`, or `_scaled_mm` with scales of 1."""
        one = torch.ones((), device=self.d.device)
        pairs = [(a, b.t()) for a, _, b, _ in map(self.get_group, range(len(self.sizes)))]
        if pairs[0][0].dtype == FP8:
            options = {"scale_a": one, "scale_b": one, "out_dtype": self.d.dtype, "use_fast_accum": False}
            return lambda: [torch._scaled_mm(a, b, **options) for a, b in pairs]
        options = {} if self.d.dtype == torch.bfloat16 else {"out_dtype": self.d.dtype}
        return lambda: [torch.mm(a, b, **options) for a, b in pairs]

    def add_peer(self, peers: dict[str, Callable], name: str, call: Callable[[], object]) -> None:
        """Add a peer, or note why it does not run here."""
        try:
            call()
            peers[name] = call
        except UNSUPPORTED as error:  # another torch: the others are still measured
            self.absent[name] = f"{type(error).__name__}: {str(error)[:200]}"


class MGroupedProduct(GroupedProduct):
    """D_g [m_g, n] = A_g [m_g, k] @ B_g^T with B [num_groups, n, k]: random normal operands, FP8 ones with real scales
    in both layouts.

    a: [m, k] or [num_groups, max_m, k], given with its scales of one more dim (None: BF16); layouts are those of A's
        scales.
    """

    def __init__(self, shape: tuple[int, ...], key: dict, starts: list[int], sizes: list[int]):
        n, k, dtype = key["n"], key["k"], FP8 if key["dtype"] == "fp8" else torch.bfloat16
        self.operand_a, row_major = make_matrices(shape, k, dtype, per_token_cast_to_fp8)
        self.operand_b, self.scale_of_b = make_matrices((key["num_groups"], n), k, dtype, per_block_cast_to_fp8)
        self.operand_d = torch.empty(*shape, n, dtype=torch.bfloat16, device="cuda")
        super().__init__(self.operand_d.view(-1, n), None, starts, sizes)
        self.flat_a, self.flat_scale = (
            self.operand_a.view(-1, k),
            None if row_major is None else row_major.view(-1, row_major.shape[-1]),
        )
        self.scales = (
            {"nt": None}
            if row_major is None
            else {"mn_major": get_mn_major_tma_aligned_tensor(row_major), "row_major": row_major}
        )
        self.valid = torch.cat(
            [torch.arange(start, start + size, device="cuda") for start, size in zip(starts, sizes, strict=True)]
        )

    def get_group(self, group: int) -> tuple:
        """Return one group's valid rows of A and its B, with their scales."""
        rows = slice(self.starts[group], self.starts[group] + self.sizes[group])
        scale_a = None if self.flat_scale is None else self.flat_scale[rows]
        return (
            self.flat_a[rows],
            scale_a,
            self.operand_b[group],
            None if self.scale_of_b is None else self.scale_of_b[group],
        )

    def get_pairs(self, layout: str) -> tuple:
        """Return (A, B) as the public ops take them: with their scales where there are any."""
        if self.scale_of_b is None:
            return self.operand_a, self.operand_b
        return (self.operand_a, self.scales[layout]), (self.operand_b, self.scale_of_b)

    def call_peers(self) -> dict[str, Callable[[], object]]:
        """Return one dense product for each group, and torch's grouped product of the valid rows, packed."""
        peers: dict[str, Callable] = {"cublaslt": self.call_each()}
        packed = self.flat_a.view(torch.uint8)[self.valid].view(self.flat_a.dtype)
        offsets = torch.tensor(list(accumulate(self.sizes)), dtype=torch.int32, device="cuda")
        self.add_peer(peers, "grouped_mm", call_grouped_mm(packed, self.operand_b.transpose(1, 2), offsets))
        return peers


def call_grouped_mm(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> Callable[[], object]:
    """Return torch's grouped product: A [rows, k] with B [groups, k, n], or A [m, sum_k] with B [sum_k, n]; FP8 has
    scales of 1 for each row.
    """
    if a.dtype != FP8:
        return lambda: torch._grouped_mm(a, b, offs=offsets)
    times = 1 if b.dim() == 3 else offsets.shape[0]
    scale_a = torch.ones(a.shape[0] * times, device=a.device)
    scale_b = torch.ones(*((b.shape[0], b.shape[2]) if b.dim() == 3 else (b.shape[1] * times,)), device=a.device)
    return lambda: torch._scaled_grouped_mm(
        a, b, scale_a, scale_b, offs=offsets, out_dtype=torch.bfloat16, use_fast_accum=False
    )


def make_matrices(
    shape: tuple[int, ...], k: int, dtype: torch.dtype, cast: Callable, device: str = "cuda"
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return random normal [*shape, k] of `dtype` and, for FP8, the scales of every matrix, stacked; made one matrix at
    a time.
    """
    if len(shape) == 1:
        x = torch.randn(*shape, k, dtype=torch.float32 if dtype == FP8 else dtype, device=device)
        return cast(x, False) if dtype == FP8 else (x, None)
    values, scales = torch.empty(*shape, k, dtype=dtype, device=device), []
    for group in range(shape[0]):
        matrix, scale = make_matrices(shape[1:], k, dtype, cast, device)
        values[group].copy_(matrix)
        scales.append(scale)
    return values, None if dtype != FP8 else torch.stack(scales)
