"""Canonical JSON and keys of problems and configs: frozen, and malformed documents are refused."""

import hashlib
import itertools
import json
import random

import pytest

from deep_gemm import _C
from deep_gemm.errors import ConfigError, ProblemError
from tests.fakes.variants import make_config, make_problem

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
    (
        '{"fields":{"b_major":"mn","batch_invariant":true,"c_mode":"accumulate","d_dtype":"fp32","k":4,"m":2,'
        '"n":3},"op":"bf16_gemm"}'
    ): {
        "op": "bf16_gemm",
        "b_major": "mn",
        "batch_invariant": True,
        "c_mode": "accumulate",
        "d_dtype": "fp32",
    },
    (
        '{"fields":{"c_mode":"general","k":4,"m":2,"n":3,"num_sms":7,"recipe":"1d1d","scale_layout":"any"},'
        '"op":"fp8_gemm"}'
    ): {
        "op": "fp8_gemm",
        "c_mode": "general",
        "num_sms": 7,
        "recipe": "1d1d",
        "scale_layout": "any",
    },
}
#: Canonical JSON and key of grouped problems as they are recorded.
FROZEN_GROUPED = {
    '{"fields":{"k":7168,"m":64,"n":2112,"num_groups":8},"op":"m_grouped_fp8_gemm_contiguous"}': (
        "2aed15eaefd81deff66429f331ba0bdad5703ad9789c93c6a07b949093dc0527"
    ),
    (
        '{"fields":{"alignment":64,"b_major":"mn","k":7168,"m":8192,"n":4096,"num_groups":256},'
        '"op":"m_grouped_bf16_gemm_contiguous"}'
    ): ("1a26d0881c9f550b40f4b63d094e1065abc0e6da86842f80d302a1fd65e7bb55"),
    (
        '{"fields":{"expected_m":64,"k":7168,"m":1024,"n":4096,"num_groups":32,"recipe":"1d1d",'
        '"scale_layout":"any"},"op":"m_grouped_fp8_gemm_masked"}'
    ): ("ba78c14ee5e4139dd550e94bd60945a722a31d97cad4b89e8e016f6bf4813b57"),
    '{"fields":{"k":7168,"m":64,"n":2112,"num_groups":8},"op":"m_grouped_bf16_gemm_masked"}': (
        "e832dfa36ff9e9b7f33a43c3deb58cedbdc1b86cfaae0ddb65619c7e5f2c7a68"
    ),
    (
        '{"fields":{"c_mode":"accumulate","d_dtype":"fp32","group_layout":"blocks","k":8192,"m":4096,'
        '"n":7168,"num_groups":4,"num_sms":100,"recipe":"1d1d"},"op":"k_grouped_fp8_gemm_contiguous"}'
    ): ("a8da2f987959b0f71ae16c399aa58d95167cba8d5e3599ca8e93cf9b69e271a2"),
    (
        '{"fields":{"a_major":"mn","b_major":"mn","d_dtype":"fp32","k":7168,"m":64,"n":2112,"num_groups":8},'
        '"op":"k_grouped_bf16_gemm_contiguous"}'
    ): ("e19edb1fe69b52a5462e1b50175aabf64cb9a4cbbf45f4df45b6cce139e6c4e0"),
}


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


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
    knobs = {"split_k": 4, "swap_ab": 1, "loop": 1, "scale_warp": 1, "tile_barrier": 1, "reduce_add": 1}
    config = _C.Config(64, 16, 22, block_k=64, cluster_m=2, cluster_n=3, **knobs)
    assert config.to_json() == canonical(config.as_dict())
    assert config.key(OP) == hashlib.sha256(canonical({"fields": config.as_dict(), "op": OP}).encode()).hexdigest()


@pytest.mark.parametrize("text, fields", FROZEN_VARIANT_JSON.items())
def test_json_of_variants_is_frozen(text, fields):
    problem = _C.Problem(fields["op"], 2, 3, 4, **{name: value for name, value in fields.items() if name != "op"})
    assert problem.to_json() == text and problem.as_dict().items() >= fields.items()


@pytest.mark.parametrize("text, key", FROZEN_GROUPED.items())
def test_keys_and_json_of_grouped_problems_are_frozen(text, key):
    problem = _C.Problem.from_json(text)
    assert (problem.key, problem.to_json()) == (key, text)
    assert key == hashlib.sha256(text.encode()).hexdigest() and text == json.dumps(
        json.loads(text), sort_keys=True, separators=(",", ":")
    )


def test_a_true_flag_enters_the_json():
    problem = _C.Problem(OP, 1, 1, 1, batch_invariant=True)
    assert problem.to_json() == canonical({"fields": {"batch_invariant": True, "k": 1, "m": 1, "n": 1}, "op": OP})


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
    VALID.replace('"fp8_gemm"', '["fp8_gemm"]'),
    VALID.replace('"m":1', '"m":1,"recipe":"\\ud800"'),
    '{"a":' * 800 + "1" + "}" * 800,
]
GROUPED = '{"fields":{"k":3,"m":1,"n":2,"num_groups":4},"op":"m_grouped_fp8_gemm_contiguous"}'
MALFORMED_GROUPED = [
    GROUPED.replace("4", "0"),
    GROUPED.replace("4", "65536"),
    GROUPED.replace("4", "true"),
    GROUPED.replace("4", '"4"'),
    GROUPED.replace(',"num_groups":4', ""),
    GROUPED.replace("4}", '4,"groups":4}'),
    GROUPED.replace('"k"', '"alignment":"8","k"'),
    GROUPED.replace('"k"', '"alignment":12,"k"'),
    GROUPED.replace('"k"', '"expected_m":1,"k"'),
    GROUPED.replace('"k"', '"group_layout":"blocks","k"'),
    GROUPED.replace("m_grouped_fp8_gemm_contiguous", "fp8_gemm"),
]


@pytest.mark.parametrize("text", [*MALFORMED, *MALFORMED_GROUPED])
def test_malformed_problem_json_is_refused(text):
    assert _C.Problem.from_json(GROUPED).num_groups == 4
    with pytest.raises(ProblemError, match="; |^op = |missing$"):
        _C.Problem.from_json(text)


@pytest.mark.parametrize("value", [None, 3, VALID.encode(), {}])
def test_json_is_text(value):
    for read in (_C.Problem.from_json, _C.Config.from_json):
        with pytest.raises(TypeError):
            read(value)


def test_a_config_key_needs_an_op_kind():
    with pytest.raises(ProblemError, match="^op = 'gemm': no such op kind; use one of batched_bf16_gemm, "):
        _C.Config(64, 64, 2).key("gemm")


def test_problem_json_may_be_written_loosely():
    loose = ' {"op" : "fp8\\u005fgemm", "fields": {"n":2, "m":1,\n"k":3, "num_sms": 0, "compiled_dims": ""}} '
    assert _C.Problem.from_json(loose) == _C.Problem.from_json(VALID)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"block_m":64,"block_n":8}',
        '{"block_m":64,"block_n":8,"num_stages":2.0}',
        '{"block_m":64,"block_n":8,"num_stages":2,"x":1}',
        '{"block_m":64,"block_n":8,"num_stages":true}',
        '{"block_m":-64,"block_n":8,"num_stages":2}',
        '{"block_m":64,"block_n":8,"num_stages":2,"swap_ab":2}',
        '{"block_m":64,"block_n":8,"num_stages":2,"split_k":0}',
        '{"block_m":64,"block_n":8,"num_stages":65536}',
    ],
)
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
