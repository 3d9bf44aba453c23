"""Suspects are measured again where there is a GPU of the sweeps' model and both kernels can be had."""

import pytest

from deep_gemm import _C
from deep_gemm.errors import DeviceError
from tests.fakes import block_noise
from tuner import errors
from tuner.compare import again, comparison, recorded, revisions

H200 = _C.Device.known("h200")


@pytest.fixture(scope="module")
def rows():
    return block_noise.load_sweep()


@pytest.fixture
def part(rows):
    sides = block_noise.make_sides(block_noise.Sessions(rows, 3), "fp8_gemm", lambda row: 1.0, 1.05)
    return recorded.compare_sides(sides)[0]


@pytest.fixture
def asked(monkeypatch):
    """What was asked of the measurement; every pair is slower."""
    seen = {}

    def compare_sets(old, new, options, on_event):
        seen.update(old=old, new=new, options=options)
        return {"pairs": [{"verdict": "slower"} for _ in options.problems]}

    monkeypatch.setattr(revisions, "make_set", lambda clone, name: name)
    monkeypatch.setattr(comparison, "compare_sets", compare_sets)
    return seen


def test_suspects_are_measured_with_the_kernels_of_both_sides(part, asked):
    done = again.measure_again([part])
    old, new = (next(iter(side.kernel_hashes)) for side in (part.a, part.b))
    assert old.startswith(asked["old"]) and new.startswith(asked["new"])
    assert len(asked["options"].problems) == len(asked["options"].configs) > 0
    assert "slower" in done["fp8_gemm"] and part.of_kind("whole")[0].verdict == "slower"
    assert recorded.choose_exit_code(recorded.describe([part])) == errors.EXIT_FAILURE


def test_kernels_that_cannot_be_had_leave_suspects(part, asked, monkeypatch):
    def refuse(clone, name):
        raise errors.UsageError(f"{name}: no revision")

    monkeypatch.setattr(revisions, "make_set", refuse)
    assert "no revision" in again.measure_again([part])["fp8_gemm"]
    assert recorded.choose_exit_code(recorded.describe([part])) == errors.EXIT_INCONCLUSIVE


def test_the_same_kernels_need_no_measurement(part, asked):
    part.b = part.a
    assert "same kernels" in again.measure_again([part])["fp8_gemm"] and not asked


def test_without_such_a_gpu_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(_C, "get_device", lambda: H200)
    assert again.explain_absence(H200.sku) == "" and H200.sku in again.explain_absence("nvidia-h100-sm132")

    def refuse():
        raise DeviceError("no driver")

    monkeypatch.setattr(_C, "get_device", refuse)
    assert "no driver" in again.explain_absence(H200.sku)
