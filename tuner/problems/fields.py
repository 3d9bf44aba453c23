"""Problems and configs as plain fields: the one way from rows, jobs and files to objects of the library, and back.

The fields are those of the library itself, so that a new one needs a column (see tuner.db.tables) and nothing else
here.
"""

import re
from collections.abc import Mapping

import deep_gemm
from deep_gemm import _C

DENSE_OPS = ("fp8_gemm", "bf16_gemm")
OPS = (
    *DENSE_OPS,
    "m_grouped_fp8_gemm_contiguous",
    "m_grouped_bf16_gemm_contiguous",
    "m_grouped_fp8_gemm_masked",
    "m_grouped_bf16_gemm_masked",
    "k_grouped_fp8_gemm_contiguous",
    "k_grouped_bf16_gemm_contiguous",
)
#: As help texts list them.
OP_NAMES = ", ".join(OPS)
#: What the groups of an op divide: nothing, the rows of A (packed, or each group with room for m), or K.
DENSE, CONTIGUOUS, MASKED, K_GROUPED = "dense", "contiguous", "masked", "k_grouped"
#: How the name of a public function says whether A and B are transposed; an op kind's name leaves it out.
FUNCTION_LAYOUT = re.compile(r"_([nt])([nt])(?=_|$)")
#: Older names begin with the type, as in fp8_m_grouped_gemm_nt_masked.
FUNCTION_ALIAS = re.compile(r"^(fp8|bf16)_m_grouped_")
HEAD_SPLIT_SUFFIX = "_skip_head_mid"
PROBLEM_DEFAULTS = _C.Problem(OPS[0], 1, 1, 1).as_dict()
PROBLEM_FIELDS = tuple(PROBLEM_DEFAULTS)
CONFIG_FIELDS = tuple(_C.Config(64, 64, 2).as_dict())
#: What each field of a problem means, as help texts say it.
MEANINGS = {
    "m": "Rows of A and D; for masked groups, the rows that each group has room for.",
    "n": "Rows of B, columns of D.",
    "k": "Columns of A and B; for groups of K, those of all groups together.",
    "num_sms": "SMs that the kernel may use; 0: all.",
    "num_groups": "Number of groups of a grouped op.",
    "expected_m": "Rows that a masked group holds on average; 0: unknown.",
    "alignment": "The rows of each contiguous group start at a multiple of this.",
    "recipe": "Scales of FP8 operands: 1d2d, 1d1d or per_row.",
    "d_dtype": "Data type of D: bf16 or fp32.",
    "c_mode": "What is added to the product: none, accumulate (C is D), general (any C, alpha, beta), or head_split.",
    "a_major": "Contiguous dimension of A (BF16 ops): k or mn.",
    "b_major": "Contiguous dimension of B (BF16 ops): k or mn.",
    "scale_layout": "Layout of the scale vectors of FP8 operands: mn_major (aligned for TMA) or any.",
    "group_layout": "Operands of k_grouped_fp8_gemm_contiguous: joint, or blocks (one block of memory per group).",
    "batch_invariant": "Choose only configs whose results do not depend on m.",
}
#: How many groups there are and where their rows lie: sizes, too, because a kernel serves all of them.
GROUP_FIELDS = ("num_groups", "expected_m", "alignment")
#: What a problem asks for besides its sizes: these decide which kernels and configs there are for it.
VARIANT_FIELDS = tuple(
    name for name in PROBLEM_FIELDS if name not in ("op", "m", "n", "k", "num_sms", "compiled_dims", *GROUP_FIELDS)
)
#: Of these, what a kernel is compiled for; batch_invariant only limits the choice of a config.
KERNEL_FIELDS = tuple(name for name in VARIANT_FIELDS if name != "batch_invariant")
#: The alignment that stands for all in a kernel's identity (kAnyTileAlignment of the native module): every token side
#: divides it.
ANY_ALIGNMENT = 15360


def to_problem(row: Mapping) -> _C.Problem:
    """Return the problem whose fields `row` has, among others.

    Raises: ProblemError; TypeError for a value of another type.
    """
    return _C.Problem(
        **{
            name: bool(row[name]) if isinstance(default, bool) else row[name]
            for name, default in PROBLEM_DEFAULTS.items()
        }
    )


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


def grouping_of(op: str) -> str:
    """Return what the groups of an op kind divide."""
    if op in DENSE_OPS:
        return DENSE
    return K_GROUPED if op.startswith("k_grouped") else MASKED if op.endswith("masked") else CONTIGUOUS


def is_fp8(op: str) -> bool:
    """Return whether an op kind multiplies FP8 operands with scales."""
    return "fp8" in op


def default_fields(op: str) -> dict:
    """Return the fields of an op kind whose only legal value is not the default of all kinds."""
    if grouping_of(op) != K_GROUPED:
        return {}
    return {"d_dtype": "fp32"} | ({"recipe": "1d1d"} if is_fp8(op) else {"a_major": "mn", "b_major": "mn"})


def read_op_name(name: str) -> tuple[str, dict]:
    """Return (op kind, fields that the name gives) for an op kind, or for a public function with contiguous operands.

    Raises: KeyError where it is neither.
    """
    if name in OPS:
        return name, {}
    layout = FUNCTION_LAYOUT.search(name)
    op = FUNCTION_ALIAS.sub(r"m_grouped_\1_", FUNCTION_LAYOUT.sub("", name).removesuffix(HEAD_SPLIT_SUFFIX))
    if name not in deep_gemm.__all__ or layout is None or op not in OPS:
        raise KeyError(name)
    if name.endswith(HEAD_SPLIT_SUFFIX):
        return op, {"c_mode": "head_split"}
    if is_fp8(op):  # kernels read FP8 along K, whatever the function takes
        return op, {"group_layout": "blocks"} if grouping_of(op) == K_GROUPED and layout[0] == "_nt" else {}
    return op, {"a_major": "mn" if layout[1] == "t" else "k", "b_major": "mn" if layout[2] == "n" else "k"}


def kernel_problem(problem: _C.Problem) -> _C.Problem:
    """Return what a kernel for `problem` is compiled for besides its config: equal for all problems that it serves."""
    sizes = {name: getattr(problem, name) if name in problem.compiled_dims else 1 for name in "mnk"}
    alignment = ANY_ALIGNMENT if grouping_of(problem.op) == CONTIGUOUS else problem.alignment
    groups = {"num_groups": min(problem.num_groups, 1), "expected_m": 0, "alignment": alignment}
    return replace_problem(problem, **sizes, **groups, num_sms=0, batch_invariant=False)


def get_group_rows(problem: _C.Problem) -> int:
    """Return the rows of A that one matrix of B meets on average, as far as the host knows: all of them but for groups
    of rows.
    """
    grouping = grouping_of(problem.op)
    if grouping == MASKED:
        return problem.expected_m or problem.m
    return -(-problem.m // problem.num_groups) if grouping == CONTIGUOUS else problem.m


def get_weight_shape(problem: _C.Problem) -> tuple[int, int]:
    """Return the two sizes that a model fixes: n and k, or of groups of K m and n, whose product D is the gradient of
    such a weight.
    """
    return (problem.m, problem.n) if grouping_of(problem.op) == K_GROUPED else (problem.n, problem.k)


def get_tokens(problem: _C.Problem) -> int:
    """Return the size that grows with the tokens of a call, of one group where there are groups: rows of A, or K."""
    return -(-problem.k // problem.num_groups) if grouping_of(problem.op) == K_GROUPED else get_group_rows(problem)


def get_work(problem: _C.Problem) -> int:
    """Return the multiplications of a problem, masked groups at the rows expected."""
    rows = problem.num_groups * get_group_rows(problem) if grouping_of(problem.op) == MASKED else problem.m
    return rows * problem.n * problem.k


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
