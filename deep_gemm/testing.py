"""Compare results, count bytes and time functions on the GPU, under the names of DeepGEMM's `deep_gemm.testing`."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator

import torch

from deep_gemm.errors import ArgumentError

# Larger than any L2 (an H200's has 60 MB), so that reading it leaves nothing of what was there before.
_FLUSH_BYTES = 512 << 20


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


def get_arch_major() -> int:
    """Return the major compute capability of the current GPU, e.g. 9."""
    return torch.cuda.get_device_capability()[0]


def bench(fn: Callable[[], object], num_warmups: int = 5, num_tests: int = 10, high_precision: bool = False) -> float:
    """Return the mean seconds of `fn` between two CUDA events around `num_tests` calls, after `num_warmups` calls.

    `high_precision` first queues about 10 ms of other work, so that the host's launch times hide behind it.
    """
    _make_flush_buffer().sum()
    for _ in range(num_warmups):
        fn()
    if high_precision:
        _occupy_gpu()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(num_tests):
        fn()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / num_tests / 1e3


def bench_kineto(
    fn: Callable[[], object],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    with_multiple_kernels: bool = False,
) -> float | tuple[float, ...]:
    """Return the mean seconds of the GPU kernels whose names contain `kernel_names`, as the profiler measures them.

    Args:
        fn: called `num_tests` times under the profiler, after as many warm-up calls.
        kernel_names: one substring, or a tuple of them for a tuple of results.
        suppress_kineto_output: silence the profiler's own messages.
        trace_path: where to write a Chrome trace, if anywhere.
        flush_l2: read a buffer larger than the L2 before each call (clean and cold, as for a weight not used before).
        with_multiple_kernels: a name may match several kernels of a call; their times are added up.

    Raises: ArgumentError where a name matches no kernel, or several without `with_multiple_kernels`.
    """
    names = (kernel_names,) if isinstance(kernel_names, str) else tuple(kernel_names)
    with _silence(suppress_kineto_output):
        profiler = _profile(fn, num_tests, _make_flush_buffer() if flush_l2 else None)
    if trace_path is not None:
        profiler.export_chrome_trace(trace_path)
    seconds = tuple(kernel_seconds(profiler.key_averages(), name, num_tests, with_multiple_kernels) for name in names)
    return seconds[0] if isinstance(kernel_names, str) else seconds


def kernel_seconds(averages: Iterable, name: str, num_tests: int, with_multiple_kernels: bool) -> float:
    """Return the mean seconds of the kernels whose key contains `name`, from the profiler's averages (microseconds)."""
    matches = [event for event in averages if name in event.key and event.self_device_time_total > 0]
    if not matches:
        raise ArgumentError(
            f"kernel_names = {name!r}: no kernel of this name ran; check the name, and that fn launches on the GPU."
        )
    if len(matches) > 1 and not with_multiple_kernels:
        keys = ", ".join(event.key for event in matches)
        raise ArgumentError(
            f"kernel_names = {name!r}: matches several kernels ({keys}); narrow it or pass with_multiple_kernels=True."
        )
    total_us = sum(event.self_device_time_total for event in matches)
    calls = num_tests if with_multiple_kernels else matches[0].count
    return total_us / calls / 1e6


def _profile(fn: Callable[[], object], num_tests: int, flush_buffer: torch.Tensor | None):
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA], schedule=schedule, acc_events=True
    ) as profiler:
        for _ in range(2):
            for _ in range(num_tests):
                if flush_buffer is not None:
                    flush_buffer.sum()
                fn()
            torch.cuda.synchronize()
            profiler.step()
    return profiler


def _make_flush_buffer() -> torch.Tensor:
    """Return a buffer to read: writing one would leave dirty lines whose write-back slows down what comes next."""
    buffer = torch.zeros(_FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    return buffer


def _occupy_gpu() -> None:
    x = torch.randn(8192, 8192, dtype=torch.float32, device="cuda")
    x @ x


@contextlib.contextmanager
def _silence(is_on: bool) -> Iterator[None]:
    """Send the process's stdout and stderr to nowhere; the profiler writes past Python's."""
    if not is_on:
        yield
        return
    saved = [os.dup(1), os.dup(2)]
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 1), os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved[0], 1), os.dup2(saved[1], 2)
        for descriptor in (*saved, null):
            os.close(descriptor)
