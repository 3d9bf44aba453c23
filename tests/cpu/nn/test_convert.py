"""Models with FP8 layers: quantize_, state dicts, safetensors, moves between devices and dtypes."""

import copy
import io

import pytest
import torch
from safetensors.torch import load_file, save_file

import deep_gemm
from deep_gemm import errors
from deep_gemm.nn import Fp8Linear, is_suitable, quantize_
from deep_gemm.testing import calc_diff
from tests.gpu.nn_references import round_blocks

pytestmark = pytest.mark.usefixtures("fresh_inputs")
BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
MAX_FP8_DIFF = 5e-3  # of three layers


class Model(torch.nn.Module):
    """A small network with a shared layer, a layer of odd size, and a head."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(48, 144)
        self.shared = torch.nn.ModuleList([torch.nn.Linear(144, 144)] * 2)
        self.again = self.shared[0]
        self.odd = torch.nn.Linear(144, 20)
        self.lm_head = torch.nn.Linear(144, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the head's output."""
        x = self.up(x)
        return self.lm_head(torch.relu(self.shared[1](x)) + self.again(x))


def count(model: torch.nn.Module) -> int:
    """Return how many FP8 layers a model has."""
    return sum(isinstance(module, Fp8Linear) for module in model.modules())


def test_suitable_layers_are_replaced_in_place():
    model = Model()
    before, x = copy.deepcopy(model), torch.randn(5, 48)
    assert quantize_(model) is model and count(model) == 2
    assert model.again is model.shared[0] is model.shared[1] and isinstance(model.again, Fp8Linear)
    assert type(model.odd) is type(model.lm_head) is torch.nn.Linear
    assert model.up.is_trainable and all(parameter.requires_grad for parameter in model.parameters())
    assert calc_diff(model(x).detach(), before(x).detach()) < MAX_FP8_DIFF
    assert list(model.state_dict()) == list(before.state_dict())


def test_a_model_for_inference_stores_its_weights_in_fp8():
    model = Model().eval()
    before, x = copy.deepcopy(model), torch.randn(5, 48)
    quantize_(model)
    assert model.up.weight.dtype == FP8 and not model.up.training
    assert calc_diff(model(x).detach(), before(x).detach()) < MAX_FP8_DIFF
    assert quantize_(Model().eval(), trainable=True).up.is_trainable
    assert not quantize_(Model(), trainable=False).up.is_trainable


def test_a_filter_chooses_by_module_and_name():
    seen = []

    def choose(module, name):
        seen.append(name)
        return name == "lm_head"

    model = quantize_(Model(), choose)
    assert count(model) == 1 and isinstance(model.lm_head, Fp8Linear)
    assert seen == ["up", "shared.0", "odd", "lm_head"]


def test_nothing_is_replaced_where_a_chosen_layer_cannot_be():
    model = Model()
    with pytest.raises(errors.ShapeError, match="out_features = 20"):
        quantize_(model, lambda module, name: True)
    assert count(model) == 0


@pytest.mark.parametrize("arguments, message", [
    ((3,), "model = 3: must be a torch.nn.Module"), ((torch.nn.Linear(16, 16), 3), "filter_fn = 3: must take a module")
])  # fmt: skip
def test_what_is_no_model_is_refused(arguments, message):
    with pytest.raises(errors.ArgumentError, match=message):
        quantize_(*arguments)


def test_a_single_layer_is_returned():
    assert isinstance(quantize_(torch.nn.Linear(16, 16)), Fp8Linear)
    relu = torch.nn.ReLU()
    assert quantize_(relu) is relu
    assert not is_suitable(torch.nn.Bilinear(16, 16, 16), "x")
    assert not is_suitable(torch.nn.LazyLinear(16), "x")
    linear = torch.nn.Linear(16, 16)
    assert not any(is_suitable(linear, name) for name in ("model.lm_head", "layers.0.mlp.gate", "router"))
    assert is_suitable(linear, "layers.0.mlp.gate_proj") and is_suitable(linear, "")


@pytest.mark.parametrize("is_trainable", [True, False])
def test_state_dicts_round_trip_through_safetensors(tmp_path, is_trainable):
    model, x = quantize_(Model(), trainable=is_trainable), torch.randn(3, 48)
    del model.again  # safetensors saves no tensor twice
    model.shared = model.shared[:1]
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    state = load_file(tmp_path / "model.safetensors")
    other = quantize_(Model(), trainable=is_trainable)
    del other.again
    other.shared = other.shared[:1]
    for assign in (False, True):
        other.load_state_dict(state, assign=assign)
        assert all(map(torch.equal, (t.float() for t in other.parameters()), (t.float() for t in model.parameters())))
        assert torch.equal(other.up(x), model.up(x))
        assert [p.dtype for p in other.parameters()] == [p.dtype for p in model.parameters()]


def test_each_form_loads_the_other():
    linear, x = torch.nn.Linear(144, 272), torch.randn(2, 144)
    stored, trained = (Fp8Linear(144, 272, trainable=flag) for flag in (False, True))
    stored.load_state_dict(linear.state_dict())
    assert torch.equal(stored(x), Fp8Linear.from_linear(linear)(x))
    state = stored.state_dict()
    trained.load_state_dict(state)
    assert torch.equal(trained.weight, round_blocks(linear.weight.detach()))
    assert sorted(state) == ["bias", "weight", "weight_scale_inv"]  # loading changed nothing


def test_a_checkpoint_with_bf16_scales_loads_and_wrong_scales_do_not():
    layer = Fp8Linear(256, 128, bias=False, trainable=False)
    weight, scale = deep_gemm.per_block_cast_to_fp8(torch.randn(128, 256), use_ue8m0=False)
    layer.load_state_dict({"weight": weight, "weight_scale_inv": scale.to(BF16)}, assign=True)
    assert layer.weight_scale_inv.dtype == FP32 and torch.equal(layer.weight_scale_inv, scale.to(BF16).float())
    with pytest.raises(errors.ShapeError, match="weight_scale_inv.shape"):
        layer.load_state_dict({"weight": weight, "weight_scale_inv": scale.t()})
    with pytest.raises(RuntimeError, match="Missing key.*weight_scale_inv"):
        layer.load_state_dict({"weight": weight})


@pytest.mark.parametrize("is_trainable", [True, False])
def test_fp8_values_without_scales_are_refused(is_trainable):
    layer = Fp8Linear(32, 16, bias=False, trainable=is_trainable)
    with pytest.raises(RuntimeError, match="weight_scale_inv"):
        layer.load_state_dict({"weight": torch.zeros(16, 32).to(torch.float8_e4m3fn)})


def test_casts_of_a_model_leave_stored_weights_alone():
    model, x = quantize_(Model(), trainable=False), torch.randn(3, 48)
    before = model.up(x).detach()
    model.to(BF16)
    assert model.up.weight.dtype == FP8 and model.up.weight_scale_inv.dtype == FP32 and model.up.bias.dtype == BF16
    assert calc_diff(model.up(x.to(BF16)).detach(), before) < MAX_FP8_DIFF
    assert quantize_(Model()).half().up.weight.dtype == torch.float16


def test_layers_are_made_without_memory_and_filled_later():
    with torch.device("meta"):
        model = quantize_(Model(), trainable=False)
    assert model.up.weight.is_meta and model.up.weight_scale_inv.shape == (2, 1)
    assert model(torch.empty(3, 48, device="meta")).shape == (3, 32)
    source = quantize_(Model(), trainable=False)
    model.to_empty(device="cpu")
    model.load_state_dict(source.state_dict())
    x = torch.randn(2, 48)
    assert torch.equal(model(x), source(x))


def test_models_are_copied_and_pickled():
    model, x, file = quantize_(Model(), trainable=False), torch.randn(2, 48), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(x), model(x)) and torch.equal(copy.deepcopy(model)(x), model(x))
    assert "weight=stored float8_e4m3fn" in repr(loaded)
