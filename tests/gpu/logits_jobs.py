"""The jobs of attention logits: every config of the default space on shapes of its own, and what the public ops do.

Run alone, they need no other part of the suite: python -m tests.gpu.logits_jobs out.json [--quick]
"""

import functools
import json
import sys
import time
from collections.abc import Iterator

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.jit.ahead import compile_all
from deep_gemm.jit.build import get_cubin

from .logits_operands import Expected, compress, expect_paged, expect_prefill, make_paged, make_prefill

DEVICE = "cuda"
#: Elements around a checked result that nothing may touch.
GUARD = 256
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: (heads, head_dim) of the variants whose configs are all run.
HEADS = ((8, 32), (24, 64), (32, 128), (64, 32), (64, 64), (64, 128), (128, 128))
#: (next_n, block_kv, heads, head_dim) likewise of pages.
PAGES = ((1, 64, 64, 128), (1, 32, 32, 64), (2, 64, 32, 128), (3, 32, 8, 32), (4, 64, 64, 128), (6, 32, 64, 128),
         (8, 64, 16, 64), (2, 32, 128, 128))  # fmt: skip
#: (tokens, keys, ranges) around the sides of tiles: 16 tokens, 64 keys.
SHAPES = ((1, 1, "any"), (5, 63, "causal"), (17, 65, "any"), (33, 500, "empty"), (130, 1000, "parallel"),
          (257, 300, "causal"))  # fmt: skip
#: Lengths around pages and tiles, empty ones among them, one that keeps several CTAs busy, and some that fill the ring
#: of every CTA more than once.
LENGTHS = (
    [0], [1, 31, 32, 33, 63, 64, 65, 0, 127, 128, 129], [0, 0, 0], [5000, 3, 0, 200],
    [9000, 130, 0, *(64 * number + 31 for number in range(90))],
)  # fmt: skip
#: (sequences, positions of each) that make more logits than kernels of three math warpgroups keep in L2 (kMostKept in
#: mqa_paged_schedule.cuh), in FP32 by two tokens each; the keys in such a kernel's tile.
LARGE = (520, 8100)
LARGE_TILE = 192


def list_problems(op: str) -> list:
    """Return the variants of an op kind whose configs are run, each with both types of logits where that is cheap."""
    if op == "fp8_mqa_logits":
        sizes = [(heads, head_dim, {}) for heads, head_dim in HEADS]
    else:
        sizes = [
            (heads, head_dim, {"next_n": next_n, "block_kv": block_kv}) for next_n, block_kv, heads, head_dim in PAGES
        ]
    return [
        _C.Problem(op, fields.get("next_n", 1) * 64, 1024, head_dim, heads=heads, d_dtype=d_dtype, **fields)
        for heads, head_dim, fields in sizes
        for d_dtype in ("fp32", "bf16")
    ]


def list_kernels() -> list[tuple]:
    """Return the (problem, config) pairs of the config jobs."""
    device = _C.Device.known("h200")
    problems = [problem for op in ("fp8_mqa_logits", "fp8_paged_mqa_logits") for problem in list_problems(op)]
    return [(problem, config) for problem in problems for config in _C.get_default_space(problem, device)]


class Guarded:
    """A result [rows, columns] at a pitch, poisoned with NaN, between guards."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, pitch: int):
        self.memory = torch.full((rows * pitch + 2 * GUARD,), float("nan"), dtype=dtype, device=DEVICE)
        self.d = self.memory[GUARD : GUARD + rows * pitch].view(rows, pitch)[:, :columns]
        self.rest = self.memory.clone()

    def is_guarded(self) -> bool:
        """Return whether everything but the result still is NaN."""
        rest = self.memory.clone()
        rest[GUARD : len(rest) - GUARD].view(len(self.d), -1)[:, : self.d.shape[1]] = float("nan")
        return bool(rest.isnan().all())


def load(problem, config) -> "_C.Kernel":
    """Return the loaded kernel of a config."""
    result = get_cubin(problem, config)
    return _C.Kernel(result.cubin, result.kernel_name, problem, config, torch.cuda.current_device())


def judge(out: Guarded, expected: Expected, *, is_clean: bool) -> str | None:
    """Return what is wrong with a guarded result."""
    torch.cuda.synchronize()
    if not out.is_guarded():
        return "wrote outside the logits"
    return expected.find_fault(out.d, is_clean=is_clean)


def run_prefill(kernel, problem, operands: dict, expected: Expected, mode: str) -> str | None:
    """Launch a kernel in one of the modes clean, dirty and compressed; return what is wrong."""
    (keys, scales), starts, ends = operands["kv"], operands["cu_seq_len_k_start"], operands["cu_seq_len_k_end"]
    columns = len(keys)
    if mode == "compressed":
        columns = max(int((ends - starts).max()), 1)
        expected = compress(expected, starts, columns)
        visible = torch.arange(columns, device=DEVICE) < (ends - starts)[:, None]
        expected = expected._replace(logits=expected.logits.masked_fill(~visible, float("-inf")))
    out = Guarded(len(starts), columns, DTYPES[problem.d_dtype], -(-columns // 64) * 64)
    kernel.launch_logits(
        operands["q"], keys, scales, operands["weights"], starts, ends, out.d,
        is_clean=mode == "clean", is_compressed=mode == "compressed",
    )  # fmt: skip
    return judge(out, expected, is_clean=mode == "clean")


def run_paged(kernel, problem, operands: dict, expected: Expected, mode: str, num_slots: int) -> str | None:
    """Launch a kernel of pages with a schedule of `num_slots`; return what is wrong."""
    lengths, columns = operands["context_lens"], expected.logits.shape[1]
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, problem.block_kv, num_slots)
    out = Guarded(len(operands["weights"]), columns, DTYPES[problem.d_dtype], -(-columns // 64) * 64)
    kernel.launch_logits(
        operands["q"], operands["kv_cache"], None, operands["weights"], lengths, operands["block_table"], out.d,
        schedule=schedule, is_clean=mode == "clean",
    )  # fmt: skip
    return judge(out, expected, is_clean=mode == "clean")


def check_prefill_configs(problem) -> tuple[int, list[str]]:
    """Run every config of a variant on every shape and in every mode."""
    cases, failures = 0, []
    prepared = []
    for number, (tokens, n, ranges) in enumerate(SHAPES):
        operands = make_prefill(tokens, n, problem.heads, problem.k, number, DEVICE, ranges)
        prepared.append((operands, expect_prefill(operands)))
    for config in _C.get_default_space(problem, _C.get_device()):
        kernel = load(problem, config)
        for (operands, expected), shape in zip(prepared, SHAPES, strict=True):
            for mode in ("clean", "dirty", "compressed"):
                fault, cases = run_prefill(kernel, problem, operands, expected, mode), cases + 1
                if fault:
                    failures.append(f"{problem} {config} {shape} {mode}: {fault}")
    return cases, failures


def draw_lengths(lengths: list, next_n: int) -> list:
    """Return a length for each token of each sequence, the last one's the largest."""
    generator = torch.Generator().manual_seed(len(lengths))
    return [
        [*(torch.rand(next_n - 1, generator=generator) * (length + 1)).int().tolist(), length] for length in lengths
    ]


def check_paged_configs(problem) -> tuple[int, list[str]]:
    """Run every config of a variant on every list of lengths, given by sequence and by token."""
    cases, failures, prepared = 0, [], []
    for number, lengths in enumerate(LENGTHS):
        for by_token in (False, True):
            given = draw_lengths(lengths, problem.next_n) if by_token else lengths
            sizes = (problem.next_n, problem.heads, problem.k, problem.block_kv, number, DEVICE)
            operands = make_paged(given, *sizes)
            columns = max(lengths) + (70 if number % 2 else 0) or 40
            prepared.append((operands, expect_paged(operands, columns), f"{given}"))
    for number, config in enumerate(_C.get_default_space(problem, _C.get_device())):
        kernel = load(problem, config)
        for operands, expected, name in prepared:
            for mode, slots in (("clean", 132), ("dirty", (1, 7, 66, 200)[number % 4])):
                fault, cases = run_paged(kernel, problem, operands, expected, mode, slots), cases + 1
                if fault:
                    failures.append(f"{problem} {config} {name} {mode} {slots} slots: {fault}")
    return cases, failures


def check_metadata() -> tuple[int, list[str]]:
    """Compare schedules with those of the CPU, for many slots and lengths."""
    cases, failures = 0, []
    generator = torch.Generator().manual_seed(0)
    for shape in ((1,), (7,), (64, 2), (1500, 1), (3000,)):
        for most in (0, 64, 100000):
            lengths = torch.randint(0, most + 1, shape, generator=generator, dtype=torch.int32)
            for slots in (1, 66, 132, 4000):
                wanted = deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, slots)
                found = deep_gemm.get_paged_mqa_logits_metadata(lengths.cuda(), 64, slots).cpu()
                cases += 1
                if not torch.equal(wanted, found):
                    failures.append(f"metadata of {shape} up to {most}, {slots} slots")
    return cases, failures


def check_public_ops() -> tuple[int, list[str]]:
    """Call the public ops: strided and misplaced operands, ranges outside the keys, empty operands, streams."""
    checks = {
        "strided": check_strided, "ranges outside": check_cut_ranges, "empty": check_empty, "stream": check_stream,
        "graph": check_graph, "repeats": check_repeats, "indices": check_indices, "poison": check_poison,
        "large": check_large,
    }  # fmt: skip
    failures = []
    for name, check in checks.items():
        try:
            fault = check()
        except Exception as error:  # one promise that fails leaves the others to be checked
            fault = f"{type(error).__name__}: {error}"
        if fault:
            failures.append(f"{name}: {fault}")
    return len(checks), failures


def check_strided() -> str | None:
    """Slices of wider tensors give the logits of contiguous ones."""
    operands = make_prefill(40, 300, 32, 64, device=DEVICE)
    wide_q = torch.zeros(40, 40, 64, device=DEVICE).to(torch.float8_e4m3fn)
    wide_q[:, :32] = operands["q"]
    keys, scales = operands["kv"]
    wide_keys = torch.zeros(300, 96, device=DEVICE).to(torch.float8_e4m3fn)
    wide_keys[:, :64] = keys
    wide_weights = torch.full((40, 36), float("nan"), device=DEVICE)
    wide_weights[:, :32] = operands["weights"]
    changed = operands | {"q": wide_q[:, :32], "kv": (wide_keys[:, :64], scales), "weights": wide_weights[:, :32]}
    return expect_prefill(operands).find_fault(deep_gemm.fp8_mqa_logits(**changed), is_clean=True)


def check_cut_ranges() -> str | None:
    """Ranges that leave 0..n are cut."""
    operands = make_prefill(3, 100, 32, 64, device=DEVICE)
    operands["cu_seq_len_k_start"] = torch.tensor([-5, 10, 90], dtype=torch.int32, device=DEVICE)
    operands["cu_seq_len_k_end"] = torch.tensor([8, 9999, 20], dtype=torch.int32, device=DEVICE)
    return expect_prefill(operands).find_fault(deep_gemm.fp8_mqa_logits(**operands), is_clean=True)


def check_empty() -> str | None:
    """No tokens, no keys, no columns, no pages."""
    for tokens, n in ((0, 70), (5, 0)):
        if deep_gemm.fp8_mqa_logits(**make_prefill(tokens, n, 32, 64, device=DEVICE)).shape != (tokens, n):
            return f"{tokens} tokens, {n} keys"
    operands = make_paged([0, 0], 2, 32, 64, device=DEVICE)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(operands["context_lens"], 64, 132)
    for changes in ({}, {"block_table": operands["block_table"][:, :0]}, {"kv_cache": operands["kv_cache"][:0]}):
        logits = deep_gemm.fp8_paged_mqa_logits(
            **operands | changes, schedule_meta=schedule, max_context_len=70, clean_logits=True
        )
        if not (logits == float("-inf")).all():
            return f"lengths of 0 with {list(changes)}"
    return None


def call_paged(operands: dict, columns: int, **options) -> torch.Tensor:
    """Call the public op of pages with a schedule for the device."""
    schedule = deep_gemm.get_paged_mqa_logits_metadata(operands["context_lens"], operands["kv_cache"].shape[1], 132)
    return deep_gemm.fp8_paged_mqa_logits(
        **operands, schedule_meta=schedule, max_context_len=columns, **{"clean_logits": True} | options
    )


def check_stream() -> str | None:
    """A stream that is passed is the one that is used."""
    operands, stream = make_prefill(64, 700, 64, 128, device=DEVICE), torch.cuda.Stream()
    torch.cuda.synchronize()
    logits = deep_gemm.fp8_mqa_logits(**operands, stream=stream)
    stream.synchronize()
    return expect_prefill(operands).find_fault(logits, is_clean=True)


def check_graph() -> str | None:
    """A captured call follows lengths that change between replays."""
    operands = make_paged([700, 64, 300], 2, 64, 128, device=DEVICE)
    call_paged(operands, 720)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = call_paged(operands, 720)
    for lengths in ([700, 64, 300], [0, 1, 299], [33, 0, 0]):
        operands["context_lens"].copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        if fault := expect_paged(operands, 720).find_fault(logits, is_clean=True):
            return f"{lengths}: {fault}"
    return None


def check_repeats() -> str | None:
    """The same call gives the same bits, also beside other work."""
    operands, paged = make_prefill(300, 3000, 64, 128, device=DEVICE), make_paged([900] * 40, 2, 64, 128, device=DEVICE)
    for call in (lambda: deep_gemm.fp8_mqa_logits(**operands), lambda: call_paged(paged, 900)):
        first, other, noise = call(), torch.cuda.Stream(), torch.randn(2048, 2048, device=DEVICE)
        for _ in range(100):
            with torch.cuda.stream(other):
                noise @ noise
            if not torch.equal(call(), first):
                return "bits differ between calls"
    return None


def check_indices() -> str | None:
    """Rows of one request, with lengths and pages of their own, as upstream's callers pass them."""
    operands = make_paged([[100], [101], [102], [40]], 1, 32, 64, device=DEVICE)
    operands["block_table"][1:3] = operands["block_table"][2]
    operands["block_table"][0] = operands["block_table"][2]
    indices = torch.tensor([0, 0, 0, 1], dtype=torch.int32, device=DEVICE)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(operands["context_lens"], 64, 132, indices=indices)
    logits = deep_gemm.fp8_fp4_paged_mqa_logits(
        **operands | {"q": (operands["q"], None)}, schedule_meta=schedule, max_context_len=110, clean_logits=True,
        indices=indices,
    )  # fmt: skip
    return expect_paged(operands, 110).find_fault(logits, is_clean=True)


def check_large() -> str | None:
    """More logits than L2 keeps: their pages are loaded without a hint."""
    sequences, length = LARGE
    problem = _C.Problem(
        "fp8_paged_mqa_logits", 2 * sequences, length, 128, heads=32, next_n=2, block_kv=64, d_dtype="fp32"
    )
    config = deep_gemm.get_best_config(problem)
    if config.block_n != LARGE_TILE:
        return f"{config} was chosen, whose loads have no hint; give LARGE another shape"
    operands = make_paged([length] * sequences, 2, 32, 128, device=DEVICE)
    return expect_paged(operands, length).find_fault(call_paged(operands, length), is_clean=True)


def check_poison() -> str | None:
    """NaN in keys and scales that no token sees reaches no logit."""
    operands = make_prefill(20, 200, 32, 64, device=DEVICE)
    operands["cu_seq_len_k_start"].fill_(70)
    operands["cu_seq_len_k_end"].fill_(130)
    expected, (keys, scales) = expect_prefill(operands), operands["kv"]
    for part in (slice(0, 70), slice(130, 200)):
        keys.view(torch.uint8)[part], scales[part] = 0x7F, float("nan")
    return expected.find_fault(deep_gemm.fp8_mqa_logits(**operands), is_clean=True)


def logits_jobs(world: object = None) -> list[tuple]:
    """Return (name, job) of every job."""
    jobs = [("metadata: fp8_paged_mqa_logits", check_metadata), ("public: fp8_mqa_logits", check_public_ops)]
    for op, check in (("fp8_mqa_logits", check_prefill_configs), ("fp8_paged_mqa_logits", check_paged_configs)):
        for problem in list_problems(op):
            jobs.append((f"configs: {op} {problem}", functools.partial(check, problem)))
    return jobs


def time_calls() -> Iterator[tuple[str, float]]:
    """Yield (what, microseconds) of some calls: kernels, and host time of a call of decode size."""
    prefill = make_prefill(2048, 8192, 64, 128, device=DEVICE, ranges="causal")
    decode = make_paged([8192] * 64, 1, 64, 128, device=DEVICE)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(decode["context_lens"], 64, 132)
    calls = {
        "prefill 2048 x 8192, 64 heads of 128": lambda: deep_gemm.fp8_mqa_logits(**prefill, clean_logits=False),
        "paged 64 x 8192, 64 heads of 128": lambda: deep_gemm.fp8_paged_mqa_logits(
            **decode, schedule_meta=schedule, max_context_len=8192
        ),
    }
    for name, call in calls.items():
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                call()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        yield name, start.elapsed_time(end) * 1e3 / 20
    small = make_paged([64] * 4, 1, 64, 128, device=DEVICE)
    few = deep_gemm.get_paged_mqa_logits_metadata(small["context_lens"], 64, 132)
    for name, call in (
        ("host, paged", lambda: deep_gemm.fp8_paged_mqa_logits(*small.values(), few, 64)),
        ("host, metadata", lambda: deep_gemm.get_paged_mqa_logits_metadata(small["context_lens"], 64, 132)),
    ):
        best = float("inf")
        for _ in range(20):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                call()
            best = min(best, (time.perf_counter() - begin) * 1e4)
        yield name, best


def main(arguments: list[str]) -> int:
    """Compile, run all jobs, time some calls, write the JSON; 1 where something failed."""
    kernels = list_kernels()
    start = time.monotonic()
    failures = compile_all(kernels)
    print(f"{len(kernels)} kernels compiled in {time.monotonic() - start:.0f} s, {len(failures)} failed", flush=True)
    report: dict = {"compile_failures": failures, "jobs": {}}
    for name, job in logits_jobs():
        try:
            cases, found = job()
        except Exception as error:
            cases, found = 0, [f"{type(error).__name__}: {error}"]
        report["jobs"][name] = {"cases": cases, "failures": found[:20], "failed": len(found)}
        failures += found
        print(f"{cases:6} cases {len(found):5} failed  {name} {found[0][:300] if found else ''}", flush=True)
    report["times_us"] = dict(time_calls())
    print("\n".join(f"{us:9.2f} us  {name}" for name, us in report["times_us"].items()))
    with open(arguments[0], "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
