"""Time a family of products: choices, kernels, peers, rounds, rows, shards, resuming and merging.

The other scripts of this folder define the families.

Method: cold_timer.py; every variant of a problem, the peers among them, is timed in one session.
Result: {"meta": ..., "rows": [{<key of the problem>, "choices": {role: {"config", "source", <layout>: config}},
    "times": {variant: [us of each round]}, "wrong": [variants whose D is not right], "failed": reason, "absent":
    {peer: why it does not run here}}]}; empty `wrong`, `failed` and `absent` are left out. The variants of `auto` are
    called "auto <layout>", those of any other role "<config> <layout>", those of DeepGEMM "deepgemm <layout>".
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.jit.ahead import compile_all
from deep_gemm.jit.build import get_cubin
from deep_gemm.jit.hashing import name_plain
from tuner.measure.statistics import median
from tuner.problems.fields import kernel_identity

from . import upstream
from .choices import Choices, find_out_of_fold, find_run
from .cold_timer import FLUSH_BYTES, ColdTimer
from .product import Product, find_wrong
from .stamp import DATA, SELECTOR, find_results, make_stamp, read_json, write_json

ROUNDS = 20
WARM_UP_S = 1.0
INTERLEAVED = "interleaved, each round in an order of its own"
#: That of results without the field.
ROTATED = "interleaved"
#: Identity of a run: rows of other kernels, selectors, machines, peers or orders are never joined with it.
IDENTITY = ("kernel_hash", SELECTOR, "sku", "driver", "torch", "order", "deepgemm")


@dataclass(frozen=True)
class Family:
    """A family of problems and how each is set up.

    name: of the data file, the result file and the script. key: the fields that name a row. ops: op kinds of its
        problems.
    roles: {layout: roles besides auto that are timed in it}; layouts are ways to pass the same operands.
    make_problems: key -> {layout: problem}. make_product: (key, device) -> Product. peer: what cuBLASLt computes, in
        words.
    part: name of a plain kernel that is also timed alone, within the calls that launch it, and belongs to the identity
        of a run.
    further: what a result carries the hash of besides the kernels of the op kinds (hashing.py).
    rests: without DeepGEMM in the run, variants are timed one after the other, each after a rest (cold_timer.py),
        because the figures compare with recorded times alone.
    """

    name: str
    ops: tuple[str, ...]
    key: tuple[str, ...]
    roles: dict[str, tuple[str, ...]]
    make_problems: Callable[[dict], dict[str, object]]
    make_product: Callable[[dict, object], Product]
    peer: str
    part: str = ""
    further: tuple[str, ...] = ()
    rests: bool = False

    @property
    def hashed(self) -> tuple[str, ...]:
        """Names of the kernel hashes that a result carries."""
        return (*self.ops, *([name_plain(self.part)] if self.part else []), *self.further)

    def name_order(self, has_upstream: bool) -> str:
        """Return in which order the variants' rounds run."""
        return "variant after variant, each after a rest" if self.rests and not has_upstream else INTERLEAVED

    def read_keys(self) -> list[dict]:
        """Return the key of every problem of the family."""
        return [{name: row[name] for name in self.key} for row in read_json(DATA / f"{self.name}.json")["rows"]]

    def identify(self, row: dict) -> tuple:
        """Return a row's key as a tuple."""
        return tuple(row[name] for name in self.key)


class Benchmark:
    """Times problems one after the other; kernels and the timer are kept between them. deepgemm: the peer, if any."""

    def __init__(self, family: Family, device, choices: dict[str, Choices], rounds: int, deepgemm=None):
        self.family, self.device, self.choices, self.rounds = family, device, choices, rounds
        self.deepgemm = deepgemm
        self.timer = ColdTimer(device.sm_count)
        self.kernels: dict = {}

    def choose(self, key: dict) -> dict[str, dict]:
        """Return {layout: {role: Choice}} of one problem."""
        problems = self.family.make_problems(key)
        return {
            layout: self.choices[problem.op].of(problem, self.family.roles[layout])
            for layout, problem in problems.items()
        }

    def list_kernels(self, key: dict) -> list[tuple]:
        """Return (problem, config) of every kernel that a problem needs, with the second tile where a call has one;
        none where its choices fail, which its row will say.
        """
        try:
            problems, choices = self.family.make_problems(key), self.choose(key)
        except DeepGemmError:
            return []
        return [
            (find_run(problems[layout], role), choice.config, choice.second)
            for layout, roles in choices.items() for role, choice in roles.items()
        ]  # fmt: skip

    def run(self, key: dict) -> dict:
        """Return the row of one problem; an exception is the row's `failed`."""
        try:
            return self._run(key)
        except Exception as error:  # one problem's fault must not end the run
            torch.cuda.empty_cache()
            return {**key, "choices": {}, "times": {}, "failed": f"{type(error).__name__}: {str(error)[:500]}"}

    def _run(self, key: dict) -> dict:
        choices = self.choose(key)
        product = self.family.make_product(key, self.device)
        calls, splits = self._make_calls(key, product, choices)
        wrong = find_wrong(product, calls, splits)
        broken = {entry.partition(": ")[0] for entry in wrong if ": " in entry and not entry.endswith("other bits")}
        sound = {name: call for name, call in calls.items() if name not in broken}
        peers = product.call_peers()
        if self.deepgemm:
            peers |= upstream.call_layouts(product, self.deepgemm, choices)
        rests = self.family.rests and not self.deepgemm
        times = self.timer.measure({**peers, **sound}, self.rounds, self.family.part, rests=rests)
        notes = {name: note for name, note in (("wrong", wrong), ("absent", product.absent)) if note}
        return {**key, "choices": name_choices(choices), "times": times, **notes}

    def _make_calls(
        self, key: dict, product: Product, choices: dict[str, dict]
    ) -> tuple[dict[str, Callable], dict[str, int]]:
        """Return {variant: callable} and {variant: split_k}; a config that several roles chose is timed once."""
        problems, calls, splits = self.family.make_problems(key), {}, {}
        for layout, roles in choices.items():
            calls[f"auto {layout}"] = product.call_op(layout)
            splits[f"auto {layout}"] = roles["auto"].config.split_k
            for choice in (choice for role, choice in roles.items() if role != "auto"):
                name = f"{choice.config} {layout}"
                calls[name] = product.call_kernel(self._load(problems[layout], choice.config), layout)
                splits[name] = choice.config.split_k
        return calls, splits

    def _load(self, problem, config):
        key = (kernel_identity(problem), config)
        if key not in self.kernels:
            result = get_cubin(problem, config)
            self.kernels[key] = _C.Kernel(result.cubin, result.kernel_name, problem, config, 0)
        return self.kernels[key]


def name_choices(choices: dict[str, dict]) -> dict[str, dict]:
    """Return {role: {"config", "source", <further layout>: its config}}: the first layout's config, or both tiles of
    its kernel, and where another layout's differs.
    """
    named: dict[str, dict] = {}
    for layout, roles in choices.items():
        for role, choice in roles.items():
            entry = named.setdefault(role, {"config": choice.name, "source": choice.source})
            if entry["config"] != choice.name:
                entry[layout] = choice.name
    return named


def warm_up(seconds: float) -> None:
    """Keep the GPU busy until its clocks are stable."""
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            torch.mm(x, x)
        torch.cuda.synchronize()


def format_row(family: Family, row: dict) -> str:
    """Return one line of progress."""
    parts = [f"{name} {median(values):.2f}" for name, values in row["times"].items()]
    faults = "".join(f"  {name.upper()} {row[name]}" for name in ("wrong", "failed") if name in row)
    return " ".join(f"{value!s:>6}" for value in family.identify(row)) + "  " + "  ".join(parts) + faults


def is_clean(row: dict) -> bool:
    """Return whether a row was measured and every D in it was right."""
    return not {"wrong", "failed"} & set(row)


def make_meta(family: Family, device, args: argparse.Namespace, is_complete: bool, seconds: float) -> dict:
    """Return the `meta` of a result; `deepgemm`: the version of DeepGEMM, where it is a peer of the run."""
    version = upstream.get_version(args.deepgemm)
    return {
        **make_stamp(device, family.hashed),
        "rounds": args.rounds,
        "flush_bytes": FLUSH_BYTES,
        "complete": is_complete,
        "seconds": round(seconds, 1),
        "timer": (
            f"CUPTI kernel duration through torch.profiler; before each call a kernel reads {FLUSH_BYTES >> 20} MB with"
            " ordinary loads"
            " (clean cold L2); PDL off"
        ),
        "order": family.name_order(bool(version)),
        "peer": family.peer,
        **({"deepgemm": version} if version else {}),
        "baseline": f"benchmarks/data/{family.name}.json",
    }


def run(family: Family, args: argparse.Namespace) -> int:
    """Time this shard's problems within the budget and write the result; return the exit code."""
    start = time.monotonic()
    # The peers promise no batch invariance; what it costs is benchmarks/batch_invariance.py's question.
    _C.set_batch_invariant(False)
    device = _C.get_device()
    choices = {op: Choices(op, device, args.best, args.model or find_out_of_fold(op, device.sku)) for op in family.ops}
    benchmark = Benchmark(family, device, choices, args.rounds, args.deepgemm)
    index, total = (int(part) for part in args.shard.split("/"))
    keys = family.read_keys()[index - 1 :: total]
    rows = keep_rows(family, args, device) if args.resume else []
    done = {family.identify(row) for row in rows}
    failures = compile_all(
        kernel for key in keys if family.identify(key) not in done for kernel in benchmark.list_kernels(key)
    )
    warm_up(WARM_UP_S)
    for key in keys:
        if family.identify(key) in done or time.monotonic() - start > args.time_budget:
            continue
        rows.append(benchmark.run(key))
        print(format_row(family, rows[-1]), flush=True)
    faulty = [row for row in rows if not is_clean(row)]
    is_complete = len(rows) == len(keys) and not faulty
    write_json(args.out, {"meta": make_meta(family, device, args, is_complete, time.monotonic() - start), "rows": rows})
    print(
        f"{len(rows)} of {len(keys)} problems, {len(faulty)} wrong or failed, {len(failures)} compile failures,"
        f" {time.monotonic() - start:.0f} s: {args.out}"
    )
    for failure in failures[:5]:
        print(failure[:300])
    return 1 if faulty or failures else 0 if is_complete else 3


def keep_rows(family: Family, args: argparse.Namespace, device) -> list[dict]:
    """Return the clean rows of an earlier, unfinished run of the same identity (IDENTITY) and rounds."""
    if not args.out.exists():
        return []
    earlier, own = read_json(args.out), make_meta(family, device, args, False, 0.0)
    same = identify_run(earlier["meta"]) == identify_run(own) and earlier["meta"]["rounds"] == args.rounds
    return [row for row in earlier["rows"] if is_clean(row)] if same else []


def identify_run(meta: dict) -> dict:
    """Return what a run has in common with those that its rows may be joined with; older results name less."""
    return {"order": ROTATED, "deepgemm": None, SELECTOR: None} | {key: meta[key] for key in IDENTITY if key in meta}


def merge(family: Family, paths: list[Path], out: Path) -> int:
    """Join the results of the shards; raises ValueError where they are of different kernels or machines."""
    parts = [read_json(path) for path in paths]
    runs = [identify_run(part["meta"]) for part in parts]
    for key in IDENTITY:
        if any(run[key] != runs[0][key] for run in runs):
            raise ValueError(f"{key} differs between the shards; run them again on one tree and machine, with one peer")
    rows = {family.identify(row): row for part in parts for row in part["rows"]}
    order = [family.identify(key) for key in family.read_keys()]
    is_complete = all(key in rows and is_clean(rows[key]) for key in order)
    meta = {
        **parts[0]["meta"],
        "complete": is_complete,
        "seconds": round(sum(part["meta"]["seconds"] for part in parts), 1),
    }
    write_json(out, {"meta": meta, "rows": [rows[key] for key in order if key in rows]})
    return 0 if is_complete else 3


def main(
    family: Family,
    description: str,
    arguments: list[str] | None = None,
    show: Callable[[list[dict]], None] | None = None,
) -> int:
    """Parse the command line and run the family's benchmark, or join what --merge names; `show` prints what follows
    from the rows.
    """
    parser = argparse.ArgumentParser(
        description=description,
        epilog="Exit codes: 0 all right, 1 a wrong result or a failure, 2 wrong arguments, 3 not complete.",
    )
    parser.add_argument(
        "--out", type=Path, default=find_results() / f"{family.name}.json", help="where the result goes"
    )
    parser.add_argument(
        "--best",
        type=Path,
        help="tuning database with the problems' winners, or JSON rows of problem fields and config",
    )
    parser.add_argument(
        "--model",
        type=Path,
        help="JSON of the out-of-fold choices: rows of problem fields and config (default: those of out_of_fold.py)",
    )
    parser.add_argument(
        "--deepgemm",
        type=Path,
        help="folder with the __init__.py of an installed DeepGEMM, which is then a peer (benchmarks/upstream.py)",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each variant (default 20)")
    parser.add_argument(
        "--time-budget", type=float, default=300.0, help="seconds; problems that have not begun by then are left out"
    )
    parser.add_argument("--shard", default="1/1", help="i/n: every n-th problem, beginning with the i-th")
    parser.add_argument(
        "--resume", action="store_true", help="keep the rows that --out already holds for the same kernels and machine"
    )
    parser.add_argument("--merge", type=Path, nargs="+", help="join these results of shards into --out and run nothing")
    args = parser.parse_args(arguments)
    if args.deepgemm is not None:
        try:
            args.deepgemm = upstream.load(args.deepgemm)
        except ValueError as error:
            parser.error(str(error))
    status = merge(family, args.merge, args.out) if args.merge else run(family, args)
    if show is not None:
        show(read_json(args.out)["rows"])
    return status
