"""The fields of a problem as arguments and options of commands, and what a measured config is printed as."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature

import typer

from deep_gemm import _C
from deep_gemm.fields import PROBLEM_FIELDS
from tuner.problems.fields import OP_NAMES, describe_option

#: The field for which the library takes a setting of the process where the caller says nothing.
SETTING = "batch_invariant"
SETTING_HELP = "Default: as the library, see $DG_BATCH_INVARIANT; of `db show`: no."
OP_HELP = f"One of {OP_NAMES}; or the name of a function, such as m_grouped_fp8_gemm_nt_masked."


def make_parameter(field: _C.Field, needs_sizes: bool) -> Parameter:
    """Return the argument or option of a field; a word that is not given is the op kind's or the function's.

    `needs_sizes`: whether m, n and k must be given.
    """
    kind, default = type(field.default), typer.Option(field.default, help=field.meaning)
    if field.role == "size":
        kind, default = int, typer.Argument(... if needs_sizes else None, help=field.meaning)
    elif field.name == SETTING:
        kind, default = bool, typer.Option(None, help=f"{field.meaning} {SETTING_HELP}")
    elif field.type == "word":
        default = typer.Option(None, help=describe_option(field.name))
    return Parameter(field.name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def add_optional_field_parameters(command: Callable) -> Callable:
    """Do the same as add_field_parameters for a command that also does without a problem; sizes may then be None."""
    return add_field_parameters(command, needs_sizes=False)


def add_field_parameters(command: Callable, needs_sizes: bool = True) -> Callable:
    """Give a command that takes **fields, as its signature, the fields of a problem after its positional parameters.

    Which sizes are compiled into a kernel (`dims`) is decided call by call and has no option.
    """
    fields = [make_parameter(field, needs_sizes) for field in PROBLEM_FIELDS.values() if field.type != "dims"]
    own = [one for one in signature(command).parameters.values() if one.kind != Parameter.VAR_KEYWORD]
    before = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own if one.kind != Parameter.KEYWORD_ONLY]
    command.__signature__ = Signature([*before, *fields, *own[len(before) :]])  # type: ignore[attr-defined]
    return command
