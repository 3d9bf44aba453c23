"""A compiler that crashes, hangs, lies or is missing; a parent that is killed; a hostile environment."""

import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from deep_gemm.errors import CompileError
from deep_gemm.jit import build, compile, nvcc
from tests.fakes.compiler import install_nvcc, make_source, use_fake_nvcc

FAULTS = {
    "exit": (1, "exited with status 1"),
    "segv": (-signal.SIGSEGV, "killed by SIGSEGV"),
    "kill": (-signal.SIGKILL, "killed by SIGKILL"),
    "hang": (None, "timed out after 0.5 s"),
    "hang_with_child": (None, "timed out after 0.5 s"),
    "partial": (0, "malformed"),
    "empty": (0, "wrote no cubin"),
    "nothing": (0, "wrote no cubin"),
    "flood": (1, "exited with status 1"),
    "wrong_elf": (0, "machine 62"),
    "wrong_arch": (0, "SM80"),
    "two_kernels": (0, "2 kernels"),
    "wrong_kernel": (0, "holds the kernel another"),
    "symlink": (0, "wrote no cubin"),
    "fifo": (0, "wrote no cubin"),
    "grandchild": (1, "exited with status 1"),
    "late_output": (0, "wrote no cubin"),
}


@pytest.fixture
def home(monkeypatch, tmp_path):
    return use_fake_nvcc(monkeypatch, tmp_path)


def processes_in(folder: Path) -> list[int]:
    """Return the processes whose current folder lies below `folder`: all that a job started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "cwd").startswith(str(folder)):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until_gone(folder: Path) -> None:
    deadline = time.monotonic() + 10
    while processes_in(folder):
        assert time.monotonic() < deadline, processes_in(folder)
        time.sleep(0.01)


# ---- a compiler at fault ----


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_a_compile_error_and_leaves_nothing(monkeypatch, tmp_path, home, fault):
    status, reason = FAULTS[fault]
    if status is None:
        monkeypatch.setattr(nvcc, "TIMEOUT_S", 0.5)
    source = make_source(fault=fault)
    before = set(Path(tempfile.gettempdir()).glob("deep_gemm-job-*"))
    with pytest.raises(CompileError, match=reason) as caught:
        build.get_cubin_for_source(source, "kernel")
    error = caught.value
    assert error.status == status and error.argv[0].endswith("/bin/nvcc") and error.argv[-1] == "kernel.cu"
    assert len(error.log.encode()) <= 4096 and Path(error.source_path).read_text() == source
    wait_until_gone(tmp_path)
    assert not list((home / "jobs").iterdir()) and not list((tmp_path / "tmp").iterdir())
    assert set(Path(tempfile.gettempdir()).glob("deep_gemm-job-*")) == before
    assert not list((home / "cache").glob("*.kernel"))


@pytest.mark.parametrize(
    ("fault", "last"),
    [("exit", "this is the last line\n"), ("flood", "the end of the flood\n"), ("segv", "nvcc is about to die\n")],
)
def test_error_shows_the_end_of_the_log(home, fault, last):
    with pytest.raises(CompileError) as caught:
        compile.compile_source(make_source(fault=fault), "kernel")
    assert caught.value.log.endswith(last) and str(caught.value).endswith(last)


def test_failure_is_not_remembered(home, tmp_path):
    """A compiler that failed is called again: the cause may have been a full disk."""
    source = make_source(count=tmp_path / "count", fault="exit")
    for _ in range(2):
        with pytest.raises(CompileError):
            build.get_cubin_for_source(source, "kernel")
    assert (tmp_path / "count").read_text() == "compiled\n" * 2


def test_sixteen_sources_are_kept(home):
    for i in range(20):
        with pytest.raises(CompileError):
            compile.compile_source(make_source(fault="exit", number=i), "kernel")
    assert len(list((home / "failed").iterdir())) == compile.NUM_SOURCES_KEPT
    assert {path.stat().st_mode & 0o777 for path in (home / "failed").iterdir()} == {0o600}


def test_error_survives_pickling(home):
    import pickle

    with pytest.raises(CompileError) as caught:
        compile.compile_source(make_source(fault="exit"), "kernel")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.argv, copy.status, copy.log, copy.source_path) == (
        str(caught.value),
        *(getattr(caught.value, name) for name in ("argv", "status", "log", "source_path")),
    )


# ---- the parent is killed ----


@pytest.mark.parametrize("num_kills", [8, pytest.param(50, marks=pytest.mark.full)])
def test_killed_parent_is_recovered_from(home, tmp_path, num_kills):
    """Kill the parent at moments spread over a compilation: the next process builds and never takes late output."""
    source = make_source(sleep=0.05)
    fork = multiprocessing.get_context("fork")
    for moment in range(num_kills):
        parent = fork.Process(target=build.get_cubin_for_source, args=(source, "kernel"))
        parent.start()
        time.sleep(0.2 * moment / num_kills)
        os.kill(parent.pid, signal.SIGKILL)
        parent.join()
        build.clear_memory()
        assert build.get_cubin_for_source(source, "kernel").kernel_name == "kernel"
        for entry in (home / "cache").iterdir():
            entry.unlink()
    wait_until_gone(tmp_path)
    assert not list((tmp_path / "tmp").iterdir())


# ---- the environment ----


def ask(monkeypatch, path: object) -> None:
    monkeypatch.setenv("DG_JIT_NVCC_COMPILER", str(path))
    build.get_cubin_for_source(make_source(), "kernel")


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("release 12.2, V12.2.140", r"nvcc = 12\.2\.140 \(.*nvcc\).*12\.3 or newer"),
        ("release 9.0, V9.0.176", r"12\.3 or newer"),
        ("release , V", "prints no version"),
        ("", "prints no version"),
    ],
)
def test_version_is_required(monkeypatch, home, tmp_path, version, reason):
    path = install_nvcc(tmp_path / "other", version)
    with pytest.raises(CompileError, match=reason):
        ask(monkeypatch, path)


@pytest.mark.parametrize("folder", ["with space", "semi;touch pwned", "amp&touch pwned&", "quote'touch pwned'", "-rf"])
def test_odd_but_harmless_paths_work(monkeypatch, home, tmp_path, folder):
    ask(monkeypatch, install_nvcc(tmp_path / folder))
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize(
    "folder", ["new\nline", "dollar$(touch pwned)", "tick`touch pwned`", 'double"quote', "back\\slash"]
)
def test_paths_that_a_shell_would_expand_are_refused(monkeypatch, home, tmp_path, folder):
    with pytest.raises(CompileError, match="nvcc puts its own path into shell commands"):
        ask(monkeypatch, install_nvcc(tmp_path / folder))
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("path", ["nvcc", "bin/nvcc", "./bin/nvcc", "/none/nvcc", "/etc/passwd", "/"])
def test_compiler_must_be_an_absolute_executable(monkeypatch, home, tmp_path, path):
    monkeypatch.chdir(tmp_path)  # where bin/nvcc exists
    with pytest.raises(CompileError, match="must be the absolute path of an executable"):
        ask(monkeypatch, path)


def test_compiler_that_cannot_run_is_a_typed_error(monkeypatch, home, tmp_path):
    path = install_nvcc(tmp_path / "other")
    path.write_bytes(b"\x7fELF but not really")
    with pytest.raises(CompileError, match="cannot be run.*errno 8"):
        ask(monkeypatch, path)


def test_no_compiler_names_the_remedy(monkeypatch, home):
    monkeypatch.delenv("DG_JIT_NVCC_COMPILER")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(nvcc, "_is_executable", lambda path: False)
    with pytest.raises(CompileError, match="not found in CUDA_HOME, PATH or /usr/local/cuda; set DG_JIT_NVCC_COMPILER"):
        build.get_cubin_for_source(make_source(), "kernel")


def test_job_folder_falls_back_to_tmpdir(monkeypatch, home, tmp_path):
    monkeypatch.setenv("DG_JIT_CACHE_DIR", "/proc/none")
    assert compile.compile_source(make_source(), "kernel").kernel_name == "kernel"
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("folder", ["/proc/none", "relative"])
def test_no_job_folder_names_both_and_why(monkeypatch, home, folder):
    monkeypatch.setenv("DG_JIT_CACHE_DIR", "/proc/none")
    monkeypatch.setenv("TMPDIR", folder)
    with pytest.raises(
        CompileError, match=r"no folder for its files: /proc/none.*errno.*;.*errno.*DG_JIT_CACHE_DIR or TMPDIR"
    ):
        compile.compile_source(make_source(), "kernel")


def test_full_disk_in_the_cache_folder_moves_the_job(monkeypatch, home, tmp_path):
    real, seen = Path.write_text, []

    def write_text(self, *args, **kwargs):
        seen.append(self)
        if self.is_relative_to(home):
            raise OSError(28, "No space left on device", str(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", write_text)
    assert compile.compile_source(make_source(), "kernel").kernel_name == "kernel"
    assert seen[0].is_relative_to(home / "jobs") and seen[1].is_relative_to(tmp_path / "tmp")
    assert not list((home / "jobs").iterdir())
