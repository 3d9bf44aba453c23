"""What functions in Python ask of their arguments before they look at them more closely."""

from typing import Any

import torch

from deep_gemm.arguments import shorten
from deep_gemm.errors import ArgumentError, DeviceError


def check_tensor(name: str, value: Any) -> None:
    """Raise ArgumentError unless `value` is a tensor with plain strided memory, or one that is only traced."""
    if not isinstance(value, torch.Tensor):
        raise ArgumentError(f"{name} = {type(value).__name__}: must be a torch.Tensor; pass one.")
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        raise ArgumentError(f"{name}: a tensor without plain strided numbers; pass a dense tensor.")
    if not torch.compiler.is_compiling() and is_freed(value):
        raise ArgumentError(f"{name}: a tensor without memory, its storage was freed; restore it before the call.")


def is_freed(tensor: torch.Tensor) -> bool:
    """Return whether the storage of a tensor with elements was freed, as sharded training leaves weights. Tensors that
    are only traced, and wrappers, have none.
    """
    is_plain = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__ and not is_fake(tensor)
    if not is_plain or tensor.is_meta or tensor.numel() == 0:
        return False
    try:
        return tensor.untyped_storage().data_ptr() == 0
    except (NotImplementedError, RuntimeError):  # a tensor of torch.func
        return False


def is_fake(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has sizes but no memory."""
    return hasattr(tensor, "fake_mode")


def record(name: str, *arguments: object) -> Any:
    """Put a call of the public op `name` on fake tensors into the graph that is being recorded, and return what it
    returns there; None where no graph is recorded.
    """
    from deep_gemm import tracing  # which imports all ops

    return tracing.get_recorder(name)(*arguments) if tracing.is_recording() else None


def check_plain(name: str, value: Any) -> None:
    """Raise ArgumentError unless `value` is such a tensor with memory of its own, or one that is only traced."""
    check_tensor(name, value)
    if value.is_meta or is_fake(value) or torch.compiler.is_compiling():
        return
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise ArgumentError(
            f"{name} = a {type(value).__name__}: wrapper tensors are not supported; pass the plain torch.Tensor inside."
        )


def check_written(name: str, value: torch.Tensor) -> None:
    """Raise ArgumentError where a graph would have to record that `value` is written."""
    if value.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"{name}.requires_grad = True: it is written, and no graph is recorded; call this op under"
            f" torch.no_grad(), or pass {name}.detach()."
        )


def check_numbers(name: str, value: Any) -> None:
    """Raise ArgumentError unless `value` is such a tensor, whose numbers can be read."""
    check_tensor(name, value)
    if value.is_meta:
        raise ArgumentError(f"{name}: a meta tensor holds no numbers; pass a tensor with memory.")


def check_device(name: str, value: Any) -> torch.device | None:
    """Return the device that `value` names; None for None. Raises: ArgumentError, DeviceError where it is not there."""
    if value is None:
        return None
    try:
        device = torch.device(value)
    except Exception:
        raise ArgumentError(
            f"{name} = {shorten(value)}: must be a torch.device or its name; pass 'cpu' or 'cuda', for example."
        ) from None
    try:
        torch.empty(0, device=device)
    except Exception as error:  # of many types, by what torch lacks
        reason = str(error).partition("\n")[0][:120]
        raise DeviceError(f"{name} = {device}: torch cannot use it ({reason}); pass another device.") from error
    return device


def check_gpu(name: str) -> None:
    """Raise DeviceError where torch has no GPU, which the function `name` needs."""
    if not torch.cuda.is_available():
        raise DeviceError(f"{name}: needs a GPU, and torch finds none; call it on a machine with one.")
