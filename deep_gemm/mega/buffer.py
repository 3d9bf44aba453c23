"""The memory that the GPUs of a layer of experts share."""

import contextlib
import math
from typing import Any, NamedTuple

import torch

from deep_gemm.arguments import check_integer, shorten
from deep_gemm.errors import ArgumentError, DeviceError, ShapeError
from deep_gemm.group_rows import count_most_rows
from deep_gemm.layout import get_mk_alignment_for_contiguous_layout
from deep_gemm.quantize import SCALE_BLOCK, align, ceil_div
from deep_gemm.recorded_calls import MAX_CHOICES, ExpertLayer

#: Choices of all GPUs' tokens that take part at the same time: any routing may give them all to one GPU.
MOST_CHOICES = 65536
#: Of the tokens of a GPU, and the bytes at which a region starts.
TOKEN_ALIGNMENT, REGION_ALIGNMENT = 128, 256
#: Stages of a step: all buffers are filled, and all rows of experts are made.
FILLED, MADE = 0, 1
#: The share of a buffer that its GPU is taken to fill at least, one in so many: tiles for a quarter of the rows are as
#: fast for all of them (32 experts of 32 rows, H200: 252 and 124 us by tiles of 16 rows, 246 and 125 by those chosen).
LEAST_FILLED = 4
#: Seconds that a GPU waits for the others by default, as torch's collectives do: a process may compile before it comes.
TIMEOUT_S = 600.0
MOST_SECONDS = 10**6


class Region(NamedTuple):
    """A tensor in the memory of each GPU."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class SymmBuffer:
    """The memory of one GPU of a layer of experts, which the GPUs of its group read from each other.

    Args:
        group: a process group of torch.distributed with the GPUs of the layer, a process each, all on one host; of size
            1 it need not communicate. Every process makes its buffer with the same arguments, at the same time.
        num_experts: of all GPUs, a multiple of their number; GPU r has the experts from r * num_experts / GPUs on.
        num_max_tokens_per_rank: room for so many tokens of this GPU.
        num_topk: choices of a token, at most 32.
        hidden, intermediate_hidden: features of a token and inside an expert, multiples of 128.
        use_fp8_dispatch, activation, num_shared_experts, mma_type: what other kernels have; True, "swiglu", 0 and None,
            "fp8xfp8" or "fp8xfp4" here. The latter is what callers pass by default, and says on SM90 that tokens are
            FP8, as for DeepGEMM: weights are FP8, too.
        device: of the memory; by default the current GPU, or the CPU where there is none.
        timeout_s: the seconds after which a GPU that waits for the others gives up with an error; None waits for ever.
            Graphs keep what it was when they were captured. On the CPU the group's own limit holds.

    Attributes: `x` float8_e4m3fn [tokens, hidden], `x_sf` float32 [tokens, hidden / 128], `topk_idx` int64 and
        `topk_weights` float32 [tokens, num_topk]: what the caller fills; experts are counted over all GPUs, and -1 is
        none. `buffer`: all of it. `timeout_s` may be set.
    Raises: ArgumentError, ShapeError, DeviceError where GPUs cannot read each other's memory.
    """

    def __init__(
        self,
        group: Any,
        num_experts: int,
        num_max_tokens_per_rank: int,
        num_topk: int,
        hidden: int,
        intermediate_hidden: int,
        use_fp8_dispatch: bool | None = True,
        activation: str = "swiglu",
        num_shared_experts: int = 0,
        mma_type: str | None = None,
        *,
        device: torch.device | None = None,
        timeout_s: float | None = TIMEOUT_S,
    ):
        _check_form(use_fp8_dispatch, activation, num_shared_experts, mma_type)
        self.timeout_s = timeout_s
        self.group, self.rank, self.num_ranks = group, *_read_group(group)
        self.num_experts = check_integer("num_experts", num_experts, 1)
        self.num_max_tokens_per_rank = check_integer("num_max_tokens_per_rank", num_max_tokens_per_rank, 1)
        self.num_topk = check_integer("num_topk", num_topk, 1)
        self.hidden, self.intermediate_hidden = hidden, intermediate_hidden
        self._check()
        self.num_local_experts = self.num_experts // self.num_ranks
        self.alignment = get_mk_alignment_for_contiguous_layout()
        self.num_bytes, self._regions = self._lay_out()
        self.buffer, self.handle = self._take_memory(device or _find_device())
        self._copies: list[torch.Tensor] = []  # of the others' memory, on the CPU
        self.is_broken = False
        addresses = [self.buffer.data_ptr()] if self.handle is None else list(self.handle.buffer_ptrs)
        self.addresses = torch.tensor(addresses, dtype=torch.int64, device=self.buffer.device)
        self.x, self.x_sf, self.topk_idx, self.topk_weights = map(self.view, ("x", "x_sf", "topk_idx", "topk_weights"))
        self.topk_idx.fill_(-1)
        self.meet(FILLED)

    def _check(self) -> None:
        if self.num_experts % self.num_ranks:
            raise ShapeError(
                f"num_experts = {self.num_experts}: must be a multiple of the {self.num_ranks} processes of the group;"
                " pass all GPUs' experts."
            )
        if self.num_topk > MAX_CHOICES:
            raise ShapeError(f"num_topk = {self.num_topk}: must be at most {MAX_CHOICES}; use fewer choices.")
        for name in ("hidden", "intermediate_hidden"):
            size = check_integer(name, getattr(self, name), 1)
            if size % SCALE_BLOCK:
                raise ShapeError(f"{name} = {size}: must be a multiple of {SCALE_BLOCK}, which share a scale; pad it.")

    @property
    def timeout_s(self) -> float | None:
        """The seconds that this GPU waits for the others; None: for ever."""
        return self._timeout_ms / 1000 or None

    @timeout_s.setter
    def timeout_s(self, seconds: float | None) -> None:
        """Set it; None: for ever. Raises: ArgumentError."""
        self._timeout_ms = 0 if seconds is None else _to_milliseconds(seconds)  # torch waits for ever by 0

    @property
    def own_experts(self) -> slice:
        """The experts of this GPU among all."""
        return slice(self.rank * self.num_local_experts, (self.rank + 1) * self.num_local_experts)

    @property
    def tokens_at_once(self) -> int:
        """The tokens of each GPU whose experts work at the same time."""
        return count_tokens_at_once(self)

    @property
    def num_rows(self) -> int:
        """The rows that their choices can need on one GPU, with those between the experts."""
        return count_rows(self)

    def _lay_out(self) -> tuple[int, dict[str, Region]]:
        """Return the bytes of the memory and where each tensor lies."""
        tokens, hidden = self.num_max_tokens_per_rank, self.hidden
        tensors = {
            "x": ((tokens, hidden), torch.float8_e4m3fn),
            "x_sf": ((tokens, hidden // SCALE_BLOCK), torch.float32),
            "topk_idx": ((tokens, self.num_topk), torch.int64),
            "topk_weights": ((tokens, self.num_topk), torch.float32),
            "rows": ((self.num_rows, hidden), torch.bfloat16),
        }
        offset, regions = 0, {}
        for name, (shape, dtype) in tensors.items():
            regions[name] = Region(offset, shape, dtype)
            offset += align(math.prod(shape) * dtype.itemsize, REGION_ALIGNMENT)
        return offset, regions

    def _take_memory(self, device: torch.device) -> tuple[torch.Tensor, Any]:
        if self.num_ranks == 1 or device.type == "cpu":
            return torch.zeros(self.num_bytes, dtype=torch.uint8, device=device), None
        try:
            import torch.distributed._symmetric_memory as symmetric_memory

            buffer = symmetric_memory.empty(self.num_bytes, dtype=torch.uint8, device=device)
            handle = symmetric_memory.rendezvous(buffer, self.group)
        except torch.OutOfMemoryError:
            raise
        except (ImportError, RuntimeError) as error:
            raise DeviceError(
                f"group: its GPUs cannot read each other's memory ({str(error).splitlines()[0]}); use GPUs of one host"
                " that are linked, or the m_grouped ops with a dispatch of your own."
            ) from error
        if handle.buffer_ptrs[self.rank] != buffer.data_ptr():
            raise DeviceError(
                "buffer: torch shares memory that begins elsewhere; use a version of torch from 2.9 to 2.15."
            )
        buffer.zero_()
        return buffer, handle

    def offset(self, name: str) -> int:
        """Return the first byte of a tensor."""
        return self._regions[name].offset

    def view(self, name: str, rank: int | None = None) -> torch.Tensor:
        """Return a tensor of this GPU, or of the GPU of a process; on the CPU, that of another is as it was when all
        met last.
        """
        offset, shape, dtype = self._regions[name]
        if rank in (None, self.rank):
            memory = self.buffer
        elif self.handle is None:
            memory = self._copies[rank]
        else:
            return self.handle.get_buffer(rank, shape, dtype, offset // dtype.itemsize)
        return memory[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def meet(self, stage: int) -> None:
        """Wait, on the device, for what all GPUs of the group have enqueued before they meet at a stage: FILLED, or
        MADE. A GPU that has missed one never takes another stage for it. Whoever has waited for `timeout_s` stops with
        an error of CUDA, which names the missing GPU: nothing else runs on this GPU in this process.
        """
        if self.handle is not None:
            self.handle.barrier(channel=stage, timeout_ms=self._timeout_ms)
        elif self.num_ranks > 1:
            import torch.distributed as dist

            self._copies = [torch.empty_like(self.buffer) for _ in range(self.num_ranks)]
            dist.all_gather(self._copies, self.buffer, group=self.group)

    def destroy(self) -> None:
        """Give the memory back; the buffer is of no use afterwards."""
        with contextlib.suppress(AttributeError):
            del self.x, self.x_sf, self.topk_idx, self.topk_weights, self.buffer, self.addresses
        self.handle, self.group, self._copies = None, None, []


def count_tokens_at_once(sizes: SymmBuffer | ExpertLayer) -> int:
    """Return tokens_at_once of a buffer of these sizes."""
    return min(sizes.num_max_tokens_per_rank, max(MOST_CHOICES // (sizes.num_ranks * sizes.num_topk), 1))


def count_rows(sizes: SymmBuffer | ExpertLayer) -> int:
    """Return num_rows of a buffer of these sizes."""
    choices = sizes.num_ranks * count_tokens_at_once(sizes) * sizes.num_topk
    return count_most_rows(choices, sizes.num_local_experts, sizes.alignment)


def count_expected_rows(sizes: SymmBuffer | ExpertLayer, tokens: int) -> int:
    """Return the rows of an expert on average where every GPU has as many tokens as this one, or as fill LEAST_FILLED
    of its buffer of these sizes: a hint for tiles, which a GPU without tokens must not choose for none.
    """
    least = ceil_div(count_tokens_at_once(sizes), LEAST_FILLED)
    return ceil_div(max(tokens, least) * sizes.num_topk, sizes.num_local_experts)


def get_symm_buffer_for_mega_moe(
    group: Any,
    num_experts: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    intermediate_hidden: int,
    use_fp8_dispatch: bool | None = True,
    activation: str = "swiglu",
    num_shared_experts: int = 0,
    mma_type: str | None = None,
) -> SymmBuffer:
    """Return a SymmBuffer with these arguments, the tokens rounded up to a multiple of 128.

    Raises: as SymmBuffer.
    """
    tokens = align(check_integer("num_max_tokens_per_rank", num_max_tokens_per_rank, 1), TOKEN_ALIGNMENT)
    return SymmBuffer(
        group, num_experts, tokens, num_topk, hidden, intermediate_hidden, use_fp8_dispatch, activation,
        num_shared_experts, mma_type,
    )  # fmt: skip


def _to_milliseconds(seconds: Any) -> int:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 1e-3 <= seconds <= MOST_SECONDS:
        raise ArgumentError(
            f"timeout_s = {shorten(seconds)}: must be from 0.001 to {MOST_SECONDS} seconds; pass None to wait for ever."
        )
    return int(seconds * 1000)


def _find_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _read_group(group: Any) -> tuple[int, int]:
    try:
        return group.rank(), group.size()
    except (AttributeError, TypeError):
        raise ArgumentError(
            f"group = {shorten(group)}: must be a process group; pass that of torch.distributed.new_group."
        ) from None


def _check_form(use_fp8_dispatch: Any, activation: Any, num_shared_experts: Any, mma_type: Any) -> None:
    """Refuse what other kernels have."""
    wanted = {
        "use_fp8_dispatch": (use_fp8_dispatch, (True, None)), "activation": (activation, ("swiglu",)),
        "num_shared_experts": (num_shared_experts, (0,)), "mma_type": (mma_type, (None, "fp8xfp8", "fp8xfp4")),
    }  # fmt: skip
    for name, (value, allowed) in wanted.items():
        if type(value) not in (bool, int, str, type(None)) or value not in allowed:
            raise ArgumentError(
                f"{name} = {shorten(value)}: no layer of SM90 has it; pass {' or '.join(map(repr, allowed))}."
            )
