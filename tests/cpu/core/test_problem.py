"""Problems and configs: their fields, the rules between them, and how they are made, compared and printed."""

import json
import pickle

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.errors import ConfigError, ProblemError
from tests.fakes import grouped_variants, variants
from tests.fakes.grouped_variants import CONTIGUOUS, GROUPED_OPS, K_GROUPED, MASKED, make_grouped, make_grouped_variants
from tests.fakes.variants import CHOICES, OPS, make_config, make_problem, make_variants

OP = "fp8_gemm"
GROUP_FIELDS = {"num_groups": 0, "expected_m": 0, "alignment": 128, "group_layout": "joint"}
NOT_INTEGERS = [True, False, 1.0, "3", None, [], float("nan"), np.float32(2), b"1"]
OUT_OF_RANGE = [-1, 2**31, 2**63, 2**64, 2**80, -(2**70)]


def all_variants():
    """Yield (op, fields, whether they agree) of every combination of words."""
    for op, fields in variants.all_fields():
        yield op, fields, variants.exists(op, **fields)
    for op, fields in grouped_variants.all_fields(grouped_variants.EVERY_GROUPED_OP):
        yield op, fields | {"num_groups": 1}, grouped_variants.exists(op, **fields)


def check_variant(op, fields, is_legal):
    text = json.dumps({"fields": fields | {"m": 1, "n": 1, "k": 1}, "op": op})
    if is_legal:
        assert _C.Problem(op, 1, 1, 1, **fields) == _C.Problem.from_json(text)
        return
    with pytest.raises(ProblemError, match="^[a-z_]+ = '[a-z0-9_]+': .*; "):
        _C.Problem(op, 1, 1, 1, **fields)
    with pytest.raises(ProblemError):
        _C.Problem.from_json(text)


def test_variants_exist_exactly_where_their_fields_agree():
    for op, fields, is_legal in all_variants():
        check_variant(op, fields, is_legal)
    assert (len(make_variants()), len(make_grouped_variants())) == (47, 37)


def make_distinct() -> list:
    """Return problems that differ in one field of the groups or in the variant."""
    masked = {"num_groups": 4, "expected_m": 3}
    return [
        *make_variants(3, 5, 7),
        *(_C.Problem(OP, 3, 5, 7, batch_invariant=flag, num_sms=1) for flag in (True, False)),
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


FP8_ROWS, BF16_ROWS = CONTIGUOUS
FP8_MASKED, BF16_MASKED = MASKED
FP8_K, BF16_K = K_GROUPED
MN = {"a_major": "mn", "b_major": "mn"}
BROKEN_RULES = [
    ("fp8_gemm", {"num_groups": 1}, "num_groups = 1: fp8_gemm does not take it; leave it out"),
    (FP8_ROWS, {"num_groups": 0}, "num_groups = 0: a grouped op has at least one group; pass their number"),
    (FP8_ROWS, {"expected_m": 1}, f"expected_m = 1: {FP8_ROWS} does not take it; leave it out"),
    ("bf16_gemm", {"expected_m": 1, "num_groups": 0}, "expected_m = 1: bf16_gemm does not take it; leave it out"),
    (BF16_MASKED, {"expected_m": 17}, "expected_m = 17: a group has at most m rows; pass no more"),
    (FP8_MASKED, {"alignment": 64}, f"alignment = 64: {FP8_MASKED} does not take it; leave it out"),
    (
        "fp8_gemm",
        {"alignment": 64, "num_groups": 0},
        "alignment = 64: fp8_gemm does not take it; leave it out",
    ),
    (BF16_ROWS, {"alignment": 12}, "alignment = 12: must be a multiple of 8; round it up"),
    (BF16_ROWS, {"alignment": 0}, "alignment = 0: must be within 8..65536; pass a number in this range"),
    (
        FP8_MASKED,
        {"group_layout": "blocks"},
        f"group_layout = 'blocks': {FP8_MASKED} takes only 'joint'; leave it out",
    ),
    (
        BF16_K,
        {"group_layout": "blocks", "d_dtype": "fp32", **MN},
        f"group_layout = 'blocks': {BF16_K} takes only 'joint'; leave it out",
    ),
    (FP8_ROWS, {"recipe": "per_row"}, f"recipe = 'per_row': {FP8_ROWS} takes '1d2d' or '1d1d'; leave it out"),
    (FP8_MASKED, {"c_mode": "general"}, f"c_mode = 'general': {FP8_MASKED} takes only 'none'; leave it out"),
    (
        FP8_ROWS,
        {"c_mode": "accumulate", "d_dtype": "fp32"},
        f"c_mode = 'accumulate': {FP8_ROWS} takes only 'none'; leave it out",
    ),
    (FP8_ROWS, {"c_mode": "head_split"}, f"c_mode = 'head_split': {FP8_ROWS} takes only 'none'; leave it out"),
    (BF16_ROWS, {"a_major": "mn"}, f"a_major = 'mn': {BF16_ROWS} takes only 'k'; leave it out"),
    (BF16_MASKED, {"b_major": "mn"}, f"b_major = 'mn': {BF16_MASKED} takes only 'k'; leave it out"),
    (
        "fp8_gemm",
        {"c_mode": "head_split", "recipe": "1d1d", "num_groups": 0},
        "c_mode = 'head_split': needs recipe 1d2d and a BF16 D; use another c_mode",
    ),
    (
        "bf16_gemm",
        {"c_mode": "accumulate", "num_groups": 0},
        "c_mode = 'accumulate': needs an FP32 D; pass d_dtype='fp32' or c_mode='general'",
    ),
    (FP8_ROWS, {"b_major": "mn"}, f"b_major = 'mn': {FP8_ROWS} takes only 'k'; leave it out"),
    (FP8_K, {"d_dtype": "fp32"}, f"recipe = '1d2d': {FP8_K} takes only '1d1d'; pass it"),
    (FP8_K, {"recipe": "1d1d"}, f"d_dtype = 'bf16': {FP8_K} takes only 'fp32'; pass it"),
    (BF16_K, {"d_dtype": "fp32", "b_major": "mn"}, f"a_major = 'k': {BF16_K} takes only 'mn'; pass it"),
    (BF16_K, {"d_dtype": "fp32", "a_major": "mn"}, f"b_major = 'k': {BF16_K} takes only 'mn'; pass it"),
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


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({}, "lacks the argument 'op'"),
        ({"op": OP, "m": 1, "n": 1}, "lacks the argument 'k'"),
        ({"op": OP, "m": 1, "n": 1, "k": 1, "bias": 1}, "got an unknown argument 'bias'"),
    ],
)
def test_constructors_name_the_wrong_argument(arguments, words):
    with pytest.raises(TypeError, match=words):
        _C.Problem(**arguments)
    with pytest.raises(TypeError, match="got two values of the argument 'm'"):
        _C.Problem(OP, 1, 1, 1, m=1)
    with pytest.raises(TypeError, match="at most 4 arguments by position, not 5"):
        _C.Problem(OP, 1, 1, 1, 0)


@pytest.mark.parametrize(
    "value", [_C.Problem("fp8_gemm", 3, 64, 128, num_sms=7), _C.Config(64, 96, 5, split_k=2)], ids=str
)
def test_the_state_of_an_older_pickle_is_read(value):
    found = type(value).__new__(type(value))
    found.__setstate__((value.to_json(),))
    assert found == value


def test_the_state_of_a_pickle_may_change_while_it_is_read():
    state = {"op": "fp8_gemm", "n": 64, "k": 128}

    class Clearing:
        def __index__(self) -> int:
            state.clear()
            return 3

    problem = _C.Problem.__new__(_C.Problem)
    state["m"] = Clearing()
    problem.__setstate__(state)
    assert problem == _C.Problem("fp8_gemm", 3, 64, 128)
    with pytest.raises(TypeError, match="must be the dict or the tuple"):
        _C.Problem.__new__(_C.Problem).__setstate__([1])


@pytest.mark.parametrize(
    ("mean", "rounded"),
    [
        (0, 1),
        (1, 1),
        (7, 7),
        (8, 8),
        (9, 10),
        (11, 12),
        (13, 14),
        (17, 20),
        (21, 24),
        (33, 40),
        (192, 192),
        (1000, 1024),
        (4000, 4096),
        (9999, 4096),
    ],
)
def test_expected_rows_are_rounded_to_three_bits_within_the_room(mean, rounded):
    assert _C.round_expected_m(mean, 4096) == rounded


@pytest.mark.parametrize(("name", "arguments"), [("expected_m", (-1, 8)), ("expected_m", (1 << 70, 8)), ("m", (8, 0))])
def test_sizes_that_no_problem_has_are_not_rounded(name, arguments):
    with pytest.raises(ProblemError, match=f"^{name} = .*: must be within"):
        _C.round_expected_m(*arguments)


def test_rows_of_a_group_are_those_that_the_host_knows():
    groups = {"n": 512, "k": 512, "num_groups": 4}
    assert _C.rows_per_group(_C.Problem("fp8_gemm", 100, 512, 512)) == 100
    assert _C.rows_per_group(_C.Problem("m_grouped_fp8_gemm_contiguous", 1030, **groups)) == 258
    assert _C.rows_per_group(_C.Problem("m_grouped_bf16_gemm_masked", 4096, **groups)) == 4096
    assert _C.rows_per_group(_C.Problem("m_grouped_bf16_gemm_masked", 4096, **groups, expected_m=20)) == 20
