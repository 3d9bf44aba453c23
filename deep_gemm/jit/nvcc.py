"""Compile with NVCC in a child process: no shell, a session and a private folder of its own, a time limit.

nvcc itself starts its tools through a shell. So the child runs in its job folder (mode 700) with relative paths only,
also for TMPDIR, and a path of nvcc that a shell would expand is refused. What children of a killed compiler write late
lands in a folder that nobody reads.
"""

import contextlib
import errno
import functools
import hashlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from deep_gemm import environment
from deep_gemm.errors import CompileError
from deep_gemm.jit import private_folder
from deep_gemm.jit.cubin import MAX_IMAGE_BYTES, CompilerOutput

MIN_VERSION = (12, 3)
FLAGS = ("-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-std=c++17", "-O3", "-Xptxas", "-v", "-I.")
TIMEOUT_S = 300.0
STALE_JOB_S = 3600.0

_LOG_HEAD_BYTES, _LOG_TAIL_BYTES = 16 << 10, 48 << 10
_REMEDY = "set DG_JIT_NVCC_COMPILER or CUDA_HOME to a CUDA toolkit, or DG_JIT_USE_NVRTC=1 to use NVRTC"
# What nvcc and its host compiler need of the environment. Not NVCC_APPEND_FLAGS and CPATH: they would change the code,
# and are not part of the key.
_KEPT_VARIABLES = ("PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN")
_EXPANDED_BY_SHELL = re.compile(r'["\\$`\x00-\x1f]')
_VERSION = re.compile(r"release (\d+)\.(\d+), V(\d+(?:\.\d+)*)")


class Nvcc:
    """One nvcc binary.

    Attributes: `kind` ("nvcc"), `path`, `version` (major, minor), `version_text`, `fingerprint` (hex), `flags`.
    """

    kind = "nvcc"
    flags = FLAGS

    def __init__(self, path: Path):
        """Ask the binary at `path` for its version.

        Raises:
            CompileError: it cannot be run, prints no version, or is older than MIN_VERSION.
        """
        self.path = path
        text = _ask_version(path)
        found = _VERSION.search(text)
        if not found:
            raise CompileError(f"nvcc = {path}: prints no version ({text[-200:].strip()!r}); {_REMEDY}")
        self.version = int(found[1]), int(found[2])
        self.version_text = found[3]
        if self.version < MIN_VERSION:
            needed = ".".join(map(str, MIN_VERSION))
            raise CompileError(f"nvcc = {self.version_text} ({path}): SM90 kernels need {needed} or newer; {_REMEDY}")
        with open(path, "rb") as binary:
            self.fingerprint = hashlib.file_digest(binary, "sha256").hexdigest()

    def compile(self, source: str, headers: dict[str, str]) -> CompilerOutput:
        """Compile `source` with `headers` ({include name: text}) to a cubin; a failure of nvcc is part of the output.

        Raises:
            CompileError: no folder could be made for the job.
        """
        argv = (str(self.path), *self.flags, "-o", "kernel.cubin", "kernel.cu")
        with _make_job({"kernel.cu": source, **headers}) as job:
            try:
                status, log = _run(argv, job, TIMEOUT_S)
            except OSError as error:
                return CompilerOutput(
                    argv, None, "", b"", f"nvcc could not be started: {error.strerror} (errno {error.errno})"
                )
            if status != 0:
                return CompilerOutput(argv, status, log, b"", _describe(status))
            image = _read_image(job / "kernel.cubin")
            return CompilerOutput(
                argv, status, log, image, "" if image else "nvcc exited with status 0 but wrote no cubin"
            )


def _ask_version(path: Path) -> str:
    try:
        _, text = _run((str(path), "--version"), Path("/"), 30.0)
    except OSError as error:
        raise CompileError(f"nvcc = {path}: cannot be run: {error.strerror} (errno {error.errno}); {_REMEDY}") from None
    return text


def _describe(status: int | None) -> str:
    if status is None:
        return f"nvcc timed out after {TIMEOUT_S:g} s"
    return f"nvcc was killed by {signal.Signals(-status).name}" if status < 0 else f"nvcc exited with status {status}"


def find_nvcc() -> Path:
    """Return the absolute path of the nvcc to use: DG_JIT_NVCC_COMPILER, else the first found in CUDA_HOME, PATH and
    /usr/local/cuda.

    Raises:
        CompileError: none exists, or DG_JIT_NVCC_COMPILER is no absolute path of an executable.
    """
    asked = environment.get_string("DG_JIT_NVCC_COMPILER")
    if asked:
        if not os.path.isabs(asked) or not _is_executable(Path(asked)):
            raise CompileError(f"DG_JIT_NVCC_COMPILER = {asked}: must be the absolute path of an executable nvcc")
        return _check_path(Path(asked))
    home = environment.cuda_home()
    folders = [home / "bin"] if home and home.is_absolute() else []
    folders += [*environment.search_path(), Path("/usr/local/cuda/bin")]
    found = next((folder / "nvcc" for folder in folders if _is_executable(folder / "nvcc")), None)
    if found is None:
        raise CompileError(f"nvcc: not found in CUDA_HOME, PATH or /usr/local/cuda; {_REMEDY}")
    return _check_path(found)


def _check_path(path: Path) -> Path:
    if _EXPANDED_BY_SHELL.search(str(path)):
        raise CompileError(
            f'nvcc = {str(path)!r}: nvcc puts its own path into shell commands, so it must be free of " \\ $ ` and'
            " control characters"
        )
    return path


def _is_executable(path: Path) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)  # Path.is_file raises where a folder may not be searched


def get_nvcc() -> Nvcc:
    """Return the nvcc that the environment names now. Raises: CompileError."""
    path = find_nvcc()
    status = path.stat()
    return _get_nvcc(path, status.st_mtime_ns, status.st_size, status.st_ino)


@functools.lru_cache(maxsize=8)
def _get_nvcc(path: Path, *_identity: int) -> Nvcc:
    return Nvcc(path)


@contextlib.contextmanager
def _make_job(files: dict[str, str]) -> Iterator[Path]:
    """Make a private folder with `files`, in the cache folder if possible, else in TMPDIR; remove it at the end."""
    job = _fill_job(files)
    try:
        yield job
    finally:
        shutil.rmtree(job, ignore_errors=True)


def _fill_job(files: dict[str, str]) -> Path:
    reasons = []
    for open_root in (_open_cache_jobs, _open_temp):
        job = None
        try:
            root = open_root()
            job = Path(tempfile.mkdtemp(prefix="deep_gemm-job-", dir=root))
            for name, text in files.items():
                (job / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                (job / name).write_text(text, encoding="utf-8")
            return job
        except OSError as error:
            reasons.append(f"{error.filename or 'cache folder'}: {error.strerror} (errno {error.errno})")
            if job is not None:
                shutil.rmtree(job, ignore_errors=True)
    raise CompileError(
        f"nvcc: no folder for its files: {'; '.join(reasons)}; set DG_JIT_CACHE_DIR or TMPDIR to a folder with space"
    )


def _open_cache_jobs() -> Path:
    root = environment.cache_dir()
    if root is None:
        raise OSError(errno.ENOENT, "neither DG_JIT_CACHE_DIR nor HOME is set")
    os.close(private_folder.open_private_dir(root, forbidden=0o022))
    jobs = root / "jobs"
    os.close(private_folder.open_private_dir(jobs))
    _remove_stale_jobs(jobs)
    return jobs


def _open_temp() -> Path:
    folder = environment.temp_dir()
    if folder is None:
        raise OSError(errno.EINVAL, "TMPDIR is not an absolute path")
    return folder


def _remove_stale_jobs(jobs: Path) -> None:
    """Remove the folders of jobs whose process died."""
    for job in jobs.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - job.lstat().st_mtime > STALE_JOB_S:
                shutil.rmtree(job, ignore_errors=True)


def _read_image(path: Path) -> bytes:
    """Return the regular file at `path`, or b''; of one that is too long for a cubin only a part, which is refused."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            return stream.read(MAX_IMAGE_BYTES + 1)
    return b""


class _BoundedLog:
    """The head and the tail of a compiler's output, of bounded size."""

    def __init__(self):
        self._head, self._tail, self._num_dropped = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        room = _LOG_HEAD_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - _LOG_TAIL_BYTES
        if excess > 0:
            del self._tail[:excess]
            self._num_dropped += excess

    def text(self) -> str:
        middle = f"\n... {self._num_dropped} bytes left out ...\n" if self._num_dropped else ""
        return self._head.decode(errors="replace") + middle + self._tail.decode(errors="replace")


def _run(argv: tuple[str, ...], folder: Path, timeout_s: float) -> tuple[int | None, str]:
    """Run a command; return its exit status (negative: a signal; None: killed at the time limit) and its output.

    Every process of its group has been killed when this returns. Raises: OSError where the command cannot be started.
    """
    deadline = time.monotonic() + timeout_s
    log = _BoundedLog()
    process = subprocess.Popen(
        argv,
        cwd=folder,
        env=_make_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    pipe = cast(IO[bytes], process.stdout)
    try:
        has_ended = _drain(process, pipe, log, deadline)
    finally:
        # The leader has not been reaped yet, so no other group can have its number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        _read_rest(pipe, log)
        status = process.wait()
        pipe.close()
    return (status if has_ended else None), log.text()


def _make_environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {**kept, "TMPDIR": ".", "LC_ALL": "C"}


def _drain(process: subprocess.Popen, pipe: IO[bytes], log: _BoundedLog, deadline: float) -> bool:
    """Collect the output until the process has ended; return False at the deadline.

    The end of the process counts, not the end of its output: a child that it leaves behind may keep the pipe open.
    """
    is_open = True
    while time.monotonic() < deadline:
        if _has_ended(process):
            return True
        if is_open and _is_readable(pipe, 0.02):
            is_open = _read(pipe, log)
        elif not is_open:
            time.sleep(0.001)
    return False


def _read_rest(pipe: IO[bytes], log: _BoundedLog) -> None:
    """Collect what the pipe still holds, within bounds: a child that left the group may go on writing."""
    for _ in range(32):
        if not _is_readable(pipe, 0) or not _read(pipe, log):
            return


def _is_readable(pipe: IO[bytes], timeout_s: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))


def _read(pipe: IO[bytes], log: _BoundedLog) -> bool:
    """Collect what can be read at once; return False at the end of the output."""
    data = os.read(pipe.fileno(), 1 << 16)
    log.add(data)
    return bool(data)


def _has_ended(process: subprocess.Popen) -> bool:
    """Return whether the process has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # the program ignores SIGCHLD, so the kernel has reaped it
        return True
