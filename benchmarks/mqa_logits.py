"""Time attention index logits, prefill and paged, on the 48 problems of data/mqa_logits.json.

Examples: python -m benchmarks.mqa_logits --best tuning.db --model out_of_fold.json --time-budget 240
          python -m benchmarks.mqa_logits --variants variants.json

Token i of a prefill sees all positions up to its own, the last one the whole of n. Lengths of paged sequences lie
within 0.7 and 1.3 of their mean and add up to what upstream was timed with; the schedule is made before the
call. Logits are FP32 and not cleaned, as upstream's were. There is no vendor's product to compare with: the plain
ratio to upstream's time counts. Roles: choices.py; method and result: harness.py.

`--variants` times variants of the paged kernel against the one that ships, interleaved: VARIANTS. A variant has another
config, or other values of constants of the generated source. All must write the same bits.
"""

import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.jit import generator
from deep_gemm.jit.build import get_cubin_for_source
from tuner.measure.statistics import median

from .cold_timer import ColdTimer
from .harness import WARM_UP_S, Family, main, warm_up
from .product import Product
from .speedup import geometric_mean
from .stamp import DATA, make_stamp, read_json, write_json

OPS = {"prefill": "fp8_mqa_logits", "paged": "fp8_paged_mqa_logits"}
FP8 = torch.float8_e4m3fn
#: Rows whose logits are compared with those in float64, and the error of their sums as a share of the magnitudes.
CHECKED_ROWS, SUM_ERROR = 16, 2.0**-11
VARIANT_ROUNDS, COMPILE_THREADS = 15, 8


class Variant(NamedTuple):
    """What differs from the shipped kernel: stages and keys of the config (0: none), and constants of the source."""

    num_stages: int = 0
    keys: int = 0
    constants: tuple[tuple[str, str], ...] = ()

    def adapt(self, config: "_C.Config") -> "_C.Config":
        """Return the variant's config for the shipped one."""
        return _C.Config(config.block_m, self.keys or config.block_n, self.num_stages or config.num_stages)

    def adapt_source(self, source: str) -> str:
        """Return a generated source with the variant's constants. Raises ValueError for one that the source lacks."""
        for name, value in self.constants:
            source, count = re.subn(rf"\b{name} = \w+;", f"{name} = {value};", source)
            if count != 1:
                raise ValueError(f"{name}: {count} such constants in the source; name one that it has")
        return source


#: The first is the shipped one.
VARIANTS = {
    "shipped": Variant(),
    **{f"s{stages}": Variant(stages, 192) for stages in (12, 9, 6)},
    **{f"two groups s{stages}": Variant(stages, 128) for stages in (12, 8, 6)},
}


class Logits(Product):
    """Logits of tokens over keys; subclasses hold the operands of one of the ops.

    d: FP32 [tokens, columns], which a kernel writes; the op's own result takes its place when that is called.
    """

    def __init__(self, key: dict, tokens: int, columns: int):
        self.key, self.tokens = key, tokens
        self.q = torch.randn(tokens, key["heads"], key["head_dim"], device="cuda").to(FP8)
        self.weights = torch.randn(tokens, key["heads"], device="cuda")
        self.d = self.result = torch.empty(tokens, columns, device="cuda")
        self.rows = torch.arange(0, tokens, max(1, tokens // CHECKED_ROWS), device="cuda")
        self.absent: dict[str, str] = {}

    def call_peers(self) -> dict[str, Callable[[], object]]:
        """Return nothing: there is no peer."""
        return {}

    def reset(self, layout: str) -> None:
        """Fill what a kernel writes with NaN."""
        self.d.fill_(float("nan"))
        self.result = self.d

    def keep(self, result: torch.Tensor) -> None:
        """Let the op's result be checked."""
        self.result = result

    def get_compared(self, layout: str) -> torch.Tensor:
        """Return nothing: configs add heads up in different orders."""
        return self.d[:0]

    def get_keys(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and scales that a token sees."""
        raise NotImplementedError

    def are_rows_right(self, layout: str) -> bool:
        """Return whether the checked rows lie within the bound of every element."""
        return all(self._is_row_right(row) for row in self.rows.tolist())

    def _is_row_right(self, row: int) -> bool:
        keys, scales = (part.double() for part in self.get_keys(row))
        q, weights = self.q.view(-1, *self.q.shape[-2:])[row].double(), self.weights[row].double()
        wanted = weights @ (q @ keys.T).clamp(min=0) * scales
        bound = SUM_ERROR * (weights.abs() @ (q.abs() @ keys.abs().T)) * scales + 1e-6 * wanted.abs()
        return bool(((self.result[row, : len(keys)].double() - wanted).abs() <= bound).all())


class Prefill(Logits):
    """fp8_mqa_logits."""

    def __init__(self, key: dict):
        tokens, n = key["tokens"], key["n"]
        super().__init__(key, tokens, n)
        self.keys = torch.randn(n, key["head_dim"], device="cuda").to(FP8)
        self.scales = torch.rand(n, device="cuda") + 0.5
        self.starts = torch.zeros(tokens, dtype=torch.int32, device="cuda")
        self.ends = torch.arange(n - tokens + 1, n + 1, dtype=torch.int32, device="cuda")

    def get_keys(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys up to the token's own."""
        end = int(self.ends[row])
        return self.keys[:end], self.scales[:end]

    def call_op(self, layout: str, package: ModuleType = deep_gemm) -> Callable[[], object]:
        """Return the public op."""
        operands = (self.q, (self.keys, self.scales), self.weights, self.starts, self.ends, False)
        return lambda: self.keep(package.fp8_mqa_logits(*operands))

    def call_kernel(self, kernel, layout: str) -> Callable[[], object]:
        """Return one loaded kernel."""
        operands = (self.q, self.keys, self.scales, self.weights, self.starts, self.ends, self.d)
        return lambda: kernel.launch_logits(*operands)


class Paged(Logits):
    """fp8_paged_mqa_logits."""

    def __init__(self, key: dict):
        batch, next_n, block_kv, width = key["batch"], key["next_n"], key["block_kv"], key["head_dim"] + 4
        super().__init__(key, batch * next_n, key["n"])
        self.q = self.q.view(batch, next_n, key["heads"], key["head_dim"])
        generator = torch.Generator().manual_seed(0)
        shares = 0.7 + 0.6 * torch.rand(batch, generator=generator, dtype=torch.float64)
        lengths = (shares / shares.sum() * key["sum"]).int()
        counts = -(-lengths // block_kv)
        pages = torch.randperm(int(counts.sum()), generator=generator).int().split(counts.tolist())
        self.table = torch.nn.utils.rnn.pad_sequence(pages, batch_first=True).cuda()
        cache = torch.empty(int(counts.sum()), block_kv * width, dtype=torch.uint8, device="cuda")
        keys = torch.randn(len(cache), block_kv * key["head_dim"], device="cuda").to(FP8)
        cache[:, : keys.shape[1]] = keys.view(torch.uint8)
        scales = torch.rand(len(cache), block_kv, device="cuda") + 0.5
        cache[:, keys.shape[1] :] = scales.view(torch.uint8)
        self.cache = cache.view(-1, block_kv, 1, width)
        self.keys, self.scales = keys.view(-1, block_kv, key["head_dim"]), scales
        self.lengths = lengths.cuda()
        self.schedule = deep_gemm.get_paged_mqa_logits_metadata(self.lengths, block_kv, deep_gemm.get_num_sms())

    def get_keys(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys that a token of a sequence sees."""
        sequence, token = divmod(row, self.key["next_n"])
        end = int(self.lengths[sequence]) - self.key["next_n"] + token + 1
        pages = self.table[sequence, : -(-end // self.key["block_kv"])].long()
        keys = self.keys.view(torch.uint8)[pages].view(FP8).flatten(0, 1)
        return keys[:end], self.scales[pages].flatten()[:end]

    def call_op(self, layout: str, package: ModuleType = deep_gemm) -> Callable[[], object]:
        """Return the public op; another package's takes a length for each token, and a schedule of its own."""
        lengths, schedule = self.lengths, self.schedule
        if package is not deep_gemm:
            next_n, block_kv = self.key["next_n"], self.key["block_kv"]
            lengths = lengths[:, None] + torch.arange(1 - next_n, 1, dtype=torch.int32, device="cuda")
            schedule = package.get_paged_mqa_logits_metadata(lengths, block_kv, deep_gemm.get_num_sms())
        operands = (self.q, self.cache, self.weights, lengths, self.table, schedule, self.key["n"])
        return lambda: self.keep(package.fp8_paged_mqa_logits(*operands))

    def call_kernel(self, kernel, layout: str) -> Callable[[], object]:
        """Return one loaded kernel."""
        operands = (self.q, self.cache, None, self.weights, self.lengths, self.table, self.d)
        return lambda: kernel.launch_logits(*operands, schedule=self.schedule)


def make_problem(key: dict) -> "_C.Problem":
    """Return the problem of a key."""
    fields = {"heads": key["heads"], "d_dtype": "fp32"}
    if key["form"] == "paged":
        fields |= {"next_n": key["next_n"], "block_kv": key["block_kv"]}
    tokens = key["tokens"] or key["batch"] * key["next_n"]
    return _C.Problem(OPS[key["form"]], tokens, key["n"], key["head_dim"], **fields)


def make_problems(key: dict) -> dict[str, object]:
    """Return the problem of a key, under the name of its form."""
    return {key["form"]: make_problem(key)}


def make_product(key: dict, device: object) -> Logits:
    """Return the operands of a key."""
    return Prefill(key) if key["form"] == "prefill" else Paged(key)


FAMILY = Family(
    name="mqa_logits",
    ops=tuple(OPS.values()),
    key=("form", "tokens", "batch", "next_n", "heads", "head_dim", "block_kv", "n", "mean", "sum"),
    roles={"prefill": ("best", "model", "heuristic"), "paged": ("best", "model", "heuristic")},
    make_problems=make_problems,
    make_product=make_product,
    rests=True,
    peer="none",
)


def make_sources(key: dict, device: "_C.Device") -> dict[str, tuple]:
    """Return {variant: (problem, config, source)} of a paged problem; variants with the same source once."""
    problem = make_problem(key)
    shipped = _C.get_analytic_config(problem, device)
    found: dict[str, tuple] = {}
    for name, variant in VARIANTS.items():
        config = variant.adapt(shipped)
        source = variant.adapt_source(generator.generate_source(problem, config))
        if source not in (known for _, _, known in found.values()):
            found[name] = (problem, config, source)
    return found


def load_variant(problem: "_C.Problem", config: "_C.Config", source: str) -> "_C.Kernel":
    """Return the kernel of a variant's source."""
    symbol = generator.kernel_name(problem.op)
    return _C.Kernel(get_cubin_for_source(source, symbol).cubin, symbol, problem, config, 0)


def find_other_bits(product: Logits, calls: dict[str, Callable[[], object]]) -> list[str]:
    """Run every variant once; return those whose bits are not the first's, or all where the first is not right."""
    first, wrong = None, []
    for name, call in calls.items():
        product.reset("")
        call()
        if first is None:
            if not product.is_right(""):
                return list(calls)
            first = product.d.clone()
        elif not torch.equal(product.d.view(torch.int32), first.view(torch.int32)):
            wrong.append(name)
    return wrong


def time_variants(key: dict, device: "_C.Device", timer: ColdTimer, upstream_us: float) -> dict:
    """Return the row of one problem: microseconds of each variant, and the variants that wrote other bits."""
    product = Paged(key)
    calls = {
        name: product.call_kernel(load_variant(*made), "paged") for name, made in make_sources(key, device).items()
    }
    wrong = find_other_bits(product, calls)
    times = timer.measure(calls, VARIANT_ROUNDS)
    return {**key, "upstream_us": upstream_us, "times": times, "wrong": wrong}


def format_variants(row: dict) -> str:
    """Return one line: upstream's and the shipped kernel's time, then each variant's gain over the shipped one."""
    shipped = median(row["times"]["shipped"])
    gains = "  ".join(f"{name} {shipped / median(us):.3f}" for name, us in row["times"].items() if name != "shipped")
    label = f"{row['batch']:4d} x {row['next_n']} x {row['heads']} over {row['mean']:6d}"
    wrong = f"  OTHER BITS {row['wrong']}" if row["wrong"] else ""
    return f"{label}: upstream {row['upstream_us']:7.2f}  shipped {shipped:7.2f} us  {gains}{wrong}"


def format_means(rows: list[dict]) -> list[str]:
    """Return a line for each variant: its mean gain over the shipped kernel, and mean and worst against upstream."""
    lines = []
    for name in VARIANTS:
        both = [row for row in rows if name in row["times"]]
        if both:
            gain = geometric_mean([median(row["times"]["shipped"]) / median(row["times"][name]) for row in both])
            ratios = [row["upstream_us"] / median(row["times"][name]) for row in both]
            lines.append(
                f"{name:16s} {gain:.3f} of shipped; upstream {geometric_mean(ratios):.3f}, worst {min(ratios):.3f}"
            )
    return lines


def run_variants(out: Path) -> int:
    """Time every variant on every paged problem and write the rows. Returns 1 where bits differ."""
    torch.manual_seed(0)
    device = _C.get_device()
    known = [row for row in read_json(DATA / f"{FAMILY.name}.json")["rows"] if row["form"] == "paged"]
    keys = [{name: row[name] for name in FAMILY.key} for row in known]
    sources = dict.fromkeys(source for key in keys for _, _, source in make_sources(key, device).values())
    with ThreadPoolExecutor(COMPILE_THREADS) as pool:
        list(pool.map(lambda source: get_cubin_for_source(source, generator.kernel_name(OPS["paged"])), sources))
    timer = ColdTimer(device.sm_count)
    warm_up(WARM_UP_S)
    rows = []
    for key, row in zip(keys, known, strict=True):
        rows.append(time_variants(key, device, timer, row["deepgemm_us"]))
        print(format_variants(rows[-1]), flush=True)
    print(*format_means(rows), sep="\n")
    write_json(out, {"meta": {**make_stamp(device, (OPS["paged"],)), "rounds": VARIANT_ROUNDS}, "rows": rows})
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--variants":
        sys.exit(run_variants(Path(sys.argv[2])))
    summary = __doc__.splitlines()[0]
    sys.exit(main(FAMILY, f"{summary} With `--variants OUT` alone: time variants of the paged kernel instead."))
