"""The vendor's products under DeepGEMM's names: those that callers compare with, and those of symmetric matrices.

They go through torch, which calls cuBLASLt or cuBLAS for CUDA tensors, as it chooses.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import NamedTuple

import torch

from deep_gemm import _C
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError
from deep_gemm.memory import find_address, overlaps, shares_memory, writing
from deep_gemm.operands import check_plain, check_written, is_fake, record

_BF16, _FP32, _FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
#: The vendor's FP8 products take sizes of K and N that are multiples of it.
_FP8_UNIT = 16


class _Call(NamedTuple):
    """What a product takes.

    Attributes: `layout`: the memory of A, then of B. `dtypes`: of A and B. `results`: of D, None for that of A.
        `shapes`: of the operands, in words. `is_batched`: whether they may be batches. `is_square`: whether A is.
    """

    name: str
    layout: str
    dtypes: tuple[torch.dtype, ...]
    results: tuple[torch.dtype, ...] | None
    shapes: str
    is_batched: bool = False
    is_square: bool = False


def _list_comparable() -> list[_Call]:
    """Return the products that callers compare with, in every layout."""
    a_shapes, b_shapes = {"n": "[m, k]", "t": "[k, m]"}, {"n": "[k, n]", "t": "[n, k]"}
    return [
        _Call(
            f"cublaslt_gemm_{a}{b}",
            a + b,
            (_BF16, _FP8),
            (_BF16, _FP32),
            f"a must be {a_shapes[a]}, b {b_shapes[b]} and d [m, n], as c, if there is one",
        )
        for a in a_shapes for b in b_shapes
    ]  # fmt: skip


_SYRK = _Call("batched_syrk", "nt", (_BF16, _FP32), None, "a must be [m, k] and d [m, m], or batches of as many", True)
_SYMM = _Call(
    "batched_symm",
    "nn",
    (_BF16, _FP32),
    None,
    "a must be [m, m], b [m, n] and d [m, n], or batches of as many",
    True,
    True,
)
_CALLS = {call.name: call for call in (*_list_comparable(), _SYRK, _SYMM)}


def cublaslt_gemm_nt(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = A @ B.T + c with the vendor's library; parts of K are added up in FP32.

    Args:
        a: A [m, k], bfloat16 or float8_e4m3fn (without scales). b: B [n, k] of the same dtype.
        d: bfloat16 or float32 [m, n], written. c: [m, n] of the dtype of d, which it may be, or None. On a GPU FP8
            operands with a c take an FP32 matrix more, unless d is float32 and is not c.

    The memory from the first to the last element of d must not meet that of an operand.

    Raises: ArgumentError, DeviceError, DtypeError, ShapeError; LayoutError for memory that meets, and for FP8 operands
        on a GPU that are not contiguous along K. FP8 on a GPU takes multiples of 16 for n and k alone (ShapeError).
    """
    _run("cublaslt_gemm_nt", a=a, b=b, d=d, c=c)


def cublaslt_gemm_nn(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = A @ B + c; b is B [k, n], all else as for cublaslt_gemm_nt."""
    _run("cublaslt_gemm_nn", a=a, b=b, d=d, c=c)


def cublaslt_gemm_tn(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = A.T @ B + c; a is A [k, m] and b is B [k, n], all else as for cublaslt_gemm_nt."""
    _run("cublaslt_gemm_tn", a=a, b=b, d=d, c=c)


def cublaslt_gemm_tt(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = A.T @ B.T + c; a is A [k, m] and b is B [n, k], all else as for cublaslt_gemm_nt."""
    _run("cublaslt_gemm_tt", a=a, b=b, d=d, c=c)


def batched_syrk(a: torch.Tensor, d: torch.Tensor) -> None:
    """Compute d = A @ A.mT, for each matrix of a batch, with the vendor's library: all of D, not one triangle alone.

    Args:
        a: bfloat16 or float32 [m, k] or [batch, m, k] of any strides. In float32 torch's switch for TF32 decides.
        d: [m, m] or [batch, m, m] of the dtype of a, written. The memory from its first to its last element must not
            meet that of an operand.

    Raises: ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError.
    """
    _run("batched_syrk", a=a, d=d)


def batched_symm(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
    """Compute d = A @ B with a symmetric A, for each matrix of a batch. That A is symmetric is the caller's word: all
    of it is read.

    Args:
        a: bfloat16 or float32 [m, m] or [batch, m, m] of any strides. b: [m, n] or [batch, m, n] of the same dtype.
        d: [m, n] or [batch, m, n] of that dtype, written; all else as for batched_syrk.

    Raises: as batched_syrk.
    """
    _run("batched_symm", a=a, b=b, d=d)


class _Fp32Sums:
    """Lets the vendor add up parts of K in FP32: torch's default allows BF16 there, which the formulas do not have.

    The switch is the process's. While a call of any thread is inside, products of the others add up in FP32, too, and
    compiled functions that run then are compiled again, for torch guards the switch. Where it is off anyway, nothing
    is switched.
    """

    def __init__(self):
        self._lock, self._inside, self._was_allowed = threading.Lock(), 0, False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Be inside."""
        switch = torch.backends.cuda.matmul
        with self._lock:
            if switch.allow_bf16_reduced_precision_reduction:
                self._was_allowed = True
                switch.allow_bf16_reduced_precision_reduction = False
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0 and self._was_allowed:
                    switch.allow_bf16_reduced_precision_reduction = True
                    self._was_allowed = False


_with_fp32_sums = _Fp32Sums()


@torch.no_grad()
def batched_bf16_gemm(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d[group] = A[group] @ B[group].T + c[group] of CUDA tensors as reference.batched_bf16_gemm takes them."""
    dtype = {} if d.dtype == a.dtype else {"out_dtype": d.dtype}
    torch.bmm(a, b.mT, **dtype, out=d) if c is None else torch.baddbmm(c, a, b.mT, **dtype, out=d)


@torch.no_grad()
def summed_bf16_gemm(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = sum over groups of A[group] @ B[group].T + c likewise; copies A and B, to have one K."""
    _multiply(a.transpose(0, 1).flatten(1), b.transpose(0, 1).flatten(1).t(), d, c)


def _run(name: str, **arguments: torch.Tensor | None) -> None:
    """Check the operands of one product, by its parameters in their order, and compute d = A @ B + c, or A @ A.mT."""
    call = _CALLS[name]
    operands = {key: value for key, value in arguments.items() if key != "c" or value is not None}
    with torch._C.DisableTorchFunctionSubclass():  # two subclasses in one call would refuse each other
        _check(call, operands)
        if any(map(is_fake, operands.values())) and not torch.compiler.is_compiling():
            record(name, *arguments.values())
            return
        d, c = operands["d"], operands.get("c")
        if c is not None and _is_same(c, d):
            c = operands["c"] = d  # torch takes one with another stride of a size-1 dim for a tensor that overlaps d
        _check_overlaps(operands)
        if not _C.get_compile_mode():
            with writing(d):
                _multiply(*_orient(call, operands), d, c)


def check_operands(name: str, *arguments: torch.Tensor | None) -> None:
    """Make the checks of a product that need no memory, so that they work on fake tensors, too.

    Raises: ArgumentError, DeviceError, DtypeError, ShapeError.
    """
    parameters = {"batched_syrk": "ad", "batched_symm": "abd"}.get(name, "abdc")
    _check(_CALLS[name], {key: value for key, value in zip(parameters, arguments) if key != "c" or value is not None})


#: Name -> the checks of a public function that need no memory.
CHECKS = {name: functools.partial(check_operands, name) for name in _CALLS}


def _orient(call: _Call, operands: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A [..., m, k] and B [..., k, n]."""
    a = operands["a"]
    b = operands.get("b", a)
    return (a.mT if call.layout[0] == "t" else a), (b.mT if call.layout[1] == "t" else b)


def _multiply(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> None:
    """Compute d = a @ b + c of a [m, k] and b [k, n], or d = a @ b of batches."""
    if a.dtype == _FP8:
        _run_fp8(a, b, d, c)
    elif a.dtype == _FP32 or a.dim() == 3:
        torch.matmul(a, b, out=d)
    elif a.is_cuda or d.dtype == a.dtype:
        dtype = {} if d.dtype == a.dtype else {"out_dtype": d.dtype}
        with _with_fp32_sums():
            torch.mm(a, b, **dtype, out=d) if c is None else torch.addmm(c, a, b, **dtype, out=d)
    else:
        product = a.float() @ b.float()  # torch's CPU products have no other output dtype
        d.copy_(product if c is None else product.add_(c))


def _run_fp8(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> None:
    if not a.is_cuda:
        product = a.float() @ b.float()
    elif c is None or (d.dtype == _FP32 and c is not d):
        _scale(a, b, out_dtype=d.dtype, out=d)
        if c is not None:
            d.add_(c)
        return
    else:
        product = _scale(a, b, out_dtype=_FP32)  # torch's FP8 product takes no C
    d.copy_(product if c is None else product.add_(c))


def _scale(a: torch.Tensor, b: torch.Tensor, **options: object) -> torch.Tensor:
    """Return a @ b of FP8 operands on a GPU, scaled by 1."""
    if a.stride(1) != 1 or b.stride(0) != 1:
        raise LayoutError(
            f"a, b strides = {a.stride()}, {b.stride()}: the vendor reads FP8 along k only; pass K-major operands."
        )
    if b.shape[0] % _FP8_UNIT or b.shape[1] % _FP8_UNIT:
        raise ShapeError(
            f"n, k = {b.shape[1]}, {b.shape[0]}: the vendor takes multiples of {_FP8_UNIT} of FP8; pad the operands"
            " with zeros."
        )
    one = torch.ones((), device=a.device)
    return torch._scaled_mm(a, b, one, one, use_fast_accum=False, **options)


def _is_same(c: torch.Tensor, d: torch.Tensor) -> bool:
    """Return whether c, of the shape of d, is d in memory; the strides of dims of size 1 do not count."""
    if torch.compiler.is_compiling() or find_address(c) != find_address(d):
        return False
    strides = zip(d.shape, c.stride(), d.stride(), strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in strides)


def _check_overlaps(operands: dict[str, torch.Tensor]) -> None:
    """Check that no operand overlaps d, except a c that is d. Tensors that are only traced have no memory."""
    if torch.compiler.is_compiling():
        return
    d = operands["d"]
    if shares_memory(d):
        raise LayoutError(f"d.stride() = {d.stride()}: elements of d share memory; pass a tensor of its own.")
    for name, tensor in operands.items():
        is_d = name in ("d", "c") and tensor is d
        if not is_d and overlaps(tensor, d):
            allowed = " (c may be d itself)" if "c" in operands else ""
            raise LayoutError(
                f"d overlaps {name} in memory, from first to last element: they must be separate{allowed}; pass another"
                " tensor."
            )


def _check(call: _Call, operands: dict[str, torch.Tensor]) -> None:
    _check_tensors(call, operands)
    _check_dtypes(call, operands)
    _check_shapes(call, operands)


def _check_tensors(call: _Call, operands: dict[str, torch.Tensor]) -> None:
    """Check what every operand must be."""
    for name, tensor in operands.items():
        _check_kind(call, name, tensor)
    dims, allowed = ((2, 3), "a matrix or a batch of matrices") if call.is_batched else ((2,), "a matrix")
    for name, tensor in operands.items():
        if tensor.dim() not in dims:
            raise ShapeError(f"{name}.ndim = {tensor.dim()}: must be {allowed}; reshape it.")
        if name == "d":
            check_written(name, tensor)
        if tensor.device != operands["d"].device:
            raise DeviceError(
                f"{name} is on {tensor.device} and d on {operands['d'].device}: all must be on one device; move them"
                " with .to(...)."
            )


def _check_kind(call: _Call, name: str, tensor: torch.Tensor) -> None:
    """Check that an operand is a dense tensor with memory of its own, or one that is only traced."""
    if not isinstance(tensor, torch.Tensor):
        remedy = "pass FP8 operands without scales" if _FP8 in call.dtypes else "pass one"
        raise ArgumentError(f"{name} = {type(tensor).__name__}: must be a torch.Tensor; {remedy}.")
    check_plain(name, tensor)


def _check_dtypes(call: _Call, operands: dict[str, torch.Tensor]) -> None:
    a, d, c = operands["a"], operands["d"], operands.get("c")
    given = ", ".join(f"{name}.dtype = {tensor.dtype}" for name, tensor in operands.items())
    if a.dtype not in call.dtypes or operands.get("b", a).dtype != a.dtype:
        which = "a and b must be" if "b" in operands else "a must be"
        raise DtypeError(f"{given}: {which} {_name(call.dtypes)}{', both' if 'b' in operands else ''}; convert them.")
    results = call.results or (a.dtype,)
    if d.dtype not in results or (c is not None and c.dtype != d.dtype):
        of_c = "" if c is None else ", as c"
        raise DtypeError(f"{given}: d must be {_name(results)}{of_c}; allocate such a d.")


def _name(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(map(str, dtypes))


def _check_shapes(call: _Call, operands: dict[str, torch.Tensor]) -> None:
    (*batch, m, k), (*others, rows, n) = (operand.shape for operand in _orient(call, operands))
    agree = batch == others and k == rows and (m == k or not call.is_square)
    if not agree or any(list(operands[name].shape) != [*batch, m, n] for name in ("d", "c") if name in operands):
        given = ", ".join(f"{name} = {list(tensor.shape)}" for name, tensor in operands.items())
        raise ShapeError(f"{given}: {call.shapes}; reshape them.")
