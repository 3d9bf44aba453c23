"""Casts, layouts, choices, layers and helpers of tests with arguments of wrong types: typed errors, or results."""

import inspect

import numpy as np
import pytest
import torch

import deep_gemm
from deep_gemm import dequantize, fp4, group_packing, layout, nn, packing, quantize, testing
from deep_gemm.errors import DeepGemmError
from tests.gpu.mega_operands import FakeGroup, make_weights

X = torch.randn(128, 256)
SCALES = torch.rand(128, 4) + 0.5
POWERS = torch.ones(128, 4)
LENGTHS = torch.tensor([100, 7], dtype=torch.int32)
FP4 = fp4.per_token_cast_to_fp4(X, False)
FP8 = quantize.per_token_cast_to_fp8(X, False)
GROUPS = torch.tensor([128, 256], dtype=torch.int32)
BLOCKS = tuple(deep_gemm.per_block_cast_to_fp8(one, False) for one in make_weights(4, 256, 128))
WEIGHTS = deep_gemm.transform_weights_for_mega_moe_sm90(*BLOCKS)
LINEAR, LAYER = torch.nn.Linear(256, 16), nn.Fp8Linear(256, 16)
GROUPED, EXPERTS = nn.Fp8GroupedLinear(2, 256, 16), nn.Fp8Experts(2, 256, 16)
PROBLEM, CONFIG, DEVICE = deep_gemm.Problem("fp8_gemm", 64, 128, 128), deep_gemm.Config(64, 128, 4), "h200"
OPTIONS = {"trainable": False, "device": "cpu", "dtype": torch.bfloat16}
BUFFER = deep_gemm.SymmBuffer(FakeGroup(0, 1), 4, 128, 2, 256, 128)

#: Functions with arguments that are right.
CALLS = {
    "per_token_cast_to_fp8": (quantize.per_token_cast_to_fp8, {"x": X, "use_ue8m0": True, "gran_k": 64}),
    "masked per_token_cast_to_fp8": (
        quantize.per_token_cast_to_fp8,
        {"x": X.view(2, 64, 256), "use_ue8m0": True, "masked_m": torch.tensor([3, 4], dtype=torch.int32)},
    ),
    "packed per_token_cast_to_fp8": (
        quantize.per_token_cast_to_fp8,
        {"x": X, "use_ue8m0": True, "gran_k": 64, "use_packed_ue8m0": True},
    ),
    "swiglu": (quantize.swiglu_per_token_cast_to_fp8, {"x": X, "use_ue8m0": False, "scales": "mn_major"}),
    "limited swiglu": (
        quantize.swiglu_per_token_cast_to_fp8,
        {"x": X, "use_ue8m0": False, "limit": 7.0, "is_interleaved": True},
    ),
    "mega buffer": (
        deep_gemm.get_symm_buffer_for_mega_moe,
        {
            "group": FakeGroup(0, 1),
            "num_experts": 4,
            "num_max_tokens_per_rank": 8,
            "num_topk": 2,
            "hidden": 256,
            "intermediate_hidden": 128,
            "use_fp8_dispatch": True,
            "activation": "swiglu",
            "num_shared_experts": 0,
            "mma_type": "fp8xfp8",
        },
    ),
    "mega weights": (
        deep_gemm.transform_weights_for_mega_moe_sm90,
        {"l1_weights": BLOCKS[0], "l2_weights": BLOCKS[1]},
    ),
    "mega dispatch": (
        deep_gemm.mega_moe_pre_dispatch_sm90,
        {
            "x": X.bfloat16(),
            "topk_idx": torch.zeros(128, 2).int(),
            "topk_weights": torch.ones(128, 2),
            "buf_x": BUFFER.x,
            "buf_x_sf": BUFFER.x_sf,
            "buf_topk_idx": BUFFER.topk_idx,
            "buf_topk_weights": BUFFER.topk_weights,
            "num_tokens": 5,
            "group_size": 128,
            "routed_scaling_factor": 2.0,
        },
    ),
    "mega layer": (
        deep_gemm.fp8_mega_moe,
        {
            "y": torch.zeros(5, 256).bfloat16(),
            "l1_weights": WEIGHTS[0],
            "l2_weights": WEIGHTS[1],
            "sym_buffer": BUFFER,
            "cumulative_local_expert_recv_stats": torch.zeros(4).int(),
            "recipe": (128, 128, 128),
            "activation": "swiglu",
            "activation_clamp": 7.0,
            "fast_math": True,
        },
    ),
    "per_channel_cast_to_fp8": (quantize.per_channel_cast_to_fp8, {"x": X, "use_ue8m0": False, "gran_k": 128}),
    "per_block_cast_to_fp8": (quantize.per_block_cast_to_fp8, {"x": X, "use_ue8m0": False, "gran_k": 128}),
    "per_custom_dims_cast_to_fp8": (
        quantize.per_custom_dims_cast_to_fp8,
        {"x": X, "dims": (0,), "use_ue8m0": False},
    ),
    "per_token_cast_to_fp4": (fp4.per_token_cast_to_fp4, {"x": X, "use_ue8m0": False, "gran_k": 64}),
    "cast_back_from_fp4": (fp4.cast_back_from_fp4, {"packed": FP4[0], "sf": FP4[1], "gran_k": 128}),
    "cast_back_from_fp8": (dequantize.cast_back_from_fp8, {"x_fp8": FP8[0], "sf": FP8[1], "gran_k": 128}),
    "transpose_packed_fp4": (fp4.transpose_packed_fp4, {"a": FP4[0]}),
    "ceil_to_ue8m0": (packing.ceil_to_ue8m0, {"x": X}),
    "pack_ue8m0_to_int": (packing.pack_ue8m0_to_int, {"x": POWERS}),
    "unpack_ue8m0_from_int": (packing.unpack_ue8m0_from_int, {"packed": packing.pack_ue8m0_to_int(POWERS)}),
    "tma size": (layout.get_tma_aligned_size, {"x": 100, "element_size": 4}),
    "mn_major": (layout.get_mn_major_tma_aligned_tensor, {"sf": SCALES}),
    "empty mn_major": (layout.get_mn_major_tma_aligned_tensor, {"sf": (128, 4), "dtype": torch.int32}),
    "packed mn_major": (layout.get_mn_major_tma_aligned_packed_ue8m0_tensor, {"sf": POWERS}),
    "k_grouped": (
        group_packing.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor,
        {"sf": torch.ones(3, 64), "ks_tensor": GROUPS, "ks": None, "gran_k": 128},
    ),
    "k_grouped on the host": (
        group_packing.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor,
        {"sf": torch.ones(3, 64), "ks": [128, 256], "gran_k": 128},
    ),
    "transform": (
        layout.transform_sf_into_required_layout,
        {"sf": SCALES, "mn": 128, "k": 512, "recipe": (1, 128, 128), "is_sfa": True, "num_groups": None},
    ),
    "transform to ue8m0": (
        layout.transform_sf_into_required_layout,
        {"sf": torch.ones(1, 4), "mn": 128, "k": 512, "recipe": (128, 128), "target": "ue8m0"},
    ),
    "metadata": (
        deep_gemm.get_paged_mqa_logits_metadata,
        {"context_lens": LENGTHS, "block_kv": 64, "num_sms": 4, "indices": LENGTHS},
    ),
    "prenorm": (
        deep_gemm.tf32_hc_prenorm_gemm,
        {
            "a": torch.ones(5, 64).bfloat16(),
            "b": torch.ones(3, 64),
            "d": torch.empty(1, 5, 3),
            "sqr_sum": torch.empty(1, 5),
            "num_splits": 1,
        },
    ),
    "choice": (deep_gemm.get_best_config, {"problem": PROBLEM, "device": DEVICE}),
    "heuristic": (deep_gemm.get_analytic_config, {"problem": PROBLEM, "device": DEVICE}),
    "candidates": (deep_gemm.get_candidates, {"problem": PROBLEM, "device": deep_gemm.Device.known(DEVICE)}),
    "legality": (
        deep_gemm.is_legal,
        {"problem": PROBLEM, "config": CONFIG, "device": deep_gemm.Device.known(DEVICE)},
    ),
    "warm-up": (
        deep_gemm.warmup,
        {"problems": [], "m": None, "device": DEVICE, "any_size": False, "cores": 1},
    ),
    "linear": (nn.Fp8Linear, {"in_features": 32, "out_features": 16, "bias": False} | OPTIONS),
    "grouped": (nn.Fp8GroupedLinear, {"num_groups": 2, "in_features": 32, "out_features": 16} | OPTIONS),
    "experts": (nn.Fp8Experts, {"num_experts": 2, "hidden_size": 32, "intermediate_size": 16} | OPTIONS),
    "from_linear": (nn.Fp8Linear.from_linear, {"linear": LINEAR, "trainable": True}),
    "from_weight": (nn.Fp8GroupedLinear.from_weight, {"weight": GROUPED.weight, "trainable": True}),
    "suitable": (nn.is_suitable, {"module": LINEAR, "name": "up"}),
    "linear layer": (LAYER, {"x": X, "is_swiglu": False}),
    "grouped layer": (GROUPED, {"x": X, "ends": torch.tensor([5, 5], dtype=torch.int32), "is_swiglu": False}),
    "masked layer": (
        nn.Fp8GroupedLinear(2, 256, 16, trainable=False).forward_masked,
        {"x": X.view(2, 64, 256), "masked_m": LENGTHS.clamp(max=64), "expected_m": 9, "is_swiglu": False},
    ),
    "expert layer": (
        EXPERTS,
        {"x": X, "top_k_index": torch.zeros(128, 2).int(), "top_k_weights": torch.ones(128, 2), "layout": None},
    ),
    "calc_diff": (testing.calc_diff, {"x": X, "y": X.clone()}),
    "count_bytes": (lambda x, y: testing.count_bytes(x, y), {"x": X, "y": (X, [X])}),
    "assert_bitwise_equal": (testing.assert_bitwise_equal, {"x": X, "y": X.clone(), "label": "it"}),
}


def free(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose memory is freed."""
    tensor.untyped_storage().resize_(0)
    return tensor


WRONG = {
    "None": None,
    "a number": 7,
    "zero": 0,
    "a negative number": -1,
    "a large number": 1 << 70,
    "a fraction": 0.5,
    "text": "x",
    "bytes": b"x",
    "a type": torch.Tensor,
    "an object": object(),
    "an empty list": [],
    "texts": ["x", "y"],
    "nested lists": [[1], [2]],
    "negative sizes": (-1, -2),
    "fractions": (0.5, 0.5),
    "an array": np.ones((128, 256), np.float32),
    "a sparse tensor": torch.eye(128).to_sparse(),
    "a compressed tensor": torch.eye(128).to_sparse_csr(),
    "a quantised tensor": torch.quantize_per_tensor(torch.eye(128), 0.1, 0, torch.qint8),
    "integers": torch.ones(128, 256, dtype=torch.int64),
    "truths": torch.ones(128, 256, dtype=torch.bool),
    "complex numbers": torch.ones(128, 256, dtype=torch.complex64),
    "doubles": torch.ones(128, 256, dtype=torch.float64),
    "FP8": torch.ones(128, 256).to(torch.float8_e4m3fn),
    "a scalar": torch.tensor(1.0),
    "a vector": torch.ones(128),
    "four dims": torch.ones(2, 2, 128, 128),
    "no elements": torch.ones(0, 0),
    "a transposed tensor": torch.ones(256, 128).T,
    "a meta tensor": torch.ones(128, 256, device="meta"),
    "no memory": free(torch.ones(128, 256)),
    "no memory of a few numbers": free(torch.ones(3)),
    "no memory of integers": free(torch.ones(2, dtype=torch.int32)),
    "no memory of words": free(torch.ones(128, 1, dtype=torch.int32)),
    "no memory of bytes": free(torch.ones(128, 128, dtype=torch.int8)),
}


@pytest.mark.parametrize("name", CALLS)
def test_right_arguments_are_taken(name):
    function, arguments = CALLS[name]
    function(**arguments)


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_give_typed_errors(name):
    function, arguments = CALLS[name]
    untyped = []
    for parameter in arguments:
        for what, value in WRONG.items():
            try:
                function(**arguments | {parameter: value})
            except (DeepGemmError, AssertionError):
                continue
            except Exception as error:
                untyped.append(f"{parameter} = {what}: {type(error).__name__}: {str(error)[:80]!r}")
    assert not untyped, "\n".join(untyped)


def test_every_public_cast_and_layout_is_here():
    covered = {function for function, _ in CALLS.values()}
    for module in (quantize, fp4, packing, layout):
        for name, value in vars(module).items():
            is_public = inspect.isfunction(value) and value.__module__ == module.__name__ and hasattr(deep_gemm, name)
            assert not is_public or value in covered or name in ("align", "ceil_div") or name.startswith("get_theo"), (
                name
            )
