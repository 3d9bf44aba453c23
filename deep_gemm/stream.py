"""What the native runtime has torch do on the stream of a call: memory for temporaries, and the reference where no kernel is needed."""

import contextlib

import torch

from deep_gemm import reference


def empty_fp8(rows: int, columns: int, ordinal: int, stream: int | None) -> torch.Tensor:
    """Return an uninitialised float8_e4m3fn [rows, columns] on CUDA device `ordinal`.

    The memory belongs to `stream` (a raw handle; None: the current one), so that it is reused only after the work enqueued there.
    """
    with _on_stream(stream, ordinal):
        return torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=torch.device("cuda", ordinal))


def run_reference(op: str, operands: dict, stream: int | None) -> None:
    """Run the reference of op kind `op` on `operands`, wherever they are; `stream` as for empty_fp8, of no meaning on the CPU."""
    device = operands["d"].device
    with _on_stream(stream, device.index or 0):
        getattr(reference, op)(**operands)


def _on_stream(stream: int | None, ordinal: int) -> contextlib.AbstractContextManager:
    if stream is None:
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=ordinal))
