"""Time attention index logits, prefill and paged, on the 48 problems of data/mqa_logits.json.

Example: python -m benchmarks.mqa_logits --best tuning.db --model out_of_fold.json --time-budget 240

Token i of a prefill sees all positions up to its own, the last one the whole of n. Lengths of paged sequences lie
within 0.7 and 1.3 of their mean and add up to what upstream was timed with; the schedule is made before the
call. Logits are FP32 and not cleaned, as upstream's were. There is no vendor's product to compare with: the plain
ratio to upstream's recorded time counts. Roles: choices.py; method and result: harness.py.
"""

import sys
from collections.abc import Callable

import torch

import deep_gemm
from deep_gemm import _C

from .harness import Family, main
from .product import Product

OPS = {"prefill": "fp8_mqa_logits", "paged": "fp8_paged_mqa_logits"}
FP8 = torch.float8_e4m3fn
#: Rows whose logits are compared with those in float64, and the error of their sums as a share of the magnitudes.
CHECKED_ROWS, SUM_ERROR = 16, 2.0**-11


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

    def is_right(self, layout: str) -> bool:
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

    def call_op(self, layout: str) -> Callable[[], object]:
        """Return the public op."""
        operands = (self.q, (self.keys, self.scales), self.weights, self.starts, self.ends, False)
        return lambda: self.keep(deep_gemm.fp8_mqa_logits(*operands))

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

    def call_op(self, layout: str) -> Callable[[], object]:
        """Return the public op."""
        operands = (self.q, self.cache, self.weights, self.lengths, self.table, self.schedule, self.key["n"])
        return lambda: self.keep(deep_gemm.fp8_paged_mqa_logits(*operands))

    def call_kernel(self, kernel, layout: str) -> Callable[[], object]:
        """Return one loaded kernel."""
        operands = (self.q, self.cache, None, self.weights, self.lengths, self.table, self.d)
        return lambda: kernel.launch_logits(*operands, schedule=self.schedule)


def make_problems(key: dict) -> dict[str, object]:
    """Return the problem of a key, under the name of its form."""
    fields = {"heads": key["heads"], "d_dtype": "fp32"}
    if key["form"] == "paged":
        fields |= {"next_n": key["next_n"], "block_kv": key["block_kv"]}
    tokens = key["tokens"] or key["batch"] * key["next_n"]
    return {key["form"]: _C.Problem(OPS[key["form"]], tokens, key["n"], key["head_dim"], **fields)}


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


if __name__ == "__main__":
    sys.exit(main(FAMILY, __doc__.splitlines()[0]))
