"""Launch products on the emulator: operands and references of the GPU suite (tests/gpu), on the CPU.

Functions here run in the child process of the stub driver, whose launches are emulated.
"""

from typing import NamedTuple

import torch

from deep_gemm import _C
from tests.gpu.memory import make_scale_of_class
from tests.gpu.operands import Case, Shape, count_wrong, make_case, make_output
from tests.gpu.variants import Variant

FP8_BITS = {torch.float8_e4m3fn: "float8_e4m3fn", torch.bfloat16: "bfloat16", torch.float32: "float32"}
DTYPE_NAMES = FP8_BITS | {torch.int32: "int32", torch.uint8: "uint8"}


class Outcome(NamedTuple):
    """What came of a launch."""

    num_wrong: int  # elements of D that miss their reference
    num_dirty: int  # elements around D that were written
    error: str  # what the emulator found, or ""


def view(tensor: torch.Tensor | None) -> "_C.TensorView | None":
    """Describe a CPU tensor as memory of the stub's GPU."""
    if tensor is None:
        return None
    return _C.TensorView(tensor.data_ptr(), list(tensor.shape), list(tensor.stride()), DTYPE_NAMES[tensor.dtype], 0)


def run_dense(
    variant: Variant, config: dict, cubin: bytes, shape: tuple, integers: bool = True, num_sms: int = 0
) -> Outcome:
    """Launch a kernel of dense products on operands of `shape` and compare."""
    kernel = _C.Kernel(cubin, f"deep_gemm_{variant.op}", variant.problem(), _C.Config(**config), 0)
    case = make_case(Shape(*shape), "cpu", variant, integers)
    output = make_output(case)
    is_aliased = variant.c_mode == "accumulate"
    output.poison(case.c if is_aliased else None)
    c = output.d if is_aliased else case.c
    scales = [
        None if scale is None else make_scale_of_class(scale, layout, index)
        for index, (scale, layout) in enumerate(
            [(case.scale_a, variant.scale_layout), (case.scale_b, _layout_b(variant))]
        )
    ]
    operands = (case.a, scales[0], case.b, scales[1], output.d, c)
    try:
        kernel.launch(*map(view, operands), num_sms=num_sms, **_options(case), stream=0)
    except Exception as error:  # noqa: BLE001 - it goes to the parent as text
        return Outcome(0, 0, str(error))
    return Outcome(int(count_wrong(case, output.values)), int(output.num_dirty()), "")


def _layout_b(variant: Variant) -> str:
    return "any" if variant.recipe == "1d2d" else variant.scale_layout


def _options(case: Case) -> dict:
    heads = {} if case.head_splits is None else {"head_splits": case.head_splits}
    return {"alpha": case.alpha, "beta": case.beta, **heads}
