"""Every name and keyword of DeepGEMM's API that known callers take, and what SM90 makes of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Name:
    """A row: `path` below deep_gemm, the keywords that callers pass, and whether it only says that it is SM100 only."""

    path: str
    keywords: tuple[str, ...] = ()
    is_refused: bool = False


def _take(path: str, keywords: str = "") -> Name:
    return Name(path, tuple(keywords.split()))


_LAYOUTS = ("nt", "nn", "tn", "tt")
_FP8 = "recipe compiled_dims disable_ue8m0_cast recipe_a recipe_b"
_PSUM = "use_psum_layout"

_MODULES = [
    *(
        _take(path)
        for path in (
            "utils.layout",
            "utils.math",
            "utils.dist.init_dist",
            "utils.dist.uneven_all_gather",
            "testing.numeric",
            "testing.utils",
            "legacy",
            "mega",
            "__version__",
            "__path__",
        )
    ),
    _take("utils.dist.dist_print", "s once_in_node"),
]
_DENSE = [
    *(_take(f"fp8_gemm_{layout}", f"c {_FP8} epilogue alpha") for layout in _LAYOUTS),
    *(_take(f"fp8_fp4_gemm_{layout}", f"c {_FP8} epilogue alpha") for layout in _LAYOUTS),
    *(_take(f"bf16_gemm_{layout}", "c compiled_dims epilogue alpha") for layout in _LAYOUTS),
    *(_take(f"cublaslt_gemm_{layout}", "c") for layout in _LAYOUTS),
    _take("batched_syrk", "a d"),
    _take("batched_symm", "a b d"),
    _take("fp8_gemm_nt_skip_head_mid", "head_splits disable_ue8m0_cast epilogue"),
]
_GROUPED = [
    _take(
        "m_grouped_fp8_gemm_nt_contiguous",
        f"m_indices grouped_layout {_FP8} {_PSUM} epilogue ensure_zero_padding expected_m_for_psum_layout",
    ),
    _take("m_grouped_fp8_gemm_nn_contiguous", f"m_indices {_FP8} {_PSUM} epilogue"),
    *(
        _take(f"m_grouped_fp8_fp4_gemm_{layout}_contiguous", f"grouped_layout {_FP8} {_PSUM} epilogue")
        for layout in ("nt", "nn")
    ),
    *(_take(f"m_grouped_bf16_gemm_{layout}_contiguous", f"m_indices {_PSUM} epilogue") for layout in ("nt", "nn")),
    _take("m_grouped_fp8_gemm_nt_masked", f"masked_m expected_m {_FP8} epilogue"),
    _take("fp8_m_grouped_gemm_nt_masked", f"masked_m expected_m {_FP8} enable_overlap max_block_n signal"),
    _take("m_grouped_fp8_fp4_gemm_nt_masked", f"masked_m expected_m {_FP8} epilogue"),
    _take("m_grouped_bf16_gemm_nt_masked", "masked_m expected_m epilogue"),
    _take("bf16_m_grouped_gemm_nt_masked", "masked_m expected_m_per_group enable_overlap max_block_n signal"),
    _take("k_grouped_fp8_gemm_nt_contiguous", f"ks ks_cpu ks_tensor grouped_layout c recipe {_PSUM} epilogue"),
    _take("k_grouped_fp8_gemm_tn_contiguous", "ks ks_tensor c recipe epilogue"),
    _take("k_grouped_bf16_gemm_tn_contiguous", f"ks ks_tensor c compiled_dims {_PSUM} epilogue"),
]
_ATTENTION = [
    _take("einsum", "c use_cublaslt epilogue"),
    _take("fp8_einsum", "c recipe epilogue"),
    _take("fp8_mqa_logits", "clean_logits max_seqlen_k"),
    _take("fp8_fp4_mqa_logits", "clean_logits max_seqlen_k logits_dtype schedule_meta"),
    _take("get_paged_mqa_logits_metadata", "indices"),
    _take("fp8_paged_mqa_logits", "clean_logits"),
    _take("fp8_fp4_paged_mqa_logits", "indices clean_logits logits_dtype"),
    _take("tf32_hc_prenorm_gemm", "num_splits"),
]
_LAYOUT = [
    _take("transform_sf_into_required_layout", "sf mn k recipe num_groups is_sfa disable_ue8m0_cast"),
    _take("get_mn_major_tma_aligned_tensor"),
    _take("get_mn_major_tma_aligned_packed_ue8m0_tensor"),
    _take("get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor"),
    _take("get_tma_aligned_size", "x element_size"),
    _take("pack_ue8m0_to_int"),
    _take("get_theoretical_mk_alignment_for_contiguous_layout", "expected_m num_groups"),
    *(_take(f"get_{dims}_alignment_for_contiguous_layout") for dims in ("mk", "m", "k")),
    _take("set_mk_alignment_for_contiguous_layout"),
]
_SWITCHES = [
    _take(path)
    for path in (
        "set_num_sms",
        "get_num_sms",
        "set_pdl",
        "get_pdl",
        "set_tc_util",
        "get_tc_util",
        "set_ignore_compile_dims",
        "set_block_size_multiple_of",
        "use_deterministic_algorithms",
        "get_deterministic_algorithms",
        "set_batch_invariant",
        "get_batch_invariant",
        "get_compile_mode",
        "set_compile_mode",
    )
]
_QUANTISATION = [
    _take("per_token_cast_to_fp8", "x use_ue8m0 gran_k use_packed_ue8m0"),
    _take("per_block_cast_to_fp8", "x use_ue8m0 gran_k"),
    _take("per_channel_cast_to_fp8", "x use_ue8m0 gran_k"),
    _take("per_custom_dims_cast_to_fp8", "x dims use_ue8m0"),
    _take("per_token_cast_to_fp4", "x use_ue8m0 gran_k use_packed_ue8m0"),
    _take("cast_back_from_fp4", "gran_k use_packed_ue8m0"),
    _take("cast_back_from_fp8", "gran_k use_packed_ue8m0"),
    *(_take(path) for path in ("transpose_packed_fp4", "ceil_to_ue8m0", "ceil_div", "align", "calc_diff")),
]
_TESTING = [
    _take("testing.calc_diff"),
    _take("testing.count_bytes"),
    _take("testing.bench", "num_warmups num_tests high_precision"),
    _take(
        "testing.bench_kineto",
        "num_tests suppress_kineto_output trace_path flush_l2 with_multiple_kernels barrier",
    ),
    _take("testing.get_arch_major"),
    _take("testing.test_filter"),
    _take("testing.ignore_env"),
    _take("testing.assert_bitwise_equal"),
]
_REFUSED = [
    Name(path, is_refused=True)
    for path in (
        "fp4_gemm_nt",
        "m_grouped_fp4_gemm_nt_contiguous",
        "m_grouped_fp4_gemm_nt_masked",
        "k_grouped_fp4_gemm_nt_contiguous",
        "cublaslt_nvfp4_gemm_nt",
        "get_mqa_logits_metadata",
        "get_sparse_mqa_logits_metadata",
        "get_paged_sparse_mqa_logits_metadata",
        "fp8_fp4_sparse_mqa_logits",
        "fp8_fp4_paged_sparse_mqa_logits",
        "mega_mhc",
        "bf16_mega_gate",
        "get_bf16_mega_gate_config",
        "get_block_m_for_mega_moe",
        "transform_weights_for_mega_moe",
        "fp8_fp4_mega_moe",
        "bf16_mega_moe",
    )
]

_BUFFER = "use_fp8_dispatch activation"
_MEGA = [
    _take("SymmBuffer", _BUFFER),
    *(_take(f"get_symm_buffer_for_{name}mega_moe", _BUFFER) for name in ("", "sm90_")),
    _take("mega.get_symm_buffer_for_mega_moe", _BUFFER),
    _take("transform_weights_for_mega_moe_sm90", "l1_weights l2_weights"),
    _take("mega_moe_pre_dispatch_sm90", "num_tokens group_size routed_scaling_factor"),
    _take("fp8_mega_moe", "cumulative_local_expert_recv_stats recipe activation activation_clamp fast_math"),
]

#: The whole API.
NAMES = [*_MODULES, *_DENSE, *_GROUPED, *_MEGA, *_ATTENTION, *_LAYOUT, *_SWITCHES, *_QUANTISATION, *_TESTING, *_REFUSED]
