"""The GPU suite's cases of groups with ends, on CPU tensors: what it expects is what the reference does."""

import pytest

import deep_gemm
from tests.gpu import grouped_psum
from tests.gpu.grouped_psum import PSUM_VARIANTS, PsumK, PsumRows, list_ends, make_psum_case
from tests.gpu.grouped_variants import CONTIGUOUS_OPS, K_GROUPED_OPS

ROWS = (PsumRows(136, 272, (30, 0, 128, 1), extra=70), PsumRows(40, 144, (0, 0), extra=64, has_aligned_ends=False))
COLUMNS = (PsumK(21, 136, (130, 0, 255)), PsumK(16, 24, (0, 5), extra=128, has_aligned_ends=False))


def list_shapes(variant):
    """Return small shapes of a variant."""
    return COLUMNS if variant.op in K_GROUPED_OPS else ROWS


@pytest.mark.parametrize("variant", PSUM_VARIANTS, ids=str)
def test_products_are_as_the_suite_expects(world, variant):
    for shape in list_shapes(variant):
        cases, failures = grouped_psum.run_psum_products(world, variant, shape)
        assert failures == [] and cases > 3


@pytest.mark.parametrize("variant", [one for one in PSUM_VARIANTS if one.op in CONTIGUOUS_OPS], ids=str)
def test_rows_have_the_bits_of_the_contiguous_op(world, variant):
    assert grouped_psum.run_psum_siblings(world, variant, ROWS[0]) == (1, [])


def test_wrong_rows_and_padding_are_found(world, monkeypatch):
    variant, call, place = PSUM_VARIANTS[0], grouped_psum.call_grouped, (-1, 0)

    def spoil(case, d, *arguments, **options):
        call(case, d, *arguments, **options)
        d[place] = 40.0

    monkeypatch.setattr(grouped_psum, "call_grouped", spoil)
    assert any("padding is not +0" in one for one in grouped_psum.run_psum_products(world, variant, ROWS[0])[1])
    place = (0, 0)
    assert any("wrong elements" in one for one in grouped_psum.run_psum_products(world, variant, ROWS[0])[1])


def test_ends_and_poison():
    assert list_ends(PsumRows(8, 8, (100, 0, 28, 0))) == [100, 128, 156, 256]
    assert list_ends(PsumRows(8, 8, (100, 0, 28, 0), has_aligned_ends=False)) == [100, 100, 156, 156]


def test_gaps_of_k_are_nan(world):
    case = make_psum_case(world, PSUM_VARIANTS[-2], COLUMNS[0])
    assert case.a.float().isnan().any(dim=0).nonzero().flatten().tolist() == [*range(130, 256), 511]
    assert not case.reference.isnan().any() and (case.reference[1] == 0).all()


@pytest.mark.parametrize("number", range(2))
def test_defects_of_other_libraries_are_cases(world, number):
    variant, shape = grouped_psum.DEFECTS[3 + number]
    assert grouped_psum.run_defect(world, variant, shape) == (2, [])
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128
