"""Names of the API whose kernels run on SM100 only: they can be imported, and say so when they are called."""

from collections.abc import Callable

from deep_gemm.errors import DeviceError

#: What each name is for.
_PURPOSES = {
    **dict.fromkeys(
        (
            "fp4_gemm_nt",
            "m_grouped_fp4_gemm_nt_contiguous",
            "m_grouped_fp4_gemm_nt_masked",
            "k_grouped_fp4_gemm_nt_contiguous",
            "cublaslt_nvfp4_gemm_nt",
        ),
        "products of FP4 operands",
    ),
    "get_mqa_logits_metadata": "the schedule of MQA logits",
    "get_sparse_mqa_logits_metadata": "the schedule of sparse MQA logits",
    "get_paged_sparse_mqa_logits_metadata": "the schedule of sparse paged MQA logits",
    "fp8_fp4_sparse_mqa_logits": "sparse MQA logits",
    "fp8_fp4_paged_sparse_mqa_logits": "sparse paged MQA logits",
    "mega_mhc": "hyper-connections in one kernel",
    "bf16_mega_gate": "expert gates in one kernel",
    "get_bf16_mega_gate_config": "the config of expert gates in one kernel",
    "get_block_m_for_mega_moe": "rows of a tile of a layer of experts in one kernel",
}


def make_refusal(name: str, purpose: str, instead: str = "use the ops of SM90") -> Callable:
    """Return a function called `name` that takes anything and raises DeviceError."""

    def refuse(*arguments: object, **options: object) -> None:
        raise DeviceError(f"{name}(): {purpose}: SM100 only, and this package has the kernels of SM90; {instead}.")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"SM100 only: {purpose}. Raises: DeviceError."
    return refuse


#: Name -> a function that raises.
EXPORTS = {name: make_refusal(name, purpose) for name, purpose in _PURPOSES.items()}
