"""The vendor's products under DeepGEMM's names: those that callers compare with, and those of symmetric matrices.

They go through torch, which calls cuBLASLt for CUDA tensors.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from deep_gemm import _C
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError
from deep_gemm.operands import check_plain, check_written, is_fake, record


class _Call(NamedTuple):
    """What a product takes: the dtypes of A and B, the shapes in words, and whether A, B and D may be batches; then D
    has the dtype of A.
    """

    name: str
    layout: str
    dtypes: tuple[torch.dtype, torch.dtype]
    shapes: str
    is_batched: bool = False


_DTYPES, _OUTPUT_DTYPES = (torch.bfloat16, torch.float8_e4m3fn), (torch.bfloat16, torch.float32)
_SHAPES = "a, b and d must agree as [m, k], [k, n] and [m, n], and c have the shape of d"
_CALLS = {
    call.name: call
    for call in (
        *(_Call(f"cublaslt_gemm_{layout}", layout, _DTYPES, _SHAPES) for layout in ("nt", "nn", "tn", "tt")),
        _Call("batched_syrk", "nt", _OUTPUT_DTYPES, "a must be [m, k] and d [m, m], or batches of as many", True),
        _Call(
            "batched_symm",
            "nn",
            _OUTPUT_DTYPES,
            "a must be [m, m], b [m, n] and d [m, n], or batches of as many",
            True,
        ),
    )
}


@contextlib.contextmanager
def _sums_in_fp32() -> Iterator[None]:
    """Let the vendor add up parts of K in FP32: torch's default allows BF16 there, which the formulas do not have."""
    switch = torch.backends.cuda.matmul
    if not switch.allow_bf16_reduced_precision_reduction:
        yield
        return
    switch.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        switch.allow_bf16_reduced_precision_reduction = True


def cublaslt_gemm_nt(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = A @ B.T + c with the vendor's library.

    Args:
        a: A [m, k], bfloat16 or float8_e4m3fn (without scales). b: B [n, k] of the same dtype.
        d: bfloat16 or float32 [m, n], written. c: [m, n] of the dtype of d, which it may be, or None.

    Raises: ArgumentError, DtypeError, ShapeError; LayoutError for FP8 operands on a GPU that are not contiguous along
        K.
    """
    _run("cublaslt_gemm_nt", a, b, d, c)


def cublaslt_gemm_nn(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = A @ B + c; b is B [k, n], all else as for cublaslt_gemm_nt."""
    _run("cublaslt_gemm_nn", a, b, d, c)


def cublaslt_gemm_tn(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = A.T @ B + c; a is A [k, m] and b is B [k, n], all else as for cublaslt_gemm_nt."""
    _run("cublaslt_gemm_tn", a, b, d, c)


def cublaslt_gemm_tt(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = A.T @ B.T + c; a is A [k, m] and b is B [n, k], all else as for cublaslt_gemm_nt."""
    _run("cublaslt_gemm_tt", a, b, d, c)


def batched_syrk(a: torch.Tensor, d: torch.Tensor) -> None:
    """Compute d = A @ A.mT, for each matrix of a batch, with the vendor's library: all of D, not one triangle alone.

    Args:
        a: bfloat16 or float32 [m, k] or [batch, m, k] of any strides. In float32 torch's switch for TF32 decides.
        d: [m, m] or [batch, m, m] of the dtype of a, written.

    Raises: ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError.
    """
    _run("batched_syrk", a, a, d)


def batched_symm(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
    """Compute d = A @ B with a symmetric A, for each matrix of a batch. That A is symmetric is the caller's word: all
    of it is read.

    Args:
        a: bfloat16 or float32 [m, m] or [batch, m, m] of any strides. b: [m, n] or [batch, m, n] of the same dtype.
        d: [m, n] or [batch, m, n] of that dtype, written.

    Raises: as batched_syrk.
    """
    _run("batched_symm", a, b, d)


@torch.no_grad()
@_sums_in_fp32()
def batched_bf16_gemm(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d[group] = A[group] @ B[group].T + c[group] of CUDA tensors as reference.batched_bf16_gemm takes them."""
    dtype = {} if d.dtype == a.dtype else {"out_dtype": d.dtype}
    torch.bmm(a, b.mT, **dtype, out=d) if c is None else torch.baddbmm(c, a, b.mT, **dtype, out=d)


@torch.no_grad()
def summed_bf16_gemm(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = sum over groups of A[group] @ B[group].T + c likewise; copies A and B, to have one K."""
    _multiply(a.transpose(0, 1).flatten(1), b.transpose(0, 1).flatten(1).t(), d, c)


def _run(name: str, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Check the operands of one product and compute d = A @ B + c."""
    call = _CALLS[name]
    with torch._C.DisableTorchFunctionSubclass():  # two subclasses in one call would refuse each other
        check_operands(name, a, b, d, c)
        if any(is_fake(tensor) for tensor in _named(a, b, d, c).values()) and not torch.compiler.is_compiling():
            record(name, *_given(call, a, b, d, c))
            return
        if c is not None and _is_same(c, d):
            c = d  # torch takes one with another stride of a size-1 dim for a tensor that overlaps d
        _check_overlaps(_named(a, b, d, c))
        if not _C.get_compile_mode():
            with writing(d):
                _multiply(*_orient(call.layout, a, b), d, c)


def _given(call: _Call, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> tuple:
    """Return the arguments of the public function."""
    if not call.is_batched:
        return a, b, d, c
    return (a, d) if call.name == "batched_syrk" else (a, b, d)


def writing(*outputs: torch.Tensor) -> contextlib.AbstractContextManager:
    """Return the mode in which torch writes `outputs` without recording a graph, those made for inference or not, and
    computes in the dtypes of the formulas, also within autocast.
    """
    mode = torch.inference_mode() if any(d.is_inference() for d in outputs) else torch.no_grad()
    device = outputs[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):  # torch refuses the question of meta tensors
        return mode
    return _without_autocast(mode, device)


@contextlib.contextmanager
def _without_autocast(mode: contextlib.AbstractContextManager, device: str) -> Iterator[None]:
    with mode, torch.autocast(device, enabled=False):
        yield


def check_operands(name: str, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Make the checks of a product that need no memory, so that they work on fake tensors, too; B of batched_syrk is A.

    Raises: ArgumentError, DeviceError, DtypeError, ShapeError.
    """
    call = _CALLS[name]
    _check_tensors(_named(a, b, d, c), call.is_batched)
    _check_dtypes(call, a, b, d, c)
    _check_shapes(call, a, b, d, c)


#: Name -> the checks of a public function that need no memory.
CHECKS = {name: functools.partial(check_operands, name) for name in _CALLS}
CHECKS["batched_syrk"] = lambda a, d: check_operands("batched_syrk", a, a, d)


def _named(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return the operands by name; B of batched_syrk is A."""
    return {"a": a} | ({} if b is a else {"b": b}) | {"d": d} | ({} if c is None else {"c": c})


def _orient(layout: str, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A [..., m, k] and B [..., k, n]."""
    return (a.mT if layout[0] == "t" else a), (b.mT if layout[1] == "t" else b)


@_sums_in_fp32()
def _multiply(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> None:
    """Compute d = a @ b + c of a [m, k] and b [k, n], or d = a @ b of batches."""
    if a.dtype == torch.float8_e4m3fn:
        _run_fp8(a, b, d, c)
    elif a.dtype == torch.float32 or (a.dim() == 3 and d.dtype == a.dtype):
        torch.matmul(a, b, out=d)
    elif a.is_cuda and d.dtype == torch.float32:
        torch.mm(a, b, out_dtype=d.dtype, out=d) if c is None else torch.addmm(c, a, b, out_dtype=d.dtype, out=d)
    elif a.is_cuda or d.dtype == a.dtype:
        torch.mm(a, b, out=d) if c is None else torch.addmm(c, a, b, out=d)
    else:
        product = a.float() @ b.float()  # torch's CPU products have no other output dtype
        d.copy_(product if c is None else product.add_(c))


def _run_fp8(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> None:
    if a.is_cuda and (a.stride(1) != 1 or b.stride(0) != 1):
        raise LayoutError(
            f"a, b strides = {a.stride()}, {b.stride()}: the vendor reads FP8 along k only; pass K-major operands."
        )
    if not a.is_cuda:
        product = a.float() @ b.float()
    elif c is None:
        _scale(a, b, out_dtype=d.dtype, out=d)
        return
    else:
        product = _scale(a, b, out_dtype=torch.float32)  # torch's FP8 product takes no C
    d.copy_(product if c is None else product.add_(c))


def _scale(a: torch.Tensor, b: torch.Tensor, **options: object) -> torch.Tensor:
    """Return a @ b of FP8 operands on a GPU, scaled by 1."""
    one = torch.ones((), device=a.device)
    return torch._scaled_mm(a, b, one, one, use_fast_accum=False, **options)


def _check_tensors(tensors: dict[str, torch.Tensor], is_batched: bool) -> None:
    """Check what every operand must be."""
    for name, tensor in tensors.items():
        _check_kind(name, tensor)
    for name, tensor in tensors.items():
        if tensor.dim() != 2 and not (is_batched and tensor.dim() == 3):
            allowed = "a matrix or a batch of matrices" if is_batched else "a matrix"
            raise ShapeError(f"{name}.ndim = {tensor.dim()}: must be {allowed}; reshape it.")
        if name == "d":
            check_written(name, tensor)
        if tensor.device != tensors["d"].device:
            raise DeviceError(
                f"{name} is on {tensor.device} and d on {tensors['d'].device}: all must be on one device; move them"
                " with .to(...)."
            )


def _check_kind(name: str, tensor: torch.Tensor) -> None:
    """Check that an operand is a dense tensor with memory of its own, or one that is only traced."""
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(
            f"{name} = {type(tensor).__name__}: must be a torch.Tensor; pass FP8 operands without scales."
        )
    check_plain(name, tensor)


def _is_same(c: torch.Tensor, d: torch.Tensor) -> bool:
    """Return whether c, of the shape of d, is d in memory; the strides of dims of size 1 do not count."""
    if torch.compiler.is_compiling() or find_address(c) != find_address(d):
        return False
    strides = zip(d.shape, c.stride(), d.stride(), strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in strides)


def _check_overlaps(tensors: dict[str, torch.Tensor]) -> None:
    """Check that no operand overlaps d, except a c that is d. Tensors that are only traced have no memory."""
    if torch.compiler.is_compiling():
        return
    if shares_memory(tensors["d"]):
        raise LayoutError(
            f"d.stride() = {tensors['d'].stride()}: elements of d share memory; pass a tensor of its own."
        )
    for name, tensor in tensors.items():
        is_d = name in ("d", "c") and tensor is tensors["d"]
        if not is_d and overlaps(tensor, tensors["d"]):
            raise LayoutError(
                f"d overlaps {name} in memory: they must be separate (c may be d itself); pass another tensor."
            )


def shares_memory(d: torch.Tensor) -> bool:
    """Return whether elements of a tensor may lie in one place: some dim steps less far than those within it reach. An
    empty one has none.
    """
    if 0 in d.shape:
        return False
    strides = sorted((stride, size) for size, stride in zip(d.shape, d.stride(), strict=True) if size > 1)
    extent = 1
    for stride, size in strides:
        if stride < extent:
            return True
        extent += stride * (size - 1)
    return False


def overlaps(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return whether the memory spans of two tensors meet; empty and meta tensors have none."""
    if x.is_meta or not (x.numel() and y.numel()):
        return False
    (x_first, x_end), (y_first, y_end) = _span(x), _span(y)
    return x_first < y_end and y_first < x_end


def _span(x: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    first = find_address(x)
    return first, first + (last + 1) * x.element_size()


def find_address(x: torch.Tensor) -> int:
    """Return where the numbers of a tensor begin in memory. Raises: ArgumentError where they lie nowhere."""
    try:
        return x.data_ptr()
    except RuntimeError as error:
        raise ArgumentError(
            f"a tensor of shape {list(x.shape)}: has no memory of its own, as within torch.vmap ({error}); call the op"
            " outside of that, with plain tensors."
        ) from None


def _check_dtypes(call: _Call, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> None:
    allowed, results = " or ".join(map(str, call.dtypes)), (a.dtype,) if call.is_batched else _OUTPUT_DTYPES
    if a.dtype not in call.dtypes or b.dtype != a.dtype:
        given = ", ".join(f"{name}.dtype = {tensor.dtype}" for name, tensor in _named(a, b, d, c).items())
        raise DtypeError(f"{given}: A and B must be {allowed}, and of one dtype; convert them.")
    if d.dtype not in results or (c is not None and c.dtype != d.dtype):
        raise DtypeError(
            f"d.dtype = {d.dtype}: must be {' or '.join(map(str, results))}, and that of c; allocate such a d."
        )


def _check_shapes(call: _Call, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> None:
    (*batch, m, k), (*others, rows, n) = (operand.shape for operand in _orient(call.layout, a, b))
    agree = batch == others and k == rows and (m == k or call.name != "batched_symm")
    if not agree or list(d.shape) != [*batch, m, n] or (c is not None and c.shape != d.shape):
        given = ", ".join(f"{name} = {list(tensor.shape)}" for name, tensor in _named(a, b, d, c).items())
        raise ShapeError(f"{given}: {call.shapes}; reshape them.")
