"""Attention index logits in plain torch: the reference of the CPU, the shapes of results, and the schedule of paged
calls.

    logits[i, j] = (sum over heads h of relu(q[i, h] . k[j]) * weights[i, h]) * scale[j]

for the positions j that token i sees. Sums are FP32; the result is rounded to its type once.
"""

import torch

from deep_gemm import _C, planned
from deep_gemm.arguments import shorten, to_integer
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError
from deep_gemm.operands import check_tensor, is_fake, record

#: Elements that rows of logits start at multiples of.
PITCH_UNIT = 64
#: Positions in a unit of the schedule of paged calls.
UNIT = 64
PAGE_SIZES = _C.PAGE_SIZES
_MAX_SLOTS = 1 << 20
_MAX_UNITS = (1 << 32) - 1  # mqa_metadata.cuh adds them up in 32 bits, and the schedule holds them
_THREADS = 1024  # mqa_metadata.cuh


def get_paged_mqa_logits_metadata(
    context_lens: torch.Tensor, block_kv: int, num_sms: int, indices: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the schedule of fp8_paged_mqa_logits: where the share of each of `num_sms` slots begins, so that all have
    as many keys.

    The op takes a schedule of any number of slots; as many as it may use SMs is best. Lengths are read on the device,
    so a CUDA graph may be replayed with others.

    Args:
        context_lens: int32 [sequences], or [sequences, next_n] with a length for each token, each row contiguous.
        block_kv: keys in a page, 32 or 64. num_sms: slots, at least 1.
        indices: int32 [sequences] or None: which rows are of one request; the schedule does not depend on it.

    Returns: int32 [num_sms + 1, 2], contiguous: (sequence, unit of 64 positions in it), and in the last row (sequences,
        units of all, which are fewer than 2^32: 2^38 positions).

    Raises: ArgumentError, also for more units than that, on the CPU alone: lengths on a GPU are not read by the host.
        DtypeError, ShapeError, LayoutError, DeviceError.
    """
    schedule = _schedule(context_lens, block_kv, num_sms, indices)
    if schedule is not NotImplemented:
        return schedule
    num_sms = _check_lengths(context_lens, block_kv, num_sms, indices)
    if is_fake(context_lens):
        recorded = record("get_paged_mqa_logits_metadata", context_lens, block_kv, num_sms, indices)
        return context_lens.new_empty((num_sms + 1, 2)) if recorded is None else recorded
    if context_lens.is_cuda:
        return planned.run(_plan_schedule(context_lens, block_kv, num_sms, indices), context_lens)
    schedule = context_lens.new_empty((num_sms + 1, 2))
    return schedule if context_lens.is_meta else schedule.copy_(compute_schedule(context_lens, num_sms))


def _plan_schedule(
    context_lens: torch.Tensor, block_kv: int, num_sms: int, indices: torch.Tensor | None
) -> planned.Plan:
    _check_lengths(context_lens, block_kv, num_sms, indices)
    sequences, next_n = context_lens.shape[0], context_lens.shape[1] if context_lens.ndim == 2 else 1
    numbers = context_lens.stride(0), sequences, next_n, num_sms
    launch = planned.Launch(
        planned.get_kernel("mqa_metadata", _THREADS), (1,), (planned.argument(0), planned.memory(0), *numbers)
    )
    memory = planned.Memory((num_sms + 1, 2), (2, 1), torch.int32)
    return planned.Plan((launch,), (memory,), planned.memory(0)[:1])


_schedule = planned.make_call("get_paged_mqa_logits_metadata", _plan_schedule)


def compute_schedule(context_lens: torch.Tensor, num_slots: int) -> torch.Tensor:
    """Return what get_paged_mqa_logits_metadata returns, on the CPU."""
    # A sequence without tokens has no units; amax takes no empty dim.
    columns = context_lens.clamp(min=0).view(len(context_lens), -1) if context_lens.numel() else None
    most = context_lens.new_zeros(len(context_lens)) if columns is None else columns.amax(dim=1)
    units = (most.long() + UNIT - 1) // UNIT
    total, ends = int(units.sum()), units.cumsum(0)
    if total > _MAX_UNITS:
        raise ArgumentError(
            f"context_lens: all sequences have {total} units of {UNIT} positions, which must be fewer than 2^32; make a"
            " schedule for fewer sequences at a time."
        )
    begins = torch.arange(num_slots, dtype=torch.int64, device=units.device) * total // num_slots
    sequences = torch.searchsorted(ends, begins, right=True)
    before = torch.cat([ends.new_zeros(1), ends])[sequences]
    slots = torch.stack([sequences, begins - before], dim=1)
    return torch.cat([slots, slots.new_tensor([[len(units), total]])]).int()


def _check_lengths(context_lens: torch.Tensor, block_kv: int, num_sms: int, indices: torch.Tensor | None) -> int:
    """Check the arguments of a schedule; return its number of slots."""
    for name, tensor in (("context_lens", context_lens), ("indices", indices)):
        if tensor is not None or name == "context_lens":
            _check_integers(name, tensor)
    if context_lens.ndim not in (1, 2):
        raise ShapeError(
            f"context_lens.ndim = {context_lens.ndim}: must be [sequences] or [sequences, next_n]; reshape it."
        )
    if context_lens.ndim == 2 and context_lens.shape[1] > 1 and context_lens.stride(1) != 1:
        raise LayoutError(
            f"context_lens.stride(1) = {context_lens.stride(1)}: the lengths of a sequence must be contiguous; pass"
            " context_lens.contiguous()."
        )
    if indices is not None and indices.shape != context_lens.shape[:1]:
        raise ShapeError(
            f"indices.shape = {list(indices.shape)}: must be [sequences] = [{context_lens.shape[0]}]; reshape or slice"
            " it."
        )
    if indices is not None and indices.device != context_lens.device:
        raise DeviceError(
            f"indices is on {indices.device} and context_lens on {context_lens.device}: all operands must be on one"
            " device; move them with .to(...)."
        )
    if to_integer(block_kv) not in PAGE_SIZES:
        raise ArgumentError(f"block_kv = {shorten(block_kv)}: must be 32 or 64, the keys in a page; pass one of them.")
    num_slots = to_integer(num_sms)
    if num_slots is None or not 1 <= num_slots <= _MAX_SLOTS:
        raise ArgumentError(
            f"num_sms = {shorten(num_sms)}: must be an int >= 1; pass deep_gemm.get_num_sms() of a machine with the GPU"
            " (it is 0 where there is none), else any number, e.g. 132."
        )
    return num_slots


def _check_integers(name: str, tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{name} = an object of type {type(tensor).__qualname__}: must be a torch.Tensor.")
    check_tensor(name, tensor)
    if tensor.dtype != torch.int32:
        raise DtypeError(f"{name}.dtype = {tensor.dtype}: must be torch.int32; convert it with .int().")


def make_fake(name: str, *operands) -> torch.Tensor:
    """Return what a call of the op `name` returns, for fake operands with symbolic sizes; operands are those of its
    schema.
    """
    if name == "get_paged_mqa_logits_metadata":
        return operands[0].new_empty((operands[2] + 1, 2))
    is_paged = name == "fp8_paged_mqa_logits"
    q, keys = operands[:2]
    weights, rest = (operands[2], operands[6:]) if is_paged else (operands[3], operands[6:])
    rows = q.shape[0] * q.shape[1] if is_paged else q.shape[0]
    width = rest[0] if is_paged else (rest[1] if len(rest) > 1 else 0)
    columns = width if is_paged or width > 0 else keys.shape[0]
    dtype = rest[2] if len(rest) > 2 and rest[2] is not None else torch.float32
    pitch = (columns + PITCH_UNIT - 1) // PITCH_UNIT * PITCH_UNIT
    return weights.new_empty_strided((rows, columns), (pitch, 1), dtype=dtype)


@torch.no_grad()
def compute_logits(
    q: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return the logits `dtype` [m, n] of all tokens and keys.

    Args:
        q: float8_e4m3fn [m, heads, head_dim]. keys: float8_e4m3fn [n, head_dim]. scales: float32 [n].
        weights: float32 [m, heads].
    """
    total = torch.zeros(q.shape[0], keys.shape[0], dtype=torch.float32, device=q.device)
    wide = keys.float().t()
    for head in range(q.shape[1]):
        total.addcmul_((q[:, head].float() @ wide).relu_(), weights[:, head, None])
    return total.mul_(scales).to(dtype)


def split_cache(kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys float8_e4m3fn [pages, block_kv, head_dim] and the scales float32 [pages, block_kv] of a cache
    uint8 [pages, block_kv, 1, head_dim + 4], whose pages hold all keys and then all scales.
    """
    pages, block_kv, _, width = kv_cache.shape
    flat = kv_cache.as_strided((pages, block_kv * width), (kv_cache.stride(0), 1))
    keys, scales = flat.split((block_kv * (width - 4), block_kv * 4), dim=1)
    keys = keys.contiguous().view(torch.float8_e4m3fn).view(pages, block_kv, width - 4)
    return keys, scales.contiguous().view(torch.float32)


def get_row_ends(context_lens: torch.Tensor, next_n: int) -> torch.Tensor:
    """Return int32 [sequences * next_n]: how many positions each token sees.

    Args:
        context_lens: int32 [sequences], of which token t sees next_n - 1 - t positions less; or [sequences, next_n].
    """
    if context_lens.ndim == 2:
        return context_lens.flatten()
    offsets = torch.arange(1 - next_n, 1, dtype=torch.int32, device=context_lens.device)
    return (context_lens[:, None] + offsets).flatten()


@torch.no_grad()
def fp8_mqa_logits(
    q: torch.Tensor,
    kv: torch.Tensor,
    scale_kv: torch.Tensor,
    weights: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    d: torch.Tensor,
    *,
    is_clean: bool,
    is_compressed: bool,
) -> None:
    """Compute the logits of tokens over the keys of one matrix; token i sees the positions starts[i] <= j < ends[i].

    Args:
        q: float8_e4m3fn [m, heads, head_dim]. kv: float8_e4m3fn [n, head_dim]. scale_kv: float32 [n].
        weights: float32 [m, heads]. starts, ends: int32 [m].
        d: bfloat16 or float32 [m, n], written; compressed: [m, columns], whose row i begins at position starts[i].
        is_clean: positions that a token does not see become -inf, else 0; compressed rows are never cleaned.
    """
    logits = compute_logits(q, kv, scale_kv, weights, d.dtype)
    starts, ends = starts.clamp(min=0), ends.clamp(max=kv.shape[0])
    if is_compressed:
        _store_compressed(logits, d, starts, ends)
        return
    positions = torch.arange(kv.shape[0], device=d.device)
    is_seen = (positions >= starts[:, None]) & (positions < ends[:, None])
    d.copy_(logits.masked_fill_(~is_seen, _get_unseen(is_clean)))


@torch.no_grad()
def fp8_paged_mqa_logits(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    d: torch.Tensor,
    *,
    is_clean: bool,
) -> None:
    """Compute the logits of the last tokens of sequences over keys in pages.

    Args:
        q: float8_e4m3fn [sequences, next_n, heads, head_dim].
        kv_cache: uint8 [pages, block_kv, 1, head_dim + 4]; a page holds all its keys and then their float32 scales.
        weights: float32 [sequences * next_n, heads]. context_lens: int32 [sequences] or [sequences, next_n].
        block_table: int32 [sequences, pages of a sequence]. d: bfloat16 or float32 [sequences * next_n, n], written.
        is_clean: positions that a token does not see become -inf, else 0.
    """
    sequences, next_n = q.shape[:2]
    keys, scales = split_cache(kv_cache)
    limit = min(d.shape[1], block_table.shape[1] * kv_cache.shape[1])
    ends = get_row_ends(context_lens, next_n).clamp(0, limit).tolist()
    d.fill_(_get_unseen(is_clean))
    for sequence in range(sequences):
        rows = range(sequence * next_n, (sequence + 1) * next_n)
        most = max(ends[row] for row in rows)
        pages = _take_pages(block_table, sequence, -(-most // kv_cache.shape[1]), len(keys))
        mine = keys.view(torch.uint8)[pages].view(keys.dtype).flatten(0, 1)
        logits = compute_logits(q[sequence], mine, scales[pages].flatten(), weights[rows.start : rows.stop], d.dtype)
        for row in rows:
            d[row, : ends[row]] = logits[row - rows.start, : ends[row]]


def _take_pages(block_table: torch.Tensor, sequence: int, count: int, num_pages: int) -> torch.Tensor:
    """Return int64 [count]: the first pages of a sequence. Kernels do not check them.

    Raises: ArgumentError for a page that the cache does not have.
    """
    pages = block_table[sequence, :count].long()
    wrong = ((pages < 0) | (pages >= num_pages)).nonzero().flatten().tolist()
    if wrong:
        place = wrong[0]
        raise ArgumentError(
            f"block_table[{sequence}, {place}] = {int(pages[place])}: must be a page of kv_cache, 0 to {num_pages - 1},"
            " where the length of the sequence reaches; correct the table or context_lens."
        )
    return pages


def _store_compressed(logits: torch.Tensor, d: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> None:
    d.zero_()
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        seen = logits[row, start : max(start, end)][: d.shape[1]]
        d[row, : len(seen)] = seen


def _get_unseen(is_clean: bool) -> float:
    return float("-inf") if is_clean else 0.0
