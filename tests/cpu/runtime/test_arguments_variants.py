"""Typed errors of the whole contract: layouts, recipes, C, FP32 D, BF16 operands, head splits; D stays as it was."""

import pytest
import torch

import deep_gemm
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError

FP8, BF16, FP32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
M, N, K = 24, 272, 400  # as columns of memory they have 16-byte pitches in BF16, N and K in FP8, too
LAYOUTS = ("nt", "nn", "tn", "tt")
OPS = [f"{kind}_gemm_{layout}" for kind in ("fp8", "bf16") for layout in LAYOUTS] + ["fp8_gemm_nt_skip_head_mid"]


def matrix(rows, columns, dtype=BF16, pitch=None, offset=0):
    """Return a matrix of ones inside a wider one."""
    return torch.ones(rows, (pitch or columns) + offset).to(dtype)[:, offset : offset + columns]


def expect(error, message, op, d, *arguments, **options):
    """Call `op` and check its error, and that D was not written."""
    before = d.detach().clone()
    with pytest.raises(error, match=message):
        getattr(deep_gemm, op)(*arguments, d, **options)
    assert d.is_meta or torch.equal(d.detach().view(torch.uint8), before.view(torch.uint8))


def make_fp8(layout="nt", **changes):
    """Return the pairs of an FP8 call of `layout` with `changes`."""
    is_a_transposed, is_b_transposed = layout in ("tn", "tt"), layout in ("nn", "tn")
    tensors = {"a": matrix(M, K, FP8), "scale_a": torch.ones(M, 4), "b": matrix(N, K, FP8), "scale_b": torch.ones(3, 4)}
    for name in ("a", "scale_a") if is_a_transposed else ():
        tensors[name] = matrix(*tensors[name].shape[::-1], tensors[name].dtype, pitch=32 if name == "a" else None)
    for name in ("b", "scale_b") if is_b_transposed else ():
        tensors[name] = tensors[name].t().contiguous()
    tensors |= changes
    return (tensors["a"], tensors["scale_a"]), (tensors["b"], tensors["scale_b"])


WRONG_FP8 = {
    "nn wants [k, n]": (
        "nn",
        {"b": matrix(N, K, FP8)},
        ShapeError,
        r"b.shape = \[272, 400\]: must be \[k, n\] = \[400, 272\]; it is transposed: pass b.mT",
    ),
    "nn scales": (
        "nn",
        {"scale_b": torch.ones(3, 4)},
        ShapeError,
        r"scale_b.shape = \[3, 4\]: must be \[ceil\(k / 128\), ceil\(n / 128\)\] = \[4, 3\]",
    ),
    "tn scales": (
        "tn",
        {"scale_a": torch.ones(M, 4)},
        ShapeError,
        r"scale_a.shape = \[24, 4\]: must be \[ceil\(k / 128\), m\] = \[4, 24\]",
    ),
    "tt rank": ("tt", {"a": torch.ones(K, M, 1).to(FP8)}, ShapeError, r"a.ndim = 3: must be a matrix \[k, m\]"),
    "nn pitch": (
        "nn",
        {"b": matrix(K, N, FP8, 280)},
        LayoutError,
        r"b.stride\(0\) = 280 \(n = 272\): FP8 rows .*these are 280; pad b along n",
    ),
    "tn pitch": (
        "tn",
        {"a": matrix(K, M, FP8)},
        LayoutError,
        r"a.stride\(0\) = 24 \(m = 24\): FP8 rows must be a multiple of 16 bytes.*pad a along m",
    ),
    "tn offset": (
        "tn",
        {"a": matrix(K, M, FP8, 31, 1)},
        LayoutError,
        r"a.data_ptr\(\) = \d+ \(1 bytes past a multiple of 16\)",
    ),
    "nn contiguous nowhere": (
        "nn",
        {"b": matrix(K, 2 * N, FP8)[:, ::2]},
        LayoutError,
        r"b.stride\(0\) = 544: FP8 rows must be contiguous along k",
    ),
    "nt contiguous nowhere": (
        "nt",
        {"b": matrix(N, 2 * K, FP8)[:, ::2]},
        LayoutError,
        r"b.stride\(1\) = 2: FP8 rows must be contiguous along k",
    ),
}


@pytest.mark.parametrize("name", WRONG_FP8)
def test_wrong_fp8_operand(name):
    layout, changes, error, message = WRONG_FP8[name]
    expect(error, message, f"fp8_gemm_{layout}", torch.full((M, N), 7.0, dtype=BF16), *make_fp8(layout, **changes))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layouts_take_their_operands(layout):
    d = torch.empty(M, N)
    getattr(deep_gemm, f"fp8_gemm_{layout}")(*make_fp8(layout), d)
    assert (d == K).all()
    a, b = make_fp8(layout)
    getattr(deep_gemm, f"bf16_gemm_{layout}")(a[0].bfloat16(), b[0].bfloat16(), d)
    assert (d == K).all()


WRONG_RECIPES = {
    "1d1d with blocks": (
        (1, 1, 128),
        {},
        ShapeError,
        r"scale_b.shape = \[3, 4\]: must be \[n, ceil\(k / 128\)\] = \[272, 4\]",
    ),
    "1d2d with rows": (
        (1, 128, 128),
        {"scale_b": torch.ones(N, 4)},
        ShapeError,
        r"scale_b.shape = \[272, 4\]: must be \[ceil\(n / 128\)",
    ),
    "default with rows": (
        None,
        {"scale_b": torch.ones(N, 4)},
        ShapeError,
        r"scale_b.shape = \[272, 4\]: must be \[ceil\(n / 128\)",
    ),
    "one side per row": (
        None,
        {"scale_b": torch.ones(N)},
        ShapeError,
        r"scale_b.ndim = 1: must be a matrix \[ceil\(n / 128\), ceil\(k / 128\)\]",
    ),
    "per row with a recipe": (
        (1, 1, 128),
        {"scale_a": torch.ones(M), "scale_b": torch.ones(N)},
        ShapeError,
        r"scale_a.ndim = 1: must be a matrix \[m,",
    ),
    "per row of m": (
        None,
        {"scale_a": torch.ones(M + 1), "scale_b": torch.ones(N)},
        ShapeError,
        r"scale_a.shape = \[25\]: must be \[m\] = \[24\]; pass a tensor of this shape",
    ),
    "per row of n": (
        None,
        {"scale_a": torch.ones(M), "scale_b": torch.ones(M)},
        ShapeError,
        r"scale_b.shape = \[24\]: must be \[n\] = \[272\]",
    ),
    "of SM100": (
        (1, 1, 32),
        {},
        ArgumentError,
        r"recipe = \(1, 1, 32\): must be .*; others are SM100 only: pass one of",
    ),
    "two numbers": ((1, 128), {}, ArgumentError, r"recipe = \(1, 128\): must be \(1, 128, 128\)"),
    "negative": ((1, -1, 128), {}, ArgumentError, r"recipe = \(1, -1, 128\)"),
}


@pytest.mark.parametrize("name", WRONG_RECIPES)
def test_wrong_recipe(name):
    recipe, changes, error, message = WRONG_RECIPES[name]
    expect(error, message, "fp8_gemm_nt", torch.full((M, N), 7.0), *make_fp8(**changes), recipe=recipe)


def sum_in(kind):
    """Return (d, c) of which c is wrong in one way."""
    memory = torch.zeros(2 * M, N)
    d = memory[:M]
    return (
        d,
        {
            "dtype": d.bfloat16(),
            "shape": torch.zeros(M, N + 1),
            "rank": torch.zeros(M),
            "transposed": torch.zeros(N, M).t(),
            "device": d.to("meta"),
            "overlap": memory[1 : M + 1],
            "pitch": memory.view(-1)[: M * N].as_strided((M, N), (N + 4, 1)),
            "number": 1.0,
        }[kind],
    )


WRONG_SUMS = {
    "dtype": (DtypeError, r"c.dtype = torch.bfloat16: must be torch.float32; convert c to the dtype of d"),
    "shape": (ShapeError, r"c.shape = \[24, 273\]: must be \[m, n\] = \[24, 272\]"),
    "rank": (ShapeError, r"c.ndim = 1: must be a matrix \[m, n\]"),
    "transposed": (LayoutError, r"c.stride\(1\) = 24: FP32 rows must be contiguous along n; pass c.contiguous\(\)"),
    "device": (DeviceError, r"c is on meta and a on cpu"),
    "overlap": (
        LayoutError,
        r"d overlaps c in memory: they must be the same tensor or separate; pass another tensor as c",
    ),
    "pitch": (LayoutError, r"d overlaps c in memory"),
    "number": (ArgumentError, r"c = an object of type float: must be a torch.Tensor"),
}


@pytest.mark.parametrize("kind", WRONG_SUMS)
@pytest.mark.parametrize("op", ["fp8_gemm_nt", "bf16_gemm_nt"])
def test_wrong_c(op, kind):
    d, c = sum_in(kind)
    operands = make_fp8() if op.startswith("fp8") else (matrix(M, K), matrix(N, K))
    expect(*WRONG_SUMS[kind], op, d, *operands, c=c)


WRONG_BF16 = {
    "pair": (
        ((matrix(M, K), torch.ones(M, 4)), matrix(N, K)),
        ArgumentError,
        r"a = an object of type tuple: must be a torch.Tensor",
    ),
    "fp8": (
        (matrix(M, K, FP8), matrix(N, K)),
        DtypeError,
        r"a.dtype = torch.float8_e4m3fn: must be torch.bfloat16; convert it",
    ),
    "fp32": ((matrix(M, K), matrix(N, K, FP32)), DtypeError, r"b.dtype = torch.float32: must be torch.bfloat16"),
    "pitch": (
        (matrix(M, K, pitch=404), matrix(N, K)),
        LayoutError,
        r"a.stride\(0\) = 404 \(k = 400\): BF16 rows .*these are 808; pad a along k",
    ),
    "other pitch": (
        (matrix(M, K), matrix(K, N, pitch=276).t()),
        LayoutError,
        r"b.stride\(1\) = 276 \(n = 272\): BF16 rows .*pad b along n",
    ),
    "offset": (
        (matrix(M, K), matrix(N, K, pitch=404, offset=4)),
        LayoutError,
        r"b.data_ptr\(\) = \d+ \(8 bytes past a multiple of 16\)",
    ),
    "nowhere": (
        (matrix(M, 2 * K)[:, ::2], matrix(N, K)),
        LayoutError,
        r"a.stride\(1\) = 2: BF16 rows must be contiguous along k",
    ),
    "k": ((matrix(M, K), matrix(N, K + 8)), ShapeError, r"b.shape = \[272, 408\]: must be \[n, k\] = \[272, 400\]"),
}


@pytest.mark.parametrize("name", WRONG_BF16)
def test_wrong_bf16_operand(name):
    operands, error, message = WRONG_BF16[name]
    expect(error, message, "bf16_gemm_nt", torch.full((M, N), 7.0, dtype=BF16), *operands)


def test_bf16_takes_any_major():
    d = torch.empty(M, N, dtype=BF16)
    deep_gemm.bf16_gemm_nt(matrix(K, M).t(), matrix(K, N, pitch=280).t(), d)
    assert (d == K).all()


WRONG_SPLITS = {
    "two": ((8, 8), ArgumentError, r"head_splits = \(8, 8\): must be three integers"),
    "floats": ((8.0, 1, 8), ArgumentError, r"head_splits = \(8.0, 1, 8\)"),
    "negative": ((-8, 1, 16), ArgumentError, r"head_splits = \(-8, 1, 16\)"),
    "nothing": ((0, 8, 0), ArgumentError, r"head_splits = \(0, 8, 0\): .*left \+ right > 0"),
    "huge": ((1 << 70, 1, 1), ArgumentError, r"head_splits = "),
    "no whole heads": ((100, 8, 100), ShapeError, r"n = 272: must be a multiple of left \+ right = 200 of head_splits"),
    "width of d": (
        (17, 8, 17),
        ShapeError,
        r"d.shape = \[24, 272\]: must be \[m, heads \* \(left \+ mid \+ right\)\] = \[24, 336\]",
    ),
    "too wide": ((1, 1 << 30, 0), ShapeError, r"d.shape\[1\] = \d+: sizes must be below 2\^31"),
}


@pytest.mark.parametrize("name", WRONG_SPLITS)
def test_wrong_head_splits(name):
    splits, error, message = WRONG_SPLITS[name]
    expect(
        error,
        message,
        "fp8_gemm_nt_skip_head_mid",
        torch.full((M, N), 7.0, dtype=BF16),
        *make_fp8(),
        head_splits=splits,
    )


class Shrinking:
    """A number that takes away the list that holds it."""

    def __init__(self, held: list):
        self.held = held

    def __index__(self):
        self.held.clear()
        return 8


def test_head_splits_in_a_list_that_changes_while_it_is_read():
    splits: list = []
    splits += [Shrinking(splits), 8, 8]
    d = torch.full((M, N), 7.0, dtype=BF16)
    expect(ArgumentError, "head_splits = ", "fp8_gemm_nt_skip_head_mid", d, *make_fp8(), head_splits=splits)


def test_heads_are_bf16():
    expect(
        DtypeError,
        "d.dtype = torch.float32: must be torch.bfloat16",
        "fp8_gemm_nt_skip_head_mid",
        torch.ones(M, N),
        *make_fp8(),
        head_splits=(8, 0, 8),
    )


def test_heads_have_one_recipe():
    for pairs, recipe in (
        (make_fp8(scale_b=torch.ones(N, 4)), (1, 1, 128)),
        (make_fp8(scale_a=torch.ones(M), scale_b=torch.ones(N)), None),
    ):
        d = torch.ones(M, N, dtype=BF16)
        expect(
            ArgumentError,
            "recipe: a product with head splits takes",
            "fp8_gemm_nt_skip_head_mid",
            d,
            *pairs,
            head_splits=(8, 0, 8),
            recipe=recipe,
        )


def test_an_output_in_the_memory_of_a_transposed_input():
    memory = torch.zeros(K, 512, dtype=torch.uint8)
    b, d = memory[:, :N].view(FP8), memory[:M, N : N + 192].view(BF16)
    a, scales = matrix(M, K, FP8), torch.ones(M, 4)
    deep_gemm.fp8_gemm_nn((a, scales), (b[:, :96], torch.ones(4, 1)), d)  # beside it, at the same pitch
    with pytest.raises(LayoutError, match="d overlaps b in memory"):
        deep_gemm.fp8_gemm_nn((a, scales), (memory[:, N - 32 : N + 64].view(FP8), torch.ones(4, 1)), d)


def test_meta_tensors_are_checked_and_nothing_else():
    a, b = (tuple(tensor.to("meta") for tensor in pair) for pair in make_fp8())
    d = torch.empty(M, N, device="meta")
    assert deep_gemm.fp8_gemm_nt(a, b, d, d) is None
    assert (
        deep_gemm.bf16_gemm_nt(a[0].bfloat16(), b[0].bfloat16(), d, torch.empty(M, N, device="meta"), beta=2.0) is None
    )
    with pytest.raises(ShapeError):
        deep_gemm.fp8_gemm_nt(a, b, d[:, :8])
