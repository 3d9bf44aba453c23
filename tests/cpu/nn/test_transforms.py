"""Layers under forward mode, torch.func, autocast and copies: the right numbers, or a typed error."""

import copy
import io
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch.autograd import forward_ad

import deep_gemm
from deep_gemm import errors
from deep_gemm.nn import Fp8Experts, Fp8GroupedLinear, Fp8Linear
from deep_gemm.testing import calc_diff
from tests.gpu.logits_operands import make_paged, make_prefill

pytestmark = pytest.mark.usefixtures("fresh_inputs")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ENDS, COUNTS = torch.tensor([100, 200], dtype=torch.int32), torch.tensor([3, 8], dtype=torch.int32)
INDEX, WEIGHTS = torch.tensor([[0, 2], [1, 0], [2, 2], [3, 1]]), torch.rand(4, 2)
IS_ROW = torch.tensor([[position < 100 or 128 <= position < 200] for position in range(256)])
#: calc_diff of rounding a result and its sum with a bias, and the rows between two products, which round to FP8 again.
MAX_DIFF, MAX_EXPERTS_DIFF = {BF16: 4e-5, FP16: 1e-6}, 3e-3


class Case(NamedTuple):
    """A layer, what calls it, and the shape of its input."""

    layer: torch.nn.Module
    call: Callable
    shape: tuple[int, ...]


CASES = {
    "linear": Case(Fp8Linear(144, 48), lambda layer, x: layer(x), (5, 144)),
    "stored": Case(Fp8Linear(144, 48, trainable=False), lambda layer, x: layer(x), (5, 144)),
    "swiglu": Case(Fp8Linear(144, 48), lambda layer, x: layer(x, is_swiglu=True), (5, 288)),
    "grouped": Case(Fp8GroupedLinear(2, 144, 48), lambda layer, x: layer(x * IS_ROW, ENDS), (256, 144)),
    "experts": Case(Fp8Experts(4, 48, 32), lambda layer, x: layer(x, INDEX, WEIGHTS), (4, 48)),
    "few tokens": Case(Fp8Experts(4, 48, 32, trainable=False), lambda layer, x: layer(x, INDEX, WEIGHTS), (4, 48)),
}


def run_with_duals(run: Callable, x: torch.Tensor) -> torch.Tensor:
    """Return what a function gives for a tensor with a tangent."""
    with forward_ad.dual_level():
        return run(forward_ad.make_dual(x, torch.ones_like(x)))


#: How derivatives are asked for in forward mode: of a function, at a point.
FORWARD = {
    "jvp": lambda run, x: torch.func.jvp(run, (x,), (torch.ones_like(x),)),
    # By a factor of all of x: by x itself, tangents would take 5 GB.
    "jacfwd": lambda run, x: torch.func.jacfwd(lambda factor: run(factor * x).sum())(torch.ones(())),
    "nested": lambda run, x: torch.func.jvp(
        lambda value: torch.func.jvp(run, (value,), (x,))[0], (x,), (torch.ones_like(x),)
    ),
    "linearize": lambda run, x: torch.func.linearize(run, x)[1](x),
    "duals": lambda run, x: run_with_duals(run, x),
}
#: The same in reverse mode by torch.func.
REVERSE = {
    "grad": lambda run, x: torch.func.grad(lambda value: run(value).sum())(x),
    "vjp": lambda run, x: torch.func.vjp(run, x),
    "jacrev": lambda run, x: torch.func.jacrev(lambda value: run(value).sum(0))(x),
    "hessian": lambda run, x: torch.func.hessian(lambda factor: run(factor * x).square().sum())(torch.ones(())),
    "of each sample": lambda run, x: torch.func.vmap(torch.func.grad(lambda value: run(value).sum()))(x[None]),
}


@pytest.fixture(params=CASES)
def case(request) -> Case:
    """Return each case with a layer that holds no gradients."""
    layer, *rest = CASES[request.param]
    return Case(copy.deepcopy(layer), *rest)


@pytest.mark.parametrize("mode", FORWARD)
@pytest.mark.parametrize("has_gradients", [True, False])
def test_forward_mode_is_refused(case, mode, has_gradients):
    """Tangents would be dropped, and derivatives 0."""
    message = r"^nn_\w+: an operand has a tangent .* in forward mode; use torch"
    with torch.set_grad_enabled(has_gradients), pytest.raises(errors.ArgumentError, match=message):
        FORWARD[mode](lambda x: case.call(case.layer, x), torch.randn(case.shape))


@pytest.mark.parametrize("name", ["linear", "grouped", "experts"])
def test_tangents_of_weights_are_refused(name):
    layer, shape = CASES[name].layer, CASES[name].shape
    with forward_ad.dual_level():
        duals = {
            key: forward_ad.make_dual(value.detach(), torch.ones_like(value)) for key, value in layer.named_parameters()
        }
        run = {"grouped": (torch.zeros(shape), ENDS), "experts": (torch.zeros(shape), INDEX, WEIGHTS)}
        with pytest.raises(errors.ArgumentError, match="an operand has a tangent"):
            torch.func.functional_call(layer, duals, run.get(name, (torch.zeros(shape),)))


def test_a_tangent_of_the_gradient_is_refused():
    layer, x = Fp8Linear(48, 32), torch.randn(3, 48, requires_grad=True)
    y = layer(x)
    with forward_ad.dual_level(), pytest.raises(errors.ArgumentError, match="nn_linear: an operand has a tangent"):
        torch.autograd.grad(y, x, forward_ad.make_dual(torch.ones_like(y), torch.ones_like(y)))


def test_what_has_no_tangent_is_computed_in_forward_mode():
    layer, x = Fp8Linear(48, 32), torch.randn(3, 48)
    y, tangent = torch.func.jvp(lambda scale: layer(x) * scale, (torch.ones(()),), (torch.ones(()),))
    assert torch.equal(y, layer(x)) and torch.equal(tangent, y)


@pytest.mark.parametrize("mode", REVERSE)
def test_derivatives_of_torch_func_are_refused(case, mode):
    with pytest.raises(
        errors.ArgumentError, match=r"^nn_\w+: is differentiated by torch.func .*; use torch.autograd.grad"
    ):
        REVERSE[mode](lambda x: case.call(case.layer, x), torch.randn(case.shape))


@pytest.mark.parametrize("has_gradients", [True, False])
def test_mapped_calls_are_those_of_each_entry(case, has_gradients):
    x = torch.randn(2, *case.shape)
    with torch.set_grad_enabled(has_gradients):
        found = torch.func.vmap(lambda value: case.call(case.layer, value))(x)
        assert all(torch.equal(one, case.call(case.layer, value)) for one, value in zip(found, x, strict=True))


def test_a_mapped_routing_is_refused():
    layer, x = Fp8Experts(4, 48, 32), torch.randn(4, 48)
    with pytest.raises(errors.ArgumentError, match=r"top_k_index: torch.vmap maps over it, .*; give the tokens of all"):
        torch.func.vmap(lambda index: layer(x, index, WEIGHTS))(INDEX.expand(2, 4, 2))


def test_batched_gradients_are_those_of_each(case):
    x = torch.randn(case.shape, requires_grad=True)
    y = case.call(case.layer, x)
    grads = torch.randn(3, *y.shape) * (IS_ROW if y.shape[0] == len(IS_ROW) else 1)
    (found,) = torch.autograd.grad(y, x, grads, retain_graph=True, is_grads_batched=True)
    assert torch.equal(found, torch.stack([torch.autograd.grad(y, x, grad, retain_graph=True)[0] for grad in grads]))


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_autocast_changes_the_dtype_of_the_output_alone(case, dtype):
    """Products of FP8 numbers, up to 448 * 448, would overflow in FP16 and be rounded in BF16."""
    x = torch.randn(case.shape, requires_grad=True)
    wanted = case.call(case.layer, x)
    with torch.autocast("cpu", dtype=dtype):
        found = case.call(case.layer, x)
    gradients = [torch.autograd.grad(y, x, torch.ones_like(y))[0] for y in (found, wanted)]
    assert found.dtype == dtype and found.isfinite().all()
    limit = MAX_EXPERTS_DIFF if isinstance(case.layer, Fp8Experts) else MAX_DIFF[dtype]
    assert calc_diff(found.float().detach(), wanted.detach()) < limit
    assert calc_diff(*gradients) < limit


def multiply_plainly() -> list[torch.Tensor]:
    """Return what ops give for operands that are always the same."""
    generator = torch.Generator().manual_seed(3)
    x, w = torch.randn(8, 256, generator=generator), torch.randn(16, 256, generator=generator)
    a, b = deep_gemm.per_token_cast_to_fp8(x, False), deep_gemm.per_block_cast_to_fp8(w, False)
    results = [torch.empty(8, 16) for _ in range(4)]
    deep_gemm.fp8_gemm_nt(a, b, results[0])
    deep_gemm.bf16_gemm_nt(x.bfloat16(), w.bfloat16(), results[1])
    deep_gemm.cublaslt_gemm_nt(x.bfloat16(), w.bfloat16(), results[2])
    deep_gemm.tf32_hc_prenorm_gemm(x.bfloat16(), w, results[3], torch.empty(8))
    paged = make_paged([70, 3])
    schedule = deep_gemm.get_paged_mqa_logits_metadata(paged["context_lens"], 64, 4)
    of_pages = deep_gemm.fp8_paged_mqa_logits(**paged, schedule_meta=schedule, max_context_len=128)
    return [*results, deep_gemm.fp8_mqa_logits(**make_prefill(7, 64)), of_pages]


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_autocast_changes_no_op(dtype):
    torch.manual_seed(5)
    expected = multiply_plainly()
    torch.manual_seed(5)
    with torch.autocast("cpu", dtype=dtype):
        found = multiply_plainly()
    assert all(map(torch.equal, found, expected))


def test_default_dtypes_change_nothing():
    packed = deep_gemm.per_token_cast_to_fp4(torch.randn(4, 128), False)
    expected = deep_gemm.cast_back_from_fp4(*packed)
    torch.set_default_dtype(torch.float64)
    try:
        found = deep_gemm.cast_back_from_fp4(*packed)
    finally:
        torch.set_default_dtype(FP32)
    assert found.dtype == FP32 and torch.equal(found, expected)


def test_copies_compute_the_same(case):
    x, saved = torch.randn(case.shape), io.BytesIO()
    torch.save(case.layer, saved)
    saved.seek(0)
    blank = copy.deepcopy(case.layer)
    for parameter in blank.parameters():
        parameter.data.view(torch.uint8).zero_()
    blank.load_state_dict(case.layer.state_dict())
    for layer in (copy.deepcopy(case.layer), torch.load(saved, weights_only=False), blank):
        assert torch.equal(case.call(layer, x), case.call(case.layer, x))


def test_stacked_layers_are_mapped_over():
    layers, x = [Fp8Linear(48, 32) for _ in range(3)], torch.randn(5, 48)
    state = torch.func.stack_module_state(layers)
    found = torch.func.vmap(lambda *state: torch.func.functional_call(layers[0], state, (x,)))(*state)
    assert all(torch.equal(one, layer(x)) for one, layer in zip(found, layers, strict=True))
