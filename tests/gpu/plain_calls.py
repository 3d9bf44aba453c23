"""Calls of the attention logits, and of the functions that quantise or lay out; see op_calls.py."""

import functools
from collections.abc import Callable
from functools import partial

import torch

import deep_gemm
from deep_gemm.ops import Op

from .logits_operands import make_paged, make_prefill
from .mega_operands import BOUND, FakeGroup, choose, fill, make_weights, prepare
from .op_calls import OpCall, Operands, Outputs, nan, normal

SLOTS, COLUMNS = 132, 400
#: (tokens, keys, heads, head_dim, ranges) of prefills.
PREFILLS = (
    (40, 300, 8, 32, "any"),
    (70, 700, 64, 128, "causal"),
    (33, 500, 32, 64, "empty"),
    (17, 65, 128, 128, "any"),
)
#: (lengths, next_n, heads, head_dim, block_kv) of pages.
PAGES = (
    ((1, 65, 0, 300), 1, 64, 128, 64),
    ((33, 129, 400), 2, 32, 64, 32),
    ((250, 0, 64), 4, 64, 64, 64),
    ((9, 200), 3, 8, 32, 32),
)
#: The casts differ from the CPU's by an FP8 step where its exponential does.
CAST_BOUND = 1e-5
#: Experts, room for tokens, choices, hidden and intermediate features.
MEGA_SIZES, MEGA_TOKENS = (6, 128, 3, 512, 256), 70


def list_prefill(op: Op) -> list[OpCall]:
    """Return whole, cleaned logits of several shapes and both dtypes."""
    calls = []
    for tokens, n, heads, head_dim, ranges in PREFILLS:
        make = partial(make_prefill, tokens, n, heads, head_dim, ranges=ranges)
        for dtype in (torch.float32, torch.bfloat16):
            run = partial(_run_logits, logits_dtype=dtype)
            calls.append(OpCall(op.name, f"{heads}x{head_dim} {str(dtype)[6:]}", op.kind, make, run))
    return calls


def _run_logits(function: Callable, operands: Operands, **options) -> Outputs:
    return (function(**operands, clean_logits=True, **options),)


def list_paged(op: Op) -> list[OpCall]:
    """Return cleaned logits of pages, with lengths by sequence and by token."""
    calls = []
    for lengths, next_n, heads, head_dim, block_kv in PAGES:
        for is_by_token in (False, True):
            given = [[max(length - next_n + t + 1, 0) for t in range(next_n)] for length in lengths]
            make = partial(_make_paged, given if is_by_token else list(lengths), next_n, heads, head_dim, block_kv)
            what = f"{heads}x{head_dim} next_n {next_n} pages of {block_kv}{' by token' if is_by_token else ''}"
            run = partial(_run_logits, max_context_len=COLUMNS)
            calls.append(OpCall(op.name, what, op.kind, make, run))
    return calls


def _make_paged(lengths: list, *sizes: int) -> Operands:
    operands = make_paged(lengths, *sizes)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(operands["context_lens"], sizes[-1], SLOTS)
    return operands | {"schedule_meta": schedule}


def list_metadata(op: Op) -> list[OpCall]:
    """Return schedules of few and of many sequences, with lengths by sequence and by token; exact."""
    calls = []
    for shape in ((1,), (64, 2), (1500,)):
        for slots in (66, SLOTS):
            run = partial(_run_metadata, slots)
            make = partial(_make_lengths, shape)
            calls.append(OpCall(op.name, f"{shape} {slots} slots", "", make, run, 0.0, ("mqa_metadata",)))
    return calls


def _make_lengths(shape: tuple[int, ...]) -> Operands:
    generator = torch.Generator().manual_seed(0)
    return {"context_lens": torch.randint(0, 100000, shape, generator=generator, dtype=torch.int32)}


def _run_metadata(slots: int, function: Callable, operands: Operands) -> Outputs:
    return (function(operands["context_lens"], 64, slots),)


LOGITS_MAKERS = {"logits": list_prefill, "paged_logits": list_paged, "metadata": list_metadata}


def list_plain() -> list[OpCall]:
    """Return the calls of the functions that quantise or lay out, each path of a kernel once."""
    others = [_make_transpose(), _make_swiglu_grad(), *_list_places(), *_list_rows(), _make_mega()]
    return [*_list_casts(), *_list_blocks(), *_list_layouts(), *others]


def _call(name: str, what: str, kernel: str, make: Callable, *arguments, bound: float = 0.0, **options) -> OpCall:
    def run(function: Callable, operands: Operands) -> Outputs:
        found = function(*operands.values(), *arguments, **options)
        return found if isinstance(found, tuple) else (found,)

    return OpCall(name, what, "", make, run, bound, (kernel,))


def _list_casts() -> list[OpCall]:
    """Return casts per token, plain and of gated activations, for groups with masks too."""
    calls = []
    for name in ("per_token_cast_to_fp8", "swiglu_per_token_cast_to_fp8"):
        for dtype in (torch.bfloat16, torch.float32):
            for is_ue8m0, layout in ((False, "row_major"), (True, "mn_major")):
                make = partial(_make_values, 300, 1024, dtype=dtype)
                what = f"{str(dtype)[6:]} {'ue8m0' if is_ue8m0 else 'fp32'} {layout}"
                calls.append(_call(name, what, "cast_rows", make, is_ue8m0, bound=CAST_BOUND, scales=layout))
        calls.append(OpCall(name, "masked", "", _make_masked, _run_masked, CAST_BOUND, ("cast_rows",)))
    narrow, keys = partial(_make_values, 129, 1000), partial(_make_values, 300, 128)
    return [
        *calls,
        _call("per_token_cast_to_fp8", "gran_k 32", "cast_rows", narrow, False, 32, bound=CAST_BOUND),
        _call("per_custom_dims_cast_to_fp8", "keys", "cast_rows", keys, (0,), True, bound=CAST_BOUND),
    ]


def _make_values(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Operands:
    return {"x": normal(*shape, dtype=dtype)}


def _make_masked() -> Operands:
    return {"x": normal(4, 70, 512), "masked_m": torch.tensor([70, 0, 33, 1], dtype=torch.int32)}


def _run_masked(function: Callable, operands: Operands) -> Outputs:
    """Return the rows that count."""
    found = function(operands["x"], False, masked_m=operands["masked_m"])
    return tuple(part[group, :count] for part in found for group, count in enumerate((70, 0, 33, 1)))


def _list_blocks() -> list[OpCall]:
    wide, odd = partial(_make_values, 256, 1024), partial(_make_values, 300, 1000)
    calls = [
        _call(name, "ue8m0" if is_ue8m0 else "fp32", "cast_blocks", wide, is_ue8m0, bound=CAST_BOUND)
        for name in ("per_block_cast_to_fp8", "per_channel_cast_to_fp8") for is_ue8m0 in (False, True)
    ]  # fmt: skip
    return [*calls, _call("per_block_cast_to_fp8", "odd", "cast_blocks", odd, False, bound=CAST_BOUND)]


def _make_swiglu_grad() -> OpCall:
    def make() -> Operands:
        return {"x": normal(300, 2048), "grad": normal(300, 1024)}

    return _call("nn_swiglu_grad", "bfloat16", "swiglu_grad", make, True, bound=CAST_BOUND)


def _list_places() -> list[OpCall]:
    """Return the rows of choices of experts, some of which no expert is, or one that the token named before."""

    def make(tokens: int, experts: int) -> Operands:
        choices = torch.randint(-1, experts + 1, (tokens, 8), generator=torch.Generator().manual_seed(experts))
        choices[::3, -1] = choices[::3, 0]
        return {"experts": choices}

    sizes = ((3000, 128, False), (60, 256, True), (700, 1000, False))
    return [
        _call("nn_place", f"{tokens} of {experts}{', masked' * is_masked}", "place_rows", make_one, experts, is_masked)
        for tokens, experts, is_masked in sizes
        for make_one in (partial(make, tokens, experts),)
    ]


def _list_rows() -> list[OpCall]:
    """Return rows that go to those of their choices and back, with weights and without."""
    tokens, top_k, n, num_rows = 300, 6, 1024, 2000

    def make(rows: int, is_weighted: bool, dtype: torch.dtype) -> Operands:
        places = torch.randperm(num_rows)[: tokens * top_k].view(tokens, top_k)
        return {
            "x": normal(rows, n, dtype=dtype),
            "rows": places,
            "w": torch.rand(places.shape) if is_weighted else None,
        }

    calls = []
    for is_weighted, dtype in ((True, torch.bfloat16), (False, torch.bfloat16), (True, torch.float32)):
        what = f"{str(dtype)[6:]}{', weighted' * is_weighted}"
        spread, combine = (partial(make, rows, is_weighted, dtype) for rows in (tokens, num_rows))
        calls.append(_call("nn_spread", what, "spread_rows", spread, num_rows, bound=CAST_BOUND))
        calls.append(_call("nn_combine", what, "combine_rows", combine, bound=CAST_BOUND))
    return calls


def _list_layouts() -> list[OpCall]:
    def make(*shape: int) -> Operands:
        return {"sf": normal(*shape, dtype=torch.float32).abs() + 0.1}

    names = ("get_mn_major_tma_aligned_tensor", "get_mn_major_tma_aligned_packed_ue8m0_tensor")
    calls = [
        _call(name, f"{shape}", "scale_layout", partial(make, *shape))
        for name in names for shape in ((300, 56), (3, 129, 5))
    ]  # fmt: skip
    return [*calls, *_list_packings()]


def _list_packings() -> list[OpCall]:
    """Return packings of groups of K by their sizes and by their ends."""
    name, sizes = "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor", [384, 0, 128, 512]

    def make(rows: int, mn: int, *numbers: int) -> Operands:
        scales = {"sf": normal(rows, mn, dtype=torch.float32).abs() + 0.1}
        return scales | ({"ks_tensor": torch.tensor(numbers, dtype=torch.int32)} if numbers else {})

    ends = partial(_call, name, kernel="k_grouped_packing", use_psum_layout=True)
    return [
        _call(name, "groups", "k_grouped_packing", partial(make, 8, 1160, *sizes), ks=sizes),
        ends(what="ends", make=partial(make, 10, 1160, 300, 384, 500, 1200)),
        ends(what="ends, odd", make=partial(make, 17, 301, 1, 0, 300, 500), gran_k=32, k_alignment=160),
    ]


def _make_transpose() -> OpCall:
    """Return a product whose operands are not K-major: the transposing pass copies them."""
    from .op_calls import OPS, list_dense

    call = list_dense(next(op for op in OPS if op.name == "fp8_gemm_tn"))[0]
    return call._replace(what="transposed operands", kernels=("transpose_fp8",))


def _make_mega() -> OpCall:
    """Return a layer of experts across GPUs, of which there is one."""
    kernels = ("place_rows", "mega_pull", "mega_combine")
    return OpCall("fp8_mega_moe", "one GPU", "", _make_layer, _run_layer, BOUND, kernels)


def _make_layer() -> Operands:
    torch.manual_seed(0)
    experts, hidden, intermediate = MEGA_SIZES[0], *MEGA_SIZES[3:]
    l1, l2 = prepare(make_weights(experts, hidden, intermediate))
    chosen, weights = choose(MEGA_TOKENS, experts, MEGA_SIZES[2])
    return {"x": normal(MEGA_TOKENS, hidden), "chosen": chosen, "weights": weights, "l1": l1, "l2": l2}


@functools.cache
def _get_buffer(device: torch.device) -> "deep_gemm.SymmBuffer":
    return deep_gemm.SymmBuffer(FakeGroup(0, 1), *MEGA_SIZES, device=device)


def _run_layer(function: Callable, operands: Operands) -> Outputs:
    x = operands["x"]
    buffer, y = _get_buffer(x.device), nan(x, *x.shape)
    fill(buffer, x, operands["chosen"], operands["weights"])
    function(y, operands["l1"], operands["l2"], buffer)
    return (y,)
