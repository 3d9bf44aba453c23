"""The dispatch table and the planning of a miss, against the stub driver: keys, bound, threads, records, fallbacks."""

import concurrent.futures
import contextlib
import io
import json
import os
import warnings

import pytest

from deep_gemm import _C, plan, selection
from deep_gemm.errors import CompileError
from tests.fakes.grouped_variants import (
    CONTIGUOUS,
    GROUP_LAYOUTS,
    K_GROUPED,
    MASKED,
    make_grouped,
    make_grouped_variants,
)
from tests.fakes.stub_driver import read_params, run_op, select, use_fake_build


def dispatch_problems():
    """Return (stats, planned problems) after hits and misses of several kinds."""
    use_fake_build()
    planned, plan_one, before = [], plan.plan, _C.dispatch_stats()
    plan.plan = lambda problem, ordinal: (planned.append((str(problem), ordinal)), plan_one(problem, ordinal))[1]
    try:
        run_problems()
    finally:
        plan.plan = plan_one
    after = _C.dispatch_stats()
    return {name: after[name] - before[name] for name in ("hits", "misses")} | {"size": after["size"]}, planned


def run_problems():
    try:
        for num_sms in (0, 132, 500, 60, 60):  # the first three are one problem
            _C.set_num_sms(num_sms)
            run_op(64, 256, 512)
    finally:
        _C.set_num_sms(0)
    run_op(64, 256, 512, compiled_dims="kn")
    run_op(64, 256, 512, compiled_dims="nk")
    run_op(64, 256, 512, alpha=3.0)
    run_op(64, 256, 512, device=2)


def describe(**fields):
    """Return the text of the problem that run_problems meets, with `fields`; the stub's scales are row-major."""
    return str(_C.Problem("fp8_gemm", 64, 256, 512, scale_layout="any", **fields))


def test_dispatch_keys(driver):
    (stats, planned), events = driver.call(dispatch_problems, devices=4)
    assert stats == {"hits": 5, "misses": 4, "size": 4}
    assert planned == [(describe(), 0), (describe(num_sms=60), 0), (describe(compiled_dims="nk"), 0), (describe(), 2)]
    launches = select(events, "LaunchKernelEx")
    assert len(launches) == 9 and launches[-1]["device"] == 2
    assert all(launch["grid"][0] <= 60 for launch in launches[3:5])
    assert [read_params(launch)["alpha"] for launch in launches] == [1.0] * 7 + [3.0, 1.0]


def fill_table():
    """Meet more problems than the table holds; return its stats."""
    use_fake_build()
    before = _C.dispatch_stats()["clears"]
    capacity = _C.dispatch_stats()["capacity"]
    for m in range(1, capacity + 100):
        run_op(m, 8, 16)
    stats = _C.dispatch_stats()
    _C.dispatch_clear()
    return stats["clears"] - before, stats["size"], capacity


def test_the_table_is_bounded(driver):
    (clears, size, capacity), events = driver.call(fill_table)
    assert (clears, size, capacity) == (1, 99, 4096)
    assert len(select(events, "LibraryLoadData")) <= 160, "a kernel is loaded once, however often it is planned"


def plan_twice_at_the_bound():
    """Fill all places but one, then meet a problem while it is being planned, as a second thread does.

    Return (clears, size) afterwards.
    """
    use_fake_build()
    before, plan_one, is_first = _C.dispatch_stats(), plan.plan, [True]
    for m in range(1, before["capacity"] - before["size"]):
        run_op(m, 8, 16)

    def plan_and_meet(problem, ordinal):
        if is_first.pop():
            is_first.append(False)
            run_op(64, 128, 256)
        else:
            is_first.append(False)
        return plan_one(problem, ordinal)

    plan.plan = plan_and_meet
    try:
        run_op(64, 128, 256)
    finally:
        plan.plan = plan_one
    after = _C.dispatch_stats()
    _C.dispatch_clear()
    return after["clears"] - before["clears"], after["size"] - before["capacity"]


def test_a_problem_that_was_met_while_it_was_planned_is_not_added_twice(driver):
    assert driver.call(plan_twice_at_the_bound)[0] == (0, 0)


def call_from_threads():
    """Let threads miss and hit the same problems together; return (stats, results)."""
    use_fake_build()
    before = _C.dispatch_stats()

    def work(seed):
        for i in range(200):
            run_op(1 + (seed + i) % 50, 128, 256)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    after = _C.dispatch_stats()
    return after["size"], after["hits"] + after["misses"] - before["hits"] - before["misses"]


def test_threads(driver):
    (size, calls), events = driver.call(call_from_threads)
    assert (size, calls) == (50, 1600)
    launches = select(events, "LaunchKernelEx")
    assert len(launches) == 1600
    assert sorted({read_params(launch)["m"] for launch in launches}) == list(range(1, 51))


# Planning.


def plan_recorded(path):
    """Plan one problem twice while shapes are recorded and configs printed; return what was printed."""
    use_fake_build()
    os.environ.update(DG_RECORD_SHAPES=path, DG_PRINT_CONFIGS="1")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            for _ in range(2):
                run_op(77, 1024, 640)
                _C.dispatch_clear()
            run_op(78, 1024, 640)
    finally:
        del os.environ["DG_RECORD_SHAPES"], os.environ["DG_PRINT_CONFIGS"]
    return printed.getvalue()


def test_new_problems_are_printed_and_recorded_once(driver, tmp_path):
    path = tmp_path / "shapes.jsonl"
    printed, _ = driver.call(plan_recorded, str(path))
    lines = path.read_text().splitlines()
    assert [_C.Problem.from_json(line).m for line in lines] == [77, 78]
    assert json.loads(lines[0])["op"] == "fp8_gemm"
    assert printed.count("\n") == 2
    assert (
        f"deep_gemm: {_C.Problem('fp8_gemm', 77, 1024, 640, scale_layout='any')} -> " in printed
        and "(analytic" in printed
    )


def test_recording_never_makes_a_call_fail(driver, tmp_path):
    warned, _ = driver.call(warnings_of_recording, str(tmp_path / "missing" / "shapes.jsonl"))
    assert len(warned) == 1 and "shapes are not recorded (No such file" in warned[0]


def warnings_of_recording(path):
    """Return the warnings of two new problems recorded to a path that cannot be written."""
    use_fake_build()
    os.environ["DG_RECORD_SHAPES"] = path
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run_op(79, 1024, 640)
            run_op(80, 1024, 640)
    finally:
        del os.environ["DG_RECORD_SHAPES"]
    return [str(warning.message) for warning in caught]


def plan_what_does_not_compile():
    """Return (builds, warnings) if the chosen config does not compile; and the error if no config compiles."""
    problem = _C.Problem("fp8_gemm", 81, 1024, 640, scale_layout="any")
    analytic = selection.get_analytic_config(problem, _C.get_device(0))
    other = next(config for config in _C.get_candidates(problem, _C.get_device(0)) if config != analytic)
    explain = selection.explain
    selection.explain = lambda problem, device: _C.Choice(other, "learned", "")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            builds = use_fake_build(refuse=[other])
            run_op(81, 1024, 640)
            run_op(82, 1024, 640)  # does not try again
        use_fake_build(refuse=[other, analytic])
        with pytest.raises(CompileError):
            run_op(81, 1024, 640)
    finally:
        selection.explain = explain
    return (
        [config for _, config, _ in builds],
        [str(other), str(analytic)],
        [str(warning.message) for warning in caught],
    )


def test_a_config_that_does_not_compile_falls_back(driver):
    (built, wanted, warned), _ = driver.call(plan_what_does_not_compile)
    assert built == wanted
    assert len(warned) == 2  # of two problems
    assert all("does not compile (no such instruction)" in text and wanted[1] in text for text in warned)


# Plans of dense and grouped problems, with a fake compiler and no driver.


@pytest.fixture
def built(monkeypatch):
    """Forget every plan; return the list that the problems of later compilations join."""
    problems = []
    monkeypatch.setattr(plan.build, "get_cubin", lambda problem, config, **_: problems.append(problem) or object())
    plan.forget()
    yield problems
    plan.forget()


def test_every_variant_and_compiled_size_has_a_kernel_of_its_own(built):
    config = _C.Config(64, 64, 4)
    changes = [{}, {"recipe": "1d1d"}, {"d_dtype": "fp32"}, {"c_mode": "general"}, {"scale_layout": "any"}]
    changes += [{"compiled_dims": "n"}, {"compiled_dims": "n", "n": 128}]
    problems = [_C.Problem(**({"op": "fp8_gemm", "m": 64, "n": 64, "k": 64} | change)) for change in changes]
    assert len({plan._get_kernel(problem, config) for problem in problems * 2}) == len(built) == len(changes)


def test_a_kernel_serves_any_groups(built):
    config, masked = _C.Config(64, 64, 4), {"op": MASKED[0], "m": 256, "n": 512, "k": 1024, "num_groups": 4}
    same = [masked, masked | {"num_groups": 9}, masked | {"expected_m": 3}, masked | {"m": 512, "num_sms": 60}]
    kernels = {plan._get_kernel(_C.Problem(**fields), config) for fields in same}
    assert len(kernels) == len(built) == 1
    rows = {"op": CONTIGUOUS[0], "m": 256, "n": 512, "k": 1024, "num_groups": 4}
    assert (
        len({plan._get_kernel(_C.Problem(**rows, alignment=alignment), config) for alignment in (64, 128, 256)}) == 1
        and len(built) == 2
    )
    for layout in GROUP_LAYOUTS:
        plan._get_kernel(make_grouped(K_GROUPED[0], 256, 512, 1024, 4, group_layout=layout), config)
    assert [problem.group_layout for problem in built[2:]] == list(GROUP_LAYOUTS)


def test_grouped_problems_are_recorded_as_they_are(monkeypatch, tmp_path):
    path = tmp_path / "shapes.jsonl"
    monkeypatch.setenv("DG_RECORD_SHAPES", str(path))
    problems = [
        *make_grouped_variants(256, 512, 1024, 4),
        _C.Problem(MASKED[1], 256, 512, 1024, num_groups=4, expected_m=20),
    ]
    for problem in problems:
        plan._record(problem)
    assert [_C.Problem.from_json(line) for line in path.read_text().splitlines()] == problems


def read_num_sms():
    """Return get_num_sms() by default, under a limit, after the limit is lifted, and after it is set to what it was."""
    found = [_C.get_num_sms()]
    for num_sms in (20, 0, found[0]):
        _C.set_num_sms(num_sms)
        found.append(_C.get_num_sms())
    _C.set_num_sms(0)
    return found


def test_num_sms_are_those_of_the_gpu_by_default(driver):
    """Callers divide by the number, and set it back to what they found."""
    assert driver.call(read_num_sms, sms=132)[0] == [132, 20, 132, 132]
