"""The suite's comparison of plain kernels with their formulas, on CPU tensors, where both are the formula."""

import torch

from deep_gemm.nn import swiglu
from tests.gpu import plain_kernels


def make_values(shape: tuple, dtype: torch.dtype, extra: int = 0, special: tuple = ()) -> torch.Tensor:
    x = torch.randn(*shape[:-1], shape[-1] + extra)[..., : shape[-1]].to(dtype)
    x[:, : len(special)] = torch.tensor(special, dtype=dtype)
    return x


def test_gradients_are_compared_to_the_bit(monkeypatch):
    monkeypatch.setattr(plain_kernels, "make_values", make_values)
    cases = list(plain_kernels.make_gradient_cases())
    assert len(dict(cases)) == len(cases) == 56
    few = [case for case in cases if "4096" not in case[0]]
    assert [name for name, run in few if plain_kernels.count_wrong((name, run))] == []
    formula = swiglu.compute_gradient

    def differ(x: torch.Tensor, grad: torch.Tensor, has_y: bool) -> object:
        wrong = formula(x, grad) * 1.01
        return (wrong, grad) if has_y else wrong

    monkeypatch.setattr(swiglu, "_differentiate", differ)
    wrong = [name for name, run in few if plain_kernels.count_wrong((name, run))]
    assert wrong and all("swiglu_grad" in name for name in wrong)
