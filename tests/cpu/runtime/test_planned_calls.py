"""Calls that Python plans once: what they ask the planner, the allocator and the (stub) driver for, with tensors of
torch that say to be on a GPU.
"""

import itertools
import os
from pathlib import Path

import pytest
import torch

import deep_gemm
from deep_gemm import _C, planned, quantize, stream, warm_up
from deep_gemm.errors import ArgumentError
from deep_gemm.jit import build
from deep_gemm.jit.plain_kernels import PLAIN_KERNELS, plain_symbol
from deep_gemm.nn import products, routing, swiglu
from tests.fakes import stub_driver
from tests.fakes.compiler import install_counting_nvcc, read_compiled
from tests.fakes.cuda_tensors import STREAM, make_tensor, needs_exchange, use_fakes
from tests.fakes.stub_driver import select

BF16, FP8, FP32, INT32 = torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int32
A, B, C, D = (1 << 40, 1 << 41, 1 << 42, 1 << 43)

pytestmark = needs_exchange


def call_transposes(shapes: list[tuple], options: list[tuple]) -> tuple[list, list, list]:
    """Call a planned call on tensors of these shapes and with these options; returns what was planned and taken, and
    the results' shapes.
    """
    allocator, asked, results = use_fakes(), [], []
    kernel = planned.get_kernel("transpose_fp8", 256)

    def plan(x, *rest):
        asked.append((tuple(x.shape), *rest))
        numbers = range(2, 18)
        launch = planned.Launch(kernel, (5, 2), (planned.argument(0, 32), planned.memory(1, 64), *numbers))
        memory = planned.Memory((1,), (1,), FP32), planned.Memory((3, 2), (1, 3), INT32)
        return planned.Plan((launch,), memory, (planned.memory(1)[0], planned.argument(0)[0]))

    call = _C.make_planned_call("test", plan)
    for shape, rest in zip(shapes, options, strict=True):
        made, same = call(x := make_tensor(A, shape, FP8), *rest)
        assert same is x
        results.append((tuple(made.shape), made.data_ptr()))
    return asked, allocator.taken, results


def test_a_call_is_planned_once_and_then_takes_memory_and_launches(driver):
    (asked, taken, results), events = driver.call(call_transposes, [(3, 16)] * 3, [(None, True, 8, "text", (1, 2))] * 3)
    launches = select(events, "LaunchKernelEx")
    assert asked == [((3, 16), None, True, 8, "text", (1, 2))] and len(taken) == 6 and len(launches) == 3
    for launch, (address, *memory), result in zip(launches, taken[1::2], results, strict=True):
        assert launch["transpose"] == [[A + 32, address + 64, *range(2, 9)], [*range(9, 18)]]
        assert (launch["grid"], launch["block"], launch["stream"]) == ([5, 2, 1], [256, 1, 1], STREAM)
        assert memory == [(3, 2), (1, 3), INT32] and result == ((3, 2), address)


@pytest.mark.parametrize(
    "options",
    [[(1,), (True,)], [(1,), (None,)], [("a",), ("b",)], [((1, 2),), ((2, 1),)], [((1,),), (1,)], [(1,), (1, 1)]],
    ids=str,
)
def test_other_options_are_planned_for_themselves(driver, options):
    (asked, *_), _ = driver.call(call_transposes, [(3, 16)] * 4, options * 2)
    assert [one[1:] for one in asked] == options


def test_other_shapes_are_planned_for_themselves(driver):
    shapes = [(3, 16), (16, 3), (48,), (1, 3, 16)]
    (asked, *_), _ = driver.call(call_transposes, shapes * 2, [()] * 8)
    assert [one[0] for one in asked] == shapes


def count_plans_of_policies() -> list[int]:
    """Return how often the call was planned after each change of what plans may depend on."""
    use_fakes()
    asked, counts = [], []
    call = _C.make_planned_call("test", lambda x: asked.append(x))
    x = make_tensor(A, (4,), FP32)
    steps = (
        lambda: None, lambda: None, lambda: _C.set_num_sms(8), lambda: None, lambda: _C.set_batch_invariant(True),
        lambda: _C.set_compile_mode(True),
    )  # fmt: skip
    for step in steps:
        step()
        assert call(x) is NotImplemented
        counts.append(len(asked))
    _C.set_num_sms(0), _C.set_batch_invariant(False), _C.set_compile_mode(False)
    return counts


def test_a_change_of_policy_is_planned_for_itself(driver):
    """A declined call is remembered like others."""
    assert driver.call(count_plans_of_policies)[0] == [1, 1, 2, 2, 3, 3]


def decline_arguments() -> list[bool]:
    """Return whether calls of what no plan takes gave NotImplemented, without asking the planner."""
    use_fakes()
    call = _C.make_planned_call("test", None, [1])
    x, with_grad = make_tensor(A, (4,), FP32), make_tensor(B, (4,), FP32).requires_grad_()
    double, sparse = torch.ones(4, dtype=torch.float64), torch.ones(4).to_sparse()
    calls = [(torch.ones(4),), (x, torch.ones(4)), (x, 1.0), (x, [1]), (x, 1 << 70), (x, (1, 2, 3, 4)), (1, 2), ()]
    calls += [(double,), (sparse,), (torch.ones(4, device="meta"),), (x, with_grad), (make_tensor(A, (1,) * 5, FP32),)]
    imaginary = [make_tensor(A + 4, (4,), FP32, (2,)), make_tensor(A + 2, (4,), torch.float16, (2,))]
    calls += [(torch._neg_view(part),) for part in imaginary]  # as x.conj().imag is: memory holds other signs
    return [call(*arguments) is NotImplemented for arguments in calls]


def test_what_no_plan_takes_is_declined(driver):
    declined, events = driver.call(decline_arguments)
    assert all(declined) and not select(events, "LaunchKernelEx")


def overlap_remembered_arguments() -> list[bool]:
    """Return whether calls were declined, whose plan is known, of memory that overlaps by so many bytes."""
    use_fakes()
    kernel, asked = planned.get_kernel("transpose_fp8", 256), []

    def plan(x, d):
        asked.append(d)
        return planned.Plan((planned.Launch(kernel, (1,), (planned.argument(0), *[0] * 17)),), (), ())

    call, size = _C.make_planned_call("test", plan, [1]), 16
    pairs = [(A, B), (A, A + size), (A, A - size), (A, A), (A, A + size - 4), (A, A - size + 4)]
    found = [call(make_tensor(x, (4,), FP32), make_tensor(d, (4,), FP32)) is NotImplemented for x, d in pairs]
    return [*found, len(asked) == 1]


def test_overlaps_are_declined_although_their_plan_is_known(driver):
    declined, events = driver.call(overlap_remembered_arguments)
    assert declined == [False] * 3 + [True] * 3 + [True] and len(select(events, "LaunchKernelEx")) == 3


def test_another_gpu_is_declined(driver):
    assert driver.call(decline_on_another_gpu, cc=80, name="NVIDIA A100", devices=2)[0]


def decline_two_gpus() -> bool:
    use_fakes()
    operands = make_tensor(A, (4,), FP32, device=0), make_tensor(B, (4,), FP32, device=1)
    return _C.make_planned_call("test", None)(*operands) is NotImplemented


def test_operands_on_two_gpus_are_declined(driver):
    assert driver.call(decline_two_gpus, devices=2)[0]


def decline_on_another_gpu() -> bool:
    use_fakes()
    return _C.make_planned_call("test", None)(make_tensor(A, (4,), FP32, device=1)) is NotImplemented


def take_where_torch_is_elsewhere() -> tuple[list, list]:
    """Return the GPUs asked for by name and the GPU of the result, where the allocator takes memory of another one."""
    use_fakes()
    asked, taken = [], (1 << 45)

    def take(shape, strides, dtype, ordinal):
        asked.append(ordinal)
        return make_tensor(taken, shape, dtype, strides, ordinal)

    _C.set_allocator(lambda shape, strides, dtype: make_tensor(1 << 46, shape, dtype, strides, device=1))
    kept, stream.empty_strided = stream.empty_strided, take
    try:
        kernel = planned.get_kernel("transpose_fp8", 256)
        launch = planned.Launch(kernel, (1,), (planned.argument(0), planned.memory(0), *[0] * 16))
        plan = planned.Plan((launch,), (planned.Memory((4,), (1,), FP32),), planned.memory(0)[:1])
        made = _C.make_planned_call("test", lambda x: plan)(make_tensor(A, (4,), FP32))
    finally:
        stream.empty_strided = kept
    return asked, [made.get_device(), made.data_ptr()]


def test_memory_is_of_the_gpu_of_the_arguments(driver):
    """After `x = torch.empty(1, device="cuda:1")` the driver's current GPU is 1 and torch's is 0."""
    (asked, result), events = driver.call(take_where_torch_is_elsewhere, devices=2)
    (launch,) = select(events, "LaunchKernelEx")
    assert asked == [0] and result == [0, 1 << 45] and launch["transpose"][0][:2] == [A, 1 << 45]


def make_wrong_plans() -> list[str]:
    """Return the messages of plans that are none."""
    use_fakes()
    kernel, x = planned.get_kernel("transpose_fp8", 256), make_tensor(A, (4,), FP32)
    launch = planned.Launch(kernel, (1,), (0,) * 18)
    messages = []
    for plan in (
        (), 1, ((), ()), ((launch,), (), (1,)), ((launch,), (), (-1,)), ((launch._replace(kernel=print),), (), ()),
        ((launch._replace(arguments=(0,) * 33),), (), ()), ((), (((1,), (1,), FP32),) * 5, ()),
        ((launch._replace(arguments=(0,) * 5),), (), ()),
    ):  # fmt: skip
        call = _C.make_planned_call("test", lambda x, plan=plan: plan)
        with pytest.raises(ArgumentError) as caught:
            call(x)
        messages.append(str(caught.value))
    return messages


def test_wrong_plans_are_refused(driver):
    messages, events = driver.call(make_wrong_plans)
    assert not select(events, "LaunchKernelEx") and not any("kernel is" in message for message in messages)
    for message, part in zip(
        messages, ["not a plan"] * 3 + ["no such tensor"] * 2 + ["make_plain_kernel"], strict=False
    ):
        assert message.startswith("test: ") and part in message
    assert (
        "more arguments" in messages[6] and "at most 4" in messages[7] and "5 arguments after the grid" in messages[8]
    )


# The calls of the package.


def cast_calls() -> dict:
    """Return calls of every kind on a GPU: name -> (call, memory taken, launches)."""
    x, sf = make_tensor(A, (128, 256), BF16), make_tensor(B, (128, 2), FP32)
    few, half = make_tensor(A, (100, 256), BF16), make_tensor(B, (128, 128), BF16)
    groups, masked_m = make_tensor(A, (4, 8, 256), BF16), make_tensor(B, (4,), INT32)
    lengths = make_tensor(C, (5,), INT32)
    a, b = make_tensor(A, (64, 7168), BF16), make_tensor(B, (24, 7168), FP32)
    d, squares = make_tensor(C, (64, 24), FP32), make_tensor(D, (64,), FP32)
    parts, part_squares = make_tensor(C, (16, 64, 24), FP32), make_tensor(D, (16, 64), FP32)
    long_a, long_b = make_tensor(A, (64, 65536), BF16), make_tensor(B, (24, 65536), FP32)
    s, t = make_tensor(A, (64, 64, 128), BF16), make_tensor(B, (64, 128, 128), BF16)
    long_s, long_t = make_tensor(A, (99, 64, 128), BF16), make_tensor(B, (99, 128, 128), BF16)
    choices, gates = make_tensor(A, (128, 6), torch.int32), make_tensor(B, (128, 3), FP32)
    wide = make_tensor(D, (500, 256), BF16)
    group_sf, ends = make_tensor(A, (10, 256), FP32), make_tensor(C, (4,), torch.int32)
    pack_groups = deep_gemm.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor
    return {
        "per_token": (lambda: quantize.per_token_cast_to_fp8(x, False), 2, 1),
        "mn_major": (lambda: quantize.per_token_cast_to_fp8(x, True, scales="mn_major"), 2, 1),
        "masked": (lambda: quantize.per_token_cast_to_fp8(groups, False, masked_m=masked_m), 2, 1),
        "swiglu": (lambda: quantize.swiglu_per_token_cast_to_fp8(x, False), 2, 1),
        "per_block": (lambda: quantize.per_block_cast_to_fp8(x, False), 2, 1),
        "per_channel": (lambda: quantize.per_channel_cast_to_fp8(x, False), 2, 1),
        "per_custom_dims": (lambda: quantize.per_custom_dims_cast_to_fp8(half, [0], False), 2, 1),
        "padded": (lambda: products._padded_cast(few), 2, 1),
        "swiglu_grad": (lambda: swiglu._differentiate(x, half, True), 2, 1),
        "place": (lambda: routing._place(choices, 100, False), 2, 1),
        "spread": (lambda: routing._spread(x, choices, None, wide), 0, 1),
        "combine": (lambda: routing._combine(wide, choices, gates), 1, 1),
        "layout": (lambda: deep_gemm.get_mn_major_tma_aligned_tensor(sf), 1, 1),
        "packing": (lambda: deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf), 1, 1),
        "packing of groups": (lambda: pack_groups(group_sf, ends, use_psum_layout=True), 1, 1),
        "transform": (lambda: deep_gemm.transform_sf_into_required_layout(sf, 128, 256, (1, 128)), 1, 1),
        "blocks": (lambda: deep_gemm.transform_sf_into_required_layout(sf, None, None, (128, 128)), 0, 0),
        "metadata": (lambda: deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, 132), 1, 1),
        "hc_prenorm": (lambda: deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares), 0, 1),
        "hc_prenorm, long": (lambda: deep_gemm.tf32_hc_prenorm_gemm(long_a, long_b, d, squares), 1, 2),
        "hc_prenorm in parts": (lambda: deep_gemm.tf32_hc_prenorm_gemm(a, b, parts, part_squares, 16), 0, 1),
        "sum": (lambda: deep_gemm.einsum("bmk,bnk->mn", s, t, make_tensor(D, (64, 128), FP32)), 0, 1),
        "sum, long": (lambda: deep_gemm.einsum("bmk,bnk->mn", long_s, long_t, make_tensor(D, (64, 128), FP32)), 1, 2),
    }  # fmt: skip


def warm_up_and_project(folder: str) -> tuple[dict, int]:
    """Warm up for tf32_hc_prenorm_gemm, call it and record it; return the report and what the calls compiled."""
    os.environ |= {"DG_JIT_USE_NVRTC": "0", "DG_JIT_CACHE_DIR": f"{folder}/home"}
    os.environ["DG_JIT_NVCC_COMPILER"] = str(install_counting_nvcc(Path(folder)))
    os.environ["DG_RECORD_SHAPES"] = f"{folder}/shapes"
    real = build.get_cubin_for_source
    use_fakes()
    build.get_cubin_for_source = real
    call = {"op": "tf32_hc_prenorm_gemm", "m": 13, "n": 24, "k": 7168}
    report = deep_gemm.warmup([call, call | {"num_splits": 4}], (13, 300, 4096), device="h200").as_dict()
    before = build.count_compilations()
    for m, lead in itertools.product((13, 300, 4096), ((), (4,))):
        a, b = make_tensor(A, (m, 7168), BF16), make_tensor(B, (24, 7168), FP32)
        d, squares = make_tensor(C, (*lead, m, 24), FP32), make_tensor(D, (*lead, m), FP32)
        for _ in range(2):
            deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares, *lead)
    return report, build.count_compilations() - before


def test_a_warm_up_compiles_what_projections_launch(tmp_path):
    with stub_driver.start(tmp_path) as fresh:
        (report, later), events = fresh.call(warm_up_and_project, str(tmp_path))
    assert (report["problems"], report["failures"], later) == (6, [], 0)
    assert len(read_compiled(tmp_path)) == report["kernels"] == report["compiled"] == 5
    assert len(select(events, "LaunchKernelEx")) == 14, "unsplit calls of 4096 rows add up in a second launch"
    shapes = [(shape.m, shape.num_splits) for shape in warm_up.read_shapes(tmp_path / "shapes")]
    assert shapes == list(itertools.product((13, 300, 4096), (1, 4)))


def run_package(is_compile_mode: bool) -> dict:
    """Return what each call of the package took memory for, and the shapes of its results, of two calls of each."""
    allocator, found = use_fakes(), {}
    _C.set_compile_mode(is_compile_mode)
    try:
        for name, (call, *_) in cast_calls().items():
            for _ in range(2):
                del allocator.taken[:]
                result = call()
                found[name] = len(allocator.taken), describe(result)
    finally:
        _C.set_compile_mode(False)
    return found


def describe(result: object) -> list[tuple]:
    tensors = result if isinstance(result, tuple) else (result,)
    return [(str(one.dtype), tuple(one.shape), one.stride()) for one in tensors if one is not None]


EXPECTED = {
    "per_token": [("torch.float8_e4m3fn", (128, 256), (256, 1)), ("torch.float32", (128, 2), (2, 1))],
    "mn_major": [("torch.float8_e4m3fn", (128, 256), (256, 1)), ("torch.float32", (128, 2), (1, 128))],
    "masked": [("torch.float8_e4m3fn", (4, 8, 256), (2048, 256, 1)), ("torch.float32", (4, 8, 2), (16, 2, 1))],
    "swiglu": [("torch.float8_e4m3fn", (128, 128), (128, 1)), ("torch.float32", (128, 1), (1, 1))],
    "per_block": [("torch.float8_e4m3fn", (128, 256), (256, 1)), ("torch.float32", (1, 2), (2, 1))],
    "per_channel": [("torch.float8_e4m3fn", (128, 256), (256, 1)), ("torch.float32", (1, 256), (256, 1))],
    "per_custom_dims": [("torch.float8_e4m3fn", (128, 128), (128, 1)), ("torch.float32", (128,), (1,))],
    "padded": [("torch.float8_e4m3fn", (128, 256), (256, 1)), ("torch.float32", (1, 256), (256, 1))],
    "swiglu_grad": [("torch.bfloat16", (128, 256), (256, 1)), ("torch.bfloat16", (128, 128), (128, 1))],
    "place": [("torch.int32", (128, 6), (6, 1)), ("torch.int32", (100,), (1,))],
    "spread": [],
    "combine": [("torch.bfloat16", (128, 256), (256, 1))],
    "layout": [("torch.float32", (128, 2), (1, 128))],
    "packing": [("torch.int32", (128, 1), (1, 128))],
    "packing of groups": [("torch.int32", (5, 256), (256, 1))],
    "transform": [("torch.float32", (128, 2), (1, 128))],
    "blocks": [("torch.float32", (128, 2), (2, 1))],
    "metadata": [("torch.int32", (133, 2), (2, 1))],
    "hc_prenorm": [],
    "hc_prenorm, long": [],
    "hc_prenorm in parts": [],
    "sum": [],
    "sum, long": [],
}


def count_launches() -> dict:
    """Return what cast_calls says of each call."""
    use_fakes()
    return {name: counts for name, (_, *counts) in cast_calls().items()}


def test_the_calls_of_the_package(driver):
    counts = driver.call(count_launches)[0]
    found, events = driver.call(run_package, False)
    assert {name: results for name, (_, results) in found.items()} == EXPECTED
    assert {name: taken for name, (taken, _) in found.items()} == {name: taken for name, (taken, _) in counts.items()}
    launches = select(events, "LaunchKernelEx")
    assert len(launches) == 2 * sum(launched for _, launched in counts.values())
    assert {launch["stream"] for launch in launches} == {STREAM}


def test_compile_mode_loads_the_kernels_and_launches_nothing(tmp_path):
    with stub_driver.start(tmp_path) as fresh:
        found, events = fresh.call(run_package, True)
    loaded = {event["name"] for event in select(events, "LibraryGetKernel")}
    assert not select(events, "LaunchKernelEx") and not select(events, "MemsetD2D8Async")
    plain = {plain_symbol(name) for name in PLAIN_KERNELS if not name.startswith(("transpose", "mega"))}
    assert plain | {"deep_gemm_summed_bf16_gemm"} <= loaded
    assert {name: results for name, (_, results) in found.items()} == EXPECTED


def plan_prenorm(n: int, num_splits: int | None, k: int = 7168) -> list:
    """Return the memory taken by a call with `n` rows of B."""
    allocator = use_fakes()
    a, b = make_tensor(A, (13, k), BF16), make_tensor(B, (n, k), FP32, (k + 8, 1))
    lead = () if num_splits is None else (num_splits,)
    d = make_tensor(C, (*lead, 13, n), FP32, (*(500 for _ in lead), n + 3, 1))
    deep_gemm.tf32_hc_prenorm_gemm(a, b, d, make_tensor(D, (*lead, 13), FP32), num_splits)
    return allocator.taken


def test_the_arguments_of_a_prenorm_in_parts(driver):
    taken, events = driver.call(plan_prenorm, 28, 2, arguments=13)
    first, second = (launch["plain"] for launch in select(events, "LaunchKernelEx"))
    assert first == [A, B, C, D, 7168, 7176, 500, 31, 13, *first[9:]] and not taken
    assert second == [A, B + 24 * 7176 * 4, C + 24 * 4, D, 7168, 7176, 500, 31, 13, *second[9:]]
    for arguments, n in ((first, 24), (second, 4)):
        assert [number & 0xFFFFFFFF for number in arguments[9:]] == [13, n, 7168, 2]


def test_the_arguments_of_a_prenorm_that_a_cluster_adds_up(driver):
    taken, events = driver.call(plan_prenorm, 24, None, arguments=13)
    (launch,) = select(events, "LaunchKernelEx")
    assert launch["grid"] == [8, 1, 1] and not taken
    assert launch["plain"][:9] == [A, B, C, D, 7168, 7176, 0, 27, 0]
    assert [number & 0xFFFFFFFF for number in launch["plain"][9:]] == [13, 24, 7168, 8]


def test_the_arguments_of_a_prenorm_that_another_kernel_adds_up(driver):
    taken, events = driver.call(plan_prenorm, 24, None, 65536, arguments=8)
    parts, total = (launch["plain"] for launch in select(events, "LaunchKernelEx"))
    ((address, shape, _, dtype),) = taken
    count = 132  # of the stub's GPU
    squares = address + 4 * count * 13 * 24
    assert shape == (count * 13 * 25,) and dtype == FP32
    assert parts == [A, B, address, squares, 65536, 65544, 13 * 24, 24]
    assert total[:5] == [address, squares, C, D, 27]
    assert [number & 0xFFFFFFFF for number in total[5:]] == [count, 13, 24]
