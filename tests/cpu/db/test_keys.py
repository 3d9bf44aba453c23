"""Frozen keys: they identify rows of existing databases and artefacts, so no change of the package may alter them."""

import hashlib
import json

import pytest

from deep_gemm import _C
from tuner.db.values import make_key

PROBLEMS = [
    ({"m": 1, "n": 1, "k": 1}, "72e4b22c3c240c8b28c3bd8725dd4b96ab37a11e1f224c965aa67ffdd5e38d85"),
    ({"m": 64, "n": 2112, "k": 7168}, "1a3b30cc2525ae2a9249ddb50698bbd7accf5c7fd17015f52e584f6738f974e7"),
    ({"m": 4097, "n": 24576, "k": 1536}, "caff4608819d2d2b451ecdd550540674e2118af0595b2561038e744a017eaf53"),
    (
        {"m": 2147483647, "n": 2147483647, "k": 2147483647},
        "fd9068c714d2910dc518846b98f80de8df9c36e39133586448498dce95ceaf48",
    ),
    (
        {"m": 64, "n": 2112, "k": 7168, "num_sms": 100},
        "119876acc9b3f2c714dbff0249a091ffb63753c1a2dc07fd1e5c305c3caa5a3f",
    ),
    (
        {"m": 64, "n": 2112, "k": 7168, "compiled_dims": "nk"},
        "74d6cb5c091c9c3141fd4bd15d5240fb4c0c82d5e7148a8b969806abae5bf97b",
    ),
    (
        {"m": 64, "n": 2112, "k": 7168, "num_sms": 78, "compiled_dims": "mnk"},
        "49b00b2e021d2d763aefb459c305cb614ba7520a78ebcecabc284ab444379333",
    ),
]
CONFIGS = [
    (
        {"block_m": 64, "block_n": 64, "num_stages": 4},
        "42582eb5828ac0bc6c9ddcbff6a352f1f2199ebbfa4e390af727ecad0553c2ef",
    ),
    (
        {"block_m": 128, "block_n": 112, "num_stages": 5, "cluster_n": 2},
        "7133fc65afafc5e306e2af2d796ffbd0fd4c43fa7648a3ddda5f98fe8ad07578",
    ),
    (
        {"block_m": 256, "block_n": 128, "num_stages": 3, "cluster_m": 2},
        "e03a07133db509c0665de6e0a5f855ad7342c365bfeafa790c27571642d23250",
    ),
    (
        {"block_m": 64, "block_n": 8, "num_stages": 24, "block_k": 64},
        "49ce8673d642a3d1d0a94ad29c906cb6b87e6fdf075444c77710dd9a1bf3a077",
    ),
]
GROUPED = [
    ("m_grouped_fp8_gemm_contiguous", {"m": 32768, "n": 6144, "k": 7168, "num_groups": 4}),
    (
        "m_grouped_bf16_gemm_contiguous",
        {"m": 1024, "n": 512, "k": 1024, "num_groups": 8, "alignment": 64, "b_major": "mn"},
    ),
    ("m_grouped_fp8_gemm_masked", {"m": 4096, "n": 4096, "k": 7168, "num_groups": 32, "expected_m": 20}),
    (
        "k_grouped_fp8_gemm_contiguous",
        {
            "m": 4096,
            "n": 7168,
            "k": 32768,
            "num_groups": 4,
            "recipe": "1d1d",
            "d_dtype": "fp32",
            "group_layout": "blocks",
        },
    ),
]
DEVICE = {
    "name": "NVIDIA H200",
    "sku": "nvidia-h200-sm132",
    "sm_count": 132,
    "mig": "",
    "clock_mhz": 1980.0,
    "memory_bytes": None,
}
DEVICE_KEY = "9eef07a905b35cdce6a050ac7b1371f5099020bcdec5179af255ead02f9d0bc1"


def key_of(fields: dict, op: str = "fp8_gemm") -> str:
    """Return the documented key: sha256 of canonical JSON, fields at their default left out."""
    text = json.dumps({"op": op, "fields": fields}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("fields, key", PROBLEMS, ids=str)
def test_problem_keys_are_frozen(fields, key):
    assert _C.Problem("fp8_gemm", **fields).key == key == key_of(fields)


@pytest.mark.parametrize("fields, key", CONFIGS, ids=str)
def test_config_keys_are_frozen(fields, key):
    assert _C.Config(**fields).key("fp8_gemm") == key == key_of(fields)


@pytest.mark.parametrize("op, fields", GROUPED, ids=str)
def test_groups_enter_the_key_where_they_are_not_at_their_default(op, fields):
    assert _C.Problem(op, **fields).key == key_of(fields, op)
    assert _C.Problem(op, **{"expected_m": 0, "alignment": 128, "group_layout": "joint"} | fields).key == key_of(
        fields, op
    )


def test_defaults_do_not_enter_a_key():
    assert _C.Problem("fp8_gemm", 64, 2112, 7168, num_sms=0, compiled_dims="").key == PROBLEMS[1][1]
    assert _C.Config(64, 64, 4, block_k=128, cluster_m=1, cluster_n=1).key("fp8_gemm") == CONFIGS[0][1]


def test_device_keys_are_frozen_and_unknown_fields_do_not_enter():
    assert make_key(DEVICE) == make_key({"memory_gbps": None, "id": 7, **DEVICE}) == DEVICE_KEY
