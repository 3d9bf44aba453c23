"""Attention logits on the CPU: values against an independent formula, masks, results, and one case for each check."""

import inspect

import numpy as np
import pytest
import torch

import deep_gemm
from deep_gemm.errors import ArgumentError, DeepGemmError, DeviceError, DtypeError, LayoutError, ShapeError
from tests.gpu.logits_operands import compress, expect_paged, expect_prefill, make_paged, make_prefill

INF, FP8 = float("-inf"), torch.float8_e4m3fn


def run_paged(operands: dict, columns: int, num_sms: int = 4, **options) -> torch.Tensor:
    block_kv = operands["kv_cache"].shape[1]
    schedule = deep_gemm.get_paged_mqa_logits_metadata(operands["context_lens"], block_kv, num_sms)
    return deep_gemm.fp8_paged_mqa_logits(**operands, schedule_meta=schedule, max_context_len=columns, **options)


@pytest.mark.parametrize("heads, head_dim", [(8, 32), (24, 64), (64, 128), (128, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prefill(heads, head_dim, dtype):
    operands = make_prefill(7, 150, heads, head_dim)
    logits = deep_gemm.fp8_mqa_logits(**operands, logits_dtype=dtype)
    assert logits.shape == (7, 150) and logits.stride() == (192, 1) and logits.dtype == dtype
    assert expect_prefill(operands).find_fault(logits, is_clean=True) is None


def test_what_is_not_cleaned_is_zero_on_the_cpu():
    operands = make_prefill(5, 64)
    logits, expected = deep_gemm.fp8_mqa_logits(**operands, clean_logits=False), expect_prefill(operands)
    assert (expected.logits == INF).any() and expected.find_fault(logits, is_clean=False, untouched=0.0) is None


@pytest.mark.parametrize("position", ["keyword", "sixth", "sixth bool"])
def test_compressed_columns_begin_at_the_start(position):
    operands = make_prefill(6, 90)
    starts, ends = operands["cu_seq_len_k_start"], operands["cu_seq_len_k_end"]
    columns = int((ends - starts).max())
    if position == "keyword":
        logits = deep_gemm.fp8_mqa_logits(**operands, max_seqlen_k=columns)
    elif position == "sixth":
        logits = deep_gemm.fp8_fp4_mqa_logits(*operands.values(), columns)
    else:
        logits = deep_gemm.fp8_fp4_mqa_logits(*operands.values(), False, columns)
    assert logits.shape == (6, columns)
    expected = compress(expect_prefill(operands), starts, columns)
    assert expected.find_fault(logits, is_clean=False, untouched=0.0) is None


def test_the_sixth_argument_may_be_a_flag():
    operands = make_prefill(4, 70)
    cleaned = deep_gemm.fp8_fp4_mqa_logits(*operands.values(), True)
    assert torch.equal(cleaned, deep_gemm.fp8_mqa_logits(**operands)) and (cleaned == INF).any()
    assert torch.equal(deep_gemm.fp8_fp4_mqa_logits(*operands.values(), 0), cleaned)
    assert not (deep_gemm.fp8_fp4_mqa_logits(*operands.values(), False) == INF).any()


@pytest.mark.parametrize("options", [(True, 0, None, None), (True, 0, torch.float32, None)], ids=str)
def test_a_schedule_without_pages_may_be_none(options):
    """The ninth argument of newer versions of the API."""
    operands = make_prefill(4, 70)
    expected = deep_gemm.fp8_mqa_logits(**operands)
    assert torch.equal(deep_gemm.fp8_fp4_mqa_logits(*operands.values(), *options), expected)
    assert torch.equal(deep_gemm.fp8_fp4_mqa_logits(**operands, schedule_meta=None), expected)


def test_queries_may_be_a_pair_with_none():
    operands = make_prefill(4, 70)
    expected = deep_gemm.fp8_mqa_logits(**operands)
    for pair in ((operands["q"], None), [operands["q"], None]):
        assert torch.equal(deep_gemm.fp8_fp4_mqa_logits(**operands | {"q": pair}), expected)
    with pytest.raises(ArgumentError, match=r"q\[1\] .*FP4, which is SM100 only"):
        deep_gemm.fp8_fp4_mqa_logits(**operands | {"q": (operands["q"], torch.ones(4, 8))})


def test_ranges_outside_the_keys_are_cut():
    operands = make_prefill(3, 40)
    operands["cu_seq_len_k_start"] = torch.tensor([-5, 10, 30], dtype=torch.int32)
    operands["cu_seq_len_k_end"] = torch.tensor([8, 999, 20], dtype=torch.int32)
    seen = deep_gemm.fp8_mqa_logits(**operands) != INF
    assert seen.sum(dim=1).tolist() == [8, 30, 0]


@pytest.mark.parametrize("lengths", [[1, 65, 0, 200], [64, 128], [0, 0]])
@pytest.mark.parametrize("next_n, block_kv", [(1, 64), (2, 32), (4, 64), (6, 32)])
def test_paged(lengths, next_n, block_kv):
    operands = make_paged(lengths, next_n, block_kv=block_kv)
    logits = run_paged(operands, 210, clean_logits=True)
    assert logits.shape == (len(lengths) * next_n, 210) and logits.stride() == (256, 1)
    assert expect_paged(operands, 210).find_fault(logits, is_clean=True) is None


@pytest.mark.parametrize("heads, head_dim", [(32, 64), (64, 128)])
def test_paged_heads_and_types(heads, head_dim):
    operands = make_paged([70, 3], 2, heads, head_dim)
    logits = run_paged(operands, 80, clean_logits=True, logits_dtype=torch.bfloat16)
    assert logits.dtype == torch.bfloat16
    assert expect_paged(operands, 80).find_fault(logits, is_clean=True) is None


def test_a_length_for_each_token():
    operands = make_paged([[3, 70, 64], [0, 5, 1]], 3)
    logits = run_paged(operands, 75, clean_logits=True)
    assert expect_paged(operands, 75).find_fault(logits, is_clean=True) is None
    assert (logits != INF).sum(dim=1).tolist() == [3, 70, 64, 0, 5, 1]


def test_columns_cut_longer_sequences():
    operands = make_paged([100, 20])
    assert expect_paged(operands, 50).find_fault(run_paged(operands, 50, clean_logits=True), is_clean=True) is None
    assert not (run_paged(operands, 50) == INF).any()  # not cleaned by default


@pytest.mark.parametrize("page", [-1, 99])
def test_pages_that_the_cache_has_not_are_refused_on_the_cpu(page):
    """Those behind the length of a sequence are not looked at."""
    operands = make_paged([100, 20])
    pages, expected = operands["block_table"], expect_paged(operands, 50)
    pages[1, 1] = page
    assert expected.find_fault(run_paged(operands, 50, clean_logits=True), is_clean=True) is None
    pages[1, 0] = page
    with pytest.raises(ArgumentError, match=rf"block_table\[1, 0\] = {page}: must be a page of kv_cache, 0 to \d+,"):
        run_paged(operands, 50)


def test_indices_change_nothing():
    operands = make_paged([30, 31, 40])
    indices = torch.tensor([0, 0, 1], dtype=torch.int32)
    plain = run_paged(operands, 64, clean_logits=True)
    assert torch.equal(run_paged(operands, 64, clean_logits=True, indices=indices), plain)
    lengths = operands["context_lens"]
    schedules = [deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, 3, indices=one) for one in (None, indices)]
    assert torch.equal(*schedules)
    with pytest.raises(ShapeError, match=r"indices.shape = \[2\]: must be \[sequences\] = \[3\]"):
        run_paged(operands, 64, indices=indices[:2])


def test_both_names_are_one_function():
    assert deep_gemm.fp8_fp4_mqa_logits is deep_gemm.fp8_mqa_logits
    assert deep_gemm.fp8_fp4_paged_mqa_logits is deep_gemm.fp8_paged_mqa_logits
    assert list(inspect.signature(deep_gemm.get_paged_mqa_logits_metadata).parameters) == [
        "context_lens", "block_kv", "num_sms", "indices",
    ]  # fmt: skip


def test_a_cache_may_have_room_between_its_pages():
    operands = make_paged([90, 10])
    wide = torch.zeros(len(operands["kv_cache"]), 3, *operands["kv_cache"].shape[1:], dtype=torch.uint8)
    wide[:, 1] = operands["kv_cache"]
    expected = run_paged(operands, 90, clean_logits=True)
    assert torch.equal(run_paged(operands | {"kv_cache": wide[:, 1]}, 90, clean_logits=True), expected)


@pytest.mark.parametrize("tokens, n", [(0, 70), (3, 0), (0, 0)])
def test_nothing_to_compute(tokens, n):
    logits = deep_gemm.fp8_mqa_logits(**make_prefill(tokens, n))
    assert logits.shape == (tokens, n)
    assert run_paged(make_paged([], 2), n).shape == (0, n)
    assert run_paged(make_paged([40] * tokens), 0).shape == (tokens, 0)


@pytest.mark.parametrize("shape", [(0,), (0, 1), (0, 2), (3, 0)], ids=str)
def test_the_schedule_of_nothing(shape):
    """Every slot begins behind the last sequence, as the kernel says."""
    schedule = deep_gemm.get_paged_mqa_logits_metadata(torch.zeros(shape, dtype=torch.int32), 64, 4)
    assert schedule.tolist() == [[shape[0], 0]] * 5


def test_sizes_may_be_numbers_of_numpy():
    operands, prefill = make_paged([1, 65], 1), make_prefill(6, 90)
    lengths = operands["context_lens"]
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, np.int64(64), np.int32(4))
    assert torch.equal(schedule, deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, 4))
    found = deep_gemm.fp8_paged_mqa_logits(**operands, schedule_meta=schedule, max_context_len=np.int64(80))
    assert torch.equal(found, run_paged(operands, 80))
    expected = deep_gemm.fp8_mqa_logits(**prefill, max_seqlen_k=80)
    assert torch.equal(deep_gemm.fp8_mqa_logits(**prefill, max_seqlen_k=np.int64(80)), expected)
    assert torch.equal(deep_gemm.fp8_fp4_mqa_logits(*prefill.values(), np.int64(80)), expected)


@pytest.mark.parametrize("num_sms", [1, 3, 7, 132, 5000])
@pytest.mark.parametrize("lengths", [[1], [0, 0, 0], [64, 65, 0, 1000, 1], [[3, 200], [65, 1]]])
def test_slots_share_the_keys_evenly(num_sms, lengths):
    lengths = torch.tensor(lengths, dtype=torch.int32)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, num_sms)
    most = lengths if lengths.ndim == 1 else lengths.amax(dim=1)
    places = [(row, unit) for row, length in enumerate(most.tolist()) for unit in range(-(-length // 64))]
    assert schedule.shape == (num_sms + 1, 2) and schedule.dtype == torch.int32
    assert schedule[-1].tolist() == [len(lengths), len(places)]
    for slot in range(num_sms):
        begin = slot * len(places) // num_sms
        assert tuple(schedule[slot].tolist()) == (places[begin] if begin < len(places) else (len(lengths), 0))


PREFILL = make_prefill(4, 70)
PAGED = make_paged([70, 30], 2)
SCHEDULE = deep_gemm.get_paged_mqa_logits_metadata(PAGED["context_lens"], 64, 4)


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"q": PREFILL["q"].float()}, DtypeError, "q.dtype = torch.float32: must be torch.float8_e4m3fn"),
        ({"q": PREFILL["q"].view(torch.uint8)}, DtypeError, "FP4 is SM100 only"),
        ({"q": PREFILL["q"][0]}, ShapeError, r"q.ndim = 2: must be .*\[tokens, heads, head_dim\]"),
        ({"q": PREFILL["q"][:, :4]}, ShapeError, "heads = 4: must be a multiple of 8 within 8..128"),
        ({"q": PREFILL["q"][:, :, :16]}, ShapeError, "head_dim = 16: must be 32, 64 or 128"),
        ({"q": PREFILL["q"].mT.contiguous().mT}, LayoutError, r"q.stride\(2\) = 8: head_dim must be contiguous"),
        ({"kv": PREFILL["kv"][0]}, ArgumentError, "kv = .*pairs"),
        ({"kv": (PREFILL["kv"][0].float(), PREFILL["kv"][1])}, DtypeError, "kv.dtype = torch.float32"),
        ({"kv": (PREFILL["kv"][0], PREFILL["kv"][1].double())}, DtypeError, "scale_kv.dtype"),
        ({"kv": (PREFILL["kv"][0], PREFILL["kv"][1][1:])}, ShapeError, r"scale_kv.shape = \[69\]: must be \[n\]"),
        ({"kv": (PREFILL["kv"][0][:, :16], PREFILL["kv"][1])}, ShapeError, r"kv.shape = \[70, 16\]"),
        ({"weights": PREFILL["weights"][:, :4]}, ShapeError, r"weights.shape = \[4, 4\]: must be .*\[4, 8\]"),
        ({"weights": PREFILL["weights"].bfloat16()}, DtypeError, "weights.dtype = torch.bfloat16"),
        ({"weights": PREFILL["weights"].t().contiguous().t()}, LayoutError, "weights.stride"),
        ({"cu_seq_len_k_start": PREFILL["cu_seq_len_k_start"].long()}, DtypeError, "cu_seq_len_k_start.dtype"),
        ({"cu_seq_len_k_end": PREFILL["cu_seq_len_k_end"][1:]}, ShapeError, r"cu_seq_len_k_end.shape = \[3\]"),
        ({"cu_seq_len_k_end": torch.zeros(8, dtype=torch.int32)[::2]}, LayoutError, "cu_seq_len_k_end.stride"),
        ({"weights": PREFILL["weights"].to("meta")}, DeviceError, "weights is on meta and q on cpu"),
        ({"logits_dtype": torch.float16}, DtypeError, "logits_dtype = torch.float16: must be torch.float32"),
        ({"max_seqlen_k": -1}, ArgumentError, "max_seqlen_k = -1: must be an int within"),
        ({"clean_logits": "yes"}, ArgumentError, "clean_logits = 'yes': must be a bool"),
        ({"clean_logits": 5, "max_seqlen_k": 6}, ArgumentError, "pass it once"),
        ({"stream": "x"}, ArgumentError, "stream = 'x'"),
        ({"indices": None}, ArgumentError, "unknown argument 'indices'"),
        (
            {"schedule_meta": torch.zeros(8, dtype=torch.int32)},
            ArgumentError,
            "schedule_meta = <class 'torch.Tensor'>: without pages a schedule is SM100 only; pass None",
        ),
    ],
)
def test_prefill_checks(changes, error, message):
    with pytest.raises(error, match=message) as caught:
        deep_gemm.fp8_mqa_logits(**PREFILL | changes)
    assert isinstance(caught.value, DeepGemmError)


def spread(cache: torch.Tensor, more: int) -> torch.Tensor:
    """Return pages whose first bytes are so many bytes further apart."""
    pages = cache.shape[0]
    pitch = cache.stride(0) + more
    memory = torch.zeros(pages * max(pitch, cache.stride(0)) + cache.stride(0), dtype=torch.uint8)
    return memory.as_strided(cache.shape, (pitch, *cache.stride()[1:]))


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"q": PREFILL["q"]}, ShapeError, r"q.ndim = 3: must be .*\[sequences, next_n, heads, head_dim\]"),
        ({"q": PAGED["q"].repeat(1, 5, 1, 1)}, ShapeError, "next_n = 10: must be within 1..8"),
        ({"q": PAGED["q"].mT.contiguous().mT}, LayoutError, r"q.stride\(3\)"),
        ({"kv_cache": PAGED["kv_cache"].view(torch.int8)}, DtypeError, "kv_cache.dtype .*must be torch.uint8"),
        ({"kv_cache": PAGED["kv_cache"][:, :16]}, ShapeError, r"kv_cache.shape\[1\] = 16: a page must hold 32 or 64"),
        ({"kv_cache": PAGED["kv_cache"][..., :20]}, ShapeError, r"kv_cache.shape = .*head_dim \+ 4"),
        ({"kv_cache": PAGED["kv_cache"].flip(1)[:, :, :, ::2]}, ShapeError, "kv_cache.shape"),
        ({"kv_cache": PAGED["kv_cache"].transpose(0, 1).contiguous().transpose(0, 1)}, LayoutError, "keys of a page"),
        (
            {"kv_cache": spread(PAGED["kv_cache"], 8)},
            LayoutError,
            r"kv_cache.stride\(0\) = .*: must be a multiple of 16",
        ),
        ({"kv_cache": spread(PAGED["kv_cache"], -1152)}, LayoutError, r"kv_cache.stride\(0\) = .*: must be a multiple"),
        ({"context_lens": PAGED["context_lens"].repeat(2, 1).t()}, LayoutError, "the lengths of a sequence must be"),
        ({"weights": PAGED["weights"][:2]}, ShapeError, r"weights.shape = \[2, 8\]: must be"),
        ({"context_lens": PAGED["context_lens"].long()}, DtypeError, "context_lens.dtype = torch.int64"),
        ({"context_lens": PAGED["context_lens"][:1]}, ShapeError, r"context_lens.shape = \[1\]: must be"),
        ({"context_lens": PAGED["context_lens"][:, None]}, ShapeError, r"context_lens.shape = \[2, 1\]: must be"),
        ({"block_table": PAGED["block_table"][:1]}, ShapeError, r"block_table.shape = \[1, 3\]: must be"),
        ({"block_table": PAGED["block_table"].t().contiguous().t()}, LayoutError, "pages of a sequence"),
        ({"schedule_meta": SCHEDULE[:1]}, ShapeError, r"schedule_meta.shape = \[1, 2\]: must be \[num_sms \+ 1, 2\]"),
        ({"schedule_meta": SCHEDULE.t()}, ShapeError, "schedule_meta.shape"),
        ({"schedule_meta": SCHEDULE.flatten()}, ShapeError, "schedule_meta.ndim = 1"),
        ({"max_context_len": None}, ArgumentError, "max_context_len"),
        ({"max_context_len": 2.0}, ArgumentError, "max_context_len = 2.0: must be an int"),
        ({"max_context_len": torch.tensor(80)}, ArgumentError, "max_context_len = an object of type "),
        ({"clean_logits": 1}, ArgumentError, "clean_logits = 1: must be a bool"),
        ({"indices": PAGED["context_lens"].long()}, DtypeError, "indices.dtype"),
    ],
)
def test_paged_checks(changes, error, message):
    with pytest.raises(error, match=message):
        deep_gemm.fp8_paged_mqa_logits(**PAGED | {"schedule_meta": SCHEDULE, "max_context_len": 80} | changes)


def describe(sequences: int) -> dict:
    """Return operands without memory of so many sequences of one token."""
    own = {name: PAGED[name][:1, :1] if name == "q" else PAGED[name][:1] for name in PAGED if name != "kv_cache"}
    grown = {name: tensor.to("meta").repeat(sequences, *[1] * (tensor.ndim - 1)) for name, tensor in own.items()}
    return grown | {"kv_cache": PAGED["kv_cache"].to("meta"), "schedule_meta": SCHEDULE.to("meta")}


@pytest.mark.parametrize("sequences, columns", [(127, (1 << 31) - 1), (1 << 20, (1 << 18) - 64 * 5)])
def test_paged_calls_have_as_many_units_as_kernels_count(sequences, columns):
    """Kernels add up units of 64 positions in 32 bits. 127 sequences of the greatest length fit, 128 do not."""
    logits = deep_gemm.fp8_paged_mqa_logits(**describe(sequences), max_context_len=columns)
    assert logits.shape == (sequences, columns) and logits.stride(0) >= columns
    more = {"max_context_len": columns} if sequences == 127 else {"max_context_len": 2 * columns}
    with pytest.raises(
        ShapeError, match=r"max_context_len = \d+: kernels count units of 64 positions in 32 bits, .* 2\^38"
    ):
        deep_gemm.fp8_paged_mqa_logits(**describe(sequences + 1), **more)


def test_prefills_have_as_many_units_as_kernels_count():
    def run(tokens: int, n: int, **options) -> torch.Tensor:
        q, kv, weights = (torch.empty(0, device="meta", dtype=dtype) for dtype in (FP8, FP8, torch.float32))
        q, kv, weights = (
            q.new_empty(tokens, 8, 32),
            (kv.new_empty(n, 32), weights.new_empty(n)),
            weights.new_empty(tokens, 8),
        )
        return deep_gemm.fp8_mqa_logits(q, kv, weights, *torch.empty(2, tokens, device="meta").int(), **options)

    assert run((1 << 16) - 1, 1 << 21).shape == ((1 << 16) - 1, 1 << 21)
    with pytest.raises(ShapeError, match="tokens = 131072, columns = 2097152: kernels count units"):
        run(1 << 17, 1 << 21)
    assert run(1 << 17, 1 << 21, max_seqlen_k=4096).shape == (1 << 17, 4096)


def test_a_schedule_holds_as_many_units_as_kernels_count():
    longest = (1 << 31) - 1
    schedule = deep_gemm.get_paged_mqa_logits_metadata(torch.full((127,), longest, dtype=torch.int32), 64, 127)
    assert schedule[:-1, 0].tolist() == list(range(127)) and not schedule[:-1, 1].any()
    assert schedule[-1].tolist() == [127, (127 << 25) - (1 << 32)]  # as bits, which kernels read without a sign
    with pytest.raises(ArgumentError, match="context_lens: all sequences have 4294967296 units of 64 positions"):
        deep_gemm.get_paged_mqa_logits_metadata(torch.full((128,), longest, dtype=torch.int32), 64, 127)


def test_a_schedule_lies_where_its_lengths_do():
    expected = deep_gemm.get_paged_mqa_logits_metadata(PAGED["context_lens"], 64, 4)
    with torch.device("meta"):
        assert torch.equal(deep_gemm.get_paged_mqa_logits_metadata(PAGED["context_lens"], 64, 4), expected)


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"context_lens": [1]}, ArgumentError, "context_lens = an object of type list"),
        ({"context_lens": torch.ones(3)}, DtypeError, "context_lens.dtype = torch.float32: must be torch.int32"),
        ({"context_lens": SCHEDULE[None]}, ShapeError, "context_lens.ndim = 3"),
        ({"context_lens": SCHEDULE.t()}, LayoutError, r"context_lens.stride\(1\) = 2"),
        ({"block_kv": 16}, ArgumentError, "block_kv = 16: must be 32 or 64"),
        ({"num_sms": 0}, ArgumentError, "num_sms = 0: must be an int >= 1; .*else any number, e.g. 132"),
        ({"num_sms": True}, ArgumentError, "num_sms = True"),
        ({"num_sms": torch.tensor(4)}, ArgumentError, "num_sms = an object of type Tensor"),
        ({"block_kv": torch.tensor(64)}, ArgumentError, "block_kv = an object of type Tensor"),
        ({"indices": SCHEDULE}, ShapeError, "indices.shape"),
        ({"indices": PAGED["context_lens"].to("meta")}, DeviceError, "indices is on meta"),
    ],
)
def test_metadata_checks(changes, error, message):
    with pytest.raises(error, match=message):
        deep_gemm.get_paged_mqa_logits_metadata(
            **{"context_lens": PAGED["context_lens"], "block_kv": 64, "num_sms": 4} | changes
        )
