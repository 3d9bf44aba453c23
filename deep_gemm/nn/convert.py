"""Puts FP8 layers in the place of a model's torch.nn.Linear layers and experts."""

from collections.abc import Callable

import torch

from deep_gemm.arguments import shorten
from deep_gemm.errors import ArgumentError
from deep_gemm.nn.experts import Fp8Experts
from deep_gemm.nn.fused import holds_experts
from deep_gemm.nn.linear import Fp8Linear
from deep_gemm.nn.products import FEATURE_MULTIPLE

#: Names, in models of transformers, of the head, of routers and of the weights of index heads.
KEPT = ("lm_head", "gate", "router", "weights_proj")
#: Takes a module and its full name in the model.
Filter = Callable[[torch.nn.Module, str], bool]


def is_suitable(module: torch.nn.Module, name: str) -> bool:
    """Return whether a module is to be replaced where nobody says otherwise.

    A torch.nn.Linear, no subclass, whose features are multiples of 16, and no head or router by its name
    (`KEPT`): logits and the choice of experts keep the model's precision. Experts in one module (deep_gemm.nn.fused)
    whose features are multiples of 16.

    Raises: ArgumentError for what is no module or no name.
    """
    if not isinstance(module, torch.nn.Module) or not isinstance(name, str):
        raise ArgumentError(
            f"module = {shorten(type(module))}, name = {shorten(name)}: must be a torch.nn.Module and a str; pass"
            " what model.named_modules() gives."
        )
    if holds_experts(module):
        return _are_multiples(module.down_proj.shape[1:])
    is_linear = type(module) is torch.nn.Linear
    return is_linear and _are_multiples(module.weight.shape) and name.rpartition(".")[2] not in KEPT


def _are_multiples(sizes: torch.Size) -> bool:
    return all(size > 0 and size % FEATURE_MULTIPLE == 0 for size in sizes)


def quantize_(
    model: torch.nn.Module, filter_fn: Filter | None = None, *, trainable: bool | None = None
) -> torch.nn.Module:
    """Replace torch.nn.Linear layers, and experts in one module, of a model by FP8 layers, in place.

    Args:
        filter_fn: which modules, called with a module and its full name; other modules than these two kinds are left
            alone in any case. Default: `is_suitable`.
        trainable: True: the layers share the parameters of those that they replace, and train. False: weights are
            stored in FP8. Default: True for layers in training mode, False for those after `model.eval()`.

    Returns: the model, or its FP8 layer where the model itself is such a module.
    Guarantees: a module that is used under several names is replaced by one layer.
    Raises: ArgumentError for what is no module or no function; ShapeError where `filter_fn` chooses a layer whose
        features are no multiples of 16. Nothing is replaced then.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model = {shorten(model)}: must be a torch.nn.Module; pass a model.")
    if filter_fn is not None and not callable(filter_fn):
        raise ArgumentError(f"filter_fn = {shorten(filter_fn)}: must take a module and its name; pass a function.")
    wanted = filter_fn or is_suitable
    chosen = [module for name, module in model.named_modules() if _is_replaceable(module) and wanted(module, name)]
    layers = {module: _replace(module, trainable) for module in chosen}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children leaves second names out
            if child in layers:
                setattr(parent, name, layers[child])
    return layers.get(model, model)


def _is_replaceable(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or holds_experts(module)


def _replace(module: torch.nn.Module, trainable: bool | None) -> torch.nn.Module:
    if isinstance(module, torch.nn.Linear):
        return Fp8Linear.from_linear(module, trainable=trainable)
    return Fp8Experts.from_fused(module, trainable=trainable)
