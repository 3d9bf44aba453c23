"""Fp8Linear on the CPU: values and gradients against the definition and against the layer that it replaces."""

import copy
import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import deep_gemm
from deep_gemm import errors
from deep_gemm.nn import Fp8Linear
from deep_gemm.testing import calc_diff
from tests.gpu.nn_references import multiply, round_blocks

pytestmark = pytest.mark.usefixtures("fresh_inputs")
BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
#: calc_diff between FP8 and full precision on random normal data: the rounding of two operands to E4M3.
MAX_FP8_DIFF = 1.5e-3
#: calc_diff against the same rounded operands: the rounding of the result, or the order of FP32 sums.
MAX_DIFF = {BF16: 5e-6, FP16: 1e-6, FP32: 1e-10}


def make_pair(n: int, k: int, dtype=FP32, **options) -> tuple[torch.nn.Linear, Fp8Linear]:
    """Return a layer and its FP8 form with a copy of its weights."""
    linear = torch.nn.Linear(k, n, dtype=dtype)
    return linear, Fp8Linear.from_linear(copy.deepcopy(linear), **options)


def run(layer: torch.nn.Module, x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return (y, dx, and the gradients of the layer's parameters that train)."""
    x = x.detach().requires_grad_()
    y = layer(x)
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    return y.detach(), *torch.autograd.grad(y, (x, *trained), grad)


# m: one row, blocks of 128 and their neighbours; n and k: multiples of 16 that are no multiples of 128, too.
@pytest.mark.parametrize("m, n, k", [(1, 16, 128), (127, 144, 272), (129, 256, 16), (256, 128, 384)])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_values_and_gradients_are_those_of_the_definition(m, n, k, dtype):
    linear, layer = make_pair(n, k, dtype)
    x, grad = torch.randn(m, k, dtype=dtype), torch.randn(m, n, dtype=dtype)
    y, dx, dw, db = run(layer, x, grad)
    wanted = multiply(x, linear.weight.detach(), grad)
    wanted = (wanted[0].to(dtype) + linear.bias.detach(), *wanted[1:], grad.float().sum(0))
    for found, right in zip((y, dx, dw, db), wanted, strict=True):
        assert found.dtype == dtype and found.shape == right.shape
        assert calc_diff(found, right) < MAX_DIFF[dtype]


@pytest.mark.parametrize("leading", [(5,), (3, 43), (2, 1, 130)])
def test_gradients_are_close_to_those_of_the_layer_that_it_replaces(leading):
    linear, layer = make_pair(160, 304, BF16)
    x, grad = torch.randn(*leading, 304, dtype=BF16), torch.randn(*leading, 160, dtype=BF16)
    for found, right in zip(run(layer, x, grad), run(linear, x, grad), strict=True):
        assert found.shape == right.shape and calc_diff(found, right) < MAX_FP8_DIFF


def test_a_wrong_weight_would_be_found():
    """The bounds can fail: scales of the wrong blocks give more than ten times as much."""
    linear, layer = make_pair(256, 256, trainable=False)
    layer.weight_scale_inv.data[0] *= 1.1
    x = torch.randn(9, 256)
    assert calc_diff(layer(x).detach(), linear(x).detach()) > MAX_FP8_DIFF


@pytest.mark.parametrize("leading", [(0,), (3, 0)])
def test_no_rows(leading):
    _, layer = make_pair(32, 48)
    x = torch.zeros(*leading, 48, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == (*leading, 32) and x.grad.shape == x.shape
    assert not layer.weight.grad.any() and not layer.bias.grad.any()


def test_a_vector_and_strided_rows():
    linear, layer = make_pair(32, 48)
    wide = torch.randn(48, 10)
    assert torch.equal(layer(wide[:, 3]), layer(wide.t()[3:4])[0])
    assert layer(wide[:, 3]).shape == (32,)
    assert calc_diff(layer(wide.t()).detach(), linear(wide.t()).detach()) < MAX_FP8_DIFF


def test_the_bias_of_a_vector_has_its_gradient():
    layer = Fp8Linear(32, 16)
    layer(torch.randn(32)).sum().backward()
    assert torch.equal(layer.bias.grad, torch.ones(16))


def test_inference_needs_no_main_gradient():
    layer = Fp8Linear(32, 16)
    layer.accumulates_main_grad = True
    with torch.no_grad():
        assert layer(torch.ones(2, 32)).shape == (2, 16)


def test_half_precision_is_rounded_from_fp32():
    linear, layer = make_pair(32, 144, FP16)
    x, grad = torch.randn(7, 144, dtype=FP16), torch.randn(7, 32, dtype=FP16)
    for found, right in zip(run(layer, x, grad)[1:3], multiply(x, linear.weight.detach(), grad)[1:], strict=True):
        assert found.dtype == FP16 and calc_diff(found, right) < MAX_DIFF[FP16]


@pytest.mark.parametrize("is_trainable", [True, False])
def test_swiglu_is_computed_before_the_product(is_trainable):
    _, layer = make_pair(48, 144, trainable=is_trainable)
    wide, grad = torch.randn(3, 5, 288), torch.randn(3, 5, 48)

    def compute(x):
        gate, up = x.chunk(2, -1)
        return layer(torch.nn.functional.silu(gate) * up)

    compute.parameters = layer.parameters
    wanted = run(compute, wide, grad)
    fused = functools.partial(layer, is_swiglu=True)
    fused.parameters = layer.parameters
    found = run(fused, wide, grad)
    assert torch.equal(found[0], wanted[0]) and len(found) == len(wanted) == (4 if is_trainable else 3)
    assert all(calc_diff(got, right) < MAX_DIFF[FP32] for got, right in zip(found, wanted, strict=True))


def test_a_stored_weight_passes_gradients_to_the_input_alone():
    linear, layer = make_pair(144, 272, trainable=False)
    x, grad = torch.randn(6, 272), torch.randn(6, 144)
    assert layer.weight.dtype == FP8 and not layer.weight.requires_grad and not layer.is_trainable
    y, dx, db = run(layer, x, grad)  # the bias still trains
    trained = run(make_pair_like(linear), x, grad)
    assert torch.equal(y, trained[0]) and torch.equal(dx, trained[1]) and torch.equal(db, trained[3])


def make_pair_like(linear: torch.nn.Linear) -> Fp8Linear:
    """Return the trainable FP8 form of a layer."""
    return Fp8Linear.from_linear(linear, trainable=True)


def test_the_form_follows_the_mode():
    linear = torch.nn.Linear(32, 16)
    shared = Fp8Linear.from_linear(linear)
    assert shared.weight is linear.weight and shared.bias is linear.bias and shared.training
    assert not Fp8Linear.from_linear(linear.eval()).is_trainable
    assert not shared.freeze().is_trainable and linear.weight.dtype == FP32


def test_a_checkpoint_is_used_as_it_is():
    weight, scale = deep_gemm.per_block_cast_to_fp8(torch.randn(144, 272), use_ue8m0=False)
    bias, x = torch.randn(144), torch.randn(4, 272)
    layer = Fp8Linear.from_checkpoint(weight, scale.bfloat16(), bias)
    assert layer.weight.data_ptr() == weight.data_ptr() and layer.weight_scale_inv.dtype == FP32
    wide = scale.bfloat16().float().repeat_interleave(128, 0).repeat_interleave(128, 1)[:144, :272]
    assert calc_diff(layer(x), x @ (weight.float() * wide).t() + bias) < MAX_FP8_DIFF
    assert not [name for name, parameter in layer.named_parameters() if parameter.requires_grad]


def test_main_gradients_are_added_in_fp32():
    linear, layer = make_pair(32, 48, BF16)
    layer.accumulates_main_grad = True
    layer.weight.main_grad = torch.ones(32, 48)
    x, grad = torch.randn(130, 48, dtype=BF16), torch.randn(130, 32, dtype=BF16)
    first, second = layer(x), layer(x[:5])  # both are pending when main_grad changes first
    first.backward(grad)
    second.backward(grad[:5])
    weight = linear.weight.detach()
    wanted = multiply(x, weight, grad)[2] + multiply(x[:5], weight, grad[:5])[2] + 1
    assert layer.weight.grad is None and calc_diff(layer.weight.main_grad, wanted) < MAX_DIFF[FP32]
    assert layer.bias.grad is not None


def test_a_mark_of_megatron_is_set_and_its_hooks_run():
    layer, seen = Fp8Linear(48, 32), []
    layer.accumulates_main_grad = True
    layer.weight.main_grad, layer.weight.grad_added_to_main_grad = torch.zeros(32, 48), False
    layer.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad_added_to_main_grad))
    layer(torch.randn(3, 48)).sum().backward()
    assert seen == [True] and layer.weight.main_grad.any() and not layer.weight.grad.any()


@pytest.mark.parametrize("main_grad, error", [
    (None, errors.ShapeError), (torch.zeros(1, 2), errors.ShapeError), (torch.zeros(32, 48).to(BF16), errors.DtypeError)
])  # fmt: skip
def test_a_wrong_main_gradient_is_refused(main_grad, error):
    layer = Fp8Linear(48, 32)
    layer.accumulates_main_grad = True
    if main_grad is not None:
        layer.weight.main_grad = main_grad
    with pytest.raises(error, match="weight.main_grad.*must be"):
        layer(torch.randn(2, 48))


def make_wrong_weight(dtype=FP8, shape=(144, 272), scale=(2, 3)) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the operands of from_checkpoint."""
    return torch.zeros(shape).to(dtype), torch.ones(scale)


@pytest.mark.parametrize("call, error, message", [
    (lambda: Fp8Linear(100, 16), errors.ShapeError, "in_features = 100: .* pad the layer to 112"),
    (lambda: Fp8Linear(16, 8), errors.ShapeError, "out_features = 8: .* 16 features"),
    (lambda: Fp8Linear("64", 48), errors.ArgumentError, "in_features = '64': must be an int"),
    (lambda: Fp8Linear(64, 48.0), errors.ArgumentError, "out_features = 48.0: must be an int"),
    (lambda: Fp8Linear.from_linear(torch.nn.Linear(16, 20)), errors.ShapeError, "out_features = 20"),
    (lambda: Fp8Linear.from_linear(torch.nn.ReLU()), errors.ArgumentError, "linear = ReLU: must be"),
    (lambda: Fp8Linear(16, 16)(torch.zeros(3, 32)), errors.ShapeError, r"x.shape = \[3, 32\]: must be \[..., 16\]"),
    (lambda: Fp8Linear(16, 16)(torch.zeros(3, 16).int()), errors.DtypeError, "x.dtype = torch.int32"),
    (lambda: Fp8Linear(16, 16)(torch.zeros(3, 16).to(FP8)), errors.DtypeError, "x.dtype = torch.float8"),
    (lambda: Fp8Linear(16, 16)([1.0]), errors.ArgumentError, "x = list: must be a torch.Tensor"),
    (lambda: Fp8Linear.from_checkpoint(1, 2), errors.ArgumentError, "weight_fp8 = int: must be a torch.Tensor"),
    (lambda: Fp8Linear.from_checkpoint(make_wrong_weight()[0], 2), errors.ArgumentError, "weight_scale_inv = int"),
    (lambda: Fp8Linear.from_checkpoint(*make_wrong_weight(), [1.0]), errors.ArgumentError, "bias = list"),
    (lambda: Fp8Linear.from_checkpoint(*make_wrong_weight(FP32)), errors.DtypeError, "weight.dtype = torch.float32"),
    (lambda: Fp8Linear.from_checkpoint(*make_wrong_weight(shape=(1, 144, 272))), errors.ShapeError, "2 dimensions"),
    (lambda: Fp8Linear.from_checkpoint(*make_wrong_weight(scale=(1, 3))), errors.ShapeError, r"must be \[2, 3\]"),
    (lambda: Fp8Linear.from_checkpoint(*make_wrong_weight(), torch.ones(3)), errors.ShapeError, r"bias.shape = \[3\]"),
])  # fmt: skip
def test_what_it_cannot_take_is_a_typed_error(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_checkpointed_activations_give_the_same_gradients():
    _, layer = make_pair(32, 48)
    x, grad = torch.randn(4, 48), torch.randn(4, 32)
    model = torch.nn.Sequential(layer, torch.nn.SiLU(), Fp8Linear(32, 32))

    def forward(value):
        return checkpoint(model, value, use_reentrant=False)

    forward.parameters = model.parameters
    assert all(map(torch.equal, run(forward, x, grad), run(model, x, grad)))


@pytest.mark.parametrize("is_swiglu", [False, True])
@pytest.mark.parametrize("is_linear", [False, True])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_what_differentiates_a_gradient_again_is_told(is_swiglu, is_linear, is_checkpointed):
    """Of a loss that is linear in y, the gradient of x still depends on the weight. First derivatives stay."""
    layer, x = Fp8Linear(48, 32), torch.randn(4, 96 if is_swiglu else 48, requires_grad=True)
    run_layer = functools.partial(checkpoint, layer, use_reentrant=False) if is_checkpointed else layer

    def make_loss() -> torch.Tensor:
        y = run_layer(x, is_swiglu=is_swiglu)
        return y.sum() if is_linear else y.square().sum()

    (wanted,) = torch.autograd.grad(make_loss(), x)
    loss = make_loss()
    (dx,) = torch.autograd.grad(loss, x, create_graph=True)
    assert torch.equal(dx, wanted) and dx.requires_grad
    with pytest.raises(errors.ArgumentError, match="create_graph = True: .* nn_linear is differentiated again"):
        torch.autograd.grad(loss + dx.norm(), layer.weight)


def test_autocast_chooses_the_dtype_of_the_output():
    _, layer = make_pair(32, 48)
    x = torch.randn(4, 48, requires_grad=True)
    with torch.autocast("cpu", dtype=BF16):
        y = layer(x)
    y.sum().backward()
    assert y.dtype == BF16 and x.grad.dtype == FP32 and layer.weight.grad.dtype == FP32
    assert 0 < calc_diff(y.detach(), layer(x).detach()) < 4 * MAX_DIFF[BF16]  # the bias is added to a rounded product


def test_rounding_the_weight_loses_what_blocks_of_128_lose():
    """The reference itself: within half a step of E4M3 of the largest number of a block."""
    weight = torch.randn(144, 272)
    assert ((round_blocks(weight) - weight).abs() <= weight.abs() / 16 + weight.abs().max() / 448 / 512).all()
