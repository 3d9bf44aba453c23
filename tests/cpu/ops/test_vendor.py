"""The vendor's products: how it adds up parts of K, FP8 on a GPU, and what wrong shapes are told."""

import contextlib
import threading

import pytest
import torch

import deep_gemm
from deep_gemm import errors, vendor

BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
SWITCH = torch.backends.cuda.matmul


@pytest.fixture(params=[True, False], ids=["allowed", "not allowed"])
def is_allowed(request):
    """Whether torch may let the vendor add up in BF16, as by default."""
    before = SWITCH.allow_bf16_reduced_precision_reduction
    SWITCH.allow_bf16_reduced_precision_reduction = request.param
    yield request.param
    SWITCH.allow_bf16_reduced_precision_reduction = before


def call_all():
    """Return calls of everything that the vendor computes from BF16 matrices."""
    x, batch = torch.ones(4, 4, dtype=BF16), torch.ones(2, 4, 4, dtype=BF16)
    return {
        "product": lambda: deep_gemm.cublaslt_gemm_nt(x, x, torch.empty_like(x)),
        "onto c": lambda: deep_gemm.cublaslt_gemm_nn(x, x, torch.empty_like(x), x),
        "symmetric": lambda: deep_gemm.batched_syrk(x, torch.empty_like(x)),
        "sum": lambda: vendor.summed_bf16_gemm(batch, batch, torch.empty_like(x)),
    }


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", call_all())
def test_parts_of_k_are_added_up_in_fp32(monkeypatch, is_allowed, name, fails):
    """Torch lets cuBLASLt add them up in BF16: D was off by five times what DeepGEMM's tests allow (an H200)."""
    seen = []

    def multiply(*operands, **options):
        seen.append(SWITCH.allow_bf16_reduced_precision_reduction)
        if fails:
            raise RuntimeError("no memory")

    for function in ("mm", "addmm"):
        monkeypatch.setattr(torch, function, multiply)
    with pytest.raises(RuntimeError, match="no memory") if fails else contextlib.nullcontext():
        call_all()[name]()
    assert seen == [False] and SWITCH.allow_bf16_reduced_precision_reduction == is_allowed


def test_a_thread_that_ends_first_leaves_the_others_theirs(monkeypatch, is_allowed):
    """The one that came first set the switch back while the other was about to multiply."""
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    seen = []

    def multiply(a, b, out):
        if threading.current_thread().name == "first":
            first_is_in.set()
            assert second_is_in.wait(10)
        else:
            second_is_in.set()
            assert first_is_out.wait(10)
            seen.append(SWITCH.allow_bf16_reduced_precision_reduction)

    monkeypatch.setattr(torch, "mm", multiply)
    second = threading.Thread(target=lambda: first_is_in.wait(10) and call_all()["product"](), name="second")
    first = threading.Thread(target=call_all()["product"], name="first")
    second.start(), first.start()
    first.join(20)
    first_is_out.set()
    second.join(20)
    assert seen == [False] and SWITCH.allow_bf16_reduced_precision_reduction == is_allowed


def test_a_switch_that_is_set_meanwhile_is_off_for_whoever_enters_then(is_allowed):
    with vendor._with_fp32_sums():
        SWITCH.allow_bf16_reduced_precision_reduction = True
        with vendor._with_fp32_sums():
            assert not SWITCH.allow_bf16_reduced_precision_reduction
    assert SWITCH.allow_bf16_reduced_precision_reduction
    SWITCH.allow_bf16_reduced_precision_reduction = False
    with vendor._with_fp32_sums():
        pass
    assert not SWITCH.allow_bf16_reduced_precision_reduction


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    @property
    def is_cuda(self):
        """True."""
        return True


def multiply_fp8(d, c):
    """Compute what a GPU would of FP8 operands of ones; return how the vendor was asked."""
    asked = []

    def scaled(a, b, scale_a, scale_b, use_fast_accum, out_dtype, out=None):
        asked.append((out_dtype, out is d))
        product = (a.float() @ b.float()).to(out_dtype)
        return product if out is None else out.copy_(product)

    x = torch.ones(16, 32).to(FP8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_scaled_mm", scaled)
        vendor._run_fp8(x.as_subclass(OnGpu), x.mT, d, c)
    return asked


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("what", ["none", "apart", "d"])
def test_c_beside_fp8(dtype, what):
    """It was refused; DeepGEMM's tests pass the D onto which weight gradients add up."""
    d = torch.full((16, 16), 3.0, dtype=dtype)
    c = {"none": None, "apart": torch.full((16, 16), 5.0, dtype=dtype), "d": d}[what]
    asked = multiply_fp8(d, c)
    assert torch.equal(d, torch.full_like(d, 32.0 + {"none": 0, "apart": 5, "d": 3}[what]))
    writes_d = what == "none" or (what == "apart" and dtype is FP32)
    assert asked == [(dtype if writes_d else FP32, writes_d)]


@pytest.mark.parametrize("rows, k", [(24, 32), (16, 40)])
def test_sizes_that_the_vendor_does_not_take_of_fp8(rows, k):
    b, d = torch.ones(rows, k).to(FP8), torch.zeros(16, rows)
    with pytest.raises(errors.ShapeError, match=f"n, k = {rows}, {k}: the vendor takes multiples of 16 of FP8"):
        vendor._run_fp8(torch.ones(16, k).to(FP8).as_subclass(OnGpu), b.mT, d, None)
    assert not d.any()


@pytest.mark.parametrize(
    "layout, a, b",
    [("nt", "m, k", "n, k"), ("nn", "m, k", "k, n"), ("tn", "k, m", "k, n"), ("tt", "k, m", "n, k")],
)
def test_wrong_shapes_are_told_those_of_the_layout(layout, a, b):
    x = torch.ones(3, 5, dtype=BF16)
    message = rf"a = \[3, 5\], b = \[3, 5\], d = \[3, 5\]: a must be \[{a}\], b \[{b}\] and d \[m, n\]"
    with pytest.raises(errors.ShapeError, match=message):
        getattr(deep_gemm, f"cublaslt_gemm_{layout}")(x, x, torch.ones(3, 5, dtype=BF16))


def test_tensors_of_functionalize_have_no_memory():
    """Both are at address 0, so that d was said to overlap a."""
    run = torch.func.functionalize(lambda a: deep_gemm.batched_syrk(a, torch.empty(4, 4)))
    with pytest.raises(errors.ArgumentError, match="has no memory of its own, as within torch.vmap .it is at 0."):
        run(torch.ones(4, 4))
