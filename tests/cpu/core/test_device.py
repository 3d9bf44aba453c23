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
    ("limit_w", "default_w", "suffix"),
    [
        (700, 700, ""),
        (665, 700, ""),
        (664.9, 700, "-660w"),
        (500, 700, "-500w"),
        (504.9, 700, "-500w"),
        (495, 700, "-500w"),
        (494.9, 700, "-490w"),
        (310, 350, "-310w"),
        (340, 350, ""),
        (750, 700, ""),
        (0, 700, ""),
        (9.9, 700, ""),
        (500, 0, ""),
        (0, 0, ""),
        (4000000, 4290000, "-4000000w"),
    ],
)
def test_a_power_limit_is_named_where_it_is_clearly_below_the_default(limit_w, default_w, suffix):
    assert _C.power_suffix(round(limit_w * 1000), round(default_w * 1000)) == suffix


@pytest.mark.parametrize("short", _C.KNOWN_DEVICES)
def test_a_known_device_at_a_power_limit_differs_in_its_sku_alone(short):
    model = _C.Device.known(short)
    sku = f"{model.sku}-500w"
    device = _C.Device.known(sku)
    assert device.as_dict() == model.as_dict() | {"sku": sku} and device != model
    assert _C.Device.known(f"{short}-500W") == _C.Device.known(sku.upper()) == device
    assert device == pickle.loads(pickle.dumps(device)) == _C.Device(**device.as_dict())
    assert _C.base_sku(sku) == _C.base_sku(model.sku) == model.sku
    assert _C.heuristic_version(sku) == _C.heuristic_version(model.sku)
    problem = _C.Problem("fp8_gemm", 64, 2112, 7168)
    config = _C.get_analytic_config(problem, model)
    assert _C.get_analytic_config(problem, device) == config
    assert _C.estimate_time_us(problem, config, device) == _C.estimate_time_us(problem, config, model)


@pytest.mark.parametrize(
    "sku",
    ["", "w", "0w", "500w", "-0w", "a-0w", "a-505w", "a-050w", "a-500", "a-500wx", "a-5x0w", "a500w", "a-100000000w"],
)
def test_what_is_no_power_limit_stays_in_the_sku(sku):
    assert _C.base_sku(sku) == sku
    with pytest.raises(DeviceError, match="not a known GPU"):
        _C.Device.known(f"h200{sku}" if sku.startswith("-") else sku)


def test_the_power_limit_is_behind_the_partition():
    assert _C.base_sku("nvidia-h200-sm16-mig1g-18gb-500w") == "nvidia-h200-sm16-mig1g-18gb"


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
