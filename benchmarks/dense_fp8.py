"""Time dense FP8 on the 80 problems of data/dense_fp8.json: the library's choice, the best config, the model, the heuristic.

Example: python -m benchmarks.dense_fp8 --best tuning.db --model out_of_fold.json --time-budget 240

Method: cold_timer.py; cuBLASLt (unscaled FP8, no fast accumulation) and, for m <= 64, the streaming floor are variants of the
same session. Roles of a problem:
  auto       the public op as installed (exact table, then model, then heuristic)
  best       the best measured config: from --best, else what the exact table holds
  model      the choice of a model that never saw the problem's family: from --model
  heuristic  the analytic heuristic alone
Result: {"meta": ..., "rows": [{"m", "n", "k", "choices": {role: {"config", "source"}}, "times": {variant: [us of each round]}}]};
the variants of `auto` are "auto <scale layout>", those of any other role "<config> <scale layout>".
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.jit.build import get_cubin
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.selection import explain
from tests.gpu.operands import make_reference, make_scales_mn_major, quantise_blocks, quantise_rows
from tests.gpu.world import compile_all
from tuner.statistics import median

from .cold_timer import FLUSH_BYTES, ColdTimer
from .device_kernels import ReadKernel
from .stamp import DATA, OP, RESULTS, make_stamp, read_json, write_json

ROUNDS = 20
CONFIG_FIELDS = ("block_m", "block_n", "block_k", "num_stages", "cluster_m", "cluster_n")
#: The floor is the yardstick of decode only (P2).
MAX_FLOOR_M = 64
#: The floor's grid: the one that the baseline of data/stream_floor.json used on 132 SMs.
FLOOR_BLOCKS_PER_SM = 4
#: Rows of D compared with the float64 reference; all variants are compared with each other bit by bit.
REFERENCE_ROWS = 32
WARM_UP_S = 1.0


def read_choices(path: Path | None, sku: str) -> dict[tuple[int, int, int], object]:
    """Return {(m, n, k): Config} from a tuning database's winners, or JSON {"rows": [{"m", "n", "k", "config": fields}]}."""
    if path is None:
        return {}
    if path.suffix != ".db":
        return {(row["m"], row["n"], row["k"]): _C.Config(**row["config"]) for row in read_json(path)["rows"]}
    from tuner.db import Store

    with Store.open(path, mode="ro") as store:
        winners = store.load_best(sku=sku, kernel_hash=kernel_hash(OP))
    return {(row["m"], row["n"], row["k"]): _C.Config(**{name: row[name] for name in CONFIG_FIELDS}) for row in winners}


class Choices:
    """Which config each role runs on each problem."""

    def __init__(self, device, best: Path | None, model: Path | None):
        self.device, self.best, self.model = device, read_choices(best, device.sku), read_choices(model, device.sku)

    def of(self, problem) -> dict[str, dict]:
        """Return {role: {"config": Config, "source": text}}; a role without a choice is absent."""
        key = (problem.m, problem.n, problem.k)
        choice = explain(problem, self.device)
        roles = {"auto": {"config": choice.config, "source": choice.source}}
        roles["heuristic"] = {"config": _C.get_analytic_config(problem, self.device), "source": "analytic"}
        if key in self.best:
            roles["best"] = {"config": self.best[key], "source": "sweep"}
        elif choice.source == "exact":
            roles["best"] = {"config": choice.config, "source": "exact"}
        if key in self.model:
            roles["model"] = {"config": self.model[key], "source": "out of fold"}
        return roles


class Operands:
    """Random normal operands of one problem with real scales, A's in both layouts."""

    def __init__(self, m: int, b: torch.Tensor, scale_b: torch.Tensor):
        n, k = b.shape
        self.a, self.row_major = quantise_rows(torch.randn(m, k, device="cuda"))
        self.b, self.scale_b = b, scale_b
        self.mn_major = make_scales_mn_major(self.row_major)
        self.d = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        self.one = torch.ones((), device="cuda")

    def call_op(self, layout: str) -> Callable[[], None]:
        """Return the public op on these operands."""
        a, b = (self.a, getattr(self, layout)), (self.b, self.scale_b)
        return lambda: deep_gemm.fp8_gemm_nt(a, b, self.d)

    def call_kernel(self, kernel, layout: str) -> Callable[[], None]:
        """Return one loaded kernel on these operands."""
        scale_a = getattr(self, layout)
        return lambda: kernel.launch(self.a, scale_a, self.b, self.scale_b, self.d)

    def call_cublaslt(self) -> Callable[[], object]:
        """Return the vendor's product of the same bytes, which applies no block scales."""
        b = self.b.t()
        return lambda: torch._scaled_mm(self.a, b, scale_a=self.one, scale_b=self.one, out_dtype=torch.bfloat16, use_fast_accum=False)

    def is_right(self) -> bool:
        """Return whether rows spread over D lie within the bound of every element."""
        m = self.a.shape[0]
        rows = torch.arange(0, m, max(1, m // REFERENCE_ROWS), device="cuda")
        a = self.a.view(torch.uint8)[rows].view(self.a.dtype)
        reference, bound = make_reference(a, self.row_major[rows], self.b, self.scale_b)
        return bool(((self.d[rows].double() - reference).abs() <= bound).all())


class Benchmark:
    """Times problems one after the other; kernels, the weight and the timer are kept between them."""

    def __init__(self, device, choices: Choices, rounds: int):
        self.device, self.choices, self.rounds = device, choices, rounds
        self.timer = ColdTimer(device.sm_count)
        self.floor = ReadKernel("stream_floor_read", num_blocks=FLOOR_BLOCKS_PER_SM * device.sm_count)
        self.kernels: dict = {}
        self.weight: tuple = ()

    def run(self, m: int, n: int, k: int) -> dict:
        """Return the row of one problem; `wrong` names the variants whose D is not right, absent when all are."""
        if self.weight[:2] != (n, k):
            self.weight = (n, k, *quantise_blocks(torch.randn(n, k, device="cuda")))
        operands = Operands(m, *self.weight[2:])
        problem = _C.Problem(OP, m, n, k)
        choices = self.choices.of(problem)
        products = self._make_products(problem, operands, choices)
        wrong = find_wrong(operands, products)
        yardsticks = {"cublaslt": operands.call_cublaslt()}
        if m <= MAX_FLOOR_M:
            yardsticks["floor"] = lambda: self.floor.launch(operands.b)
        times = self.timer.measure({**yardsticks, **products}, self.rounds)
        named = {role: {"config": str(choice["config"]), "source": choice["source"]} for role, choice in choices.items()}
        return {"m": m, "n": n, "k": k, "choices": named, "times": times, **({"wrong": wrong} if wrong else {})}

    def _make_products(self, problem, operands: Operands, choices: dict) -> dict[str, Callable]:
        """Return {variant: callable}; a config that several roles chose is timed once."""
        products = {f"auto {layout}": operands.call_op(layout) for layout in ("mn_major", "row_major")}
        for role in ("best", "model", "heuristic"):
            if role in choices:
                config = choices[role]["config"]
                layouts = ("mn_major", "row_major") if role == "model" else ("mn_major",)
                products |= {f"{config} {layout}": operands.call_kernel(self._load(problem, config), layout) for layout in layouts}
        return products

    def _load(self, problem, config):
        if config not in self.kernels:
            result = get_cubin(problem, config)
            self.kernels[config] = _C.Kernel(result.cubin, result.kernel_name, config, 0)
        return self.kernels[config]


def find_wrong(operands: Operands, products: dict[str, Callable]) -> list[str]:
    """Run every variant once; return those whose D differs from the first one's, or the first where the reference disagrees."""
    first, wrong = None, []
    for name, product in products.items():
        operands.d.fill_(float("nan"))
        product()
        if first is None:
            first = operands.d.clone()
            wrong += [] if operands.is_right() else [name]
        elif not torch.equal(operands.d.view(torch.int16), first.view(torch.int16)):
            wrong.append(name)
    return wrong


def warm_up(seconds: float) -> None:
    """Keep the GPU busy until its clocks have settled."""
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            torch.mm(x, x)
        torch.cuda.synchronize()


def format_row(row: dict) -> str:
    """Return one line of progress."""
    times = {name: median(values) for name, values in row["times"].items()}
    parts = [f"{name} {value:.2f}" for name, value in times.items()]
    return f"{row['m']:5} {row['n']:6} {row['k']:6}  " + "  ".join(parts) + ("  WRONG " + str(row["wrong"]) if "wrong" in row else "")


def make_meta(device, args: argparse.Namespace, is_complete: bool, seconds: float) -> dict:
    """Return what the result says about itself."""
    return {
        **make_stamp(device), "rounds": args.rounds, "flush_bytes": FLUSH_BYTES, "complete": is_complete, "seconds": round(seconds, 1),
        "timer": "CUPTI kernel duration through torch.profiler; before each call a kernel reads 512 MB with ordinary loads (clean cold L2); PDL off",
        "peer": "torch._scaled_mm, scales of 1, use_fast_accum=False", "baseline": "benchmarks/data/dense_fp8.json",
    }


def run(args: argparse.Namespace) -> int:
    """Time this shard's problems within the budget and write the result."""
    start = time.monotonic()
    device = _C.get_device()
    choices = Choices(device, args.best, args.model)
    index, total = (int(part) for part in args.shard.split("/"))
    problems = [(row["m"], row["n"], row["k"]) for row in read_json(DATA / "dense_fp8.json")["rows"]][index - 1 :: total]
    rows = keep_rows(args, device) if args.resume else []
    done = {(row["m"], row["n"], row["k"]) for row in rows}
    chosen = [choice["config"] for problem in problems for choice in choices.of(_C.Problem(OP, *problem)).values()]
    failures = compile_all(list(dict.fromkeys(chosen)), ("nvrtc",))
    warm_up(WARM_UP_S)
    benchmark = Benchmark(device, choices, args.rounds)
    for problem in problems:
        if problem in done or time.monotonic() - start > args.time_budget:
            continue
        rows.append(benchmark.run(*problem))
        print(format_row(rows[-1]), flush=True)
    wrong = [row for row in rows if "wrong" in row]
    is_complete = len(rows) == len(problems) and not wrong
    write_json(args.out, {"meta": make_meta(device, args, is_complete, time.monotonic() - start), "rows": rows})
    print(f"{len(rows)} of {len(problems)} problems, {len(wrong)} wrong, {len(failures)} compile failures, {time.monotonic() - start:.0f} s: {args.out}")
    return 1 if wrong or failures else 0 if is_complete else 3


def keep_rows(args: argparse.Namespace, device) -> list[dict]:
    """Return the rows of an earlier, unfinished run of the same kernels on the same SKU."""
    if not args.out.exists():
        return []
    earlier, stamp = read_json(args.out), make_stamp(device)
    same = all(earlier["meta"][key] == stamp[key] for key in ("sku", "kernel_hash", "driver", "torch"))
    return earlier["rows"] if same and earlier["meta"]["rounds"] == args.rounds else []


def merge(paths: list[Path], out: Path) -> int:
    """Join the results of the shards; raises ValueError where they are of different kernels or machines."""
    parts = [read_json(path) for path in paths]
    for key in ("kernel_hash", "sku", "driver", "torch"):
        if any(part["meta"][key] != parts[0]["meta"][key] for part in parts):
            raise ValueError(f"{key} differs between the shards; run them again on one tree and machine")
    rows = {(row["m"], row["n"], row["k"]): row for part in parts for row in part["rows"]}
    order = [(row["m"], row["n"], row["k"]) for row in read_json(DATA / "dense_fp8.json")["rows"]]
    is_complete = all(key in rows and "wrong" not in rows[key] for key in order)
    meta = {**parts[0]["meta"], "complete": is_complete, "seconds": round(sum(part["meta"]["seconds"] for part in parts), 1)}
    write_json(out, {"meta": meta, "rows": [rows[key] for key in order if key in rows]})
    return 0 if is_complete else 3


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Exit codes: 0 all right, 1 a wrong result, 3 not complete.")
    parser.add_argument("--out", type=Path, default=RESULTS / "dense_fp8.json", help="where the result goes")
    parser.add_argument("--best", type=Path, help="tuning database with the winners of the 80 problems, or JSON rows of m, n, k, config")
    parser.add_argument("--model", type=Path, help="JSON of the out-of-fold choices: rows of m, n, k, config")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each variant (default 20)")
    parser.add_argument("--time-budget", type=float, default=300.0, help="seconds; problems that have not begun by then are left out")
    parser.add_argument("--shard", default="1/1", help="i/n: every n-th problem, beginning with the i-th")
    parser.add_argument("--resume", action="store_true", help="keep the rows that --out already holds for the same kernels and machine")
    parser.add_argument("--merge", type=Path, nargs="+", help="join these results of shards into --out and run nothing")
    args = parser.parse_args(arguments)
    return merge(args.merge, args.out) if args.merge else run(args)


if __name__ == "__main__":
    sys.exit(main())
