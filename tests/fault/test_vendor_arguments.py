"""cublaslt_gemm_* and operands of other kinds: typed errors before anything is written, on the CPU as on a GPU."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import deep_gemm
from deep_gemm import memory
from deep_gemm.errors import ArgumentError, DeepGemmError, LayoutError

BF16 = torch.bfloat16


def make_operands(**changed):
    a, b = torch.randn(32, 64).to(BF16), torch.randn(48, 64).to(BF16)
    return {"a": a, "b": b, "d": torch.full((32, 48), 7.0, dtype=BF16)} | changed


def call(operands) -> None:
    deep_gemm.cublaslt_gemm_nt(operands["a"], operands["b"], operands["d"], operands.get("c"))


def make_sparse(size):
    return torch.zeros(size, dtype=BF16).to_sparse()


def make_freed(size):
    tensor = torch.zeros(size, dtype=BF16)
    tensor.untyped_storage().resize_(0)
    return tensor


class Wrapper(torch.Tensor):
    """A tensor that takes every operation to itself."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        raise AssertionError("a wrapper was computed with")


WRONG = {
    "nothing": lambda size: None,
    "a number": lambda size: 7.0,
    "a list": lambda size: torch.zeros(size).tolist(),
    "an array": lambda size: torch.zeros(size).numpy(),
    "a pair": lambda size: (torch.zeros(size), torch.zeros(size)),
    "sparse": make_sparse,
    "compressed": lambda size: torch.zeros(size, dtype=BF16).to_sparse_csr(),
    "freed": make_freed,
    "a wrapper": lambda size: Wrapper(torch.zeros(size, dtype=BF16)),
}


@pytest.mark.parametrize("place", ["a", "b", "c", "d"])
@pytest.mark.parametrize("kind", WRONG)
def test_operands_of_other_kinds(place, kind):
    size = {"a": (32, 64), "b": (48, 64), "c": (32, 48), "d": (32, 48)}[place]
    operands = make_operands(**{place: WRONG[kind](size)})
    if place == "c" and kind == "nothing":
        return call(operands)
    with pytest.raises(DeepGemmError):
        call(operands)
    assert place == "d" or (operands["d"] == 7).all()
    return None


@pytest.mark.parametrize(
    "strides", [(0, 1), (1, 0), (0, 0), (1, 1), (47, 1), (1, 31)], ids=lambda strides: f"{strides[0]}-{strides[1]}"
)
def test_an_output_whose_elements_share_memory(strides):
    d = torch.full((32 * 64,), 7.0, dtype=BF16).as_strided((32, 48), strides)
    with pytest.raises(LayoutError, match="share memory"):
        call(make_operands(d=d))
    assert (d == 7).all()


@pytest.mark.parametrize(
    "strides", [(48, 1), (1, 32), (50, 1), (1, 40)], ids=lambda strides: f"{strides[0]}-{strides[1]}"
)
def test_an_output_of_any_other_strides_is_written(strides):
    operands = make_operands(d=torch.zeros(64 * 64, dtype=BF16).as_strided((32, 48), strides))
    call(operands)
    expected = operands["a"].float() @ operands["b"].float().T
    assert torch.allclose(operands["d"].float(), expected, atol=0.2, rtol=0.02)


def test_a_single_row_or_column_may_have_any_stride():
    a, b = torch.randn(1, 64).to(BF16), torch.randn(48, 64).to(BF16)
    d = torch.zeros(48, dtype=BF16).as_strided((1, 48), (0, 1))
    call({"a": a, "b": b, "d": d})
    assert torch.equal(d, a @ b.T)


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_c_of_a_single_row_may_be_d_with_another_stride(dtype):
    a, b, d = torch.randn(1, 64).to(BF16), torch.randn(48, 64).to(BF16), torch.randn(2, 48).to(dtype)
    expected = (a.double() @ b.double().T + d[:1].double()).float()
    call({"a": a, "b": b, "d": d[:1], "c": d.as_strided((1, 48), (96, 1))})
    assert torch.allclose(d[:1].float(), expected, atol=0.2, rtol=0.02)
    with pytest.raises(LayoutError, match="d overlaps c"):
        call({"a": a, "b": b, "d": d[:1, :24], "c": d.as_strided((1, 24), (48, 1), 8)} | {"b": b[:24]})


def test_fake_tensors_are_checked_and_not_computed_with():
    with FakeTensorMode():
        operands = {name: torch.empty(32, 32, dtype=BF16) for name in "abd"}
        call(operands)
        with pytest.raises(DeepGemmError):
            call(operands | {"d": torch.empty(32, 31, dtype=BF16)})


def test_an_output_made_in_inference_mode_is_written():
    with torch.inference_mode():
        d = torch.zeros(32, 48, dtype=BF16)
    operands = make_operands(d=d)
    call(operands)
    assert torch.equal(d, operands["a"] @ operands["b"].T)
    deep_gemm.bf16_gemm_nt(operands["a"], operands["b"], d)
    assert torch.allclose(d.float(), operands["a"].float() @ operands["b"].float().T, atol=0.2, rtol=0.02)


class First(torch.Tensor):
    pass


class Second(torch.Tensor):
    pass


@pytest.mark.parametrize("function", [deep_gemm.bf16_gemm_nt, deep_gemm.cublaslt_gemm_nt], ids=["ours", "vendor"])
@pytest.mark.parametrize("with_c", [False, True])
def test_two_subclasses_in_one_call(function, with_c):
    plain = make_operands()
    a, b = plain["a"].as_subclass(First), plain["b"].as_subclass(Second)
    d = torch.zeros(32, 48, dtype=BF16).as_subclass(First)
    c = torch.ones(32, 48, dtype=BF16).as_subclass(Second) if with_c else None
    function(a, b, d, c)
    expected = plain["a"].float() @ plain["b"].float().T + (1.0 if with_c else 0.0)
    assert torch.allclose(d.as_subclass(torch.Tensor).float(), expected, atol=0.2, rtol=0.02)


def test_two_subclasses_with_scales():
    x = torch.randn(128, 128)
    (a, scale_a), b = deep_gemm.per_token_cast_to_fp8(x, False), deep_gemm.per_block_cast_to_fp8(x, False)
    d, wanted = (torch.zeros(128, 128, dtype=BF16) for _ in range(2))
    deep_gemm.fp8_gemm_nt((a, scale_a), b, wanted)
    deep_gemm.fp8_gemm_nt((a.as_subclass(First), scale_a.as_subclass(Second)), b, d.as_subclass(Second))
    assert torch.equal(d, wanted)


def test_a_wrapper_is_named_for_our_ops_too():
    with pytest.raises(ArgumentError, match="wrapper tensors"):
        deep_gemm.bf16_gemm_nt(Wrapper(torch.zeros(32, 64, dtype=BF16)), make_operands()["b"], make_operands()["d"])


@pytest.mark.parametrize(
    "shape, strides, is_shared",
    [((3, 4), (4, 1), False), ((3, 4), (3, 1), True), ((3, 4), (7, 2), False), ((3, 4), (6, 2), True),
     ((2, 3, 4), (12, 4, 1), False), ((2, 3, 4), (11, 4, 1), True), ((3, 4), (0, 1), True), ((1, 4), (0, 1), False)],
)  # fmt: skip
def test_elements_that_share_memory(shape, strides, is_shared):
    assert memory.shares_memory(torch.empty(64).as_strided(shape, strides)) is is_shared
