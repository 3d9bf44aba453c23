"""Products on the emulator, with the operands, references and guarded outputs of the GPU suite."""

import types
from typing import NamedTuple

from deep_gemm import _C
from deep_gemm.errors import LaunchError
from deep_gemm.jit import generator
from tests.gpu.grouped_operands import (
    contiguous_alignment,
    count_grouped_wrong,
    list_launch_operands,
    make_grouped_case,
    make_grouped_output,
    prepare_grouped_c,
)
from tests.gpu.grouped_psum import PsumK, PsumRows, make_psum_case, with_ends, without_padding
from tests.gpu.grouped_variants import GroupedVariant
from tests.gpu.operands import Shape, count_wrong, make_case, make_output
from tests.gpu.variants import Variant
from tests.gpu.world import CaseCache, launch_options, lay_out_scale, prepare_c

from .build import Defects, build_kernel
from .host import HostKernel, Outcome

#: What the GPU suite asks of the world for its grouped cases.
_WORLD = types.SimpleNamespace(torch_device="cpu", grouped_cases=CaseCache(1))


class Product(NamedTuple):
    """One product by one kernel."""

    variant: Variant | GroupedVariant
    config: dict  # fields of _C.Config
    shape: tuple | object  # (m, n, k), or a shape of tests/gpu/grouped_shapes or grouped_psum
    num_sms: int = 0  # 1: one cluster walks all tiles
    integers: bool = True
    index: int = 0  # picks the memory layout of scales, and whether C is D
    second: dict | None = None  # fields of a second tile's config

    @property
    def problem(self) -> "_C.Problem":
        """The problem that the kernel is made for."""
        has_ends = isinstance(self.shape, PsumRows | PsumK)
        return (with_ends(self.variant) if has_ends else self.variant).problem()

    @property
    def tiles(self) -> tuple["_C.Config", "_C.Config | None"]:
        """The config, and the second one."""
        return _C.Config(**self.config), _C.Config(**self.second) if self.second else None

    def build(self, defects: Defects | None = None) -> bytes:
        """Return the kernel; `defects` as for build_kernel."""
        source = generator.generate_source(self.problem, *self.tiles)
        return build_kernel(source, generator.kernel_name(self.problem.op), defects)


def run_product(product: Product, cubin: bytes) -> Outcome:
    """Launch the kernel and compare; in the child process of the stub driver."""
    kernel = HostKernel(cubin, product.problem, *product.tiles)
    run = _run_dense if isinstance(product.variant, Variant) else _run_grouped
    try:
        return run(product, kernel)
    except LaunchError as error:
        return Outcome(0, 0, str(error))


def _run_dense(product: Product, kernel: HostKernel) -> Outcome:
    variant, index = product.variant, product.index
    case = make_case(Shape(*product.shape), "cpu", variant, product.integers)
    output = make_output(case)
    c = prepare_c(case, output, is_aliased=variant.c_mode == "accumulate" or index % 2 == 1)
    scales = [lay_out_scale(case.scale_a, variant, index, True), lay_out_scale(case.scale_b, variant, index, False)]
    kernel.launch(
        case.a, scales[0], case.b, scales[1], output.d, c, num_sms=product.num_sms, **launch_options(case), stream=0
    )
    return Outcome(int(count_wrong(case, output.values)), int(output.num_dirty()), "")


def _run_grouped(product: Product, kernel: HostKernel) -> Outcome:
    variant, shape = product.variant, product.shape
    has_ends = isinstance(shape, PsumRows | PsumK)
    zeroes = {"ensure_zero_padding": True} if isinstance(shape, PsumRows) and product.index % 2 == 0 else {}
    case = (
        make_psum_case(_WORLD, variant, shape, product.integers)
        if has_ends
        else make_grouped_case(shape, "cpu", variant, product.integers)
    )
    output = make_grouped_output(case)
    c = prepare_grouped_c(case, output, is_aliased=variant.c_mode == "accumulate")
    operands = list_launch_operands(variant, case, product.index)
    with contiguous_alignment(shape.alignment if isinstance(shape, PsumRows) else case.alignment):
        kernel.launch(*operands, output.d, c, groups=case.groups, num_sms=product.num_sms, **zeroes, stream=0)
    judged = without_padding(case) if has_ends and not zeroes else case
    return Outcome(int(count_grouped_wrong(judged, output)), int(output.num_dirty()), "")
