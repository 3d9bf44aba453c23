"""The process that answers for a kernel set leaves no process behind."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from tuner.compare import set_child

#: Compiles with stand-ins that write down their process and then take for ever.
COMPILE = textwrap.dedent("""
    import os, sys, time
    from pathlib import Path
    from tuner.compare import set_child

    def compile_one(out, problem, config):
        (out / str(os.getpid())).touch()
        time.sleep(600)

    set_child.compile_one = compile_one
    entries = [{"status": "ok", "problem": {}, "config": {}} for _ in range(2)]
    set_child.compile_all(Path(sys.argv[1]), entries, 2)
""")
LIMIT_S = 60


def wait_for(is_so) -> None:
    """Wait until something is so, at most LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that ended and that nobody has asked about does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_compiling_processes_die_with_a_child_that_is_killed(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", COMPILE, str(tmp_path)])
    try:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        compiling = [int(path.name) for path in tmp_path.iterdir()]
        assert all(map(is_running, compiling))
    finally:
        child.kill()
        child.wait()
    wait_for(lambda: not any(map(is_running, compiling)))


def test_a_child_whose_parent_is_dead_ends_at_once():
    pid = os.fork()
    if pid == 0:
        set_child.die_with_parent(parent=os.getpid())  # not the parent's
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
