"""From a call on few masked groups to a launch of two tiles, against the stub driver."""

import contextlib
import io
import os
import warnings
from pathlib import Path

import pytest

import deep_gemm
from deep_gemm import _C, plan, selection
from deep_gemm.errors import CompileError, ConfigError
from deep_gemm.jit import build, generator, kernel_set
from tests.fakes import stub_driver
from tests.fakes.compiler import install_counting_nvcc, read_compiled
from tests.fakes.grouped_calls import call_masked
from tests.fakes.grouped_variants import MASKED, make_grouped
from tests.fakes.stub_driver import select, use_fake_build

SIZES = {"op": "m_grouped_bf16_gemm_nt_masked", "m": 1024, "n": 4096, "k": 4096, "num_groups": 1, "expected_m": 512}


def make_problem(num_groups=1):
    return make_grouped(MASKED[1], 1024, 4096, 4096, num_groups, expected_m=512)


def find_tiles(problem):
    """Return what the child's GPU runs."""
    choice, second = selection.explain_tiles(problem, _C.get_device(0))
    return choice.config, second


def call_twice(num_groups=1):
    """Call twice; return the kernels that were built, both tiles as text, and the shared memory of each."""
    builds, printed = use_fake_build(), io.StringIO()
    os.environ["DG_PRINT_CONFIGS"] = "1"
    try:
        with contextlib.redirect_stderr(printed):
            for _ in range(2):
                call_masked(**SIZES | {"num_groups": num_groups})
    finally:
        del os.environ["DG_PRINT_CONFIGS"]
    problem = make_problem(num_groups)
    tiles = find_tiles(problem)
    return (
        [tiles for _, tiles, _ in builds],
        tuple(map(str, tiles)),
        [_C.smem_bytes(problem, tile) if tile else 0 for tile in tiles],
        printed.getvalue(),
    )


def test_few_groups_run_a_kernel_of_two_tiles(driver):
    (built, (first, second), smem, printed), events = driver.call(call_twice)
    assert second != "None" and built == [f"{first} or {second}"], "compiled once"
    assert f"-> {first} or {second} (" in printed
    launches = select(events, "LaunchKernelEx")
    assert [launch["smem"] for launch in launches] == [max(smem)] * 2
    assert {launch["grid"][0] for launch in launches} == {132}
    assert len(select(events, "TensorMapEncodeTiled")) == 2 * 2 * 4, "A, its end, B and D of either tile"


def test_many_groups_run_one_tile(driver):
    (built, (first, second), (smem, _), printed), events = driver.call(call_twice, 32)
    assert second == "None" and built == [first] and " or " not in printed
    assert [launch["smem"] for launch in select(events, "LaunchKernelEx")] == [smem] * 2


def call_without():
    os.environ["DG_SECOND_TILE"] = "0"
    try:
        return call_twice()
    finally:
        del os.environ["DG_SECOND_TILE"]


def test_the_second_tile_can_be_left_out(driver):
    (built, (first, second), *_), _ = driver.call(call_without)
    assert (built, second) == ([first], "None")


def call_with_and_without():
    """Call, then call the first tile of the same config alone; return what was built, and the names of both."""
    builds = use_fake_build()
    call_masked(**SIZES)
    os.environ["DG_SECOND_TILE"] = "0"
    try:
        _C.dispatch_clear()  # planned anew
        call_masked(**SIZES)
        alone, _ = find_tiles(make_problem())
    finally:
        del os.environ["DG_SECOND_TILE"]
    return [tiles for _, tiles, _ in builds], [_C.name_tiles(*find_tiles(make_problem())), str(alone)]


def test_two_tiles_and_the_first_one_alone_are_two_kernels(driver):
    (built, wanted), events = driver.call(call_with_and_without)
    assert built == wanted
    assert len(select(events, "LaunchKernelEx")) == len(select(events, "LibraryLoadData")) == 2


def call_what_does_not_compile():
    """Return what was built where the second tile does not compile, both tiles and the first one, and warnings."""
    first, second = find_tiles(make_problem())
    builds = use_fake_build(refuse=[second])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            call_masked(**SIZES)
            _C.dispatch_clear()  # planned anew
    names = [_C.name_tiles(first, second), str(first)]
    return [tiles for _, tiles, _ in builds], names, [str(warning.message) for warning in caught]


def test_where_two_tiles_do_not_compile_the_first_runs_alone(driver):
    (built, wanted, warned), events = driver.call(call_what_does_not_compile)
    assert built == wanted
    assert len(select(events, "TensorMapEncodeTiled")) == 2 * 4, "A, its end, B and D of one tile, for each launch"
    assert len(warned) == 1 and f"{wanted[0]}, chosen for" in warned[0] and f"using {wanted[1]} instead" in warned[0]


def call_with_a_refused_cubin():
    """Return what is built where the driver refuses the first cubin."""
    builds = use_fake_build()
    call_masked(**SIZES)
    return [(tiles, is_refused) for _, tiles, is_refused in builds]


def test_what_is_compiled_again_has_two_tiles_again(driver):
    built, _ = driver.call(call_with_a_refused_cubin, load_errors="209,0")
    assert [is_refused for _, is_refused in built] == [False, True]
    assert built[0][0] == built[1][0] and " or " in built[0][0]


def load_explicitly():
    """Return whether kernels of the same cubin with other tiles are others, and the error of tiles that do not fit."""
    problem, wide, low = make_grouped(MASKED[0], 1, 1, 1, 1), _C.Config(128, 160, 4), _C.Config(64, 64, 4)
    kernel = _C.Kernel(b"cubin", f"deep_gemm_{problem.op}", problem, wide, 0, _C.Config(128, 128, 5))
    alone = _C.Kernel(b"cubin", f"deep_gemm_{problem.op}", problem, wide, 0)
    found = []
    for second in (low, _C.Config(128, 250, 4)):
        with pytest.raises(ConfigError) as refused:
            _C.Kernel(b"cubin", f"deep_gemm_{problem.op}", problem, wide, 0, second)
        found.append(str(refused.value))
    return str(kernel.second), alone.second, found


def test_explicit_kernels_of_two_tiles(driver):
    (second, none, (pair, illegal)), events = driver.call(load_explicitly)
    assert (second, none) == ("128x128x128 s5 c1x1", None)
    assert pair.startswith("config = 128x160x128 s4 c1x1, second = 64x64x128 s4 c1x1: threads = 256: must be the 384")
    assert illegal.startswith("second = 128x250x128 s4 c1x1: block_n = 250: ")
    assert len(select(events, "LibraryLoadData")) == 2, "nothing is loaded of what is refused"


@pytest.mark.parametrize("groups", [(4, 32), (32, 4)])
def test_a_warm_up_for_any_size_prepares_second_tiles_for_the_groups_listed(monkeypatch, groups):
    monkeypatch.setattr(kernel_set.ahead, "_NUM_SPREAD", 200)
    device, found = _C.Device.known("h200"), {}
    for listed in (groups, (4,), (32,)):
        found[listed] = set(kernel_set._list_kernels([make_problem(count) for count in listed], device, True))
    assert found[groups] == found[4,] | found[32,]
    assert any(job.second for job in found[4,]) and not any(job.second for job in found[32,])


def choose_another(problem):
    """Let this process choose a config that is not the heuristic's pick and has a second tile."""
    device = _C.get_device(0)
    candidates = [_C.with_loop_knobs(problem, tile, device) for tile in _C.get_candidates(problem, device)]
    picked = selection.get_analytic_config(problem, device)
    other = next(one for one in candidates if one != picked and _C.find_second_tile(problem, one, device))
    selection.explain = lambda problem, device=None: _C.Choice(other, "learned", "")


def warm_up_and_call(folder, is_refused=False):
    """Warm up for one problem, then call it; return the report and what was compiled and planned later. `is_refused`:
    a config is chosen that is not the heuristic's, and its kernel of two tiles does not compile.
    """
    os.environ |= {"DG_JIT_USE_NVRTC": "0", "DG_JIT_CACHE_DIR": f"{folder}/home"}
    path = install_counting_nvcc(Path(folder))
    if is_refused:
        choose_another(make_problem())
        first_line = generator.generate_source(make_problem(), *find_tiles(make_problem())).partition("\n")[0]
        path.write_text(path.read_text().replace("*) ;;\n", f'"{first_line}") exit 3 ;;\n*) ;;\n'))
    os.environ["DG_JIT_NVCC_COMPILER"] = str(path)
    plan.forget()
    report, before = deep_gemm.warmup([make_problem()]).as_dict(), build.count_compilations()
    misses = _C.dispatch_stats()["misses"]
    call_masked(**SIZES)
    return report, build.count_compilations() - before, _C.dispatch_stats()["misses"] - misses


def test_a_warm_up_compiles_two_tiles(tmp_path):
    with stub_driver.start(tmp_path) as fresh:
        (report, compiled, planned), _ = fresh.call(warm_up_and_call, str(tmp_path))
    assert (report["kernels"], report["planned"], report["failures"]) == (1, 1, [])
    assert (compiled, planned) == (0, 0)
    assert len(read_compiled(tmp_path)) == 1


def test_where_two_tiles_do_not_compile_a_warm_up_has_the_first_one_ready(tmp_path):
    with stub_driver.start(tmp_path) as fresh:
        (report, compiled, _), events = fresh.call(warm_up_and_call, str(tmp_path), True)
    assert (report["kernels"], len(report["failures"]), compiled) == (3, 1, 0), "two tiles, the first one, the pick"
    (pair,) = [line for line in read_compiled(tmp_path) if " or " in line]
    assert pair.partition(" or ")[0] in read_compiled(tmp_path) and len(select(events, "LaunchKernelEx")) == 1


def warm_up_after_a_failure(folder):
    """Return the failures of a warm-up that compiles what failed before, what is planned then, and what was chosen."""
    os.environ |= {"DG_JIT_USE_NVRTC": "0", "DG_JIT_CACHE_DIR": f"{folder}/home"}
    os.environ["DG_JIT_NVCC_COMPILER"] = str(install_counting_nvcc(Path(folder)))
    plan.forget()
    first, second = find_tiles(make_problem())
    plan.remember_failure(make_problem(), first, second, CompileError("no process could be started"))
    failures = deep_gemm.warmup([make_problem()]).as_dict()["failures"]
    return failures, _C.name_tiles(*plan.plan(make_problem(), 0)[:2]), _C.name_tiles(first, second)


def test_a_warm_up_mends_what_failed_before(tmp_path):
    with stub_driver.start(tmp_path) as fresh:
        (failures, planned, chosen), _ = fresh.call(warm_up_after_a_failure, str(tmp_path))
    assert failures == [] and planned == chosen and " or " in chosen
