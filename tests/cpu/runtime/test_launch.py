"""Loading and launching against the stub driver: devices, contexts, streams, capture, and every driver error."""

import os
import subprocess
import sys

import pytest

from deep_gemm import _C
from deep_gemm.errors import ArgumentError, ConfigError, DeviceError, LaunchError
from tests.fakes import stub_driver
from tests.fakes.stub_driver import FP8_PROBLEM, load_kernel, make_operands, run_op, select, use_fake_build

CONFIG = _C.Config(128, 112, 4, cluster_m=2)


# Devices.


def describe_devices():
    """Return what the library makes of GPUs of several kinds."""
    found = {}
    kinds = {
        0: ("NVIDIA H200", 90),
        1: ("NVIDIA A100-SXM4-80GB", 80),
        2: ("NVIDIA H200 MIG 3g.71gb", 90),
        3: ("NVIDIA B200", 100),
    }
    for ordinal, (name, capability) in kinds.items():
        os.environ.update(
            FAKE_CUDA_NAME=name, FAKE_CUDA_CC=str(capability), FAKE_CUDA_SMS=str(62 if "MIG" in name else 132 + ordinal)
        )
        device = _C.get_device(ordinal)
        found[ordinal] = (device.name, device.sku, device.sm_count, device.mig, _C.get_device_uuid(ordinal))
    for name in ("NAME", "CC", "SMS"):
        del os.environ[f"FAKE_CUDA_{name}"]
    return found


def test_devices_are_named_by_what_the_driver_says(driver):
    found, events = driver.call(describe_devices, devices=4)
    assert found[0][:4] == ("NVIDIA H200", "nvidia-h200-sm132", 132, "")
    assert found[1][1] == "nvidia-a100-sxm4-80gb-sm132"
    assert found[2][:4] == ("NVIDIA H200", "nvidia-h200-sm60-mig3g-71gb", 60, "3g.71gb")
    assert found[0][4] == "GPU-00102030-4050-6070-8090-a0b0c0d0e0f0"
    assert len({uuid for *_, uuid in found.values()}) == 4
    assert not select(events, "DevicePrimaryCtxRetain"), "asking for a device must not make a context"


@pytest.mark.parametrize("ordinal, name", [(1, "A100"), (3, "B200")])
def test_gpu_without_kernels(driver, ordinal, name):
    with pytest.raises(
        DeviceError, match=rf"NVIDIA {name}.*\(compute capability .*need compute capability 9.0.*CPU tensors"
    ):
        driver.call(run_op, 64, 128, 128, ordinal, devices=4)
    with pytest.raises(DeviceError, match=name):
        driver.call(load, CONFIG, ordinal, devices=4)


def test_mig_slice_launches_on_its_own_sms(driver):
    _, events = driver.call(launch_on_mig, devices=4)
    (launch,) = select(events, "LaunchKernelEx")
    assert launch["device"] == 2 and launch["grid"][0] == 60


def launch_on_mig():
    load_kernel(_C.Config(64, 16, 8), 2).launch(*make_operands(4096, 4096, 512, 2))


def test_device_that_is_not_there(driver):
    with pytest.raises(DeviceError, match="device = 7: this process sees 4 GPU"):
        driver.call(_C.get_device, 7, devices=4)


# Loading.


def load(*arguments):
    load_kernel(*arguments)  # a kernel itself does not travel between processes


def test_load_sets_attributes_once_and_keeps_the_capture_mode(driver):
    _, events = driver.call(load, CONFIG, 0, b"cubin of its own")
    (loaded,) = select(events, "LibraryLoadData")
    assert loaded["capture_mode"] == 2 and loaded["device"] == 0 and loaded["first"] == "cubin of its own"
    assert [event["mode"] for event in select(events, "ThreadExchangeStreamCaptureMode")] == [2, 0]
    (attribute,) = select(events, "KernelSetAttribute")
    assert (attribute["attribute"], attribute["value"]) == (8, _C.smem_bytes(FP8_PROBLEM, CONFIG))
    (occupancy,) = select(events, "OccupancyMaxActiveClusters")
    assert (occupancy["grid"], occupancy["block"], occupancy["cluster"], occupancy["smem"]) == (
        132,
        384,
        2,
        _C.smem_bytes(FP8_PROBLEM, CONFIG),
    )
    _, again = driver.call(load, CONFIG, 0, b"cubin of its own")
    assert again == []


def load_unusual():
    """Return what loading refuses."""
    refused = {}
    for name, config in {"stages": _C.Config(128, 128, 32), "block": _C.Config(64, 12, 4)}.items():
        with pytest.raises(ConfigError) as caught:
            load_kernel(config)
        refused[name] = str(caught.value)
    return refused


def test_illegal_configs_never_reach_the_driver(driver):
    refused, events = driver.call(load_unusual)
    assert all(text.startswith("config = ") for text in refused.values())
    assert not select(events, "LibraryLoadData")


def test_clusters_are_limited_by_what_fits(driver):
    _, events = driver.call(launch_clusters, clusters=50)
    (launch,) = select(events, "LaunchKernelEx")
    assert launch["cluster"] == 2 and launch["grid"][0] == 100


def launch_clusters():
    load_kernel(_C.Config(128, 64, 4, cluster_n=2)).launch(*make_operands(8192, 8192, 512))


def test_a_gpu_that_takes_no_cluster(driver):
    with pytest.raises(LaunchError, match="no cluster of 2 CTAs fits this GPU; use a config with clusters of one CTA"):
        driver.call(load, _C.Config(128, 80, 4, cluster_n=2), clusters=0)


def plan_with_refusals():
    """Run one new problem with kernels of its own; return the builds."""
    builds = use_fake_build()
    run_op(70, 136, 144, compiled_dims="nk")
    return builds


def test_a_refused_cubin_is_built_once_more(driver):
    builds, events = driver.call(plan_with_refusals, load_errors="209,0")
    assert [refused for *_, refused in builds] == [False, True]
    assert [event["result"] for event in select(events, "LibraryLoadData")] == [209, 0]
    assert len(select(events, "LaunchKernelEx")) == 1


@pytest.mark.parametrize("error", [200, 209, 222, 300])
def test_a_cubin_refused_twice_names_the_versions(driver, error):
    with pytest.raises(
        LaunchError, match=f"FAKE_ERROR_{error}.*supports CUDA 13.0.*capability 9.0.*nvrtc 13.0.*update the driver"
    ):
        driver.call(plan_with_refusals, load_errors=f"{error},{error}")


# Launching.


def launch_in(context):
    """Launch once in another device's context, or in none."""
    kernel = load_kernel(_C.Config(64, 64, 6))
    kernel.launch(*make_operands(64, 128, 128), stream=context)


def test_the_primary_context_is_pushed_and_popped(driver):
    _, events = driver.call(launch_in, 0)
    (launch,) = select(events, "LaunchKernelEx")
    assert launch["device"] == 0
    assert len(select(events, "CtxPushCurrent")) == len(select(events, "CtxPopCurrent")) > 0
    assert select(events, "CtxPopCurrent")[-1]["depth"] == 0


class FakeStream:
    """A torch.cuda.Stream as far as the op looks."""

    def __init__(self, cuda_stream, device_index=0):
        self.cuda_stream, self.device_index = cuda_stream, device_index


@pytest.mark.parametrize(
    "stream, handle",
    [(None, 0), (0, 0), (123456789, 123456789), (FakeStream(77), 77)],
    ids=["none", "legacy", "handle", "object"],
)
def test_streams(driver, stream, handle):
    _, events = driver.call(launch_in, stream)
    assert select(events, "LaunchKernelEx")[0]["stream"] == handle


def test_a_stream_of_another_device(driver):
    with pytest.raises(DeviceError, match="a stream of cuda:1, but the tensors are on cuda:0"):
        driver.call(launch_in, FakeStream(77, 1))


@pytest.mark.parametrize("stream", [-1, 1 << 64, True, "main", 2.5])
def test_what_is_no_stream(driver, stream):
    with pytest.raises(ArgumentError, match="stream = .*must be a torch.cuda.Stream"):
        driver.call(launch_in, stream)


def test_no_k_zeroes_d_row_by_row(driver):
    _, events = driver.call(run_op, 5, 13, 0)
    (fill,) = select(events, "MemsetD2D8Async")
    assert (fill["pitch"], fill["width"], fill["height"], fill["value"]) == (2 * 24, 26, 5, 0)
    assert fill["address"] == 1 << 44 and not select(events, "LaunchKernelEx")
    _, events = driver.call(run_op, 1, 13, 0)
    assert select(events, "MemsetD2D8Async")[0]["pitch"] == 26


@pytest.mark.parametrize("m, n, k", [(0, 128, 128), (64, 0, 128), (0, 0, 0), (0, 128, 0), (64, 0, 0)])
def test_nothing_to_do_asks_nothing_of_the_driver(driver, m, n, k):
    _, events = driver.call(run_op, m, n, k)
    assert events == []


@pytest.mark.parametrize("error, remedy", [(700, "context is lost: restart the process"), (400, "check the stream")])
def test_a_launch_that_fails_says_what_and_why(driver, error, remedy):
    with pytest.raises(
        LaunchError,
        match=f"cuLaunchKernelEx for m = 64, n = 128, k = 128 with 64x64x128 s6.*FAKE_ERROR_{error}.*{remedy}",
    ):
        driver.call(launch_in, 0, launch_error=error)


def launch_elsewhere():
    load_kernel(CONFIG).launch(*make_operands(64, 128, 128, device=2))


def test_a_kernel_of_another_device(driver):
    with pytest.raises(DeviceError, match="loaded on cuda:0"):
        driver.call(launch_elsewhere, devices=4)


# The driver itself; a failed attempt is repeated, so one child sees all of it.


@pytest.fixture(scope="module")
def fresh_driver(tmp_path_factory):
    with stub_driver.start(tmp_path_factory.mktemp("fresh")) as stub:
        yield stub


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"driver": 11040}, "supports CUDA 11.4 only.*CUDA 12.0 or newer"),
        ({"missing": "cuTensorMapEncodeTiled"}, "no cuTensorMapEncodeTiled.*older than CUDA 12.0"),
        ({"init_error": 100}, "no CUDA GPU is visible.*CUDA_VISIBLE_DEVICES"),
        ({"init_error": 803}, "did not initialise: FAKE_ERROR_803"),
    ],
)
def test_drivers_that_do_not_serve(fresh_driver, settings, message):
    with pytest.raises(DeviceError, match=message):
        fresh_driver.call(run_op, 64, 128, 128, **settings)


def test_a_driver_that_serves_after_all(fresh_driver):
    assert fresh_driver.call(_C.get_driver_version)[0] == 13000


#: Three threads that launch without end; the interpreter ends while they wait for the GIL.
ENDLESS = """
import threading, time
from tests.fakes.stub_driver import make_operands, run_op, use_fake_build
use_fake_build()
run_op(64, 128, 128)
def launch():
    while True:
        run_op(64, 128, 128)
for _ in range(3):
    threading.Thread(target=launch, daemon=True).start()
time.sleep(0.2)
"""


def test_the_interpreter_may_end_while_threads_launch(tmp_path):
    """Python unwinds threads that ask for the GIL then; a destructor that is unwound ends the process by an abort."""
    variables = {"LD_LIBRARY_PATH": str(stub_driver.build_stubs()), "FAKE_CUDA_LOG": str(tmp_path / "log")}
    for _ in range(3):
        command = [sys.executable, "-c", ENDLESS]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
