"""Devices: the known ones, SKUs, and the refusal of impossible values."""

import pickle

import pytest

from deep_gemm import _C
from deep_gemm.errors import DeviceError


def test_known_devices():
    for short, sku, sms in (
        ("h200", "nvidia-h200-sm132", 132),
        ("h100", "nvidia-h100-80gb-hbm3-sm132", 132),
        ("h800", "nvidia-h800-sm132", 132),
        ("h20", "nvidia-h20-sm78", 78),
        ("gh200", "nvidia-gh200-480gb-sm132", 132),
    ):
        device = _C.Device.known(short)
        assert (device.sku, device.sm_count, device.compute_capability) == (sku, sms, (9, 0))
        assert _C.Device.known(short.upper()) == _C.Device.known(sku.upper()) == device
        assert _C.Device.known(sku) == device == pickle.loads(pickle.dumps(device)) == _C.Device(**device.as_dict())
    with pytest.raises(DeviceError, match="not a known GPU"):
        _C.Device.known("b200")


def test_device_sku_names_the_partition():
    numbers = {"l2_bytes": 2**24, "clock_mhz": 1980, "memory_gbps": 600}
    assert (
        _C.Device("NVIDIA H200 MIG 1g.18gb", 16, mig="1g.18gb", **numbers).sku
        == "nvidia-h200-mig-1g-18gb-sm16-mig1g-18gb"
    )
    assert _C.Device(" NVIDIA--H200!", 132, **numbers).sku == "nvidia-h200-sm132"


@pytest.mark.parametrize(
    ("name", "model"), [("NVIDIA H20", "h20"), ("NVIDIA H20-3e", "h20"), ("NVIDIA H200", "h200"), ("NVIDIA H2", "h200")]
)
def test_variants_of_a_board_compute_at_their_models_rate(name, model):
    fields = _C.Device.known(model).as_dict() | {"sku": None}
    device, known = _C.Device(**fields | {"name": name}), _C.Device(**fields)
    problem = _C.Problem("fp8_gemm", 4096, 4096, 7168)
    config = _C.get_analytic_config(problem, known)
    times = [_C.estimate_time_us(problem, config, one) for one in (device, known)]
    assert times[0] == pytest.approx(times[1], rel=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"sm_count": 0},
        {"sm_count": True},
        {"l2_bytes": -1},
        {"clock_mhz": float("nan")},
        {"memory_gbps": 0},
        {"sku": "../x"},
        {"smem_bytes": 2**40},
    ],
)
def test_impossible_devices_are_refused(change):
    with pytest.raises(DeviceError, match="must be"):
        _C.Device(
            **(
                {"name": "NVIDIA H200", "sm_count": 132, "l2_bytes": 2**24, "clock_mhz": 1980, "memory_gbps": 600}
                | change
            )
        )
