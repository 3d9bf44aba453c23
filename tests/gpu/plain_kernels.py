"""Check on a GPU that the quantising and layout kernels equal the torch formula to the bit.

Example: python -m tests.gpu.plain_kernels --out plain_kernels_bits.json

Every case runs the public function twice on the same CUDA tensor: with the kernels, whose outputs are poisoned before,
and with the formula. Exit status 1 where a byte differs. The GPU suite runs the same cases.
Result: {"meta": ..., "rows": [{"case", "num_wrong"}], "num_wrong": how many cases}.
"""

import argparse
import contextlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from deep_gemm import _C, group_packing, planned, quantize, stream
from deep_gemm import layout as layouts
from deep_gemm.group_packing import get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor as pack_groups
from deep_gemm.jit.hashing import name_plain
from deep_gemm.nn import products, routing, swiglu
from tuner.measure.stamp import make_stamp, name_model_here, write_json

from .memory import as_integers

#: Kernels of these cases, whose hashes the result carries.
KERNELS = tuple(
    name_plain(name)
    for name in (
        *("cast_rows", "cast_blocks", "swiglu_grad", "scale_layout", "k_grouped_packing"),
        *("place_rows", "spread_rows", "combine_rows"),
    )
)
COMPILE_THREADS = 16
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
POISON = 0x5A
SPECIAL = (math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-40, -0.0)
#: Rows and columns: tails of chunks, scales, tiles and warps; a decode step; more CTAs than an SM holds.
SHAPES = (
    (1, 1), (1, 128), (5, 7168), (300, 512), (129, 1000), (37, 131), (0, 256), (4, 0), (3, 70, 384), (2, 3, 5, 256),
    (4, 1, 136), (1000, 2048),
)  # fmt: skip
COUNTS = ((70, 0, 3, 99, 1), (0, 0, 0, 0, 0), (70, 70, 70, 70, 70))

Case = tuple[str, Callable[[], list[torch.Tensor]]]


@contextlib.contextmanager
def using_formula() -> Iterator[None]:
    """Let the public functions run the torch formula."""
    with contextlib.ExitStack() as stack:
        for name in [name for name, value in vars(quantize).items() if value in planned.CALLS]:
            stack.enter_context(mock.patch.object(quantize, name, planned.decline))
        for name in ("_lay_out", "_pack_up"):
            stack.enter_context(mock.patch.object(layouts, name, planned.decline))
        stack.enter_context(mock.patch.object(group_packing, "_pack", planned.decline))
        stack.enter_context(mock.patch.object(products, "_padded_cast", planned.decline))
        stack.enter_context(mock.patch.object(swiglu, "_differentiate", planned.decline))
        for name in ("_place", "_spread", "_combine"):
            stack.enter_context(mock.patch.object(routing, name, planned.decline))
        yield


@contextlib.contextmanager
def poisoned_outputs() -> Iterator[None]:
    """Let the memory of every output start as POISON bytes."""
    take = stream.find_allocator()

    def poisoned(shape: tuple, strides: tuple, dtype: torch.dtype) -> torch.Tensor:
        out = take(shape, strides, dtype)
        if out.numel():
            torch.empty(0, dtype=torch.uint8, device="cuda").set_(out.untyped_storage()).fill_(POISON)
        return out

    _C.set_allocator(poisoned)
    try:
        yield
    finally:
        _C.set_allocator(None)


def make_values(shape: tuple, dtype: torch.dtype, extra: int = 0, special: tuple = ()) -> torch.Tensor:
    """Return numbers of many magnitudes, rows `extra` elements further apart; `special` ones in some rows."""
    wide = torch.randn(*shape[:-1], shape[-1] + extra, device="cuda")
    wide *= 10.0 ** torch.randint(-6, 4, wide.shape, device="cuda")
    x = wide[..., : shape[-1]]
    if x.numel():
        x[..., ::7] = -0.0
        for index, value in enumerate(special):
            x[..., index % shape[-2], index % shape[-1]] = value
    return wide.to(dtype)[..., : shape[-1]]


def list_groups() -> dict[str, Callable[[], Iterator[Case]]]:
    """Return what makes the cases of each group; a case is its name, and what computes its results."""
    groups: dict[str, Callable[[], Iterator[Case]]] = {}
    for dtype, use_ue8m0 in itertools.product((BF16, FP16, FP32), (False, True)):
        name = f"{str(dtype)[6:]} {'ue8m0' if use_ue8m0 else 'fp32'}"
        for make in (make_shape_cases, make_other_cases, make_swiglu_cases):
            groups[f"{make.__name__[5:-6]} {name}"] = partial(make, dtype, use_ue8m0, name)
    return groups | {
        "gradients": make_gradient_cases,
        "rows of choices": make_place_cases,
        "rows of tokens": make_token_cases,
        "layouts": make_layout_cases,
        "groups of K": make_group_cases,
    }


def make_shape_cases(dtype: torch.dtype, use_ue8m0: bool, name: str) -> Iterator[Case]:
    """Yield casts of every shape and pitch."""
    for shape, extra in itertools.product(SHAPES, (0, 8, 1)):
        x = make_values(shape, dtype, extra)
        yield f"per_token {name} {shape}+{extra}", lambda x=x, u=use_ue8m0: quantize.per_token_cast_to_fp8(x, u)
        yield f"per_block {name} {shape}+{extra}", lambda x=x, u=use_ue8m0: quantize.per_block_cast_to_fp8(x, u)
        yield (
            f"per_token mn_major {name} {shape}+{extra}",
            lambda x=x, u=use_ue8m0: quantize.per_token_cast_to_fp8(x, u, scales="mn_major"),
        )


def make_other_cases(dtype: torch.dtype, use_ue8m0: bool, name: str) -> Iterator[Case]:
    """Yield other granularities, columns of scales, numbers that are not finite, and memory that is not row-major."""
    for gran, shape in itertools.product((32, 64, 256), ((300, 1000), (7, 512))):
        x = make_values(shape, dtype)
        yield (
            f"per_token {name} {shape} gran_k={gran}",
            lambda x=x, gran=gran: quantize.per_token_cast_to_fp8(x, use_ue8m0, gran),
        )
        yield (
            f"per_block {name} {shape} gran_k={gran}",
            lambda x=x, gran=gran: quantize.per_block_cast_to_fp8(x, use_ue8m0, gran),
        )
    for *shape, gran in ((256, 512, 128), (128, 70, 128), (1024, 1000, 128), (192, 300, 32), (3, 128, 200, 64)):
        x = make_values(tuple(shape), dtype)
        yield (
            f"per_channel {name} {'x'.join(map(str, shape))} gran_k={gran}",
            lambda x=x, gran=gran: quantize.per_channel_cast_to_fp8(x, use_ue8m0, gran),
        )
    for shape, kept in (((1000, 128), 1), ((5, 100), 1), ((7, 6, 64), 2), ((300, 4, 1, 32), 1), ((1, 120), 0)):
        for extra in (0, 8):
            x = make_values(shape, dtype, extra)
            yield (
                f"per_custom_dims {name} {shape}+{extra} by {kept}",
                lambda x=x, kept=kept: quantize.per_custom_dims_cast_to_fp8(x, tuple(range(kept)), use_ue8m0),
            )
    x = make_values((256, 512), dtype, special=SPECIAL)
    yield f"per_token {name} special", lambda: quantize.per_token_cast_to_fp8(x, use_ue8m0)
    yield f"per_block {name} special", lambda: quantize.per_block_cast_to_fp8(x, use_ue8m0)
    yield f"per_channel {name} special", lambda: quantize.per_channel_cast_to_fp8(x, use_ue8m0)
    yield f"per_custom_dims {name} special", lambda: quantize.per_custom_dims_cast_to_fp8(x[:, :96], (0,), use_ue8m0)
    yield f"per_token {name} transposed", lambda: quantize.per_token_cast_to_fp8(x.T, use_ue8m0)


def make_swiglu_cases(dtype: torch.dtype, use_ue8m0: bool, name: str) -> Iterator[Case]:
    """Yield activations of many arguments, and masked groups of both kinds."""
    swiglu = quantize.swiglu_per_token_cast_to_fp8
    for shape in ((300, 2048), (5, 262), (3, 40, 512), (4096, 1024)):
        x = make_values(shape, dtype)
        yield f"swiglu {name} {shape}", lambda x=x: swiglu(x, use_ue8m0)
        if shape[-1] % 16 == 0:
            for limit, in_turn in ((7.0, True), (0.3, True), (None, True), (7.0, False)):
                options = {"limit": limit, "is_interleaved": in_turn}
                yield f"swiglu {name} {shape} {options}", lambda x=x, options=options: swiglu(x, use_ue8m0, **options)
    gates = torch.linspace(-110, 110, 1 << 20, device="cuda").view(1024, 1024)
    dense = torch.cat([gates, torch.ones_like(gates)], -1).to(dtype)
    yield f"swiglu {name} dense gates", lambda: swiglu(dense, use_ue8m0)
    for up in {BF16: (0, 20, 60, 100), FP16: (0, 15), FP32: ()}[dtype]:
        every = make_gates(dtype, 2.0**up)
        yield f"swiglu {name} every gate * 2^{up}", lambda every=every: swiglu(every, use_ue8m0)
    special = make_values((16, 512), dtype, special=SPECIAL)
    yield f"swiglu {name} special", lambda: swiglu(special, use_ue8m0)
    yield f"swiglu {name} special, limited", lambda: swiglu(special, use_ue8m0, limit=2.0, is_interleaved=True)
    for counts, layout in itertools.product(COUNTS, ("row_major", "mn_major")):
        x, masked_m = make_values((5, 70, 512), dtype), torch.tensor(counts, dtype=torch.int32, device="cuda")
        for function in (quantize.per_token_cast_to_fp8, swiglu):
            yield (
                f"{function.__name__} {name} masked {counts} {layout}",
                lambda x=x, masked_m=masked_m, function=function, layout=layout: keep_rows(
                    function(x, use_ue8m0, masked_m=masked_m, scales=layout), masked_m
                ),
            )


def make_gates(dtype: torch.dtype, up: float) -> torch.Tensor:
    """Return every number of 16 bits as the gate of a row of its own, whose scale then tells silu(gate) * up to the bit
    where that is not below the least magnitude.
    """
    gates = torch.arange(1 << 16, dtype=torch.int32, device="cuda").to(torch.int16).view(dtype)
    return torch.cat([gates[:, None].expand(-1, 128), torch.full((1 << 16, 128), up, device="cuda").to(dtype)], -1)


def keep_rows(cast: tuple[torch.Tensor, torch.Tensor], masked_m: torch.Tensor) -> list[torch.Tensor]:
    """Return the bits of both tensors; the formula's get POISON in the rows that a masked kernel leaves alone."""
    results = [as_bits(tensor) for tensor in cast]
    if is_kernel():
        return results
    for bits in results:
        rows = torch.arange(bits.shape[1], device="cuda")[None, :] >= masked_m[:, None]
        bits[rows] = int.from_bytes(bytes([POISON] * bits.element_size()), "little")
    return results


def make_gradient_cases() -> Iterator[Case]:
    """Yield what the backward of layers makes: derivatives of SwiGLU, and columns with scales of any number of rows."""
    for dtype, (m, n), extra in itertools.product((BF16, FP16, FP32), ((300, 1024), (5, 131), (4096, 2048)), (0, 8, 1)):
        x, grad = make_values((m, 2 * n), dtype, extra), make_values((m, n), dtype, extra)
        name, has_y = f"{dtype} {(m, n)}+{extra}", extra != 8
        yield f"swiglu_grad {name}", lambda x=x, grad=grad, has_y=has_y: swiglu.nn_swiglu_grad(x, grad, has_y)
        yield f"padded columns {name}", lambda x=x: products.make_gradient_pair(x)
    gates = torch.linspace(-110, 110, 1 << 20, device=x.device).view(1024, 1024)
    dense = torch.cat([gates, torch.ones_like(gates)], -1)
    yield "swiglu_grad dense gates", lambda: swiglu.nn_swiglu_grad(dense, gates, True)
    special = make_values((16, 512), BF16, special=SPECIAL)
    yield (
        "swiglu_grad special",
        lambda: list(map(name_nan, swiglu.nn_swiglu_grad(special, special[:, :256], True))),
    )


def name_nan(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in which every NaN has the same bits."""
    return torch.where(tensor.isnan(), torch.nan, tensor)


def make_token_cases() -> Iterator[Case]:
    """Yield rows that go to those of their choices, and back for at most two of a token: torch adds more up in another
    order.
    """
    for dtype, n, top_k, extra in itertools.product((BF16, FP16, FP32), (8, 7168, 100), (1, 2, 8), (0, 8)):
        num_rows = 1000 * top_k + 9
        rows = torch.randperm(num_rows, device="cuda")[: 1000 * top_k].view(1000, top_k)
        for weights in (None, torch.rand(1000, top_k, device="cuda")):
            x, name = make_values((1000, n), dtype, extra), f"{dtype} {n}+{extra}, {top_k} {weights is None}"
            yield f"spread {name}", lambda x=x, r=rows, w=weights, count=num_rows: [routing.nn_spread(x, r, w, count)]
            if top_k <= 2:
                y = make_values((num_rows, n), dtype, extra)
                yield f"combine {name}", lambda y=y, r=rows, w=weights: [routing.nn_combine(y, r, w) + 0]  # no -0


def make_place_cases() -> Iterator[Case]:
    """Yield choices of experts, of which some are of none or name an expert of their token again."""
    for tokens, top_k, experts, is_masked in itertools.product(
        (1, 31, 64, 8192), (1, 8), (1, 8, 128, 300, 1024, 8192), (False, True)
    ):
        choices = torch.randint(-1, experts + 1, (tokens, top_k), device="cuda")
        name = f"place {tokens}x{top_k} of {experts}{', masked' * is_masked}"
        yield name, lambda c=choices, e=experts, m=is_masked: list(routing.nn_place(c, e, m))


def make_layout_cases() -> Iterator[Case]:
    """Yield scales of many shapes; the formulas are in layout.py."""
    for shape, extra in itertools.product(
        ((5, 7), (130, 33), (3, 129, 5), (4096, 56), (2, 4, 64), (1000, 1)), (0, 3, 8)
    ):
        sf = make_values(shape, FP32, extra).abs()
        wide = torch.full((*shape[:-1], shape[-1] + extra), math.nan, device="cuda")
        wide[..., : shape[-1]] = sf
        sf = wide[..., : shape[-1]]
        yield f"lay_out_scales {shape}+{extra}", lambda sf=sf: [layouts.get_mn_major_tma_aligned_tensor(sf)]
        yield (
            f"pack_scales {shape}+{extra}",
            lambda sf=sf: [layouts.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)],
        )


def make_group_cases() -> Iterator[Case]:
    """Yield packed scales of groups of K, by sizes and by ends: few and many groups, empty ones, odd widths."""
    for num_groups, mn, gran in itertools.product((1, 7, 300), (4, 37, 1024, 7168), (32, 128)):
        sizes = [0 if group % 5 == 1 else 97 * (group % 13 + 1) for group in range(num_groups)]
        ends = list(itertools.accumulate(sizes, lambda end, size: -(-end // 128) * 128 + size))
        sf = make_values((sum(-(-size // gran) for size in sizes), mn), FP32).abs()
        for name, numbers, ks in (("sizes", sizes, sizes), ("ends", ends, None), ("ends and sizes", ends, sizes)):
            groups = torch.tensor(numbers, dtype=torch.int32, device="cuda")
            yield (
                f"pack {num_groups} groups by {name} {mn} gran_k={gran}",
                lambda sf=sf, groups=groups, ks=ks, gran=gran, is_ends=numbers is ends: [
                    pack_groups(sf, groups, ks, gran, 128, is_ends)
                ],
            )


def is_kernel() -> bool:
    """Return whether the kernels are in use."""
    return quantize._token_cast is not planned.decline


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a result as integers, row-major."""
    return as_integers(tensor.contiguous())


def count_wrong(case: Case) -> int:
    """Return the elements that differ from the formula; -1 where a shape does."""
    found = list(case[1]())
    with using_formula():
        expected = list(case[1]())
    wrong = 0
    for got, wanted in zip(found, expected, strict=True):
        if got.shape != wanted.shape:
            return -1
        wrong += int((as_bits(got) != as_bits(wanted)).sum())
    return wrong


def check_graph() -> int:
    """Return the elements that replays of a captured cast get wrong."""
    x = make_values((300, 512), BF16)
    quantize.per_token_cast_to_fp8(x, False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cast = quantize.per_token_cast_to_fp8(x, False)
    wrong = 0
    for _ in range(20):
        x.copy_(make_values((300, 512), BF16))
        graph.replay()
        with using_formula():
            wanted = quantize.per_token_cast_to_fp8(x, False)
        wrong += sum(int((as_bits(got) != as_bits(want)).sum()) for got, want in zip(cast, wanted, strict=True))
    return wrong


def check_cases(cases: list[Case]) -> list[dict]:
    """Return the rows of some cases; the kernels that they need are compiled on all cores first."""
    with poisoned_outputs():
        with ThreadPoolExecutor(COMPILE_THREADS) as pool:
            list(pool.map(lambda case: case[1](), cases))
        torch.cuda.synchronize()
        return [{"case": case[0], "num_wrong": count_wrong(case)} for case in cases]


def run_group(make: Callable[[], Iterator[Case]]) -> tuple[int, list[str]]:
    """Check the cases that one function makes."""
    torch.manual_seed(0)
    rows = check_cases(list(make()))
    return len(rows), [f"{row['case']}: {row['num_wrong']} elements differ" for row in rows if row["num_wrong"]]


def run_graph() -> tuple[int, list[str]]:
    """Check replays of a captured cast."""
    wrong = check_graph()
    return 1, [f"graph: {wrong} elements differ"] if wrong else []


def plain_jobs(world: object = None) -> list[tuple]:
    """Return one job for each group of cases, and one for graphs."""
    jobs = [(f"plain {name}: all", partial(run_group, make)) for name, make in list_groups().items()]
    return [*jobs, ("plain graph: all", run_graph)]


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    path = Path("benchmarks/results") / name_model_here() / "plain_kernels_bits.json"
    parser.add_argument("--out", type=Path, default=path, help="result file")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run every case and write the result. Returns the exit status."""
    args, start = parse_arguments(arguments), time.perf_counter()
    torch.manual_seed(0)
    rows = check_cases([case for make in list_groups().values() for case in make()])
    rows.append({"case": "graph", "num_wrong": check_graph()})
    wrong = [row for row in rows if row["num_wrong"]]
    meta = {**make_stamp(_C.get_device(), KERNELS), "complete": True}
    write_json(args.out, {"meta": meta, "num_wrong": len(wrong), "rows": rows})
    for row in wrong[:60]:
        print(f"WRONG {row['num_wrong']:8d}  {row['case']}")
    print(f"{len(rows)} cases, {len(wrong)} wrong, {time.perf_counter() - start:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
