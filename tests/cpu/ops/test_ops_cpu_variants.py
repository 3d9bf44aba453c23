"""Every op on CPU tensors, over memory layouts, recipes, dtypes of D, C, alpha and beta, against independent products
in FP64.
"""

import itertools
from dataclasses import dataclass

import pytest
import torch

import deep_gemm
from deep_gemm import errors
from deep_gemm.testing import calc_diff
from tests.fakes.operands import align

FP8, BF16, FP32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
LAYOUTS = ("nt", "nn", "tn", "tt")
RECIPES = {"1d2d": (1, 128, 128), "1d1d": (1, 1, 128), "per_row": None}
SHAPES = [(1, 8, 16), (33, 264, 400), (64, 130, 144)]
#: Distance from the FP64 product: one rounding of D and FP32 sums.
TOLERANCE = {BF16: 2.0**-8, FP32: 2.0**-18}


@dataclass
class Product:
    """Operands in nt orientation, and their exact product."""

    a: torch.Tensor
    b: torch.Tensor
    scale_a: torch.Tensor | None
    scale_b: torch.Tensor | None
    exact: torch.Tensor
    magnitude: torch.Tensor


def spread(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return one FP64 scale an element: scales [rows or blocks of 128, blocks of 128] or [rows]."""
    wide = scales.double()[:, None] if scales.dim() == 1 else scales.double()
    per_row = wide.repeat_interleave(1 if len(wide) == rows else 128, 0)[:rows]
    return per_row.expand(rows, columns) if scales.dim() == 1 else per_row.repeat_interleave(128, 1)[:, :columns]


def make_scales(recipe: str, rows: int, k: int, is_b: bool, generator: torch.Generator) -> torch.Tensor:
    steps = -(-k // 128)
    sizes = (rows,) if recipe == "per_row" else (-(-rows // 128) if is_b and recipe == "1d2d" else rows, steps)
    return torch.rand(sizes, generator=generator) + 0.5


def make_product(recipe: str | None, m: int, n: int, k: int) -> Product:
    """Return random operands; `recipe` None: BF16 without scales."""
    generator = torch.Generator().manual_seed(m * n + k)
    a, b = (torch.randn(rows, k, generator=generator).to(FP8 if recipe else BF16) for rows in (m, n))
    scale_a = make_scales(recipe, m, k, False, generator) if recipe else None
    scale_b = make_scales(recipe, n, k, True, generator) if recipe else None
    x = a.double() * (spread(scale_a, m, k) if recipe else 1.0)
    y = b.double() * (spread(scale_b, n, k) if recipe else 1.0)
    return Product(a, b, scale_a, scale_b, x @ y.t(), x.abs() @ y.abs().t())


def lay_out(tensor: torch.Tensor, is_transposed: bool) -> torch.Tensor:
    """Return the values of a matrix, transposed where wanted, with rows 16 bytes and more apart; a vector stays."""
    if tensor.dim() == 1:
        return tensor
    values = tensor.t() if is_transposed else tensor
    rows, columns = values.shape
    memory = torch.zeros(rows, align(columns, 16) + 16).to(tensor.dtype)
    memory[:, :columns] = values
    return memory[:, :columns]


def make_output(m: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a D of NaN inside guard columns of NaN."""
    return torch.full((m, align(n, 8) + 8), float("nan"), dtype=dtype)[:, :n]


def run(kind: str, layout: str, product: Product, d: torch.Tensor, c=None, **options) -> torch.Tensor:
    """Call the op of `kind` and `layout` on a product; return D, whose guard columns must still be NaN."""
    is_a_transposed, is_b_transposed = layout in ("tn", "tt"), layout in ("nn", "tn")
    a, b = lay_out(product.a, is_a_transposed), lay_out(product.b, is_b_transposed)
    if kind == "fp8":
        a, b = (a, lay_out(product.scale_a, is_a_transposed)), (b, lay_out(product.scale_b, is_b_transposed))
    assert getattr(deep_gemm, f"{kind}_gemm_{layout}")(a, b, d, c, **options) is None
    if d._is_view():
        assert d._base[:, d.shape[1] :].isnan().all(), "wrote beyond its columns"
    return d


def check(d: torch.Tensor, expected: torch.Tensor, magnitude: torch.Tensor) -> None:
    """Compare D with what it should be, element by element and as a whole."""
    assert ((d.double() - expected).abs() <= expected.abs() * TOLERANCE[d.dtype] + magnitude * 2.0**-20).all()
    assert calc_diff(d, expected) < (5e-6 if d.dtype == BF16 else 1e-9)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp8_products(layout, recipe, dtype):
    for m, n, k in SHAPES:
        product = make_product(recipe, m, n, k)
        check(
            run("fp8", layout, product, make_output(m, n, dtype), recipe=RECIPES[recipe]),
            product.exact,
            product.magnitude,
        )


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bf16_products(layout, dtype):
    for m, n, k in SHAPES:
        product = make_product(None, m, n, k)
        check(run("bf16", layout, product, make_output(m, n, dtype)), product.exact, product.magnitude)


SUMS = list(
    itertools.product(
        (BF16, FP32), ("separate", "d", "slice", "row"), ((1.0, 1.0), (0.5, -2.0), (0.0, 1.0), (1.5, 0.0))
    )
)


def make_c(place: str, d: torch.Tensor) -> torch.Tensor:
    """Return C in its own memory, in D's, inside a wider tensor of odd pitch, or as one repeated row."""
    m, n = d.shape
    values = torch.randn(m, n, generator=torch.Generator().manual_seed(3)).to(d.dtype)
    if place == "d":
        return d.copy_(values)
    if place == "slice":
        return torch.nn.functional.pad(values, (1, 2))[:, 1 : 1 + n]
    return values[:1].expand(m, n) if place == "row" else values


@pytest.mark.parametrize("kind, recipe", [("bf16", None), ("fp8", "1d2d"), ("fp8", "1d1d"), ("fp8", "per_row")])
def test_sums_with_c(kind, recipe):
    product = make_product(recipe, 20, 136, 272)
    for dtype, place, (alpha, beta) in SUMS:
        d = make_output(20, 136, dtype)
        c = make_c(place, d)
        expected = alpha * product.exact + beta * c.double()
        options = {"recipe": RECIPES[recipe]} if recipe else {}
        run(kind, "nt", product, d, c, alpha=alpha, beta=beta, **options)
        check(d, expected, product.magnitude * abs(alpha) + c.double().abs() * abs(beta))


def test_c_is_not_read_where_beta_is_zero():
    product = make_product(None, 8, 16, 32)
    check(
        run("bf16", "nt", product, make_output(8, 16, BF16), torch.full((8, 16), float("nan"), dtype=BF16), beta=0.0),
        product.exact,
        product.magnitude,
    )


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_without_k_the_sum_is_beta_c(kind):
    product = make_product("1d2d" if kind == "fp8" else None, 5, 8, 0)
    for dtype in (BF16, FP32):
        assert (run(kind, "nt", product, make_output(5, 8, dtype)) == 0).all()
        c = torch.randn(5, 8).to(dtype)
        assert torch.equal(run(kind, "nt", product, make_output(5, 8, dtype), c), c)
        assert torch.equal(run(kind, "nt", product, make_output(5, 8, dtype), c, beta=2.0), c * 2)
        assert torch.equal(run(kind, "nt", product, c.clone(), c.clone(), beta=1.0), c)


def test_c_that_is_d_without_k_is_untouched():
    product, d = make_product(None, 5, 8, 0), torch.full((5, 8), float("nan"))
    deep_gemm.bf16_gemm_nt(product.a, product.b, d, d)
    assert d.isnan().all()


@pytest.mark.parametrize("splits", [(128, 64, 64), (8, 3, 0), (0, 16, 40), (5, 0, 7)])
@pytest.mark.parametrize("recipe", [None, (1, 128, 128)])
def test_head_splits(recipe, splits):
    left, mid, right = splits
    heads, m = 3, 9
    n, width = heads * (left + right), left + mid + right
    product = make_product("1d2d", m, n, 272)
    d = make_output(m, heads * width, BF16)
    pairs = (lay_out(product.a, False), product.scale_a), (lay_out(product.b, False), product.scale_b)
    assert deep_gemm.fp8_gemm_nt_skip_head_mid(*pairs, d, splits, recipe=recipe) is None
    for head in range(heads):
        columns, source = (
            d[:, head * width : (head + 1) * width],
            slice(head * (left + right), (head + 1) * (left + right)),
        )
        assert columns[:, left : left + mid].isnan().all(), "wrote the middle"
        check(
            torch.cat([columns[:, :left], columns[:, left + mid :]], 1),
            product.exact[:, source],
            product.magnitude[:, source],
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_transposed_views_of_nt(layout):
    """nn(a, (b, sfb), d) equals nt(a, (b.T, sfb.T), d), and so on, bit for bit."""
    product = make_product("1d2d", 40, 264, 272)
    assert torch.equal(
        run("fp8", layout, product, make_output(40, 264, BF16)), run("fp8", "nt", product, make_output(40, 264, BF16))
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_the_vendors_products(layout, dtype):
    product = make_product(None, 33, 136, 80)
    is_a_transposed, is_b_transposed = layout in ("tn", "tt"), layout in ("nn", "tn")
    op = getattr(deep_gemm, f"cublaslt_gemm_{layout}")
    a, b = lay_out(product.a, is_a_transposed), lay_out(product.b, is_b_transposed)
    d, c = torch.empty(33, 136, dtype=dtype), torch.randn(33, 136).to(dtype)
    assert op(a, b, d) is None
    check(d, product.exact, product.magnitude)
    op(a, b, d, c)
    check(d, product.exact + c.double(), product.magnitude + c.double().abs())
    op(a.to(FP8), b.to(FP8), d)
    exact = product.a.to(FP8).double() @ product.b.to(FP8).double().t()
    check(d, exact, product.magnitude * 1.5)
    op(a.to(FP8), b.to(FP8), d, c)
    check(d, exact + c.double(), product.magnitude * 1.5 + c.double().abs())


def test_what_the_vendor_is_not_asked():
    errors, x, d = deep_gemm.errors, torch.ones(16, 16, dtype=BF16), torch.empty(16, 16, dtype=BF16)
    for arguments, error in {
        (x.float(), x, d): errors.DtypeError,
        (x, x, d.half()): errors.DtypeError,
        (x, x, d, d.float()): errors.DtypeError,
        (x, x[:, :8], d): errors.ShapeError,
        (x, x, d[:8]): errors.ShapeError,
    }.items():
        with pytest.raises(error):
            deep_gemm.cublaslt_gemm_nt(*arguments)


def test_the_vendor_product_refuses_what_it_would_get_wrong():
    a, b, d = (torch.ones(16, 16, dtype=torch.bfloat16) for _ in range(3))
    with pytest.raises(errors.LayoutError, match="d overlaps a"):
        deep_gemm.cublaslt_gemm_nn(a, b, a)
    both = torch.zeros(17, 16, dtype=torch.bfloat16)
    with pytest.raises(errors.LayoutError, match="d overlaps c"):
        deep_gemm.cublaslt_gemm_nn(a, b, both[1:], both[:-1])
    with pytest.raises(errors.DeviceError, match="b is on meta"):
        deep_gemm.cublaslt_gemm_nn(a, b.to("meta"), d)
    with pytest.raises(errors.ArgumentError, match="d.requires_grad = True"):
        deep_gemm.cublaslt_gemm_nn(a, b, d.clone().requires_grad_())
    with pytest.raises(errors.ShapeError, match="b.ndim = 3"):
        deep_gemm.cublaslt_gemm_nt(a, b[None], d)
    with pytest.raises(errors.ArgumentError, match="must be a torch.Tensor"):
        deep_gemm.cublaslt_gemm_nt((a, b), b, d)
    for given in ((d,), (d, b)):
        with pytest.raises(errors.ArgumentError, match=r"of shape \[16, 16\]: has no memory of its own"):
            torch.vmap(lambda x, given=given: deep_gemm.cublaslt_gemm_nn(a, x, *given))(torch.stack([b, b]))
    with pytest.raises(errors.ArgumentError, match="has no memory of its own, as within torch.vmap"):
        torch.vmap(lambda x: deep_gemm.cublaslt_gemm_nn(a, b, d, x))(torch.stack([b, b]))
    assert torch.equal(d, torch.ones_like(d))
    deep_gemm.cublaslt_gemm_nn(a, b, d, d)
    assert torch.equal(d, torch.full_like(d, 17.0))
