"""Puts FP8 layers in the place of a model's torch.nn.Linear layers."""

from collections.abc import Callable

import torch

from deep_gemm.nn.linear import Fp8Linear
from deep_gemm.nn.products import FEATURE_MULTIPLE

#: Names under which models in transformers have their head and the routers of their experts.
KEPT = ("lm_head", "gate", "router")
#: Takes a module and its full name in the model.
Filter = Callable[[torch.nn.Module, str], bool]


def is_suitable(module: torch.nn.Module, name: str) -> bool:
    """Return whether a module is a torch.nn.Linear, no subclass, whose features are multiples of 16, and neither the
    head nor a router by its name (`KEPT`): logits and the choice of experts keep the model's precision.
    """
    return (
        type(module) is torch.nn.Linear
        and not min(module.weight.shape) < FEATURE_MULTIPLE
        and not any(size % FEATURE_MULTIPLE for size in module.weight.shape)
        and name.rpartition(".")[2] not in KEPT
    )


def quantize_(
    model: torch.nn.Module, filter_fn: Filter | None = None, *, trainable: bool | None = None
) -> torch.nn.Module:
    """Replace torch.nn.Linear layers of a model by FP8 layers, in place.

    Args:
        filter_fn: which modules, called with a module and its full name; modules that are no torch.nn.Linear are left
            alone in any case. Default: `is_suitable`.
        trainable: True: the layers share the parameters of those that they replace, and train. False: weights are
            stored in FP8. Default: True for layers in training mode, False for those after `model.eval()`.

    Returns: the model, or its FP8 layer where the model itself is a torch.nn.Linear.
    Guarantees: a module that is used under several names is replaced by one layer.
    Raises: ShapeError where `filter_fn` chooses a layer whose features are no multiples of 16; nothing is replaced
        then.
    """
    wanted = filter_fn or is_suitable
    chosen = [
        module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and wanted(module, name)
    ]
    layers = {module: Fp8Linear.from_linear(module, trainable=trainable) for module in chosen}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children leaves second names out
            if child in layers:
                setattr(parent, name, layers[child])
    return layers.get(model, model)
