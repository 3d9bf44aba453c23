"""Quantisation, under DeepGEMM's module name; it is done in deep_gemm.quantize, .dequantize, .packing and .fp4."""

from deep_gemm.dequantize import cast_back_from_fp8
from deep_gemm.fp4 import cast_back_from_fp4, per_token_cast_to_fp4, transpose_packed_fp4
from deep_gemm.packing import ceil_to_ue8m0, pack_ue8m0_to_int, unpack_ue8m0_from_int
from deep_gemm.quantize import (
    align,
    ceil_div,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_custom_dims_cast_to_fp8,
    per_token_cast_to_fp8,
    swiglu_per_token_cast_to_fp8,
)

__all__ = [
    "align",
    "cast_back_from_fp4",
    "cast_back_from_fp8",
    "ceil_div",
    "ceil_to_ue8m0",
    "pack_ue8m0_to_int",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_custom_dims_cast_to_fp8",
    "per_token_cast_to_fp4",
    "per_token_cast_to_fp8",
    "swiglu_per_token_cast_to_fp8",
    "transpose_packed_fp4",
    "unpack_ue8m0_from_int",
]
