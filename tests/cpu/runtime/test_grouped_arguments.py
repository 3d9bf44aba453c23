"""The checks of the grouped ops: every wrong operand is a typed error that says value, rule and remedy, before D is
written.
"""

import inspect

import pytest
import torch

import deep_gemm
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError
from tests.fakes.grouped_arguments import (
    BF16_CONTIGUOUS,
    BF16_MASKED,
    BLOCKS,
    CONTIGUOUS,
    FP8,
    K_BF16,
    K_NT,
    K_TN,
    KS,
    LEFT_OUT,
    MASKED,
    NN,
    STEPS,
    SUM_K,
    G,
    K,
    M,
    N,
    call,
    cut,
    expect,
    int32,
    make_arguments,
    ones,
)
from tests.fakes.grouped_operands import OPS


@pytest.mark.parametrize("op", OPS)
def test_valid_calls(op):
    arguments = make_arguments(op)
    assert call(op, d=arguments["d"], epilogue=None) is None
    assert arguments["d"].flatten()[0] == (128 if op.startswith("k_grouped") else K)


# Names.


ALIASES = [
    (CONTIGUOUS, "m_indices", "grouped_layout"),
    (BF16_CONTIGUOUS, "m_indices", "grouped_layout"),
    (MASKED, "expected_m", "expected_m_per_group"),
    (BF16_MASKED, "expected_m", "expected_m_per_group"),
    (K_NT, "ks", "ks_cpu"),
    (K_TN, "ks_tensor", "grouped_layout"),
    (K_BF16, "ks", "ks_cpu"),
]


@pytest.mark.parametrize("op, name, alias", ALIASES)
def test_aliases(op, name, alias):
    value = int32(*KS) if name == "ks_tensor" else make_arguments(op)[name]
    call(op, **{name: LEFT_OUT, alias: value})
    with pytest.raises(
        ArgumentError,
        match=rf"{op}\(\): argument '{name}', which is also called '{alias}', was given twice; give it once",
    ):
        call(op, **{name: value, alias: value})


@pytest.mark.parametrize(
    "op, alias",
    [(MASKED, "grouped_layout"), (CONTIGUOUS, "ks_cpu"), (CONTIGUOUS, "expected_m_per_group"), (K_NT, "m_indices")],
)
def test_aliases_of_other_ops(op, alias):
    with pytest.raises(ArgumentError, match=rf"{op}\(\): unknown argument '{alias}'"):
        call(op, **{alias: int32(1)})


@pytest.mark.parametrize("op", [MASKED, BF16_MASKED])
def test_masked_ops_need_a_hint(op):
    with pytest.raises(ArgumentError, match="argument 'expected_m' is missing"):
        call(op, expected_m=LEFT_OUT)


def test_the_default_recipe_is_shown():
    assert inspect.signature(deep_gemm.k_grouped_fp8_gemm_nt_contiguous).parameters["recipe"].default == (1, 1, 128)


# Operands.


WRONG = {
    "a dtype": (
        CONTIGUOUS,
        {"a": ones(M, K)},
        DtypeError,
        r"a.dtype = torch.bfloat16: must be torch.float8_e4m3fn; quantise it",
    ),
    "bf16 dtype": (
        BF16_MASKED,
        {"b": torch.ones(G, N, K)},
        DtypeError,
        r"b.dtype = torch.float32: must be torch.bfloat16",
    ),
    "scale dtype": (
        K_TN,
        {"scale_b": ones(STEPS, N)},
        DtypeError,
        r"scale_b.dtype = torch.bfloat16: must be torch.float32",
    ),
    "d dtype": (
        MASKED,
        {"d": ones(G, M, N, dtype=torch.float16)},
        DtypeError,
        r"d.dtype = torch.float16: must be torch.bfloat16 or torch.float32",
    ),
    "k d dtype": (
        K_BF16,
        {"d": ones(G, M, N)},
        DtypeError,
        r"d.dtype = torch.bfloat16: must be torch.float32; groups of K sum into an FP32 d",
    ),
    "indices dtype": (
        CONTIGUOUS,
        {"m_indices": torch.zeros(M, dtype=torch.int64)},
        DtypeError,
        r"m_indices.dtype = torch.int64: must be torch.int32; convert",
    ),
    "masked dtype": (
        MASKED,
        {"masked_m": torch.zeros(G)},
        DtypeError,
        r"masked_m.dtype = torch.float32: must be torch.int32",
    ),
    "ks dtype": (
        K_NT,
        {"ks_tensor": torch.tensor(KS)},
        DtypeError,
        r"ks_tensor.dtype = torch.int64: must be torch.int32",
    ),
    "c dtype": (K_TN, {"c": ones(G, M, N)}, DtypeError, r"c.dtype = torch.bfloat16: must be torch.float32; convert c"),
    "a rank": (
        CONTIGUOUS,
        {"a": ones(1, M, K, dtype=FP8)},
        ShapeError,
        r"a.ndim = 3: must be a matrix \[m, k\]; reshape it",
    ),
    "b rank": (NN, {"b": ones(K, N, dtype=FP8)}, ShapeError, r"b.ndim = 2: must be \[num_groups, k, n\]; reshape it"),
    "masked rank": (MASKED, {"a": ones(M, K, dtype=FP8)}, ShapeError, r"a.ndim = 2: must be \[num_groups, max_m, k\]"),
    "indices rank": (
        CONTIGUOUS,
        {"m_indices": torch.zeros(M, 1, dtype=torch.int32)},
        ShapeError,
        r"m_indices.ndim = 2: must be \[m\]",
    ),
    "scale rank": (
        CONTIGUOUS,
        {"scale_b": torch.ones(BLOCKS, STEPS)},
        ShapeError,
        r"scale_b.ndim = 2: must be \[num_groups, ceil\(n / 128\), ceil\(k / 128\)\]",
    ),
    "per row": (
        CONTIGUOUS,
        {"scale_a": torch.ones(M), "scale_b": torch.ones(N)},
        ShapeError,
        r"scale_a.ndim = 1: must be a matrix \[m, ceil\(k / 128\)\]",
    ),
    "blocks rank": (K_NT, {"a": ones(M, SUM_K, dtype=FP8)}, ShapeError, r"a.ndim = 2: must be \[m \* sum_k\]"),
    "k rank": (K_TN, {"d": torch.ones(M, N)}, ShapeError, r"d.ndim = 2: must be \[num_groups, m, n\]"),
    "k of b": (
        NN,
        {"b": ones(G, K + 16, N, dtype=FP8)},
        ShapeError,
        r"b.shape = \[3, 288, 144\]: must be \[num_groups, k, n\] = \[3, 272, 144\]",
    ),
    "groups of b": (
        MASKED,
        {"b": ones(2, N, K, dtype=FP8)},
        ShapeError,
        r"b.shape = \[2, 144, 272\]: must be \[num_groups, n, k\] = \[3, 144, 272\]",
    ),
    "d shape": (
        MASKED,
        {"d": ones(G, M, N + 1)},
        ShapeError,
        r"d.shape = \[3, 256, 145\]: must be \[num_groups, max_m, n\] = \[3, 256, 144\]",
    ),
    "indices shape": (
        CONTIGUOUS,
        {"m_indices": int32(*[0] * 8)},
        ShapeError,
        r"m_indices.shape = \[8\]: must be \[m\] = \[256\]",
    ),
    "masked shape": (
        MASKED,
        {"masked_m": int32(1, 2)},
        ShapeError,
        r"masked_m.shape = \[2\]: must be \[num_groups\] = \[3\]",
    ),
    "scale shape": (
        NN,
        {"scale_b": torch.ones(G, BLOCKS, STEPS)},
        ShapeError,
        r"scale_b.shape = \[3, 2, 3\]: must be \[num_groups, ceil\(k / 128\), ceil\(n / 128\)\] = \[3, 3, 2\]",
    ),
    "scale recipe": (
        CONTIGUOUS,
        {"recipe": (1, 1, 128)},
        ShapeError,
        r"scale_b.shape = \[3, 2, 3\]: must be \[num_groups, n, ceil\(k / 128\)\] = \[3, 144, 3\]",
    ),
    "k scale shape": (
        K_NT,
        {"scale_a": torch.ones(M, 4)},
        ShapeError,
        r"scale_a.shape = \[256, 4\]: must be \[m, sum_k / 128\] = \[256, 3\]",
    ),
    "tn shape": (
        K_TN,
        {"b": ones(SUM_K + 128, N, dtype=FP8)},
        ShapeError,
        r"b.shape = \[512, 144\]: must be \[sum_k, n\] = \[384, 144\]",
    ),
    "blocks shape": (
        K_NT,
        {"b": ones(N * SUM_K + 16, dtype=FP8)},
        ShapeError,
        r"b.shape = \[55312\]: must be \[n \* sum_k\] = \[55296\]",
    ),
    "c shape": (
        K_BF16,
        {"c": torch.ones(G, M, N + 1)},
        ShapeError,
        r"c.shape = \[3, 256, 145\]: must be \[num_groups, m, n\]",
    ),
    "ks tensor shape": (
        K_TN,
        {"ks_tensor": int32(128, 256)},
        ShapeError,
        r"ks_tensor.shape = \[2\]: must be \[num_groups\] = \[3\]",
    ),
    "device": (
        CONTIGUOUS,
        {"m_indices": torch.zeros(M, dtype=torch.int32, device="meta")},
        DeviceError,
        r"m_indices is on meta and a on cpu: all operands",
    ),
    "c device": (K_TN, {"c": torch.ones(G, M, N, device="meta")}, DeviceError, r"c is on meta and a on cpu"),
    "ks device": (K_NT, {"ks_tensor": int32(*KS).to("meta")}, DeviceError, r"ks_tensor is on meta and a on cpu"),
    "a pitch": (
        CONTIGUOUS,
        {"a": cut(M, K, dtype=FP8, pitch=K + 8)},
        LayoutError,
        r"a.stride\(0\) = 280 \(k = 272\): FP8 rows must be a multiple of 16 bytes",
    ),
    "b pitch": (
        MASKED,
        {"b": cut(G, N, K, dtype=FP8, pitch=K + 8)},
        LayoutError,
        r"b.stride\(1\) = 280 \(k = 272\): FP8 rows .* pad b along k",
    ),
    "nn pitch": (
        NN,
        {"b": cut(G, K, N, dtype=FP8, pitch=N + 8)},
        LayoutError,
        r"b.stride\(1\) = 152 \(n = 144\): FP8 rows .* pad b along n",
    ),
    "a transposed": (
        CONTIGUOUS,
        {"a": ones(K, M, dtype=FP8).t()},
        LayoutError,
        r"a.stride\(1\) = 256: FP8 rows must be contiguous along k; pass a.contiguous\(\)",
    ),
    "masked transposed": (
        BF16_MASKED,
        {"b": ones(G, K, N).mT},
        LayoutError,
        r"b.stride\(2\) = 144: BF16 rows must be contiguous along k",
    ),
    "k transposed": (
        K_BF16,
        {"a": ones(M, SUM_K).t()},
        LayoutError,
        r"a.stride\(1\) = 384: BF16 rows must be contiguous along m",
    ),
    "blocks strided": (
        K_NT,
        {"a": ones(2 * M * SUM_K, dtype=FP8)[::2]},
        LayoutError,
        r"a.stride\(0\) = 2: must be contiguous; pass a.contiguous\(\)",
    ),
    "blocks offset": (
        K_NT,
        {"b": ones(N * SUM_K + 1, dtype=FP8)[1:]},
        LayoutError,
        r"b.data_ptr\(\) = \d+ \(1 bytes past a multiple of 16\)",
    ),
    "indices strided": (
        CONTIGUOUS,
        {"m_indices": torch.zeros(2 * M, dtype=torch.int32)[::2]},
        LayoutError,
        r"m_indices.stride\(0\) = 2: must be contiguous",
    ),
    "group stride": (
        MASKED,
        {"b": torch.zeros(G * (N * K + 8)).to(FP8).as_strided((G, N, K), (N * K + 8, K, 1))},
        LayoutError,
        r"b.stride\(0\) = 39176: groups of FP8 rows must be a multiple of 16 bytes apart",
    ),
    "d rows": (
        MASKED,
        {"d": ones(G, N, M).mT},
        LayoutError,
        r"d.stride\(2\) = 256: BF16 rows must be contiguous along n",
    ),
    "d groups": (
        MASKED,
        {"d": ones(M, N).expand(G, M, N)},
        LayoutError,
        r"d.stride\(0\) = 0: the matrices \[3, 256, 144\] of the groups must not overlap",
    ),
    "d shifted groups": (
        K_TN,
        {"d": torch.ones(M + 2, N).as_strided((G, M, N), (N, N, 1))},
        LayoutError,
        r"d.stride\(0\) = 144: the matrices",
    ),
    "requires grad": (
        K_TN,
        {"d": torch.ones(G, M, N, requires_grad=True)},
        ArgumentError,
        r"d.requires_grad = True: it is written, and no graph is recorded",
    ),
    "no pair": (
        MASKED,
        {"a": ones(G, M, K), "scale_a": LEFT_OUT},
        ArgumentError,
        r"a = <class 'torch.Tensor'>: FP8 operands are pairs",
    ),
    "no tensor": (
        CONTIGUOUS,
        {"m_indices": [0] * M},
        ArgumentError,
        r"m_indices = an object of type list: must be a torch.Tensor",
    ),
    "recipe": (
        K_TN,
        {"recipe": (1, 128, 128)},
        ArgumentError,
        r"recipe = \(1, 128, 128\): groups of K have both operands scaled 1x128; pass \(1, 1, 128\) or None",
    ),
    "no recipe": (K_TN, {"recipe": 128}, ArgumentError, r"recipe = 128: must be"),
    "compiled": (BF16_MASKED, {"compiled_dims": "g"}, ArgumentError, r"compiled_dims = 'g'"),
    "flag": (CONTIGUOUS, {"disable_ue8m0_cast": 1}, ArgumentError, r"disable_ue8m0_cast = 1: must be a bool"),
    "stream": (K_NT, {"stream": "main"}, ArgumentError, r"stream = 'main': must be a torch.cuda.Stream"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_operand(name):
    op, changes, error, message = WRONG[name]
    expect(error, message, op, **changes)
