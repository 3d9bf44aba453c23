"""per_custom_dims_cast_to_fp8 by the kernel of rows, executed on the CPU: equal to the bit to the torch formula."""

import pytest
import torch

from deep_gemm import quantize
from tests.cpu.ops.test_cast_kernels import (  # noqa: F401  (host_kernels: a fixture)
    BF16,
    FP16,
    FP32,
    check,
    few,
    host_kernels,
    strided,
    values,
)
from tests.fakes.plain_host import run_plan


def check_dims(x: torch.Tensor, dims: tuple[int, ...], use_ue8m0: bool = False) -> None:
    """Compare the kernel's results with the formula's."""
    cast = run_plan(quantize._plan_dims_cast(x, dims, use_ue8m0), x)
    check(cast, quantize.per_custom_dims_cast_to_fp8(x, dims, use_ue8m0))


@pytest.mark.parametrize("use_ue8m0", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "shape, dims, dtype, extra",
    few(
        ((5, 100), (0,), BF16, 8), ((4, 128), (0,), FP32, 4), ((3, 256), (0,), BF16, 0), ((3, 5, 64), (0, 1), BF16, 0),
        ((3, 4, 40), (0,), FP16, 0), ((3, 1, 4, 8), (1, -4), BF16, 0), ((7, 16), (), BF16, 0), ((6, 9), (-2,), FP16, 1),
    ),
)  # fmt: skip
def test_the_first_dims_keep_their_scales(shape, dims, dtype, extra, use_ue8m0):
    check_dims(strided(values(shape, dtype), extra), dims, use_ue8m0)


def test_a_dim_of_one_number_says_nothing():
    check_dims(values((5, 1, 32)).as_strided((5, 1, 32), (32, 7, 1)), (0,))
    check_dims(values((3, 20, 1)), (0, 2))


def test_one_scale_for_all_is_a_scalar():
    check_dims(values((7, 16)), ())


def test_dims_that_no_kernel_takes_are_left_to_the_formula():
    for shape, dims, dtype, extra in (
        ((3, 4, 40), (0,), BF16, 8), ((5, 264), (0,), BF16, 0), ((5, 132), (0,), FP32, 0), ((4, 32), (1,), BF16, 0),
        ((2, 3, 32), (0, 2), BF16, 0), ((4, 32), (0,), torch.float64, 0),
    ):  # fmt: skip
        x = strided(values(shape, dtype), extra)
        assert quantize._plan_dims_cast(x, dims, False) is None, (shape, dims, dtype)
