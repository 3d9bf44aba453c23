"""The ops as `torch.ops.deep_gemm.*`: what a compiled or exported graph holds in place of a call.

They are flat forms of the public ops: an FP8 pair is two arguments (`a, scale_a`), and there is no `stream`, which a graph cannot hold.
Each writes `d` and returns nothing; `c` may be `d` itself, as in the public op. They are registered through `torch.library.Library`
because the wrapper that `torch.library.custom_op` puts around an op costs many times a launch.
"""

from collections.abc import Callable

import torch

from deep_gemm import _C, vendor

LAYOUTS = ("nt", "nn", "tn", "tt")

_PAIRS = "Tensor a, Tensor scale_a, Tensor b, Tensor scale_b, Tensor(d!) d"
_FP8_OPTIONS = "int[]? recipe=None, str? compiled_dims=None, bool disable_ue8m0_cast=False"
_FACTORS = "*, float alpha=1.0, float beta=1.0"
_FP8_SCHEMA = f"({_PAIRS}, Tensor? c=None, {_FP8_OPTIONS}, {_FACTORS}) -> ()"
_HEADS_SCHEMA = f"({_PAIRS}, int[] head_splits, {_FP8_OPTIONS}) -> ()"
_BF16_SCHEMA = f"(Tensor a, Tensor b, Tensor(d!) d, Tensor? c=None, str? compiled_dims=None, {_FACTORS}) -> ()"
_VENDOR_SCHEMA = "(Tensor a, Tensor b, Tensor(d!) d, Tensor? c=None) -> ()"

#: Operands reach an op with the strides that the program gave them: another layout would be another kernel, or one that TMA cannot read.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

_LIBRARY = torch.library.Library("deep_gemm", "FRAGMENT")


def register_ops() -> None:
    """Register every public op, with its checks as the fake implementation, for tensors of every device."""
    for layout in LAYOUTS:
        fp8, bf16 = f"fp8_gemm_{layout}", f"bf16_gemm_{layout}"
        _register(fp8, _FP8_SCHEMA, _take_pairs(getattr(_C, fp8)))
        _register(bf16, _BF16_SCHEMA, getattr(_C, bf16))
        _register_vendor(layout)
    _register("fp8_gemm_nt_skip_head_mid", _HEADS_SCHEMA, _take_pairs(_C.fp8_gemm_nt_skip_head_mid))


def _register(name: str, schema: str, run: Callable, fake: Callable | None = None) -> None:
    _LIBRARY.define(name + schema, tags=_TAGS)
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"deep_gemm::{name}", fake or _make_fake(run), lib=_LIBRARY)


def _register_vendor(layout: str) -> None:
    def fake(*operands: torch.Tensor | None) -> None:
        vendor.check_operands(layout, *operands)

    name = f"cublaslt_gemm_{layout}"
    _register(name, _VENDOR_SCHEMA, getattr(vendor, name), fake)


def _take_pairs(op: Callable) -> Callable:
    def run(a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, *rest: object, **factors: float) -> None:
        op((a, scale_a), (b, scale_b), *rest, **factors)

    return run


def _make_fake(run: Callable) -> Callable:
    """Return the fake implementation: the op itself, which of tensors without memory checks all that needs none.

    Reading a symbolic size would fix it, so the checks of such operands wait for the call.
    """

    def fake(*operands: object, **factors: float) -> None:
        tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
        sizes = [size for tensor in tensors for size in (*tensor.shape, *tensor.stride())]
        if not any(isinstance(size, torch.SymInt) for size in sizes):
            run(*operands, **factors)

    return fake
