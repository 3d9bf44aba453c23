"""The facility for kernels without a config: sources of the table, and launches from Python on the (stub) driver."""

import types

import pytest

from deep_gemm import _C
from deep_gemm.errors import ArgumentError, DeviceError, LaunchError, ProblemError
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit import build, hashing
from deep_gemm.jit.generator import kernel_name
from deep_gemm.jit.plain_kernels import PLAIN_KERNELS, plain_source, plain_symbol
from tests.fakes.stub_driver import matrix, select

IN, OUT = 1 << 40, 1 << 41
OPERANDS = ("in", 0), ("out", 0)
#: Arguments of the transposing pass after its first two: no second operand.
NUMBERS = (1 << 40, -1, 16, 16, 3, 16, 1, *[0] * 9)


def test_the_hash_of_the_transposing_pass_is_the_recorded_one():
    """The measurements of FP8 products of other layouts hold for this kernel only."""
    assert hashing.kernel_hash(hashing.name_plain("transpose_fp8")).startswith("7ae1c3dd7a2d010e")


def test_symbols_say_what_multiplies():
    """Callers time kernels by parts of their symbols: "gemm" is a product, and no pass before or behind one."""
    symbols = {name: plain_symbol(name) for name in PLAIN_KERNELS}
    assert {name for name, symbol in symbols.items() if "gemm" in symbol} == {"sum_products", "hc_prenorm"}
    every = [*symbols.values(), *map(kernel_name, OP_KINDS)]
    assert [symbol for symbol in every if "tf32_hc_prenorm_gemm" in symbol] == [symbols["hc_prenorm"]]
    assert len(set(every)) == len(every) and all("gemm_" in kernel_name(op) for op in OP_KINDS)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("scale_layout", "transpose"),
        ("scale_layout", "pack_fp32_into_ue8m0"),
        ("k_grouped_packing", "pack_fp32_into_ue8m0"),
        ("mqa_metadata", "paged_mqa_logits_metadata"),
    ],
)
def test_the_tests_of_deepgemm_find_its_names(name, part):
    assert part in plain_symbol(name)


@pytest.mark.parametrize("name", sorted(PLAIN_KERNELS))
def test_the_source_defines_the_symbol_and_the_hash_leaves_it_out(monkeypatch, name):
    source = plain_source(name, dict.fromkeys(PLAIN_KERNELS[name].constants, 1))
    headers = hashing.get_included_headers(source).values()
    assert sum(f"\n{plain_symbol(name)}(" in text for text in (source, *headers)) == 1
    called = hashing.name_plain(name)
    before = hashing.kernel_hash.__wrapped__(called)
    symbol, read = plain_symbol(name), hashing.get_included_headers
    monkeypatch.setattr(
        hashing,
        "get_included_headers",
        lambda source: {header: text.replace(symbol, "deep_another") for header, text in read(source).items()},
    )
    monkeypatch.setitem(PLAIN_KERNELS, name, PLAIN_KERNELS[name]._replace(symbol="deep_another"))
    assert hashing.kernel_hash.__wrapped__(called) == before


def test_unknown_kernels_and_constants_are_refused():
    with pytest.raises(ProblemError, match="no such plain kernel"):
        plain_symbol("transpose")
    for constants in ({"kTile": 128}, {"k": 1}):
        with pytest.raises(ProblemError, match="takes integers"):
            plain_source("transpose_fp8", constants)


@pytest.mark.parametrize("name", sorted(PLAIN_KERNELS))
def test_constants_are_integers_only(name):
    row = PLAIN_KERNELS[name]
    if not row.constants:
        pytest.skip("the kernel has no constants")
    for value in ("1", 1.0, True, 1 << 63, None):
        with pytest.raises(ProblemError, match="takes integers"):
            plain_source(name, dict.fromkeys(row.constants, value))


def launch(cubins, arguments, grid=1, times=1):
    """Launch the transposing pass; the compiler gives `cubins` in turn. Returns what it was asked."""
    compiled = []

    def compile_next(source, name, *, is_refused):
        compiled.append(is_refused)
        return types.SimpleNamespace(cubin=cubins[len(compiled) - 1], kernel_name=name)

    build.get_cubin_for_source = compile_next
    kernel = _C.make_plain_kernel("transpose_fp8", [], 256)
    for _ in range(times):
        kernel(grid, *map(describe, arguments))
    return compiled


def describe(argument):
    """Return a tensor for ("in", device) and ("out", device), which the child cannot be sent as tensors."""
    if not isinstance(argument, tuple):
        return argument
    name, device = argument
    return matrix({"in": IN, "out": OUT}[name], 3, 16, 16, "float8_e4m3fn", device)


@pytest.mark.parametrize("grid, expected", [(5, [5, 1, 1]), ((2, 3), [2, 3, 1]), ((1, 2, 3), [1, 2, 3])])
def test_a_launch_passes_tensors_and_numbers(driver, grid, expected):
    compiled, events = driver.call(launch, [b"plain a"], (*OPERANDS, *NUMBERS), grid, 2, devices=2)
    first, second = select(events, "LaunchKernelEx")
    assert first == second and compiled == [False]
    assert first["transpose"] == [[IN, OUT, *NUMBERS[:7]], [0] * 9]
    assert (first["grid"], first["block"], first["device"]) == (expected, [256, 1, 1], 0)
    assert len(select(events, "LibraryLoadData")) == 1


def test_a_kernel_is_loaded_once_on_each_gpu(driver):
    _, events = driver.call(launch_on_two, devices=2)
    assert [event["device"] for event in select(events, "LibraryLoadData")] == [0, 1]
    assert [event["device"] for event in select(events, "LaunchKernelEx")] == [0, 1, 0]


def launch_on_two():
    build.get_cubin_for_source = lambda source, name, *, is_refused: types.SimpleNamespace(
        cubin=b"plain b", kernel_name=name
    )
    kernel = _C.make_plain_kernel("transpose_fp8", [], 256)
    for device in (0, 1, 0):
        kernel(1, describe(("in", device)), describe(("out", device)), *NUMBERS)


def test_a_refused_cubin_is_compiled_again(driver):
    compiled, events = driver.call(launch, [b"old", b"new"], (*OPERANDS, *NUMBERS), 1, 1, load_errors="209,0")
    assert compiled == [False, True] and len(select(events, "LaunchKernelEx")) == 1


def test_a_cubin_that_is_refused_twice_is_an_error(driver):
    with pytest.raises(LaunchError, match="kernel transpose_fp8 .*update the driver"):
        driver.call(launch, [b"old", b"new"], (*OPERANDS, *NUMBERS), 1, 1, load_errors="209,209")


@pytest.mark.parametrize(
    "arguments, grid, error, message",
    [
        ((16, 16), 1, ArgumentError, "no tensor"),
        ((*OPERANDS, 16), 1, ArgumentError, "3 arguments after the grid: it takes 18"),
        ((*OPERANDS, *NUMBERS), 0, ArgumentError, "grid = 0"),
        ((*OPERANDS, *NUMBERS), (1, 1, 1, 1), ArgumentError, "grid = "),
        ((("in", 0), ("out", 1), *NUMBERS), 1, DeviceError, "not on the GPU of the launch"),
        (("text", 16, 16, 3, 16), 1, ArgumentError, "must be a torch.Tensor"),
        (tuple(range(40)), 1, ArgumentError, "at most 32"),
    ],
)
def test_wrong_calls_launch_nothing(driver, arguments, grid, error, message):
    with pytest.raises(error, match=message):
        driver.call(launch, [b"plain c"], arguments, grid, 1, devices=2)


@pytest.mark.parametrize("threads, shared_bytes", [(0, 0), (2048, 0), (32, 1 << 20)])
def test_a_launch_that_no_gpu_runs_is_refused_at_once(threads, shared_bytes):
    with pytest.raises(ArgumentError, match="1 to 1024 threads"):
        _C.make_plain_kernel("transpose_fp8", [], threads, shared_bytes)
