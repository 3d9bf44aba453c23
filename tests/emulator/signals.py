"""Masked products with signals on the emulator, which watches that no signal is complete before its rows are stored."""

import ctypes
from typing import NamedTuple

import torch

from deep_gemm.errors import LaunchError
from deep_gemm.jit import generator
from tests.gpu.grouped_operands import count_grouped_wrong, list_launch_operands, make_grouped_case, make_grouped_output
from tests.gpu.grouped_shapes import Masked
from tests.gpu.signals import count_signals, expect_signals, get_threshold

from .build import Defects, build_core, build_kernel
from .host import HostKernel, Outcome
from .products import Product


class _Watch(ctypes.Structure):
    """What core/signals.cpp watches."""

    _fields_ = (
        ("counters", ctypes.c_void_p),
        ("blocks", ctypes.c_uint64),
        ("threshold", ctypes.c_uint32),
        ("sizes", ctypes.c_void_p),
        ("d", ctypes.c_void_p),
        ("group_pitch", ctypes.c_uint64),
        ("row_pitch", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("groups", "rows", "columns", "element")),
    )


class SignalledOutcome(NamedTuple):
    """What came of a launch: as Outcome, and how many signals are not what they must be."""

    product: Outcome
    num_wrong_signals: int


def build_signalling(product: Product, defects: Defects | None = None) -> bytes:
    """Return the kernel of a product that signals; `defects` as for build_kernel."""
    source = generator.generate_source(product.problem.with_signals(), *product.tiles)
    return build_kernel(source, generator.kernel_name(product.problem.op), defects)


def run_signalling(product: Product, cubin: bytes) -> SignalledOutcome:
    """Launch the kernel and compare; in the child process of the stub driver."""
    kernel = HostKernel(cubin, product.problem.with_signals(), *product.tiles)
    case = make_grouped_case(product.shape, "cpu", product.variant, product.integers)
    output = make_grouped_output(case)
    signal = torch.zeros(count_signals(product.shape) + 2, dtype=torch.int32)  # the last two are not to be written
    _watch(product.shape, case.groups, output.d, signal)
    operands = list_launch_operands(product.variant, case, product.index)
    try:
        kernel.launch(*operands, output.d, groups=case.groups, num_sms=product.num_sms, signal=signal, stream=0)
    except LaunchError as error:
        return SignalledOutcome(Outcome(0, 0, str(error)), 0)
    found = Outcome(int(count_grouped_wrong(case, output)), int(output.num_dirty()), "")
    return SignalledOutcome(found, int((signal != expect_signals(product.shape, len(signal))).sum()))


def _watch(shape: Masked, sizes: torch.Tensor, d: torch.Tensor, signal: torch.Tensor) -> None:
    groups, rows, columns = d.shape
    element = d.element_size()
    watch = _Watch(
        signal.data_ptr(),
        count_signals(shape) // groups,
        get_threshold(shape),
        sizes.data_ptr(),
        d.data_ptr(),
        d.stride(0) * element,
        d.stride(1) * element,
        groups,
        rows,
        columns,
        element,
    )
    ctypes.CDLL(str(build_core())).watch_signals(ctypes.byref(watch))
