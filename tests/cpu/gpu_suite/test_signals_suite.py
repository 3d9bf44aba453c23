"""The GPU suite's checks of signals, on CPU tensors: what it expects is what the ops and right kernels do, and it finds
signals that are wrong.
"""

import pytest
import torch

from deep_gemm import _C
from tests.fakes.grouped_kernel import FakeGroupedKernel
from tests.gpu import signals
from tests.gpu.grouped_shapes import Masked
from tests.gpu.signals import VARIANTS

CONFIG = _C.Config(64, 64, 4)
SHAPE = Masked(136, 272, 150, (65, 0, 150, 1))


def fake_kernels(monkeypatch, spoil=lambda signal: None):
    """Let the suite's kernels be fakes, whose signals are spoiled afterwards."""

    class Kernel(FakeGroupedKernel):
        def launch(self, *operands, signal, **options):
            super().launch(*operands, signal=signal, **options)
            spoil(signal)

    monkeypatch.setattr(signals, "load_signalling", lambda variant, config: Kernel(variant.problem(), config))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_right_kernels_pass(world, monkeypatch, variant):
    fake_kernels(monkeypatch)
    assert signals.run_config(world, variant, CONFIG, 1) == (30, [])


@pytest.mark.parametrize("place", [0, -1], ids=["of the first rows", "beyond all of them"])
def test_wrong_signals_are_found(world, monkeypatch, place):
    fake_kernels(monkeypatch, lambda signal: signal[place].add_(1))
    failures = signals.run_config(world, VARIANTS[0], CONFIG, 1)[1]
    assert len(failures) == 10 and all("wrong signals" in failure for failure in failures)


@pytest.mark.parametrize("variant", VARIANTS[:3], ids=str)
def test_calls_keep_what_the_suite_asks(world, variant):
    assert signals.run_calls(world, variant, SHAPE) == (12, [])


def test_signals_follow_the_rows_of_a_graph(world, monkeypatch):
    sizes = ((150,) * 4, (0,) * 4, (1, 150, 0, 77))  # on the CPU others are refused
    monkeypatch.setattr(signals, "MASKED_SIZES", sizes)
    monkeypatch.setattr(signals, "capture", lambda body: (body(), body)[1])
    assert signals.run_graph(world, VARIANTS[0]) == (3, [])


def test_rows_of_complete_signals_are_listed():
    expected = signals.expect_signals(SHAPE, 12)
    assert expected.tolist() == [136, 136, 0, 0, 0, 0, 136, 136, 136, 136, 0, 0]
    expected[[1, 6]] -= 1
    groups, rows = signals.list_complete_rows(SHAPE, expected)
    assert list(zip(groups.tolist(), rows.tolist(), strict=True)) == [
        *((0, row) for row in range(64)), *((2, row) for row in range(64, 150)), (3, 0),
    ]  # fmt: skip
    assert torch.equal(signals.expect_signals(SHAPE, 14)[12:], torch.zeros(2, dtype=torch.int32))


def test_jobs_have_names_of_their_own(world):
    names = [name for name, _ in signals.signal_jobs(world)]
    assert len(set(names)) == len(names) and any("run_watched_signals" in name for name in names)
