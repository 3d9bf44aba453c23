"""Experts in one module, as models in transformers 5 have them: which of those Fp8Experts can take the place of."""

import inspect
from collections.abc import Callable

import torch

#: Values of gate and up on which an activation is tried: small ones, and beyond the limits at which some models clamp.
_TRIED = (-60.0, -9.0, -1.5, -0.1, 0.0, 0.4, 2.0, 9.0, 60.0)
#: Marks by which transformers tells other layouts apart; a module may lack them.
_OTHER_LAYOUTS = {"is_transposed": True, "has_bias": True, "has_post_expert_norm": True, "is_concatenated": False}


def holds_experts(module: torch.nn.Module) -> bool:
    """Return whether a module computes what Fp8Experts does, called in the same way.

    Its only tensors are `gate_up_proj` [experts, 2 * width, hidden], gate first, and `down_proj` [experts, hidden,
    width]; it has an activation `act_fn`, or a method `_apply_gate` for rows [gate, up], which computes SwiGLU; and its
    forward takes tokens, indices and weights.
    """
    return (
        _has_weights(module)
        and not any(getattr(module, name, not mark) is mark for name, mark in _OTHER_LAYOUTS.items())
        and len(inspect.signature(module.forward).parameters) == 3
        and _is_swiglu(module)
    )


def _has_weights(module: torch.nn.Module) -> bool:
    found = dict(module.named_parameters()) | dict(module.named_buffers())
    if found.keys() != {"gate_up_proj", "down_proj"} or found["down_proj"].dim() != 3:
        return False
    experts, hidden, width = found["down_proj"].shape
    return tuple(found["gate_up_proj"].shape) == (experts, 2 * width, hidden)


def _is_swiglu(module: torch.nn.Module) -> bool:
    """Return whether the activation gives silu(gate) * up wherever it is tried."""
    tried = torch.tensor(_TRIED, dtype=torch.float64, device="cpu")
    gate, up = tried.repeat_interleave(len(tried)), tried.repeat(len(tried))
    whole: Callable | None = getattr(module, "_apply_gate", None)
    part: Callable | None = getattr(module, "act_fn", None)
    if part is None:
        return False
    try:
        found = part(gate) * up if whole is None else whole(torch.cat((gate, up))[None])[0]
    except (RuntimeError, TypeError, NotImplementedError):  # it takes other numbers than these
        return False
    return found.shape == gate.shape and torch.allclose(found, torch.nn.functional.silu(gate) * up)
