"""Problems and configs: identity, canonical JSON, and that nothing malformed gets in."""

import hashlib
import itertools
import json
import pickle
import random

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.errors import ConfigError, DeviceError, ProblemError
from tests.fakes.variants import CHOICES, all_fields, exists, make_variants

OP = "fp8_gemm"
#: Keys written by released versions. They identify measurements and must never change.
FROZEN_PROBLEM_KEYS = {
    (64, 2112, 7168, 0, ""): "1a3b30cc2525ae2a9249ddb50698bbd7accf5c7fd17015f52e584f6738f974e7",
    (1, 1, 1, 0, ""): "72e4b22c3c240c8b28c3bd8725dd4b96ab37a11e1f224c965aa67ffdd5e38d85",
    (4096, 7168, 2048, 64, "nk"): "661c26a347911833e0760ebfd058a1b3c2cb48d02d8ad3be67e7e4d80b6e5d71",
}
FROZEN_CONFIG_KEYS = {
    (64, 16, 22, 128, 1, 2): "5b6dfcef50755b68c9110145813f6ed089fdcc646df0e57c41d3c5aa60904a43",
    (128, 128, 5, 128, 1, 1): "0031211e32591d53f0c29817e9cc9f23fa62013477e6f2bd0790ded0bfad7d0e",
}
FROZEN_VARIANT_JSON = {
    '{"fields":{"b_major":"mn","batch_invariant":true,"c_mode":"accumulate","d_dtype":"fp32","k":4,"m":2,"n":3},"op":"bf16_gemm"}': {
        "op": "bf16_gemm",
        "b_major": "mn",
        "batch_invariant": True,
        "c_mode": "accumulate",
        "d_dtype": "fp32",
    },
    '{"fields":{"c_mode":"general","k":4,"m":2,"n":3,"num_sms":7,"recipe":"1d1d","scale_layout":"any"},"op":"fp8_gemm"}': {
        "op": "fp8_gemm",
        "c_mode": "general",
        "num_sms": 7,
        "recipe": "1d1d",
        "scale_layout": "any",
    },
}
NOT_INTEGERS = [True, False, 1.0, "3", None, [], float("nan"), np.float32(2), b"1"]
OUT_OF_RANGE = [-1, 2**31, 2**63, 2**64, 2**80, -(2**70)]


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def make_problem(m, n, k, num_sms, compiled_dims):
    return _C.Problem(OP, m, n, k, num_sms=num_sms, compiled_dims=compiled_dims)


def make_config(block_m, block_n, num_stages, block_k, cluster_m, cluster_n, split_k=1, swap_ab=0):
    return _C.Config(
        block_m,
        block_n,
        num_stages,
        block_k=block_k,
        cluster_m=cluster_m,
        cluster_n=cluster_n,
        split_k=split_k,
        swap_ab=swap_ab,
    )


@pytest.mark.parametrize("fields, key", FROZEN_PROBLEM_KEYS.items())
def test_problem_keys_are_frozen(fields, key):
    assert make_problem(*fields).key == key


@pytest.mark.parametrize("fields, key", FROZEN_CONFIG_KEYS.items())
def test_config_keys_are_frozen(fields, key):
    assert make_config(*fields).key(OP) == key


def test_key_is_sha256_of_canonical_json():
    for m, num_sms, dims in itertools.product((1, 77, 2**31 - 1), (0, 1, 65535), ("", "m", "mnk")):
        problem = make_problem(m, 5, 99, num_sms, dims)
        fields = (
            {"m": m, "n": 5, "k": 99}
            | ({"num_sms": num_sms} if num_sms else {})
            | ({"compiled_dims": dims} if dims else {})
        )
        assert problem.to_json() == canonical({"fields": fields, "op": OP})
        assert problem.key == hashlib.sha256(problem.to_json().encode()).hexdigest()


def test_config_json_leaves_out_defaults():
    assert make_config(64, 16, 22, 128, 1, 2).to_json() == canonical(
        {"block_m": 64, "block_n": 16, "num_stages": 22, "cluster_n": 2}
    )
    config = make_config(64, 16, 22, 64, 2, 3, 4, 1)
    assert config.to_json() == canonical(config.as_dict())
    assert config.key(OP) == hashlib.sha256(canonical({"fields": config.as_dict(), "op": OP}).encode()).hexdigest()


@pytest.mark.parametrize("text, fields", FROZEN_VARIANT_JSON.items())
def test_json_of_variants_is_frozen(text, fields):
    problem = _C.Problem(fields["op"], 2, 3, 4, **{name: value for name, value in fields.items() if name != "op"})
    assert problem.to_json() == text and problem.as_dict().items() >= fields.items()


def test_variants_exist_exactly_where_their_fields_agree():
    for op, fields in all_fields():
        if not exists(op, **fields):
            with pytest.raises(ProblemError, match="^[a-z_]+ = '[a-z0-9_]+': .*; |^[a-z_]+ = .*leave it out"):
                _C.Problem(op, 1, 1, 1, **fields)
            with pytest.raises(ProblemError):
                _C.Problem.from_json(canonical({"fields": fields | {"m": 1, "n": 1, "k": 1}, "op": op}))


def test_variants_round_trip_and_differ():
    problems = [
        *make_variants(3, 5, 7),
        *(_C.Problem(OP, 3, 5, 7, batch_invariant=flag, num_sms=1) for flag in (True, False)),
    ]
    for problem in problems:
        for twin in (
            _C.Problem.from_json(problem.to_json()),
            pickle.loads(pickle.dumps(problem)),
            eval(repr(problem), {"Problem": _C.Problem}),
            _C.Problem(**problem.as_dict()),
        ):
            assert twin == problem and hash(twin) == hash(problem) and str(twin) == str(problem)
    for identity in (str, repr, hash, lambda problem: problem.key):
        assert len({identity(problem) for problem in problems}) == len(problems)


@pytest.mark.parametrize("name", CHOICES)
def test_unknown_values_are_refused(name):
    for value in ("", "x", CHOICES[name][0].upper() + " "):
        with pytest.raises(ProblemError, match=f"^{name} = '.*': must be one of '"):
            _C.Problem(OP, 1, 1, 1, **{name: value})
    with pytest.raises(TypeError):
        _C.Problem(OP, 1, 1, 1, **{name: 1})


@pytest.mark.parametrize("value", [0, 1, None, "true", np.bool_(True)])
def test_batch_invariant_is_a_bool(value):
    with pytest.raises(ProblemError, match="^batch_invariant = .*: must be a bool"):
        _C.Problem(OP, 1, 1, 1, batch_invariant=value)


def test_round_trips():
    problem, config = make_problem(3, 5, 7, 2, "mk"), make_config(128, 112, 4, 128, 2, 1)
    for value, read in ((problem, _C.Problem.from_json), (config, _C.Config.from_json)):
        for twin in (read(value.to_json()), pickle.loads(pickle.dumps(value))):
            assert twin == value and hash(twin) == hash(value) and repr(twin) == repr(value)
    assert (
        _C.Problem(problem.op, **{name: value for name, value in problem.as_dict().items() if name != "op"}) == problem
    )
    assert _C.Config(**config.as_dict()) == config and problem != config and config != 3
    assert (
        eval(repr(problem), {"Problem": _C.Problem}) == problem and eval(repr(config), {"Config": _C.Config}) == config
    )
    assert str(config) == "128x112x128 s4 c2x1"
    swapped = make_config(16, 64, 8, 128, 1, 1, 4, 1)
    assert str(swapped) == "16x64x128 s8 c1x1 k4 swap" and repr(swapped) == "Config(16, 64, 8, split_k=4, swap_ab=1)"
    assert (
        eval(repr(swapped), {"Config": _C.Config})
        == swapped
        == _C.Config(**swapped.as_dict())
        == _C.Config.from_json(swapped.to_json())
    )
    assert len({hash(make_config(64, 64, 4, 128, 1, 1, split, swap)) for split in (1, 2, 4, 8) for swap in (0, 1)}) == 8


def test_values_are_immutable():
    with pytest.raises(AttributeError):
        make_problem(1, 1, 1, 0, "").m = 2
    with pytest.raises(AttributeError):
        make_config(64, 8, 2, 128, 1, 1).block_m = 2


def test_numpy_integers_are_integers():
    assert _C.Problem(OP, np.int64(3), np.uint8(4), np.int32(5)) == _C.Problem(OP, 3, 4, 5)


@pytest.mark.parametrize("value", [*NOT_INTEGERS, *OUT_OF_RANGE])
def test_bad_fields_are_refused(value):
    for name in ("m", "n", "k", "num_sms"):
        with pytest.raises(ProblemError, match=f"^{name} = .*: must be "):
            _C.Problem(OP, **({"m": 1, "n": 1, "k": 1} | {name: value}))
    for name in ("block_m", "block_n", "block_k", "num_stages", "cluster_m", "cluster_n", "split_k", "swap_ab"):
        with pytest.raises(ConfigError, match=f"^{name} = .*: must be "):
            _C.Config(**({"block_m": 64, "block_n": 8, "num_stages": 2} | {name: value}))


@pytest.mark.parametrize("m, n, k", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_empty_problems_do_not_exist(m, n, k):
    with pytest.raises(ProblemError, match="= 0: must be within 1.."):
        _C.Problem(OP, m, n, k)


@pytest.mark.parametrize("dims", ["nm", "mm", "x", "mnkk", "MNK", " m"])
def test_bad_compiled_dims_are_refused(dims):
    with pytest.raises(ProblemError, match="compiled_dims = "):
        _C.Problem(OP, 1, 1, 1, compiled_dims=dims)


def test_unknown_op_is_refused():
    with pytest.raises(ProblemError, match="op = 'gemm'"):
        _C.Problem("gemm", 1, 1, 1)


VALID = '{"fields":{"k":3,"m":1,"n":2},"op":"fp8_gemm"}'
MALFORMED = [
    "",
    "{",
    "[]",
    "null",
    "3",
    '"x"',
    VALID + "x",
    VALID + VALID,
    VALID[:-1],
    VALID.replace("1", "1.0"),
    VALID.replace("1", "1e0"),
    VALID.replace("1", "01"),
    VALID.replace("1", "-1"),
    VALID.replace("1", "true"),
    VALID.replace("1", "null"),
    VALID.replace("1", '"1"'),
    VALID.replace("1", "[1]"),
    VALID.replace("1", "9" * 19),
    VALID.replace("1", "9" * 500),
    VALID.replace("1", "NaN"),
    VALID.replace("1", "+1"),
    VALID.replace("1", ""),
    VALID.replace('"m"', '"k"'),
    VALID.replace('"m"', '"batch"'),
    VALID.replace(',"op":"fp8_gemm"', ""),
    VALID.replace("fp8_gemm", "bf8_gemm"),
    VALID.replace('"m":1', '"m":1,"recipe":"2d"'),
    VALID.replace('"m":1', '"m":1,"recipe":1'),
    VALID.replace('"m":1', '"m":1,"batch_invariant":1'),
    VALID.replace('"m":1', '"m":1,"a_major":"mn"'),
    VALID.replace('"m":1', '"c_mode":"accumulate","m":1'),
    VALID.replace("}", "},", 1),
    VALID.replace('"op"', '"x":1,"op"'),
    VALID.replace('"fp8_gemm"', "8"),
    VALID.replace("fp8_gemm", "fp8_gemm\\ud800"),
    VALID.replace("fp8_gemm", "fp8_gemm\n"),
    VALID.replace("fp8_gemm", "fp8_gémm"),
    VALID.replace("m", "\\q"),
    "[" * 5000,
    '{"a":' * 5000,
    " " * 5000 + VALID,
    VALID.replace('"m":1', '"m":1,"num_sms":70000'),
    VALID.replace('"m":1', '"m":1,"compiled_dims":1'),
    '{"fields":3,"op":"fp8_gemm"}',
    VALID.replace("1", "0"),
]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_problem_json_is_refused(text):
    with pytest.raises(ProblemError):
        _C.Problem.from_json(text)


def test_problem_json_may_be_written_loosely():
    loose = ' {"op" : "fp8\\u005fgemm", "fields": {"n":2, "m":1,\n"k":3, "num_sms": 0, "compiled_dims": ""}} '
    assert _C.Problem.from_json(loose) == _C.Problem.from_json(VALID)


@pytest.mark.parametrize("text", ["{}", "[]", '{"block_m":64,"block_n":8}', '{"block_m":64,"block_n":8,"num_stages":2.0}', '{"block_m":64,"block_n":8,"num_stages":2,"x":1}',
                                  '{"block_m":64,"block_n":8,"num_stages":true}', '{"block_m":-64,"block_n":8,"num_stages":2}',
                                  '{"block_m":64,"block_n":8,"num_stages":2,"swap_ab":2}', '{"block_m":64,"block_n":8,"num_stages":2,"split_k":0}', '{"block_m":64,"block_n":8,"num_stages":65536}'])  # fmt: skip
def test_malformed_config_json_is_refused(text):
    with pytest.raises(ConfigError):
        _C.Config.from_json(text)


def test_mutated_json_is_refused_or_read_exactly():
    generator = random.Random(7)
    alphabet = '{}[]",:0123456789.-+eEtruefalsn\\ mkop'
    for _ in range(3000):
        text = list(VALID)
        for _ in range(generator.randint(1, 3)):
            text[generator.randrange(len(text))] = generator.choice(alphabet)
        check_read("".join(text))


def check_read(text: str) -> None:
    try:
        problem = _C.Problem.from_json(text)
    except ProblemError:
        return
    fields = json.loads(text)["fields"]
    assert all(problem.as_dict()[name] == value and type(value) in (int, str) for name, value in fields.items())


def test_known_devices():
    for short, sku, sms in (("h200", "nvidia-h200-sm132", 132), ("h100", "nvidia-h100-80gb-hbm3-sm132", 132), ("h800", "nvidia-h800-sm132", 132),
                            ("h20", "nvidia-h20-sm78", 78), ("gh200", "nvidia-gh200-480gb-sm132", 132)):  # fmt: skip
        device = _C.Device.known(short)
        assert (device.sku, device.sm_count, device.compute_capability) == (sku, sms, (9, 0))
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


@pytest.mark.parametrize("change", [{"name": ""}, {"sm_count": 0}, {"sm_count": True}, {"l2_bytes": -1}, {"clock_mhz": float("nan")}, {"memory_gbps": 0},
                                    {"sku": "../x"}, {"smem_bytes": 2**40}])  # fmt: skip
def test_impossible_devices_are_refused(change):
    with pytest.raises(DeviceError, match="must be"):
        _C.Device(
            **(
                {"name": "NVIDIA H200", "sm_count": 132, "l2_bytes": 2**24, "clock_mhz": 1980, "memory_gbps": 600}
                | change
            )
        )
