"""Compiling in processes that can be killed: outcomes of kernels that compile, fail, crash the process or hang."""

import signal
import sys

import pytest

from deep_gemm import _C
from deep_gemm.errors import CompileError
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
