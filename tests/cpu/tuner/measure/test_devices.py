"""One board per sweep: which GPU the measuring process sees, and the lock on it."""

import os

import pytest

from tuner import errors
from tuner.measure import devices
from tuner.measure.devices import choose_visible_device
from tuner.measure.gpu_lock import GpuLock


def test_one_sweep_a_board():
    with GpuLock("ab" * 32), pytest.raises(errors.TunerError, match=f"process {os.getpid()}"):
        GpuLock("ab" * 32)
    with GpuLock("ab" * 32):
        pass


@pytest.mark.parametrize(
    ("visible", "ordinal", "chosen"),
    [(None, 2, "2"), ("3,5", 1, "5"), ("GPU-abc, GPU-def", 0, "GPU-abc"), ("MIG-1", 0, "MIG-1")],
)
def test_the_child_sees_one_gpu(monkeypatch, visible, ordinal, chosen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "count_visible_devices", lambda: 3)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert choose_visible_device(ordinal) == chosen


@pytest.mark.parametrize(
    ("count", "ordinal", "error", "message"),
    [(0, 0, errors.TunerError, "no CUDA GPU.*doctor.*--dry-run"), (2, 2, errors.UsageError, "--device 2: .* 2 GPUs")],
)
def test_a_gpu_that_is_not_there_is_named_before_a_process_starts(monkeypatch, count, ordinal, error, message):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "count_visible_devices", lambda: count)
    with pytest.raises(error, match=message):
        choose_visible_device(ordinal)


@pytest.mark.parametrize(("visible", "ordinal"), [("", 0), ("0", 1), ("1,1", 0)])
def test_impossible_gpus_are_usage_errors(monkeypatch, visible, ordinal):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(errors.UsageError, match="CUDA_VISIBLE_DEVICES"):
        choose_visible_device(ordinal)
