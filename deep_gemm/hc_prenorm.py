"""tf32_hc_prenorm_gemm: the projection before a hyper-connection's norm, with the sums of squares that the norm needs.

A plain kernel (include/deep_gemm/hc_prenorm.cuh) and no op kind: it is bound by the bandwidth with which A comes from
memory, its B has few rows, and its only choice is into how many parts K is cut, which follows from the shape.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from deep_gemm import _C, environment, planned
from deep_gemm.arguments import check_integer
from deep_gemm.errors import DeviceError, DtypeError, LayoutError, ShapeError
from deep_gemm.memory import find_address, overlaps, shares_memory, writing
from deep_gemm.operands import check_tensor, check_written, is_fake, record
from deep_gemm.planned import KernelOf, Launch, Memory, argument, memory
from deep_gemm.quantize import ceil_div
from deep_gemm.recorded_calls import K_UNIT, PrenormCall
from deep_gemm.recorded_calls import record as record_call

#: The name of the op.
NAME = "tf32_hc_prenorm_gemm"
#: Rows of A that a CTA takes, the fewest of these with which all CTAs run at once; and K of a chunk, of which a part
#: has whole ones.
_ROWS, _CHUNK = (16, 32, 64), 32
#: Rows of B that one launch multiplies with; with more of them A is read again.
_COLUMNS = 24
_THREADS, _SUM_THREADS = 384, 256
#: Chunks that a part has at least: one for each warp of a CTA.
_PART_CHUNKS = _THREADS // 32
#: Parts of K that one launch adds up: a cluster of CTAs, of which every GPU places 8.
_CLUSTER_PARTS = (8, 4, 2, 1)
#: Rows of a CTA times all K with which that is faster than more parts and a second launch. Measured on an H200.
_CLUSTER_SIZE = 1 << 19
#: Arguments of a call.
A, B, D, SQR_SUM = (argument(i) for i in range(4))


def tf32_hc_prenorm_gemm(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor, num_splits: int | None = None
) -> None:
    """Compute d = A @ B.T and sqr_sum[i] = sum over k of A[i, k] ** 2 in one pass over A, on the current stream.

    Products are at least as exact as those of TF32: an element of B counts to 2^-17 of its size. Sums are FP32, in an
    order that the shape alone decides, so that repeated calls give the same bits. CPU tensors are multiplied in FP32.

    Args:
        a: A bfloat16 [m, k], rows contiguous and 16-byte aligned; k is a multiple of 8.
        b: B float32 [n, k], likewise. The kernel is made for few rows: it reads A once for each 24 of them.
        d: float32 [m, n], rows contiguous, written.
        sqr_sum: float32 [m], contiguous, written.
        num_splits: None, or how many slices K is cut into: then d is [num_splits, m, n] and sqr_sum [num_splits, m],
            each slice holds its share, and the caller adds them up. Without it the call cuts K where that is faster,
            and adds up: in the same launch where m is small, else in another one.

    m = 0 or n = 0: sqr_sum is still written. k = 0: both are 0.

    Raises:
        ArgumentError, DtypeError, ShapeError, LayoutError, DeviceError: an operand is not as described.
        CompileError, LaunchError: the kernel could not be compiled, loaded or launched.
    """
    if _product(a, b, d, sqr_sum, num_splits) is not NotImplemented:
        return
    shape = _check(a, b, d, sqr_sum, num_splits)
    if any(map(is_fake, (a, b, d, sqr_sum))):
        record(NAME, a, b, d, sqr_sum, num_splits)
        return
    if shape.m == 0 or d.is_meta:
        return
    _note(shape)
    with writing(d, sqr_sum):
        if a.is_cuda and shape.n > 0 and shape.k > 0:
            planned.run(_make_plan(a, b, d, sqr_sum, shape, num_splits), a, b, d, sqr_sum)
        elif not _C.get_compile_mode():
            _run_reference(a, b, *((d, sqr_sum) if num_splits else (d[None], sqr_sum[None])))


def check_operands(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor, num_splits: int | None = None
) -> None:
    """Make the checks of tf32_hc_prenorm_gemm that need no memory, so that they work on fake tensors, too."""
    _check(a, b, d, sqr_sum, num_splits)


#: Name -> the checks of a public function that need no memory.
CHECKS = {NAME: check_operands}


def _check(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor, num_splits: int | None
) -> PrenormCall:
    for name, tensor, dtype in (
        ("a", a, torch.bfloat16), ("b", b, torch.float32), ("d", d, torch.float32), ("sqr_sum", sqr_sum, torch.float32),
    ):  # fmt: skip
        check_tensor(name, tensor)
        if tensor.dtype is not dtype:
            raise DtypeError(f"{name}.dtype = {tensor.dtype}: must be {dtype}; convert it.")
        if tensor.device != a.device:
            raise DeviceError(f"{name} is on {tensor.device} and a on {a.device}: must be the same; move it there.")
    for name, output in (("d", d), ("sqr_sum", sqr_sum)):
        check_written(name, output)
    if num_splits is not None:
        check_integer("num_splits", num_splits, 1)
    shape = _check_shapes(a, b, d, sqr_sum, num_splits)
    _check_layouts(a, b, d, sqr_sum)
    if not torch.compiler.is_compiling() and not is_fake(d):
        _check_overlaps(a=a, b=b, d=d, sqr_sum=sqr_sum)
    return shape


def _check_shapes(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor, num_splits: int | None
) -> PrenormCall:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[1]:
        raise ShapeError(f"a, b = {list(a.shape)}, {list(b.shape)}: must be [m, k] and [n, k]; reshape them.")
    (m, k), n = a.shape, b.shape[0]
    slices = () if num_splits is None else (num_splits,)
    if tuple(d.shape) != (*slices, m, n) or tuple(sqr_sum.shape) != (*slices, m):
        raise ShapeError(
            f"d, sqr_sum = {list(d.shape)}, {list(sqr_sum.shape)}: must be {[*slices, m, n]} and {[*slices, m]};"
            " allocate them with a leading dimension of num_splits exactly where that is given."
        )
    if k % K_UNIT:
        raise ShapeError(f"k = {k}: must be a multiple of {K_UNIT}; pad a and b with zeros along k.")
    return PrenormCall(m, n, k, num_splits or 1)


def _check_overlaps(**tensors: torch.Tensor) -> None:
    """Check that what is written lies apart from everything else."""
    for written, name in itertools.product(("d", "sqr_sum"), tensors):
        if name != written and overlaps(tensors[name], tensors[written]):
            raise LayoutError(
                f"{written} and {name} lie in one span of memory: neither may begin before the other ends; pass a"
                " tensor of its own."
            )


def _check_layouts(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor) -> None:
    for name, tensor in (("a", a), ("b", b), ("d", d), ("sqr_sum", sqr_sum)):
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise LayoutError(f"{name}.stride(-1) = {tensor.stride(-1)}: must be 1; pass {name}.contiguous().")
    for name, tensor in (("d", d), ("sqr_sum", sqr_sum)):
        if not torch.compiler.is_compiling() and shares_memory(tensor):
            raise LayoutError(f"{name}.stride() = {tensor.stride()}: elements of {name} share memory; pass its own.")
    for name, tensor in (("a", a), ("b", b)):
        pitch = tensor.stride(0) * tensor.element_size() if tensor.shape[0] > 1 and tensor.shape[1] > 0 else 0
        has_address = tensor.is_cuda and not tensor.is_meta and not is_fake(tensor)
        address = find_address(tensor) if has_address else 0
        if pitch % 16 or address % 16:
            raise LayoutError(
                f"{name}: rows must start at multiples of 16 bytes, the first is at {address} and they are {pitch}"
                f" apart; pass {name}.contiguous() or a clone of it."
            )


def _run_reference(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor) -> None:
    """Compute each slice of d [splits, m, n] and sqr_sum [splits, m] in FP32."""
    chunks, splits = ceil_div(a.shape[1], _CHUNK), len(d)
    for split in range(splits):
        columns = slice(split * chunks // splits * _CHUNK, (split + 1) * chunks // splits * _CHUNK)
        rows = a[:, columns].float()
        d[split].copy_(rows @ b[:, columns].t())
        sqr_sum[split].copy_(rows.square().sum(1))


class _Cut(NamedTuple):
    """How a launch divides A: parts of K, those that a cluster adds up (1: it does not), and rows of a CTA."""

    parts: int
    cluster: int
    rows: int


def _cut(shape: PrenormCall, sms: int, is_whole: bool = True) -> _Cut:
    """Return how A is divided: for clusters where they are few and small and have a whole GPU; else into as many parts
    as fill the SMs, each with a chunk for every warp. Where bits must not depend on m, the parts are those of clusters
    for every m.
    """
    most = max(shape.k // (_CHUNK * _PART_CHUNKS), 1)
    cluster = next(count for count in _CLUSTER_PARTS if count <= most)
    # SMs form groups of 14 to 18, and a cluster lies in one of them: some stay empty.
    rows = _count_rows(shape.m, cluster, sms * 3 // 4)
    if is_whole and shape.num_splits == 1 and rows is not None and rows * shape.k <= _CLUSTER_SIZE:
        return _Cut(cluster, cluster, rows)
    filling = cluster if _C.is_batch_invariant() else min(max(sms // ceil_div(shape.m, _ROWS[-1]), 1), most)
    parts = filling if shape.num_splits == 1 else shape.num_splits
    return _Cut(parts, 1, _count_rows(shape.m, parts, sms) or _ROWS[-1])


def _count_rows(m: int, parts: int, sms: int) -> int | None:
    return next((rows for rows in _ROWS if ceil_div(m, rows) * parts <= sms), None)


def _get_sms(device: torch.device) -> tuple[int, bool]:
    """Return how many SMs a call may use, and whether these are a whole GPU."""
    return limit_sms(_C.get_num_sms(), _C.get_device(device.index).sm_count)


def _plan(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor, num_splits: int | None
) -> planned.Plan | None:
    shape = _check(a, b, d, sqr_sum, num_splits)
    _note(shape)
    return None if 0 in shape else _make_plan(a, b, d, sqr_sum, shape, num_splits)


def _make_plan(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor, shape: PrenormCall, num_splits: int | None
) -> planned.Plan:
    cut = _cut(shape, *_get_sms(a.device))
    lead = () if num_splits else (0,)  # what has no parts may lie at any stride from part to part
    outputs = _Output(D, (*lead, *d.stride())), _Output(SQR_SUM, (*lead, *sqr_sum.stride()))
    if not _adds_up(cut, shape):
        return planned.Plan(_plan_parts(a, b, *outputs, shape, cut))
    m, n, parts = shape.m, shape.n, cut.parts
    products = _Output(memory(0), (m * n, n, 1))
    squares = _Output(memory(0, 4 * parts * m * n), (m, 1))
    launches = *_plan_parts(a, b, products, squares, shape, cut), _plan_sum(products, squares, *outputs, shape, parts)
    return planned.Plan(launches, (Memory((parts * m * (n + 1),), (1,), torch.float32),))


class _Output(NamedTuple):
    """FP32 [parts, m, n] or [parts, m], which kernels write and add up."""

    place: planned.Place
    strides: tuple[int, ...]


def _plan_parts(
    a: torch.Tensor, b: torch.Tensor, d: _Output, sqr_sum: _Output, shape: PrenormCall, cut: _Cut
) -> tuple[Launch, ...]:
    """Write each part of K into d and sqr_sum, or the sum of all."""
    grid = (ceil_div(shape.m, cut.rows) * cut.cluster, cut.parts // cut.cluster)
    launches = []
    for first, n in _list_columns(shape.n):
        arguments = (
            A, _after(B, first * b.stride(0)), _after(d.place, first), sqr_sum.place, a.stride(0), b.stride(0),
            *d.strides[:2], sqr_sum.strides[0], shape.m, n, shape.k, cut.parts,
        )  # fmt: skip
        kernel = planned.get_kernel("hc_prenorm", _THREADS, **_get_constants(n, cut))
        launches.append(Launch(kernel, grid, arguments))
    return tuple(launches)


def _adds_up(cut: _Cut, shape: PrenormCall) -> bool:
    """Return whether a second launch adds up the parts of the first one."""
    return cut.cluster == 1 and cut.parts != shape.num_splits


def _list_columns(n: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of B that each launch multiplies with, and how many it does."""
    return ((first, min(n - first, _COLUMNS)) for first in range(0, n, _COLUMNS))


def _get_constants(n: int, cut: _Cut) -> dict[str, int]:
    return {"kColumnTiles": ceil_div(n, 8), "kRowTiles": cut.rows // 16, "kParts": cut.cluster}


def _after(place: planned.Place, elements: int) -> planned.Place:
    """Return the address of `elements` FP32 numbers after another."""
    return place[0], place[1] + 4 * elements


def _plan_sum(
    products: _Output, squares: _Output, d: _Output, sqr_sum: _Output, shape: PrenormCall, parts: int
) -> Launch:
    """Add up the parts."""
    kernel = planned.get_kernel("hc_prenorm_sum", _SUM_THREADS)
    grid = (ceil_div(shape.m * (shape.n + 1), _SUM_THREADS),)
    places = products.place, squares.place, d.place, sqr_sum.place
    return Launch(kernel, grid, (*places, d.strides[1], parts, shape.m, shape.n))


# Recorded calls, and the kernels that they need.


def _note(shape: PrenormCall) -> None:
    """Record a call with something to multiply."""
    if environment.get_string("DG_RECORD_SHAPES") and 0 not in shape:
        record_call(shape)


def list_kernels(shape: PrenormCall, sms: int, is_whole: bool, any_size: bool = False) -> list[KernelOf]:
    """Return the plain kernels that a call needs where it may use `sms` SMs; with `any_size` those of every call with
    as many rows of B.
    """
    cuts = [_cut(shape, sms, is_whole)]
    needs_sum = _adds_up(cuts[0], shape)
    if any_size:
        cuts = [_Cut(parts, parts, rows) for parts, rows in itertools.product(_CLUSTER_PARTS, _ROWS)]
        needs_sum = True
    found: list[KernelOf] = [
        ("hc_prenorm", _THREADS, _get_constants(n, cut)) for cut in cuts for _, n in _list_columns(shape.n)
    ]
    return found + ([("hc_prenorm_sum", _SUM_THREADS, {})] if needs_sum else [])


def limit_sms(limit: int, count: int) -> tuple[int, bool]:
    """Return how many of a GPU's `count` SMs a call may use under a limit (0: none), and whether these are a whole GPU:
    a cluster waits for SMs of one GPC, of which a slice of a GPU may have too few, and something else may hold them
    beside a limit.
    """
    sms = min(limit or count, count)
    return sms, sms == count >= _C.WHOLE_GPU_SMS


_product = planned.make_call(NAME, _plan, written=(D[0], SQR_SUM[0]))
