"""Time functions and kernels on the GPU."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator

import torch

from deep_gemm import _C
from deep_gemm.arguments import check_integer, shorten
from deep_gemm.errors import ArgumentError
from deep_gemm.operands import check_gpu

# Larger than any L2 (an H200's has 60 MB), so that reading it leaves nothing of what was there before.
_FLUSH_BYTES = 512 << 20

# Cycles that a GPU waits before a barrier: about 10 ms, longer than the ranks' hosts are apart.
_WAIT_CYCLES = 20_000_000


def bench(fn: Callable[[], object], num_warmups: int = 5, num_tests: int = 10, high_precision: bool = False) -> float:
    """Return the mean seconds of `fn` between two CUDA events around `num_tests` calls, after `num_warmups` calls.

    `high_precision` first queues about 10 ms of other work, so that the host's launch times hide behind it.

    Raises: ArgumentError; DeviceError without a GPU.
    """
    num_tests = _check_call(fn, num_tests)
    num_warmups = check_integer("num_warmups", num_warmups)
    check_gpu("bench")
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
    barrier: Callable[[], object] | None = None,
) -> float | tuple[float, ...]:
    """Return the mean seconds of the GPU kernels whose names contain `kernel_names`, as the profiler measures them.

    Args:
        fn: called `num_tests` times under the profiler, after as many warm-up calls.
        kernel_names: one substring, or a tuple of them for a tuple of results. Of this package's kernels, "gemm" is in
            the names of all products, and in those of no pass before or behind one.
        suppress_kineto_output: silence the profiler's own messages.
        trace_path: where to write a Chrome trace, if anywhere.
        flush_l2: read a buffer larger than the L2 before each call (clean and cold, as for a weight not used before);
            the kernels that read are not counted.
        with_multiple_kernels: a name may match several kernels of a call; their times are added up.
        barrier: called before each call, after work that keeps the GPU busy for about 10 ms, so that the kernels of
            several ranks start together however far apart their hosts are.

    Returns: the seconds, or a tuple of them; 0 for a name that matches no kernel.
    Raises: ArgumentError, also where a name matches several kernels without `with_multiple_kernels`, or one that also
        empties the L2 and that calls do not run equally often; DeviceError without a GPU.
    """
    num_tests = _check_call(fn, num_tests)
    names = _list_names(kernel_names)
    check_gpu("bench_kineto")
    with _silence(suppress_kineto_output), _one_after_the_other():
        flush = _make_flush_buffer().sum if flush_l2 else None
        own = [name for name, _ in list_kernels(_profile(flush, 1).events())] if flush else []
        profiler = _profile(_prepare(fn, barrier, flush), num_tests)
    if trace_path is not None:
        profiler.export_chrome_trace(trace_path)
    kernels = drop_flushes(list_kernels(profiler.events()), own, num_tests, names)
    seconds = tuple(kernel_seconds(kernels, name, num_tests, with_multiple_kernels) for name in names)
    return seconds[0] if isinstance(kernel_names, str) else seconds


def _check_call(fn: object, num_tests: object) -> int:
    """Return how often to call `fn`. Raises: ArgumentError."""
    if not callable(fn):
        raise ArgumentError(f"fn = {shorten(fn)}: must be a function without arguments; pass one.")
    return check_integer("num_tests", num_tests, 1)


def _list_names(kernel_names: object) -> tuple[str, ...]:
    names = (kernel_names,) if isinstance(kernel_names, str) else kernel_names
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(f"kernel_names = {shorten(names)}: must be a str or a tuple of them; pass parts of names.")
    return tuple(names)


def list_kernels(events: Iterable) -> list[tuple[str, float]]:
    """Return (name, microseconds) of what ran on the GPU, in the order of launches, from the profiler's events."""
    ran = [event for event in events if event.device_type != torch.autograd.DeviceType.CPU]
    timed = [event for event in ran if event.self_device_time_total > 0 and not event.is_user_annotation]
    timed.sort(key=lambda event: (event.id, event.time_range.start))  # the id is of the launch, one for a whole graph
    return [(event.name, event.self_device_time_total) for event in timed]


def drop_flushes(
    kernels: list[tuple[str, float]], flush: list[str], num_tests: int, names: tuple[str, ...]
) -> list[tuple[str, float]]:
    """Return the kernels of `num_tests` equal calls without those of `flush`, which empty the L2 before each, as far as
    `names` ask for them. A call may run some of the same name, behind them.

    Raises: ArgumentError where the calls run several numbers of these, so that they cannot be told apart.
    """
    dropped: set[int] = set()
    for name in {key for key in flush if any(part in key for part in names)}:
        places = [i for i, (key, _) in enumerate(kernels) if key == name]
        in_a_call, rest = divmod(len(places), num_tests)
        if rest or in_a_call < flush.count(name):
            raise ArgumentError(
                f"kernel_names = {shorten(names)}: {name} also empties the L2, and ran {len(places)} times in"
                f" {num_tests} calls, not equally often in each; narrow the names, or pass flush_l2=False."
            )
        dropped.update(place for i, place in enumerate(places) if i % in_a_call < flush.count(name))
    return [kernel for i, kernel in enumerate(kernels) if i not in dropped]


def kernel_seconds(kernels: list[tuple[str, float]], name: str, num_tests: int, with_multiple_kernels: bool) -> float:
    """Return the mean seconds of the kernels whose names contain `name`, from (name, microseconds) of each; 0 where
    none ran.
    """
    matches: dict[str, list[float]] = {}
    for key, time_us in kernels:
        if name in key:
            matches.setdefault(key, []).append(time_us)
    if not matches:
        return 0.0
    if len(matches) > 1 and not with_multiple_kernels:
        raise ArgumentError(
            f"kernel_names = {shorten(name)}: matches several kernels ({', '.join(matches)}); narrow it or pass"
            " with_multiple_kernels=True."
        )
    times = [time_us for group in matches.values() for time_us in group]
    return sum(times) / (num_tests if with_multiple_kernels else len(times)) / 1e6


def _prepare(
    fn: Callable[[], object], barrier: Callable[[], object] | None, flush: Callable[[], object] | None
) -> Callable[[], None]:
    """Return a call of `fn` behind what comes before it."""

    def run() -> None:
        if flush is not None:
            flush()
        if barrier is not None:
            torch.cuda._sleep(_WAIT_CYCLES)
            barrier()
        fn()

    return run


def _profile(call: Callable[[], object], num_tests: int):
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA], schedule=schedule, acc_events=True
    ) as profiler:
        for _ in range(2):
            for _ in range(num_tests):
                call()
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
def _one_after_the_other() -> Iterator[None]:
    """Let no kernel start while the one before it ends: its time would contain the wait."""
    before = _C.get_pdl()
    _C.set_pdl(False)
    try:
        yield
    finally:
        _C.set_pdl(before)


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
