"""Two hosts on this machine: network namespaces with a cable each, and a Dask worker over TLS in each of them.

Needs root, `ip` and `openssl`. Networks are apart, processes and files are not: nothing reaches a host but by its
cable.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

START_LIMIT_S = 120.0
#: A scheduler forgets a worker that it has not heard of for so long.
FORGET_S = 6
#: Of a network for tests of networks (RFC 2544), in which no machine should be.
SUBNET = "198.18.77"
PORT = 18786


def why_not() -> str:
    """Return why there can be no hosts here; "" where there can."""
    missing = [name for name in ("ip", "openssl") if shutil.which(name) is None]
    if missing or os.geteuid():
        return f"needs root and {', '.join(missing) or 'nothing else'}"
    routes = subprocess.run(["ip", "route", "show", "table", "all"], capture_output=True, text=True, check=False).stdout
    if f"{SUBNET}." in routes:
        return f"{SUBNET}.0 is in use"
    done = subprocess.run(["ip", "netns", "add", f"dgprobe{os.getpid()}"], capture_output=True, check=False)
    if done.returncode:
        return "network namespaces are not allowed here"
    subprocess.run(["ip", "netns", "del", f"dgprobe{os.getpid()}"], check=True)
    return ""


def run(*words: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(words, check=True, capture_output=True, timeout=60)


class Hosts:
    """The scheduler's address, certificates as Dask's configuration takes them, and the cables."""

    def __init__(self, folder: Path):
        self.folder, self.prefix = folder, f"dg{os.getpid()}"
        self.scheduler_address = f"tls://{self.address(0, 1)}:{PORT}"
        self.certificate, self.key = folder / "cert.pem", folder / "key.pem"

    @property
    def config(self) -> dict[str, Any]:
        """Return what the sweep's own process must know of TLS."""
        files = {"ca-file": self.certificate, "client.cert": self.certificate, "client.key": self.key}
        return {f"distributed.comm.tls.{name}": str(path) for name, path in files.items()}

    def address(self, number: int, end: int) -> str:
        """Return the address of one end of a cable: 1 here, 2 on the host."""
        return f"{SUBNET}.{4 * number + end}"

    def connect(self, number: int) -> None:
        """Make host `number` and its cable."""
        host, cable = f"{self.prefix}n{number}", f"{self.prefix}c{number}"
        inside = ("ip", "netns", "exec", host, "ip")
        run("ip", "netns", "add", host)
        run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", host)
        run("ip", "addr", "add", f"{self.address(number, 1)}/30", "dev", cable)
        run("ip", "link", "set", cable, "up")
        run(*inside, "addr", "add", f"{self.address(number, 2)}/30", "dev", "eth0")
        for device in ("lo", "eth0"):
            run(*inside, "link", "set", device, "up")
        run(*inside, "route", "add", "default", "via", self.address(number, 1))

    def cut(self, number: int) -> None:
        """Cut a host's cable: from now on packets are lost, and nobody is told."""
        run("ip", "link", "set", f"{self.prefix}c{number}", "down")

    def remove(self, number: int) -> None:
        """Remove a host with its cable."""
        subprocess.run(["ip", "netns", "del", f"{self.prefix}n{number}"], capture_output=True, check=False)

    def start(self, module: str, *words: str, host: int | None = None) -> subprocess.Popen:
        """Start a program of Dask here, or on a host."""
        where = [] if host is None else ["ip", "netns", "exec", f"{self.prefix}n{host}"]
        tls = ["--tls-ca-file", str(self.certificate), "--tls-cert", str(self.certificate), "--tls-key", str(self.key)]
        environment = os.environ | {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{FORGET_S}s"}
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [*where, sys.executable, "-m", f"distributed.cli.{module}", *words, *tls],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )


def stop(process: subprocess.Popen) -> None:
    """Kill a process with all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Yield two hosts with a worker each, both known to the scheduler, which runs here."""
    import dask
    from distributed import Client

    hosts = Hosts(folder)
    subject = ("-subj", "/CN=deep_gemm test", "-days", "1")
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject,
        "-keyout", str(hosts.key), "-out", str(hosts.certificate))  # fmt: skip
    with ExitStack() as started:
        for number in range(2):
            started.callback(hosts.remove, number)
            hosts.connect(number)
        words = ("--protocol", "tls", "--port", str(PORT), "--no-dashboard", "--no-show")
        started.callback(stop, hosts.start("dask_scheduler", *words))
        words = (
            hosts.scheduler_address,
            "--nworkers",
            "1",
            "--nthreads",
            "1",
            "--resources",
            "GPU=1",
            "--no-dashboard",
        )
        for number in range(2):
            own = ("--host", hosts.address(number, 2), "--local-directory", str(folder))
            started.callback(stop, hosts.start("dask_worker", *words, *own, host=number))
        started.enter_context(dask.config.set(hosts.config))
        with Client(hosts.scheduler_address, timeout=START_LIMIT_S, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=START_LIMIT_S)
        yield hosts
