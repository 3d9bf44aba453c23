"""Measuring on a Dask cluster: what is refused, what a lost worker costs, and that the answers are the same."""

import os
import signal

import pytest

from tests.fakes.databases import CONFIGS, make_problem
from tests.fakes.hosts import two_hosts, why_not
from tests.fakes.sweeps import read_all, run_sweep
from tuner import cli, errors
from tuner.measure import remote
from tuner.measure.worker_client import DeviceRetired, WorkerFailure
from tuner.search.candidates import SweepOptions
from tuner.search.sweep import open_workers

FEW = CONFIGS[::16]
PROBLEMS = [make_problem(m) for m in (1, 16, 64, 128)]


class FakeFuture:
    """What a worker answers; an exception is raised."""

    def __init__(self, answer):
        self.answer = answer

    def result(self, timeout):
        """Return or raise the answer."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def cancel(self):
        """Do nothing."""


class FakeClient:
    """A cluster with one GPU, and with a worker that has none."""

    def __init__(self, answer, addresses=("tcp://127.0.0.1:9",)):
        self.answer, self.addresses, self.calls = answer, addresses, []

    def scheduler_info(self, n_workers):
        """Return the workers."""
        with_gpu = {address: {"resources": {"GPU": 1}} for address in self.addresses}
        return {"workers": with_gpu | {"tcp://127.0.0.1:1": {"resources": {}}}}

    def submit(self, function, *arguments, **how):
        """Note the call; the answer is the test's."""
        self.calls.append((function, arguments, how))
        return FakeFuture(self.answer)


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "tcp://host:8786", "http://localhost:1", "localhost:1", ""])
def test_without_tls_only_loopback_is_used(address):
    with pytest.raises(errors.UsageError, match="must be tls://"):
        remote.check_address(address)


def test_addresses_that_are_used(capsys):
    for address in ("tls://10.0.0.1:8786", "tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1"):
        remote.check_address(address)
    assert cli.run(["sweep", "--scheduler", "tcp://host:1"]) == 2
    assert cli.run(["sweep", "--scheduler", "tls://host:1", "--gpus", "0"]) == 2
    assert "drop --gpus" in capsys.readouterr().err


def test_tls_without_certificates_is_refused_before_a_client_is_made(monkeypatch, tmp_path, capsys):
    """Its end waited a minute, and left a traceback."""
    distributed, dask = pytest.importorskip("distributed"), pytest.importorskip("dask")
    monkeypatch.setattr(distributed, "Client", None)
    names = [f"distributed.comm.tls.{name}" for name in ("ca-file", "client.cert", "client.key")]
    words = ["sweep", "--scheduler", "tls://host:1", "--preset", "attention", "--db", str(tmp_path / "a.db")]
    for count, reason in ((0, "not all are named"), (3, "[Errno 2] No such file")):
        with dask.config.set(dict.fromkeys(names[:count], "no.pem")):
            assert cli.run(words) == 2 and f"no certificates for TLS ({reason}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer, error, message",
    [
        ({"failed": ["timeout", "no reply in time", 3, "the log"]}, WorkerFailure, "no reply"),
        ({"retired": "canary"}, DeviceRetired, "canary"),
        ({"error": "another board"}, errors.TunerError, "another board"),
        (OSError("closed"), DeviceRetired, "closed"),
    ],
)
def test_what_goes_wrong_there_is_typed_here(answer, error, message):
    worker = remote.RemoteWorker(FakeClient(answer), "tcp://127.0.0.1:9", "simulated")
    with pytest.raises(error, match=message) as caught:
        worker.start()
    if error is WorkerFailure:
        assert (caught.value.kind, caught.value.config, caught.value.log) == ("timeout", 3, "the log")


def test_a_worker_that_left_is_lost():
    client = FakeClient(TimeoutError(), addresses=())
    with pytest.raises(DeviceRetired, match="worker is gone"):
        remote.RemoteWorker(client, "tcp://127.0.0.1:9", "simulated").start()
    assert client.calls[0][2]["resources"] == {"GPU": 1} and client.calls[0][2]["workers"] == ["tcp://127.0.0.1:9"]


def test_another_package_is_refused():
    client = FakeClient({"hello": {"package": "another"}})
    with pytest.raises(errors.TunerError, match="another deep_gemm"):
        remote.RemoteWorker(client, "tcp://127.0.0.1:9", "simulated").start()


@pytest.fixture(scope="module")
def cluster():
    """Two Dask workers in processes of their own, on the loopback interface."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, resources={"GPU": 1}, dashboard_address=None, host="127.0.0.1"
    ) as made:
        yield made


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Two hosts with a Dask worker each, reached by TLS over a cable."""
    pytest.importorskip("distributed")
    if reason := why_not():
        pytest.skip(reason)
    with two_hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


def sweep_on(cluster, path, on_start=lambda workers: None) -> dict:
    """Sweep a few configs on a cluster."""
    options = SweepOptions(PROBLEMS, path, backend="simulated", scheduler=cluster.scheduler_address)
    with open_workers(options) as workers:
        on_start(workers)
        return run_sweep(path, PROBLEMS, workers, configs=FEW)


def rows_of(path) -> set[tuple]:
    """Return what was measured, without boards."""
    return {(row.block.problem_key, row.config_key, row.role, row.median_us) for row in read_all(path)[0]}


def check_both_measure(cluster, folder) -> None:
    """Two workers measure what this process does."""
    run_sweep(folder / "here.db", PROBLEMS, configs=FEW)
    summary = sweep_on(cluster, folder / "there.db")
    assert (summary["measured"], summary["boards"], summary["retired"]) == (4, 2, {})
    assert rows_of(folder / "there.db") == rows_of(folder / "here.db")


def check_a_loss(cluster, folder, on_start) -> None:
    """One worker measures everything when `on_start` has let the other one fail."""
    lost = sweep_on(cluster, folder / "lost.db", on_start)
    assert lost["measured"] == 4 and lost["failed"] == {} and len(lost["retired"]) == 1
    assert rows_of(folder / "lost.db") == rows_of(folder / "here.db")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_cluster_measures_what_one_host_does_and_survives_a_worker(cluster, tmp_path):
    """The second sweep loses a worker at its first problem: the other one measures everything."""
    check_both_measure(cluster, tmp_path)
    assert sweep_on(cluster, tmp_path / "there.db")["already_measured"] == 4

    def kill_first(workers):
        workers[0].start()
        workers[0].run = lambda *job: kill(workers[0])

    def kill(worker):
        pid = worker.client.run(os.getpid, workers=[worker.address])[worker.address]
        os.kill(pid, signal.SIGKILL)
        return remote.RemoteWorker.run(worker, {"plan": {"search_seconds": 1.0, "confirm_seconds": 1.0}}, 10.0)

    check_a_loss(cluster, tmp_path, kill_first)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_hosts_measure_what_one_does_and_a_cut_cable_costs_its_problem_a_second_attempt(hosts, tmp_path):
    check_both_measure(hosts, tmp_path)

    def cut_first(workers):
        workers[0].start()
        workers[0].run = lambda *job: hosts.cut(0) or remote.RemoteWorker.run(workers[0], *job)

    check_a_loss(hosts, tmp_path, cut_first)
