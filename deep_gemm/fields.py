"""The native descriptions of problems, configs and op kinds, by name.

A field is described once, in the native module: name, type, default, range or words, meaning and role. Everything that
lists fields reads these descriptions. The op kind of a problem is no field.
"""

from deep_gemm import _C

#: In the order of `Problem.as_dict()`.
PROBLEM_FIELDS = {field.name: field for field in _C.PROBLEM_FIELDS}
#: In the order of `Config.as_dict()`.
CONFIG_FIELDS = {field.name: field for field in _C.CONFIG_FIELDS}
OP_KINDS = {kind.name: kind for kind in _C.OP_KINDS}
#: The largest size of a problem.
MAX_DIM = PROBLEM_FIELDS["m"].maximum


def round_sizes(problem: "_C.Problem") -> dict[str, int]:
    """Return the sizes that calls of a problem have rounded, so that choices are few: those of attention logits."""
    kind = OP_KINDS[problem.op]
    if not kind.is_logits:
        return {}
    names = ("n",) if kind.is_paged else ("m", "n")
    return {name: _C.round_expected_m(getattr(problem, name), MAX_DIM) for name in names}


def replace(problem: "_C.Problem", **changes) -> "_C.Problem":
    """Return the problem with other fields, of calls with signals as it is. Raises: ProblemError."""
    other = _C.Problem(**problem.as_dict() | changes)
    return other.with_signals() if problem.has_signals else other


def fit_rows(problem: "_C.Problem", rows: int) -> dict[str, int]:
    """Return the fields of a problem like this one with `rows` rows: m, or expected_m where each group has room for m
    rows, or fills a part of its alignment; none where K is divided among groups. Paged logits have whole sequences of
    next_n rows, the last one rounded up.
    """
    kind = OP_KINDS[problem.op]
    if kind.k_is_divided:
        return {}
    if kind.is_paged:
        return {"m": -(-rows // problem.next_n) * problem.next_n}
    if kind.has_room or _C.find_masked_twin(problem):
        return {"expected_m": _C.hold_expected_m(problem, rows)}
    return {"m": rows}
