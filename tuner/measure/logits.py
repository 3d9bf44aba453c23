"""Operands for measuring attention logits, and what a checked launch should have written.

A token of a prefill sees all positions up to its own, the last one the whole of n. Paged sequences are a quarter of n
long on average, by the spread of the default workload; the schedule is made before the launch, as callers make it once
for all layers of a model. Nothing is cleaned, so that positions that no token sees must stay as they were.
"""

import random
from typing import NamedTuple

import torch

from deep_gemm import _C
from deep_gemm.fields import OP_KINDS
from deep_gemm.logits import get_paged_mqa_logits_metadata, split_cache
from deep_gemm.numerics import draw_factors, get_sums_error, make_bound

FP8, INT = torch.float8_e4m3fn, torch.int32
SCALE_BYTES = 4
#: The mean length of a paged sequence is this share of n.
MEAN_SHARE = 4
CHECKED_ROWS = 64


class LogitsSet(NamedTuple):
    """One set, as _C.Kernel.launch_logits takes it. first, second: the range of each token, or lengths and pages of
    sequences; scales None and schedule given for pages. c and groups are what sets of products have, too.
    """

    q: torch.Tensor
    keys: torch.Tensor
    scales: torch.Tensor | None
    weights: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    d: torch.Tensor
    schedule: torch.Tensor | None = None
    c: None = None
    groups: None = None

    def launch(self, kernel, *, num_sms: int = 0, stream: object = None, **options: object) -> None:
        """Launch a kernel on this set; options of products mean nothing here."""
        kernel.launch_logits(*self[:7], schedule=self.schedule, num_sms=num_sms, stream=stream)


def draw_lengths(problem) -> list[int]:
    """Return the length of each paged sequence."""
    generator = random.Random(problem.key)
    mean = max(problem.n / MEAN_SHARE, 1)
    sequences = problem.m // problem.next_n
    return [min(max(round(mean * factor), 1), problem.n) for factor in draw_factors(sequences, generator)]


def count_pages(problem) -> list[int]:
    """Return the pages of each sequence."""
    return [-(-length // problem.block_kv) for length in draw_lengths(problem)]


def make_set(problem, tensors: dict) -> LogitsSet:
    """Return the set with these operands; the ranges of its tokens follow from the problem."""
    device = tensors["q"].device
    if not OP_KINDS[problem.op].is_paged:
        ends = torch.arange(problem.n - problem.m + 1, problem.n + 1, dtype=INT, device=device).clamp_(min=0)
        return LogitsSet(first=torch.zeros_like(ends), second=ends, **tensors)
    counts, cache = count_pages(problem), tensors["keys"]
    split_scales(problem, cache)
    generator = torch.Generator().manual_seed(0)
    pages = torch.randperm(sum(counts), generator=generator).int().split(counts)
    table = torch.nn.utils.rnn.pad_sequence(pages, batch_first=True).to(device)
    lengths = torch.tensor(draw_lengths(problem), dtype=INT, device=device)
    schedule = get_paged_mqa_logits_metadata(lengths, problem.block_kv, problem.num_sms or count_sms(device))
    return LogitsSet(scales=None, first=lengths, second=table, schedule=schedule, **tensors)


def count_sms(device: torch.device) -> int:
    """Return the SMs that callers schedule for: those of the GPU, on the CPU an H200's."""
    if device.type != "cuda":
        return _C.Device.known(_C.KNOWN_DEVICES[0]).sm_count
    return torch.cuda.get_device_properties(device).multi_processor_count


def split_scales(problem, cache: torch.Tensor) -> None:
    """Write scales of 0.5 to 1.5 behind the keys of every page of uint8 [pages, block_kv, 1, head_dim + 4]."""
    memory = cache.view(len(cache), -1)[:, problem.block_kv * problem.k :]
    generator = torch.Generator(device=cache.device).manual_seed(1)
    scales = torch.rand(len(cache), problem.block_kv, generator=generator, device=cache.device) + 0.5
    memory.copy_(scales.view(torch.uint8).view(len(cache), -1))


class LogitsReference:
    """The logits of some rows of one set in FP32, made when they are compared."""

    def __init__(self, problem, operands: LogitsSet):
        self.problem, self.operands = problem, operands

    def compare(self, output) -> tuple[str | None, float]:
        """Return (what is wrong with `output`, a CheckedOutput, or None; its largest error)."""
        if not output.has_clean_guards():
            return "wrote outside the logits", float("inf")
        rows = range(0, self.problem.m, max(1, self.problem.m // CHECKED_ROWS))
        faults, errors = zip(*(self.compare_row(output, row) for row in {*rows, self.problem.m - 1}), strict=True)
        return next(filter(None, faults), None), max(errors)

    def compare_row(self, output, row: int) -> tuple[str | None, float]:
        """Return (what is wrong with one row, its largest error)."""
        start, keys, scales = self.get_keys(row)
        end, q = start + len(keys), self.operands.q.flatten(0, -3)[row].float()
        weights = self.operands.weights[row]
        wanted = weights @ (q @ keys.T).relu() * scales
        sums = weights.abs() @ (q.abs() @ keys.abs().T) * scales * get_sums_error(FP8, self.problem.k)
        found = output.rows[row].float()
        error = (found[start:end] - wanted).abs()
        if not (error <= make_bound(wanted, sums, output.d.dtype)).all():
            return f"row {row} differs from the logits of its operands", float(error.nan_to_num(float("inf")).max())
        if not (found[:start].isnan().all() and found[end:].isnan().all()):
            return f"row {row}: a position that the token does not see was written", float("inf")
        return None, float(error.max()) if len(error) else 0.0

    def get_keys(self, row: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        """Return (first position, keys FP32 [n,k], scales [n]) that a token sees."""
        operands, problem = self.operands, self.problem
        if operands.scales is not None:
            start, end = int(operands.first[row]), int(operands.second[row])
            return start, operands.keys[start:end].float(), operands.scales[start:end]
        sequence, token = divmod(row, problem.next_n)
        end = max(int(operands.first[sequence]) - problem.next_n + token + 1, 0)
        pages = operands.second[sequence, : -(-end // problem.block_kv)].long()
        keys, scales = split_cache(operands.keys[pages])
        return 0, keys.flatten(0, 1)[:end].float(), scales.flatten()[:end]
