"""deep_gemm.warmup and the compile mode against the stub driver: each kernel is compiled once on the machine, however
many processes start together, and afterwards no call compiles; what fails is reported; in compile mode nothing runs.
"""

import concurrent.futures
import errno
import json
import os
import threading
import types
import warnings
from pathlib import Path

import pytest
import torch

import deep_gemm
from deep_gemm import _C, plan, selection, stream
from deep_gemm.errors import (
    ArgumentError,
    CacheError,
    CompileError,
    DtypeError,
    WarmUpWarning,
)
from deep_gemm.jit import build, kernel_set, private_folder
from deep_gemm.jit.compile import CompileResult
from deep_gemm.jit.compile_pool import Outcome
from deep_gemm.jit.plain_kernels import PLAIN_KERNELS, plain_symbol
from tests.fakes import processes, stub_driver
from tests.fakes.compiler import install_counting_nvcc, isolate, read_compiled, require_compiler
from tests.fakes.stub_driver import run_op, select, use_fake_build
from tests.fakes.stub_operands import view

H200 = _C.Device.known("h200")
SIZES = (256, 512)
ROWS = (1, 64, 300, 2048, 8192)
SHAPE = _C.Problem("fp8_gemm", 64, *SIZES, scale_layout="any")


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Give the test a fake compiler, for which no BF16 kernel compiles, and a cache of its own."""
    use_compiler(tmp_path, monkeypatch.setenv)
    isolate(monkeypatch, tmp_path / "home")
    yield tmp_path
    plan.forget()
    selection.forget_selectors()


def use_compiler(folder: Path, set_variable) -> None:
    set_variable("DG_JIT_USE_NVRTC", "0")
    set_variable("DG_JIT_NVCC_COMPILER", str(install_counting_nvcc(folder, bf16_gemm="exit 3")))


def warm_up_together(folder: str, count: int) -> list[dict]:
    """Warm up in `count` processes that start together, then call every shape; return what each of them counted."""
    use_compiler(Path(folder), os.environ.__setitem__)
    os.environ["DG_JIT_CACHE_DIR"] = f"{folder}/home"
    gate, opening = os.pipe()
    children = [processes.fork(lambda end: warm_up_and_call(gate, opening, end)) for _ in range(count)]
    os.close(gate)
    os.close(opening)  # all of them start here
    said = [processes.read_all(read_end) for _, read_end in children]
    assert [processes.exit_code(child) for child, _ in children] == [0] * count
    return [json.loads(text) for text in said]


def warm_up_and_call(gate: int, opening: int, end: int) -> None:
    os.close(opening)
    os.read(gate, 1)
    report = deep_gemm.warmup([SHAPE], m=ROWS)
    before, misses = build.count_compilations(), _C.dispatch_stats()["misses"]
    for rows in ROWS:
        run_op(rows, *SIZES)
    later = {"compiled": build.count_compilations() - before, "planned": _C.dispatch_stats()["misses"] - misses}
    os.write(end, json.dumps({"report": report.as_dict(), "later": later}).encode())


@pytest.mark.parametrize("count", [5, pytest.param(16, marks=pytest.mark.full)])
def test_processes_compile_each_kernel_once(driver, tmp_path, count):
    told, events = driver.call(warm_up_together, str(tmp_path), count)
    compiled = read_compiled(tmp_path)
    assert len(compiled) == told[0]["report"]["kernels"] >= 4
    assert len(compiled) == len(set(compiled)) + 1, "both casts have one first line"
    assert sum(one["report"]["compiled"] for one in told) == len(compiled)
    assert all(one["later"] == {"compiled": 0, "planned": 0} for one in told)
    assert all(one["report"]["planned"] == one["report"]["problems"] == len(ROWS) for one in told)
    assert not any(one["report"]["failures"] for one in told)
    assert len(select(events, "LaunchKernelEx")) == count * len(ROWS)
    assert len(select(events, "LibraryLoadData")) == count * len(compiled), "loaded ahead, not by the calls"


def warm_up_and_add(folder: str, *lengths: int) -> dict:
    """Warm up for sums over so many groups, and call them with every D and C; return the report."""
    os.environ |= {"DG_JIT_USE_NVRTC": "0", "DG_JIT_CACHE_DIR": f"{folder}/home"}
    os.environ["DG_JIT_NVCC_COMPILER"] = str(install_counting_nvcc(Path(folder)))
    stream.empty_fp8 = lambda *arguments: view(1 << 47, (1, 1), (1, 1), "float8_e4m3fn")
    sums = [_C.Problem("summed_bf16_gemm", 64, 128, 128, num_groups=b, d_dtype="fp32") for b in lengths]
    report, before = deep_gemm.warmup(sums).as_dict(), build.count_compilations()
    for b in lengths:
        x, y = (view(1 << 44, (b, rows, 128), (rows * 128, 128, 1), "bfloat16") for rows in (64, 128))
        for dtype in ("bfloat16", "float32"):
            d = view(1 << 45, (64, 128), (128, 1), dtype)
            deep_gemm.einsum("bmk,bnk->mn", x, y, d, stream=7)
        deep_gemm.einsum("bmk,bnk->mn", x, y, d, d, stream=7)
    assert build.count_compilations() == before
    return report


SMALL, LARGE = ["sum_products"] * 3, ["sum_parts"] * 3


@pytest.mark.parametrize(
    "lengths, kernels, launches",
    [
        pytest.param((32,), SMALL, ["sum_products"] * 3, marks=pytest.mark.full),
        pytest.param(
            (4096,),
            ["summed_bf16_gemm", *LARGE],
            ["summed_bf16_gemm", "sum_parts"] * 3,
            marks=pytest.mark.full,
        ),
        ((32, 4096), ["summed_bf16_gemm", *LARGE, *SMALL], [*SMALL, *["summed_bf16_gemm", "sum_parts"] * 3]),
    ],
)
def test_sums_load_nothing_after_a_warm_up_and_no_kernel_in_vain(tmp_path, lengths, kernels, launches):
    with stub_driver.start(tmp_path) as fresh:
        report, events = fresh.call(warm_up_and_add, str(tmp_path), *lengths)
    assert sorted(line.split()[1].rstrip(":") for line in read_compiled(tmp_path)) == sorted(kernels)
    assert (report["kernels"], report["planned"], report["failures"]) == (len(kernels), len(lengths), [])
    steps = [
        event["name"] if event["call"] == "cuLibraryGetKernel" else "launch"
        for event in events
        if event["call"] in ("cuLibraryGetKernel", "cuLaunchKernelEx")
    ]
    symbols = [plain_symbol(name) if name in PLAIN_KERNELS else f"deep_gemm_{name}" for name in kernels]
    assert sorted(steps[: len(kernels)]) == sorted(symbols)
    assert steps[len(kernels) :] == ["launch"] * len(launches), "loaded ahead, not by the calls"


@pytest.mark.full
def test_sixteen_processes_with_the_real_compiler(monkeypatch, tmp_path):
    require_compiler("nvrtc")
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("DG_JIT_DEBUG", "1")
    reports = [json.loads(said) for _, said in run_together(16, tmp_path / "log")]
    compiled = [line.split()[2] for line in (tmp_path / "log").read_text().splitlines() if ": compiled " in line]
    assert len(compiled) == len(set(compiled)) == reports[0]["kernels"] > 20
    assert sum(report["compiled"] for report in reports) == len(compiled)
    assert not any(report["failures"] for report in reports)


def run_together(count: int, log: Path) -> list[tuple[int, bytes]]:
    """Warm up many shapes in `count` forks, whose messages go to `log`; return their exit codes and reports."""

    def work(end: int) -> None:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        shapes = [_C.Problem(op, 1, 2112, 7168) for op in ("fp8_gemm", "bf16_gemm")]
        os.write(end, json.dumps(deep_gemm.warmup(shapes, range(1, 4096, 32), device="h200").as_dict()).encode())

    children = [processes.fork(work) for _ in range(count)]
    said = [processes.read_all(read_end) for _, read_end in children]
    return [(processes.exit_code(child), text) for (child, _), text in zip(children, said)]


# Reports.


def test_failures_are_reported(compiler, monkeypatch):
    monkeypatch.setenv("DG_SELECTOR", "analytic")  # how many configs the trees choose is not this test's question
    selection.forget_selectors()  # another test may have loaded one, which would go on choosing
    bf16 = _C.Problem("bf16_gemm", 64, *SIZES)
    with pytest.warns(WarmUpWarning, match="1 kernels failed, the first one .* CompileError"):
        report = deep_gemm.warmup([bf16, SHAPE], device="h200")
    assert (report.problems, report.kernels, report.compiled, report.found, report.planned) == (2, 5, 4, 0, 0)
    (failure,) = report.failures
    assert (
        isinstance(failure.error, CompileError) and "status 3" in str(failure.error) and str(bf16.n) in failure.kernel
    )
    assert json.loads(json.dumps(report.as_dict()))["failures"][0]["error"] == "CompileError"
    again = deep_gemm.warmup([SHAPE], device=H200)
    assert (again.kernels, again.compiled, again.found, again.failures) == (4, 0, 4, ())
    assert len(read_compiled(compiler)) == 5


def test_a_cache_that_cannot_be_used_stops_before_any_work(compiler, monkeypatch):
    (compiler / "file").write_text("no folder")
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(compiler / "file"))
    with pytest.raises(CacheError, match="DG_JIT_CACHE_DIR = .*file: Not a directory .*name a folder"):
        deep_gemm.warmup([SHAPE], device="h200")
    assert not read_compiled(compiler)


def test_a_full_disk_stops_before_any_work_and_matters_only_there(compiler, monkeypatch):
    def write(descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    found = deep_gemm.warmup([SHAPE], device="h200").kernels
    monkeypatch.setattr(private_folder, "_write", write)
    assert deep_gemm.warmup([SHAPE], device="h200").found == found, "a folder that has everything may be read-only"
    with pytest.raises(CacheError, match="No space left on device"):
        deep_gemm.warmup([_C.Problem("fp8_gemm", 64, *SIZES, compiled_dims="n")], device="h200")
    assert len(read_compiled(compiler)) == found


def test_a_kernel_that_was_not_stored_is_a_failure(compiler, monkeypatch):
    monkeypatch.setattr(kernel_set, "run_jobs", lambda jobs, cores: [Outcome("", "", True)] * len(jobs))
    with pytest.warns(WarmUpWarning, match="CacheError: .*home/cache: a compiled kernel could not be stored"):
        report = deep_gemm.warmup([SHAPE], device="h200")
    assert (report.compiled, report.found, len(report.failures)) == (0, 0, report.kernels)


def call_what_failed(folder: str) -> list:
    """Warm up a config that does not compile, then call it; return what was compiled, launches and warnings."""
    use_compiler(Path(folder), os.environ.__setitem__)
    os.environ["DG_JIT_CACHE_DIR"] = f"{folder}/home"
    other = next(one for one in _C.get_candidates(SHAPE, H200) if one != _C.get_analytic_config(SHAPE, H200))
    explain, plan.selection.explain = (
        plan.selection.explain,
        lambda problem, device=None: _C.Choice(other, "learned", ""),
    )
    name = f"// fp8_gemm: {other}"
    path = Path(os.environ["DG_JIT_NVCC_COMPILER"])
    path.write_text(path.read_text().replace("*) ;;\n", f'"{name}"*) exit 3 ;;\n*) ;;\n'))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = deep_gemm.warmup([SHAPE])
            before = len(read_compiled(Path(folder)))
            run_op(64, *SIZES)
    finally:
        plan.selection.explain = explain
    later = len(read_compiled(Path(folder))) - before
    return [report.as_dict(), later, [warning.category.__name__ for warning in caught]]


def test_a_config_that_fails_has_its_substitute_ready(driver, tmp_path):
    (report, later, warned), events = driver.call(call_what_failed, str(tmp_path))
    assert later == 0 and len(report["failures"]) == 1 and report["kernels"] == 5
    assert sorted(warned) == ["SelectorWarning", "WarmUpWarning"]
    assert len(select(events, "LaunchKernelEx")) == 1


def record_after_warm_up(path: str) -> int:
    """Warm up while shapes are recorded, then call one; return how many problems were planned ahead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "get_cubin", build.get_cubin)
        use_fake_build()
        patch.setattr(plan, "get_plain_kernel", get_plain_kernel)
        for name in ("find_cubin_for_source", "get_cubin_for_source"):
            patch.setattr(build, name, lambda *arguments, **options: object())
        patch.setenv("DG_RECORD_SHAPES", path)
        report = deep_gemm.warmup([SHAPE], m=range(1, 50))
        run_op(7, *SIZES)
    return report.planned


def get_plain_kernel(name: str, constants: list, is_refused: bool = False) -> tuple[bytes, str, int]:
    return b"plain", plain_symbol(name), 6


def test_only_calls_are_recorded(driver, tmp_path):
    planned, _ = driver.call(record_after_warm_up, str(tmp_path / "shapes.jsonl"))
    lines = (tmp_path / "shapes.jsonl").read_text().splitlines()
    assert planned == 0 and [_C.Problem.from_json(line).m for line in lines] == [7]


# Compile mode.


def call_in_compile_mode():
    """Call ops in compile mode, then once without it; return misses of the table after the mode was left."""
    use_fake_build()
    plan.get_plain_kernel = get_plain_kernel
    a, scale_a, b, scale_b, d = stub_driver.make_operands(64, *SIZES)
    k_by_n = _C.TensorView(1 << 45, [512, 256], [256 + 16, 1], "float8_e4m3fn", 0)
    scales = _C.TensorView(1 << 46, [4, 2], [2, 1], "float32", 0)
    deep_gemm.set_compile_mode(1)
    try:
        deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), d)
        deep_gemm.fp8_gemm_nn((a, scale_a), (k_by_n, scales), d)
        with pytest.raises(DtypeError):
            deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), a)
    finally:
        deep_gemm.set_compile_mode(False)
    misses = _C.dispatch_stats()["misses"]
    deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), d)
    return _C.dispatch_stats()["misses"] - misses


def test_compile_mode_loads_and_launches_nothing(tmp_path):
    with stub_driver.start(tmp_path) as driver:
        misses, events = driver.call(call_in_compile_mode)
    assert misses == 0
    names = [event["name"] for event in select(events, "LibraryGetKernel")]
    assert names == ["deep_gemm_fp8_gemm", plain_symbol("transpose_fp8")]
    launched = [event["call"] for event in events if "Launch" in event["call"] or "Mem" in event["call"]]
    assert launched == ["cuLaunchKernelEx"], "the call after the mode was left"


COMPILE_SHAPES = (64, 128, 256, 512)


def compile_from_threads() -> tuple[int, int]:
    """Let two threads for each of several kernels call ops in compile mode; return (compilations, misses afterwards).

    No compilation ends before all kernels are being compiled.
    """
    together, compiled = threading.Barrier(len(COMPILE_SHAPES)), []

    def compile_source(source, kernel_name, compiler):
        together.wait(timeout=30)
        compiled.append(source)
        return CompileResult(source.encode(), kernel_name, 8, 0, 0, (), "", 1.0, "nvrtc", "13.0")

    build.compile_source = compile_source
    build.get_toolchain = lambda compiler=None: types.SimpleNamespace(
        kind="nvrtc", version_text="13.0", fingerprint="ab", flags=()
    )
    deep_gemm.set_compile_mode(True)
    try:
        with concurrent.futures.ThreadPoolExecutor(2 * len(COMPILE_SHAPES)) as pool:
            list(pool.map(lambda n: run_op(64, n, 512, compiled_dims="n"), COMPILE_SHAPES * 2))
    finally:
        deep_gemm.set_compile_mode(False)
    misses = _C.dispatch_stats()["misses"]
    for n in COMPILE_SHAPES:
        run_op(64, n, 512, compiled_dims="n")
    return len(compiled), _C.dispatch_stats()["misses"] - misses


def test_threads_compile_in_parallel_and_each_kernel_once(tmp_path):
    with stub_driver.start(tmp_path) as driver:
        (compiled, misses), events = driver.call(compile_from_threads)
    assert (compiled, misses) == (len(COMPILE_SHAPES), 0)
    assert len(select(events, "LaunchKernelEx")) == len(COMPILE_SHAPES)


def test_compile_mode_computes_nothing_on_the_cpu():
    a, b, d = torch.ones(4, 64).bfloat16(), torch.ones(8, 64).bfloat16(), torch.full((4, 8), 7.0).bfloat16()
    deep_gemm.set_compile_mode(True)
    try:
        deep_gemm.bf16_gemm_nt(a, b, d)
        deep_gemm.cublaslt_gemm_nt(a, b, d)
        with pytest.raises(DtypeError):
            deep_gemm.bf16_gemm_nt(a.float(), b, d)
    finally:
        deep_gemm.set_compile_mode(False)
    assert (d == 7).all()
    deep_gemm.bf16_gemm_nt(a, b, d)
    assert (d == 64).all()


@pytest.mark.parametrize("flag, expected", [(True, True), (1, True), (0, False), (False, False)])
def test_flags_of_the_compile_mode(flag, expected):
    try:
        deep_gemm.set_compile_mode(flag)
        assert deep_gemm.get_compile_mode() is expected
        for value in (2, None, "on"):
            with pytest.raises(ArgumentError, match="flag = "):
                deep_gemm.set_compile_mode(value)
        assert deep_gemm.get_compile_mode() is expected
    finally:
        deep_gemm.set_compile_mode(False)
