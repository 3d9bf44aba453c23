"""Attention index logits on the emulator, with the operands and references of the GPU suite."""

from typing import NamedTuple

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import LaunchError
from deep_gemm.jit import generator
from tests.gpu.logits_operands import Expected, compress, expect_paged, expect_prefill, make_paged, make_prefill

from .build import Defects, build_kernel
from .host import HostKernel

#: Elements around a result that nothing may touch.
GUARD = 256
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Logits(NamedTuple):
    """Logits by one kernel: of a prefill of (tokens, keys), or of pages for sequences of `lengths`."""

    config: tuple  # tokens and keys of a tile, stages
    heads: int = 8
    head_dim: int = 32
    d_dtype: str = "fp32"
    prefill: tuple[int, int] = (0, 0)
    ranges: str = "any"
    mode: str = "clean"  # or "dirty", "compressed" (prefill)
    lengths: tuple = ()
    next_n: int = 1
    block_kv: int = 64
    num_sms: int = 3

    @property
    def problem(self) -> "_C.Problem":
        """The problem that the kernel is made for."""
        fields = {"heads": self.heads, "d_dtype": self.d_dtype}
        if not self.lengths:
            return _C.Problem("fp8_mqa_logits", 64, 1024, self.head_dim, **fields)
        pages = {"next_n": self.next_n, "block_kv": self.block_kv}
        return _C.Problem("fp8_paged_mqa_logits", 64 * self.next_n, 1024, self.head_dim, **fields, **pages)

    def build(self, defects: Defects | None = None) -> bytes:
        """Return the kernel; `defects` as for build_kernel."""
        source = generator.generate_source(self.problem, _C.Config(*self.config))
        return build_kernel(source, generator.kernel_name(self.problem.op), defects)


def run_logits(logits: Logits, cubin: bytes) -> str:
    """Launch the kernel and compare; return what is wrong, or "". In the child process of the stub driver."""
    kernel = HostKernel(cubin, logits.problem, _C.Config(*logits.config))
    try:
        return (_run_paged if logits.lengths else _run_prefill)(logits, kernel) or ""
    except LaunchError as error:
        return str(error)


class _Guarded:
    """A result [rows, columns], poisoned with NaN, between guards."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype):
        pitch = -(-columns // 64) * 64
        self.memory = torch.full((rows * pitch + 2 * GUARD,), torch.nan, dtype=dtype)
        self.d = self.memory[GUARD : GUARD + rows * pitch].view(rows, pitch)[:, :columns]

    def find_fault(self, expected: Expected, is_clean: bool) -> str | None:
        fault = expected.find_fault(self.d, is_clean=is_clean)
        self.d.fill_(torch.nan)
        return fault or (None if bool(self.memory.isnan().all()) else "wrote outside of the result")


def _run_prefill(logits: Logits, kernel: HostKernel) -> str | None:
    operands = make_prefill(*logits.prefill, logits.heads, logits.head_dim, ranges=logits.ranges)
    (keys, scales), starts, ends = operands["kv"], operands["cu_seq_len_k_start"], operands["cu_seq_len_k_end"]
    columns, expected = len(keys), expect_prefill(operands)
    if logits.mode == "compressed":
        columns = max(int((ends - starts).max()), 1)
        expected = compress(expected, starts, columns)
        visible = torch.arange(columns) < (ends - starts)[:, None]
        expected = expected._replace(logits=expected.logits.masked_fill(~visible, float("-inf")))
    out = _Guarded(len(starts), columns, DTYPES[logits.d_dtype])
    kernel.launch_logits(
        operands["q"], keys, scales, operands["weights"], starts, ends, out.d, is_clean=logits.mode == "clean",
        is_compressed=logits.mode == "compressed", num_sms=logits.num_sms, stream=0,
    )  # fmt: skip
    return out.find_fault(expected, logits.mode == "clean")


def _run_paged(logits: Logits, kernel: HostKernel) -> str | None:
    operands = make_paged(list(logits.lengths), logits.next_n, logits.heads, logits.head_dim, logits.block_kv)
    expected = expect_paged(operands, int(operands["context_lens"].max()) + 3)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(operands["context_lens"], logits.block_kv, logits.num_sms)
    out = _Guarded(len(operands["weights"]), expected.logits.shape[1], DTYPES[logits.d_dtype])
    kernel.launch_logits(
        operands["q"], operands["kv_cache"], None, operands["weights"], operands["context_lens"],
        operands["block_table"], out.d, schedule=schedule, is_clean=logits.mode == "clean", num_sms=logits.num_sms,
        stream=0,
    )  # fmt: skip
    return out.find_fault(expected, logits.mode == "clean")
