"""Boards that measure at the same time: each takes problem after problem from one queue, and one store takes all rows.

A lane is a board with its measuring process, on this host or another. A problem is measured on one board from beginning
to end. Where that fails, it is measured again, as a whole, on another board; the second time makes it a failed problem.
A problem on which a board is lost goes to another one after all others: the third loss makes it a failed problem, or
the second where one board is left. Boards at fault may be two: one that fails and one that is lost, or two that are
lost. Of a problem that lacks times after rests alone, they are taken on the board that measured it, or else by a later
sweep. A problem counts as measured once the last block of its search is stored: where the board is lost after that,
rests and energy are left to a later sweep. Where it is lost while it makes up for these alone, they are left once more,
and the problem counts neither as measured nor as failed. A board on which three problems fail in a row is not used any
further.

Guarantees: a single lane runs in the calling thread, several in a thread each. When anything but a lost board goes
    wrong, or on Ctrl-C, all lanes end before `run` raises: what they committed stays.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from deep_gemm import _C
from tuner import errors
from tuner.measure.devices import read_device
from tuner.measure.gpu_lock import GpuLock
from tuner.measure.worker_client import DeviceRetired

POLL_S = 0.1
MAX_FAILURES = 3
#: A problem that costs boards is tried once more than two boards at fault explain, but not on the last board.
MAX_LOSSES = 3


class TryElsewhere(Exception):
    """A problem failed on a board, which may be the board's fault."""


class LostBefore(DeviceRetired):
    """A board was lost before it began with its problem."""


class LostAfter(DeviceRetired):
    """A board was lost when its problem had been measured: times after rests or energy may be missing."""


class LostMakingUp(DeviceRetired):
    """A board was lost while it took times after rests or energy of a problem that was measured before."""


class LaneStopped(Exception):
    """The sweep ends: this lane measures nothing more."""


@dataclass(eq=False)
class Lane:
    """One board. `worker` measures jobs; `recorder` writes what it measured under the board's id, `rested` what it
    measured after rests, `energy` its blocks of energy; `visits` are those to the sentinels, before some of the
    problems that the board takes (`num_taken`).
    """

    worker: Any
    hello: dict
    device: _C.Device
    recorder: Any = None
    rested: Any = None
    energy: Any = None
    visits: Any = None
    num_taken: int = 0
    failures: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def board(self) -> str:
        """Return the hash of the board's UUID."""
        return self.hello["device"]["uuid_hash"]

    def choose_recorder(self, block: Any) -> Any:
        """Return what records a block."""
        return self.energy if block.is_energy else self.rested if block.is_rested else self.recorder

    def run(self, job: dict, limit_s: float, *more) -> dict:
        """Run one job. Raises: LaneStopped when the sweep ends; what the worker raises."""
        if self.stopped.is_set():
            raise LaneStopped
        return self.worker.run(job, limit_s, *more)

    def stop(self) -> None:
        """Let no further job start, and end the one that runs where the worker can."""
        self.stopped.set()
        if self.recorder is not None:
            self.recorder.store.patience_s = 0.0  # a full disk is waited for no longer
        getattr(self.worker, "interrupt", lambda: None)()


@dataclass(eq=False)
class Task:
    """A problem to be measured, on `board` alone if that is given; `tried` is the board on which it failed,
    `num_lost` how many were lost on it.
    """

    problem: _C.Problem
    configs: list
    board: str | None = None
    tried: Lane | None = None
    num_lost: int = 0

    def may_run_on(self, lane: Lane, is_last: bool) -> bool:
        """Return whether a board, the last one or not, may take the problem."""
        return self.board in (None, lane.board) and (self.tried is not lane or is_last)


def start(workers: Iterable, on_event: Callable[[str, dict], None]) -> list[Lane]:
    """Start measuring processes and return their lanes. Of several, those that fail to start are left out.

    Raises: DeviceRetired where none starts; TunerError.
    """
    lanes: list[Lane] = []
    lost: list[DeviceRetired] = []
    for worker in workers:
        try:
            hello = worker.start()
        except DeviceRetired as error:
            lost.append(error)
            continue
        lanes.append(Lane(worker, hello, read_device(hello["device"])))
    if not lanes:
        raise lost[0]
    for each in lost:
        on_event("retired", {"reason": str(each)})
    return lanes


def check_alike(lanes: list[Lane]) -> None:
    """Raise UsageError unless all boards are of one description: times of others are never put together."""
    if len(group_alike(lanes)) > 1:
        names = ", ".join(sorted(f"{lane.device.sku} at {lane.device.clock_mhz:.0f} MHz" for lane in lanes))
        raise errors.UsageError(
            f"different boards ({names}): name equal ones by --gpus, or add --mixed to measure every problem once for"
            " each kind"
        )
    if len({lane.hello["regime"] for lane in lanes}) > 1:
        raise errors.TunerError("the measuring processes work under different regimes; install one package everywhere")


def group_alike(lanes: list[Lane]) -> list[list[Lane]]:
    """Return the lanes by the description of their boards."""
    groups: dict[str, list[Lane]] = {}
    for lane in lanes:
        groups.setdefault(str(sorted(lane.device.as_dict().items())), []).append(lane)
    return list(groups.values())


def group_workers(workers: list, on_event: Callable[[str, dict], None], is_mixed: bool) -> list[list]:
    """Start measuring processes, and return them by the kind of their boards, those that fail left out.

    Raises: UsageError for several kinds unless `is_mixed`; DeviceRetired; TunerError.
    """
    lanes = start(workers, on_event)
    if not is_mixed:
        check_alike(lanes)
    return [[lane.worker for lane in group] for group in group_alike(lanes)]


def lock_boards(lanes: Iterable[Lane], cleanup: ExitStack) -> None:
    """Take the lock of every board of this host. Raises: TunerError for one that is measured already."""
    for lane in lanes:
        if not getattr(lane.worker, "locks_itself", False):
            cleanup.enter_context(GpuLock(lane.board))


class Queue:
    """The problems that are left, shared by the threads of the lanes."""

    def __init__(self, tasks: Iterable[Task], lanes: list[Lane], is_out_of_time: Callable[[], bool]):
        self.tasks, self.lanes, self.is_out_of_time = deque(tasks), list(lanes), is_out_of_time
        self.changed = threading.Condition()
        self.num_active = 0
        self.error: BaseException | None = None

    def take(self, lane: Lane) -> Task | None:
        """Return the next problem for a board, None at the end.

        Waits while a problem may still come back from another board.
        """
        with self.changed:
            while self.error is None and not self.is_out_of_time():
                is_last = len(self.lanes) == 1
                task = next((each for each in self.tasks if each.may_run_on(lane, is_last)), None)
                if task is not None:
                    self.tasks.remove(task)
                    self.num_active += 1
                    return task
                if not self.tasks and not self.num_active:
                    return None
                self.changed.wait(POLL_S)
            return None

    def finish(self) -> None:
        """Count one problem less at work."""
        with self.changed:
            self.num_active -= 1
            self.changed.notify_all()

    def give_back(self, lane: Lane, task: Task, error: Exception) -> bool:
        """Let another board have a problem that `lane` did not measure because of `error`; return whether one will."""
        with self.changed:
            if task.board is not None or not self.lanes or isinstance(error, LostAfter | LostMakingUp):
                return False
            if isinstance(error, DeviceRetired):
                task.num_lost += not isinstance(error, LostBefore)
                is_given_up = task.num_lost >= (MAX_LOSSES if len(self.lanes) > 1 else MAX_LOSSES - 1)
                add = self.tasks.append
            else:
                is_given_up, task.tried = task.tried is not None, task.tried or lane
                add = self.tasks.appendleft
            if not is_given_up:
                add(task)
            return not is_given_up

    def retire(self, lane: Lane, error: DeviceRetired) -> None:
        """Use a board no further. The last one's loss ends the sweep; what only this one may measure stays open."""
        with self.changed:
            self.lanes.remove(lane)
            self.tasks = deque(task for task in self.tasks if task.board is None or task.board != lane.board)
            if not self.lanes:
                self.error = self.error or error
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let all lanes end with their problem; the first error is raised in the end."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()


@dataclass
class Driver:
    """Measures tasks on lanes.

    `work(task, lane)` measures one; `on_lost(task, lane, error)` is told that a board was lost, with the task where it
    goes to nobody else, failed or (LostAfter) measured, else None.
    """

    lanes: list[Lane]
    work: Callable[[Task, Lane], None]
    on_lost: Callable[[Task | None, Lane, DeviceRetired], None]
    is_out_of_time: Callable[[], bool]

    def run(self, tasks: Iterable[Task]) -> None:
        """Measure all tasks, until time is over. Raises: what `work` raises; DeviceRetired of the last board."""
        queue = Queue(tasks, self.lanes, self.is_out_of_time)
        if len(self.lanes) == 1:
            self.serve(queue, self.lanes[0])
        else:
            self.serve_all(queue)
        if queue.error is not None:
            raise queue.error

    def serve_all(self, queue: Queue) -> None:
        """Run every lane in a thread until all have ended."""
        threads = [threading.Thread(target=self.serve, args=(queue, lane), daemon=True) for lane in self.lanes]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                time.sleep(POLL_S)
                if queue.error is not None:
                    self.stop()
        except BaseException as error:
            queue.fail(error)
            self.stop()
            raise
        finally:
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def stop(self) -> None:
        """End all lanes as soon as possible."""
        for lane in self.lanes:
            lane.stop()

    def serve(self, queue: Queue, lane: Lane) -> None:
        """Measure problem after problem on one board, until there are no more or the board is lost."""
        while (task := queue.take(lane)) is not None:
            try:
                self.work(task, lane)
                lane.failures = 0
            except (DeviceRetired, TryElsewhere) as error:
                if self.move(queue, task, lane, error):
                    return
            except LaneStopped:
                return
            except BaseException as error:
                queue.fail(error)
                return
            finally:
                queue.finish()

    def move(self, queue: Queue, task: Task, lane: Lane, error: Exception) -> bool:
        """Let another board measure a problem; return whether this one is not used any further."""
        lane.failures += 1
        if not isinstance(error, DeviceRetired):
            queue.give_back(lane, task, error)
            if lane.failures < MAX_FAILURES or len(queue.lanes) == 1:
                return False
            error = DeviceRetired(f"{lane.failures} problems in a row failed on {lane.device.name}: {error}")
            queue.retire(lane, error)
            self.on_lost(None, lane, error)
            return True
        queue.retire(lane, error)
        is_left = task.board is not None or queue.error is not None or isinstance(error, LostMakingUp)
        is_open = queue.give_back(lane, task, error) or is_left
        is_closed = isinstance(error, LostAfter) or not is_open
        self.on_lost(task if is_closed else None, lane, error)
        return True
