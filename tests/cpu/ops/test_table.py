"""The table of public ops: what is made from its rows agrees with them."""

import ast
import inspect
import pickle
import re

import pytest
import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import ArgumentError, DeepGemmError, ProblemError
from deep_gemm.op_docs import list_shapes
from deep_gemm.op_parameters import REQUIRED
from deep_gemm.ops import EXPORTS, FUNCTIONS, OPS, make_table

#: Templates of ops that return a tensor.
RETURNING = ("logits", "paged_logits", "metadata")
ROW = {
    "name": "toy_gemm_nt",
    "kind": "bf16_gemm",
    "layout": "nt",
    "is_blocks": False,
    "parameters": [("a", None), ("b", "second"), ("d", None)],
    "num_required": 3,
    "num_positional": 3,
    "documentation": "toy_gemm_nt(a, b, d)\n--\n\nMultiply.",
}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_function_has_the_signature_of_its_row(op):
    found = inspect.signature(FUNCTIONS[op.name]).parameters.values()
    assert [parameter.name for parameter in found] == [parameter.name for parameter in op.parameters]
    for parameter, row in zip(found, op.parameters, strict=True):
        assert parameter.default == (inspect.Parameter.empty if row.default is REQUIRED else row.default)
        assert (parameter.kind is inspect.Parameter.KEYWORD_ONLY) == row.is_keyword_only


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_row_is_exported_under_its_names_and_registered(op):
    for name in (op.name, *op.other_names):
        assert getattr(deep_gemm, name) is FUNCTIONS[op.name] is EXPORTS[name] and name in deep_gemm.__all__
    schema = getattr(torch.ops.deep_gemm_tuned, op.name).default._schema
    in_graph = {parameter.name for parameter in op.parameters if parameter.schema}
    scales = {f"scale_{name}" for name in op.pairs}
    assert {argument.name for argument in schema.arguments} == in_graph | scales
    written = [argument.name for argument in schema.arguments if argument.is_write]
    assert written == [name for name in ("d", "sqr_sum") if name in in_graph]
    assert len(schema.returns) == op.returns_tensor and op.returns_tensor == (op.docs_template in RETURNING)


@pytest.mark.parametrize("op", [op for op in OPS if op.kind], ids=lambda op: op.name)
def test_a_docstring_describes_every_parameter(op):
    lines = FUNCTIONS[op.name].__doc__.splitlines()
    described = {
        name for line in lines if line.startswith("    ") for name in line.partition(":")[0].strip().split(", ")
    }
    assert {parameter.name for parameter in op.parameters} <= described
    a, b, d = list_shapes(op)
    second = "b" if "b" in described else op.parameters[1].name
    inputs, _, rest = FUNCTIONS[op.name].__doc__.partition(f"    {second}: ")
    assert a in inputs.partition("Args:")[2] and b in rest and d in rest
    assert max(map(len, lines)) <= 120 and "Raises:" in lines and not lines[0].startswith(" ")


@pytest.mark.parametrize("op", [op for op in OPS if op.kind], ids=lambda op: op.name)
def test_a_builtin_knows_its_name_and_its_parameters(op):
    function = FUNCTIONS[op.name]
    assert function.__name__ == op.name and function.__module__ == "deep_gemm"
    assert pickle.loads(pickle.dumps(function)) is function
    first, required = op.parameters[0].name, op.parameters[op.num_required - 1].name
    for positional, named, message in (
        ((), {}, f"argument '{first}' is missing; give it"),
        (range(op.num_required - 1), {}, f"argument '{required}' is missing; give it"),
        (range(op.num_required), {"x": 1}, f"unknown argument 'x'; see help(deep_gemm.{op.name})"),
        (range(op.num_positional + 1), {}, f"takes at most {op.num_positional}; name the others"),
    ):
        with pytest.raises(ArgumentError, match=re.escape(message)):
            function(*positional, **named)


TAKES_EPILOGUE = [op for op in OPS if any(parameter.name == "epilogue" for parameter in op.parameters)]


@pytest.mark.parametrize("op", TAKES_EPILOGUE, ids=lambda op: op.name)
def test_an_epilogue_is_none(op):
    """What is said comes before the operands are looked at, and None says nothing."""
    x = torch.zeros(1)
    operands = [(x, x) if parameter.name in op.pairs else x for parameter in op.parameters[: op.num_required]]
    with pytest.raises(ArgumentError, match="epilogue = 'x': no kernel of SM90 takes it, it is SM100 only; pass None"):
        FUNCTIONS[op.name](*operands, epilogue="x")
    with pytest.raises(DeepGemmError, match="^(?!.*epilogue)"):
        FUNCTIONS[op.name](*operands, epilogue=None)


def expand(name: str) -> list[str]:
    """Return the names that "op_{nt,nn}" stands for."""
    head, brace, rest = name.partition("{")
    layouts, _, tail = rest.partition("}")
    return [f"{head}{layout}{tail}" for layout in layouts.split(",")] if brace else [name]


def test_the_table_of_the_documentation_names_every_op_once():
    header, rule, *rows = make_table()
    assert {line.count("|") for line in (header, rule, *rows)} == {6}
    names = [name for row in rows for cell in re.findall(r"`([^`]+)`", row.split("|")[1]) for name in expand(cell)]
    assert sorted(names) == sorted(EXPORTS)
    assert (
        "| `fp8_gemm_{nt,nn,tn,tt}` | one matrix product | `d = alpha * (A @ B.T) + beta * c`"
        " | `[m, k]`, `[n, k]`, `[m, n]` | `c` |" in rows
    )
    assert sum("`ks`, `ks_tensor`, `c`, `use_psum_layout` |" in row for row in rows) == 3


def test_signatures_are_python():
    for op in OPS:
        (function,) = ast.parse(f"def {op.name}{op.signature}: pass").body
        arguments = function.args
        assert [one.arg for one in arguments.args + arguments.kwonlyargs] == [one.name for one in op.parameters]


def test_a_row_makes_an_op():
    op = _C.make_op(**ROW)
    a, b, d = torch.randn(16, 64).bfloat16(), torch.randn(8, 64).bfloat16(), torch.empty(16, 8)
    op(a, second=b, d=d)
    expected = torch.empty(16, 8)
    deep_gemm.bf16_gemm_nt(a, b, expected)
    assert torch.equal(d, expected) and str(inspect.signature(op)) == "(a, b, d)" and op.__doc__ == "Multiply."
    with pytest.raises(ArgumentError, match=r"toy_gemm_nt\(\): argument 'b', which is also called 'second', was given"):
        op(a, b, d, second=b)


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"layout": "xx"}, ArgumentError, "layout = xx: must be nt, nn, tn or tt"),
        ({"kind": "toy"}, ProblemError, "toy"),
        ({"parameters": [("a", None), ("b", None), ("z", None)]}, ArgumentError, "no op has a parameter 'z'"),
        ({"num_required": 4}, ArgumentError, "num_required <= num_positional <= parameters"),
        ({"num_positional": 4, "num_required": 4}, ArgumentError, "num_required <= num_positional <= parameters"),
    ],
)
def test_wrong_rows(changes, error, message):
    with pytest.raises(error, match=message):
        _C.make_op(**(ROW | changes))


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": [], "num_required": 0, "num_positional": 0},
        {"num_required": 2},
        {"kind": "m_grouped_bf16_gemm_masked"},
        {"parameters": [*ROW["parameters"], ("d", None)], "num_positional": 4},
    ],
    ids=["no parameters", "d may be missing", "no groups", "d twice"],
)
def test_a_row_that_a_call_could_not_serve_is_refused(change):
    with pytest.raises(ArgumentError, match=r"must require a, b, d and the groups' parameter"):
        _C.make_op(**(ROW | change))


@pytest.mark.parametrize("base", [tuple, list])
@pytest.mark.parametrize("items", [(), (1,), (1, 2, 3)])
def test_a_pair_whose_iterator_lies_is_refused(base, items):
    """The size that counts is that of what the iterator gave."""

    class Liar(base):
        def __iter__(self):
            return iter(items)

    x = torch.zeros(16, 128, dtype=torch.float8_e4m3fn)
    pair = (x, torch.ones(16, 1))
    with pytest.raises(ArgumentError, match=r"FP8 operands are pairs"):
        deep_gemm.fp8_gemm_nt(Liar(pair), pair, torch.empty(16, 16, dtype=torch.bfloat16))


#: The parameters of DeepGEMM 2.8, in its order: its callers may name none of them.
POSITIONS = {
    "bf16_gemm_nt": "a b d c compiled_dims alpha",
    "m_grouped_bf16_gemm_nt_contiguous": (
        "a b d m_indices compiled_dims use_psum_layout ensure_zero_padding expected_m_for_psum_layout"
    ),
    "m_grouped_bf16_gemm_nt_masked": "a b d masked_m expected_m compiled_dims",
    "k_grouped_bf16_gemm_tn_contiguous": "a b d ks ks_tensor c compiled_dims use_psum_layout",
    "k_grouped_fp8_gemm_nt_contiguous": "a b d ks ks_tensor c recipe compiled_dims use_psum_layout",
    "fp8_fp4_gemm_nt": "a b d c recipe recipe_a recipe_b compiled_dims disable_ue8m0_cast alpha",
    "m_grouped_fp8_fp4_gemm_nt_contiguous": (
        "a b d m_indices recipe recipe_a recipe_b compiled_dims disable_ue8m0_cast use_psum_layout ensure_zero_padding"
        " expected_m_for_psum_layout"
    ),
    "m_grouped_fp8_fp4_gemm_nt_masked": (
        "a b d masked_m expected_m recipe recipe_a recipe_b compiled_dims disable_ue8m0_cast"
    ),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_parameters_have_the_positions_of_deepgemm(name):
    op = next(op for op in OPS if op.name == name)
    assert [parameter.name for parameter in op.parameters[: op.num_positional]] == POSITIONS[name].split()
