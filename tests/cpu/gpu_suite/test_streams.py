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


class FakeStream:
    """A stream that work on the CPU never waits for."""

    cuda_stream = 0

    def synchronize(self) -> None:
        """Nothing is pending."""


@pytest.mark.parametrize(("run", "variant", "shape"), RUNS, ids=["dense", "grouped"])
def test_a_call_that_runs_at_once_did_not_wait(world, monkeypatch, run, variant, shape):
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    cases, failures = run(world, variant, shape)
    names = ("current stream", "stream object", "stream handle")
    assert cases == 6 and failures == [f"{name}: did not wait for its stream" for name in names]


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
