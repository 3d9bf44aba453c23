"""Children of the GPU suite when its end is interrupted: a signal breaks no clean-up off, and nothing that goes wrong
with one child keeps the others alive.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from tests.fakes.processes import wait_until_gone
from tests.gpu import parent, processes, run, sanitizer
from tests.gpu.processes import end_all, ending_on_sigterm, holding_signals, kill_group, kill_groups
from tests.gpu.sanitizer_tools import Tools

KILLED = -signal.SIGKILL
ENDED = (KeyboardInterrupt, SystemExit)


@pytest.fixture
def start():
    """Return a function that starts children, each in a session of its own; those that a test has left are killed."""
    children: list[subprocess.Popen] = []
    popen = subprocess.Popen  # which a test may replace

    def start_some(count: int, *command: str, **options) -> list[subprocess.Popen]:
        found = [popen(command or ("sleep", "60"), start_new_session=True, **options) for _ in range(count)]
        children.extend(found)
        return found

    yield start_some
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture
def interrupt_kills(monkeypatch):
    """Return a function that lets a signal come to this process whenever it kills a group."""
    real = os.killpg

    def interrupt(number: int) -> None:
        def kill(group: int, sent: int) -> None:
            signal.raise_signal(number)
            real(group, sent)

        monkeypatch.setattr(os, "killpg", kill)

    return interrupt


def interrupt_self(number: int) -> None:
    """Send this process a signal, which must raise."""
    signal.raise_signal(number)
    time.sleep(60)


def make_tools(children: list[subprocess.Popen]) -> Tools:
    """Return tools that have these children."""
    return Tools([SimpleNamespace(process=child, is_over=False) for child in children])


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_breaks_the_end_of_the_tools_not_off(start, interrupt_kills, first, second):
    children = start(4)
    interrupt_kills(second)
    with pytest.raises(ENDED) as caught, ending_on_sigterm(), make_tools(children):
        interrupt_self(first)
    assert [child.returncode for child in children] == [KILLED] * 4
    assert caught.type is (KeyboardInterrupt if first == signal.SIGINT else SystemExit), "the first one counts"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number, raised", [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_the_first_signal_is_heard_when_a_clean_up_is_done(start, interrupt_kills, number, raised):
    children = start(3)
    interrupt_kills(number)
    with pytest.raises(raised), ending_on_sigterm(), make_tools(children):
        pass
    assert [child.returncode for child in children] == [KILLED] * 3


def test_a_signal_breaks_the_end_of_shards_not_off(start, tmp_path):
    """Ctrl-C reaches the shards and the run that has started them, which then sends SIGTERM."""
    code = "import pathlib, signal, sys, time; signal.signal(15, signal.SIG_IGN)"
    code += f"; pathlib.Path({str(tmp_path)!r}, str(time.monotonic_ns())).touch(); time.sleep(60)"
    children = start(2, sys.executable, "-c", code)
    while len(list(tmp_path.iterdir())) < 2:
        time.sleep(0.02)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        end_all(children, 2.0)
    assert [child.returncode for child in children] == [KILLED] * 2


@pytest.fixture
def parents(monkeypatch, start):
    """Return three parents: once the children of all run, Ctrl-C comes."""
    started = threading.Barrier(3)

    def start_child(one):
        reader, writer = os.pipe()
        [one.child] = start(1, stdout=writer)  # which so ends with the child
        os.close(writer)
        started.wait(10)
        if threading.current_thread() is threading.main_thread():
            interrupt_self(signal.SIGINT)
        return one.child, reader

    monkeypatch.setattr(parent.Parent, "_start_child", start_child)
    return parent.list_parents(run.parse_arguments(["--workers", "3"]))


def test_a_second_signal_lets_no_parent_go_on(parents, interrupt_kills):
    interrupt_kills(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ending_on_sigterm():
        parent.run_together(parents)
    assert [one.child.wait(10) for one in parents] == [KILLED] * 3


def test_parents_are_stopped_whatever_becomes_of_the_others(parents):
    real = parents[1].stop

    def fail() -> None:
        real()
        raise PermissionError("not this one")

    parents[1].stop = fail
    with pytest.raises(PermissionError):
        parent.run_together(parents)
    assert [one.child.wait(10) for one in parents] == [KILLED] * 3


def test_ctrl_c_is_heard_while_the_other_parents_are_waited_for(monkeypatch, start):
    [child] = start(1)
    first, second = parent.list_parents(run.parse_arguments(["--workers", "2"]))

    def finish() -> None:
        while second.child is None:
            time.sleep(0.02)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    def go_on() -> None:
        second.child = child
        child.wait()

    first.run, second.run = finish, go_on
    with pytest.raises(KeyboardInterrupt):
        parent.run_together([first, second])
    assert child.returncode == KILLED


def test_children_of_a_leader_that_has_ended_are_killed(start):
    code = "import subprocess; print(subprocess.Popen(['sleep', '30'], stdout=subprocess.DEVNULL).pid)"
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True, text=True)
    left = int(leader.communicate(timeout=60)[0])
    assert leader.returncode == 0 and os.getpgid(left) == leader.pid
    assert kill_group(leader) == 0
    assert wait_until_gone(left)


def test_all_groups_are_killed_before_one_is_waited_for(monkeypatch):
    done: list[tuple] = []
    monkeypatch.setattr(os, "killpg", lambda group, sent: done.append(("kill", group)))
    kill_groups([SimpleNamespace(pid=pid, wait=lambda _, pid=pid: done.append(("wait", pid))) for pid in (7, 8)])
    assert done == [("kill", 7), ("kill", 8), ("wait", 7), ("wait", 8)]


def test_other_threads_end_children_too(start):
    """They can set no signal, and hear none."""
    children, codes = start(2), []

    def end() -> None:
        with ending_on_sigterm(), holding_signals():
            codes.append(kill_group(children[0]))
            end_all(children[1:])

    thread = threading.Thread(target=end)
    thread.start()
    thread.join(60)
    assert codes == [KILLED] and children[1].returncode == -signal.SIGTERM


def test_a_run_keeps_ignoring_what_it_was_started_to_ignore():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ending_on_sigterm(), holding_signals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_child_that_compiles_calls_ends_with_an_interrupted_run(monkeypatch, start):
    started: list[subprocess.Popen] = []

    def interrupt(*_):
        raise SystemExit(143)

    monkeypatch.setattr(sanitizer, "choose_all_pairs", interrupt)
    monkeypatch.setattr(sanitizer.subprocess, "Popen", lambda *_, **__: started.extend(start(1)) or started[0])
    with pytest.raises(SystemExit):
        sanitizer.compile_ahead(None, (), 60.0)
    assert started[0].returncode == KILLED


def test_one_child_that_may_not_be_killed_keeps_no_other_alive(monkeypatch, start):
    children, real = start(2), os.killpg

    def refuse(group: int, sent: int) -> None:
        if group == children[0].pid:
            raise PermissionError("not this one")
        real(group, sent)

    monkeypatch.setattr(os, "killpg", refuse)
    monkeypatch.setattr(processes, "GRACE_S", 0.5)
    start_s = time.monotonic()
    kill_groups(children)
    assert children[1].wait(10) == KILLED and children[0].poll() is None
    assert time.monotonic() - start_s < 10, "it is not waited for for ever"


def test_an_end_that_began_while_handlers_were_set_goes_on(monkeypatch):
    """The handlers of before are those that would break it off."""
    real, heard = signal.signal, []

    def interrupt(number: int, handle) -> object:
        found = real(number, handle)
        if not heard and getattr(handle, "__name__", "") == "<lambda>":  # the first one that holding_signals sets
            heard.append(number)
            signal.raise_signal(signal.SIGTERM)
        return found

    def end_children() -> None:
        monkeypatch.setattr(signal, "signal", interrupt)
        try:
            with holding_signals():
                pytest.fail("the signal was lost")
        finally:
            monkeypatch.setattr(signal, "signal", real)
            signal.raise_signal(signal.SIGINT)  # is ignored: this process ends

    with pytest.raises(SystemExit), ending_on_sigterm():
        end_children()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
