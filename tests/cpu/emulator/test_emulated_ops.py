"""Public ops compute what the reference says where the kernels that they choose really run, on the emulator."""

import pytest

from tests.emulator.ops import (
    compare_places,
    compare_rows,
    compare_scale_copies,
    compare_swiglu,
    compare_token_rows,
    run_batches,
    run_gemm,
    run_gradient,
    run_prenorm,
    run_sum,
)

#: Relative to the sum of magnitudes: FP32 sums of a few thousand products.
MAX_ERROR = 2.0**-18


def test_a_product_by_the_config_that_is_chosen(emulate):
    """From the public op to the kernel, whatever config the heuristic chooses."""
    assert emulate(run_gemm, 70, 200, 704, seed=2) <= MAX_ERROR


@pytest.mark.parametrize(
    "m, k, recipe",
    [
        (8, 512, None),
        *(pytest.param(*one, marks=pytest.mark.full) for one in ((70, 704, None), (20, 256, (1, 1, 128)))),
    ],
)
def test_copied_scales_give_the_same_bits(emulate, m, k, recipe):
    """Whole vectors of four scales and others, of A alone and of both operands."""
    assert emulate(compare_scale_copies, m, 1032, k, recipe, seed=2)


@pytest.mark.parametrize(
    "m, n, dtype, has_y, extra",
    [
        (70, 40, "bfloat16", True, 8),
        (5, 131, "bfloat16", False, 1),
        *(
            pytest.param(*one, marks=pytest.mark.full)
            for one in ((33, 20, "float32", True, 0), (1, 131, "float32", True, 3))
        ),
    ],
)
def test_swiglu_is_differentiated(emulate, m, n, dtype, has_y, extra):
    """Whole chunks and tails, with the product and without it, rows that lie apart."""
    assert emulate(compare_swiglu, m, n, dtype, has_y, extra, seed=2) <= 2


@pytest.mark.parametrize(
    "sizes, dtype, is_weighted, extra",
    [((5, 3, 24), "bfloat16", True, 8), ((37, 9, 40), "bfloat16", False, 0), ((3, 1, 8), "float32", True, 4)],
)
def test_rows_of_tokens_are_spread_and_combined(emulate, sizes, dtype, is_weighted, extra):
    """More choices than loads under way, one that has no row, rows that lie apart."""
    assert emulate(compare_token_rows, *sizes, dtype, is_weighted, extra, seed=1)


@pytest.mark.parametrize(
    "tokens, top_k, experts, is_masked",
    [
        (90, 3, 5, False),
        (33, 4, 6, True),
        (40, 3, 4097, False),
        *(
            pytest.param(*one, marks=pytest.mark.full)
            for one in (
                (5000, 1, 128, False),
                (1, 8, 300, False),
                (64, 8, 256, True),
                (700, 2, 1000, False),
                (9, 8, 8192, True),
            )
        ),
    ],
)
def test_choices_of_experts_are_placed(emulate, tokens, top_k, experts, is_masked):
    """Shares of warps that end within a step, experts that nobody chose, more counters than experts, few warps."""
    assert emulate(compare_places, tokens, top_k, experts, is_masked, seed=3)


def test_a_small_sum(emulate):
    """Tails in every dimension, groups that share a warp's chunks, and rows that lie apart."""
    assert emulate(run_sum, 5, 40, 37, 72, seed=2) <= MAX_ERROR


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1, 8), (32, 64, 128, 128), (2, 33, 31, 2048), (7, 3, 70, 200)],
    ids=lambda sizes: "x".join(map(str, sizes)),
)
def test_small_sums(emulate, sizes, seed):
    """From less K than a cluster has warps to several chunks for each of them."""
    for dtype, has_c in (("float32", False), ("bfloat16", False), ("float32", True)):
        assert emulate(run_sum, *sizes, dtype, has_c, seed=seed) <= MAX_ERROR


def test_a_prenorm_that_a_cluster_adds_up(emulate):
    """One launch of 8 parts; a tile of rows and K have tails."""
    error, ctas = emulate(run_prenorm, 20, 24, 3080, seed=2)
    assert error <= MAX_ERROR and ctas == [16]


@pytest.mark.parametrize("k", [pytest.param(3104, marks=pytest.mark.full), 1600])
def test_rows_of_a_prenorm_have_the_same_bits_for_every_m(emulate, k):
    """Where bits must not depend on m: whatever rows a CTA takes; and a cluster adds up as slices in their order."""
    assert emulate(compare_rows, k, 3, 40, seed=2) == [True] * 3


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "sizes, sms, ctas",
    [
        ((3, 24, 200), 132, [1]),  # too short to be cut
        ((33, 24, 3072), 24, [16]),  # tiles of 32 rows
        ((17, 30, 3072), 11, [8, 8]),  # two launches for the columns
        ((70, 9, 1600), 11, [8]),  # clusters of 4, tiles of 64 rows
        ((70, 24, 800), 132, [10]),  # of 2
        ((70, 24, 800), 4, [4, 7]),  # more clusters than fit
        ((5, 24, 32776), 11, [11, 1]),  # K is too long for a cluster
        ((100, 24, 4104, 3), 132, [21]),  # slices are the caller's to add up
    ],
    ids=str,
)
def test_prenorms(emulate, sizes, sms, ctas, seed):
    """Every division of K and of the rows."""
    error, found = emulate(run_prenorm, *sizes[:3], sizes[3] if len(sizes) > 3 else None, sms, seed=seed)
    assert error <= MAX_ERROR and found == ctas


@pytest.mark.full
def test_a_sum_whose_parts_are_added_by_another_kernel(emulate):
    """The number of parts depends on the grid; their sum is another kernel's."""
    assert emulate(run_sum, 9, 128, 160, 128, seed=2) <= MAX_ERROR


@pytest.mark.full
def test_batches_whose_operand_is_transposed(emulate):
    """One transposing launch, then the product."""
    assert emulate(run_batches, 2, 40, 256, 128, seed=2) <= MAX_ERROR


def test_batches_that_are_summed_over_tokens(emulate):
    """Both operands are read along their rows, with tails of rows, columns and tokens, and added onto D."""
    assert emulate(run_gradient, 3, 100, 72, 136, seed=2) <= MAX_ERROR
