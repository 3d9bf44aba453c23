"""The check of streams on fakes: every way to name a stream is tried, and a call that does not wait is found."""

import contextlib

import pytest
import torch

from tests.gpu import grouped_semantics_runtime, semantics_runtime
from tests.gpu.grouped_shapes import Masked
from tests.gpu.grouped_variants import FP8_MASKED, GroupedVariant
from tests.gpu.operands import Shape
from tests.gpu.variants import Variant

RUNS = [
    (semantics_runtime.run_streams, Variant(), Shape(5, 24, 144)),
    (grouped_semantics_runtime.run_streams, GroupedVariant(FP8_MASKED), Masked(24, 144, 21, (21, 0))),
]


class FakeEvent:
    """An event after a sleep; `ended`: whether each sleep had ended when it was asked, then the last one for ever."""

    ended = (False,)
    asked = 0

    def record(self) -> None:
        """Nothing is pending."""

    def query(self) -> bool:
        """Return whether the sleep had ended."""
        FakeEvent.asked += 1
        return FakeEvent.ended[min(FakeEvent.asked, len(FakeEvent.ended)) - 1]


class FakeStream:
    """A stream that work on the CPU never waits for."""

    cuda_stream = 0

    def synchronize(self) -> None:
        """Nothing is pending."""


@pytest.fixture
def sleeps(monkeypatch):
    """Fakes of streams and events; returns the cycles of every sleep."""
    cycles = []
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "_sleep", cycles.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(FakeEvent, "asked", 0)
    return cycles


NAMES = ("current stream", "stream object", "stream handle")
SHORT, LONGER, LONGEST = semantics_runtime.SLEEP_CYCLES


@pytest.mark.parametrize(("run", "variant", "shape"), RUNS, ids=["dense", "grouped"])
def test_a_call_that_runs_at_once_did_not_wait(world, sleeps, run, variant, shape):
    cases, failures = run(world, variant, shape)
    assert cases == 6 and failures == [f"{name}: did not wait for its stream" for name in NAMES]
    assert sleeps == [SHORT] * 3


def test_a_look_that_came_late_is_repeated_behind_a_longer_sleep(world, monkeypatch, sleeps):
    monkeypatch.setattr(FakeEvent, "ended", (True, True, False))
    run, variant, shape = RUNS[0]
    cases, failures = run(world, variant, shape)
    assert cases == 6 and failures == [f"{name}: did not wait for its stream" for name in NAMES]
    assert sleeps == [SHORT, LONGER, LONGEST, SHORT, SHORT]


def test_a_call_that_blocks_until_its_stream_is_idle_fails(world, monkeypatch, sleeps):
    monkeypatch.setattr(FakeEvent, "ended", (True,))
    run, variant, shape = RUNS[0]
    cases, failures = run(world, variant, shape)
    assert cases == 6 and len(failures) == 3 and all("the call blocks" in failure for failure in failures)
    assert sleeps == [SHORT, LONGER, LONGEST] * 3


@pytest.mark.parametrize(("runtime", "variant"), [
    (semantics_runtime, Variant()), (grouped_semantics_runtime, GroupedVariant(FP8_MASKED)),
], ids=["dense", "grouped"])  # fmt: skip
def test_threads_give_right_and_equal_results(world, monkeypatch, runtime, variant):
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(runtime, "THREADS", 2)
    monkeypatch.setattr(runtime, "CALLS_PER_THREAD", 2)
    assert runtime.run_threads(world, variant) == (5, [])
