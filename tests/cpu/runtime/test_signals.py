"""Masked products that signal their rows: the arguments, what CPU tensors get, and what reaches the (stub) driver."""

import pickle

import pytest
import torch

import deep_gemm
from deep_gemm import _C, plan
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ProblemError, ShapeError
from deep_gemm.jit import generator
from tests.fakes.grouped_arguments import BF16_MASKED, CONTIGUOUS, MASKED, G, M, N, call, cut, expect, int32, ones
from tests.fakes.grouped_calls import call_masked
from tests.fakes.grouped_variants import MASKED as MASKED_KINDS
from tests.fakes.grouped_variants import make_grouped
from tests.fakes.stub_driver import read_group_params, select, use_fake_build
from tests.fakes.stub_operands import view

BLOCKS, THRESHOLD = M // 64, N
SIGNAL = 3 << 46


def make_signal(*shape):
    return torch.zeros(shape or (G * BLOCKS,), dtype=torch.int32)


def overlap(**changes):
    return {"enable_overlap": True, "signal": make_signal()} | changes


# Arguments.


@pytest.mark.parametrize("op", [MASKED, BF16_MASKED])
def test_the_cpu_signals_the_rows_in_use(op):
    """masked_m is (5, 0, M); the tensor is longer than it need be, and of any rank."""
    for signal in (make_signal(), make_signal(G * BLOCKS + 2), make_signal(G, BLOCKS, 1)):
        returned = call(op, d=(d := torch.zeros(G, M, N)), enable_overlap=True, max_block_n=1, signal=signal)
        assert returned == (64, THRESHOLD) and type(returned) is tuple
        wanted = [THRESHOLD, 0, 0, 0, *[0] * BLOCKS, *[THRESHOLD] * BLOCKS]
        assert signal.flatten().tolist() == wanted + [0] * (signal.numel() - len(wanted))
        assert bool((d[2] != 0).all()) and not d[1].any()


@pytest.mark.parametrize("n, threshold", [(1, 8), (8, 8), (9, 16), (144, 144)])
def test_the_threshold_is_the_area_of_64_rows(n, threshold):
    signal = make_signal()
    pair = ones(G, n, 272).to(torch.float8_e4m3fn), torch.ones(G, -(-n // 128), 3)
    returned = call(MASKED, b=pair[0], scale_b=pair[1], d=cut(G, M, n, pitch=152), **overlap(signal=signal))
    assert returned == (64, threshold) and signal.max() == threshold


@pytest.mark.parametrize("options", [{}, {"enable_overlap": False}, {"signal": False, "max_block_n": 7}], ids=str)
def test_calls_without_signals_return_none(options):
    assert call(MASKED, **options) is None


def test_nothing_is_signalled_where_there_is_nothing_to_compute():
    operands = {"a": ones(0, M, 272), "b": ones(0, N, 272), "d": ones(0, M, N), "masked_m": int32()}
    assert call(BF16_MASKED, **operands, **overlap(signal=make_signal(0))) == (64, THRESHOLD)
    rows = {"a": ones(G, 0, 272), "d": ones(G, 0, N), "masked_m": int32(0, 0, 0)}
    assert call(BF16_MASKED, **rows, **overlap(signal=make_signal(0))) == (64, THRESHOLD)


def test_a_product_over_no_k_signals_its_zeros():
    signal = make_signal()
    operands = {"a": ones(G, M, 0), "b": ones(G, N, 0), "d": (d := ones(G, M, N))}
    assert call(BF16_MASKED, **operands, **overlap(signal=signal)) == (64, THRESHOLD)
    assert signal.tolist() == [THRESHOLD, 0, 0, 0, *[0] * BLOCKS, *[THRESHOLD] * BLOCKS] and not d[2].any()


def test_compile_mode_signals_nothing():
    signal = make_signal()
    deep_gemm.set_compile_mode(True)
    try:
        assert call(MASKED, **overlap(signal=signal)) == (64, THRESHOLD) and not signal.any()
    finally:
        deep_gemm.set_compile_mode(False)


def test_meta_tensors_are_checked_and_nothing_is_computed():
    operands = {name: torch.empty(G, *shape, dtype=torch.bfloat16, device="meta")
                for name, shape in (("a", (M, 272)), ("b", (N, 272)), ("d", (M, N)))}  # fmt: skip
    operands |= {name: torch.empty(size, dtype=torch.int32, device="meta")
                 for name, size in (("masked_m", G), ("signal", G * BLOCKS))}  # fmt: skip
    assert call(BF16_MASKED, **operands, enable_overlap=True) == (64, THRESHOLD)


WRONG = {
    "flag": (ArgumentError, r"enable_overlap = 1: must be a bool", {"enable_overlap": 1}),
    "no signal": (ArgumentError, r"signal = None: enable_overlap=True writes signals; pass", {"signal": None}),
    "no overlap": (ArgumentError, r"is written only with enable_overlap=True; pass that", {"enable_overlap": None}),
    "no tensor": (ArgumentError, r"signal", {"signal": 5}),
    "limit": (ArgumentError, r"max_block_n = 0: must be an int >= 1, a hint; pass", {"max_block_n": 0}),
    "limit type": (ArgumentError, r"max_block_n = 1.5: must be an int >= 1", {"max_block_n": 1.5}),
    "device": (DeviceError, r"signal is on meta and a on cpu", {"signal": make_signal().to("meta")}),
    "dtype": (DtypeError, r"signal.dtype = torch.int64: must be torch.int32; alloc", {"signal": make_signal().long()}),
    "size": (
        ShapeError,
        r"signal.shape = \[11\]: must have .* at least num_groups \* ceil\(max_m / 64\) = 12 elements; pass",
        {"signal": make_signal(G * BLOCKS - 1)},
    ),
    "rank": (
        ShapeError,
        r"signal.shape = a shape of 5 dims: must have at most 4",
        {"signal": make_signal(12, 1, 1, 1, 1)},
    ),
    "stride": (LayoutError, r"signal.stride\(0\) = 2: must be contiguous; allocate", {"signal": make_signal(24)[::2]}),
    "order": (LayoutError, r"signal.stride\(1\) = 3: must be contiguous", {"signal": make_signal(BLOCKS, G).t()}),
}


@pytest.mark.parametrize("op", [MASKED, BF16_MASKED])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(op, name):
    error, message, changes = WRONG[name]
    expect(error, message, op, **overlap(**changes))


@pytest.mark.parametrize("name", ["d", "a", "b", "masked_m"])
def test_a_signal_in_the_memory_of_another_operand(name):
    """D is written as it was before the call."""
    memory = torch.zeros(G * N * 272, dtype=torch.int32)
    if name == "masked_m":
        operand = memory[:G]
    else:
        shape = {"d": (G, M, N), "a": (G, M, 272), "b": (G, N, 272)}[name]
        operand = memory.view(torch.bfloat16)[: shape[0] * shape[1] * shape[2]].view(shape)
    message = f"signal overlaps {name} in memory: the output must be separate; pass another tensor as signal"
    expect(LayoutError, message, BF16_MASKED, **{name: operand}, **overlap(signal=memory[: G * BLOCKS]))


def test_only_masked_ops_signal():
    expect(ArgumentError, "unknown argument 'enable_overlap'", CONTIGUOUS, **overlap())


# Problems and kernels.


def test_a_problem_with_signals_is_another_kernel_and_no_other_record():
    problem = make_grouped(MASKED_KINDS[0], 64, 128, 256, 3)
    other = problem.with_signals()
    assert other != problem and other.has_signals and not problem.has_signals
    assert other == other.with_signals() and len({problem, other, other.with_signals()}) == 2
    assert other.to_json() == problem.to_json() and other.key == problem.key and str(other) == str(problem)
    assert other.as_dict() == problem.as_dict() and pickle.loads(pickle.dumps(other)) == problem
    assert _C.kernel_identity(other).has_signals and _C.kernel_identity(other) != _C.kernel_identity(problem)
    with pytest.raises(ProblemError, match="fp8_gemm: signals are for masked groups"):
        _C.Problem("fp8_gemm", 1, 1, 1).with_signals()


def test_a_source_with_signals_has_their_epilogue():
    problem, config = make_grouped(MASKED_KINDS[1], 64, 128, 256, 3), _C.Config(64, 64, 4, block_k=64)
    plain, source = (generator.generate_source(one, config) for one in (problem, problem.with_signals()))
    assert '#include "deep_gemm/sm90/epilogue/signals.cuh"' in source and "signals" not in plain
    assert "deep_gemm::SignallingScheduler<deep_gemm::Config>" in source
    assert [line for line in source.splitlines() if "signals.cuh" not in line and "Signalling" not in line] == [
        line for line in plain.splitlines() if "MaskedScheduler" not in line
    ]


# Launches.


def describe_signal(count=64):
    return view(SIGNAL, (count,), (1,), "int32")


def call_with_and_without():
    """Call a problem that has a second tile with signals, without and with them again; return what was planned, built
    and returned.
    """
    builds, planned, plan_one = use_fake_build(), [], plan.plan
    plan.plan = lambda problem, ordinal: (planned.append(problem.has_signals), plan_one(problem, ordinal))[1]
    sizes = {"op": "m_grouped_bf16_gemm_nt_masked", "m": 1024, "n": 4096, "k": 4096, "num_groups": 1}
    try:
        for options in ({"enable_overlap": True, "signal": describe_signal()}, {}) * 2:
            call_masked(**sizes, expected_m=512, **options)
    finally:
        plan.plan = plan_one
    return planned, [tiles for _, tiles, _ in builds]


def test_signals_are_another_kernel_of_the_first_tile_alone(driver):
    (planned, built), events = driver.call(call_with_and_without)
    assert planned == [True, False]
    signalling, plain = built
    assert plain.startswith(f"{signalling} or ")
    launches = [read_group_params(event)["signals"] for event in select(events, "LaunchKernelEx")]
    assert launches == [SIGNAL, 0] * 2
    assert len(select(events, "LibraryLoadData")) == 2


def compile_only():
    use_fake_build()
    deep_gemm.set_compile_mode(True)
    try:
        call_masked(enable_overlap=True, signal=describe_signal())
    finally:
        deep_gemm.set_compile_mode(False)


def test_compile_mode_loads_the_kernel(driver):
    _, events = driver.call(compile_only)
    assert len(select(events, "LibraryLoadData")) == 1 and not select(events, "LaunchKernelEx")


def launch_explicitly(with_signals, passes_signal):
    problem = make_grouped(MASKED_KINDS[1], 128, 128, 128, 1)
    problem = problem.with_signals() if with_signals else problem
    config = _C.Config(64, 64, 4, block_k=64)
    kernel = _C.Kernel(b"cubin of the stub", f"deep_gemm_{problem.op}", problem, config)
    a, b, d = (view(address << 44, (1, 128, 128), (1 << 14, 128, 1), "bfloat16") for address in (1, 2, 3))
    options = {"signal": describe_signal(2)} if passes_signal else {}
    try:
        kernel.launch(a, None, b, None, d, groups=view(1 << 30, (1,), (1,), "int32"), **options)
    except ArgumentError as error:
        return str(error)
    return ""


def test_explicit_kernels_take_signals_if_they_were_made_for_them(driver):
    for with_signals in (False, True):
        for passes_signal in (False, True):
            error, _ = driver.call(launch_explicitly, with_signals, passes_signal)
            wanted = "" if with_signals == passes_signal else "signal: this kernel was made for calls with"
            assert error.startswith(wanted) and bool(error) == bool(wanted)
