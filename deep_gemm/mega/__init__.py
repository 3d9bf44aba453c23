"""A whole layer of experts across GPUs ("mega MoE"), with the names of DeepGEMM.

On SM90 it takes FP8 tokens and weights, in a process for each GPU (layer.py): prepare the weights and make a buffer
once, then fill the buffer and call the layer in each step.

    buffer = deep_gemm.get_symm_buffer_for_sm90_mega_moe(group, num_experts, most_tokens, top_k, hidden, intermediate)
    l1, l2 = deep_gemm.transform_weights_for_mega_moe_sm90(gate_up, down)
    deep_gemm.mega_moe_pre_dispatch_sm90(
        x, experts, weights, buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, num_tokens=len(x)
    )
    deep_gemm.fp8_mega_moe(y, l1, l2, buffer)

The names for weights in FP4 and in BF16 can be imported, and raise: their kernels are for SM100.
"""

from deep_gemm.mega.buffer import SymmBuffer, get_symm_buffer_for_mega_moe
from deep_gemm.mega.layer import fp8_mega_moe
from deep_gemm.mega.operands import mega_moe_pre_dispatch_sm90, transform_weights_for_mega_moe_sm90
from deep_gemm.sm100 import make_refusal

_PURPOSE = "a mixture-of-experts layer in one kernel"
_INSTEAD = "use fp8_mega_moe, or the m_grouped ops, one for each product of the layer"

SM90SymmBuffer = SymmBuffer
fp8_mega_moe_sm90 = fp8_mega_moe
get_symm_buffer_for_sm90_mega_moe = get_symm_buffer_for_mega_moe
transform_weights_for_mega_moe = make_refusal("transform_weights_for_mega_moe", _PURPOSE, _INSTEAD)
fp8_fp4_mega_moe = make_refusal("fp8_fp4_mega_moe", _PURPOSE, _INSTEAD)
fp4_fp4_mega_moe = make_refusal("fp4_fp4_mega_moe", _PURPOSE, _INSTEAD)
bf16_mega_moe = make_refusal("bf16_mega_moe", _PURPOSE, _INSTEAD)

__all__ = [
    "SM90SymmBuffer",
    "SymmBuffer",
    "bf16_mega_moe",
    "fp4_fp4_mega_moe",
    "fp8_fp4_mega_moe",
    "fp8_mega_moe",
    "fp8_mega_moe_sm90",
    "get_symm_buffer_for_mega_moe",
    "get_symm_buffer_for_sm90_mega_moe",
    "mega_moe_pre_dispatch_sm90",
    "transform_weights_for_mega_moe",
    "transform_weights_for_mega_moe_sm90",
]
