"""What tests ask of the GPU and of the environment."""

import functools
import os
from collections.abc import Callable

import torch

from deep_gemm.operands import check_gpu


def get_arch_major() -> int:
    """Return the major compute capability of the current GPU, e.g. 9. Raises: DeviceError without one."""
    check_gpu("get_arch_major")
    return torch.cuda.get_device_capability()[0]


def test_filter(condition: Callable[[], bool]) -> Callable:
    """Return a decorator for tests that run only where `condition()` holds; elsewhere they print that they do not."""

    def decorate(test: Callable) -> Callable:
        @functools.wraps(test)
        def run(*arguments, **named):
            if condition():
                return test(*arguments, **named)
            return print(f"{test.__name__}: left out, because {condition.__name__} does not hold\n")

        return run

    return decorate


test_filter.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it by its name


def ignore_env(name: str, condition: Callable[[], bool]) -> Callable:
    """Return a decorator for functions that run without the environment variable `name` where `condition()` holds."""

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def run(*arguments, **named):
            value = os.environ.pop(name, None) if condition() else None
            try:
                return function(*arguments, **named)
            finally:
                if value is not None:
                    os.environ[name] = value

        return run

    return decorate
