"""Rates of the heuristic: which GPU has which, and how a version names them."""

import hashlib

import pytest

from deep_gemm import _C

OP = "fp8_gemm"
H200 = _C.Device.known("h200")


@pytest.mark.parametrize("name", ["h200", "h100"])
def test_version_is_a_hash_of_the_constants(name):
    sku = _C.Device.known(name).sku
    lines = "".join(f"{name}={value:.17g}\n" for name, value in _C.heuristic_constants(sku).items())
    candidates = {
        hashlib.sha256(f"revision={revision}\n{lines}".encode()).hexdigest()[:16] for revision in range(1, 100)
    }
    assert _C.heuristic_version(sku) in candidates


def test_a_gpu_has_the_rates_that_were_fitted_to_its_kind():
    """Those of an H100 are given for the memory of an H200, as all are."""
    problem, config = _C.Problem(OP, 4096, 4096, 7168), _C.Config(128, 128, 5)
    h100, h800, h20 = (_C.Device.known(name) for name in ("h100", "h800", "h20"))
    constants = _C.heuristic_constants(h100.sku)
    assert constants == _C.heuristic_constants(h800.sku) != _C.heuristic_constants() == _C.heuristic_constants(h20.sku)
    assert _C.heuristic_version(h100.sku) != _C.heuristic_version(H200.sku) == _C.heuristic_version("another")
    assert _C.estimate_time_us(problem, config, h100) == _C.estimate_time_us(problem, config, h100, constants)
    assert _C.estimate_time_us(problem, config, h100) != _C.estimate_time_us(
        problem, config, h100, _C.heuristic_constants()
    )
    assert _C.estimate_time_us(problem, config, h100, {"launch_us": constants["launch_us"] + 5}) == pytest.approx(
        _C.estimate_time_us(problem, config, h100) + 5
    )


@pytest.mark.parametrize("sku", ["nvidia-h100-pcie-sm114", "nvidia-h100-nvl-sm132", "nvidia-h100-80gb-hbm3-sm16"])
def test_other_forms_of_an_h100_have_its_rates_for_their_own_sms_clock_and_memory(sku):
    """Nobody fitted a PCIe card, an NVL pair or a MIG slice; their rates are those of the 700 W form, scaled."""
    h100 = _C.Device.known("h100")
    assert _C.heuristic_version(sku) == _C.heuristic_version(h100.sku)
    problem = _C.Problem(OP, 4096, 4096, 7168)
    config = _C.get_analytic_config(problem, h100)
    times = [_C.estimate_time_us(problem, config, _C.Device(**h100.as_dict() | {"sku": sku} | fields))
             for fields in ({}, {"memory_gbps": 2000}, {"sm_count": 66})]  # fmt: skip
    assert times[0] == _C.estimate_time_us(problem, config, h100)
    assert times[1] >= times[0] and times[2] > 1.5 * times[0]
