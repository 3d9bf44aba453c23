"""batched_syrk and batched_symm: products of symmetric matrices."""

import pytest
import torch

import deep_gemm
from deep_gemm import errors, library

BF16, FP32 = torch.bfloat16, torch.float32
BATCHES = [(), (3,), (0,)]


def make(*shape, dtype=FP32, is_transposed=False):
    """Return a matrix, or a batch, cut out of a larger one, whose rows or columns are contiguous."""
    *batch, rows, columns = shape
    if is_transposed:
        return make(*batch, columns, rows, dtype=dtype).mT
    return torch.randn(*batch, rows + 3, columns + 5).to(dtype)[..., :rows, :columns]


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_values(dtype, batch, is_transposed):
    a = make(*batch, 48, 80, dtype=dtype, is_transposed=is_transposed)
    symmetric = a[..., :48] + a[..., :48].mT
    for d, op, operands in (
        (make(*batch, 48, 48, dtype=dtype), deep_gemm.batched_syrk, (a, a.mT)),
        (make(*batch, 48, 80, dtype=dtype), deep_gemm.batched_symm, (symmetric, a)),
    ):
        around = d.as_strided((d.untyped_storage().nbytes() // d.element_size(),), (1,), 0)
        around.fill_(7.0)
        d.fill_(float("nan"))
        assert op(*operands[: 1 if op is deep_gemm.batched_syrk else 2], d) is None
        close = {"rtol": 2**-8, "atol": 1e-5} if dtype is BF16 else {"rtol": 1e-5, "atol": 1e-4}
        torch.testing.assert_close(d.double(), operands[0].double() @ operands[1].double(), **close)
        d.fill_(7.0)
        assert bool((around == 7.0).all())  # nothing beside D was written


def test_no_k_gives_zeros_and_no_rows_nothing():
    d = torch.full((2, 3, 3), 7.0)
    deep_gemm.batched_syrk(torch.empty(2, 3, 0), d)
    assert not d.any()
    deep_gemm.batched_symm(torch.empty(0, 0), torch.empty(0, 4), torch.empty(0, 4))


WRONG = {
    "no square": (lambda: (make(3, 4), make(3, 4)), errors.ShapeError, "a = .3, 4., d = .3, 4.: a must be"),
    "another batch": (lambda: (make(2, 3, 4), make(3, 3, 3)), errors.ShapeError, "batches of as many"),
    "one batch": (lambda: (make(2, 3, 4), make(3, 3)), errors.ShapeError, "batches of as many"),
    "four dims": (lambda: (make(1, 1, 3, 4), make(3, 3)), errors.ShapeError, "a.ndim = 4: must be a matrix or a batch"),
    "FP16": (
        lambda: (make(3, 4).half(), make(3, 3).half()),
        errors.DtypeError,
        "a must be torch.bfloat16 or torch.float32; convert",
    ),
    "another dtype": (
        lambda: (make(3, 4), make(3, 3, dtype=BF16)),
        errors.DtypeError,
        "d.dtype = torch.bfloat16: d must be torch.float32; allocate",
    ),
    "no tensor": (lambda: ([[1.0]], make(1, 1)), errors.ArgumentError, "a = list: must be a torch.Tensor; pass one."),
    "graph": (lambda: (make(3, 4), torch.zeros(3, 3).requires_grad_()), errors.ArgumentError, "requires_grad"),
    "shared": (lambda: (make(3, 4), torch.zeros(3).expand(3, 3)), errors.LayoutError, "elements of d share memory"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_operands_are_refused_before_anything_is_written(case):
    make_operands, error, message = WRONG[case]
    a, d = make_operands()
    before = d.detach().clone()
    with pytest.raises(error, match=message):
        deep_gemm.batched_syrk(a, d)
    torch.testing.assert_close(d.detach(), before, equal_nan=True)


def test_symm_wants_a_square_a_and_a_d_of_its_own():
    with pytest.raises(errors.ShapeError, match=r"a must be \[m, m\], b \[m, n\] and d \[m, n\]"):
        deep_gemm.batched_symm(make(3, 4), make(4, 5), make(3, 5))
    a = torch.ones(4, 4)
    with pytest.raises(errors.LayoutError, match="d overlaps a in memory, .*: they must be separate; pass"):
        deep_gemm.batched_symm(a, make(4, 4), a)
    with pytest.raises(errors.ShapeError, match=r"a = \[4, 4\], b = \[4, 4\], d = \[4, 5\]: a must be"):
        deep_gemm.batched_symm(a, a, make(4, 5))
    d = make(4, 4)
    deep_gemm.batched_symm(a, a, d)
    assert torch.equal(d, torch.full((4, 4), 4.0))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_graphs_hold_them(backend):
    def step(x, square, product):
        deep_gemm.batched_syrk(x, square)
        deep_gemm.batched_symm(square, x, product)
        return product.sum()

    x, outputs = make(2, 8, 16), [torch.empty(2, 8, 8), torch.empty(2, 8, 16)]
    torch.compile(step, fullgraph=True, backend=backend)(x, *outputs)
    torch.testing.assert_close(outputs[1], x @ x.mT @ x)
    for name, arguments in (("batched_syrk", (x, outputs[0])), ("batched_symm", (outputs[0], x, outputs[1]))):
        torch.library.opcheck(library.get_op(name), arguments)


def test_compiling_without_running_writes_nothing():
    d = torch.zeros(4, 4)
    deep_gemm.set_compile_mode(1)
    try:
        deep_gemm.batched_syrk(torch.ones(4, 4), d)
    finally:
        deep_gemm.set_compile_mode(0)
    assert not d.any()
