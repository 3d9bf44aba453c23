"""What a graph records in place of a call of a public op, one maker for each kind of op.

A stand-in has the signature of its op, which substitute_in_graph compares. It calls `node` in the graph, and `leave`
with what no graph can hold: for Dynamo that is the op itself, after a graph break.
"""

import functools
from collections.abc import Callable

import torch

from deep_gemm import _C, vendor
from deep_gemm.library import CONTIGUOUS_LAYOUTS, FP8_K_LAYOUTS, LAYOUTS


def list_makers() -> list[tuple[Callable, list[Callable]]]:
    """Return (maker of a stand-in, the ops that it is for)."""
    return [
        (_make_fp8, [getattr(_C, f"fp8_gemm_{layout}") for layout in LAYOUTS]),
        (_make_bf16, [getattr(_C, f"bf16_gemm_{layout}") for layout in LAYOUTS]),
        (_make_vendor, [getattr(vendor, f"cublaslt_gemm_{layout}") for layout in LAYOUTS]),
        (_make_heads, [_C.fp8_gemm_nt_skip_head_mid]),
        (
            _make_fp8_contiguous,
            [getattr(_C, f"m_grouped_fp8_gemm_{layout}_contiguous") for layout in CONTIGUOUS_LAYOUTS],
        ),
        (
            _make_bf16_contiguous,
            [getattr(_C, f"m_grouped_bf16_gemm_{layout}_contiguous") for layout in CONTIGUOUS_LAYOUTS],
        ),
        (_make_fp8_masked, [_C.m_grouped_fp8_gemm_nt_masked]),
        (_make_bf16_masked, [_C.m_grouped_bf16_gemm_nt_masked]),
        (_make_fp8_k, [getattr(_C, f"k_grouped_fp8_gemm_{layout}_contiguous") for layout in FP8_K_LAYOUTS]),
        (_make_bf16_k, [_C.k_grouped_bf16_gemm_tn_contiguous]),
    ]


def _make_fp8(node: Callable, leave: Callable) -> Callable:
    def stand_in(
        a, b, d, c=None, recipe=None, compiled_dims=None, disable_ue8m0_cast=False, *, alpha=1.0, beta=1.0, stream=None
    ):
        if stream is not None or not (_are_pairs(a, b) and _are_tensors(*a, *b, d, c) and _are_numbers(alpha, beta)):
            return leave(a, b, d, c, recipe, compiled_dims, disable_ue8m0_cast, alpha=alpha, beta=beta, stream=stream)
        return node(*a, *b, d, c, recipe, compiled_dims, disable_ue8m0_cast, alpha=float(alpha), beta=float(beta))

    return stand_in


def _make_heads(node: Callable, leave: Callable) -> Callable:
    def stand_in(a, b, d, head_splits, recipe=None, compiled_dims=None, disable_ue8m0_cast=False):
        if not (_are_pairs(a, b) and _are_tensors(*a, *b, d)):
            return leave(a, b, d, head_splits, recipe, compiled_dims, disable_ue8m0_cast)
        return node(*a, *b, d, head_splits, recipe, compiled_dims, disable_ue8m0_cast)

    return stand_in


def _make_bf16(node: Callable, leave: Callable) -> Callable:
    def stand_in(a, b, d, c=None, compiled_dims=None, *, alpha=1.0, beta=1.0, stream=None):
        if stream is not None or not (_are_tensors(a, b, d, c) and _are_numbers(alpha, beta)):
            return leave(a, b, d, c, compiled_dims, alpha=alpha, beta=beta, stream=stream)
        return node(a, b, d, c, compiled_dims, alpha=float(alpha), beta=float(beta))

    return stand_in


def _make_vendor(node: Callable, leave: Callable) -> Callable:
    def stand_in(a, b, d, c=None):
        return node(a, b, d, c) if _are_tensors(a, b, d, c) else leave(a, b, d, c)

    return stand_in


def _make_fp8_contiguous(node: Callable, leave: Callable) -> Callable:
    def stand_in(a, b, d, m_indices, recipe=None, compiled_dims=None, disable_ue8m0_cast=False, *, stream=None):
        if stream is not None or not (_are_pairs(a, b) and _are_tensors(*a, *b, d, m_indices)):
            return leave(a, b, d, m_indices, recipe, compiled_dims, disable_ue8m0_cast, stream=stream)
        return node(*a, *b, d, m_indices, recipe, compiled_dims, disable_ue8m0_cast)

    return _accept_aliases(stand_in, {"grouped_layout": "m_indices"})


def _make_bf16_contiguous(node: Callable, leave: Callable) -> Callable:
    def stand_in(a, b, d, m_indices, compiled_dims=None, *, stream=None):
        if stream is not None or not _are_tensors(a, b, d, m_indices):
            return leave(a, b, d, m_indices, compiled_dims, stream=stream)
        return node(a, b, d, m_indices, compiled_dims)

    return _accept_aliases(stand_in, {"grouped_layout": "m_indices"})


def _make_fp8_masked(node: Callable, leave: Callable) -> Callable:
    def stand_in(
        a, b, d, masked_m, expected_m, recipe=None, compiled_dims=None, disable_ue8m0_cast=False, *, stream=None
    ):
        if stream is not None or not (
            _are_pairs(a, b) and _are_tensors(*a, *b, d, masked_m) and _are_integers(expected_m)
        ):
            return leave(a, b, d, masked_m, expected_m, recipe, compiled_dims, disable_ue8m0_cast, stream=stream)
        return node(*a, *b, d, masked_m, expected_m, recipe, compiled_dims, disable_ue8m0_cast)

    return _accept_aliases(stand_in, {"expected_m_per_group": "expected_m"})


def _make_bf16_masked(node: Callable, leave: Callable) -> Callable:
    def stand_in(a, b, d, masked_m, expected_m, compiled_dims=None, *, stream=None):
        if stream is not None or not (_are_tensors(a, b, d, masked_m) and _are_integers(expected_m)):
            return leave(a, b, d, masked_m, expected_m, compiled_dims, stream=stream)
        return node(a, b, d, masked_m, expected_m, compiled_dims)

    return _accept_aliases(stand_in, {"expected_m_per_group": "expected_m"})


def _make_fp8_k(node: Callable, leave: Callable) -> Callable:
    def stand_in(a, b, d, ks, ks_tensor=None, c=None, recipe=(1, 1, 128), compiled_dims=None, *, stream=None):
        if stream is not None or not (_are_pairs(a, b) and _are_tensors(*a, *b, d, ks_tensor, c) and _are_sizes(ks)):
            return leave(a, b, d, ks, ks_tensor, c, recipe, compiled_dims, stream=stream)
        return node(*a, *b, d, ks, ks_tensor, c, recipe, compiled_dims)

    return _accept_aliases(stand_in, {"ks_cpu": "ks", "grouped_layout": "ks_tensor"})


def _make_bf16_k(node: Callable, leave: Callable) -> Callable:
    def stand_in(a, b, d, ks, ks_tensor=None, c=None, compiled_dims=None, *, stream=None):
        if stream is not None or not (_are_tensors(a, b, d, ks_tensor, c) and _are_sizes(ks)):
            return leave(a, b, d, ks, ks_tensor, c, compiled_dims, stream=stream)
        return node(a, b, d, ks, ks_tensor, c, compiled_dims)

    return _accept_aliases(stand_in, {"ks_cpu": "ks", "grouped_layout": "ks_tensor"})


def _accept_aliases(stand_in: Callable, aliases: dict[str, str]) -> Callable:
    """Return a stand-in that takes arguments under their second names, too; whoever gives both names is told of the
    second.
    """

    @functools.wraps(stand_in)  # keeps its signature
    def renaming(*values, **named):
        for alias, name in aliases.items():
            if alias in named and name not in named:
                named[name] = named.pop(alias)
        return stand_in(*values, **named)

    return renaming


def _are_pairs(*operands) -> bool:
    return all(isinstance(operand, (tuple, list)) and len(operand) == 2 for operand in operands)


def _are_tensors(*operands) -> bool:
    return all(operand is None or isinstance(operand, torch.Tensor) for operand in operands)


def _are_numbers(*factors) -> bool:
    return all(isinstance(factor, (int, float)) for factor in factors)


def _are_integers(*numbers) -> bool:
    return all(isinstance(number, (int, torch.SymInt)) for number in numbers)


def _are_sizes(sizes) -> bool:
    return isinstance(sizes, (tuple, list)) and _are_integers(*sizes)
