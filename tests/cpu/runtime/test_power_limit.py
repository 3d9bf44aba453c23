"""The power limit in a GPU's SKU, against a stub of NVML: which boards have one, and what NVML may fail at."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from deep_gemm import _C, selection
from tests.fakes import stub_driver

MODEL = "nvidia-h200-sm132"
#: Two boards in the order of the bus; CUDA's GPU 0 is the second of them.
BOARDS = "70=700000/700000,80=500000/700000"
PATIENCE_S = 5


@pytest.fixture
def driver(tmp_path):
    """A child of its own for each test: what NVML said is kept for the life of a process."""
    with stub_driver.start(tmp_path) as stub:
        yield stub


def list_skus(count: int = 1) -> list[str]:
    """Return the SKUs of the first GPUs, each asked for twice."""
    return [_C.get_device(ordinal).sku for _ in range(2) for ordinal in range(count)]


def list_calls(events: list[dict]) -> list[str]:
    """Return the names of NVML's functions that were called."""
    return [event["call"] for event in events if event["call"].startswith("nvml")]


def test_each_board_has_its_own_limit_whatever_the_order_and_is_asked_once(driver):
    skus, events = driver.call(list_skus, 2, devices=2, nvml=BOARDS)
    assert skus == [f"{MODEL}-500w", "nvidia-h200-sm131"] * 2
    assert list_calls(events) == ["nvmlInit_v2", *["nvmlDeviceGetHandleByPciBusId_v2"] * 2]


def describe_limited() -> tuple:
    """Return the current GPU as a dict, and what was chosen for it and for its model."""
    problem = _C.Problem("fp8_gemm", 64, 2112, 7168)
    device = selection.current_device()
    choices = [selection.explain(problem, one) for one in (device, _C.Device.known(MODEL))]
    return device.as_dict(), [(str(one.config), one.source, one.reason) for one in choices]


def test_a_limited_board_is_described_and_served_as_its_model(driver):
    (fields, choices), _ = driver.call(describe_limited, nvml=BOARDS)
    assert fields == _C.Device.known(MODEL).as_dict() | {"sku": f"{MODEL}-500w"}
    assert choices[0] == choices[1]


@pytest.mark.parametrize(
    "boards",
    ["80=700000/700000", "80=665000/700000", "80=0/700000", "80=500000/0", "80=750000/700000", "70=500000/700000"],
    ids=["default", "5 % below", "no limit", "no default", "above", "another board"],
)
def test_a_board_without_a_lower_limit_has_the_sku_of_its_model(driver, boards):
    assert driver.call(list_skus, nvml=boards)[0] == [MODEL] * 2


def test_nvml_without_a_driver(driver):
    assert driver.call(list_skus)[0] == [MODEL] * 2


@pytest.mark.parametrize(
    "settings", [{"name": "NVIDIA H200 MIG 1g.18gb", "sms": 16}, {"name": "NVIDIA A100", "cc": 80}]
)
def test_nvml_is_not_asked_of_slices_and_of_gpus_without_kernels(driver, settings):
    skus, events = driver.call(list_skus, nvml=BOARDS, **settings)
    assert not skus[0].endswith("w") and not list_calls(events)


def time_skus() -> tuple[list[str], float]:
    """Return the SKUs of two GPUs and how long they took, in seconds."""
    start = time.monotonic()
    return list_skus(2), time.monotonic() - start


def test_nvml_that_hangs_is_waited_for_once(driver):
    (skus, seconds), events = driver.call(time_skus, devices=2, nvml=BOARDS, nvml_hangs=PATIENCE_S + 3)
    assert skus == [MODEL, "nvidia-h200-sm131"] * 2
    assert PATIENCE_S <= seconds < PATIENCE_S + 2.5 and list_calls(events) == ["nvmlInit_v2"]


def test_without_the_library_of_nvml(tmp_path):
    shutil.copy(stub_driver.build_stubs() / "libcuda.so.1", tmp_path)
    path = f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment = {**os.environ, "LD_LIBRARY_PATH": path, "FAKE_CUDA_NVML": BOARDS}
    program = "from deep_gemm import _C; print(_C.get_device(0).sku)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [MODEL]
