"""The parent of the GPU suite: it holds no GPU, starts the children that run the jobs, and adds up their reports.

A job that crashes the child, loses the CUDA context or is silent for JOB_TIMEOUT_S is recorded as failed, and a new
child continues with the next one: a hanging config costs one job (its jobs of later sections are left out). After
MAX_DEATHS such jobs in one group (the part of a job's name before the colon), the rest of that group is left out too,
so that every section gets its turn.
Protocol: one JSON object a line, `{"event": "begin"|"end"|"idle"|"done", ...}`.
"""

import argparse
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress

from .jobs import ALONE_SECTIONS, CONTEXT_LOST, TIMEOUTS_S, get_group
from .processes import GRACE_S, holding_signals, kill_group, send_kill
from .record import make_section

JOB_TIMEOUT_S = 40.0
#: The first message needs the imports, the CUDA context and the portfolio.
START_TIMEOUT_S = 120.0
MAX_CHILDREN = 40
MAX_DEATHS = 2


def list_parents(args: argparse.Namespace) -> list["Parent"]:
    """Return a parent for each worker: they divide the jobs of a shard as shards divide those of a run."""
    (index, total), workers = args.shard, args.workers
    return [
        Parent(argparse.Namespace(**vars(args) | {"shard": (index + total * number, total * workers)}))
        for number in range(workers)
    ]


def select_sections(args: argparse.Namespace, is_alone: bool) -> argparse.Namespace:
    """Return the arguments with those sections only that may run beside others, or that run alone, in one process."""
    sections = [section for section in args.sections if (section in ALONE_SECTIONS) == is_alone]
    return argparse.Namespace(**vars(args) | {"sections": sections} | ({"workers": 1} if is_alone else {}))


def run_together(parents: list["Parent"]) -> "Parent":
    """Run parents side by side; return the first, with the totals of all."""
    threads = [threading.Thread(target=parent.run) for parent in parents[1:]]
    try:
        for thread in threads:
            thread.start()
        parents[0].run()
        for thread in threads:
            thread.join()
    except BaseException:  # of Ctrl-C, say, the other threads hear nothing
        stop_all(parents, threads)
        raise
    return join(parents)


def stop_all(parents: list["Parent"], threads: list[threading.Thread]) -> None:
    """Stop parents, each of them whatever becomes of the others, and wait some time for their threads."""
    with holding_signals(), ExitStack() as stack:  # which calls all, the last first, also after one has raised
        for parent in parents:
            stack.callback(parent.wait)
        for thread in threads:
            if thread.ident is not None:  # it was started
                stack.callback(thread.join, GRACE_S)
        for parent in parents:
            stack.callback(parent.stop)


def join(parents: list["Parent"]) -> "Parent":
    """Return the first parent, with the totals of all."""
    for other in parents[1:]:
        parents[0].add(other)
    return parents[0]


class Parent:
    """Starts children, reads their reports and adds them up."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.first, self.is_complete = args, 0, False
        self.sections = {section: make_section() for section in args.sections}
        self.failures: list[str] = []
        self.died: list[str] = []
        self.notes: dict = {}
        self.current: dict | None = None
        self.child: subprocess.Popen | None = None
        self.is_stopped = False
        self.is_reaped = False  # stop() must not kill a group that has taken the child's number

    def run(self) -> None:
        """Run children until the jobs are done, the budget is spent, or too many children died."""
        for _ in range(MAX_CHILDREN):
            if self._run_one_child() or self.is_stopped or time.time() > self.args.deadline:
                return
        self.failures.append(f"gave up after {MAX_CHILDREN} child processes")

    def stop(self) -> None:
        """Kill the child without waiting for its end, and start no other."""
        self.is_stopped = True
        if self.child is not None and not self.is_reaped:
            send_kill(self.child)

    def wait(self) -> None:
        """Wait some time for a child that was killed."""
        if self.child is not None:
            with suppress(subprocess.TimeoutExpired):
                self.child.wait(GRACE_S)

    def add(self, other: "Parent") -> None:
        """Add the totals of another parent to these."""
        for name, section in other.sections.items():
            target = self.sections.setdefault(name, make_section())
            for key, value in section.items():
                target[key] = round(target[key] + value, 3)
        self.failures += other.failures
        self.notes = {**other.notes, **self.notes, "jobs": self.notes.get("jobs", 0) + other.notes.get("jobs", 0)}
        self.is_complete = self.is_complete and other.is_complete

    def _start_child(self) -> tuple[subprocess.Popen, int]:
        reader, writer = os.pipe()
        command = [
            sys.executable,
            "-m",
            "tests.gpu.run",
            "--report",
            str(writer),
            "--first",
            str(self.first),
            "--deadline",
            str(self.args.deadline),
            "--shard",
            "{}/{}".format(*self.args.shard),
            "--sections",
            ",".join(self.args.sections),
            "--skip",
            "|".join(self._list_skipped()),
            "--spread",
            str(self.args.spread),
            "--worker-faults",
            str(self.args.worker_faults),
            *(["--ops", ",".join(self.args.ops)] if self.args.ops else []),
        ]
        cores = max(1, len(os.sched_getaffinity(0)) // (self.args.workers + 1))  # references are computed on the CPU
        environment = {"OMP_NUM_THREADS": str(cores)} | os.environ
        with holding_signals():
            self.child = subprocess.Popen(command, pass_fds=[writer], start_new_session=True, env=environment)
            self.is_reaped = False
        os.close(writer)
        if self.is_stopped:
            kill_group(self.child)
        return self.child, reader

    def _list_skipped(self) -> list[str]:
        """Return the jobs that died, and the groups that are given up."""
        deaths = Counter(get_group(name) for name in self.died)
        return [*dict.fromkeys(self.died), *(group for group, count in deaths.items() if count >= MAX_DEATHS)]

    def _run_one_child(self) -> bool:
        """Return whether no further child is needed: the jobs are done, the budget is spent, or none can run here."""
        child, reader = self._start_child()
        pending, timeout, start = b"", START_TIMEOUT_S, self.first
        try:
            while select.select([reader], [], [], timeout)[0]:
                data = os.read(reader, 1 << 16)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
                timeout = self._get_timeout()
        except BaseException:  # Ctrl-C, say: the children of the other parents are killed before any is waited for
            self.stop()
            raise
        finally:
            os.close(reader)
        status = self._reap(child)
        self.is_reaped = True
        if self.current is not None:
            self._add_failure(f"the process died or hung (exit status {status})")
        elif status not in (0, CONTEXT_LOST) and not self.is_complete:
            self.failures.append(f"a child ended with status {status} between jobs")
        return self.is_complete or status == 0 or self.first == start

    def _get_timeout(self) -> float:
        """Return how many seconds the child may be silent in its job."""
        return TIMEOUTS_S.get(self.current["section"] if self.current else "", JOB_TIMEOUT_S)

    def _reap(self, child: subprocess.Popen) -> int:
        """Wait for a child that has closed its pipe or gone silent; kill it where it does not, and what it has left."""
        with suppress(subprocess.TimeoutExpired):
            child.wait(1.0 if self.current is not None else 10.0)
        return kill_group(child)

    def _take(self, message: dict) -> None:
        """Add one message to the totals."""
        if message["event"] == "begin":
            self.current, self.first = message, message["index"] + 1
        elif message["event"] == "end":
            self._add_end(message)
        elif message["event"] == "idle":
            self.notes.update(jobs=message["total"], portfolio=message["portfolio"])
        else:
            self.is_complete = True

    def _add_end(self, message: dict) -> None:
        section = self.sections[message["section"]]
        section["jobs"] += 1
        section["cases"] += message["cases"]
        section["seconds"] = round(section["seconds"] + message["seconds"], 3)
        section["failed_jobs"] += bool(message["failures"])
        if message["lost"]:
            self.died.append(self.current["name"])
        self.failures += [f"{message['section']} {self.current['name']}: {failure}" for failure in message["failures"]]
        for failure in message["failures"][:2]:
            print(f"FAILED {message['section']} {self.current['name']}: {failure}", flush=True)
        self.current = None

    def _add_failure(self, reason: str) -> None:
        section = self.sections[self.current["section"]]
        section["jobs"] += 1
        section["failed_jobs"] += 1
        self.failures.append(f"{self.current['section']} {self.current['name']}: {reason}")
        self.died.append(self.current["name"])
        self.current = None
        print(f"FAILED {self.failures[-1]}", flush=True)
