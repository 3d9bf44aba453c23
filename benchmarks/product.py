"""One product under test: operands on the GPU, D, and a reference for rows spread over it."""

from collections.abc import Callable
from types import ModuleType

import torch

import deep_gemm
from deep_gemm.numerics import get_sums_error, make_bound, widen
from deep_gemm.quantize import SCALE_BLOCK

#: Rows of D compared with the float64 reference; variants without split K are compared with each other bit by bit.
REFERENCE_ROWS = 32
#: Rows of B that are widened to float64 at once: the vocabulary's weight would take 7 GB.
REFERENCE_COLUMNS = 8192


class Product:
    """D = A @ B^T [+ C] with scales or without; subclasses say how the op, a kernel and the vendor's product are
    called.

    a [m, k], b [n, k]: nt views; scale_a, scale_b: as deep_gemm.numerics.widen takes them; d [m, n]; c: what D holds
    before each call that is checked, None for NaN.
    """

    def __init__(
        self, a: torch.Tensor, scale_a, b: torch.Tensor, scale_b, d: torch.Tensor, c: torch.Tensor | None = None
    ):
        self.a, self.scale_a, self.b, self.scale_b, self.d, self.c = a, scale_a, b, scale_b, d, c
        self.rows = torch.arange(0, d.shape[0], max(1, d.shape[0] // REFERENCE_ROWS), device=d.device)
        #: Peers that do not run here, and why.
        self.absent: dict[str, str] = {}
        self._reference: tuple[torch.Tensor, torch.Tensor] | None = None

    def call_op(self, layout: str, package: ModuleType = deep_gemm) -> Callable[[], object]:
        """Return the public op on these operands, of `package`: one with the same names and arguments."""
        raise NotImplementedError

    def call_kernel(self, kernel, layout: str) -> Callable[[], object]:
        """Return one loaded kernel on these operands."""
        raise NotImplementedError

    def call_peers(self) -> dict[str, Callable[[], object]]:
        """Return the yardsticks: `cublaslt`, and what else there is to compare with."""
        raise NotImplementedError

    def get_output(self, layout: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the (D, C) of a layout; every layout has the same unless a subclass says otherwise."""
        return self.d, self.c

    def get_compared(self, layout: str) -> torch.Tensor:
        """Return what every config must write alike, bit by bit: the layout's D unless a subclass says otherwise."""
        return self.get_output(layout)[0]

    def reset(self, layout: str) -> None:
        """Fill the layout's D with NaN, or with C."""
        d, c = self.get_output(layout)
        if c is None:
            d.fill_(float("nan"))
        else:
            d.copy_(c)

    def is_right(self, layout: str) -> bool:
        """Return whether a call has left in the layout's D what this library promises."""
        return self.are_rows_right(layout)

    def are_rows_right(self, layout: str) -> bool:
        """Return whether rows spread over the layout's D lie within the bound of every element."""
        if self._reference is None:
            self._reference = self._make_reference()
        (d, c), (reference, sums_error) = self.get_output(layout), self._reference
        if c is not None:
            reference = reference + c[self.rows].double()
        bound = make_bound(reference, sums_error, d.dtype)
        return bool(((d[self.rows].double() - reference).abs() <= bound).all())

    def _make_reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return A @ B^T of the reference rows in float64, and the error of its sums."""
        return multiply_rows(self.a, self.scale_a, self.b, self.scale_b, self.rows)


def multiply_rows(
    a: torch.Tensor, scale_a, b: torch.Tensor, scale_b, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A @ B^T of some rows of A in float64 and the error of its sums (deep_gemm.numerics.make_bound); A [m, k]
    and B [n, k] with scales as `widen` takes them.
    """
    some = a.view(torch.uint8)[rows].view(a.dtype) if a.element_size() == 1 else a[rows]
    wide_a = widen(some, None if scale_a is None else scale_a[rows], torch.float64)
    parts = [_multiply_columns(wide_a, b, scale_b, start) for start in range(0, b.shape[0], REFERENCE_COLUMNS)]
    reference, magnitude = (torch.cat(part, 1) for part in zip(*parts, strict=True))
    return reference, get_sums_error(a.dtype, a.shape[1]) * magnitude


def _multiply_columns(
    wide_a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor | None, start: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (A @ B^T, |A| @ |B|^T) of REFERENCE_COLUMNS columns (a multiple of the scales' blocks) from `start` on."""
    if scale is not None:
        per_block = 1 if scale.shape[0] == b.shape[0] else SCALE_BLOCK
        scale = scale[start // per_block : (start + REFERENCE_COLUMNS) // per_block]
    wide_b = widen(b[start : start + REFERENCE_COLUMNS], scale, torch.float64)
    return wide_a @ wide_b.T, wide_a.abs() @ wide_b.abs().T


def find_wrong(product: Product, calls: dict[str, Callable], splits: dict[str, int]) -> list[str]:
    """Run every variant once; return those outside the bound, and those without split K whose bits are not those of the
    first with this D.
    """
    first: dict[torch.dtype, torch.Tensor] = {}
    wrong = []
    for name, call in calls.items():
        layout = name.rpartition(" ")[2]
        product.reset(layout)
        try:
            call()
            is_right = product.is_right(layout)
        except Exception as error:  # the variant's fault is data, the others are still measured
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        bits = _bits(product.get_compared(layout))
        if not is_right:
            wrong.append(name)
        elif splits.get(name, 1) == 1 and not torch.equal(bits, first.setdefault(bits.dtype, bits.clone())):
            wrong.append(f"{name}: other bits")
    return wrong


def _bits(d: torch.Tensor) -> torch.Tensor:
    return d.view(torch.int16 if d.element_size() == 2 else torch.int32)
