"""Where tensors lie in memory, and how torch writes them for an op."""

import contextlib
from collections.abc import Iterator

import torch

from deep_gemm.errors import ArgumentError


def writing(*outputs: torch.Tensor) -> contextlib.AbstractContextManager:
    """Return the mode in which torch writes `outputs` without recording a graph, those made for inference or not, and
    computes in the dtypes of the formulas, also within autocast.
    """
    mode = torch.inference_mode() if any(d.is_inference() for d in outputs) else torch.no_grad()
    device = outputs[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):  # torch refuses the question of meta tensors
        return mode
    return _without_autocast(mode, device)


@contextlib.contextmanager
def _without_autocast(mode: contextlib.AbstractContextManager, device: str) -> Iterator[None]:
    with mode, torch.autocast(device, enabled=False):
        yield


def shares_memory(d: torch.Tensor) -> bool:
    """Return whether elements of a tensor may lie in one place: some dim steps less far than those within it reach. An
    empty one has none.
    """
    if 0 in d.shape:
        return False
    strides = sorted((stride, size) for size, stride in zip(d.shape, d.stride(), strict=True) if size > 1)
    extent = 1
    for stride, size in strides:
        if stride < extent:
            return True
        extent += stride * (size - 1)
    return False


def overlaps(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return whether the memory spans of two tensors meet; empty and meta tensors have none."""
    if x.is_meta or not (x.numel() and y.numel()):
        return False
    (x_first, x_end), (y_first, y_end) = _span(x), _span(y)
    return x_first < y_end and y_first < x_end


def _span(x: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    first = find_address(x)
    return first, first + (last + 1) * x.element_size()


def find_address(x: torch.Tensor) -> int:
    """Return where the numbers of a tensor begin in memory. Raises: ArgumentError where they lie nowhere."""
    try:
        address, reason = x.data_ptr(), "it is at 0"
    except RuntimeError as error:
        address, reason = 0, str(error)
    if address == 0 and x.numel() and not x.is_meta:  # a tensor of torch.func
        raise ArgumentError(
            f"a tensor of shape {list(x.shape)}: has no memory of its own, as within torch.vmap ({reason}); call the op"
            " outside of that, with plain tensors."
        )
    return address
