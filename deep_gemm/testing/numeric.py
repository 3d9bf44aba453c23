"""Compare results and count bytes."""

import torch


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return 1 - 2<x, y> / (|x|^2 + |y|^2), computed in double: 0 for equal tensors, also where both are zero."""
    x, y = x.double(), y.double()
    denominator = (x * x + y * y).sum()
    if denominator == 0:
        return 0.0
    return float(1 - 2 * (x * y).sum() / denominator)


def count_bytes(*tensors) -> int:
    """Return the bytes of all elements of the tensors, also of those in nested tuples and lists; None counts as 0."""
    total = 0
    for tensor in tensors:
        if isinstance(tensor, (tuple, list)):
            total += count_bytes(*tensor)
        elif tensor is not None:
            total += tensor.numel() * tensor.element_size()
    return total


def assert_bitwise_equal(x: torch.Tensor, y: torch.Tensor, label: str = "") -> None:
    """Check that two tensors have the same shape, dtype and bits; NaNs of the same bits are equal, 0 and -0 are not.

    Raises: AssertionError that starts with `label` and names the first difference.
    """
    name = f"{label}: " if label else ""
    if x.shape != y.shape or x.dtype != y.dtype:
        raise AssertionError(f"{name}{x.dtype} {list(x.shape)} is compared with {y.dtype} {list(y.shape)}")
    different = (_bytes_of(x) != _bytes_of(y)).any(dim=-1)
    if not different.any():
        return
    first = int(different.flatten().nonzero()[0])
    index = [int(position) for position in torch.unravel_index(torch.tensor(first), x.shape)]
    values = f"{x.flatten()[first].item()} and {y.flatten()[first].item()}"
    raise AssertionError(f"{name}{int(different.sum())} of {x.numel()} elements differ, first {index}: {values}")


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    """Return the bytes of each element, in one more dim."""
    return x.contiguous().flatten().view(torch.uint8).view(*x.shape, x.element_size())
