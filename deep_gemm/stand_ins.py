"""What a graph records in place of a call of a public op: a stand-in, whose source text is made from the op's row.

A stand-in has the signature of its op, which substitute_in_graph compares, and is plain Python that Dynamo can trace.
Where a graph can hold the arguments, it calls `node` in the graph, else `leave`: for Dynamo that is the op itself,
after a graph break.
"""

import functools
from collections.abc import Callable

import torch

from deep_gemm.op_parameters import Parameter
from deep_gemm.ops import Op

_SOURCE = """\
def stand_in{signature}:
    if {condition}:
        return node({node_arguments})
    return leave({leave_arguments})
"""


def make_stand_in(op: Op, node: Callable, leave: Callable) -> Callable:
    """Return the stand-in of an op. `node` takes what the op's schema names, `leave` the op's own arguments."""
    scope = {"node": node, "leave": leave, **_TAKERS, **_CHECKS}
    exec(compile(_make_source(op), f"<stand-in of {op.name}>", "exec"), scope)
    aliases = {parameter.alias: parameter.name for parameter in op.parameters if parameter.alias}
    return _accept_aliases(scope["stand_in"], aliases) if aliases else scope["stand_in"]


def _make_source(op: Op) -> str:
    in_graph = [parameter for parameter in op.parameters if parameter.schema]
    return _SOURCE.format(
        signature=op.signature,
        condition=" and ".join(_make_check(op, one) for one in op.parameters if one.check),
        node_arguments=", ".join(_pass_to_node(op, parameter) for parameter in in_graph),
        leave_arguments=", ".join(_pass(parameter, parameter.name) for parameter in op.parameters),
    )


def _make_check(op: Op, parameter: Parameter) -> str:
    kind = _kind_of(op, parameter)
    return f"_is_{kind}({', '.join((parameter.name, *_ALSO_CHECKED.get(kind, ())))})"


def _kind_of(op: Op, parameter: Parameter) -> str:
    """Return the check of a parameter, of which operands that are no pairs, and flags that are no lengths, have another
    than those that are.
    """
    if parameter.check == "operand" and parameter.name not in op.pairs:
        return "tensor"
    has_length = any(one.name == "max_seqlen_k" for one in op.parameters)
    return "flag" if parameter.check == "cleaning" and not has_length else parameter.check


def _pass(parameter: Parameter, value: str) -> str:
    return f"{parameter.name}={value}" if parameter.is_keyword_only else value


def _pass_to_node(op: Op, parameter: Parameter) -> str:
    if parameter.name in op.pairs:
        return f"*{parameter.name}"
    return _pass(parameter, _FORMS.get(_kind_of(op, parameter), "{}").format(parameter.name))


def _accept_aliases(stand_in: Callable, aliases: dict[str, str]) -> Callable:
    """Return a stand-in that also takes arguments under their second names; giving both names of one is an error."""

    @functools.wraps(stand_in)  # keeps its signature
    def renaming(*values, **named):
        for alias, name in aliases.items():
            if alias in named and name not in named:
                named[name] = named.pop(alias)
        return stand_in(*values, **named)

    return renaming


def _is_tensor(operand) -> bool:
    return operand is None or isinstance(operand, torch.Tensor)


def _is_operand(operand) -> bool:
    """Whether an FP8 operand is a pair (data, scales)."""
    return (
        isinstance(operand, (tuple, list)) and len(operand) == 2 and _is_tensor(operand[0]) and _is_tensor(operand[1])
    )


def _is_queries(operand) -> bool:
    """Whether queries are a tensor, or a pair (tensor, None)."""
    if isinstance(operand, (tuple, list)):
        return len(operand) == 2 and isinstance(operand[0], torch.Tensor) and operand[1] is None
    return isinstance(operand, torch.Tensor)


def _take_queries(operand):
    return operand if isinstance(operand, torch.Tensor) else operand[0]


def _is_dtype(dtype) -> bool:
    return dtype is None or isinstance(dtype, torch.dtype)


def _is_number(factor) -> bool:
    return isinstance(factor, (int, float))


def _is_optional_number(factor) -> bool:
    return factor is None or isinstance(factor, (int, float))


def _is_integer(number) -> bool:
    return isinstance(number, (int, torch.SymInt)) and not isinstance(number, bool)


def _is_optional_integer(number) -> bool:
    return number is None or _is_integer(number)


def _is_integers(numbers) -> bool:
    return isinstance(numbers, (tuple, list)) and all(_is_integer(number) for number in numbers)


def _is_optional_integers(numbers) -> bool:
    return numbers is None or _is_integers(numbers)


def _is_text(text) -> bool:
    return isinstance(text, str)


def _is_optional_text(text) -> bool:
    return text is None or isinstance(text, str)


def _is_sizes(sizes, has_ends) -> bool:
    """Whether sizes of groups are integers, or none where the device says where groups end."""
    return _is_integers(sizes) or (sizes is None and has_ends is True)


def _is_flag(argument) -> bool:
    return isinstance(argument, bool)


def _is_cleaning(argument, length) -> bool:
    """Whether an argument is a flag, or an integer in its place, which is a length that is not given, too."""
    return isinstance(argument, bool) or (_is_integer(argument) and not length)


def _is_length(length) -> bool:
    return length is None or _is_integer(length)


def _take_cleaning(argument):
    return argument if isinstance(argument, bool) else True


def _take_length(length, cleaning):
    if not isinstance(cleaning, bool):
        return cleaning
    return 0 if length is None else length


def _is_absent(argument) -> bool:
    return argument is None


def _is_unused(argument) -> bool:
    """Whether an option that no graph holds is off."""
    return argument is None or argument is False


def _is_unused_limit(argument) -> bool:
    """Whether a limit of N of a tile is off, or a number, which limits nothing."""
    return _is_unused(argument) or (_is_integer(argument) and argument > 0)


_CHECKS = {
    check.__name__: check
    for check in (
        _is_tensor,
        _is_operand,
        _is_queries,
        _is_dtype,
        _is_number,
        _is_optional_number,
        _is_integer,
        _is_optional_integer,
        _is_integers,
        _is_optional_integers,
        _is_text,
        _is_optional_text,
        _is_sizes,
        _is_flag,
        _is_cleaning,
        _is_length,
        _is_absent,
        _is_unused,
        _is_unused_limit,
    )
}
_TAKERS = {take.__name__: take for take in (_take_queries, _take_cleaning, _take_length)}

#: The parameters that a check looks at beside its own.
_ALSO_CHECKED = {"sizes": ("use_psum_layout",), "cleaning": ("max_seqlen_k",)}

#: How the node takes arguments of some checks, where not as they are.
_FORMS = {
    "cleaning": "_take_cleaning({0})",
    "length": "_take_length({0}, clean_logits)",
    "number": "float({0})",
    "optional_number": "1.0 if {0} is None else float({0})",
    "queries": "_take_queries({0})",
    "sizes": "() if {0} is None else {0}",  # as an eager call takes none
}
