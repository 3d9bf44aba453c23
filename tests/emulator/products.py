"""Launch dense products on the emulator: operands, references and guarded outputs of the GPU suite, on the CPU."""

from typing import NamedTuple

import torch

from deep_gemm import _C
from deep_gemm.errors import LaunchError
from deep_gemm.jit import generator
from tests.gpu.memory import make_scale_of_class
from tests.gpu.operands import Case, Shape, count_wrong, make_case, make_output
from tests.gpu.variants import Variant

from .build import Defects, build_kernel



class Outcome(NamedTuple):
    """What came of a launch."""

    num_wrong: int  # elements of D that miss their reference
    num_dirty: int  # elements around D that were written
    error: str  # what the emulator found, or ""


def view(tensor: torch.Tensor | None) -> "_C.TensorView | None":
    """Describe a CPU tensor as memory of the stub's GPU."""
    if tensor is None:
        return None
    return _C.TensorView(tensor.data_ptr(), list(tensor.shape), list(tensor.stride()), str(tensor.dtype).removeprefix("torch."), 0)


class Product(NamedTuple):
    """A dense product on the emulator; `num_sms` 1 lets one cluster walk all tiles."""

    variant: Variant
    config: dict  # fields of _C.Config
    shape: tuple  # m, n, k
    num_sms: int = 0
    integers: bool = True

    def build(self, defects: Defects | None = None) -> bytes:
        """Return the kernel; `defects` as for build_kernel."""
        source = generator.generate_source(self.variant.problem(), _C.Config(**self.config))
        return build_kernel(source, generator.kernel_name(self.variant.op), defects)


def run_product(product: Product, cubin: bytes) -> Outcome:
    """Launch the kernel and compare; in the child process of the stub driver."""
    variant, config, shape, num_sms, integers = product
    kernel = _C.Kernel(cubin, generator.kernel_name(variant.op), variant.problem(), _C.Config(**config), 0)
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
    except LaunchError as error:
        return Outcome(0, 0, str(error))
    return Outcome(int(count_wrong(case, output.values)), int(output.num_dirty()), "")


def _layout_b(variant: Variant) -> str:
    return "any" if variant.recipe == "1d2d" else variant.scale_layout


def _options(case: Case) -> dict:
    heads = {} if case.head_splits is None else {"head_splits": case.head_splits}
    return {"alpha": case.alpha, "beta": case.beta, **heads}
