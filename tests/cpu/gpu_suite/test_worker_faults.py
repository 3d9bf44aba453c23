"""The GPU suite's faults in measuring processes: the kernels are what their names say, an error of the driver is blamed
on its config, and the suite would find a process that is not replaced as it must be.
"""

import types

import pytest
import torch

from deep_gemm import _C
from deep_gemm.jit import hashing
from tests.fakes import cuda_backend, sass, stub_driver
from tests.fakes.compiler import isolate, require_compiler
from tests.gpu import fault_backend, fault_kernels, jobs, parent, run, worker_faults
from tuner.measure import anchor, operands
from tuner.measure import backend as measure
from tuner.measure.protocol import make_job
from tuner.measure.worker_client import WorkerFailure

H200 = _C.Device.known("h200")


# The kernels.


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Return a function that gives the cubin of a fault."""
    require_compiler("nvrtc")
    isolate(monkeypatch, tmp_path / "cache")
    yield fault_kernels.make_cubin
    fault_kernels.make_cubin.cache_clear()


@pytest.mark.parametrize("fault, sign", [
    ("illegal_address", "+0x10], RZ"), ("misaligned_address", "+0x2], RZ"), ("trap", "BPT.TRAP"),
    ("barrier_wait", "PHASECHK"), ("shared_memory", "STG.E"),
])  # fmt: skip
def test_kernels_do_what_their_names_say(compiled, fault, sign):
    done = sass.run_nvdisasm(compiled(fault))
    assert done.returncode == 0 and sign in done.stdout


def test_the_illegal_instruction_is_none(compiled):
    done = sass.run_nvdisasm(compiled("illegal_instruction"))
    assert done.returncode and "Illegal instruction found" in done.stderr


def launch(fault: str) -> str:
    """Launch a fault's kernel; return the error."""
    torch.cuda.current_stream = lambda: types.SimpleNamespace(cuda_stream=7)
    torch.cuda.synchronize = lambda: None
    try:
        fault_kernels.launch(fault)
    except RuntimeError as error:
        return str(error)
    return ""


def test_launches_reach_the_driver(tmp_path):
    require_compiler("nvrtc")
    with stub_driver.start(tmp_path) as driver:
        for fault in fault_kernels.FAULTS:
            error, events = driver.call(launch, fault)
            launched = stub_driver.select(events, "LaunchKernelEx")
            if fault == "shared_memory":
                assert error.startswith("cuLaunchKernelEx: ") and not launched
            else:
                found = [launched[0][name] for name in ("grid", "block", "stream")]
                assert error == "" and found == [[1] * 3, [1] * 3, 7]
        error, _ = driver.call(launch, "trap", launch_error=700)
        assert error.startswith("cuLaunchKernelEx: ")


# The measuring process.


@pytest.fixture
def backend(monkeypatch):
    """The section's backend on fakes of CUDA."""
    cuda_backend.install(monkeypatch)
    monkeypatch.setattr(operands, "MIN_POOL_BYTES", 1 << 16)
    monkeypatch.setattr(anchor, "STEADY_LIMIT_S", 0.0)
    return fault_backend.FaultyBackend()


def test_a_fault_is_blamed_on_its_config_and_the_next_job_is_as_ever(backend, monkeypatch):
    def fail(fault: str) -> None:
        raise RuntimeError(f"CUDA error: {fault}")

    monkeypatch.setattr(fault_kernels, "launch", fail)
    problem = _C.Problem("fp8_gemm", 70, 136, 272)
    job = make_job(problem, _C.get_candidates(problem, H200)[:2], [], worker_faults.PLAN, 1)
    for _ in range(2):
        assert backend.run(job, lambda *_: None)["reference_us"] == pytest.approx(100.0)
        with pytest.raises(measure.DeviceFault, match="CUDA error: trap") as caught:
            backend.run(job | {"fault": "trap"}, lambda *_: None)
        assert caught.value.config == fault_backend.BLAMED


def test_a_fault_that_the_driver_passes_over_is_launched_again(backend, monkeypatch):
    launched = []

    def fail_later(fault: str) -> None:
        launched.append(fault)
        if len(launched) == fault_backend.MAX_LAUNCHES:
            raise RuntimeError(f"CUDA error: {fault}")

    monkeypatch.setattr(fault_kernels, "launch", fail_later)
    problem = _C.Problem("fp8_gemm", 70, 136, 272)
    job = make_job(problem, _C.get_candidates(problem, H200)[:2], [], worker_faults.PLAN, 1)
    with pytest.raises(measure.DeviceFault, match="CUDA error: misaligned_address") as caught:
        backend.run(job | {"fault": "misaligned_address"}, lambda *_: None)
    assert caught.value.config == fault_backend.BLAMED and len(launched) == fault_backend.MAX_LAUNCHES


def test_a_fault_without_an_error_is_none_of_the_devices(backend, monkeypatch):
    monkeypatch.setattr(fault_kernels, "launch", lambda fault: None)
    problem = _C.Problem("fp8_gemm", 70, 136, 272)
    job = make_job(problem, _C.get_candidates(problem, H200)[:2], [], worker_faults.PLAN, 1)
    with pytest.raises(AssertionError, match="said nothing"):
        backend.run(job | {"fault": "trap"}, lambda *_: None)


# The section.


@pytest.fixture
def make_bench(monkeypatch, tmp_path):
    """Return a function that makes a bench of measuring processes without a GPU; all are ended afterwards."""
    made = []
    signs = " ".join(sign for names in worker_faults.SIGNS.values() for sign in names)
    environment = {"FAKE_PACKAGE": hashing.package_hash(), "FAKE_MARK": str(tmp_path / "mark"), "FAKE_SIGNS": signs}

    def make(wrong: str = "", faults: tuple = fault_kernels.FAULTS) -> worker_faults.Bench:
        monkeypatch.setattr(worker_faults, "FAULTS", faults)
        told = environment | {"FAKE_WRONG": wrong}
        made.append(worker_faults.Bench(H200, "tests.fakes.faulty_backend:FaultyGpu", told, hang_limit_s=1.0))
        return made[-1]

    yield make
    for bench in made:
        bench.stop()


def test_every_fault_is_survived(make_bench):
    bench = make_bench()
    for _ in range(2):
        assert bench.run_round() == (6, [])
    assert all(worker.num_starts == 3 for worker in bench.workers.values())


@pytest.mark.parametrize("wrong, reason", [
    ("quiet", "did not fail"), ("blame", "of config None"), ("error", "is another"), ("hang", "timeout of config 1"),
    ("late", "after trap: 104.00 us, before 100.00 us"), ("canary", "2 starts before the canary"),
])  # fmt: skip
def test_a_fault_that_is_not_survived_is_found(make_bench, monkeypatch, wrong, reason):
    monkeypatch.setattr(worker_faults, "LIMIT_S", 1.0 if wrong == "hang" else 30.0)
    cases, failures = make_bench(wrong, ("trap",)).run_round()
    assert cases == 1 and len(failures) == 1 and reason in failures[0]


def test_a_disturbed_timing_is_repeated(make_bench):
    assert make_bench("disturbed", ("trap",)).run_round() == (1, [])


def test_the_last_timing_is_of_one_more_process(make_bench):
    bench = make_bench("placed", ("trap",))
    assert bench.run_round() == (1, [])
    assert bench.workers["trap"].num_starts == 3  # before the fault, after it, and for the last timing


def test_a_failure_must_come_in_time(monkeypatch):
    class Late:
        def run(self, job, limit_s, on_progress):
            on_progress("check")
            raise WorkerFailure("timeout", "no reply in time")

    monkeypatch.setattr(worker_faults, "GRACE_S", -1.0)
    assert "late" in worker_faults.find_failure(Late(), {}, 0.0)


# The run.


def test_a_run_of_its_own_plants_twenty_of_each_fault(world, monkeypatch):
    alone, beside = (run.parse_arguments(names) for names in (["--sections", "worker_faults"], []))
    assert (alone.worker_faults, beside.worker_faults) == (20, 2)
    assert run.parse_arguments(["--worker-faults", "5"]).worker_faults == 5
    monkeypatch.setattr(world, "num_faults", 20, raising=False)
    found = jobs.get_jobs(world, ["worker_faults"], (1, 2))
    assert [name for _, name, _ in found] == [f"round {number}: all" for number in range(0, 20, 2)]
    assert set(fault_kernels.FAULTS) == set(worker_faults.SIGNS)
    # A launch after the fault names it as the driver does.
    later = "cuLaunchKernelEx: CUDA_ERROR_MISALIGNED_ADDRESS"
    assert any(sign in later for sign in worker_faults.SIGNS["misaligned_address"])


def test_it_runs_when_nothing_else_does():
    args = run.parse_arguments(["--workers", "3"])
    beside, alone = parent.select_sections(args, False), parent.select_sections(args, True)
    assert (alone.sections, alone.workers) == (["worker_faults"], 1)
    assert beside.workers == 3 and [*beside.sections, *alone.sections] == list(jobs.SECTIONS)


def test_its_jobs_may_be_silent_for_longer():
    watched = parent.Parent(run.parse_arguments([]))
    assert watched._get_timeout() == parent.JOB_TIMEOUT_S
    watched.current = {"section": "worker_faults"}
    assert watched._get_timeout() == jobs.TIMEOUTS_S["worker_faults"] > 2 * worker_faults.LIMIT_S


def test_parents_of_other_sections_add_up():
    first, last = (parent.Parent(run.parse_arguments(["--sections", name])) for name in ("calls", "worker_faults"))
    first.notes, last.notes = {"jobs": 3}, {"jobs": 4}
    first.is_complete = last.is_complete = True
    last.sections["worker_faults"]["cases"], last.failures = 6, ["wrong"]
    whole = parent.join([first, last])
    assert set(whole.sections) == {"calls", "worker_faults"} and whole.sections["worker_faults"]["cases"] == 6
    assert whole.is_complete and whole.notes["jobs"] == 7 and whole.failures == ["wrong"]
