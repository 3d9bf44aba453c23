"""FP8 matrix products for NVIDIA GPUs: a drop-in for the DeepGEMM API with measured and learned configurations.

Importing opens no driver and initialises nothing; kernels are compiled by the first call that needs them.
"""

from deep_gemm import testing, utils
from deep_gemm._C import Config, Device, Problem, fp8_gemm_nt, get_candidates, get_device, get_num_sms, is_legal, set_num_sms
from deep_gemm.layout import get_mn_major_tma_aligned_tensor, get_tma_aligned_size, transform_sf_into_required_layout
from deep_gemm.quantize import (
    align,
    ceil_div,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_custom_dims_cast_to_fp8,
    per_token_cast_to_fp8,
)
from deep_gemm.selection import get_analytic_config, get_best_config

__version__ = "0.1.0"

__all__ = [
    "Config",
    "Device",
    "Problem",
    "align",
    "ceil_div",
    "fp8_gemm_nt",
    "get_analytic_config",
    "get_best_config",
    "get_candidates",
    "get_device",
    "get_mn_major_tma_aligned_tensor",
    "get_num_sms",
    "get_tma_aligned_size",
    "is_legal",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_custom_dims_cast_to_fp8",
    "per_token_cast_to_fp8",
    "set_num_sms",
    "testing",
    "transform_sf_into_required_layout",
    "utils",
]
