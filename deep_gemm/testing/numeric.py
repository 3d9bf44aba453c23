"""Compare results and count bytes."""

import torch

from deep_gemm.arguments import shorten
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from deep_gemm.operands import check_numbers


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return 1 - 2<x, y> / (|x|^2 + |y|^2), computed in double: 0 for equal tensors, also where both are zero.

    Raises: ArgumentError, DtypeError, DeviceError; ShapeError for shapes that do not broadcast.
    """
    _check_comparable(x, y)
    try:
        torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        raise ShapeError(f"x, y = {list(x.shape)}, {list(y.shape)}: must be one shape; reshape them.") from None
    x, y = x.double(), y.double()
    denominator = (x * x + y * y).sum()
    if denominator == 0:
        return 0.0
    return float(1 - 2 * (x * y).sum() / denominator)


def count_bytes(*tensors) -> int:
    """Return the bytes of all elements of the tensors, also of those in nested tuples and lists; None counts as 0.

    Raises: ArgumentError for anything else.
    """
    total = 0
    for tensor in tensors:
        if isinstance(tensor, (tuple, list)):
            total += count_bytes(*tensor)
        elif tensor is not None and not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"{type(tensor).__name__}: must be a torch.Tensor, None or a list of them; pass these.")
        elif tensor is not None:
            total += tensor.numel() * tensor.element_size()
    return total


def assert_bitwise_equal(x: torch.Tensor, y: torch.Tensor, label: str = "") -> None:
    """Check that two tensors have the same shape, dtype and bits; NaNs of the same bits are equal, 0 and -0 are not.

    Raises: AssertionError that starts with `label` and names the first difference; ArgumentError, DeviceError.
    """
    for which, tensor in (("x", x), ("y", y)):
        check_numbers(which, tensor)
    if not isinstance(label, str):
        raise ArgumentError(f"label = {shorten(label)}: must be a str; pass text.")
    name = f"{label}: " if label else ""
    if x.shape != y.shape or x.dtype != y.dtype:
        raise AssertionError(f"{name}{x.dtype} {list(x.shape)} is compared with {y.dtype} {list(y.shape)}")
    if x.device != y.device:
        raise DeviceError(f"y is on {y.device} and x on {x.device}: must be on one device; move one with .to(...).")
    different = (_bytes_of(x) != _bytes_of(y)).any(dim=-1)
    if not different.any():
        return
    first = int(different.flatten().nonzero()[0])
    index = [int(position) for position in torch.unravel_index(torch.tensor(first), x.shape)]
    values = f"{x.flatten()[first].item()} and {y.flatten()[first].item()}"
    raise AssertionError(f"{name}{int(different.sum())} of {x.numel()} elements differ, first {index}: {values}")


def _check_comparable(x: torch.Tensor, y: torch.Tensor) -> None:
    for name, tensor in (("x", x), ("y", y)):
        check_numbers(name, tensor)
        if tensor.is_complex():
            raise DtypeError(f"{name}.dtype = {tensor.dtype}: must be real; compare torch.view_as_real of it.")
    if x.device != y.device:
        raise DeviceError(f"y is on {y.device} and x on {x.device}: must be on one device; move one with .to(...).")


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    """Return the bytes of each element, in one more dim."""
    x = x.resolve_conj().resolve_neg()  # what is conjugated or negated lazily has the bits of another tensor
    return x.contiguous().flatten().view(torch.uint8).view(*x.shape, x.element_size())
