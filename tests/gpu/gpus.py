"""The GPUs and cores of one host, shared by processes that run side by side."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tuner.measure.devices import choose_ordinals, choose_visible_device


def list_gpus(text: str = "all") -> tuple[str, ...]:
    """Return the GPUs of a list such as "0,1" or of "all" as CUDA_VISIBLE_DEVICES names them to a child; numbers count
    those that this process may see.

    Raises: UsageError, TunerError.
    """
    return tuple(choose_visible_device(ordinal) for ordinal in choose_ordinals(text))


def make_environment(gpu: str) -> dict[str, str]:
    """Return the environment of a child that sees one GPU."""
    return os.environ | {"CUDA_VISIBLE_DEVICES": gpu}


def share_cores(count: int) -> list[set[int]]:
    """Return the cores of this process in `count` parts of neighbours; every part has all where there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < count:
        return [set(cores)] * count
    return [set(cores[len(cores) * index // count : len(cores) * (index + 1) // count]) for index in range(count)]


@contextmanager
def using_cores(cores: set[int]) -> Iterator[None]:
    """Run on some cores; a child that is started meanwhile keeps them, with its own children."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
