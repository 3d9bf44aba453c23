"""Compiling in processes that can be killed: outcomes of kernels that compile, fail, crash the process or hang."""

import json
import signal
import subprocess
import sys

import pytest

from deep_gemm import _C
from deep_gemm.errors import ArgumentError, CompileError
from deep_gemm.jit import ahead, build, compile_pool
from deep_gemm.jit.compile_pool import TRANSPOSE, CompilePool, Job, Outcome, run_jobs
from tests.fakes.compiler import install_counting_nvcc, isolate, read_compiled

H200 = _C.Device.known("h200")


def make_job(op: str, **fields) -> Job:
    """Return the job of the heuristic's kernel of a small problem."""
    problem = _C.Problem(op, 64, 64, 128, **fields)
    return Job.of_config(problem, _C.get_analytic_config(problem, H200))


GOOD, FAILING = make_job("fp8_gemm"), make_job("bf16_gemm")
DYING, HANGING = (make_job(f"m_grouped_{kind}_gemm_masked", num_groups=2) for kind in ("fp8", "bf16"))
FAULTS = {
    "bf16_gemm": "exit 3",
    "m_grouped_fp8_gemm_masked": "kill -9 $PPID",
    "m_grouped_bf16_gemm_masked": "sleep 20",
}


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Give the test a compiler with FAULTS and a cache of its own."""
    monkeypatch.setenv("DG_JIT_USE_NVRTC", "0")
    monkeypatch.setenv("DG_JIT_NVCC_COMPILER", str(install_counting_nvcc(tmp_path, **FAULTS)))
    isolate(monkeypatch, tmp_path / "home")
    return tmp_path


def test_outcomes(folder):
    outcomes = run_jobs([DYING, FAILING, GOOD, GOOD, TRANSPOSE], cores=5)
    assert [outcome.error for outcome in outcomes] == ["CompileError"] * 2 + ["", "", ""]
    assert outcomes[0].message == "the compiling process died"
    assert "status 3" in outcomes[1].message
    assert sorted(outcome.is_compiled for outcome in outcomes) == [False] * 3 + [True] * 2, "each kernel once"
    assert len(read_compiled(folder)) == 4
    assert all(job.find() for job in (GOOD, TRANSPOSE)) and FAILING.find() is None
    before = build.count_compilations()
    assert GOOD.build().kernel_name == "deep_gemm_fp8_gemm" and build.count_compilations() == before
    with pytest.raises(CompileError):
        FAILING.build()


@pytest.mark.full
def test_a_process_that_hangs_is_stopped(folder):
    hanging, good = run_jobs([HANGING, GOOD], cores=2, limit_s=8.0)
    assert hanging.message == "the compiling process did not end in 8 s" and good.is_compiled


def test_nothing_is_started_for_no_jobs(monkeypatch):
    monkeypatch.setattr(compile_pool, "CompilePool", None)
    assert run_jobs([]) == []


def test_a_server_that_cannot_start_or_dies(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/missing/python")
    (outcome,) = run_jobs([GOOD])
    assert outcome.error == "CompileError" and "no process could be started" in outcome.message
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert run_jobs([GOOD, FAILING]) == [Outcome("CompileError", "the compiling process died", False)] * 2


def test_the_pool_can_be_killed(folder):
    background = ahead.Background([HANGING])
    assert background.finish(0.2) == ["compiling ahead stopped after 0 of 1 kernels"]
    pool = CompilePool([HANGING])
    pool.close()
    assert pool._process.poll() == -signal.SIGKILL


@pytest.mark.parametrize("cores", [-3, True, "x", 2.0])
def test_what_is_no_number_of_cores(cores, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    for call in (lambda: run_jobs([], cores), lambda: run_jobs([GOOD], cores), lambda: CompilePool([GOOD], cores)):
        with pytest.raises(ArgumentError, match="cores = .*: must be an int of 0"):
            call()


def test_a_server_compiles_with_one_child_at_least(folder):
    """With a number below 1 it started none, and waited for ever."""
    command = [sys.executable, "-W", "ignore", "-c", f"{compile_pool._SERVER}.serve()", json.dumps(sys.path)]
    request = json.dumps([[GOOD], -3, 30.0])
    done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=60, start_new_session=True)
    assert json.loads(done.stdout) == [0, "", "", True]


def test_a_server_whose_caller_is_gone_ends(folder):
    """Not only when it has something to say: this kernel takes 20 s."""
    pool = CompilePool([HANGING])
    pool._output.close()  # as the end of the process that reads it does
    assert pool._process.wait(15) == -signal.SIGKILL


def test_the_longest_outcome_is_one_read_of_a_pipe(monkeypatch):
    """Beyond 4,096 bytes the server read half of it, and died."""

    def fail(job):
        raise CompileError(1000 * chr(0x1F600))

    monkeypatch.setattr(Job, "build", fail)
    assert len(json.dumps(compile_pool.compile_job(Job(*GOOD)))) <= 4096
