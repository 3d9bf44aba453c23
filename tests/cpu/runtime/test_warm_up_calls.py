"""After a warm-up of what was recorded, calls that their problems do not tell of compile nothing: with signals, SwiGLU
fused with its cast, and a layer of experts across GPUs.
"""

import itertools
import json
import os
import re
from pathlib import Path

import pytest
import torch

import deep_gemm
from deep_gemm import _C, cast_kernels, plan, recorded_calls, warm_up
from deep_gemm.errors import ArgumentError, ProblemError
from deep_gemm.jit import build, kernel_set
from deep_gemm.jit.plain_kernels import plain_symbol
from deep_gemm.mega import buffer, dispatch, layer
from deep_gemm.recorded_calls import ExpertLayer, SwigluCast
from tests.fakes import stub_driver
from tests.fakes.compiler import install_counting_nvcc, read_compiled
from tests.fakes.cuda_tensors import make_tensor, needs_exchange, use_fakes
from tests.fakes.grouped_calls import call_masked
from tests.fakes.operands import forgetting
from tests.fakes.stub_operands import view
from tests.gpu.mega_operands import choose, fill, link_buffers, make_weights, prepare

BF16, FP32, INT32 = torch.bfloat16, torch.float32, torch.int32
A, B = 1 << 40, 1 << 41
H200 = _C.Device.known("h200")
MASKED = _C.Problem("m_grouped_bf16_gemm_masked", 1024, 4096, 4096, num_groups=1, expected_m=512)
#: (columns, recorded fields beside defaults, arguments): of gates and ups before expert products, and of other casts.
CASTS = [
    (512, fields | {"is_masked": is_masked}, {"scales": scales} | options)
    for scales, is_masked, (fields, options) in itertools.product(
        ("row_major", "mn_major"),
        (False, True),
        (
            ({}, {}),
            ({"has_limit": True}, {"limit": 7.0}),
            ({"is_interleaved": True, "use_ue8m0": True}, {"is_interleaved": True, "use_ue8m0": True}),
        ),
    )
] + [(500, {"is_aligned": False}, {}), (512, {"gran_k": 64, "dtype": "fp32"}, {"gran_k": 64})]


@pytest.fixture(autouse=True)
def fresh():
    """Forget what other tests recorded, before and after."""
    with forgetting(plan.forget):
        yield


def compile_with(folder: str) -> None:
    os.environ |= {"DG_JIT_USE_NVRTC": "0", "DG_JIT_CACHE_DIR": f"{folder}/home"}
    os.environ["DG_JIT_NVCC_COMPILER"] = str(install_counting_nvcc(Path(folder)))


def read_lines(path: str) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


# Signals.


def call_product(has_signals: bool) -> None:
    options = {"enable_overlap": True, "signal": view(3 << 46, (64,), (1,), "int32")} if has_signals else {}
    sizes = {name: getattr(MASKED, name) for name in ("m", "n", "k", "num_groups")}
    call_masked(op="m_grouped_bf16_gemm_nt_masked", **sizes, expected_m=MASKED.expected_m, **options)


def record_signals_and_call(folder: str, recorded: list[bool], m: int | None) -> tuple:
    """Record calls with or without signals, warm up in an empty cache, and call; return the lines, the report, and what
    each call compiled after the warm-up.
    """
    compile_with(f"{folder}")
    os.environ["DG_RECORD_SHAPES"] = f"{folder}/shapes"
    for has_signals in recorded:
        call_product(has_signals)
    del os.environ["DG_RECORD_SHAPES"]
    os.environ["DG_JIT_CACHE_DIR"] = f"{folder}/other"
    build.clear_memory()
    plan.forget()
    _C.dispatch_clear()
    report = deep_gemm.warmup(f"{folder}/shapes", m).as_dict()
    counts = [build.count_compilations()]
    for has_signals in (True, False):
        call_product(has_signals)
        counts.append(build.count_compilations())
    return read_lines(f"{folder}/shapes"), report, [after - before for before, after in itertools.pairwise(counts)]


@pytest.mark.parametrize("recorded, m", [([True], None), ([False], None), ([True, False], 512)])
def test_what_signals_is_compiled_where_it_was_recorded(tmp_path, recorded, m):
    """The kernel with signals was compiled by a server's first call, and without them one was that nobody called."""
    with stub_driver.start(tmp_path) as driver:
        (lines, report, compiled), _ = driver.call(record_signals_and_call, str(tmp_path), recorded, m)
    assert [line.get("has_signals", False) for line in lines] == recorded and report["failures"] == []
    assert compiled == [int(has_signals not in recorded) for has_signals in (True, False)]
    assert report["kernels"] == report["compiled"] == report["planned"] == len(recorded)


def test_signals_are_named_in_lists_and_change_nothing_else(monkeypatch):
    problem, line = MASKED.with_signals(), json.loads(MASKED.to_json()) | {"has_signals": True}
    for given in (problem, line, json.dumps(line), MASKED.as_dict() | {"has_signals": True}):
        found = warm_up.list_problems([given, MASKED], (8, 16), H200)
        wanted = [(8, True), (8, False), (16, True), (16, False)]
        assert [(one.expected_m, one.has_signals) for one in found] == wanted
    (found,) = warm_up.list_problems([problem], None, H200)
    assert found.has_signals and warm_up.list_problems([line | {"has_signals": False}], None, H200)[0] != found
    monkeypatch.setattr(kernel_set.ahead, "_NUM_SPREAD", 20)
    monkeypatch.setattr(kernel_set.ahead, "_WIDTHS", (4096,))
    several = kernel_set._list_kernels([problem], H200, True)
    assert all(one.parse()[0].has_signals and not one.second for one in several) and len(several) > 1
    (job,) = kernel_set._list_kernels([problem], H200, False)
    assert job.parse()[0].has_signals and not job.second and job.describe(problem).endswith(" with signals")
    row_major = _C.Problem("m_grouped_fp8_gemm_masked", 8192, 8192, 8192, num_groups=1, scale_layout="any")
    assert kernel_set._with_mn_major(row_major.with_signals()).has_signals


@pytest.mark.parametrize(
    "change, message",
    [
        ({"has_signals": 1}, "has_signals = 1: must be a bool; pass true or false"),
        ({"op": "m_grouped_bf16_gemm_contiguous"}, "signals are for masked groups; pass such a problem"),
    ],
)
def test_signals_that_cannot_be(tmp_path, change, message):
    line = {"op": MASKED.op, "fields": {"m": 8, "n": 8, "k": 8, "num_groups": 1}, "has_signals": True} | change
    path = tmp_path / "shapes"
    path.write_text(json.dumps(line) + "\n")
    flat = {name: value for name, value in line.items() if name != "fields"} | line["fields"]
    for given, place in ((path, "line 1: "), ([line], ""), ([json.dumps(line)], ""), ([flat], "")):
        with pytest.raises(ProblemError, match=place + ".*" + re.escape(message)):
            warm_up.list_problems(given, None, H200)


# SwiGLU fused with its cast.


def cast(columns: int, fields: dict, options: dict, make) -> None:
    """Call a cast on what `make`(address, shape, dtype) returns, [groups, m, columns] of masked groups."""
    dtype = FP32 if fields.get("dtype") == "fp32" else BF16
    is_masked = fields.get("is_masked", False)
    x = make(A, (4, 64, columns) if is_masked else (64, columns), dtype)
    masked_m = make(B, (4,), INT32) if is_masked else None
    deep_gemm.swiglu_per_token_cast_to_fp8(x, **{"use_ue8m0": False, "masked_m": masked_m} | options)


def record_casts_and_call(folder: str) -> tuple:
    """Record casts on the CPU, warm up, and call them on a GPU, where they are recorded, too; return both records, the
    report and what the calls compiled.
    """
    compile_with(folder)
    os.environ["DG_RECORD_SHAPES"] = f"{folder}/cpu"
    for one in CASTS:
        cast(*one, lambda address, shape, dtype: torch.ones(shape, dtype=dtype))
    real = build.get_cubin_for_source, build.find_cubin_for_source
    use_fakes()
    build.get_cubin_for_source, build.find_cubin_for_source = real
    report = deep_gemm.warmup(f"{folder}/cpu", (1, 8)).as_dict()
    before = build.count_compilations()
    os.environ["DG_RECORD_SHAPES"] = f"{folder}/gpu"
    plan.forget()
    for one in CASTS:
        cast(*one, make_tensor)
    return read_lines(f"{folder}/cpu"), read_lines(f"{folder}/gpu"), report, build.count_compilations() - before


@needs_exchange
def test_swiglu_s_casts_after_a_warm_up_compile_and_load_nothing(tmp_path):
    with stub_driver.start(tmp_path) as driver:
        (cpu, gpu, report, compiled), events = driver.call(record_casts_and_call, str(tmp_path))
    wanted = [json.loads(recorded_calls.to_line(SwigluCast(**fields))) for _, fields, _ in CASTS[-8:]]
    assert (compiled, report["failures"]) == (0, []) and cpu == gpu
    assert sorted(map(str, cpu)) == sorted(map(str, wanted)), "once for both layouts of scales"
    assert read_compiled(tmp_path) == ["// cast_rows"] * len(cpu) and report["kernels"] == report["problems"] == 8
    steps = [event["call"] for event in events if event["call"] in ("cuLibraryGetKernel", "cuLaunchKernelEx")]
    assert steps == ["cuLibraryGetKernel"] * 8 + ["cuLaunchKernelEx"] * len(CASTS), "loaded ahead, not by the calls"


def test_what_no_kernel_casts_is_not_recorded(tmp_path, monkeypatch):
    """Recording never makes a call fail, either."""
    monkeypatch.setenv("DG_RECORD_SHAPES", str(tmp_path / "shapes"))
    x = torch.ones(2, 4, 512)
    for given, options in ((x.double(), {}), (x, {"gran_k": 3}), (x[:, :0], {}), (x.to("meta"), {"gran_k": 3})):
        deep_gemm.swiglu_per_token_cast_to_fp8(given, False, **options)
    torch.func.vmap(lambda one: deep_gemm.swiglu_per_token_cast_to_fp8(one, False)[1])(x)
    assert not (tmp_path / "shapes").exists()
    deep_gemm.swiglu_per_token_cast_to_fp8(x, False)
    assert read_lines(tmp_path / "shapes") == [{"fields": {"dtype": "fp32"}, "op": "swiglu_per_token_cast_to_fp8"}]


# A layer of experts across GPUs.

EXPERTS, HIDDEN, INTERMEDIATE, TOP_K, ROOM = 6, 256, 128, 3, 40
LAYER = ExpertLayer(1, EXPERTS, ROOM, TOP_K, HIDDEN, INTERMEDIATE, has_limit=True)


def run_layer() -> None:
    (memory,) = link_buffers(1, EXPERTS, ROOM, TOP_K, HIDDEN, INTERMEDIATE)
    fill(memory, torch.randn(37, HIDDEN).bfloat16(), *choose(37, EXPERTS, TOP_K))
    weights = prepare(make_weights(EXPERTS, HIDDEN, INTERMEDIATE))
    y = torch.empty(37, HIDDEN, dtype=BF16)
    deep_gemm.fp8_mega_moe(y, *weights, memory, activation_clamp=7.0)


def test_a_layer_is_recorded_with_the_kernels_that_it_needs(tmp_path, monkeypatch):
    """Its line alone tells of both products and of the cast between them, whose own lines are there, too."""
    monkeypatch.setenv("DG_RECORD_SHAPES", str(path := tmp_path / "shapes"))
    run_layer()
    own, first, activation, second = warm_up.read_shapes(path)
    assert own == LAYER and recorded_calls.parse_call(json.loads(recorded_calls.to_line(own))) == own
    assert {first, second} < {*layer.list_products(own)} and first.expected_m == second.expected_m == 20
    assert layer.list_kernels(own) == dispatch.list_kernels(own.num_experts) + cast_kernels.list_kernels(activation)
    assert buffer.count_rows(own._replace(num_ranks=2)) != buffer.count_rows(own) == first.m


def test_a_layer_keeps_its_rows(monkeypatch):
    """Those are the buffer's, for any number of tokens; of an expert at least a quarter of its own are expected."""
    got = []
    monkeypatch.setattr(kernel_set.KernelSet, "compile", lambda kernels, jobs: got.append(jobs))
    for m in (None, (1, 8)):
        assert deep_gemm.warmup([LAYER], m, device=H200).problems == 19
    (given, _, varied, _), products = got, warm_up.list_problems(layer.list_products(LAYER), None, H200)
    assert given == varied and {*kernel_set._list_kernels(products, H200, False)} < {*given}
    expected = [5, 6, 7, 8, 10, 12, 14, 16, 20]
    assert [problem.expected_m for problem in layer.list_products(LAYER)[::2]] == expected
    large = LAYER._replace(num_max_tokens_per_rank=1024)
    assert [problem.expected_m for problem in layer.list_products(large)] == [128, 128], "as its calls have"
    names = " ".join(job.describe() for job in given)
    assert all(plain_symbol(name) in names for name, *_ in dispatch.list_kernels(LAYER.num_experts))
    assert "'kUe8m0': 0, 'kSwiglu': 1, 'kInterleaved': 1, 'kLimited': 1, 'kMasked': 1" in names
    assert "'kUe8m0': 0, 'kSwiglu': 0, 'kInterleaved': 0, 'kLimited': 0, 'kMasked': 0" in names, "of the tokens"


def test_the_steps_of_a_layer_launch_what_is_listed(monkeypatch):
    launched = []

    def take(name: str, threads: int, **constants: int):
        launched.append((name, threads, constants))
        return lambda grid, *given: None

    monkeypatch.setattr(dispatch, "_runs_kernels", lambda tensor: True)
    monkeypatch.setattr(dispatch, "_count_sms", lambda tensor: 132)
    monkeypatch.setattr(dispatch, "get_kernel", take)
    monkeypatch.setattr(layer, "multiply_rows", lambda *given: None)
    run_layer()
    assert launched == dispatch.list_kernels(LAYER.num_experts)


def load_layer(folder: str) -> tuple[dict, int]:
    """Warm up for a layer; return the report and what its plain kernels compile afterwards."""
    compile_with(folder)
    report = deep_gemm.warmup([json.loads(recorded_calls.to_line(LAYER))]).as_dict()
    before = build.count_compilations()
    for name, *_, constants in layer.list_kernels(LAYER):
        plan.get_plain_kernel(name, list(constants.items()))
    for problem in layer.list_products(LAYER):
        plan.plan(problem, 0)
    return report, build.count_compilations() - before


def test_a_layer_is_loaded_ahead(tmp_path):
    with stub_driver.start(tmp_path) as driver:
        (report, compiled), events = driver.call(load_layer, str(tmp_path))
    loads = [event for event in events if event["call"] == "cuLibraryGetKernel"]
    assert (compiled, report["failures"], report["planned"]) == (0, [], 18)
    assert len(loads) == report["kernels"] == report["compiled"] == len(read_compiled(tmp_path))
    assert {"// place_rows", "// mega_pull", "// mega_combine"} <= {*read_compiled(tmp_path)}


# Lines that no call has.


@pytest.mark.parametrize(
    "call, change, message",
    [
        (SwigluCast(), {"rows": 4}, "may have dtype, gran_k, use_ue8m0, is_masked, "),
        (SwigluCast(), {"dtype": "fp64"}, "dtype = 'fp64': must be one of bf16, fp16, fp32; pass that of x"),
        (SwigluCast(), {"dtype": 2}, "dtype = 2: must be one of bf16"),
        (SwigluCast(), {"gran_k": 8}, "gran_k = 8: no kernel has it; pass one of [16, 32, 64, 128, 256]"),
        (SwigluCast(), {"is_masked": 1}, "is_masked = 1: must be a bool; pass true or false"),
        (SwigluCast("fp32"), {"is_interleaved": True}, "is_interleaved = True: no kernel of fp32 has it; pass another"),
        (LAYER, {"num_ranks": 4}, "num_experts = 6: must be a multiple of num_ranks = 4; pass all"),
        (LAYER, {"num_topk": 33}, "num_topk = 33: must be an int of 1..32; pass such a number"),
        (LAYER, {"hidden": 192}, "hidden = 192: must be a multiple of 128, as in calls; mend it"),
        (LAYER, {"alignment": 12}, "alignment = 12: must be a multiple of 8"),
        (LAYER, {"has_limit": None}, "has_limit = None: must be a bool"),
        (LAYER, {"tokens": 1}, "must have num_ranks, num_experts, num_max_tokens_per_rank, num_topk, hidden and inter"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path, call, change, message):
    line = json.loads(recorded_calls.to_line(call))
    path = tmp_path / "shapes"
    path.write_text(f"{recorded_calls.to_line(call)}\n{json.dumps(line | {'fields': line['fields'] | change})}\n")
    with pytest.raises(ProblemError, match=re.escape(message)) as caught:
        warm_up.read_shapes(path)
    assert str(caught.value).startswith(f"{path}, line 2: {line['op']}")
    with pytest.raises(ProblemError, match=re.escape(message)):
        deep_gemm.warmup([{"op": line["op"]} | line["fields"] | change], device=H200)
    with pytest.raises(ArgumentError, match="holds a tuple"):
        deep_gemm.warmup([tuple(call)], device=H200)
