"""DeepGEMM's kernels of a whole mixture-of-experts layer across GPUs ("mega MoE"): SM100 only.

The names can be imported, and raise when they are used. examples/moe_layer.py is such a layer from the ops of SM90.
"""

from deep_gemm.errors import DeviceError
from deep_gemm.sm100 import make_refusal

_PURPOSE = "a mixture-of-experts layer in one kernel"
_INSTEAD = "use the m_grouped ops, one for each product of the layer"


class SymmBuffer:
    """The memory that the GPUs of such a layer share.

    Raises: DeviceError when it is made.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        raise DeviceError(f"SymmBuffer: {_PURPOSE}: SM100 only, and this package has the kernels of SM90; {_INSTEAD}.")


get_symm_buffer_for_mega_moe = make_refusal("get_symm_buffer_for_mega_moe", _PURPOSE, _INSTEAD)
transform_weights_for_mega_moe = make_refusal("transform_weights_for_mega_moe", _PURPOSE, _INSTEAD)
fp8_fp4_mega_moe = make_refusal("fp8_fp4_mega_moe", _PURPOSE, _INSTEAD)
fp4_fp4_mega_moe = make_refusal("fp4_fp4_mega_moe", _PURPOSE, _INSTEAD)
bf16_mega_moe = make_refusal("bf16_mega_moe", _PURPOSE, _INSTEAD)

__all__ = [
    "SymmBuffer",
    "bf16_mega_moe",
    "fp4_fp4_mega_moe",
    "fp8_fp4_mega_moe",
    "get_symm_buffer_for_mega_moe",
    "transform_weights_for_mega_moe",
]
