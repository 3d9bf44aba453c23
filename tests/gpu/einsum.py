"""einsum, fp8_einsum and tf32_hc_prenorm_gemm on a GPU: right against FP32, the same bits in repeated calls, and times
beside the vendor's.

Example: python -m tests.gpu.einsum --out einsum.json

Times are those of all kernels of a call by the profiler, with a cold L2; `host_us` is what a call costs the host. The
GPU suite runs the checks without the times.
Result: {"meta": ..., "rows": [{"case", "difference", "bound", "is_right", "repeats", "us", "vendor_us"}, {"case",
    "host_us"}], "num_wrong"}.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.jit.hashing import name_plain
from deep_gemm.quantize import ceil_div
from deep_gemm.testing import calc_diff
from tuner.measure.stamp import make_stamp, name_model_here, write_json

from .public_op import batch_invariant

#: Kernels of these calls, whose hashes the result carries.
KERNELS = (
    "batched_bf16_gemm",
    "batched_fp8_gemm",
    "summed_bf16_gemm",
    *map(name_plain, ("sum_parts", "sum_products", "hc_prenorm", "hc_prenorm_sum")),
)

REPEATS, TIMED, HOST_CALLS = 100, 10, 300
FLUSH_BYTES = 256 << 20
SUMS = [(b, m, n, k) for b in (129, 4096, 8192) for m, n, k in ((128, 384, 128), (256, 256, 256), (384, 128, 384))]
BATCHES = [(b, h, r, d) for h, r, d in ((128, 512, 128), (8, 4096, 1024)) for b in (4, 32, 128, 4096, 8192)]
#: The output projection of DeepSeek-V4: groups, their width, and the rank.
FP8_BATCHES = [(b, 8, 4096, 1024) for b in (1, 4, 64, 128, 4096)]
PRENORM = [(m, k, splits) for m in (13, 137, 4096, 8192) for k in (7168, 28672) for splits in (None, 16)]
#: Sizes that no tile divides.
ODD_SUMS, ODD_BATCHES = [(3, 40, 136, 72), (1, 264, 8, 200), (70, 512, 520, 64)], [(37, 5, 200, 136), (1, 3, 64, 1032)]
#: Of calc_diff of a weight gradient in FP32: its sums over up to 8,192 tokens shrink like a slice of sum_bound.
GRADIENT_BOUND = 1e-9
#: Sums of one launch, the longest and the widest among them, and the first that take two.
SMALL_SUMS = [(1, 1, 8, 8), (32, 64, 128, 128), (64, 64, 128, 128), (1, 128, 128, 8192), (65, 64, 128, 128)]
#: What clusters of every size add up: tails of K and of rows.
CLUSTER_PRENORM = [(5, 800, None), (13, 7168, None), (70, 1608, None), (137, 16384, None), (1100, 4104, None)]


class Suite:
    """The results so far: a row for each case, and whether all were right. is_timed: cases are timed, and printed."""

    def __init__(self, is_timed: bool = True):
        self.rows, self.num_wrong, self.is_timed = [], 0, is_timed
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def add(self, name: str, bound: float, found: torch.Tensor, expected: torch.Tensor, call: Callable, peer=None):
        """Compare, repeat and time one case; `call` writes `found`."""
        call()
        row = self._judge(name, bound, found, expected)
        first = found.clone()
        row["repeats"] = all(
            self._is_same(call, found, first) for _ in range(REPEATS if found.numel() < 1 << 22 else 5)
        )
        self.num_wrong += not row["repeats"]
        if self.is_timed:
            row["us"] = self.time(call)
            if peer is not None:
                row["vendor_us"] = self.time(peer)
        self._print(row)

    def compare(self, name: str, bound: float, found: torch.Tensor, expected: torch.Tensor):
        """Compare one result alone."""
        self._print(self._judge(name, bound, found, expected))

    def _judge(self, name: str, bound: float, found: torch.Tensor, expected: torch.Tensor) -> dict:
        """Return the row of one comparison. Whatever can be wrong has a row."""
        difference = calc_diff(found, expected)
        row = {"case": name, "difference": difference, "bound": bound, "is_right": difference < bound}  # NaN is wrong
        self.num_wrong += not row["is_right"]
        self.rows.append(row)
        return row

    def _print(self, row: dict):
        if not self.is_timed and row["is_right"]:
            return
        line = f"{row['case']:58} {row['difference']:9.2e}"
        if "us" in row:
            line += f" {'same' if row['repeats'] else 'DIFFERS':7} {row['us']:9.2f} us"
        if "vendor_us" in row:
            line += f" vendor {row['vendor_us']:9.2f}"
        print(line + ("" if row["is_right"] else f"  WRONG, bound {row['bound']:.1e}"), flush=True)

    @staticmethod
    def _is_same(call: Callable, found: torch.Tensor, first: torch.Tensor) -> bool:
        found.fill_(7.0)
        call()
        return torch.equal(found, first)

    def time(self, call: Callable) -> float:
        """Return the microseconds of all kernels of a call."""
        call()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(TIMED):
                self.flush.zero_()
                call()
            torch.cuda.synchronize()
        flushes = ("Memset", "FillFunctor")
        times = [e.self_device_time_total for e in profile.key_averages() if not any(name in e.key for name in flushes)]
        return sum(times) / TIMED

    def time_host(self, name: str, call: Callable):
        """Time what a call costs the host; the GPU keeps up with decode sizes."""
        for _ in range(10):
            call()
        torch.cuda.synchronize()
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                call()
            best = min(best, time.perf_counter() - start)
            torch.cuda.synchronize()
        self.rows.append({"case": name, "host_us": best / HOST_CALLS * 1e6})
        print(f"{name:58} {best / HOST_CALLS * 1e6:9.2f} us of host time", flush=True)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def sum_bound(length: int) -> float:
    """Return the bound of calc_diff for FP32 results that add up `length` products.

    Tensor cores cut a sum off after each step of K, towards zero. So a slice's sum shrinks by a share that grows with
    its length, and calc_diff is half the square of that share. Measured on an H200, whose SMs share a sum in 33 to 44
    slices: up to 6.7e-10 at 2^20 products and 3.5e-9 at 3 * 2^20; a third of the bound at most. The constant is for
    short sums. One product too few in each result gives 1 / (2 * length), which is above the bound up to 2^22.
    """
    return 1e-11 + 2e-9 * (length / 2**20) ** 2


def sum_products(x: torch.Tensor, y: torch.Tensor, step: int = 512) -> torch.Tensor:
    """Return bmk,bnk->mn in FP64, a few of b at a time: as FP64, all of x would fill the GPU."""
    parts = zip(x.split(step), y.split(step), strict=True)
    return sum(torch.tensordot(a.double(), b.double(), ([0, 2], [0, 2])) for a, b in parts)


def check_sums(suite: Suite, sizes: list[tuple]):
    for b, m, n, k in sizes:
        x, y = normal(b, m, k), normal(b, n, k)
        expected = sum_products(x, y)
        for dtype in (torch.float32, torch.bfloat16):
            d = torch.empty(m, n, dtype=dtype, device="cuda")
            call = partial(deep_gemm.einsum, "bmk,bnk->mn", x, y, d)
            bound = sum_bound(b * k) if dtype == torch.float32 else 5e-6
            name = f"bmk,bnk->mn b{b} m{m} n{n} k{k} {str(dtype)[6:]}"
            suite.add(name, bound, d, expected, call, partial(call, use_cublaslt=True))
        total = torch.randn(m, n, device="cuda")
        wanted = expected + total
        deep_gemm.einsum("bmk,bnk->mn", x, y, total, c=total)
        suite.compare(f"bmk,bnk->mn b{b} m{m} n{n} k{k} onto C", sum_bound(b * k), total, wanted)


def list_shapes(b: int, h: int, r: int, d: int) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the shapes of A, B and D by expression."""
    return {
        "bhr,hdr->bhd": ((b, h, r), (h, d, r), (b, h, d)),
        "bhd,hdr->bhr": ((b, h, d), (h, d, r), (b, h, r)),
        "bhd,bhr->hdr": ((b, h, d), (b, h, r), (h, d, r)),
    }


def check_batches(suite: Suite, sizes: list[tuple]):
    """Products of BF16; weight gradients in FP32, onto C, too."""
    for size in sizes:
        for expr, (of_a, of_b, of_d) in list_shapes(*size).items():
            is_gradient = expr == "bhd,bhr->hdr"
            x, y = normal(*of_a), normal(*of_b)
            z = torch.empty(of_d, dtype=torch.float32 if is_gradient else torch.bfloat16, device="cuda")
            call = partial(deep_gemm.einsum, expr, x, y, z)
            expected = torch.einsum(expr, x.double(), y.double())
            name = f"{expr} {' '.join(f'{letter}{count}' for letter, count in zip('bhrd', size, strict=True))}"
            bound = GRADIENT_BOUND if is_gradient else 5e-6
            suite.add(name, bound, z, expected, call, partial(call, use_cublaslt=True))
            if is_gradient:
                z.normal_()
                expected += z
                deep_gemm.einsum(expr, x, y, z, c=z)
                suite.compare(f"{name} onto C", bound, z, expected)


def make_fp8(*shape: int) -> torch.Tensor:
    return normal(*shape).to(torch.float8_e4m3fn)


def spread(scales: torch.Tensor, blocks: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Return FP32 of `like` times its scales, of which one stands for a block."""
    for dim, block in enumerate(blocks):
        scales = scales.repeat_interleave(block, dim=dim).narrow(dim, 0, like.shape[dim])
    return like.float() * scales


#: Blocks of the scales of A, and of B by recipe.
FP8_BLOCKS = {
    "bhr,hdr->bhd": ((1, 1, 128), {(1, 128, 128): (1, 128, 128), (1, 1, 128): (1, 1, 128)}),
    "bhd,hdr->bhr": ((1, 1, 128), {(1, 128, 128): (1, 128, 128), (1, 1, 128): (1, 128, 1)}),
    "bhd,bhr->hdr": ((128, 1, 1), {(1, 1, 128): (128, 1, 1), (1, 128, 128): (128, 1, 128)}),
}


def make_scales(data: torch.Tensor, blocks: tuple[int, ...]) -> torch.Tensor:
    steps = [ceil_div(size, block) for size, block in zip(data.shape, blocks, strict=True)]
    return torch.rand(steps, device="cuda") + 0.5


def check_fp8(suite: Suite, sizes: list[tuple]):
    for b, h, r, d in sizes:
        for expr, (of_a, of_b, of_d) in list_shapes(b, h, r, d).items():
            blocks_a, recipes = FP8_BLOCKS[expr]
            x, y = make_fp8(*of_a), make_fp8(*of_b)
            scale_x = make_scales(x, blocks_a)
            for recipe, blocks_b in recipes.items():
                scale_y = make_scales(y, blocks_b)
                z = torch.empty(of_d, dtype=torch.bfloat16, device="cuda")

                call = partial(deep_gemm.fp8_einsum, expr, (x, scale_x), (y, scale_y), z, recipe=recipe)
                expected = torch.einsum(expr, spread(scale_x, blocks_a, x), spread(scale_y, blocks_b, y))
                peer = None
                if expr == "bhr,hdr->bhd":
                    peer = partial(deep_gemm.einsum, expr, x.bfloat16(), y.bfloat16(), z, use_cublaslt=True)
                suite.add(f"fp8 {expr} {recipe[1]} b{b} h{h} r{r} d{d}", 5e-6, z, expected, call, peer)


def check_fp8_sums_onto_c(suite: Suite):
    """A weight gradient: an FP32 D that is C."""
    x, y = make_fp8(256, 4, 256), make_fp8(256, 4, 384)
    scale_x, scale_y = make_scales(x, (128, 1, 1)), make_scales(y, (128, 1, 1))
    z = torch.randn(4, 256, 384, device="cuda")
    expected = z + torch.einsum("bhd,bhr->hdr", spread(scale_x, (128, 1, 1), x), spread(scale_y, (128, 1, 1), y))
    deep_gemm.fp8_einsum("bhd,bhr->hdr", (x, scale_x), (y, scale_y), z, z, (1, 1, 128))
    suite.compare("fp8 bhd,bhr->hdr onto C", 1e-6, z, expected)


def check_prenorm(suite: Suite, sizes: list[tuple], n: int = 24):
    for m, k, splits in sizes:
        x, w = normal(m, k), torch.randn(n, k, device="cuda")
        lead = () if splits is None else (splits,)
        d, squares = torch.empty(*lead, m, n, device="cuda"), torch.empty(*lead, m, device="cuda")

        call = partial(deep_gemm.tf32_hc_prenorm_gemm, x, w, d, squares, splits)
        call()
        whole, whole_squares = (d, squares) if splits is None else (d.double().sum(0), squares.double().sum(0))
        wanted = x.double().square().sum(1)
        name = f"hc_prenorm m{m} n{n} k{k} splits {splits}"
        suite.compare(f"{name}, squares", 1e-11, whole_squares, wanted)
        suite.compare(name, 1e-8, whole, x.double() @ w.double().t())
        peer = partial(torch.matmul, x.float(), w.t())
        suite.add(f"{name}, repeated ({x.nbytes / 1e6:.0f} MB)", 1e-12, d, d.clone(), call, peer)


def check_prenorm_rows(suite: Suite, sizes: list[tuple]):
    """Batch invariance: the first rows have the same bits for every m."""
    for (k,) in sizes:
        x, w = normal(2500, k), torch.randn(24, k, device="cuda")
        for m in (1, 13, 300, 700):
            with batch_invariant():
                few, all_rows = _run_prenorm(x[:m], w), _run_prenorm(x, w)[:m]
            is_same = torch.equal(few, all_rows)
            suite.compare(f"hc_prenorm k{k}, rows of {m}", 1e-12, few if is_same else few * torch.nan, all_rows)


def _run_prenorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the products and, in one more column, the squares."""
    d, squares = torch.empty(len(x), len(w), device="cuda"), torch.empty(len(x), device="cuda")
    deep_gemm.tf32_hc_prenorm_gemm(x, w, d, squares)
    return torch.cat([d, squares[:, None]], 1)


def check_hosts(suite: Suite):
    x, weight, z = normal(4, 8, 512), normal(8, 128, 512), torch.empty(4, 8, 128, dtype=torch.bfloat16, device="cuda")
    suite.time_host("einsum bhr,hdr->bhd", lambda: deep_gemm.einsum("bhr,hdr->bhd", x, weight, z))
    q, qs, w, ws = (
        make_fp8(4, 8, 512),
        torch.ones(4, 8, 4, device="cuda"),
        make_fp8(8, 128, 512),
        torch.ones(8, 1, 4, device="cuda"),
    )
    suite.time_host("fp8_einsum bhr,hdr->bhd", lambda: deep_gemm.fp8_einsum("bhr,hdr->bhd", (q, qs), (w, ws), z))
    u, v, s = normal(32, 64, 128), normal(32, 128, 128), torch.empty(64, 128, device="cuda")
    suite.time_host("einsum bmk,bnk->mn", lambda: deep_gemm.einsum("bmk,bnk->mn", u, v, s))
    y, f = normal(13, 7168), torch.randn(24, 7168, device="cuda")
    d, squares = torch.empty(16, 13, 24, device="cuda"), torch.empty(16, 13, device="cuda")
    suite.time_host("tf32_hc_prenorm_gemm", lambda: deep_gemm.tf32_hc_prenorm_gemm(y, f, d, squares, 16))
    e, norms = torch.empty(13, 24, device="cuda"), torch.empty(13, device="cuda")
    suite.time_host("tf32_hc_prenorm_gemm, whole", lambda: deep_gemm.tf32_hc_prenorm_gemm(y, f, e, norms))


#: The checks of the GPU suite by what they are of: odd sizes, and sizes that are cut and shared in other ways.
CHECKS: dict[str, tuple[Callable, list[tuple]]] = {
    "einsum summed_bf16_gemm": (check_sums, [*ODD_SUMS, *SMALL_SUMS, (129, 128, 384, 128), (4096, 256, 256, 256)]),
    "einsum batched_bf16_gemm": (check_batches, [*ODD_BATCHES, (32, 8, 4096, 1024), (128, 128, 512, 128)]),
    "fp8_einsum batched_fp8_gemm": (check_fp8, [(48, 3, 256, 128), (272, 5, 384, 208), (64, 8, 4096, 1024)]),
    "tf32_hc_prenorm_gemm plain": (
        check_prenorm,
        [(13, 200, None), (65, 4104, 7), (300, 7168, None), (70, 28672, None), (4096, 7168, 16), *CLUSTER_PRENORM],
    ),
    "tf32_hc_prenorm_gemm plain, invariant": (check_prenorm_rows, [(800,), (7168,), (28672,)]),
}


def run_check(name: str, size: tuple) -> tuple[int, list[str]]:
    """Make the checks of one size, without times."""
    suite = Suite(is_timed=False)
    CHECKS[name][0](suite, [size])
    wrong = [f"{row['case']}: {row}" for row in suite.rows if not (row["is_right"] and row.get("repeats", True))]
    return len(suite.rows), wrong


def run_onto_c() -> tuple[int, list[str]]:
    """Check a weight gradient onto C."""
    suite = Suite(is_timed=False)
    check_fp8_sums_onto_c(suite)
    return len(suite.rows), [f"{row}" for row in suite.rows if not row["is_right"]]


def einsum_jobs(world: object = None) -> list[tuple]:
    """Return one job for each check and size."""
    jobs = [
        (f"{name}: {'x'.join(map(str, size))}", partial(run_check, name, size))
        for name, (_, sizes) in CHECKS.items() for size in sizes
    ]  # fmt: skip
    return [*jobs, ("fp8_einsum batched_fp8_gemm: onto C", run_onto_c)]


def check_all(is_quick: bool) -> Suite:
    """Check odd sizes, then time the host and the sizes of the upstream suite, unless told to be quick."""
    suite = Suite(is_timed=False)
    for check, sizes in CHECKS.values():
        check(suite, sizes)
    check_fp8_sums_onto_c(suite)
    check_prenorm(suite, [(70, 1024, None)], n=30)
    suite.is_timed = True
    check_hosts(suite)
    if not is_quick:
        check_prenorm(suite, PRENORM)
        check_batches(suite, BATCHES)
        check_sums(suite, SUMS)
        check_fp8(suite, FP8_BATCHES)
    return suite


def main(arguments: list[str] | None = None) -> int:
    """Run everything and write the result; return 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    path = Path("benchmarks/results") / name_model_here() / "einsum.json"
    parser.add_argument("--out", type=Path, default=path, help="result file")
    parser.add_argument("--quick", action="store_true", help="leave out the sizes of the upstream suite")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    suite = check_all(options.quick)
    meta = {**make_stamp(_C.get_device(), KERNELS), "complete": not options.quick}
    write_json(options.out, {"meta": meta, "num_wrong": suite.num_wrong, "rows": suite.rows})
    print(f"{len(suite.rows)} cases, {suite.num_wrong} wrong")
    return int(suite.num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
