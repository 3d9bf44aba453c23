"""The checks of tests/gpu/einsum.py are right, and can fail."""

import pytest
import torch

from deep_gemm.testing import calc_diff
from tests.gpu.einsum import Suite, sum_bound, sum_products


@pytest.fixture
def suite(monkeypatch):
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: empty(1))  # no GPU whose L2 is to be flushed
    return Suite()


def test_products_are_summed_a_few_at_a_time():
    x, y = torch.randn(13, 5, 7).bfloat16(), torch.randn(13, 3, 7).bfloat16()
    expected = torch.einsum("bmk,bnk->mn", x.double(), y.double())
    assert torch.allclose(sum_products(x, y, step=4), expected, rtol=1e-12)


@pytest.mark.parametrize("length", [4096, 1 << 18])
def test_the_bound_of_a_sum_sees_one_product_less(length):
    x, y = torch.randn(length // 64, 16, 64), torch.randn(length // 64, 24, 64)
    expected = sum_products(x, y)
    assert calc_diff(expected.float(), expected) < sum_bound(length)
    x[-1, :, -1] = 0
    assert calc_diff(sum_products(x, y), expected) > 10 * sum_bound(length)


@pytest.mark.parametrize("length", [1 << 20, 3 << 20, 1 << 22])
def test_the_bound_of_a_long_sum_is_below_one_product(length):
    assert 3 * sum_bound(length) < 1 / (2 * length)


@pytest.mark.parametrize("value, num_wrong", [(1.0, 0), (1.1, 1), (float("nan"), 1)])
def test_what_is_wrong_is_counted_and_has_a_row(suite, capsys, value, num_wrong):
    suite.compare("a case", 1e-6, torch.full((4,), value), torch.ones(4))
    assert suite.num_wrong == num_wrong and suite.rows[0]["is_right"] is (num_wrong == 0)
    assert ("WRONG" in capsys.readouterr().out) == bool(num_wrong)
