"""Operands of attention logits on any device, and their logits computed in FP64, with what each element may differ by.

The reference shares no code with the package: not its formula, and not the layout of pages, which are filled key by
key.
"""

from typing import NamedTuple

import torch

FP8 = torch.float8_e4m3fn
INF = float("inf")
#: Error of a sum of FP8 products, as a share of the sum of their magnitudes (deep_gemm.numerics), and of FP32 and BF16
#: results.
SUM_ERROR, ROUNDING = 2.0**-11, {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-8}


class Expected(NamedTuple):
    """FP64 [tokens, columns]: the logits, -inf where a token sees nothing; and the sums of magnitudes."""

    logits: torch.Tensor
    magnitude: torch.Tensor

    def find_fault(self, found: torch.Tensor, *, is_clean: bool, untouched: float = float("nan")) -> str | None:
        """Return what is wrong with `found`, None where it is right. What is not cleaned must still be `untouched`."""
        is_unseen = self.logits == -INF
        unseen = found[is_unseen]
        if is_clean and not (unseen == -INF).all():
            return "a position that a token does not see is not -inf"
        if not is_clean and not (unseen.isnan() if untouched != untouched else unseen == untouched).all():
            return "a position that a token does not see was written"
        wanted, seen = self.logits[~is_unseen], found[~is_unseen].double()
        allowed = SUM_ERROR * self.magnitude[~is_unseen] + ROUNDING[found.dtype] * wanted.abs()
        wrong = ~((seen - wanted).abs() <= allowed)  # also NaN
        if wrong.any():
            return (
                f"{int(wrong.sum())} of {wrong.numel()} logits are wrong, by up to {float((seen - wanted).abs().max())}"
            )
        norm = float((wanted**2 + seen**2).sum())
        difference = 1 - 2 * float((wanted * seen).sum()) / norm if norm else 0.0
        return f"calc_diff {difference}" if difference > 5e-6 else None


def make_queries(*shape: int, device: str = "cpu", seed: int = 0) -> torch.Tensor:
    """Return standard normals as float8_e4m3fn."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(FP8).to(device)


def make_prefill(
    tokens: int, n: int, heads: int = 8, head_dim: int = 32, seed: int = 0, device: str = "cpu", ranges: str = "any"
) -> dict:
    """Return the arguments of fp8_mqa_logits.

    ranges: "any" within 0..n; "causal", the last tokens of n; "parallel", causal with the tokens of a rank that holds
        the first and the last part of them; "empty" for every second token.
    """
    generator = torch.Generator().manual_seed(seed)
    bounds = torch.randint(0, n + 1, (2, tokens), generator=generator, dtype=torch.int32)
    starts, ends = bounds.amin(dim=0), bounds.amax(dim=0)
    if ranges in ("causal", "parallel"):
        starts, ends = torch.zeros_like(starts), torch.arange(tokens, dtype=torch.int32) + (n - tokens + 1)
        if ranges == "parallel":
            half = tokens // 2
            ends[:half] -= (n - tokens) // 2
        ends = ends.clamp(min=0)
    if ranges == "empty":
        ends[::2] = starts[::2]
    operands = {
        "q": make_queries(tokens, heads, head_dim, seed=seed),
        "kv": (make_queries(n, head_dim, seed=seed + 1), torch.rand(n, generator=generator) + 0.5),
        "weights": torch.randn(tokens, heads, generator=generator),
        "cu_seq_len_k_start": starts,
        "cu_seq_len_k_end": ends,
    }
    return move(operands, device)


def pack_cache(keys: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return uint8 [pages, block_kv, 1, head_dim + 4] of keys [pages, block_kv, head_dim] and scales [pages, block_kv]:
    the bytes of all keys of a page, then those of its scales.
    """
    pages, block_kv, head_dim = keys.shape
    parts = (keys.view(torch.uint8).flatten(1), scales.contiguous().view(torch.uint8).flatten(1))
    return torch.cat(parts, dim=1).view(pages, block_kv, 1, head_dim + 4)


def make_paged(
    lengths: list, next_n: int = 1, heads: int = 8, head_dim: int = 32, block_kv: int = 64, seed: int = 0,
    device: str = "cpu",
) -> dict:  # fmt: skip
    """Return the arguments of fp8_paged_mqa_logits up to the block table, for sequences of `lengths`, whose pages are
    in any order; entries behind the last page of a sequence are no page at all.
    """
    generator = torch.Generator().manual_seed(seed)
    context_lens = torch.tensor(lengths, dtype=torch.int32)
    most = context_lens if context_lens.ndim == 1 else context_lens.amax(dim=1)
    counts = [-(-int(length) // block_kv) for length in most]
    pages = torch.randperm(sum(counts) + 2, generator=generator).int()
    table = torch.full((len(counts), max(counts, default=0) + 1), 2**31 - 1, dtype=torch.int32)
    first = 0
    for sequence, count in enumerate(counts):
        table[sequence, :count] = pages[first : first + count]
        first += count
    keys = make_queries(len(pages), block_kv, head_dim, seed=seed + 1)
    operands = {
        "q": make_queries(len(counts), next_n, heads, head_dim, seed=seed),
        "kv_cache": pack_cache(keys, torch.rand(len(pages), block_kv, generator=generator) + 0.5),
        "weights": torch.randn(len(counts) * next_n, heads, generator=generator),
        "context_lens": context_lens,
        "block_table": table,
    }
    return move(operands, device)


def move(operands: dict, device: str) -> dict:
    """Return the operands on a device."""
    return {
        name: tuple(part.to(device) for part in value) if isinstance(value, tuple) else value.to(device)
        for name, value in operands.items()
    }


def multiply(q: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor, weights: torch.Tensor) -> Expected:
    """Return the logits of tokens q [tokens, heads, head_dim] over keys [n, head_dim], all seen."""
    total = torch.zeros(len(q), len(keys), dtype=torch.float64, device=q.device)
    magnitude, wide = total.clone(), keys.double().t()
    for head in range(q.shape[1]):
        left, weight = q[:, head].double(), weights[:, head, None].double()
        total += (left @ wide).clamp(min=0) * weight
        magnitude += (left.abs() @ wide.abs()) * weight.abs()
    return Expected(total * scales.double(), magnitude * scales.double().abs())


def expect_prefill(operands: dict) -> Expected:
    """Return the expected logits [tokens, n]."""
    keys, scales = operands["kv"]
    starts, ends = operands["cu_seq_len_k_start"], operands["cu_seq_len_k_end"]
    found = multiply(operands["q"], keys, scales, operands["weights"])
    positions = torch.arange(len(keys), device=keys.device)
    is_seen = (positions >= starts[:, None]) & (positions < ends[:, None])
    return found._replace(logits=found.logits.masked_fill(~is_seen, -INF))


def compress(expected: Expected, starts: torch.Tensor, columns: int) -> Expected:
    """Return what row i holds from position starts[i] on."""
    positions = starts[:, None].long() + torch.arange(columns, device=starts.device)
    inside = positions < expected.logits.shape[1]
    positions = positions.clamp(max=expected.logits.shape[1] - 1)
    logits = expected.logits.gather(1, positions).masked_fill(~inside, -INF)
    return Expected(logits, expected.magnitude.gather(1, positions))


def gather_keys(cache: torch.Tensor, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys [n, head_dim] and scales [n] of some pages, one after the other."""
    block_kv, head_dim = cache.shape[1], cache.shape[3] - 4
    memory = torch.stack([cache[page].flatten() for page in pages.tolist()])
    keys = memory[:, : block_kv * head_dim].reshape(-1, head_dim).view(FP8)
    return keys, memory[:, block_kv * head_dim :].contiguous().view(torch.float32).flatten()


def expect_paged(operands: dict, columns: int) -> Expected:
    """Return the expected logits [sequences * next_n, columns]."""
    cache, lengths, q = operands["kv_cache"], operands["context_lens"], operands["q"]
    (sequences, next_n), block_kv = q.shape[:2], cache.shape[1]
    logits = torch.full((sequences * next_n, columns), -INF, dtype=torch.float64, device=q.device)
    magnitude = torch.zeros_like(logits)
    for sequence in range(sequences):
        ends = lengths[sequence].tolist() if lengths.ndim == 2 else None
        if ends is None:
            ends = [int(lengths[sequence]) - next_n + token + 1 for token in range(next_n)]
        count = -(-max(min(max(ends), columns), 0) // block_kv)
        if count == 0:
            continue
        rows = slice(sequence * next_n, (sequence + 1) * next_n)
        keys, scales = gather_keys(cache, operands["block_table"][sequence, :count])
        found = multiply(q[sequence], keys, scales, operands["weights"][rows])
        for token, end in enumerate(ends):
            seen = max(min(end, columns), 0)
            logits[rows.start + token, :seen] = found.logits[token, :seen]
            magnitude[rows.start + token, :seen] = found.magnitude[token, :seen]
    return Expected(logits, magnitude)
