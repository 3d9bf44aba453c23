"""From the public ops to the (stub) driver: the problem of each call, transposed copies, overlap of launches, clusters
that do not fit.
"""

import types
import warnings

import pytest

import deep_gemm
from deep_gemm import _C, plan, selection, stream
from deep_gemm.errors import ArgumentError, DeviceError, LaunchError
from deep_gemm.jit import build
from tests.fakes import stub_driver, stub_operands
from tests.fakes.stub_driver import load_kernel, read_params, select, use_fake_build
from tests.fakes.stub_operands import make_variant, view

M, N, K = 40, 256, 512
COPY = 1 << 46


# Problems.


def use_fakes():
    """Compile nothing, and take the memory of copies from nowhere. Returns the list of planned problems as dicts."""
    use_fake_build()
    stream.empty_fp8 = lambda rows, columns, ordinal, handle: (
        copies.append((rows, columns, handle)),
        view(COPY, (rows, columns), (columns, 1), "float8_e4m3fn", ordinal),
    )[1]
    build.get_cubin_for_source = lambda source, name, **options: types.SimpleNamespace(
        cubin=b"transposing", kernel_name=name
    )
    plan_one, planned, copies = plan.plan, [], []
    plan.plan = lambda problem, ordinal: (
        planned.append({**problem.as_dict(), "device": ordinal}),
        plan_one(problem, ordinal),
    )[1]
    return planned, copies, lambda: setattr(plan, "plan", plan_one)


def call_op(fields: dict, m=M, n=N, k=K, device=0, **options):
    """Call the public nt op on described operands of a variant."""
    problem = _C.Problem(
        fields.get("op", "fp8_gemm"), 1, 1, 1, **{name: value for name, value in fields.items() if name != "op"}
    )
    (a, scale_a, b, scale_b, d), given = make_variant(problem, m, n, k, device=device)
    options = given | options
    if problem.op == "bf16_gemm":
        return deep_gemm.bf16_gemm_nt(a, b, d, **options)
    if problem.c_mode == "head_split":
        return deep_gemm.fp8_gemm_nt_skip_head_mid((a, scale_a), (b, scale_b), d, **options)
    recipe = {"1d1d": (1, 1, 128)}.get(problem.recipe)
    return deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), d, recipe=recipe, **options)


VARIANTS = (
    {},
    {"scale_layout": "any"},
    {"d_dtype": "fp32"},
    {"c_mode": "general"},
    {"c_mode": "general", "d_dtype": "fp32"},
    {"c_mode": "accumulate", "d_dtype": "fp32"},
    {"c_mode": "head_split"},
    {"recipe": "1d1d"},
    {"recipe": "1d1d", "scale_layout": "any"},
    {"recipe": "per_row"},
    {"op": "bf16_gemm"},
    {"op": "bf16_gemm", "a_major": "mn"},
    {"op": "bf16_gemm", "b_major": "mn"},
    {"op": "bf16_gemm", "a_major": "mn", "b_major": "mn", "d_dtype": "fp32", "c_mode": "accumulate"},
)


def plan_every_variant():
    """Call the ops on every variant twice; return the planned problems and the dispatch's hits and misses."""
    planned, _, restore = use_fakes()
    before = _C.dispatch_stats()
    try:
        for _ in range(2):
            for fields in VARIANTS:
                call_op(fields)
        deep_gemm.set_batch_invariant(True)
        call_op({})
        deep_gemm.set_batch_invariant(None)
        call_op({}, device=1)
    finally:
        restore()
        deep_gemm.set_batch_invariant(None)
    after = _C.dispatch_stats()
    return planned, after["hits"] - before["hits"], after["misses"] - before["misses"]


def test_every_field_of_a_problem_is_in_the_key(driver):
    (planned, hits, misses), _ = driver.call(plan_every_variant, devices=2)
    plain = _C.Problem("fp8_gemm", M, N, K).as_dict() | {"device": 0}
    # BF16 products are batch invariant when nobody asks for anything.
    expected = [plain | fields | {"batch_invariant": fields.get("op") == "bf16_gemm"} for fields in VARIANTS]
    expected += [plain | {"batch_invariant": True}, plain | {"device": 1}]
    assert planned == expected
    assert (hits, misses) == (len(VARIANTS), len(VARIANTS) + 2)


def plan_sums():
    """Return c_mode of calls with C that is D and other factors."""
    planned, _, restore = use_fakes()
    d = view(stub_operands.D, (M, N), (N, 1), "float32")
    half = view(stub_operands.D, (M, N), (N, 1), "bfloat16")
    a, b = (
        view(address, (rows, K), (K, 1), "bfloat16") for address, rows in ((stub_operands.A, M), (stub_operands.B, N))
    )
    same = view(stub_operands.D, (M, N), (N, 1), "float32")
    try:
        for out, c, options in [
            (d, d, {}),
            (d, same, {}),
            (d, d, {"beta": 2.0}),
            (d, d, {"alpha": 0.5}),
            (half, half, {}),
            (d, d, {"beta": 0.0}),
            (d, None, {"beta": 3.0}),
        ]:
            _C.dispatch_clear()
            deep_gemm.bf16_gemm_nt(a, b, out, c, **options)
    finally:
        restore()
    return [problem["c_mode"] for problem in planned]


def test_only_an_unscaled_fp32_sum_onto_d_is_accumulated(driver):
    modes, _ = driver.call(plan_sums)
    assert modes == ["accumulate", "accumulate", "general", "general", "general", "none", "none"]


SCALES = {
    "aligned": ((M, 4), (1, M), 0, "mn_major"),
    "odd pitch": ((M, 4), (1, M + 1), 0, "any"),
    "odd address": ((M, 4), (1, M), 4, "any"),
    "row-major": ((M, 4), (4, 1), 0, "any"),
    "short pitch": ((M, 4), (1, M - 4), 0, "any"),
    "repeated": ((M, 4), (1, 0), 0, "any"),
    "one row": ((1, 4), (99, 4), 0, "mn_major"),
    "one packed row": ((1, 4), (4, 1), 0, "any"),
    "one step": ((M, 1), (1, 7), 0, "mn_major"),
    "one strided step": ((M, 1), (2, 1), 0, "any"),
    "one scale": ((1, 1), (3, 5), 0, "mn_major"),
}


def plan_scales(shape, strides, offset):
    """Return the scale layout of a call with such scales of A."""
    planned, _, restore = use_fakes()
    m, k = shape[0], 128 * shape[1]
    a, b = (
        view(address, (rows, k), (k, 1), "float8_e4m3fn")
        for address, rows in ((stub_operands.A, m), (stub_operands.B, N))
    )
    scale_a, scale_b = (
        view(stub_operands.SCALE_A + offset, shape, strides, "float32"),
        view(stub_operands.SCALE_B, (2, shape[1]), (9, 1), "float32"),
    )
    try:
        deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), view(stub_operands.D, (m, N), (N, 1), "bfloat16"))
    finally:
        restore()
    return planned[0]["scale_layout"]


@pytest.mark.parametrize("name", SCALES)
def test_which_scales_tma_reads(driver, name):
    *scales, expected = SCALES[name]
    assert driver.call(plan_scales, *scales)[0] == expected


# Transposed copies.


def call_layout(layout, m=M, n=N, k=K, **options):
    """Call an FP8 op on operands with that memory; return the copies' (rows, columns, stream)."""
    _, copies, restore = use_fakes()
    is_a_transposed, is_b_transposed = layout in ("tn", "tt"), layout in ("nn", "tn")
    sizes = [((k, m) if is_a_transposed else (m, k)), ((k, n) if is_b_transposed else (n, k))]
    a, b = (
        view(address, size, (-(-size[1] // 16) * 16 + 16, 1), "float8_e4m3fn")
        for address, size in zip((stub_operands.A, stub_operands.B), sizes)
    )
    steps, blocks = -(-k // 128), -(-n // 128)
    scale_a = view(
        stub_operands.SCALE_A,
        (steps, m) if is_a_transposed else (m, steps),
        (m, 1) if is_a_transposed else (1, m),
        "float32",
    )
    scale_b = view(stub_operands.SCALE_B, (steps, blocks) if is_b_transposed else (blocks, steps), (99, 1), "float32")
    try:
        getattr(deep_gemm, f"fp8_gemm_{layout}")(
            (a, scale_a), (b, scale_b), view(stub_operands.D, (m, n), (-(-n // 8) * 8, 1), "bfloat16"), **options
        )
    finally:
        restore()
    return copies


@pytest.mark.parametrize("layout, transposed", [("nt", ""), ("nn", "b"), ("tn", "ab"), ("tt", "a")])
def test_operands_that_are_not_k_major_are_transposed_first(driver, layout, transposed):
    copies, events = driver.call(call_layout, layout, M, 200, 300)
    *passes, launch = select(events, "LaunchKernelEx")
    assert len(passes) == (1 if transposed else 0)
    rows = {"a": M, "b": 200}
    addresses = {"a": stub_operands.A, "b": stub_operands.B}
    assert [copy[:2] for copy in copies] == [(rows[name], 304) for name in transposed]
    for event in passes:
        wanted = [
            [addresses[name], COPY, -(-rows[name] // 16) * 16 + 16, 304, 0, 0, 300, rows[name], 1]
            for name in transposed
        ]
        assert event["transpose"] == [*wanted, *[[0] * 9] * (2 - len(wanted))]
        tiles = sum(3 * -(-rows[name] // 128) for name in transposed)
        assert (event["grid"], event["block"]) == ([tiles, 1, 1], [256, 1, 1])
    maps = {event["map"]: event for event in select(events, "TensorMapEncodeTiled")}
    map_a, map_b, *_, map_a_tail = launch["maps"]
    got = [maps[map_a or map_a_tail], maps[map_b]]  # a tile of more than M rows loads by the map of its last rows alone
    assert [event["address"] for event in got] == [COPY if name in transposed else addresses[name] for name in "ab"]
    assert [event["dims"] for event in got] == [[300, M], [300, 200]]
    assert [event["pitch"] for event in got] == [304 if name in transposed else 320 for name in "ab"]


def test_scales_of_a_transposed_operand_are_read_where_they_are(driver):
    _, events = driver.call(call_layout, "tn")
    params = read_params(select(events, "LaunchKernelEx")[-1])
    assert (params["scale_a"], params["scale_a_stride_mn"], params["scale_a_stride_k"]) == (stub_operands.SCALE_A, 1, M)
    assert (params["scale_b"], params["scale_b_stride_mn"], params["scale_b_stride_k"]) == (
        stub_operands.SCALE_B,
        1,
        99,
    )


def call_on_stream(handle):
    return call_layout("nn", stream=handle)


def test_copies_belong_to_the_stream_of_the_call(driver):
    copies, events = driver.call(call_on_stream, 77)
    assert copies == [(N, K, 77)]
    assert [event["stream"] for event in select(events, "LaunchKernelEx")] == [77, 77]


def call_twice():
    call_layout("nn")
    call_layout("tt")


def test_the_transposing_kernel_is_loaded_once(driver):
    _, events = driver.call(call_twice)
    assert len([event for event in select(events, "LibraryLoadData") if event["first"].startswith("transposing")]) <= 1
    assert all(event["capture_mode"] == 2 for event in select(events, "LibraryLoadData"))


def call_on_sms(num_sms, m, n, k):
    deep_gemm.set_num_sms(num_sms)
    try:
        call_layout("tn", m, n, k)
    finally:
        deep_gemm.set_num_sms(0)


@pytest.mark.parametrize("num_sms, grid", [(0, 172), (1, 1), (7, 7), (100, 100), (132, 172), (500, 172)])
def test_copies_keep_to_the_sms_of_the_call(driver, num_sms, grid):
    _, events = driver.call(call_on_sms, num_sms, 300, 5000, 512)
    copy, launch = select(events, "LaunchKernelEx")
    assert copy["grid"] == [grid, 1, 1]
    assert launch["grid"][0] <= (num_sms if 0 < num_sms < 132 else 132)


def test_copies_of_any_k(driver):
    _, events = driver.call(call_layout, "nn", 1, 8, 1 << 23)
    assert select(events, "LaunchKernelEx")[0]["grid"] == [1 << 16, 1, 1]


# Overlap of launches.


def launch_overlapping(is_enabled):
    before = deep_gemm.get_pdl()
    deep_gemm.set_pdl(is_enabled)
    try:
        load_kernel(_C.Config(128, 64, 4, cluster_n=2)).launch(*stub_driver.make_operands(300, 256, 256))
        load_kernel(_C.Config(64, 64, 4)).launch(*stub_driver.make_operands(300, 256, 256))
        call_layout("nn")
    finally:
        deep_gemm.set_pdl(before)


@pytest.mark.parametrize("is_enabled", [False, True])
def test_kernels_overlap_where_the_policy_says_so(driver, is_enabled):
    _, events = driver.call(launch_overlapping, is_enabled)
    clustered, single, transposing, last = select(events, "LaunchKernelEx")
    assert [event["overlap"] for event in (clustered, single, last)] == [int(is_enabled)] * 3
    assert not transposing["overlap"], "it waits for nothing by itself"
    assert clustered["cluster"] == 2 and single["cluster"] == 0


# Clusters.


def launch_split():
    problem = _C.Problem("bf16_gemm", 1, 1, 1)
    positional, _ = make_variant(problem, 16, 512, 4096)
    load_kernel(_C.Config(16, 64, 4, block_k=64, split_k=4, swap_ab=1), problem=problem).launch(*positional)


def test_split_k_is_a_cluster(driver):
    _, events = driver.call(launch_split)
    (launch,) = select(events, "LaunchKernelEx")
    assert launch["cluster"] == 4 and launch["grid"] == [8 * 4, 1, 1]


def launch_split_on_few_sms():
    problem = _C.Problem("bf16_gemm", 1, 1, 1)
    positional, _ = make_variant(problem, 16, 512, 4096)
    load_kernel(_C.Config(16, 64, 4, block_k=64, split_k=4, swap_ab=1), problem=problem).launch(*positional, num_sms=60)


def test_split_k_takes_all_sms(driver):
    with pytest.raises(ArgumentError, match="num_sms = 60: a config with split_k takes all SMs; pass 0"):
        driver.call(launch_split_on_few_sms)


def plan_clusters():
    """Let the selector choose a cluster on a GPU that places none; return the configs built and the warnings."""
    builds = use_fake_build()
    chosen, explain = _C.Config(128, 128, 4, cluster_m=2), selection.explain
    selection.explain = lambda problem, device: _C.Choice(chosen, "learned", "")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                stub_driver.run_op(3000, 4096, 640)
    finally:
        selection.explain = explain
    return [config for _, config, _ in builds], [str(warning.message) for warning in caught]


def test_a_gpu_without_clusters_gets_configs_without_them(driver):
    (built, warned), events = driver.call(plan_clusters, clusters=0)
    assert len(built) == 2 and built[0].endswith("c2x1") and built[1].endswith("c1x1")
    assert len(warned) == 1 and "places no cluster of the config chosen for fp8_gemm m=3000" in warned[0]
    launches = select(events, "LaunchKernelEx")
    assert len(launches) == 2 and all(launch["cluster"] == 0 for launch in launches)


def load_clustered():
    load_kernel(_C.Config(128, 96, 4, cluster_m=2))


def test_an_explicit_kernel_says_that_its_cluster_does_not_fit(driver):
    with pytest.raises(LaunchError, match="no cluster of 2 CTAs fits this GPU"):
        driver.call(load_clustered, clusters=0)


# Without k.


def call_without_k(fields):
    call_op(fields, k=0)


def test_without_k_and_c_d_is_zeroed_in_its_own_width(driver):
    for fields, width in (({}, 2 * N), ({"d_dtype": "fp32"}, 4 * N), ({"op": "bf16_gemm"}, 2 * N)):
        _, events = driver.call(call_without_k, fields)
        (fill,) = select(events, "MemsetD2D8Async")
        assert (fill["width"], fill["height"]) == (width, M) and not select(events, "LaunchKernelEx")


def test_without_k_an_accumulating_d_is_untouched(driver):
    _, events = driver.call(call_without_k, {"c_mode": "accumulate", "d_dtype": "fp32"})
    assert not select(events, "MemsetD2D8Async") and not select(events, "LaunchKernelEx")


def test_a_gpu_without_kernels_refuses_every_op(driver):
    for fields in ({"op": "bf16_gemm"}, {"recipe": "per_row"}, {"c_mode": "head_split"}):
        with pytest.raises(DeviceError, match="NVIDIA A100.*need compute capability 9.0"):
            driver.call(call_on_a100, fields, devices=4, name="NVIDIA A100", cc=80)


def call_on_a100(fields):
    call_op(fields, device=3)
