"""The ops as `torch.ops.deep_gemm.*`: what a compiled or exported graph holds in place of a call.

They are flat forms of the public ops: an FP8 pair is two arguments (`a, scale_a`), and there is no `stream`, which a
graph cannot hold. Each writes `d` and returns nothing; `c` may be `d` itself, as in the public op. `ks` and
`expected_m` may be symbolic: a graph holds for all of their values. They are registered through `torch.library.Library`
because the wrapper that `torch.library.custom_op` puts around an op costs many times a launch.
"""

from collections.abc import Callable

import torch

from deep_gemm import _C, vendor

LAYOUTS = ("nt", "nn", "tn", "tt")
CONTIGUOUS_LAYOUTS = ("nt", "nn")
FP8_K_LAYOUTS = ("nt", "tn")

_PAIRS = "Tensor a, Tensor scale_a, Tensor b, Tensor scale_b, Tensor(d!) d"
_MATRICES = "Tensor a, Tensor b, Tensor(d!) d"
_FP8_OPTIONS = "int[]? recipe=None, str? compiled_dims=None, bool disable_ue8m0_cast=False"
_FACTORS = "*, float alpha=1.0, float beta=1.0"
_FP8_SCHEMA = f"({_PAIRS}, Tensor? c=None, {_FP8_OPTIONS}, {_FACTORS}) -> ()"
_HEADS_SCHEMA = f"({_PAIRS}, int[] head_splits, {_FP8_OPTIONS}) -> ()"
_BF16_SCHEMA = f"({_MATRICES}, Tensor? c=None, str? compiled_dims=None, {_FACTORS}) -> ()"
_VENDOR_SCHEMA = f"({_MATRICES}, Tensor? c=None) -> ()"
_FP8_CONTIGUOUS_SCHEMA = f"({_PAIRS}, Tensor m_indices, {_FP8_OPTIONS}) -> ()"
_BF16_CONTIGUOUS_SCHEMA = f"({_MATRICES}, Tensor m_indices, str? compiled_dims=None) -> ()"
_FP8_MASKED_SCHEMA = f"({_PAIRS}, Tensor masked_m, SymInt expected_m, {_FP8_OPTIONS}) -> ()"
_BF16_MASKED_SCHEMA = f"({_MATRICES}, Tensor masked_m, SymInt expected_m, str? compiled_dims=None) -> ()"
_GROUPS_OF_K = "SymInt[] ks, Tensor? ks_tensor=None, Tensor? c=None"
_FP8_K_SCHEMA = f"({_PAIRS}, {_GROUPS_OF_K}, int[]? recipe=None, str? compiled_dims=None) -> ()"
_BF16_K_SCHEMA = f"({_MATRICES}, {_GROUPS_OF_K}, str? compiled_dims=None) -> ()"

#: Operands reach an op with the strides that the program gave them: another layout would be another kernel, or one that
#: TMA cannot read.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

_LIBRARY = torch.library.Library("deep_gemm", "FRAGMENT")


def register_ops() -> None:
    """Register every public op, with its checks as the fake implementation, for tensors of every device."""
    for layout in LAYOUTS:
        _register_fp8(f"fp8_gemm_{layout}", _FP8_SCHEMA)
        _register_bf16(f"bf16_gemm_{layout}", _BF16_SCHEMA)
        _register_vendor(layout)
    _register_fp8("fp8_gemm_nt_skip_head_mid", _HEADS_SCHEMA)
    for layout in CONTIGUOUS_LAYOUTS:
        _register_fp8(f"m_grouped_fp8_gemm_{layout}_contiguous", _FP8_CONTIGUOUS_SCHEMA)
        _register_bf16(f"m_grouped_bf16_gemm_{layout}_contiguous", _BF16_CONTIGUOUS_SCHEMA)
    _register_fp8("m_grouped_fp8_gemm_nt_masked", _FP8_MASKED_SCHEMA)
    _register_bf16("m_grouped_bf16_gemm_nt_masked", _BF16_MASKED_SCHEMA)
    for layout in FP8_K_LAYOUTS:
        _register_fp8(f"k_grouped_fp8_gemm_{layout}_contiguous", _FP8_K_SCHEMA)
    _register_bf16("k_grouped_bf16_gemm_tn_contiguous", _BF16_K_SCHEMA)


def _register(name: str, schema: str, run: Callable, fake: Callable | None = None) -> None:
    _LIBRARY.define(name + schema, tags=_TAGS)
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"deep_gemm::{name}", fake or _make_fake(run), lib=_LIBRARY)


def _register_fp8(name: str, schema: str) -> None:
    _register(name, schema, _take_pairs(getattr(_C, name)))


def _register_bf16(name: str, schema: str) -> None:
    _register(name, schema, getattr(_C, name))


def _register_vendor(layout: str) -> None:
    def fake(*operands: torch.Tensor | None) -> None:
        vendor.check_operands(layout, *operands)

    name = f"cublaslt_gemm_{layout}"
    _register(name, _VENDOR_SCHEMA, getattr(vendor, name), fake)


def _take_pairs(op: Callable) -> Callable:
    def run(
        a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, *rest: object, **factors: float
    ) -> None:
        op((a, scale_a), (b, scale_b), *rest, **factors)

    return run


def _make_fake(run: Callable) -> Callable:
    """Return the fake implementation: the op itself, which of tensors without memory checks all that needs none.

    Reading a symbolic size would fix it, so the checks of such operands wait for the call.
    """

    def fake(*operands: object, **factors: float) -> None:
        if not any(isinstance(number, torch.SymInt) for operand in operands for number in _numbers_of(operand)):
            run(*operands, **factors)

    return fake


def _numbers_of(operand: object) -> tuple:
    """Return what of an operand may be symbolic: sizes and strides, the integers of a list, or itself."""
    if isinstance(operand, torch.Tensor):
        return (*operand.shape, *operand.stride())
    return tuple(operand) if isinstance(operand, (list, tuple)) else (operand,)
