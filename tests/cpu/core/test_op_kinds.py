"""The table of op kinds and the descriptions of fields: complete, consistent with what problems accept, immutable."""

import itertools
from pathlib import Path

import pytest

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import ProblemError
from deep_gemm.jit import generator
from tests.fakes.grouped_variants import (
    CONTIGUOUS,
    EVERY_GROUPED_OP,
    GROUPED_OPS,
    K_GROUPED,
    MASKED,
    make_grouped,
    make_grouped_variants,
)
from tests.fakes.variants import OPS, make_logits_variants, make_row_variants, make_variants

HEADERS = Path(deep_gemm.__file__).parent / "include" / "deep_gemm"
KINDS = {kind.name: kind for kind in _C.OP_KINDS}
KNOWN = (*OPS, *GROUPED_OPS)
FIELDS = {field.name: field for field in _C.PROBLEM_FIELDS}
WORDS = [field for field in _C.PROBLEM_FIELDS if field.type == "word"]
VARIANTS = [*make_variants(64, 2112, 7168), *make_grouped_variants(64, 2112, 7168, 8)]
#: One problem of every variant of every op kind.
ALL_VARIANTS = [
    *make_variants(64, 2112, 7168),
    *make_grouped_variants(64, 2112, 7168, 8, EVERY_GROUPED_OP),
    *make_logits_variants(48, 4096),
    *make_row_variants(64, 2112, 7168),
]


def test_there_is_a_row_for_every_op_kind():
    """Op kinds are numbered by their rows: another one goes to the end."""
    assert tuple(KINDS)[: len(KNOWN)] == KNOWN
    groupings = dict.fromkeys(OPS, "dense") | dict.fromkeys(CONTIGUOUS, "contiguous")
    groupings |= dict.fromkeys(MASKED, "masked") | dict.fromkeys(K_GROUPED, "k_grouped")
    for name in KNOWN:
        kind = KINDS[name]
        assert kind.grouping == groupings[name] and kind.is_fp8 == ("fp8" in name)
        assert kind.is_grouped == (name in GROUPED_OPS) and ("split_k" in kind.knobs) == (name in OPS)
        assert (kind.m_is_shared, kind.has_room, kind.k_is_divided) == (
            name in CONTIGUOUS,
            name in MASKED,
            name in K_GROUPED,
        )
        assert generator.kernel_name(name) == f"deep_gemm_{name}"


@pytest.mark.parametrize("op", KINDS)
def test_a_row_names_a_kernel_and_a_grouping(op):
    kind, includes = KINDS[op], generator.canonical_sources(op)[0]
    assert f'#include "deep_gemm/{kind.kernel}.cuh"\n' in includes and (HEADERS / f"{kind.kernel}.cuh").is_file()
    assert kind.is_grouped == (kind.grouping != "dense")
    assert kind.is_logits or f'#include "deep_gemm/sm90/scheduler/{kind.grouping}_scheduler.cuh"\n' in includes
    words = "".join(word.capitalize() for word in kind.kernel.split("_"))
    assert f"deep_gemm::{words}<deep_gemm::Config" in includes


@pytest.mark.parametrize("op", KNOWN)
def test_legal_words_are_those_of_some_problem(op):
    problems = [problem for problem in VARIANTS if problem.op == op]
    for field in WORDS:
        legal = getattr(KINDS[op], f"{field.name}s")
        assert set(legal) == {getattr(problem, field.name) for problem in problems}
        assert legal == tuple(word for word in field.words if word in legal)


def test_fields_describe_the_constructor():
    assert list(_C.Problem("fp8_gemm", 1, 1, 1).as_dict()) == ["op", *FIELDS]
    assert list(_C.Config(64, 64, 2).as_dict()) == [field.name for field in _C.CONFIG_FIELDS]
    defaults = _C.Problem("fp8_gemm", 1, 1, 1).as_dict() | _C.Config(64, 64, 2).as_dict()
    for field in (*_C.PROBLEM_FIELDS, *_C.CONFIG_FIELDS):
        assert field.meaning.endswith(".") and field.minimum <= field.maximum
        assert field.default is None or field.default == defaults[field.name]
        assert (field.type == "word") == bool(field.words) and (not field.words or field.default == field.words[0])
        assert field.role in ("size", "group", "variant", "policy", "tile", "knob")
    assert [name for name, field in FIELDS.items() if field.default is None] == ["m", "n", "k"]


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.type == "integer"])
def test_ranges_are_those_that_problems_accept(name):
    problem = make_grouped(MASKED[0] if name == "expected_m" else CONTIGUOUS[0], 2**31 - 1, 64, 128, 4)
    if FIELDS[name].role == "variant":
        problem = _C.Problem("fp8_paged_mqa_logits", 840, 64, 128, heads=8, block_kv=32)
    for value in (FIELDS[name].minimum, FIELDS[name].maximum):
        if name not in ("num_groups", "heads", "block_kv") or value > 0:  # 0: an op without them
            assert getattr(_C.Problem(**problem.as_dict() | {name: value}), name) == value
    for value in (FIELDS[name].minimum - 1, FIELDS[name].maximum + 1):
        with pytest.raises(ProblemError, match=f"^{name} = {value}: must be within "):
            _C.Problem(**problem.as_dict() | {name: value})


def test_rows_and_fields_are_immutable():
    for row, name in ((_C.OP_KINDS[0], "name"), (_C.OP_KINDS[0], "recipes"), (_C.PROBLEM_FIELDS[0], "maximum")):
        with pytest.raises(AttributeError):
            setattr(row, name, None)


def test_as_dict_may_leave_out_defaults():
    problem = _C.Problem("fp8_gemm", 1, 2, 3, recipe="1d1d")
    assert problem.as_dict(False) == {"op": "fp8_gemm", "m": 1, "n": 2, "k": 3, "recipe": "1d1d"}
    assert _C.Config(64, 128, 4, swap_ab=1).as_dict(with_defaults=False) == {
        "block_m": 64, "block_n": 128, "num_stages": 4, "swap_ab": 1,
    }  # fmt: skip


def test_every_variant_has_a_kernel_and_a_default_space_of_its_own():
    device = _C.Device.known("h200")
    assert len({_C.kernel_identity(problem) for problem in VARIANTS}) == len(VARIANTS)
    for problem in itertools.chain(VARIANTS, reversed(VARIANTS)):
        space = set(_C.get_default_space(_C.kernel_identity(problem), device))
        assert set(_C.get_candidates(problem, device)) <= space


def test_variants_of_a_new_op_kind_come_from_its_row():
    """As those of the known ones would."""
    found, known = make_row_variants(64, 2112, 7168, named=()), set(make_variants(64, 2112, 7168))
    ops = {problem.op for problem in known}  # a new op kind has a row, and is not among the known ones
    assert len(found) == len(set(found)) and {problem for problem in found if problem.op in ops} == known


def test_no_op_kind_is_missing_among_the_variants():
    assert {problem.op for problem in ALL_VARIANTS} == set(KINDS)
    assert len(set(ALL_VARIANTS)) == len(ALL_VARIANTS)


def test_every_variant_of_every_op_kind_has_a_choice_among_its_candidates():
    device = _C.Device.known("h200")
    for problem in ALL_VARIANTS:
        chosen, candidates = _C.get_analytic_config(problem, device), _C.get_candidates(problem, device)
        knobbed = [_C.with_loop_knobs(problem, config, device) for config in candidates]
        assert chosen in knobbed and _C.is_legal(problem, chosen, device), problem
        assert set(candidates) <= set(_C.get_default_space(_C.kernel_identity(problem), device)), problem
        assert _C.Problem.from_json(problem.to_json()) == problem


def test_a_kernel_serves_all_sizes_groups_and_policies():
    problem = make_grouped(CONTIGUOUS[0], 1024, 512, 512, 4)
    kernel = _C.kernel_identity(problem)
    for change in ({"m": 2048}, {"num_groups": 2}, {"alignment": 256}, {"num_sms": 8}, {"batch_invariant": True}):
        assert _C.kernel_identity(_C.Problem(**problem.as_dict() | change)) == kernel
    for change in ({"recipe": "1d1d"}, {"d_dtype": "fp32"}, {"scale_layout": "any"}, {"compiled_dims": "n"}):
        assert _C.kernel_identity(_C.Problem(**problem.as_dict() | change)) != kernel
    assert kernel.alignment == _C.ANY_TILE_ALIGNMENT and _C.kernel_identity(kernel) == kernel
    fixed = _C.kernel_identity(_C.Problem("fp8_gemm", 3, 5, 7, compiled_dims="mk", num_sms=9))
    assert (fixed.m, fixed.n, fixed.k, fixed.num_sms) == (3, 1, 7, 0)
