"""From the public grouped ops to the (stub) driver: the problem of each call, copies that make FP8 K-major, memory used
by a call, and K = 0.
"""

import pytest

import deep_gemm
from deep_gemm import _C, stream
from deep_gemm.errors import ArgumentError
from tests.fakes import stub_driver, stub_operands
from tests.fakes.grouped_calls import (
    BF16,
    COPY,
    E4M3,
    FP32,
    KS,
    KS_TENSOR,
    Fakes,
    G,
    K,
    M,
    N,
    call_contiguous,
    call_k_grouped,
    call_masked,
    record,
    tensor,
)
from tests.fakes.grouped_variants import CONTIGUOUS, K_GROUPED, MASKED, make_grouped
from tests.fakes.stub_driver import read_group_params, read_params, select
from tests.fakes.stub_operands import GROUPS, view

# Problems.


CALLS = {
    "nt": (call_contiguous, {}, make_grouped(CONTIGUOUS[0], M, N, K, G, scale_layout="any")),
    "1d1d": (
        call_contiguous,
        {"recipe": (1, 1, 128), "d_dtype": FP32},
        make_grouped(CONTIGUOUS[0], M, N, K, G, scale_layout="any", recipe="1d1d", d_dtype="fp32"),
    ),
    "nn": (
        call_contiguous,
        {"op": "m_grouped_fp8_gemm_nn_contiguous"},
        make_grouped(CONTIGUOUS[0], M, N, K, G, scale_layout="any"),
    ),
    "compiled": (
        call_contiguous,
        {"compiled_dims": "kn"},
        make_grouped(CONTIGUOUS[0], M, N, K, G, scale_layout="any", compiled_dims="nk"),
    ),
    "bf16 nt": (call_contiguous, {"op": "m_grouped_bf16_gemm_nt_contiguous"}, make_grouped(CONTIGUOUS[1], M, N, K, G)),
    "bf16 nn": (
        call_contiguous,
        {"op": "m_grouped_bf16_gemm_nn_contiguous"},
        make_grouped(CONTIGUOUS[1], M, N, K, G, b_major="mn"),
    ),
    "masked": (call_masked, {}, make_grouped(MASKED[0], M, N, K, G, scale_layout="any", expected_m=20)),
    "bf16 masked": (
        call_masked,
        {"op": "m_grouped_bf16_gemm_nt_masked"},
        make_grouped(MASKED[1], M, N, K, G, expected_m=20),
    ),
    "k tn": (call_k_grouped, {}, make_grouped(K_GROUPED[0], M, N, K, G)),
    "k nt": (
        call_k_grouped,
        {"op": "k_grouped_fp8_gemm_nt_contiguous"},
        make_grouped(K_GROUPED[0], M, N, K, G, scale_layout="any", group_layout="blocks"),
    ),
    "k bf16": (call_k_grouped, {"op": "k_grouped_bf16_gemm_tn_contiguous"}, make_grouped(K_GROUPED[1], M, N, K, G)),
    "k onto d": (call_k_grouped, {"c": "d"}, make_grouped(K_GROUPED[0], M, N, K, G, c_mode="accumulate")),
    "k plus c": (call_k_grouped, {"c": "c"}, make_grouped(K_GROUPED[0], M, N, K, G, c_mode="general")),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_problem_of_a_call(driver, name):
    expected = CALLS[name][2]
    (planned, *_), events = driver.call(call_recorded, name)
    assert planned == [expected.as_dict()]
    launch = select(events, "LaunchKernelEx")[-1]
    params, groups = read_params(launch), read_group_params(launch)
    assert (params["m"], params["n"], params["k"], groups["num_groups"], groups["groups"]) == (M, N, K, G, GROUPS)


def call_recorded(name):
    function, options, _ = CALLS[name]
    return record(function, **options)


def plan_hints(expected, m):
    """Return the expected_m of the problems planned for some hints, and the hits of the table."""
    with Fakes() as fakes:
        before = _C.dispatch_stats()["hits"]
        for hint in expected:
            call_masked(m=m, expected_m=hint)
        return [problem["expected_m"] for problem in fakes.planned], _C.dispatch_stats()["hits"] - before


HINTS = [
    ((1, 2, 3, 4, 5, 6, 7, 8), 4096, [1, 2, 3, 4, 5, 6, 7, 8]),
    (tuple(range(9, 33)), 4096, [10, 12, 14, 16, 20, 24, 28, 32]),
    ((0, 1, 4096, 4097, 1 << 62, 1 << 80), 4096, [1, 4096]),
    ((90, 95, 96, 97, 100, 1000), 100, [96, 100]),
]


@pytest.mark.parametrize("hints, m, planned", HINTS)
def test_hints_of_three_significant_bits(driver, hints, m, planned):
    (got, hits), _ = driver.call(plan_hints, hints, m)
    assert got == planned and hits == len(hints) - len(planned)


def plan_policies():
    """Return the problems planned under other policies. No kernel of groups splits K, so that all of them are batch
    invariant, and their problems the same.
    """
    with Fakes() as fakes:
        try:
            deep_gemm.set_mk_alignment_for_contiguous_layout(256)
            call_contiguous()
            call_masked()
            deep_gemm.set_num_sms(20)
            call_contiguous()
            deep_gemm.set_batch_invariant(True)
            call_k_grouped()
        finally:
            deep_gemm.set_mk_alignment_for_contiguous_layout(128)
            deep_gemm.set_num_sms(0)
            deep_gemm.set_batch_invariant(None)
        call_contiguous(num_groups=4)
    return [(each["alignment"], each["num_sms"], each["num_groups"], each["batch_invariant"]) for each in fakes.planned]


def test_policies_and_groups_are_in_the_key(driver):
    got, events = driver.call(plan_policies)
    assert got == [(256, 0, 3, False), (128, 0, 3, False), (256, 20, 3, False), (128, 20, 3, False), (128, 0, 4, False)]
    grids = [event["grid"][0] for event in select(events, "LaunchKernelEx")]
    assert all(grid <= 20 for grid in grids[2:5])


# K-major copies.


def passes_of(events):
    """Return (transposing launches, the product's launch, its maps of A and B)."""
    *passes, launch = select(events, "LaunchKernelEx")
    maps = {event["map"]: event for event in select(events, "TensorMapEncodeTiled")}
    return passes, launch, [maps[number] for number in launch["maps"][:2]]


def call_nn(k, group_rows=None, handle=None):
    """Call FP8 nn with so many rows of memory from one group to the next."""
    pitch = N + 16
    b = view(stub_operands.B, (G, k, N), ((group_rows or k) * pitch, pitch, 1), E4M3)
    return record(call_contiguous, "m_grouped_fp8_gemm_nn_contiguous", k=k, b=b, stream=handle)


@pytest.mark.parametrize("k, group_rows", [(272, None), (264, None), (272, 280)])
def test_all_groups_are_copied_in_one_launch(driver, k, group_rows):
    (_, memory, *_), events = driver.call(call_nn, k, group_rows, 55)
    passes, launch, (_, map_b) = passes_of(events)
    address, pitch, spacing = COPY + (1 << 40), 272, (group_rows or k) * (N + 16)
    assert memory == [(G * N, pitch, 55)]
    wanted = [stub_operands.B, address, N + 16, pitch, spacing, N * pitch, k, N, G]
    assert [event["transpose"] for event in passes] == [[wanted, [0] * 9]]
    assert passes[0]["grid"] == [G * -(-k // 128) * -(-N // 128), 1, 1]
    assert passes[0]["stream"] == launch["stream"] == 55
    assert read_group_params(launch)["scale_b_stride_group"] != 0
    assert (map_b["address"], map_b["dims"], map_b["groups"], map_b["pitch"], map_b["group_pitch"]) == (
        address,
        [k, N],
        G,
        pitch,
        N * pitch,
    )


def test_both_operands_of_groups_of_k_are_copied_in_one_launch(driver):
    (_, memory, *_), events = driver.call(record, call_k_grouped)
    passes, _, maps = passes_of(events)
    assert memory == [(M, K, 0), (N, K, 0)]
    assert [event["transpose"] for event in passes] == [
        [
            [address, COPY + (i + 1 << 40), rows + 16, K, 0, 0, K, rows, 1]
            for i, (address, rows) in enumerate(((stub_operands.A, M), (stub_operands.B, N)))
        ]
    ]
    assert [(event["dims"], event["pitch"], event["groups"]) for event in maps] == [([K, M], K, 1), ([K, N], K, 1)]


def call_k_major_tn():
    """Call tn on operands that are transposed views of K-major memory."""
    a, b = (view(address, (K, rows), (1, K), E4M3) for address, rows in ((stub_operands.A, M), (stub_operands.B, N)))
    scales = [
        view(address, (K // 128, rows), (rows, 1), FP32)
        for address, rows in ((stub_operands.SCALE_A, M), (stub_operands.SCALE_B, N))
    ]
    d = tensor(stub_operands.D, (G, M, N), FP32)
    deep_gemm.k_grouped_fp8_gemm_tn_contiguous((a, scales[0]), (b, scales[1]), d, KS, view(GROUPS, (G,), (1,), "int32"))


def test_k_major_memory_is_never_copied(driver):
    (_, memory, *_), events = driver.call(record, call_k_major_tn)
    assert memory == [] and len(select(events, "LaunchKernelEx")) == 1


def call_on_sms(num_sms):
    deep_gemm.set_num_sms(num_sms)
    try:
        return call_nn(272)
    finally:
        deep_gemm.set_num_sms(0)


def test_copies_keep_to_the_sms_of_the_call(driver):
    _, events = driver.call(call_on_sms, 5)
    copy, launch = select(events, "LaunchKernelEx")
    assert copy["grid"] == [5, 1, 1] and launch["grid"][0] <= 5


# What a call adds.


def test_ks_are_copied_where_the_caller_has_them_on_the_host_alone(driver):
    (_, memory, ks, _), events = driver.call(call_without_tensor)
    launch = select(events, "LaunchKernelEx")[-1]
    assert ks == [(KS, 9)] and read_group_params(launch)["groups"] == KS_TENSOR and launch["stream"] == 9
    (rows, columns, handle), slots = memory[0], read_group_params(launch)["map_slots"]
    assert (rows, handle, slots) == (1, 9, COPY + (1 << 40)) and columns % (launch["grid"][0] * 256) == 0


def call_without_tensor():
    return record(call_k_grouped, "k_grouped_fp8_gemm_nt_contiguous", has_tensor=False, stream=9)


def capture_without_tensor():
    """Call without ks_tensor while torch says that the stream is captured."""
    import torch

    make, capturing = stream.make_ks_tensor, torch.cuda.is_current_stream_capturing
    with Fakes():
        stream.make_ks_tensor, stream._on_stream = make, lambda handle, ordinal: torch.no_grad()
        torch.cuda.is_current_stream_capturing = lambda: True
        try:
            call_k_grouped("k_grouped_bf16_gemm_tn_contiguous", has_tensor=False)
        finally:
            torch.cuda.is_current_stream_capturing = capturing


@pytest.fixture(scope="module")
def fresh_driver(tmp_path_factory):
    with stub_driver.start(tmp_path_factory.mktemp("fresh")) as stub:
        yield stub


def test_a_captured_call_needs_ks_on_the_device(fresh_driver):
    with pytest.raises(
        ArgumentError, match="ks_tensor = None: a captured call cannot copy ks to the GPU; pass ks_tensor"
    ):
        fresh_driver.call(capture_without_tensor)


# Nothing to do.


EMPTY = [
    (call_contiguous, {"m": 0}),
    (call_contiguous, {"n": 0}),
    (call_contiguous, {"num_groups": 0}),
    (call_contiguous, {"m": 0, "k": 0}),
    (call_masked, {"m": 0}),
    (call_masked, {"n": 0}),
    (call_masked, {"num_groups": 0}),
    (call_k_grouped, {"m": 0}),
    (call_k_grouped, {"n": 0}),
    (call_k_grouped, {"ks": []}),
    (call_k_grouped, {"op": "k_grouped_fp8_gemm_nt_contiguous", "m": 0}),
]


@pytest.mark.parametrize("index", range(len(EMPTY)))
def test_nothing_to_do_asks_nothing_of_the_driver(driver, index):
    (planned, *_), events = driver.call(call_empty, index)
    assert planned == [] and events == []


def call_empty(index):
    function, options = EMPTY[index]
    return record(function, **options)


def fills(events):
    """Return (address, pitch, width, height) of the zero fills."""
    assert not select(events, "LaunchKernelEx") and all(
        event["value"] == 0 for event in select(events, "MemsetD2D8Async")
    )
    return [
        tuple(event[name] for name in ("address", "pitch", "width", "height"))
        for event in select(events, "MemsetD2D8Async")
    ]


def call_without_k(function, options):
    return record({"contiguous": call_contiguous, "masked": call_masked, "k": call_k_grouped}[function], **options)


def test_without_k_all_rows_are_zeroed(driver):
    pitch = (N + 8) * 2
    _, events = driver.call(call_without_k, "contiguous", {"k": 0})
    assert fills(events) == [(stub_operands.D, pitch, 2 * N, M)]
    _, events = driver.call(call_without_k, "masked", {"k": 0})
    assert fills(events) == [(stub_operands.D + group * (M + 2) * pitch, pitch, 2 * N, M) for group in range(G)]
    _, events = driver.call(call_without_k, "masked", {"k": 0, "m": 1})
    assert fills(events) == [(stub_operands.D, 3 * pitch, 2 * N, G)]


def fill_dense_groups():
    """Multiply groups without K into a D whose groups lie directly behind one another."""
    a, b = tensor(stub_operands.A, (0, M), BF16), tensor(stub_operands.B, (0, N), BF16)
    deep_gemm.k_grouped_bf16_gemm_tn_contiguous(a, b, view(stub_operands.D, (G, M, N), (M * N, N, 1), FP32), [0] * G)


def test_groups_that_lie_close_are_zeroed_at_once(driver):
    _, events = driver.call(fill_dense_groups)
    assert fills(events) == [(stub_operands.D, 4 * N, 4 * N, G * M)]


def test_without_k_d_is_c(driver):
    (_, _, _, copies), events = driver.call(call_without_k, "k", {"ks": [0, 0], "c": "c", "stream": 3})
    assert copies == [3] and fills(events) == []
    (_, _, _, copies), events = driver.call(call_without_k, "k", {"ks": [0, 0], "c": "d"})
    assert copies == [] and fills(events) == []
