"""What einsum and fp8_einsum launch, as the (stub) driver receives it: the caller's strides in the tensor maps, one
copy for each FP8 operand that is not K-major, and a sum in parts.
"""

import contextlib
import io
import os

import pytest

import deep_gemm
from deep_gemm import _C
from deep_gemm.jit.plain_kernels import plain_symbol
from tests.fakes.grouped_calls import record
from tests.fakes.stub_driver import read_group_params, read_params, select
from tests.fakes.stub_operands import SCALE_A, SCALE_B, A, B, C, D, view

SMS = 132
H, TOKENS, R, WIDTH = 8, 100, 512, 256
BF16, FP8, FP32 = "bfloat16", "float8_e4m3fn", "float32"
ORDERS = {
    "bhr,hdr->bhd": ("bhr", "hdr", "bhd"),
    "bhd,hdr->bhr": ("bhd", "hdr", "bhr"),
    "bhd,bhr->hdr": ("bhd", "bhr", "hdr"),
}
SIZES = {"h": H, "b": TOKENS, "r": R, "d": WIDTH}


def contiguous(address: int, shape: tuple, dtype: str):
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return view(address, shape, tuple(strides), dtype)


def shape_of(letters: str, **changes: int) -> tuple:
    return tuple((SIZES | changes)[letter] for letter in letters)


def call_bf16(expr: str):
    a, b, d = ORDERS[expr]
    deep_gemm.einsum(
        expr,
        contiguous(A, shape_of(a), BF16),
        contiguous(B, shape_of(b), BF16),
        contiguous(D, shape_of(d), BF16),
        stream=7,
    )


def call_fp8(expr: str, tokens: int):
    a, b, d = ORDERS[expr]
    summed = next(letter for letter in a if letter not in d)
    steps = -(-(SIZES | {"b": tokens})[summed] // 128)
    rows = next(letter for letter in b if letter not in a)
    scale_a = contiguous(SCALE_A, shape_of(a, **{"b": tokens, summed: steps}), FP32)
    scale_b = contiguous(SCALE_B, shape_of(b, **{"b": tokens, summed: steps, rows: -(-SIZES[rows] // 128)}), FP32)
    pair_a = contiguous(A, shape_of(a, b=tokens), FP8), scale_a
    pair_b = contiguous(B, shape_of(b, b=tokens), FP8), scale_b
    deep_gemm.fp8_einsum(expr, pair_a, pair_b, contiguous(D, shape_of(d, b=tokens), BF16), stream=7)


def call_sum(b: int, m: int, n: int, k: int, dtype: str, c: str | None):
    d = contiguous(D, (m, n), dtype)
    c = {None: None, "d": d, "c": contiguous(C, (m, n), dtype)}[c]
    x, y = contiguous(A, (b, m, k), BF16), contiguous(B, (b, n, k), BF16)
    deep_gemm.einsum("bmk,bnk->mn", x, y, d, c, stream=7)


def read_maps(events: list[dict]) -> dict:
    return {event["map"]: event for event in select(events, "TensorMapEncodeTiled")}


def get_kernels(events: list[dict]) -> list[dict]:
    return select(events, "LaunchKernelEx")


@pytest.mark.parametrize("expr", list(ORDERS)[:2])
def test_maps_have_the_strides_of_the_caller(driver, expr):
    (planned, memory, *_), events = driver.call(record, call_bf16, expr)
    (launch,) = get_kernels(events)
    a, b, d = (read_maps(events)[number] if number else None for number in launch["maps"][:3])
    k, n = (R, WIDTH) if expr == "bhr,hdr->bhd" else (WIDTH, R)
    assert planned[0]["op"] == "batched_bf16_gemm" and planned[0]["num_groups"] == H and not memory
    assert (planned[0]["m"], planned[0]["n"], planned[0]["k"]) == (TOKENS, n, k)
    assert planned[0]["b_major"] == ("k" if expr == "bhr,hdr->bhd" else "mn")
    assert (a["address"], a["dims"][:2], a["groups"]) == (A, [k, TOKENS], H)
    assert (a["pitch"], a["group_pitch"]) == (2 * H * k, 2 * k)
    assert (b["dims"][:2], b["pitch"], b["group_pitch"]) == ([R, WIDTH], 2 * R, 2 * R * WIDTH)
    params, groups = read_params(launch), read_group_params(launch)
    assert params["d_stride_m"] == H * n and groups["d_stride_group"] == n and groups["num_groups"] == H
    assert d is None or (d["pitch"], d["group_pitch"]) == (2 * H * n, 2 * n)


def call_gradient(onto: str):
    a, b, d = ORDERS["bhd,bhr->hdr"]
    x, y = contiguous(A, shape_of(a), BF16), contiguous(B, shape_of(b), BF16)
    out = contiguous(D, shape_of(d), FP32)
    c = {"nothing": None, "d": out, "c": contiguous(C, shape_of(d), FP32)}[onto]
    deep_gemm.einsum("bhd,bhr->hdr", x, y, out, c, stream=7)


@pytest.mark.parametrize("onto, c_mode", [("nothing", "none"), ("d", "accumulate"), ("c", "general")])
def test_a_gradient_reads_both_operands_where_they_lie(driver, onto, c_mode):
    (planned, memory, *_), events = driver.call(record, call_gradient, onto)
    (launch,) = get_kernels(events)
    a, b = (read_maps(events)[number] for number in launch["maps"][:2])
    assert planned[0]["op"] == "batched_bf16_gemm" and planned[0]["num_groups"] == H and not memory
    assert (planned[0]["m"], planned[0]["n"], planned[0]["k"]) == (WIDTH, R, TOKENS)
    assert (planned[0]["a_major"], planned[0]["b_major"], planned[0]["c_mode"]) == ("mn", "mn", c_mode)
    for found, address, rows in ((a, A, WIDTH), (b, B, R)):
        assert (found["address"], found["dims"][:2], found["groups"]) == (address, [rows, TOKENS], H)
        assert (found["pitch"], found["group_pitch"]) == (2 * H * rows, 2 * rows) and found["box"][:2] == [64, 64]
    assert read_params(launch)["d_stride_m"] == R and read_group_params(launch)["d_stride_group"] == R * WIDTH


@pytest.mark.parametrize("expr, tokens, copies", [
    ("bhr,hdr->bhd", TOKENS, 0), ("bhd,hdr->bhr", TOKENS, 1), ("bhd,bhr->hdr", 256, 2), ("bhd,bhr->hdr", 40, 2),
])  # fmt: skip
def test_fp8_operands_are_copied_in_one_launch(driver, expr, tokens, copies):
    (planned, memory, *_), events = driver.call(record, call_fp8, expr, tokens)
    launches = get_kernels(events)
    assert len(launches) == 1 + (copies > 0) and len(memory) == copies
    # Heads of an operand [tokens, heads, ...] lie beside one another; those of [heads, ...] behind one another.
    groups = [matrices[-1] for event in launches[:-1] for matrices in event["transpose"]][:copies]
    assert groups == {0: [], 1: [H], 2: [1, 1]}[copies]
    assert planned[0]["op"] == "batched_fp8_gemm" and planned[0]["num_groups"] == H
    groups = read_group_params(launches[-1])
    steps = -(-{"bhr,hdr->bhd": R, "bhd,hdr->bhr": WIDTH, "bhd,bhr->hdr": tokens}[expr] // 128)
    assert groups["scale_a_stride_group"] == (WIDTH if expr == "bhd,bhr->hdr" else steps)


@pytest.mark.parametrize("dtype, c", [(FP32, None), (FP32, "c"), (FP32, "d"), (BF16, None)])
def test_a_sum_in_parts(driver, dtype, c):
    (planned, memory, *_), events = driver.call(record, call_sum, 4096, 128, 384, 128, dtype, c)
    gemm, _ = get_kernels(events)
    problem = planned[0]
    assert (problem["op"], problem["d_dtype"], problem["c_mode"]) == ("summed_bf16_gemm", "fp32", "none")
    d = read_maps(events)[gemm["maps"][2]]
    parts = d["groups"]
    assert 30 < parts <= 4096 and memory[0][:2] == (parts * 128, 384 * 4)
    assert (d["dims"][:2], d["pitch"], d["group_pitch"]) == ([384, 128], 384 * 4, 128 * 384 * 4)
    groups = read_group_params(gemm)
    assert d["address"] != D and (groups["num_groups"], groups["num_parts"]) == (4096, parts)
    params = read_params(gemm)
    assert gemm["grid"][0] == parts * params["num_m_tiles"] * params["num_n_tiles"]


def call_invariant_sum(*arguments):
    deep_gemm.set_batch_invariant(True)
    try:
        call_sum(*arguments)
    finally:
        deep_gemm.set_batch_invariant(None)


@pytest.mark.parametrize("b, k, parts", [(4096, 128, 32), (130, 384, 12), (128, 64, 2)])
@pytest.mark.parametrize("m, n", [(128, 384), (8, 8), (2048, 1024)])
def test_parts_of_an_invariant_sum_depend_on_its_length_alone(driver, m, n, b, k, parts):
    (planned, memory, *_), events = driver.call(record, call_invariant_sum, b, m, n, k, FP32, None)
    gemm, _ = get_kernels(events)
    assert planned[0]["batch_invariant"] and memory[0][0] == parts * m
    groups = read_group_params(gemm)
    assert (groups["num_parts"], groups["num_groups"]) == (parts, b)


def test_a_short_invariant_sum_has_one_part(driver):
    (_, memory, *_), events = driver.call(record, call_invariant_sum, 127, 64, 64, 64, FP32, None)
    (gemm,) = get_kernels(events)
    assert not memory and read_group_params(gemm)["num_parts"] == 1


def test_a_sum_of_many_tiles_has_one_part_and_needs_no_second_kernel(driver):
    (_, memory, *_), events = driver.call(record, call_sum, 3, 8192, 8192, 64, FP32, None)
    (gemm,) = get_kernels(events)
    assert not memory and read_maps(events)[gemm["maps"][2]]["address"] == D and gemm["grid"][0] == SMS


def test_no_part_is_without_a_step(driver):
    (_, memory, *_), events = driver.call(record, call_sum, 3, 136, 136, 64, FP32, None)
    gemm, params = get_kernels(events)[0], read_params(get_kernels(events)[0])
    assert memory[0][0] == 3 * 136 and gemm["grid"][0] == 3 * params["num_m_tiles"] * params["num_n_tiles"]


@pytest.mark.parametrize("dtype, c", [(FP32, None), (FP32, "c"), (FP32, "d"), (BF16, None)])
def test_a_small_sum_is_one_launch(driver, dtype, c):
    (planned, memory, *_), events = driver.call(record, call_sum, 32, 64, 128, 128, dtype, c, arguments=14)
    (launch,) = get_kernels(events)
    loaded = {event["name"] for event in select(events, "LibraryGetKernel")}
    assert not planned and not memory and loaded <= {plain_symbol("sum_products")}
    assert (launch["grid"], launch["block"][0], launch["smem"]) == ([8, 4, 2], 256, 0)
    pitches = [64 * 128, 128, 128 * 128, 128, 128 if c else 0, 128]
    assert launch["plain"][:10] == [A, B, {None: 0, "c": C, "d": D}[c], D, *pitches]
    assert [number & 0xFFFFFFFF for number in launch["plain"][10:]] == [32, 64, 128, 128]


def call_sums(*lengths: int):
    for length in lengths:
        call_sum(length, 64, 128, 128, FP32, None)
        _C.dispatch_clear()


def record_sums(path: str) -> str:
    """Call a small and a large sum twice while shapes are recorded and configs printed; return what was printed."""
    printed, before = io.StringIO(), dict(os.environ)
    os.environ.update(DG_RECORD_SHAPES=path, DG_PRINT_CONFIGS="1")
    try:
        with contextlib.redirect_stderr(printed):
            record(call_sums, 33, 33, 4097, 4097)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return printed.getvalue()


def test_a_small_sum_is_printed_and_recorded_as_all_problems(driver, tmp_path):
    printed, _ = driver.call(record_sums, str(tmp_path / "shapes"))
    small, large = map(_C.Problem.from_json, (tmp_path / "shapes").read_text().splitlines())
    assert [(one.op, one.num_groups, one.d_dtype) for one in (small, large)] == [
        ("summed_bf16_gemm", groups, "fp32") for groups in (33, 4097)
    ]
    assert [_C.is_small_sum(one, _C.Device.known("h200")) for one in (small, large)] == [True, False]
    lines = printed.splitlines()
    assert lines[0] == f"deep_gemm: {small} -> sum_products, without a config"
    assert lines[1].startswith(f"deep_gemm: {large} -> ") and "(analytic" in lines[1] and len(lines) == 2


def call_padded_sum():
    """A sum over 60 K, whose rows lie as far apart as those of 64."""
    x, y = view(A, (3, 64, 60), (4096, 64, 1), BF16), view(B, (3, 64, 60), (4096, 64, 1), BF16)
    deep_gemm.einsum("bmk,bnk->mn", x, y, contiguous(D, (64, 64), FP32), None, stream=7)


def call_sum_on(num_sms: int, *sizes: int):
    deep_gemm.set_num_sms(num_sms)
    try:
        call_sum(*sizes, FP32, None)
    finally:
        deep_gemm.set_num_sms(0)


@pytest.mark.parametrize("num_sms, sizes, is_small", [
    (0, (64, 64, 128, 128), True), (0, (65, 64, 128, 128), False),  # 128 KiB of A and B for a CTA
    (0, (1, 128, 128, 8192), True), (0, (3, 32, 136, 2752), False),
    (0, (32, 128, 128, 128), True), (0, (32, 129, 128, 128), False),  # 16 clusters of 8 on 132 SMs
    (132, (32, 64, 128, 128), True), (131, (32, 64, 128, 128), False),  # a limit: clusters might wait for SMs
])  # fmt: skip
def test_which_sums_are_small(driver, num_sms, sizes, is_small):
    (_, memory, *_), events = driver.call(record, call_sum_on, num_sms, *sizes)
    assert (len(get_kernels(events)), bool(memory)) == ((1, False) if is_small else (2, True))


def test_a_sum_over_odd_k_is_not_small(driver):
    (_, memory, *_), events = driver.call(record, call_padded_sum)
    assert len(get_kernels(events)) == 2 and memory
