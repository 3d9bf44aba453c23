"""The checks of the grouped ops: every wrong argument is a typed error that says value, rule and remedy, before D is
written.
"""

import inspect
import pickle

import numpy as np
import pytest
import torch

import deep_gemm
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError
from tests.fakes.grouped_operands import OPS
from tests.fakes.operands import one_thread

FP8, BF16, FP32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
M, N, K, G = 256, 144, 272, 3
STEPS, BLOCKS = 3, 2
KS = [128, 0, 256]
SUM_K = sum(KS)
CONTIGUOUS, NN, BF16_CONTIGUOUS = (
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_bf16_gemm_nt_contiguous",
)
MASKED, BF16_MASKED = "m_grouped_fp8_gemm_nt_masked", "m_grouped_bf16_gemm_nt_masked"
K_NT, K_TN, K_BF16 = (
    "k_grouped_fp8_gemm_nt_contiguous",
    "k_grouped_fp8_gemm_tn_contiguous",
    "k_grouped_bf16_gemm_tn_contiguous",
)


@pytest.fixture(autouse=True, scope="module")
def quiet_torch():
    with one_thread():
        yield


def ones(*shape, dtype=BF16):
    return torch.ones(shape).to(dtype)


def cut(*shape, dtype=BF16, pitch):
    """Return ones in rows of `pitch` elements."""
    return torch.ones(*shape[:-1], pitch).to(dtype)[..., : shape[-1]]


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def make_arguments(op: str) -> dict:
    """Return valid arguments of an op, by name, an FP8 pair as two."""
    if op.startswith("k_grouped"):
        return make_k_grouped(op)
    groups, steps = ((G,), STEPS) if op.endswith("masked") else ((), STEPS)
    b, scale_b = ones(G, N, K), torch.ones(G, BLOCKS, STEPS)
    if "_nn_" in op:
        b, scale_b = b.mT.contiguous(), scale_b.mT.contiguous()
    arguments = {
        "a": ones(*groups, M, K),
        "b": b,
        "d": ones(*groups, M, N),
        "scale_a": torch.ones(*groups, M, steps),
        "scale_b": scale_b,
    }
    arguments |= (
        {"masked_m": int32(5, 0, M), "expected_m": 20}
        if groups
        else {"m_indices": int32(*[0] * 100, *[-1] * 28, *[2] * 128)}
    )
    return as_fp8(arguments) if "fp8" in op else without_scales(arguments)


def make_k_grouped(op: str) -> dict:
    """Return the same of a k-grouped op."""
    d = torch.ones(G, M, N)
    if op == K_NT:
        a, b, scale_a, scale_b = ones(M * SUM_K), ones(N * SUM_K), torch.ones(M, STEPS), torch.ones(N, STEPS)
    else:
        a, b, scale_a, scale_b = ones(SUM_K, M), ones(SUM_K, N), torch.ones(STEPS, M), torch.ones(STEPS, N)
    arguments = {"a": a, "b": b, "d": d, "ks": list(KS), "scale_a": scale_a, "scale_b": scale_b}
    return as_fp8(arguments) if "fp8" in op else without_scales(arguments)


def as_fp8(arguments: dict) -> dict:
    return arguments | {name: arguments[name].to(FP8) for name in "ab"}


def without_scales(arguments: dict) -> dict:
    return {name: value for name, value in arguments.items() if not name.startswith("scale")}


def call(op: str, **changes):
    """Call an op on valid arguments with `changes`; a change to None leaves the argument out."""
    arguments = {name: value for name, value in (make_arguments(op) | changes).items() if value is not LEFT_OUT}
    for name in "ab":
        if f"scale_{name}" in arguments:
            arguments[name] = (arguments[name], arguments.pop(f"scale_{name}"))
    return getattr(deep_gemm, op)(arguments.pop("a"), arguments.pop("b"), arguments.pop("d"), **arguments)


LEFT_OUT = object()


def expect(error, message, op, **changes):
    """Check the error of a call, and that D was not written."""
    d = changes.get("d", make_arguments(op)["d"])
    before = d.detach().clone()
    with pytest.raises(error, match=message):
        call(op, **({"d": d} | changes))
    assert torch.equal(d.detach(), before)


@pytest.mark.parametrize("op", OPS)
def test_valid_calls(op):
    arguments = make_arguments(op)
    assert call(op, d=arguments["d"]) is None
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


@pytest.mark.parametrize("op", OPS)
def test_the_ops_describe_themselves(op):
    function = getattr(deep_gemm, op)
    parameters = inspect.signature(function).parameters
    assert (
        list(parameters)[:3] == ["a", "b", "d"]
        and list(parameters)[-1] == "stream"
        and parameters["stream"].kind is inspect.Parameter.KEYWORD_ONLY
    )
    assert (
        function.__name__ == op
        and function.__module__ == "deep_gemm"
        and pickle.loads(pickle.dumps(function)) is function
    )
    assert (
        all(f"    {name}" in function.__doc__ for name in parameters if name not in ("disable_ue8m0_cast",))
        and "Raises:" in function.__doc__
    )
    with pytest.raises(ArgumentError, match=rf"{op}\(\): argument 'a' is missing"):
        function()
    with pytest.raises(ArgumentError, match=rf"{op}\(\): argument '(m_indices|masked_m|ks)' is missing"):
        function(1, 2, 3)
    with pytest.raises(ArgumentError, match="positional arguments: takes at most"):
        function(*range(len(parameters)))


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
        {"scale_a": torch.ones(STEPS, M, requires_grad=True)},
        ArgumentError,
        r"scale_a.requires_grad = True: this op records no graph",
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


def overlapping(op, name, offset=0):
    """Return an operand and a D in its memory."""
    value, d = make_arguments(op)[name], make_arguments(op)["d"]
    memory = torch.zeros(max(value.nbytes, d.nbytes) + 4096, dtype=torch.uint8)
    shared = memory[offset : offset + d.nbytes].view(d.dtype).view(d.shape)
    return {name: memory[: value.nbytes].view(value.dtype).view(value.shape), "d": shared}


@pytest.mark.parametrize(
    "op, name",
    [(CONTIGUOUS, "a"), (CONTIGUOUS, "m_indices"), (MASKED, "b"), (MASKED, "masked_m"), (K_NT, "a"), (K_TN, "scale_b")],
)
def test_an_output_in_the_memory_of_an_input(op, name):
    expect(LayoutError, f"d overlaps {name} in memory: the output must be separate", op, **overlapping(op, name))


def test_an_output_that_overlaps_c_in_part():
    memory = torch.ones(G + 1, M, N)
    expect(
        LayoutError,
        "d overlaps c in memory: they must be the same tensor or separate",
        K_TN,
        d=memory[:G],
        c=memory[1:],
    )
    call(K_TN, d=memory[:G], c=memory[:G])
    assert memory[0, 0, 0] == 129 and memory[1, 0, 0] == 1 and memory[2, 0, 0] == 257 and memory[3, 0, 0] == 1


@pytest.mark.parametrize("op", [MASKED, BF16_MASKED])
def test_groups_of_d_may_lie_beside_one_another(op):
    d = torch.zeros(M, G, N, dtype=BF16).transpose(0, 1)
    call(op, d=d)
    assert d[2, M - 1, 0] == K and d[0, 4, 0] == K and d[0, 5, 0] == 0


def test_groups_of_b_may_be_one_matrix():
    d = make_arguments(CONTIGUOUS)["d"]
    call(CONTIGUOUS, b=ones(N, K, dtype=FP8).expand(G, N, K), d=d)
    assert d[0, 0] == K


# Sizes and values.


@pytest.mark.parametrize(
    "ks, error, message",
    [
        (int32(*KS), ArgumentError, r"ks = tensor.*must be a list or tuple of ints.*pass ks.tolist\(\)"), (384, ArgumentError, r"ks = 384: must be a list or tuple"),
        ([128, 0.0, 256], ArgumentError, r"ks\[1\] = 0.0: must be an int within 0..2\^31 - 1"), ([128, True, 256], ArgumentError, r"ks\[1\] = True"),
        ([128, -128, 384], ArgumentError, r"ks\[1\] = -128: must be an int within"), ([1 << 80, 0, 0], ArgumentError, r"ks\[0\] = 1208"),
        ([128, None, 256], ArgumentError, r"ks\[1\] = None"), ([128, int32(0)[0], 256], ArgumentError, r"ks\[1\] = tensor\(0"),
        ([100, 28, 256], ShapeError, r"ks\[0\] = 100: must be a multiple of 128; pad that group with zeros along K"),
        ([128, 256], ShapeError, r"ks has 2 entries: must have one for each of the num_groups = 3 matrices of d"),
        ([], ShapeError, r"ks has 0 entries"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("op", [K_NT, K_BF16])
def test_wrong_ks(op, ks, error, message):
    expect(error, message, op, ks=ks)


def test_ks_that_do_not_add_up():
    expect(
        ShapeError,
        "ks sum to 512 and a has sum_k = 384: must be equal; pass the K of every group",
        K_TN,
        ks=[256, 0, 256],
    )
    expect(ShapeError, r"a.shape = \[98304\]: must be \[m \* sum_k\] = \[131072\]", K_NT, ks=[256, 0, 256])


@pytest.mark.parametrize("ks", [tuple(KS), [np.int64(size) for size in KS]], ids=["tuple", "numpy"])
def test_what_ks_may_be(ks):
    d = torch.empty(G, M, N)
    call(K_TN, ks=ks, d=d)
    assert (d[0] == 128).all() and (d[1] == 0).all() and (d[2] == 256).all()


@pytest.mark.parametrize("hint", [-1, 2.5, None, "many", True, int32(3)[0]])
def test_what_is_no_hint(hint):
    expect(
        ArgumentError, r"expected_m = .*: must be an int >= 0, the rows of a group on average", MASKED, expected_m=hint
    )


@pytest.mark.parametrize("hint", [0, 7, M + 1, 1 << 80, np.int32(4)])
def test_hints_change_no_result(hint):
    d = make_arguments(MASKED)["d"].fill_(7)
    call(MASKED, expected_m=hint, d=d)
    assert (d[0, :5] == K).all() and (d[2] == K).all()


ROWS = [0] * 128 + [1] * 128
WRONG_VALUES = {
    "group": (
        CONTIGUOUS,
        {"m_indices": int32(*[3] * M)},
        r"m_indices\[0\] = 3: must be a group within 0..2, or -1 for padding",
    ),
    "negative": (
        CONTIGUOUS,
        {"m_indices": int32(*ROWS[:-1], -2)},
        r"m_indices\[255\] = -2: must be a group within 0..2",
    ),
    "two groups": (
        BF16_CONTIGUOUS,
        {"m_indices": int32(*[-1] * 4, *[0] * 60, *[1] * 192)},
        r"m_indices\[64\] = 1 and m_indices\[4\] = 0: rows of a block of 128 .*start every group at a mult",
    ),
    "many rows": (MASKED, {"masked_m": int32(1, M + 1, 0)}, r"masked_m\[1\] = 257: must be within 0..256 \(max_m\)"),
    "negative rows": (BF16_MASKED, {"masked_m": int32(1, 2, -1)}, r"masked_m\[2\] = -1: must be within 0..256"),
    "other ks": (K_NT, {"ks_tensor": int32(256, 0, 128)}, r"ks_tensor\[0\] = 256 and ks\[0\] = 128: must be equal"),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_values_that_the_host_can_see(name):
    op, changes, message = WRONG_VALUES[name]
    expect(ArgumentError, message, op, **changes)


def test_groups_start_where_the_alignment_says():
    indices = int32(*[0] * 64, *[1] * 64, *[2] * 128)
    expect(ArgumentError, "rows of a block of 128", CONTIGUOUS, m_indices=indices)
    deep_gemm.set_mk_alignment_for_contiguous_layout(64)
    try:
        call(CONTIGUOUS, m_indices=indices)
    finally:
        deep_gemm.set_mk_alignment_for_contiguous_layout(128)


def test_the_last_block_of_rows_may_be_short():
    a, d = ones(200, K), torch.empty(200, N, dtype=BF16)
    call(BF16_CONTIGUOUS, a=a, d=d, m_indices=int32(*[1] * 128, *[2] * 70, -1, -1))
    assert (d[:198] == K).all() and (d[198:] == 0).all()


@pytest.mark.parametrize("alignment", [0, -8, 4, 12, 65544, 1 << 40, 128.0, "128", None, True])
def test_what_is_no_alignment(alignment):
    with pytest.raises(ArgumentError, match="alignment = "):
        deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128


@pytest.mark.parametrize("alignment", [8, 64, 384, 65536])
def test_alignments(alignment):
    try:
        deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
        getters = (
            deep_gemm.get_mk_alignment_for_contiguous_layout,
            deep_gemm.get_m_alignment_for_contiguous_layout,
            deep_gemm.get_k_alignment_for_contiguous_layout,
        )
        assert [getter() for getter in getters] == [alignment] * 3
    finally:
        deep_gemm.set_mk_alignment_for_contiguous_layout(128)


# Tensors without memory.


def on_meta(arguments: dict) -> dict:
    return {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


@pytest.mark.parametrize("op", OPS)
def test_meta_tensors_are_checked_and_nothing_else(op):
    arguments = on_meta(make_arguments(op))
    assert call(op, **arguments) is None
    with pytest.raises(ShapeError, match=r"b.shape" if op == K_NT else r"d.shape"):
        call(op, **(arguments | {"d": arguments["d"][..., :8]}))
    wide = torch.empty(*arguments["d"].shape[:-1], 146, dtype=arguments["d"].dtype, device="meta")
    with pytest.raises(LayoutError, match=r"d.stride\([01]\) = 146"):
        call(op, **(arguments | {"d": wide[..., :N]}))


def test_more_groups_than_there_can_be():
    many = 65536
    arguments = on_meta({"a": ones(128, 16), "d": ones(128, 16), "m_indices": torch.zeros(128, dtype=torch.int32)})
    with pytest.raises(
        ShapeError, match="num_groups = 65536: must be at most 65535; split the groups among several calls"
    ):
        call(BF16_CONTIGUOUS, **arguments, b=torch.empty(many, 16, 16, dtype=BF16, device="meta"))


def test_sizes_beyond_31_bits():
    b, d = (torch.empty(shape, dtype=BF16, device="meta") for shape in ((G, 16, 16), (1 << 31, 16)))
    a, indices = (
        torch.empty(1 << 31, 16, dtype=BF16, device="meta"),
        torch.empty(1 << 31, dtype=torch.int32, device="meta"),
    )
    with pytest.raises(ShapeError, match=r"m = 2147483648: sizes must be below 2\^31; split the product along m"):
        call(BF16_CONTIGUOUS, a=a, b=b, d=d, m_indices=indices)


@pytest.mark.parametrize("op", OPS)
def test_without_groups_nothing_happens(op):
    arguments = make_arguments(op)
    with_groups = [name for name, value in arguments.items() if isinstance(value, torch.Tensor) and value.shape[0] == G]
    empty = {name: arguments[name][:0] for name in with_groups}
    if op.startswith("k_grouped"):
        empty = {
            name: value[..., :0] if op == K_NT else value[:0]
            for name, value in arguments.items()
            if name not in ("d", "ks")
        }
        empty |= {"d": arguments["d"][:0], "ks": []}
    assert call(op, **empty) is None
