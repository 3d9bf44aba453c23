"""FP8 and BF16 matrix products for NVIDIA GPUs: a drop-in for the DeepGEMM API with measured and learned
configurations.

Importing opens no driver and initialises nothing; kernels are compiled by the first call that needs them.
"""

from deep_gemm import library, ops, testing, tracing, utils
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
from deep_gemm.layout import (
    get_k_alignment_for_contiguous_layout,
    get_m_alignment_for_contiguous_layout,
    get_mk_alignment_for_contiguous_layout,
    get_mn_major_tma_aligned_tensor,
    get_tma_aligned_size,
    set_mk_alignment_for_contiguous_layout,
    transform_sf_into_required_layout,
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
from deep_gemm.warm_up import warmup

__all__ = [
    "Config",
    "Device",
    "Problem",
    "align",
    "ceil_div",
    "get_analytic_config",
    "get_best_config",
    "get_candidates",
    "get_compile_mode",
    "get_device",
    "get_k_alignment_for_contiguous_layout",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_tensor",
    "get_num_sms",
    "get_pdl",
    "get_tc_util",
    "get_tma_aligned_size",
    "is_batch_invariant",
    "is_legal",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_custom_dims_cast_to_fp8",
    "per_token_cast_to_fp8",
    "set_batch_invariant",
    "set_compile_mode",
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
    "set_pdl",
    "set_tc_util",
    "swiglu_per_token_cast_to_fp8",
    "testing",
    "transform_sf_into_required_layout",
    "utils",
    "warmup",
]

# The public ops, under all of their names.
globals().update(ops.EXPORTS)
__all__.extend(ops.EXPORTS)
__all__.sort()

library.register_ops()
tracing.substitute_when_traced()
