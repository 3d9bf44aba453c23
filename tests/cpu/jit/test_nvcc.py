"""NVCC: where it is searched for, how it is run, and that it receives only the environment variables that it needs."""

import os
from pathlib import Path

import pytest

from deep_gemm.errors import CompileError
from deep_gemm.jit import compile, nvcc
from tests.fakes.compiler import install_nvcc, isolate, make_source, require_compiler, use_fake_nvcc

SOURCE = (
    '#include "deep_gemm/types.cuh"\nextern "C" __global__ void sizes(deep_gemm::u64* p) { *p ='
    " sizeof(deep_gemm::TensorMap); }"
)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    return use_fake_nvcc(monkeypatch, tmp_path)


def test_real_nvcc_compiles(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    require_compiler("nvcc")
    # These would change the code, and are not part of the key.
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "--no-such-flag")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "--no-such-flag")
    result = compile.compile_source(SOURCE, "sizes", "nvcc")
    assert (result.kernel_name, result.compiler) == ("sizes", "nvcc")
    assert result.compiler_version.count(".") == 2 and result.spill_bytes == 0


def test_real_nvcc_works_in_a_folder_with_odd_characters(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path / "a b;touch pwned&'$(x)\n")
    require_compiler("nvcc")
    compile.compile_source(SOURCE, "sizes", "nvcc")
    assert not list(tmp_path.rglob("pwned")) and not Path("pwned").exists()


def test_fake_nvcc_stands_in(fake):
    result = compile.compile_source(make_source("gemm"), "gemm")
    assert (result.kernel_name, result.compiler, result.compiler_version, result.registers) == (
        "gemm",
        "nvcc",
        "13.0.88",
        8,
    )


def test_command_line_has_relative_paths_and_no_shell(fake, monkeypatch):
    seen = []
    run = nvcc._run
    monkeypatch.setattr(
        nvcc, "_run", lambda argv, folder, timeout_s: (seen.append((argv, folder)), run(argv, folder, timeout_s))[1]
    )
    compile.compile_source(make_source(), "kernel")
    argv, folder = seen[-1]
    assert argv[1:] == (*nvcc.FLAGS, "-o", "kernel.cubin", "kernel.cu") and os.path.isabs(argv[0])
    assert folder.is_relative_to(fake / "jobs") and not folder.exists()


def test_job_folder_is_private_and_holds_source_and_headers(fake):
    with nvcc._make_job({"kernel.cu": "x", "deep_gemm/types.cuh": "y"}) as job:
        assert job.stat().st_mode & 0o777 == 0o700 and job.parent.stat().st_mode & 0o777 == 0o700
        assert (job / "deep_gemm/types.cuh").read_text() == "y"
    assert not job.exists()


def test_jobs_of_dead_processes_are_removed(fake):
    stale, fresh = fake / "jobs/deep_gemm-job-stale", fake / "jobs/deep_gemm-job-fresh"
    compile.compile_source(make_source(), "kernel")
    for job in (stale, fresh):
        job.mkdir()
        (job / "kernel.cu").write_text("x")
    os.utime(stale, (0, 0))
    compile.compile_source(make_source(), "kernel")
    assert not stale.exists() and fresh.exists()


def test_environment_is_reduced(monkeypatch):
    for name in ("NVCC_APPEND_FLAGS", "CPATH", "LD_PRELOAD", "DG_JIT_DEBUG"):
        monkeypatch.setenv(name, "x")
    environment = nvcc._make_environment()
    assert set(environment) <= {*nvcc._KEPT_VARIABLES, "TMPDIR", "LC_ALL"}
    assert environment["TMPDIR"] == "."


def test_asked_for_compiler_comes_first(monkeypatch, tmp_path):
    asked = install_nvcc(tmp_path / "asked")
    monkeypatch.setenv("CUDA_HOME", str(install_nvcc(tmp_path / "cuda/bin").parents[1]))
    monkeypatch.setenv("DG_JIT_NVCC_COMPILER", str(asked))
    assert nvcc.find_nvcc() == asked
    monkeypatch.delenv("DG_JIT_NVCC_COMPILER")
    assert nvcc.find_nvcc() == tmp_path / "cuda/bin/nvcc"


def test_search_path_without_the_current_folder(monkeypatch, tmp_path):
    found = install_nvcc(tmp_path / "tools")
    install_nvcc(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("DG_JIT_NVCC_COMPILER", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", f":.:here:{found.parent}")
    assert nvcc.find_nvcc() == found


def test_folders_that_cannot_be_searched_are_passed_over(monkeypatch, tmp_path):
    found = install_nvcc(tmp_path / "tools")
    monkeypatch.delenv("DG_JIT_NVCC_COMPILER", raising=False)
    monkeypatch.setenv("CUDA_HOME", "/" + 300 * "x")  # as a folder of another user: is_file of Python 3.11 raises
    monkeypatch.setenv("PATH", str(found.parent))
    assert nvcc.find_nvcc() == found


def test_identity_is_asked_once_and_again_after_a_change(monkeypatch, tmp_path):
    monkeypatch.setenv("DG_JIT_NVCC_COMPILER", str(install_nvcc(tmp_path)))
    first = nvcc.get_nvcc()
    assert nvcc.get_nvcc() is first
    install_nvcc(tmp_path, remark="another build")
    assert nvcc.get_nvcc().fingerprint != first.fingerprint and nvcc.get_nvcc().version_text == first.version_text


def test_long_output_keeps_head_and_tail():
    log = nvcc._BoundedLog()
    for i in range(1000):
        log.add(b"%04d" % i * 256)
    text = log.text()
    assert text.startswith("0000") and text.endswith("0999") and "bytes left out" in text
    assert len(text) < nvcc._LOG_HEAD_BYTES + nvcc._LOG_TAIL_BYTES + 100


def test_missing_cubin_has_no_kept_source_without_a_cache(fake, monkeypatch):
    monkeypatch.setenv("DG_JIT_CACHE_DIR", "/proc/none")
    with pytest.raises(CompileError, match="wrote no cubin; source not kept") as caught:
        compile.compile_source(make_source(fault="nothing"), "kernel")
    assert caught.value.source_path is None and caught.value.status == 0
