"""einsum and fp8_einsum on the CPU: values against torch.einsum of the dequantised operands, errors, and graphs."""

import re

import pytest
import torch

import deep_gemm
from deep_gemm import library
from deep_gemm.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from deep_gemm.testing import calc_diff

H, B, R, D = 3, 40, 128, 256
SIZES = {"b": B, "h": H, "r": R, "d": D, "m": 24, "n": 40, "k": 64}
BF16_EXPRESSIONS = ("bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr", "bmk,bnk->mn")
FP8_EXPRESSIONS = ("bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr")
RECIPES = ((1, 128, 128), (1, 1, 128))
BLOCK = 128
#: test_schema compares inputs, which torch cannot do for FP8.
FP8_CHECKS = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def split(expr: str) -> tuple[str, str, str]:
    inputs, _, output = expr.partition("->")
    a, _, b = inputs.partition(",")
    return a, b, output


def shape_of(letters: str) -> list[int]:
    return [SIZES[letter] for letter in letters]


def make(letters: str, seed: int, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape_of(letters), generator=torch.Generator().manual_seed(seed)).to(dtype)


def stretch(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in memory with room between rows and matrices."""
    room = torch.zeros([size + 8 for size in tensor.shape], dtype=tensor.dtype)
    view = room[tuple(slice(size) for size in tensor.shape)]
    view.copy_(tensor)
    return view


def quantise(letters: str, blocks: dict[str, int], seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (data, scales, FP32 of both) with a scale for each block of `blocks` elements along the letters."""
    data = make(letters, seed, torch.float8_e4m3fn)
    steps = [-(-SIZES[letter] // blocks.get(letter, 1)) for letter in letters]
    scales = torch.rand(steps, generator=torch.Generator().manual_seed(seed + 9)) + 0.5
    full = scales
    for dim, letter in enumerate(letters):
        full = full.repeat_interleave(blocks.get(letter, 1), dim=dim).narrow(dim, 0, SIZES[letter])
    return data, scales, data.float() * full


def make_fp8(expr: str, recipe: tuple) -> tuple:
    """Return (a, b, expected) of pairs."""
    a, b, output = split(expr)
    summed = next(letter for letter in a if letter not in output)
    rows_of_b = next(letter for letter in b if letter not in a)
    own = {summed: BLOCK}
    of_b = own | ({rows_of_b: BLOCK} if recipe[1] == BLOCK else {})
    a_data, a_scales, a_full = quantise(a, own, 1)
    b_data, b_scales, b_full = quantise(b, of_b, 2)
    return (a_data, a_scales), (b_data, b_scales), torch.einsum(expr, a_full.double(), b_full.double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("expr", BF16_EXPRESSIONS)
def test_bf16_values(expr, dtype):
    a, b, output = split(expr)
    x, y, d = make(a, 1), make(b, 2), torch.empty(shape_of(output), dtype=dtype)
    deep_gemm.einsum(expr, x, y, d)
    expected = torch.einsum(expr, x.double(), y.double())
    assert calc_diff(d, expected) < (1e-9 if dtype is torch.float32 else 5e-6)
    spaced, vendors = torch.empty_like(d), torch.empty_like(d)
    deep_gemm.einsum(expr.replace(",", " , ").replace("->", " -> "), x, y, spaced)
    deep_gemm.einsum(expr, x, y, d=vendors, use_cublaslt=True)
    assert torch.equal(spaced, d) and torch.equal(vendors, d)


@pytest.mark.parametrize("expr", BF16_EXPRESSIONS)
def test_c_is_added_and_may_be_d(expr):
    a, b, output = split(expr)
    x, y, c = make(a, 1), make(b, 2), make(output, 3, torch.float32)
    expected = torch.einsum(expr, x.double(), y.double()) + c.double()
    d = torch.empty_like(c)
    deep_gemm.einsum(expr, x, y, d, c)
    assert calc_diff(d, expected) < 1e-9
    deep_gemm.einsum(expr, x, y, c, c=c)
    assert torch.equal(c, d)


@pytest.mark.parametrize("expr", BF16_EXPRESSIONS)
def test_strided_operands(expr):
    a, b, output = split(expr)
    x, y, d = make(a, 1), make(b, 2), stretch(torch.zeros(shape_of(output)))
    deep_gemm.einsum(expr, stretch(x), stretch(y), d)
    assert calc_diff(d, torch.einsum(expr, x.double(), y.double())) < 1e-9


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("expr", FP8_EXPRESSIONS)
def test_fp8_values(expr, recipe):
    a, b, expected = make_fp8(expr, recipe)
    d, c = torch.empty(expected.shape), torch.randn(expected.shape)
    deep_gemm.fp8_einsum(expr, a, b, d, recipe=recipe)
    assert calc_diff(d, expected) < 1e-9
    deep_gemm.fp8_einsum(expr, a, b, c, c, recipe)
    rounded = torch.empty(expected.shape, dtype=torch.bfloat16)
    deep_gemm.fp8_einsum(expr, a, b, rounded, recipe=recipe)
    assert calc_diff(rounded, expected) < 5e-6 and not torch.equal(c, d)


def test_the_default_recipe_has_blocks():
    a, b, expected = make_fp8("bhr,hdr->bhd", (1, 128, 128))
    d = torch.empty(expected.shape)
    deep_gemm.fp8_einsum("bhr,hdr->bhd", a, b, d)
    assert calc_diff(d, expected) < 1e-9


@pytest.mark.parametrize("missing", "bmk")
def test_a_sum_of_nothing(missing):
    sizes = SIZES | {missing: 0}
    x, y = (torch.ones([sizes[i] for i in letters], dtype=torch.bfloat16) for letters in ("bmk", "bnk"))
    d = torch.full((sizes["m"], sizes["n"]), 7.0)
    deep_gemm.einsum("bmk,bnk->mn", x, y, d)
    assert (d == 0).all()
    c = torch.full((sizes["m"], sizes["n"]), 3.0)
    deep_gemm.einsum("bmk,bnk->mn", x, y, d, c)
    assert torch.equal(d, c)


def test_batches_of_nothing():
    for b, h in ((0, H), (B, 0)):
        d = torch.empty(b, h, D)
        deep_gemm.einsum("bhr,hdr->bhd", torch.empty(b, h, R).bfloat16(), torch.empty(h, D, R).bfloat16(), d)
    d = torch.full((B, H, D), 7.0)
    deep_gemm.einsum("bhr,hdr->bhd", torch.empty(B, H, 0).bfloat16(), torch.empty(H, D, 0).bfloat16(), d)
    assert (d == 0).all()


def call(expr="bhr,hdr->bhd", a=None, b=None, d=None, **options) -> None:
    letters = split(expr) if expr in BF16_EXPRESSIONS else split(BF16_EXPRESSIONS[0])
    a, b = (make(one, 1) if given is None else given for one, given in zip(letters, (a, b), strict=False))
    deep_gemm.einsum(expr, a, b, torch.empty(shape_of(letters[2])) if d is None else d, **options)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"expr": "bhd,bhr->hrd"}, ArgumentError, "expr = 'bhd,bhr->hrd': must be one of 'bhr,hdr->bhd'"),
        ({"expr": 3}, ArgumentError, "expr = 3: must be one of"),
        ({"a": torch.empty(B, H, R)}, DtypeError, "a.dtype = torch.float32: must be torch.bfloat16"),
        ({"d": torch.empty(B, D)}, ShapeError, "d.ndim = 2: must be [m, num_groups, n]"),
        ({"d": torch.empty(H, B, D)}, ShapeError, f"d.shape = [{H}, {B}, {D}]: must be [m, num_groups, n]"),
        ({"a": torch.empty(B, H, R + 64).bfloat16()}, ShapeError, "b.shape"),
        ({"a": torch.empty(B, H, 2 * R).bfloat16()[:, :, ::2]}, LayoutError, "a.stride(2)"),
        ({"use_cublaslt": 1}, ArgumentError, "use_cublaslt = 1"),
        ({"c": torch.empty(B, H, D).bfloat16()}, DtypeError, "c.dtype"),
    ],
)
def test_wrong_arguments(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call(**options)


def test_a_may_be_contiguous_along_its_rows():
    x, y, d = make("rhb", 1).permute(2, 1, 0), make("hdr", 2), torch.empty(shape_of("bhd"))
    deep_gemm.einsum("bhr,hdr->bhd", x, y, d)
    assert calc_diff(d, torch.einsum("bhr,hdr->bhd", x.double(), y.double())) < 1e-9


def test_a_bf16_sum_takes_no_c():
    d = torch.empty(SIZES["m"], SIZES["n"]).bfloat16()
    with pytest.raises(DtypeError, match="takes c with an FP32 d only"):
        call("bmk,bnk->mn", d=d, c=d)


def test_fp8_takes_its_own_expressions():
    a, b, expected = make_fp8("bhr,hdr->bhd", RECIPES[0])
    with pytest.raises(ArgumentError, match=r"must be one of .*'bhd,bhr->hdr'"):
        deep_gemm.fp8_einsum("bmk,bnk->mn", a, b, torch.empty(expected.shape))


@pytest.mark.parametrize("expr", BF16_EXPRESSIONS)
def test_a_graph_holds_a_call(expr):
    a, b, output = split(expr)
    x, y, c = make(a, 1), make(b, 2), make(output, 3, torch.float32)

    def program(x, y, c):
        d = torch.empty_like(c)
        deep_gemm.einsum(expr, x, y, d, c)
        return d + 1

    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, y, c), program(x, y, c))
    node = library.get_op("einsum")
    torch.library.opcheck(node, (expr, x, y, torch.empty_like(c), c))


@pytest.mark.parametrize("expr", FP8_EXPRESSIONS)
def test_a_graph_holds_an_fp8_call(expr):
    a, b, expected = make_fp8(expr, RECIPES[1])

    def program(a, b):
        d = torch.empty(expected.shape)
        deep_gemm.fp8_einsum(expr, a, b, d, recipe=RECIPES[1])
        return d + 1

    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a, b), program(a, b))
    node = library.get_op("fp8_einsum")
    operands = (expr, *a, *b, torch.empty(expected.shape), None, list(RECIPES[1]))
    torch.library.opcheck(node, operands, test_utils=FP8_CHECKS)
