"""Problems and configs as plain fields: the one way from rows, jobs and files to objects of the library, and back.

The fields are those of the library itself, so that a new one needs a column (see tuner.db.tables) and nothing else here.
"""

from collections.abc import Mapping

from deep_gemm import _C

OPS = ("fp8_gemm", "bf16_gemm")
PROBLEM_DEFAULTS = _C.Problem(OPS[0], 1, 1, 1).as_dict()
PROBLEM_FIELDS = tuple(PROBLEM_DEFAULTS)
CONFIG_FIELDS = tuple(_C.Config(64, 64, 2).as_dict())
#: What a problem asks for besides its sizes: these decide which kernels and configs there are for it.
VARIANT_FIELDS = tuple(name for name in PROBLEM_FIELDS if name not in ("op", "m", "n", "k", "num_sms", "compiled_dims"))
#: Of these, what a kernel is compiled for; batch_invariant only limits the choice of a config.
KERNEL_FIELDS = tuple(name for name in VARIANT_FIELDS if name != "batch_invariant")


def to_problem(row: Mapping) -> _C.Problem:
    """Return the problem whose fields `row` has, among others. Raises: ProblemError; TypeError for a value of another type."""
    return _C.Problem(**{name: bool(row[name]) if isinstance(default, bool) else row[name] for name, default in PROBLEM_DEFAULTS.items()})


def to_config(row: Mapping) -> _C.Config:
    """Return the config whose fields `row` has, among others. Raises: ConfigError; TypeError for a value of another type."""
    return _C.Config(**{name: row[name] for name in CONFIG_FIELDS})


def problem_row(problem: _C.Problem) -> dict:
    """Return the fields of a problem as columns store them: truth values as 0 and 1."""
    return {name: int(value) if isinstance(value, bool) else value for name, value in problem.as_dict().items()}


def replace_problem(problem: _C.Problem, **changes: object) -> _C.Problem:
    """Return a problem that differs from `problem` in `changes`."""
    return _C.Problem(**(problem.as_dict() | changes))


def kernel_problem(problem: _C.Problem) -> _C.Problem:
    """Return what a kernel for `problem` is compiled for besides its config: equal for all problems that it serves."""
    sizes = {name: getattr(problem, name) if name in problem.compiled_dims else 1 for name in "mnk"}
    return replace_problem(problem, **sizes, num_sms=0, batch_invariant=False)


def variant_of(problem: _C.Problem) -> tuple:
    """Return the variant of a problem as values in the order of VARIANT_FIELDS."""
    return tuple(getattr(problem, name) for name in VARIANT_FIELDS)


def describe_variant(fields: Mapping, names: tuple = VARIANT_FIELDS) -> str:
    """Return what is unusual about a problem's fields, e.g. "recipe=1d1d d_dtype=fp32"; "" where all are at their default."""
    return " ".join(f"{name}={fields[name]}" for name in names if fields[name] != PROBLEM_DEFAULTS[name])


def kernel_variant(fields: Mapping) -> str:
    """Return what a kernel is compiled for besides its config, as describe_variant does."""
    return describe_variant(fields, KERNEL_FIELDS)
