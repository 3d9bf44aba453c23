"""Problems and configs as plain fields: the one way from rows, jobs and files to objects of the library, and back.

The fields are those of the library itself, so that a new one needs a column (see tuner.db.tables) and nothing else
here.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from deep_gemm import _C
from deep_gemm.fields import CONFIG_FIELDS, OP_KINDS, PROBLEM_FIELDS

#: The op kinds, in the order of the native table.
OPS = tuple(OP_KINDS)
#: As help texts list them.
OP_NAMES = ", ".join(OPS)
#: The layout in a function's name -> the contiguous dimensions of A and B.
MAJORS = {"nt": ("k", "k"), "nn": ("k", "mn"), "tn": ("mn", "mn"), "tt": ("mn", "k")}
#: Names with their defaults; sizes have none and stand as 1.
PROBLEM_DEFAULTS = _C.Problem(OPS[0], 1, 1, 1).as_dict()
#: How many groups there are and where their rows lie: sizes, too, because a kernel serves all of them.
GROUP_FIELDS = tuple(name for name, field in PROBLEM_FIELDS.items() if field.role == "group")
#: What a kernel is compiled for besides its config and compiled dims.
KERNEL_FIELDS = tuple(name for name, field in PROBLEM_FIELDS.items() if field.role == "variant")
#: What decides which kernels and configs there are for a problem besides its sizes; batch_invariant only limits the
#: choice of a config.
VARIANT_FIELDS = (*KERNEL_FIELDS, "batch_invariant")
#: Masked problems of at most this many groups are scored apart, see has_few_groups.
FEW_GROUPS = 4
#: What a kernel for a problem is compiled for besides its config: equal for all problems that the kernel serves.
kernel_identity = _C.kernel_identity
#: The rows of A that one matrix of B meets on average, as far as the host knows: all of them but for groups of rows.
get_group_rows = _C.rows_per_group


def to_problem(row: Mapping) -> _C.Problem:
    """Return the problem whose fields `row` has, among others.

    Raises: ProblemError; TypeError for a value of another type.
    """
    fields: dict[str, Any] = {
        name: bool(row[name]) if isinstance(default, bool) else row[name] for name, default in PROBLEM_DEFAULTS.items()
    }
    return _C.Problem(**fields)


def to_config(row: Mapping) -> _C.Config:
    """Return the config whose fields `row` has, among others.

    Raises: ConfigError; TypeError for a value of another type.
    """
    return _C.Config(**{name: row[name] for name in CONFIG_FIELDS})


def problem_row(problem: _C.Problem) -> dict:
    """Return the fields of a problem as columns store them: truth values as 0 and 1."""
    return {name: int(value) if isinstance(value, bool) else value for name, value in problem.as_dict().items()}


def replace_problem(problem: _C.Problem, **changes: object) -> _C.Problem:
    """Return a problem that differs from `problem` in `changes`."""
    return _C.Problem(**(problem.as_dict() | changes))


def is_fp8(op: str) -> bool:
    """Return whether an op kind multiplies FP8 operands with scales."""
    return OP_KINDS[op].is_fp8


def legal_words(op: str, name: str) -> tuple[str, ...]:
    """Return the words that problems of an op kind may have in a field of words."""
    return getattr(OP_KINDS[op], f"{name}s")


def default_fields(op: str) -> dict:
    """Return the fields of an op kind whose default is not legal, each with its first legal word; of logits also FP32,
    which their functions give where the caller says nothing.
    """
    legal = {name: legal_words(op, name) for name in KERNEL_FIELDS if PROBLEM_FIELDS[name].words}
    own = {"d_dtype": "fp32"} if OP_KINDS[op].is_logits else {}
    return {name: words[0] for name, words in legal.items() if PROBLEM_DEFAULTS[name] not in words} | own


def describe_option(name: str) -> str:
    """Return the help text of an option for a field of words that an op kind or a function's name may decide."""
    field = PROBLEM_FIELDS[name]
    return f"{field.meaning} Default: {field.default}, unless the op kind or the function's name says otherwise."


@cache
def get_functions() -> dict:
    """Return the public functions that have an op kind, under all of their names."""
    from deep_gemm import ops  # imports torch, which help texts must not wait for

    return {name: row for row in ops.OPS if row.kind for name in (row.name, *row.other_names)}


def read_op_name(name: str) -> tuple[str, dict]:
    """Return (op kind, fields that the name gives) for an op kind, or for a public function with contiguous operands.

    Raises: KeyError where it is neither.
    """
    if name in OPS:
        return name, {}
    row = get_functions()[name]
    if row.docs_template == "heads":
        return row.kind, {"c_mode": "head_split"}
    if row.is_fp8:  # kernels read FP8 along K, whatever the function takes
        return row.kind, {"group_layout": "blocks"} if row.is_blocks else {}
    return row.kind, dict(zip(("a_major", "b_major"), MAJORS[row.layout], strict=True))


def has_few_groups(problem: _C.Problem) -> bool:
    """Return whether the time of a masked problem hangs on how its few groups share the rows."""
    return OP_KINDS[problem.op].has_room and problem.num_groups <= FEW_GROUPS


def get_weight_shape(problem: _C.Problem) -> tuple[int, int]:
    """Return the two sizes that a model fixes: n and k, or of groups of K m and n, whose product D is the gradient of
    such a weight. Attention logits have no weight: their heads take its place.
    """
    if OP_KINDS[problem.op].is_logits:
        return problem.heads, problem.k
    return (problem.m, problem.n) if OP_KINDS[problem.op].k_is_divided else (problem.n, problem.k)


def get_tokens(problem: _C.Problem) -> int:
    """Return the size that grows with the tokens of a call, of one group where there are groups: rows of A, or K."""
    is_k = OP_KINDS[problem.op].k_is_divided
    return -(-problem.k // problem.num_groups) if is_k else get_group_rows(problem)


def get_work(problem: _C.Problem) -> int:
    """Return the multiplications of a problem, groups whose rows are expected at these."""
    kind = OP_KINDS[problem.op]
    has_few = kind.has_room or _C.find_masked_twin(problem) is not None
    products = problem.num_groups if has_few or kind.is_batched or kind.is_summed else 1
    rows = get_group_rows(problem) if has_few else problem.m
    return products * rows * max(problem.heads, 1) * problem.n * problem.k


def variant_of(problem: _C.Problem) -> tuple:
    """Return the variant of a problem as values in the order of VARIANT_FIELDS."""
    return tuple(getattr(problem, name) for name in VARIANT_FIELDS)


def describe_variant(fields: Mapping, names: tuple = VARIANT_FIELDS) -> str:
    """Return what is unusual about a problem's fields, e.g. "recipe=1d1d d_dtype=fp32"; "" where all are at their
    default.
    """
    return " ".join(f"{name}={fields[name]}" for name in names if fields[name] != PROBLEM_DEFAULTS[name])


def describe_groups(fields: Mapping) -> str:
    """Return the groups of a problem's fields, e.g. "num_groups=32 expected_m=20"; "" for a dense one."""
    return describe_variant(fields, GROUP_FIELDS)


def kernel_variant(fields: Mapping) -> str:
    """Return what a kernel is compiled for besides its config, as describe_variant does."""
    return describe_variant(fields, KERNEL_FIELDS)
