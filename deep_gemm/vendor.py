"""The vendor's products, under the names with which callers of DeepGEMM compare theirs.

They go through torch, which calls cuBLASLt for CUDA tensors.
"""

import contextlib
from collections.abc import Iterator

import torch

from deep_gemm import _C
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError
from deep_gemm.operands import check_plain, check_written, is_fake, record

_INPUT_DTYPES = (torch.bfloat16, torch.float8_e4m3fn)
_OUTPUT_DTYPES = (torch.bfloat16, torch.float32)


def cublaslt_gemm_nt(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = A @ B.T + c with the vendor's library.

    Args:
        a: A [m, k], bfloat16 or float8_e4m3fn (without scales). b: B [n, k] of the same dtype.
        d: bfloat16 or float32 [m, n], written. c: [m, n] of the dtype of d, which it may be, or None; FP8 operands take
            none.

    Raises: ArgumentError, DtypeError, ShapeError; LayoutError for FP8 operands on a GPU that are not contiguous along
        K.
    """
    _run("nt", a, b, d, c)


def cublaslt_gemm_nn(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = A @ B + c; b is B [k, n], all else as for cublaslt_gemm_nt."""
    _run("nn", a, b, d, c)


def cublaslt_gemm_tn(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = A.T @ B + c; a is A [k, m] and b is B [k, n], all else as for cublaslt_gemm_nt."""
    _run("tn", a, b, d, c)


def cublaslt_gemm_tt(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = A.T @ B.T + c; a is A [k, m] and b is B [n, k], all else as for cublaslt_gemm_nt."""
    _run("tt", a, b, d, c)


@torch.no_grad()
def batched_bf16_gemm(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d[group] = A[group] @ B[group].T + c[group] of CUDA tensors as reference.batched_bf16_gemm takes them."""
    dtype = {} if d.dtype == a.dtype else {"out_dtype": d.dtype}
    torch.bmm(a, b.mT, **dtype, out=d) if c is None else torch.baddbmm(c, a, b.mT, **dtype, out=d)


@torch.no_grad()
def summed_bf16_gemm(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = sum over groups of A[group] @ B[group].T + c likewise; copies A and B, to have one K."""
    _multiply(a.transpose(0, 1).flatten(1), b.transpose(0, 1).flatten(1).t(), d, c)


def _run(layout: str, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> None:
    """Check the operands of one layout and compute d = A @ B + c."""
    with torch._C.DisableTorchFunctionSubclass():  # two subclasses in one call would refuse each other
        check_operands(layout, a, b, d, c)
        if any(is_fake(tensor) for tensor in _named(a, b, d, c).values()) and not torch.compiler.is_compiling():
            record(f"cublaslt_gemm_{layout}", a, b, d, c)
            return
        if c is not None and _is_same(c, d):
            c = d  # torch takes one with another stride of a size-1 dim for a tensor that overlaps d
        _check_overlaps(_named(a, b, d, c))
        if not _C.get_compile_mode():
            with writing(d):
                _multiply(*_orient(layout, a, b), d, c)


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


def check_operands(
    layout: str, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None
) -> None:
    """Make the checks of cublaslt_gemm_{layout} that need no memory, so that they work on fake tensors, too.

    Raises: ArgumentError, DeviceError, DtypeError, ShapeError.
    """
    _check_tensors(_named(a, b, d, c))
    _check(*_orient(layout, a, b), d, c)


def _named(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return {"a": a, "b": b, "d": d} | ({} if c is None else {"c": c})


def _orient(layout: str, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A [m, k] and B [k, n]."""
    return (a.t() if layout[0] == "t" else a), (b.t() if layout[1] == "t" else b)


def _multiply(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> None:
    """Compute d = a @ b + c of a [m, k] and b [k, n]."""
    if a.dtype == torch.float8_e4m3fn:
        _run_fp8(a, b, d)
    elif a.is_cuda and d.dtype == torch.float32:
        torch.mm(a, b, out_dtype=d.dtype, out=d) if c is None else torch.addmm(c, a, b, out_dtype=d.dtype, out=d)
    elif a.is_cuda or d.dtype == a.dtype:
        torch.mm(a, b, out=d) if c is None else torch.addmm(c, a, b, out=d)
    else:
        product = a.float() @ b.float()  # torch's CPU products have no other output dtype
        d.copy_(product if c is None else product.add_(c))


def _run_fp8(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
    if not a.is_cuda:
        d.copy_(a.float() @ b.float())
        return
    if a.stride(1) != 1 or b.stride(0) != 1:
        raise LayoutError(
            f"a, b strides = {a.stride()}, {b.stride()}: the vendor reads FP8 along k only; pass K-major operands."
        )
    one = torch.ones((), device=a.device)
    torch._scaled_mm(a, b, one, one, out_dtype=d.dtype, use_fast_accum=False, out=d)


def _check_tensors(tensors: dict[str, torch.Tensor]) -> None:
    """Check what every operand must be."""
    for name, tensor in tensors.items():
        _check_kind(name, tensor)
    for name, tensor in tensors.items():
        if tensor.dim() != 2:
            raise ShapeError(f"{name}.ndim = {tensor.dim()}: must be a matrix; reshape it.")
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


def _check(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> None:
    if a.dtype not in _INPUT_DTYPES or b.dtype != a.dtype:
        raise DtypeError(
            f"a.dtype = {a.dtype}, b.dtype = {b.dtype}: both must be torch.bfloat16 or torch.float8_e4m3fn; convert"
            " them."
        )
    if d.dtype not in _OUTPUT_DTYPES or (c is not None and c.dtype != d.dtype):
        raise DtypeError(
            f"d.dtype = {d.dtype}: must be torch.bfloat16 or torch.float32, and that of c; allocate such a d."
        )
    if c is not None and a.dtype == torch.float8_e4m3fn:
        raise ArgumentError("c: the vendor's FP8 product takes no C; pass None and add c afterwards.")
    sizes = (a.shape[0], b.shape[1]) if a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0] else None
    if sizes is None or tuple(d.shape) != sizes or (c is not None and c.shape != d.shape):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (a, b, d))
        raise ShapeError(
            f"a, b, d = {shapes}: must agree as [m, k], [k, n] and [m, n], and c have the shape of d; reshape them."
        )
