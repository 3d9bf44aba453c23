"""A real PostgreSQL server for tests, from the programs that the system has: on a Unix socket, in a folder of its own.

Debian's package has its programs outside PATH, in /usr/lib/postgresql/VERSION/bin. The server refuses to run as root;
started by root, it runs as the user `postgres` or `nobody`.
"""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

PROGRAMS = ("postgres", "initdb")
PACKAGES = "/usr/lib/postgresql"
OWNER = "tuner"
PR_SET_PDEATHSIG = 1
START_LIMIT_S, STOP_LIMIT_S = 30.0, 20.0


class NoServer(Exception):
    """The system has no PostgreSQL server, or Python has no driver for it."""


class PostgreSQL:
    """A running server. Every `create_database` gives the URL of an empty database of its own."""

    def __init__(self, socket_folder: Path):
        self.socket_folder, self.numbers = socket_folder, count()

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        return f"postgresql+psycopg://{OWNER}@/{name}?host={self.socket_folder}"

    def connect(self, name: str = "postgres"):
        """Return a connection of the driver in autocommit mode."""
        import psycopg

        return psycopg.connect(host=str(self.socket_folder), user=OWNER, dbname=name, autocommit=True)

    def create_database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"tuning{next(self.numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)


def find_program(name: str) -> str:
    """Return the path of a server program. Raises: NoServer."""
    places = sorted(Path(PACKAGES).glob("*/bin"), key=lambda folder: folder.parent.name.zfill(4), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise NoServer(f"no program {name} in PATH or below {PACKAGES}: install the package postgresql")
    return found


def find_user() -> pwd.struct_passwd:
    """Return the user who runs the server: this one, or for root one without rights. Raises: NoServer."""
    if os.geteuid():
        return pwd.getpwuid(os.geteuid())
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in known:
            return known[name]
    raise NoServer("root may not run a PostgreSQL server, and there is no user postgres or nobody")


def run_as(user: pwd.struct_passwd) -> dict:
    """Return what subprocess needs to run a program as `user`."""
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if not os.geteuid() else {}


def end_with_parent() -> None:
    """Let a child end when its parent dies, in whatever way: SIGQUIT is the server's immediate shutdown."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)


@contextmanager
def start_server() -> Iterator[PostgreSQL]:
    """Start a server and stop it at the end; its folder goes with it. Raises: NoServer."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise NoServer(f"{error}: install psycopg[binary]") from error
    programs, user = {name: find_program(name) for name in PROGRAMS}, find_user()
    with tempfile.TemporaryDirectory(prefix="deep_gemm-pg-", dir=choose_root()) as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("data", "socket"):
            (folder / part).mkdir(mode=0o700 if part == "data" else 0o755)
            if not os.geteuid():
                os.chown(folder / part, user.pw_uid, user.pw_gid)
        initialise(programs["initdb"], folder, user)
        process = launch(programs["postgres"], folder, user)
        try:
            server = PostgreSQL(folder / "socket")
            wait_until_ready(server, process, folder / "log")
            yield server
        finally:
            stop(process)


def choose_root() -> str | None:
    """Return a folder in memory where the system has one: durability is not what is tested."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def initialise(program: str, folder: Path, user: pwd.struct_passwd) -> None:
    """Make the server's data folder."""
    subprocess.run(
        [program, "-D", folder / "data", "-A", "trust", "-U", OWNER, "-E", "UTF8", "--locale=C", "--no-sync"],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd="/",
        **run_as(user),
    )


def launch(program: str, folder: Path, user: pwd.struct_passwd) -> subprocess.Popen:
    """Start the server."""
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": folder / "socket",
        "unix_socket_permissions": "0777",
        "fsync": "off",
        "shared_buffers": "32MB",
        "max_connections": 40,
    }
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [program, "-D", folder / "data", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            preexec_fn=end_with_parent,
            **run_as(user),
        )


def wait_until_ready(server: PostgreSQL, process: subprocess.Popen, log: Path) -> None:
    """Return as soon as the server answers. Raises: RuntimeError with the end of its log where it does not."""
    import psycopg

    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            server.connect().close()
            return
        except psycopg.OperationalError:
            time.sleep(0.05)
    raise RuntimeError(f"the PostgreSQL server did not start: {log.read_text(errors='replace')[-2000:]}")


def stop(process: subprocess.Popen) -> None:
    """End the server: SIGINT closes its connections and shuts down; one that hangs is killed."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGQUIT)
        process.wait(STOP_LIMIT_S)
