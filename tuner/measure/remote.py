"""Measuring on other hosts: a Dask worker stands for a GPU, and measures the jobs that the sweep sends to it.

The sweep asks optuna and writes the database; a job and its report are JSON, as between the two processes of one host.
The Dask worker keeps a measuring process of its own beside it, so that a crash or a hang costs a config and not the
worker. A worker that dies, or leaves, is a lost board: see tuner.search.lanes.

A worker carries the resource GPU=1 and runs one task at a time:
    dask worker tls://HOST:8786 --resources GPU=1 --nthreads 1 --nworkers 1 --no-dashboard

Guarantees: beyond the loopback interface only TLS is used. No job is sent to a worker that has no GPU resource or
    another package.
"""

import contextlib
import ipaddress
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tuner import errors
from tuner.measure.gpu_lock import GpuLock
from tuner.measure.simulated import name_backend
from tuner.measure.worker_client import HELLO_LIMIT_S, DeviceRetired, MeasuringWorker, WorkerFailure

RESOURCE = "GPU"
POLL_S = 0.5
CONNECT_LIMIT_S = 30.0
#: A worker whose answer does not come within the job's own limits and this is lost: a measuring process that ended, and
#: three that did not start.
SLACK_S = 3 * HELLO_LIMIT_S
#: The measuring process of this Dask worker, and the lock of its board.
_here: dict[str, Any] = {}


# In the Dask worker.


def start_here(backend: str) -> dict:
    """Start the measuring process of this Dask worker, unless it runs; return {"hello": ...} or a failure."""
    return catch(lambda: {"hello": get_worker(backend).start()})


def run_here(backend: str, job: dict, limit_s: float) -> dict:
    """Run a job in the measuring process of this Dask worker; return {"result": ...} or a failure."""
    return catch(lambda: {"result": get_worker(backend).run(job, limit_s)})


def get_worker(backend: str) -> MeasuringWorker:
    """Return the measuring process of this Dask worker, whose board is locked. Raises: DeviceRetired, TunerError."""
    if _here.get("backend") != backend:
        stop_here()
        with contextlib.ExitStack() as started:  # a board that is measured already keeps no process of ours
            worker = started.enter_context(MeasuringWorker(backend))
            lock = GpuLock(worker.start()["device"]["uuid_hash"])
            started.pop_all()
        _here.update(backend=backend, worker=worker, lock=lock)
    return _here["worker"]


def stop_here() -> None:
    """End the measuring process of this Dask worker and give its board back."""
    for name in ("worker", "lock"):
        if name in _here:
            _here.pop(name).__exit__(None, None, None)
    _here.clear()


def catch(ask: Callable[[], dict]) -> dict:
    """Return an answer, or a failure as a dict: exceptions would have to be rebuilt on the other side."""
    try:
        return ask()
    except WorkerFailure as failure:
        return {"failed": [failure.kind, str(failure), failure.config, failure.log]}
    except DeviceRetired as error:
        return {"retired": str(error)}
    except errors.TunerError as error:
        return {"error": str(error)}


# In the sweep.


class RemoteWorker:
    """Stands in for a MeasuringWorker; the measuring process is beside the Dask worker at `address`.

    Exception contract: as of MeasuringWorker; DeviceRetired also where the Dask worker is gone.
    """

    locks_itself = True

    def __init__(self, client: Any, address: str, backend: str):
        self.client, self.address, self.backend = client, address, backend
        self.identity: dict = {}
        self.interrupted = threading.Event()

    def start(self) -> dict:
        """Return the hello of the measuring process. Raises: DeviceRetired, TunerError."""
        if not self.identity:
            hello = self.ask(SLACK_S, start_here, self.backend)["hello"]
            self.check_package(hello)
            self.identity = hello
        return self.identity

    def check_package(self, hello: dict) -> None:
        """Raise TunerError where the worker would make other kernels than this process names in the database."""
        from deep_gemm.jit import hashing

        if hello.get("package") != hashing.package_hash():
            raise errors.TunerError(
                f"{self.address}: the worker has another deep_gemm; install the same package there and restart it"
            )

    def run(self, job: dict, limit_s: float, on_progress: Callable[[str], None] = lambda stage: None) -> dict:
        """Run one job; see MeasuringWorker.run. Progress stays on the worker's host."""
        self.start()
        seconds = SLACK_S + sum(job["plan"][name] for name in ("search_seconds", "confirm_seconds")) + limit_s
        return self.ask(seconds, run_here, self.backend, job, limit_s)["result"]

    def ask(self, limit_s: float, function: Callable, *arguments) -> dict:
        """Return a worker's answer. Raises: WorkerFailure, DeviceRetired, TunerError."""
        answer = self.wait(limit_s, function, *arguments)
        if "failed" in answer:
            raise WorkerFailure(*answer["failed"])
        if "retired" in answer:
            raise DeviceRetired(f"{self.address}: {answer['retired']}")
        if "error" in answer:
            raise errors.TunerError(f"{self.address}: {answer['error']}")
        return answer

    def wait(self, limit_s: float, function: Callable, *arguments) -> dict:
        """Call a function on the worker and return its result. Raises: DeviceRetired where none comes."""
        future = self.client.submit(
            function, *arguments, workers=[self.address], allow_other_workers=False, resources={RESOURCE: 1},
            retries=0, pure=False,
        )  # fmt: skip
        deadline = time.monotonic() + limit_s
        try:
            while time.monotonic() < deadline and not self.interrupted.is_set():
                try:
                    return future.result(timeout=POLL_S)
                except TimeoutError:
                    if self.address not in list_workers(self.client):
                        break
            raise DeviceRetired(f"{self.address}: the worker is gone, or gave no answer within {limit_s:.0f} s")
        except DeviceRetired:
            raise
        except Exception as error:  # a lost scheduler: what Dask raises then has no base of its own
            raise DeviceRetired(f"{self.address}: {type(error).__name__}: {str(error)[:300]}") from error
        finally:
            with contextlib.suppress(Exception):
                future.cancel()

    def interrupt(self) -> None:
        """Give up the job that runs, from another thread."""
        self.interrupted.set()

    def stop(self) -> None:
        """End the measuring process on the worker, if it can still be asked."""
        if self.identity and self.address in list_workers(self.client):
            self.interrupted.clear()
            with contextlib.suppress(Exception):
                self.client.submit(
                    stop_here, workers=[self.address], resources={RESOURCE: 1}, pure=False
                ).result(timeout=10)  # fmt: skip


def list_workers(client: Any) -> list[str]:
    """Return the addresses of the workers that have a GPU, sorted."""
    found = client.scheduler_info(n_workers=-1)["workers"]
    return sorted(address for address, facts in found.items() if facts.get("resources", {}).get(RESOURCE, 0) >= 1)


def check_address(address: str) -> None:
    """Raise UsageError unless an address names TLS, or this host's loopback interface."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if parts.scheme != "tls" and not (parts.scheme == "tcp" and is_loopback):
        raise errors.UsageError(
            f"--scheduler {address}: must be tls://HOST:PORT; tcp:// only on the loopback interface, because whoever"
            " reaches a scheduler runs code on its workers"
        )


def check_tls(address: str) -> None:
    """Raise UsageError where an address names TLS and Dask has no certificates for it: a client that is made then waits
    a minute for its own end.
    """
    from distributed.security import Security

    if urlsplit(address).scheme != "tls":
        return
    try:
        reason = "" if Security().get_connection_args("client")["ssl_context"] else "not all are named"
    except OSError as error:  # ssl.SSLError is one
        reason = str(error)
    if reason:
        raise errors.UsageError(
            f"--scheduler {address}: no certificates for TLS ({reason}); name the files in Dask's configuration:"
            " distributed.comm.tls.ca-file, distributed.comm.tls.client.cert and distributed.comm.tls.client.key"
        )


@contextmanager
def open_remote(address: str, backend: str) -> Iterator[list[RemoteWorker]]:
    """Yield a worker for each GPU of a Dask cluster; their measuring processes end with the body.

    Raises: UsageError for an address without TLS or certificates, a missing package, or a cluster without GPUs;
        TunerError.
    """
    check_address(address)
    try:
        from distributed import Client
    except ImportError as error:
        raise errors.UsageError(
            '--scheduler: Dask is not installed; run pip install "deep_gemm[distributed]" (in a clone ".[distributed]")'
        ) from error
    check_tls(address)
    try:
        client = Client(address, timeout=CONNECT_LIMIT_S, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise errors.TunerError(f"--scheduler {address}: no answer ({type(error).__name__}: {error})") from error
    with client:
        workers = [
            RemoteWorker(client, each, name_backend(number) if backend == "simulated" else backend)
            for number, each in enumerate(list_workers(client))
        ]
        if not workers:
            raise errors.UsageError(
                f"--scheduler {address}: no worker has a GPU; start them with --resources {RESOURCE}=1 --nthreads 1"
            )
        try:
            yield workers
        finally:
            for worker in workers:
                worker.stop()
