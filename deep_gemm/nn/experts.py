"""The experts of a mixture-of-experts layer in FP8: SwiGLU networks, each on the tokens that chose it."""

from collections.abc import Iterable

import torch

from deep_gemm import tracing
from deep_gemm.arguments import shorten
from deep_gemm.errors import ArgumentError, DtypeError, ShapeError
from deep_gemm.nn.fused import holds_experts
from deep_gemm.nn.grouped import Fp8GroupedLinear, list_modules
from deep_gemm.nn.linear import Fp8Linear, check_rows, check_sizes, check_tensors
from deep_gemm.nn.products import check_last_dim
from deep_gemm.nn.routing import nn_combine, nn_spread, place_contiguous, place_masked
from deep_gemm.nn.weights import FP8
from deep_gemm.operands import is_fake
from deep_gemm.quantize import SCALE_BLOCK, ceil_div

#: Up to so many tokens, calls without gradients give every expert room for all of them.
MASKED_TOKENS = 64
LAYOUTS = (None, "contiguous", "masked")
#: The layers of an expert by itself.
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class Fp8Experts(torch.nn.Module):
    """y[t] = sum over choices j of weight[t, j] * down[e] @ (silu(gate[e] @ x[t]) * (up[e] @ x[t])), e = index[t, j].

    Two grouped products; SwiGLU is computed as the second one quantises its rows. Prefill and training place the tokens
    of an expert one after the other (contiguous), decoding gives every expert room for all tokens (masked). Neither
    asks the device for a size, so CUDA graphs and whole compiled graphs can hold it.

    Args:
        num_experts, hidden_size, intermediate_size: both sizes are multiples of 16.
        trainable: keep the weights in `dtype` and quantise them in every forward; else they are stored in FP8.

    Attributes: `gate_up_proj`: Fp8GroupedLinear, weight [num_experts, 2 * intermediate_size, hidden_size], gate first.
        `down_proj`: Fp8GroupedLinear, weight [num_experts, hidden_size, intermediate_size].
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        trainable: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        check_sizes(num_experts=num_experts, hidden_size=hidden_size, intermediate_size=intermediate_size)
        super().__init__()
        shapes = ((hidden_size, 2 * intermediate_size), (intermediate_size, hidden_size))
        self.gate_up_proj, self.down_proj = (
            Fp8GroupedLinear(num_experts, *shape, trainable=trainable, device=device, dtype=dtype) for shape in shapes
        )

    @classmethod
    def from_layers(cls, gate_up_proj: Fp8GroupedLinear, down_proj: Fp8GroupedLinear) -> "Fp8Experts":
        """Return the experts of two layers.

        Raises: ArgumentError for other modules; ShapeError unless their groups and features fit together.
        """
        for name, layer in (("gate_up_proj", gate_up_proj), ("down_proj", down_proj)):
            if not isinstance(layer, Fp8GroupedLinear):
                raise ArgumentError(f"{name} = {shorten(layer)}: must be an Fp8GroupedLinear; pass such a layer.")
        found, wanted = gate_up_proj.weight.shape, down_proj.weight.shape
        if (found[0], found[1], found[2]) != (wanted[0], 2 * wanted[2], wanted[1]):
            raise ShapeError(
                f"gate_up_proj.weight.shape = {list(found)}: must be"
                f" {[wanted[0], 2 * wanted[2], wanted[1]]} with down_proj.weight {list(wanted)}; pass layers that fit."
            )
        experts = cls.__new__(cls)
        torch.nn.Module.__init__(experts)
        experts.gate_up_proj, experts.down_proj = gate_up_proj, down_proj
        return experts.train(gate_up_proj.is_trainable)

    @classmethod
    def from_experts(cls, experts: Iterable[torch.nn.Module], *, trainable: bool | None = None) -> "Fp8Experts":
        """Return the experts of modules with `gate_proj`, `up_proj` and `down_proj`, as models in transformers have
        them: all torch.nn.Linear without bias, or all Fp8Linear with stored weights. Weights are copied.

        Raises: ArgumentError for other modules and layers, and for none; ShapeError where they differ in shape, or
            where the gates of stored weights have no multiple of 128 features.
        """
        experts = list_modules("experts", experts)
        for one in experts:
            if not all(hasattr(one, name) for name in PROJECTIONS):
                raise ArgumentError(
                    f"experts: have {type(one).__name__}, must have gate_proj, up_proj and down_proj; use from_layers"
                    " for others."
                )
        if isinstance(experts[0].gate_proj, Fp8Linear):
            return cls._join_stored(experts)
        trainable = experts[0].training if trainable is None else trainable
        gate, up, down = (
            Fp8GroupedLinear.from_linears([getattr(one, name) for one in experts], trainable=True).weight.detach()
            for name in PROJECTIONS
        )
        layers = (
            Fp8GroupedLinear.from_weight(weight, trainable=trainable) for weight in (torch.cat((gate, up), 1), down)
        )
        return cls.from_layers(*layers)

    @classmethod
    def from_fused(cls, experts: torch.nn.Module, *, trainable: bool | None = None) -> "Fp8Experts":
        """Return the experts of one module with parameters `gate_up_proj` [experts, 2 * width, hidden], gate first, and
        `down_proj` [experts, hidden, width], as models in transformers 5 have them; parameters are shared where they
        are to be trained, by default in training mode. A state dict of that module loads into the result.

        Raises: ArgumentError where its layout or activation is another one; ShapeError for sizes that are no multiples
            of 16.
        """
        if not isinstance(experts, torch.nn.Module) or not holds_experts(experts):
            raise ArgumentError(
                f"experts = {type(experts).__name__}: must be SwiGLU networks with the weights gate_up_proj"
                " [experts, 2 * width, hidden], gate first, and down_proj [experts, hidden, width] alone; use"
                " from_layers for others."
            )
        trainable = experts.training if trainable is None else trainable
        layers = (
            Fp8GroupedLinear.from_weight(weight, trainable=trainable)
            for weight in (experts.gate_up_proj, experts.down_proj)
        )
        return cls.from_layers(*layers).train(experts.training)

    def _load_from_state_dict(self, state_dict, prefix, *rest) -> None:
        """Load a state dict that names the weights as `from_fused` finds them, too."""
        for name in ("gate_up_proj", "down_proj"):
            if f"{prefix}{name}" in state_dict:
                state_dict[f"{prefix}{name}.weight"] = state_dict.pop(f"{prefix}{name}")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @classmethod
    def _join_stored(cls, experts: list[torch.nn.Module]) -> "Fp8Experts":
        """Return the experts of stored weights, whose blocks stay as they are."""
        if experts[0].gate_proj.out_features % SCALE_BLOCK:
            raise ShapeError(
                f"gate_proj.out_features = {experts[0].gate_proj.out_features}: must be a multiple of {SCALE_BLOCK}, or"
                " blocks of gate and up would share scales; pass torch.nn.Linear layers."
            )
        gate, up, down = (_stack([getattr(one, name) for one in experts]) for name in PROJECTIONS)
        gate_up = [torch.cat(parts, 1) for parts in zip(gate, up, strict=True)]
        return cls.from_layers(Fp8GroupedLinear.from_checkpoint(*gate_up), Fp8GroupedLinear.from_checkpoint(*down))

    def forward(
        self,
        x: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
        *,
        layout: str | None = None,
    ) -> torch.Tensor:
        """Return the weighted sum of every token's experts, of x's shape and dtype, or that of autocast.

        Args:
            x: [..., hidden_size].
            top_k_index: integers [tokens, top_k], the experts of each token, 0 .. num_experts - 1; tokens are the rows
                of x. Numbers on a GPU are not checked, for which the host would wait.
            top_k_weights: [tokens, top_k] of a floating dtype. Their gradient, and that of x and of weights that train,
                are defined.
            layout: "contiguous", "masked" (without gradients only), or None: masked for at most 64 tokens where no
                gradient is wanted.

        Raises: ArgumentError, DtypeError, ShapeError.
        """
        check_tensors(x=x)
        check_rows(x)
        check_last_dim(x, self.gate_up_proj.in_features, False)
        rows = x.reshape(-1, x.shape[-1])
        _check_routing(rows, top_k_index, top_k_weights, self.gate_up_proj.num_groups)
        operands = (rows, top_k_weights, self.gate_up_proj.weight, self.down_proj.weight)
        has_gradient = torch.is_grad_enabled() and any(operand.requires_grad for operand in operands)
        is_masked = self._is_masked(rows.shape[0], has_gradient, layout)
        run = self._run_masked if is_masked else self._run_for_training if has_gradient else self._run_contiguous
        return run(rows, top_k_index.long(), top_k_weights.float()).view(x.shape)

    def _is_masked(self, tokens: int, has_gradient: bool, layout: str | None) -> bool:
        if not (layout is None or isinstance(layout, str)) or layout not in LAYOUTS:
            raise ArgumentError(
                f"layout = {shorten(layout)}: must be 'contiguous', 'masked' or None; pass one of them."
            )
        if has_gradient and layout == "masked":
            raise ArgumentError("layout = 'masked': has no backward; call under torch.no_grad(), or leave it out.")
        return layout == "masked" or (layout is None and not has_gradient and tokens <= MASKED_TOKENS)

    def _run_contiguous(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        groups = self.gate_up_proj.num_groups
        (rows, num_rows, ends), expected_m = place_contiguous(index, groups), ceil_div(index.numel(), groups)
        hidden = self.gate_up_proj.forward_tokens(x, rows, num_rows, ends, expected_m)
        out = self.down_proj(hidden, ends, is_swiglu=True, expected_m=expected_m)
        return nn_combine(out, rows, weights)

    def _run_for_training(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        placement = place_contiguous(index, self.gate_up_proj.num_groups)
        spread = nn_spread(x, placement.rows, None, placement.num_rows)
        hidden = self.gate_up_proj(spread, placement.groups)
        out = self.down_proj(hidden, placement.groups, is_swiglu=True)
        return nn_combine(out, placement.rows, weights)

    def _run_masked(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        groups = self.gate_up_proj.num_groups
        placement, expected_m = place_masked(index, groups), ceil_div(index.numel(), groups)
        spread = nn_spread(x, placement.rows, None, placement.num_rows, False).view(groups, *x.shape)
        hidden = self.gate_up_proj.forward_masked(spread, placement.groups, expected_m)
        out = self.down_proj.forward_masked(hidden, placement.groups, expected_m, is_swiglu=True)
        return nn_combine(out.flatten(0, 1), placement.rows, weights)


def _stack(layers: list[Fp8Linear]) -> list[torch.Tensor]:
    """Return weights and scales of stored layers, one after the other."""
    for layer in layers:
        if not isinstance(layer, Fp8Linear) or layer.is_trainable or layer.bias is not None:
            raise ArgumentError(
                f"experts: have {layer}, must all be Fp8Linear, stored and without bias; pass such ones."
            )
    weights = torch.stack([layer.weight.detach().view(torch.uint8) for layer in layers])  # torch stacks no FP8
    return [weights.view(FP8), torch.stack([layer.state_dict()["weight_scale_inv"] for layer in layers])]


def _check_routing(rows: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, num_experts: int) -> None:
    check_tensors(top_k_index=index, top_k_weights=weights)
    if index.is_floating_point() or index.is_complex() or index.dtype is torch.bool:
        raise DtypeError(f"top_k_index.dtype = {index.dtype}: must be integers; convert it with .long().")
    if not weights.is_floating_point():
        raise DtypeError(f"top_k_weights.dtype = {weights.dtype}: must be a floating dtype; convert it with .float().")
    if index.dim() != 2 or index.shape[0] != rows.shape[0] or index.shape != weights.shape:
        raise ShapeError(
            f"top_k_index.shape = {list(index.shape)}, top_k_weights.shape = {list(weights.shape)}: both must be"
            f" [{rows.shape[0]}, top_k]; pass one row for each token."
        )
    if torch.compiler.is_compiling():
        return
    if torch._C._functorch.is_batchedtensor(index):
        raise ArgumentError(
            "top_k_index: torch.vmap maps over it, but tokens are placed by one routing; give the tokens of all in one"
            " call, or map over x and top_k_weights alone."
        )
    if index.is_cpu and index.numel():
        _check_choices(index, num_experts)


def _check_choices(index: torch.Tensor, num_experts: int) -> None:
    """Check the numbers of a routing, which a graph that is being recorded must not ask for."""
    if is_fake(index) or tracing.is_recording():
        return
    least, most = (int(value) for value in index.long().aminmax())  # torch has none of unsigned integers
    if least < 0 or most >= num_experts:
        raise ArgumentError(
            f"top_k_index: holds {least if least < 0 else most}, must be experts 0..{num_experts - 1}; give a choice"
            " that does not count one of them and the weight 0."
        )
