"""What the native runtime asks torch to do for a call, on its stream: memory for temporaries, small copies, and the
reference on the CPU or where no kernel is needed.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import cast

import torch

from deep_gemm import memory, reference, vendor
from deep_gemm.errors import ArgumentError


def find_allocator() -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]:
    """Return a function of shape, strides and dtype that takes memory on the current GPU and stream.

    The one behind torch's compiled graphs skips half of the host time of torch.empty_strided.
    """
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    fast = getattr(guards, "_empty_strided_cuda", None)
    if fast is not None:
        return fast
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


def empty_strided(shape: tuple, strides: tuple, dtype: torch.dtype, ordinal: int) -> torch.Tensor:
    """Return an uninitialised tensor on CUDA device `ordinal`, which is not the current one, for its current stream."""
    return torch.empty_strided(shape, strides, dtype=dtype, device=torch.device("cuda", ordinal))


def empty_fp8(rows: int, columns: int, ordinal: int, stream: int | None) -> torch.Tensor:
    """Return an uninitialised float8_e4m3fn [rows, columns] on CUDA device `ordinal`.

    The memory belongs to `stream` (a raw handle; None: the current one), so that it is reused only after the work
    enqueued there.
    """
    with _on_stream(stream, ordinal):
        return torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=torch.device("cuda", ordinal))


def make_logits(
    like: torch.Tensor, sizes: tuple, strides: tuple, is_bfloat16: bool, ordinal: int, stream: object
) -> torch.Tensor:
    """Return uninitialised logits on the device of `like`, for a call with `stream=` (a torch.cuda.Stream, a raw
    handle, or None) or with operands that are no tensors; memory as for empty_fp8.
    """
    dtype = torch.bfloat16 if is_bfloat16 else torch.float32
    if isinstance(like, torch.Tensor) and not like.is_cuda:
        return like.new_empty_strided(sizes, strides, dtype=dtype)
    handle = getattr(stream, "cuda_stream", stream)
    with _on_stream(cast(int | None, handle), ordinal):
        return torch.empty_strided(sizes, strides, dtype=dtype, device=torch.device("cuda", ordinal))


def fill_with_infinity(d: torch.Tensor, stream: int | None) -> None:
    """Write -inf into all of `d`; `stream` as for empty_fp8."""
    with _as_plain_tensors(d), _on_stream(stream, d.device.index or 0):
        d.fill_(float("-inf"))


def make_cpu_tensor(ks: list[int]) -> torch.Tensor:
    """Return `ks` as int32 [num_groups] on the CPU."""
    return torch.tensor(ks, dtype=torch.int32)


def make_ks_tensor(ks: list[int], ordinal: int, stream: int | None) -> torch.Tensor:
    """Return `ks` as int32 [num_groups] on CUDA device `ordinal`, copied on `stream` as for empty_fp8; waits for the
    copy.

    Raises: ArgumentError while the stream is captured: a graph can hold neither the host's numbers nor the wait.
    """
    with _on_stream(stream, ordinal):
        if torch.cuda.is_current_stream_capturing():
            raise ArgumentError(
                "ks_tensor = None: a captured call cannot copy ks to the GPU; pass ks_tensor, int32 on the GPU."
            )
        return torch.tensor(ks, dtype=torch.int32, device=torch.device("cuda", ordinal))


def copy_matrices(d: torch.Tensor, c: torch.Tensor, stream: int | None) -> None:
    """Copy `c` into `d`; `stream` as for empty_fp8."""
    with _as_plain_tensors(d), _on_stream(stream, d.device.index or 0):
        d.copy_(c)


def add_signals(
    signal: torch.Tensor, sizes: torch.Tensor, rows: int, block_rows: int, threshold: int, stream: int | None
) -> None:
    """Add `threshold` to the signal of every `block_rows` rows among the `rows` of each group that begin within the
    rows in use, which `sizes` says; `stream` as for run_reference.
    """
    with _as_plain_tensors(signal), _on_stream(stream, signal.device.index or 0):
        has_rows = torch.arange(0, rows, block_rows, device=signal.device) < sizes[:, None]
        signal.view(-1)[: has_rows.numel()].add_(has_rows.flatten() * threshold)


def run_reference(op: str, operands: dict, stream: int | None) -> None:
    """Run the reference of op kind `op` on `operands`, on their device.

    `stream` is as for empty_fp8, and ignored on the CPU.
    """
    d = operands["d"]
    with _as_plain_tensors(d), _on_stream(stream, d.device.index or 0):
        getattr(reference, op)(**operands)


def run_vendor(op: str, operands: dict, stream: int | None) -> None:
    """Compute op kind `op` with the vendor's library; all else as for run_reference."""
    d = operands["d"]
    with _as_plain_tensors(d), _on_stream(stream, d.device.index or 0):
        getattr(vendor, op)(**operands)


@contextlib.contextmanager
def _as_plain_tensors(d: torch.Tensor) -> Iterator[None]:
    """Let torch write `d` without recording a graph, and take subclasses of Tensor, of which two in one call would
    refuse each other, for what they hold.
    """
    with torch._C.DisableTorchFunctionSubclass(), memory.writing(d):
        yield


def _on_stream(stream: int | None, ordinal: int) -> contextlib.AbstractContextManager:
    if stream is None:
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=ordinal))
