"""Public ops on the emulator: the library checks, chooses, compiles and launches as on a GPU, on tensors of the CPU.

Functions here run in the child process of the stub driver.
"""

import functools
import math
from unittest import mock

import torch

import deep_gemm
from deep_gemm import _C, cast_kernels, hc_prenorm, planned
from deep_gemm.errors import LaunchError
from deep_gemm.nn import routing, row_kernels, swiglu
from tests.gpu.operands import FP8, make_reference, quantise_blocks, quantise_rows

from .host import use_host_memory, view

POISON = -77


def run_gemm(m: int, n: int, k: int) -> float:
    """Run fp8_gemm_nt; return the largest error relative to the sum of magnitudes."""
    use_host_memory()
    a, b = quantise_rows(torch.randn(m, k)), quantise_blocks(torch.randn(n, k))
    d = torch.full((m, n), torch.nan, dtype=torch.bfloat16)
    deep_gemm.fp8_gemm_nt(view(a), view(b), view(d), stream=0)
    return _error(d, *make_reference(*a, *b))


def compare_scale_copies(m: int, n: int, k: int, recipe: tuple[int, int, int] | None = None) -> bool:
    """Run fp8_gemm_nt on row-major scales, which are copied first, and on the same scales in that layout; return
    whether the bits are the same.
    """
    use_host_memory()
    a, b = quantise_rows(torch.randn(m, k)), (quantise_rows if recipe else quantise_blocks)(torch.randn(n, k))
    found, before = [], _C.get_scale_copy_work()
    for copies in (True, False):
        layout = torch.Tensor.contiguous if copies else deep_gemm.get_mn_major_tma_aligned_tensor
        scales = [layout(one[1]) if one is a or recipe else one[1] for one in (a, b)]
        d = torch.full((m, n), torch.nan)
        _C.set_scale_copy_work(1.0 if copies else math.inf)
        try:
            deep_gemm.fp8_gemm_nt(
                (view(a[0]), view(scales[0])), (view(b[0]), view(scales[1])), view(d), recipe=recipe, stream=0
            )
        finally:
            _C.set_scale_copy_work(before)
        found.append(d)
    return torch.equal(*found) and not found[0].isnan().any()


def run_sum(b: int, m: int, n: int, k: int, dtype: str = "float32", has_c: bool = False) -> float:
    """Run einsum("bmk,bnk->mn") with rows of A and D that lie apart; return the error as run_gemm, infinity where
    anything beside D was written.
    """
    use_host_memory()
    x, y = torch.randn(b, m, k + 8).bfloat16()[:, :, :k], torch.randn(b, n, k).bfloat16()
    memory = torch.full((m + 2, (n + 8) // 8 * 8), torch.nan, dtype=getattr(torch, dtype))
    d, c = memory[1:-1, :n], torch.randn(m, n) if has_c else None
    deep_gemm.einsum("bmk,bnk->mn", view(x), view(y), view(d), view(c), stream=0)
    wide_x, wide_y, wide_c = x.double(), y.double(), 0 if c is None else c.double()
    error = _error(
        d,
        torch.einsum("bmk,bnk->mn", wide_x, wide_y) + wide_c,
        torch.einsum("bmk,bnk->mn", wide_x.abs(), wide_y.abs()) + abs(wide_c),
    )
    return error if int(memory.isnan().sum()) == memory.numel() - m * n else torch.inf


def run_defective_sum(header: str, text: str, instead: str) -> str:
    """Run a small sum whose header has a defect; return what is wrong."""
    use_host_memory({f"deep_gemm/{header}.cuh": (text, instead)})
    try:
        return "" if run_sum(3, 20, 24, 520) < 2.0**-16 else "a wrong D"
    except LaunchError as error:
        return str(error)


def run_prenorm(m: int, n: int, k: int, num_splits: int | None = None, sms: int = 132) -> tuple[float, list[int]]:
    """Run tf32_hc_prenorm_gemm; return the error of both results as run_gemm, and the CTAs of each launch."""
    use_host_memory()
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k)
    found, ctas = _run_prenorm(a, b, num_splits, sms)
    found = found if num_splits is None else found.sum(0)
    wide_a, wide_b = a.double(), b.double()
    error = max(
        _error(found[:, :n], wide_a @ wide_b.t(), wide_a.abs() @ wide_b.abs().t()),
        _error(found[:, n], wide_a.square().sum(1), wide_a.square().sum(1)),
    )
    return error, ctas


def compare_rows(k: int, few: int, many: int) -> list[bool]:
    """Run tf32_hc_prenorm_gemm on `few` and on `many` rows where results must not depend on m, and in as many slices;
    return whether the first rows have the bits of the others: of their divisions on many and on few SMs, and of the
    slices added up in their order.
    """
    use_host_memory()
    a, b = torch.randn(many, k).bfloat16(), torch.randn(24, k)
    deep_gemm.set_batch_invariant(True)
    try:
        parts = hc_prenorm._cut(hc_prenorm.PrenormCall(few, 24, k, 1), 132).parts
        first, *others = (
            _run_prenorm(a[:m], b, num_splits, sms)[0]
            for m, num_splits, sms in ((few, None, 132), (many, None, 132), (many, None, 8), (few, parts, 132))
        )
    finally:
        deep_gemm.set_batch_invariant(None)
    others[-1] = functools.reduce(torch.add, others[-1])
    return [torch.equal(first, other[:few]) for other in others]


def _run_prenorm(a: torch.Tensor, b: torch.Tensor, num_splits: int | None, sms: int) -> tuple[torch.Tensor, list[int]]:
    """Return the products and, in one more column, the squares, and the CTAs of each launch, on a GPU of so many SMs: a
    limit would leave out clusters.
    """
    (m, k), n, lead = a.shape, len(b), () if num_splits is None else (num_splits,)
    d, squares = torch.full((*lead, m, n), torch.nan), torch.full((*lead, m), torch.nan)
    with mock.patch.object(hc_prenorm, "_get_sms", return_value=(sms, True)):
        plan = hc_prenorm._make_plan(a, b, d, squares, hc_prenorm.PrenormCall(m, n, k, num_splits or 1), num_splits)
    _run_plan(plan, a, b, d, squares)
    return torch.cat([d, squares[..., None]], -1), [math.prod(launch.grid) for launch in plan.launches]


def compare_swiglu(m: int, n: int, dtype: str, has_y: bool, extra: int = 0) -> float:
    """Run the derivative of SwiGLU on rows `extra` elements apart; return the largest difference from the formula,
    relative to what the dtype can tell apart, infinity where something else was written.
    """
    use_host_memory()
    kind = getattr(torch, dtype)
    x, grad = (torch.randn(m, width + extra).to(kind)[:, :width] for width in (2 * n, n))
    plan = cast_kernels.plan_swiglu_grad(x, grad, has_y)
    found = _run_plan(plan, x, grad)
    wanted = [swiglu.compute_gradient(x, grad), swiglu.compute_swiglu(x)][: 1 + has_y]
    if [one.shape for one in found] != [one.shape for one in wanted]:
        return math.inf
    step = torch.finfo(kind).eps
    return max(float(((a - b).abs() / (b.abs() + 1)).max()) / step for a, b in zip(found, wanted, strict=True))


def compare_token_rows(tokens: int, top_k: int, n: int, dtype: str, is_weighted: bool, extra: int = 0) -> bool:
    """Spread rows `extra` elements apart to those of their choices, of which one is none, and combine these again;
    return whether the bits are those of the formula, added up in order.
    """
    use_host_memory()
    kind, num_rows = getattr(torch, dtype), tokens * top_k + 3
    x = torch.randn(tokens, n + extra).to(kind)[:, :n]
    rows = torch.randperm(num_rows)[: tokens * top_k].view(tokens, top_k)
    rows[0, 0] = num_rows  # of no choice
    weights = torch.rand(tokens, top_k) if is_weighted else None
    factors = torch.ones(tokens, top_k) if weights is None else weights
    spread, y = torch.full((num_rows, n), 7.0).to(kind), torch.randn(num_rows, n + extra).to(kind)[:, :n]
    wanted, total = torch.cat([spread, spread[:1]]), torch.zeros(tokens, n)
    wanted[rows] = (x[:, None].float() * factors[..., None]).to(kind)
    words = rows.view(torch.int32)
    _run_plan(row_kernels.plan_spread(x, words, weights, spread), x, words, weights, spread)
    (sums,) = _run_plan(row_kernels.plan_combine(y, words, weights), y, words, weights)
    for choice in range(top_k):
        total += torch.cat([y, torch.zeros_like(y[:1])])[rows[:, choice]].float() * factors[:, choice, None]
    return torch.equal(spread, wanted[:-1]) and torch.equal(sums, total.to(kind))


def compare_places(tokens: int, top_k: int, experts: int, is_masked: bool) -> bool:
    """Place choices of experts, of which some name an expert again and some are of none; return whether rows and groups
    are those of the formula.
    """
    use_host_memory()
    choices = torch.randint(-1, experts + 1, (tokens, top_k))
    choices[::3, -1] = choices[::3, 0]
    words = choices.view(torch.int32)
    rows, groups = _run_plan(row_kernels.plan_place(words, experts, is_masked), words)
    wanted = routing.nn_place(choices, experts, is_masked)
    return torch.equal(rows.view(torch.int64), wanted[0]) and torch.equal(groups, wanted[1])


def _run_plan(plan: planned.Plan, *arguments: torch.Tensor) -> list[torch.Tensor]:
    """Launch as the native module does: a place is an address, and a tensor where it is the first. Returns the memory
    that the plan takes, which was NaN or POISON before.
    """
    poison = {torch.int32: POISON}
    taken = [torch.full(one.shape, poison.get(one.dtype, torch.nan), dtype=one.dtype) for one in plan.memory]

    def value_of(value: int | planned.Place) -> object:
        if isinstance(value, int):
            return value
        tensor = arguments[value[0]] if value[0] >= 0 else taken[-1 - value[0]]
        return tensor.data_ptr() + value[1] if value[1] else view(tensor)

    for launch in plan.launches:
        launch.kernel(launch.grid, *map(value_of, launch.arguments))
    return taken


def run_batches(heads: int, tokens: int, r: int, d: int) -> float:
    """Run fp8_einsum("bhd,hdr->bhr"), which transposes an operand first; return the error as run_gemm."""
    use_host_memory()
    x, y = torch.randn(tokens, heads, d).to(FP8), torch.randn(heads, d, r).to(FP8)
    scale_x, scale_y = torch.rand(tokens, heads, d // 128) + 0.5, torch.rand(heads, d // 128, r // 128) + 0.5
    out = torch.full((tokens, heads, r), torch.nan, dtype=torch.bfloat16)
    deep_gemm.fp8_einsum("bhd,hdr->bhr", view((x, scale_x)), view((y, scale_y)), view(out), stream=0)
    wide_x = x.double() * scale_x.double().repeat_interleave(128, 2)
    wide_y = y.double() * scale_y.double().repeat_interleave(128, 1).repeat_interleave(128, 2)
    return _error(
        out, torch.einsum("bhd,hdr->bhr", wide_x, wide_y), torch.einsum("bhd,hdr->bhr", wide_x.abs(), wide_y.abs())
    )


def run_gradient(heads: int, tokens: int, d: int, r: int) -> float:
    """Run einsum("bhd,bhr->hdr") onto its D, which reads A and B along their rows; return the error as run_gemm,
    infinity where anything beside D was written.
    """
    use_host_memory()
    x, y = torch.randn(tokens, heads, d + 8).bfloat16()[:, :, :d], torch.randn(tokens, heads, r).bfloat16()
    memory, before = torch.full((heads, d + 2, r + 8), torch.nan), torch.randn(heads, d, r)
    out = memory[:, 1:-1, :r]
    out.copy_(before)
    deep_gemm.einsum("bhd,bhr->hdr", view(x), view(y), view(out), view(out), stream=0)
    products = [
        torch.einsum("bhd,bhr->hdr", *pair) for pair in ((x.double(), y.double()), (x.double().abs(), y.double().abs()))
    ]
    error = _error(out, products[0] + before.double(), products[1] + before.double().abs())
    return error if int(memory.isnan().sum()) == memory.numel() - out.numel() else torch.inf


def _error(d: torch.Tensor, reference: torch.Tensor, magnitude: torch.Tensor) -> float:
    error = (d.double() - reference).abs() - 2.0**-8 * (d.dtype == torch.bfloat16) * reference.abs()
    return float((error / magnitude).max()) if not bool(d.isnan().any()) else torch.inf
