"""Problems of the grouped ops: identity, canonical JSON, and the rules between their fields."""

import hashlib
import json
import pickle

import pytest

from deep_gemm import _C
from deep_gemm.errors import ProblemError
from tests.fakes.grouped_variants import (
    CONTIGUOUS,
    GROUPED_OPS,
    K_GROUPED,
    MASKED,
    all_fields,
    exists,
    make_grouped,
    make_grouped_variants,
)
from tests.fakes.variants import OPS

#: Canonical JSON and key of problems as they are recorded. They identify measurements and must never change.
FROZEN_KEYS = {
    '{"fields":{"k":7168,"m":64,"n":2112,"num_groups":8},"op":"m_grouped_fp8_gemm_contiguous"}': (
        "2aed15eaefd81deff66429f331ba0bdad5703ad9789c93c6a07b949093dc0527"
    ),
    '{"fields":{"alignment":64,"b_major":"mn","k":7168,"m":8192,"n":4096,"num_groups":256},"op":"m_grouped_bf16_gemm_contiguous"}': (
        "1a26d0881c9f550b40f4b63d094e1065abc0e6da86842f80d302a1fd65e7bb55"
    ),
    '{"fields":{"expected_m":64,"k":7168,"m":1024,"n":4096,"num_groups":32,"recipe":"1d1d","scale_layout":"any"},"op":"m_grouped_fp8_gemm_masked"}': (
        "ba78c14ee5e4139dd550e94bd60945a722a31d97cad4b89e8e016f6bf4813b57"
    ),
    '{"fields":{"k":7168,"m":64,"n":2112,"num_groups":8},"op":"m_grouped_bf16_gemm_masked"}': (
        "e832dfa36ff9e9b7f33a43c3deb58cedbdc1b86cfaae0ddb65619c7e5f2c7a68"
    ),
    '{"fields":{"c_mode":"accumulate","d_dtype":"fp32","group_layout":"blocks","k":8192,"m":4096,"n":7168,"num_groups":4,"num_sms":100,"recipe":"1d1d"},"op":"k_grouped_fp8_gemm_contiguous"}': (
        "a8da2f987959b0f71ae16c399aa58d95167cba8d5e3599ca8e93cf9b69e271a2"
    ),
    '{"fields":{"a_major":"mn","b_major":"mn","d_dtype":"fp32","k":7168,"m":64,"n":2112,"num_groups":8},"op":"k_grouped_bf16_gemm_contiguous"}': (
        "e19edb1fe69b52a5462e1b50175aabf64cb9a4cbbf45f4df45b6cce139e6c4e0"
    ),
}
GROUP_FIELDS = {"num_groups": 0, "expected_m": 0, "alignment": 128, "group_layout": "joint"}


@pytest.mark.parametrize("text, key", FROZEN_KEYS.items())
def test_keys_and_json_are_frozen(text, key):
    problem = _C.Problem.from_json(text)
    assert (problem.key, problem.to_json()) == (key, text)
    assert key == hashlib.sha256(text.encode()).hexdigest() and text == json.dumps(
        json.loads(text), sort_keys=True, separators=(",", ":")
    )


def test_variants_exist_exactly_where_their_fields_agree():
    for op, fields in all_fields():
        if not exists(op, **fields):
            with pytest.raises(ProblemError, match="^[a-z_]+ = '[a-z0-9_]+': .*; "):
                _C.Problem(op, 1, 1, 1, num_groups=1, **fields)
    assert len(make_grouped_variants()) == 37


def make_distinct() -> list:
    """Return problems that differ in one field of the groups or in the variant."""
    masked = {"num_groups": 4, "expected_m": 3}
    return [
        *make_grouped_variants(16, 5, 128, 4),
        *(make_grouped(op, 16, 5, 128, 3) for op in GROUPED_OPS),
        *(make_grouped(op, 16, 5, 128, 4, alignment=alignment) for op in CONTIGUOUS for alignment in (8, 64, 65536)),
        *(
            _C.Problem(op, 16, 5, 128, **(masked | change))
            for op in MASKED
            for change in ({}, {"expected_m": 16}, {"num_groups": 65535}, {"batch_invariant": True})
        ),
    ]


def test_problems_round_trip_and_differ():
    problems = make_distinct()
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


def test_fields_are_those_given():
    problem = _C.Problem("m_grouped_fp8_gemm_masked", 1024, 4096, 7168, num_groups=32, expected_m=64)
    assert (problem.num_groups, problem.expected_m, problem.alignment, problem.group_layout) == (32, 64, 128, "joint")
    assert str(problem) == "m_grouped_fp8_gemm_masked m=1024 n=4096 k=7168 num_groups=32 expected_m=64"
    assert repr(problem) == "Problem('m_grouped_fp8_gemm_masked', 1024, 4096, 7168, num_groups=32, expected_m=64)"
    with pytest.raises(AttributeError):
        problem.num_groups = 2


def test_dense_problems_have_no_groups():
    for op in OPS:
        problem = _C.Problem(op, 64, 2112, 7168)
        assert problem.as_dict().items() >= GROUP_FIELDS.items() and problem == _C.Problem(
            op, 64, 2112, 7168, **GROUP_FIELDS
        )
        assert problem.to_json() == f'{{"fields":{{"k":7168,"m":64,"n":2112}},"op":"{op}"}}'


FP8_ROWS, BF16_ROWS = CONTIGUOUS
FP8_MASKED, BF16_MASKED = MASKED
FP8_K, BF16_K = K_GROUPED
MN = {"a_major": "mn", "b_major": "mn"}
BROKEN_RULES = [
    ("fp8_gemm", {"num_groups": 1}, "num_groups = 1: only grouped ops have groups; leave it out"),
    (FP8_ROWS, {"num_groups": 0}, "num_groups = 0: a grouped op has at least one group; pass their number"),
    (FP8_ROWS, {"expected_m": 1}, "expected_m = 1: only masked ops take it; leave it out"),
    ("bf16_gemm", {"expected_m": 1, "num_groups": 0}, "expected_m = 1: only masked ops take it; leave it out"),
    (BF16_MASKED, {"expected_m": 17}, "expected_m = 17: a group has room for m rows; pass at most m"),
    (FP8_MASKED, {"alignment": 64}, "alignment = 64: only m-grouped contiguous ops take it; leave it out"),
    (
        "fp8_gemm",
        {"alignment": 64, "num_groups": 0},
        "alignment = 64: only m-grouped contiguous ops take it; leave it out",
    ),
    (BF16_ROWS, {"alignment": 12}, "alignment = 12: must be a multiple of 8; round it up"),
    (BF16_ROWS, {"alignment": 0}, "alignment = 0: must be within 8..65536; pass a number in this range"),
    (
        FP8_MASKED,
        {"group_layout": "blocks"},
        "group_layout = 'blocks': only k_grouped_fp8_gemm_contiguous has blocks of memory; leave it out",
    ),
    (
        BF16_K,
        {"group_layout": "blocks", "d_dtype": "fp32", **MN},
        "group_layout = 'blocks': only k_grouped_fp8_gemm_contiguous has blocks of memory",
    ),
    (FP8_ROWS, {"recipe": "per_row"}, "recipe = 'per_row': grouped ops scale per 128 of K; use 1d2d or 1d1d"),
    (FP8_MASKED, {"c_mode": "general"}, "c_mode = 'general': m-grouped ops add nothing to D; leave it out"),
    (
        FP8_ROWS,
        {"c_mode": "accumulate", "d_dtype": "fp32"},
        "c_mode = 'accumulate': m-grouped ops add nothing to D; leave it out",
    ),
    (FP8_ROWS, {"c_mode": "head_split"}, "c_mode = 'head_split': needs fp8_gemm with recipe 1d2d"),
    (BF16_ROWS, {"a_major": "mn"}, "a_major = 'mn': m-grouped ops read a K-major A; leave it out"),
    (BF16_MASKED, {"b_major": "mn"}, "b_major = 'mn': masked ops read a K-major B; leave it out"),
    (FP8_ROWS, {"b_major": "mn"}, "b_major = 'mn': FP8 kernels read K-major operands; leave it out"),
    (FP8_K, {"d_dtype": "fp32"}, "recipe = '1d2d': groups of K have both operands scaled 1x128; use 1d1d"),
    (FP8_K, {"recipe": "1d1d"}, "d_dtype = 'bf16': groups of K sum into an FP32 D; use fp32"),
    (BF16_K, {"d_dtype": "fp32", "b_major": "mn"}, "a_major = 'k': groups of K have MN-major BF16 operands; use mn"),
    (BF16_K, {"d_dtype": "fp32", "a_major": "mn"}, "b_major = 'k': groups of K have MN-major BF16 operands; use mn"),
]


@pytest.mark.parametrize("op, fields, message", BROKEN_RULES)
def test_broken_rules_say_value_rule_and_remedy(op, fields, message):
    given = {"m": 16, "n": 1, "k": 1, "num_groups": 1} | fields
    with pytest.raises(ProblemError) as caught:
        _C.Problem(op, **given)
    assert str(caught.value).startswith(message)
    numbers = {name: value for name, value in given.items() if value != GROUP_FIELDS.get(name)}
    with pytest.raises(ProblemError):
        _C.Problem.from_json(json.dumps({"fields": numbers, "op": op}))


@pytest.mark.parametrize("value", [True, 1.0, "3", None, [], -1, 2**31, 2**80])
@pytest.mark.parametrize("name", ["num_groups", "expected_m", "alignment"])
def test_bad_integers_are_refused(name, value):
    with pytest.raises(ProblemError, match=f"^{name} = .*: must be "):
        _C.Problem("m_grouped_fp8_gemm_masked", **({"m": 16, "n": 1, "k": 1, "num_groups": 1} | {name: value}))


def test_unknown_group_layouts_are_refused():
    with pytest.raises(
        ProblemError, match="^group_layout = 'apart': must be one of 'joint', 'blocks'; use one of them"
    ):
        make_grouped("k_grouped_fp8_gemm_contiguous", 1, 1, 128, 1, group_layout="apart")


def test_an_unknown_op_is_told_every_op():
    with pytest.raises(
        ProblemError, match=f"op = 'm_grouped_gemm': no such op kind; use one of {', '.join([*OPS, *GROUPED_OPS])}"
    ):
        _C.Problem("m_grouped_gemm", 1, 1, 1, num_groups=1)


VALID = '{"fields":{"k":3,"m":1,"n":2,"num_groups":4},"op":"m_grouped_fp8_gemm_contiguous"}'
MALFORMED = [
    VALID.replace("4", "0"),
    VALID.replace("4", "65536"),
    VALID.replace("4", "true"),
    VALID.replace("4", '"4"'),
    VALID.replace(',"num_groups":4', ""),
    VALID.replace("4}", '4,"groups":4}'),
    VALID.replace('"k"', '"alignment":"8","k"'),
    VALID.replace('"k"', '"alignment":12,"k"'),
    VALID.replace('"k"', '"expected_m":1,"k"'),
    VALID.replace('"k"', '"group_layout":"blocks","k"'),
    VALID.replace("m_grouped_fp8_gemm_contiguous", "fp8_gemm"),
]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_json_is_refused(text):
    assert _C.Problem.from_json(VALID).num_groups == 4
    with pytest.raises(ProblemError):
        _C.Problem.from_json(text)
