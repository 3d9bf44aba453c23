"""Row-major scales of large products, copied to the layout that TMA reads: which calls do it, and what is launched."""

import math

import pytest

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import ArgumentError
from tests.cpu.runtime.test_launch_variants import COPY, use_fakes
from tests.fakes import stub_operands
from tests.fakes.stub_driver import read_params, select
from tests.fakes.stub_operands import view

M, N, K = 300, 1100, 4096
STEPS = K // 128
WORK = M * N * K
#: Of the copying kernel: from, to, rows of groups, mn, k, width, group and row of what it reads, group and column of
#: what it writes.
ARGUMENTS = 10
DEFAULT = 2.2e10


def call_dense(given=None):
    """Call fp8_gemm_nt with the options `given`; see multiply."""
    return multiply(**(given or {}))


def multiply(work=WORK, m=M, n=N, k=K, pitch=0, recipe=None, num_sms=0, **options):
    """Call fp8_gemm_nt on row-major scales, rows `pitch` apart; return (problems, copies' sizes and streams)."""
    planned, copies, restore = use_fakes()
    steps = -(-k // 128)
    pitch, rows_b = pitch or steps, n if recipe else -(-n // 128)
    a, b = (
        view(address, (rows, k), (k, 1), "float8_e4m3fn")
        for address, rows in ((stub_operands.A, m), (stub_operands.B, n))
    )
    scales = [
        view(address, (rows, steps), (pitch, 1), "float32")
        for address, rows in ((stub_operands.SCALE_A, m), (stub_operands.SCALE_B, rows_b))
    ]
    d = view(stub_operands.D, (m, n), (-(-n // 8) * 8, 1), "float32")
    _C.set_scale_copy_work(work)
    deep_gemm.set_num_sms(num_sms)
    try:
        deep_gemm.fp8_gemm_nt((a, scales[0]), (b, scales[1]), d, recipe=recipe, **options)
    finally:
        _C.set_scale_copy_work(DEFAULT)
        deep_gemm.set_num_sms(0)
        restore()
    return planned, copies


def call_contiguous(work):
    """Call the contiguous product on row-major scales; return (problems, copies)."""
    planned, copies, restore = use_fakes()
    a = (
        view(stub_operands.A, (M, K), (K, 1), "float8_e4m3fn"),
        view(stub_operands.SCALE_A, (M, STEPS), (STEPS, 1), "float32"),
    )
    b = (
        view(stub_operands.B, (2, N, K), (N * K, K, 1), "float8_e4m3fn"),
        view(stub_operands.SCALE_B, (2, -(-N // 128), STEPS), (9 * STEPS, STEPS, 1), "float32"),
    )
    d, groups = view(stub_operands.D, (M, N), (1104, 1), "bfloat16"), view(stub_operands.C, (M,), (1,), "int32")
    _C.set_scale_copy_work(work)
    try:
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, groups)
    finally:
        _C.set_scale_copy_work(DEFAULT)
        restore()
    return planned, copies


def call_masked(work, expected_m=64, groups=3):
    """Call the masked product of groups with room for M rows on row-major scales; return (problems, copies)."""
    planned, copies, restore = use_fakes()
    a = (
        view(stub_operands.A, (groups, M, K), (M * K, K, 1), "float8_e4m3fn"),
        view(stub_operands.SCALE_A, (groups, M, STEPS), (M * STEPS + 4, STEPS, 1), "float32"),
    )
    b = (
        view(stub_operands.B, (groups, N, K), (N * K, K, 1), "float8_e4m3fn"),
        view(stub_operands.SCALE_B, (groups, -(-N // 128), STEPS), (9 * STEPS, STEPS, 1), "float32"),
    )
    d = view(stub_operands.D, (groups, M, N), (M * 1104, 1104, 1), "bfloat16")
    _C.set_scale_copy_work(work)
    try:
        deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, d, view(stub_operands.C, (groups,), (1,), "int32"), expected_m)
    finally:
        _C.set_scale_copy_work(DEFAULT)
        restore()
    return planned, copies


def test_scales_of_a_are_copied_before_the_product(driver):
    (planned, copies), events = driver.call(call_dense, arguments=ARGUMENTS)
    copy, product = select(events, "LaunchKernelEx")
    assert copies == [(STEPS, 4 * 300, 0)] and planned[0]["scale_layout"] == "mn_major"
    source, target, sizes, mn, k, width, in_group, in_row, out_group, out_column = copy["plain"]
    assert (source, target, in_row, out_column) == (stub_operands.SCALE_A, COPY, STEPS, 300)
    assert [number % (1 << 32) for number in (mn, k, width)] == [M, STEPS, 32] and sizes == in_group == out_group == 0
    assert copy["grid"] == [1, 5, 1] and copy["block"] == [256, 1, 1]
    params = read_params(product)
    assert (params["scale_a"], params["scale_a_stride_mn"], params["scale_a_stride_k"]) == (COPY, 1, 300)
    assert params["scale_b"] == stub_operands.SCALE_B


def test_both_vectors_of_scales_are_copied(driver):
    (planned, copies), events = driver.call(call_dense, {"recipe": (1, 1, 128), "stream": 77}, arguments=ARGUMENTS)
    assert copies == [(STEPS, 4 * 300, 77), (STEPS, 4 * 1100, 77)] and planned[0]["scale_layout"] == "mn_major"
    launches = select(events, "LaunchKernelEx")
    assert [launch["grid"] for launch in launches[:2]] == [[1, 5, 1], [1, 18, 1]]
    assert [launch["stream"] for launch in launches] == [77, 77, 77]


def test_rows_of_groups_are_copied_together(driver):
    (planned, copies), _ = driver.call(call_contiguous, WORK)
    assert copies == [(STEPS, 4 * 300, 0)] and planned[0]["scale_layout"] == "mn_major"
    (planned, copies), _ = driver.call(call_contiguous, WORK + 1)
    assert not copies and planned[0]["scale_layout"] == "any"


def test_the_rows_that_masked_groups_have_are_copied(driver):
    """Whether they are depends on the rows that are expected; which ones, on those that the device says."""
    (planned, copies), events = driver.call(call_masked, 3 * 64 * N * K, arguments=ARGUMENTS)
    copy, _ = select(events, "LaunchKernelEx")
    assert copies == [(3 * STEPS, 4 * 300, 0)] and planned[0]["scale_layout"] == "mn_major"
    source, target, sizes, mn, k, width, in_group, in_row, out_group, out_column = copy["plain"]
    assert (source, target, sizes) == (stub_operands.SCALE_A, COPY, stub_operands.C)
    assert [number % (1 << 32) for number in (mn, k, width)] == [M, STEPS, 32]
    assert (in_group, in_row, out_group, out_column) == (M * STEPS + 4, STEPS, STEPS * 300, 300)
    assert copy["grid"] == [1, 5, 3]
    (planned, copies), _ = driver.call(call_masked, 3 * 64 * N * K + 1)
    assert not copies and planned[0]["scale_layout"] == "any"


def test_the_rows_that_are_expected_are_those_of_the_problem(driver):
    """A hint of 65 rows counts as 80, in a call and in the problem that stands for it."""
    for work, is_copied in ((3 * 80 * N * K, True), (3 * 80 * N * K + 1, False)):
        (planned, copies), _ = driver.call(call_masked, work, 65)
        assert bool(copies) == is_copied and planned[0]["expected_m"] == 80


@pytest.mark.parametrize(
    "options",
    [
        {"work": math.inf},
        {"work": WORK + 1},
        {"n": 1016, "work": 0.0},
        {"num_sms": 100},
        {"recipe": (1, 1, 128), "num_sms": 1},
    ],
)
def test_what_is_read_where_it_is(driver, options):
    (planned, copies), events = driver.call(call_dense, options)
    assert not copies and planned[0]["scale_layout"] == "any" and len(select(events, "LaunchKernelEx")) == 1
    assert read_params(select(events, "LaunchKernelEx")[0])["scale_a"] == stub_operands.SCALE_A


def test_rows_at_an_odd_pitch_are_copied_word_by_word(driver):
    """Tiles share 33 columns of scales and 65: in the second case each has 33, the last one 32."""
    for steps, tiles, width in ((33, 1, 33), (65, 2, 33), (64, 1, 64)):
        given = {"k": 128 * steps, "pitch": steps + 3, "work": 0.0}
        (_, copies), events = driver.call(call_dense, given, arguments=ARGUMENTS)
        copy = select(events, "LaunchKernelEx")[0]
        assert copies == [(steps, 1200, 0)] and copy["grid"] == [tiles, 5, 1]
        assert [number % (1 << 32) for number in copy["plain"][3:6]] == [M, steps, width]
        assert copy["plain"][7] == steps + 3


@pytest.mark.parametrize(
    "op, fields, is_copied",
    [
        ("fp8_gemm", {}, True),
        ("fp8_gemm", {"k": K - 128}, False),
        ("fp8_gemm", {"n": 1016, "k": 2 * K}, False),
        ("fp8_gemm", {"scale_layout": "mn_major"}, False),
        ("m_grouped_fp8_gemm_contiguous", {"num_groups": 4}, True),
        ("m_grouped_fp8_gemm_masked", {"num_groups": 4, "expected_m": 1024}, True),
        ("m_grouped_fp8_gemm_masked", {"num_groups": 4, "expected_m": 1016}, False),
        ("m_grouped_fp8_gemm_masked", {"num_groups": 128, "expected_m": 64}, True),
        ("m_grouped_fp8_gemm_masked", {"num_groups": 128, "expected_m": 56}, False),  # bound by their weights
        ("batched_fp8_gemm", {"num_groups": 4}, False),
    ],
)
def test_the_problem_that_is_run(op, fields, is_copied):
    problem = _C.Problem(op, **{"m": 4096, "n": 2048, "k": K, "scale_layout": "any"} | fields)
    _C.set_scale_copy_work(4096.0 * 2048 * K)
    try:
        run = _C.with_scale_copies(problem)
    finally:
        _C.set_scale_copy_work(DEFAULT)
    assert (run != problem) == is_copied and run.scale_layout in (problem.scale_layout, "mn_major")


def test_work_from_which_scales_are_copied():
    assert _C.get_scale_copy_work() == DEFAULT
    for wrong in (-1.0, math.nan):
        with pytest.raises(ArgumentError, match="must be at least 0"):
            _C.set_scale_copy_work(wrong)
