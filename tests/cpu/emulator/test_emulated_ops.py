"""Public ops compute what the reference says where the kernels that they choose really run, on the emulator."""

import pytest

from tests.emulator.ops import run_batches, run_gemm, run_sum

#: Relative to the sum of magnitudes: FP32 sums of a few thousand products.
MAX_ERROR = 2.0**-18


def test_a_product_by_the_config_that_is_chosen(emulate):
    """From the public op to the kernel, whatever config the heuristic chooses."""
    assert emulate(run_gemm, 70, 200, 704, seed=2) <= MAX_ERROR


@pytest.mark.full
def test_a_sum_whose_parts_are_added_by_another_kernel(emulate):
    """The number of parts depends on the grid; their sum is another kernel's."""
    assert emulate(run_sum, 9, 128, 128, 128, seed=2) <= MAX_ERROR


@pytest.mark.full
def test_batches_whose_operand_is_transposed(emulate):
    """One transposing launch, then the product."""
    assert emulate(run_batches, 2, 40, 256, 128, seed=2) <= MAX_ERROR
