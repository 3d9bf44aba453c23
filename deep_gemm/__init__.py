"""FP8 and BF16 matrix products for NVIDIA Hopper GPUs: a drop-in for the DeepGEMM API with measured and
learned configurations.

Importing opens no driver and initialises nothing; kernels are compiled by the first call that needs them.
"""

import importlib
from typing import Any

from deep_gemm import legacy, library, mega, ops, sm100, testing, tracing, utils
from deep_gemm._C import (
    Config,
    Device,
    Problem,
    get_candidates,
    get_compile_mode,
    get_device,
    get_num_sms,
    get_pdl,
    get_tc_util,
    is_batch_invariant,
    is_legal,
    set_batch_invariant,
    set_compile_mode,
    set_num_sms,
    set_pdl,
    set_tc_util,
)
from deep_gemm._version import __version__ as __version__
from deep_gemm.dequantize import cast_back_from_fp8
from deep_gemm.fp4 import cast_back_from_fp4, per_token_cast_to_fp4, transpose_packed_fp4
from deep_gemm.group_packing import get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor
from deep_gemm.layout import (
    get_k_alignment_for_contiguous_layout,
    get_m_alignment_for_contiguous_layout,
    get_mk_alignment_for_contiguous_layout,
    get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_tensor,
    get_theoretical_mk_alignment_for_contiguous_layout,
    get_tma_aligned_size,
    set_mk_alignment_for_contiguous_layout,
    transform_sf_into_required_layout,
)
from deep_gemm.mega import (
    SM90SymmBuffer,
    SymmBuffer,
    bf16_mega_moe,
    fp4_fp4_mega_moe,
    fp8_fp4_mega_moe,
    fp8_mega_moe,
    fp8_mega_moe_sm90,
    get_symm_buffer_for_mega_moe,
    get_symm_buffer_for_sm90_mega_moe,
    mega_moe_pre_dispatch_sm90,
    transform_weights_for_mega_moe,
    transform_weights_for_mega_moe_sm90,
)
from deep_gemm.packing import ceil_to_ue8m0, pack_ue8m0_to_int, unpack_ue8m0_from_int
from deep_gemm.policy import (
    get_batch_invariant,
    get_deterministic_algorithms,
    set_block_size_multiple_of,
    set_ignore_compile_dims,
    use_deterministic_algorithms,
)
from deep_gemm.quantize import (
    align,
    ceil_div,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_custom_dims_cast_to_fp8,
    per_token_cast_to_fp8,
    swiglu_per_token_cast_to_fp8,
)
from deep_gemm.selection import get_analytic_config, get_best_config
from deep_gemm.testing import calc_diff
from deep_gemm.warm_up import warmup

__all__ = [
    "Config",
    "Device",
    "Problem",
    "SM90SymmBuffer",
    "SymmBuffer",
    "align",
    "bf16_mega_moe",
    "calc_diff",
    "cast_back_from_fp4",
    "cast_back_from_fp8",
    "ceil_div",
    "ceil_to_ue8m0",
    "fp4_fp4_mega_moe",
    "fp8_fp4_mega_moe",
    "fp8_mega_moe",
    "fp8_mega_moe_sm90",
    "get_analytic_config",
    "get_batch_invariant",
    "get_best_config",
    "get_candidates",
    "get_compile_mode",
    "get_deterministic_algorithms",
    "get_device",
    "get_k_alignment_for_contiguous_layout",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_num_sms",
    "get_pdl",
    "get_symm_buffer_for_mega_moe",
    "get_symm_buffer_for_sm90_mega_moe",
    "get_tc_util",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "get_tma_aligned_size",
    "is_batch_invariant",
    "is_legal",
    "legacy",
    "mega",
    "mega_moe_pre_dispatch_sm90",
    "pack_ue8m0_to_int",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_custom_dims_cast_to_fp8",
    "per_token_cast_to_fp4",
    "per_token_cast_to_fp8",
    "set_batch_invariant",
    "set_block_size_multiple_of",
    "set_compile_mode",
    "set_ignore_compile_dims",
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
    "set_pdl",
    "set_tc_util",
    "swiglu_per_token_cast_to_fp8",
    "testing",
    "transform_sf_into_required_layout",
    "transform_weights_for_mega_moe",
    "transform_weights_for_mega_moe_sm90",
    "transpose_packed_fp4",
    "unpack_ue8m0_from_int",
    "use_deterministic_algorithms",
    "utils",
    "warmup",
]

# The public ops, under all of their names.
globals().update(ops.EXPORTS)
__all__.extend(ops.EXPORTS)
# The names that are here to say that they are not.
globals().update(sm100.EXPORTS)
__all__.extend(sm100.EXPORTS)
__all__.sort()


def __getattr__(name: str) -> Any:
    """Import `deep_gemm.nn` when it is first used: most programs use no layers."""
    if name == "nn":
        return importlib.import_module("deep_gemm.nn")
    raise AttributeError(f"module 'deep_gemm' has no attribute {name!r}")


library.register_ops()
tracing.substitute_when_traced()
