"""The problems of a sweep: presets, shape files, shards, and which public model a shape comes from.

A preset is `tuner/presets/<name>.json`. Either it includes other presets, or it has groups of shapes:
    {"name": str, "description": str, "includes": [names of presets]}
    {"name": str, "description": str, "groups": [
        {"model": str, "op": str, "fields": {...}, "layouts": ["nt", ...], "m": [int],
         "shapes": [{"name": str, "n": int, "k": int, "m": [int]}]}]}
A shape's own "m" replaces its group's. These may be left out: "op" (default fp8_gemm), "fields" (other fields of the
problems) and "layouts" (of BF16 ops, default nt).

Grouped ops have "sizes" instead of "m": a list of {"num_groups": int, "mean_m": [int]}. Groups of K have "mean_k"
instead, and shapes {"name": str, "m": int, "n": int}. A shape's own "sizes" replace its group's. Each mean gives
    contiguous   m = num_groups * mean_m, rounded up to the alignment
    masked       m = "max_m" of the group (default 4096); expected_m = _C.round_expected_m(mean_m, m)
    with ends    as contiguous, but with a mean below the alignment room for the largest of `spread` groups in each;
                 expected_m = mean_m
    groups of K  k = num_groups * mean_k
    batched and summed products  m = mean_m, of each

A user's shape file may have this form, too. It may also hold {"problems": [{"m": int, "n": int, "k": int, ...}]} with
any other field of a problem, or lines of JSON with one problem each, as DG_RECORD_SHAPES writes them. Recorded calls
without configs to measure (deep_gemm/recorded_calls.py) and the signals of problems are for `warmup` alone.
"""

import json
import math
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError, ProblemError
from deep_gemm.fields import OP_KINDS, PROBLEM_FIELDS
from deep_gemm.identity import take_signals
from deep_gemm.recorded_calls import Call, is_call, parse_call
from tuner import errors
from tuner.problems.fields import MAJORS, OPS, get_weight_shape, get_work, read_op_name

PRESET_DIR = Path(__file__).parents[1] / "presets"
#: The model of a shape that is in no preset.
OTHER_MODEL = "other"
#: That of weights drawn at random.
DRAWN_MODEL = "drawn"
#: The fields that every problem of a shape file has.
SIZES = ("m", "n", "k")
REMEDY = (
    'a shape file has lines such as {"op": "fp8_gemm", "m": 64, "n": 2112, "k": 7168}, or is as'
    " docs/tune-your-model.md says"
)
#: Rows that each masked group has room for, unless a preset says otherwise.
MAX_M = 4096


def preset_names() -> list[str]:
    """Return the names of the presets that come with the package."""
    return sorted(path.stem for path in PRESET_DIR.glob("*.json"))


def load_preset(name: str) -> list:
    """Return the problems of a preset, in its order. Raises: UsageError for an unknown name."""
    if name not in preset_names():
        raise errors.UsageError(f"--preset {name}: unknown; use one of {', '.join(preset_names())}")
    return list(dict.fromkeys(problem for document in read_preset(name) for problem in expand(document)))


def read_preset(name: str) -> list[dict]:
    """Return the documents of a preset that have groups: its own, or those of the presets that it includes."""
    document = json.loads((PRESET_DIR / f"{name}.json").read_text(encoding="utf-8"))
    return (
        [part for included in document["includes"] for part in read_preset(included)]
        if "includes" in document
        else [document]
    )


def load_file(path: Path, flag: str = "--shapes") -> list:
    """Return the problems of a shape file without repeats and without signals, which change no choice of a config.

    Raises: UsageError naming the option or argument that the file came by, the file and the fault.
    """
    problems = drop_signals(load_given(path, flag)[0])
    if not problems:
        raise errors.UsageError(f"{flag} {path}: it holds no problem with configs; {REMEDY}")
    return problems


def drop_signals(problems: list) -> list:
    """Return the problems of calls without signals, each once."""
    return list(dict.fromkeys(_C.Problem(**problem.as_dict()) for problem in problems))


def load_given(path: Path, flag: str) -> tuple[list, list[Call]]:
    """Return the problems of a shape file, and its calls that are none, without repeats. Raises: as load_file."""
    try:
        text = path.read_text(encoding="utf-8")
        document = parse_document(text)
        found = expand(document), list_calls(document)
        if not any(found):
            raise ValueError("it holds no problem")
        return found
    except (OSError, UnicodeDecodeError) as error:
        raise errors.UsageError(
            f"{flag} {path}: cannot be read ({getattr(error, 'strerror', None) or error}); name a shape file"
        ) from error
    except json.JSONDecodeError as error:
        raise errors.UsageError(f"{flag} {path}: not JSON ({error}); {REMEDY}") from error
    except (ValueError, DeepGemmError) as error:
        raise errors.UsageError(f"{flag} {path}: {error}; {REMEDY}") from error
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise errors.UsageError(
            f"{flag} {path}: not a shape file ({type(error).__name__}: {error}); {REMEDY}"
        ) from error


def parse_document(text: str) -> dict:
    """Return the document of a shape file; lines of JSON, or a single one, become its list of problems."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        return {"problems": [json.loads(line) for line in text.splitlines() if line.strip()]}
    return (
        {"problems": [document]}
        if isinstance(document, dict) and ("fields" in document or "m" in document)
        else document
    )


def expand(document: dict | list) -> list:
    """Return the problems of a preset's or shape file's document, in order, without repeats."""
    problems = [
        make_problem(row, f"problem {number}") for number, row in enumerate(list_rows(document), 1) if not is_call(row)
    ]
    for group in document.get("groups", []) if isinstance(document, dict) else []:
        problems += expand_group(group)
    return list(dict.fromkeys(problems))


def list_rows(document: dict | list) -> list:
    """Return the objects of single problems and calls in a document."""
    return document if isinstance(document, list) else document.get("problems", [])


def list_calls(document: dict | list) -> list[Call]:
    """Return the calls in a document that are no problems, without repeats. Raises: ProblemError."""
    return list(dict.fromkeys(call for row in list_rows(document) if (call := parse_call(row))))


def expand_group(group: dict) -> list:
    """Return the problems of one group: layout by layout, shape by shape."""
    op, fields = group.get("op", OPS[0]), group.get("fields", {})
    problems = []
    for layout in group.get("layouts", ["nt"]):
        majors: dict[str, Any] = dict(zip(("a_major", "b_major"), MAJORS[layout])) if layout != "nt" else {}
        for shape in group["shapes"]:
            sizes = (
                make_sizes(op, group, shape)
                if OP_KINDS[op].is_grouped
                else [{"m": m} for m in shape.get("m", group.get("m", []))]
            )
            if not sizes:
                name = "sizes" if OP_KINDS[op].is_grouped else "m"
                raise ProblemError(f"shape {shape} of {op}: has no {name}, nor has its group; give it")
            fixed = {name: shape[name] for name in (("m", "n") if OP_KINDS[op].k_is_divided else ("n", "k"))}
            problems += [_C.Problem(op, **fixed, **size, **fields, **majors) for size in sizes]
    return problems


def make_sizes(op: str, group: dict, shape: dict) -> list[dict]:
    """Return the fields of problems that the "sizes" of one grouped shape give, see the head of this file."""
    alignment = group.get("fields", {}).get("alignment", PROBLEM_FIELDS["alignment"].default)
    mean_name = "mean_k" if OP_KINDS[op].k_is_divided else "mean_m"
    found = []
    for entry in shape.get("sizes", group.get("sizes", [])):
        for mean in entry[mean_name]:
            found.append(size_groups(OP_KINDS[op], entry["num_groups"], mean, alignment, group.get("max_m", MAX_M)))
    return found


def size_groups(kind, num_groups: int, mean: int, alignment: int, room: int) -> dict:
    """Return the fields of a problem of so many groups of a mean size; masked ones have `room` rows each."""
    from deep_gemm.numerics import SPREAD  # imports torch, for which no help text may wait
    from deep_gemm.quantize import align

    sizes = {"num_groups": num_groups}
    if kind.k_is_divided:
        return sizes | {"k": num_groups * mean}
    if kind.has_room:
        return sizes | {"m": room, "expected_m": _C.round_expected_m(mean, room)}
    if not kind.m_is_shared:
        return sizes | {"m": mean}
    total = {"m": align(num_groups * mean, alignment)}
    if not kind.has_ends:
        return sizes | total
    if mean < alignment:  # each group begins at a multiple of the alignment, however few rows it has
        total = {"m": num_groups * align(math.ceil(mean * (1 + SPREAD)), alignment)}
    return sizes | total | {"expected_m": mean}


def make_problem(row: dict, place: str):
    """Return the problem of one {"m", "n", "k", ...} object. Raises: ValueError with its place, or DeepGemmError."""
    if not isinstance(row, dict):
        raise ValueError(f"{place} is {json.dumps(row)[:60]}: must be an object")
    row = dict(row)
    has_signals, fields = take_signals(row), dict(row.get("fields", row))
    op = fields.pop("op", row.get("op", OPS[0]))
    if op not in OP_KINDS:
        raise ValueError(f"{place}: op = {op!r} is no op kind; use {suggest_op(op)}")
    if unknown := sorted(fields.keys() - PROBLEM_FIELDS.keys()):
        raise ValueError(
            f"{place}: unknown field {', '.join(unknown)}; those of a problem are {', '.join(PROBLEM_FIELDS)}"
        )
    if missing := [name for name in SIZES if name not in fields]:
        raise ValueError(f"{place}: lacks {', '.join(missing)}")
    try:
        problem = _C.Problem(op, *(fields.pop(name) for name in SIZES), **fields)
        return problem.with_signals() if has_signals else problem
    except DeepGemmError as error:
        raise ValueError(f"{place}: {error}") from error


def suggest_op(name: object) -> str:
    """Return what may stand in the place of a name that is no op kind: where it is a function's, its op kind."""
    try:
        return read_op_name(name)[0] if isinstance(name, str) else ", ".join(OPS)
    except KeyError:
        return f"one of {', '.join(OPS)}"


def parse_shard(text: str) -> tuple[int, int]:
    """Return (i, n) of "i/n", 0 <= i < n. Raises: UsageError."""
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    index, count = (int(part) for part in match.groups()) if match else (0, 0)
    if not index < count:
        raise errors.UsageError(f"--shard {text}: must be i/n with 0 <= i < n, such as 0/4")
    return index, count


def take_shard(problems: list, index: int, count: int) -> list:
    """Return shard `index` of `count`, in the given order; every shard gets its share of small and large problems."""
    by_work = sorted(problems, key=lambda problem: (get_work(problem), problem.key))
    mine = set(by_work[index::count])
    return [problem for problem in problems if problem in mine]


@cache
def model_of_shape(is_grouped: bool = False) -> dict[tuple[int, int], str]:
    """Return {shape of a weight (see fields.get_weight_shape): public model} over all presets.

    A shape that several models have belongs to the first. Grouped shapes come first if `is_grouped`, else dense ones.
    """
    groups = [
        group
        for name in sorted(preset_names(), key=lambda name: (name != "default", name))
        for document in read_preset(name)
        for group in document["groups"]
    ]
    found: dict[tuple[int, int], str] = {}
    for group in sorted(groups, key=lambda group: OP_KINDS[group.get("op", OPS[0])].is_grouped != is_grouped):
        if group["model"] != OTHER_MODEL:
            for shape in group["shapes"]:
                found.setdefault((shape["n"], shape["k"]) if "k" in shape else (shape["m"], shape["n"]), group["model"])
    return found


def list_public(models: Iterable[str]) -> list[str]:
    """Return which of the models are public ones, sorted, each once."""
    return sorted(set(models) - {OTHER_MODEL, DRAWN_MODEL})


def model_names(problems: list) -> list[str]:
    """Return for each problem the public model that has such a weight, OTHER_MODEL where no preset has it, DRAWN_MODEL
    where only one of drawn weights does.
    """
    known = {is_grouped: model_of_shape(is_grouped) for is_grouped in (False, True)}
    return [known[OP_KINDS[problem.op].is_grouped].get(get_weight_shape(problem), OTHER_MODEL) for problem in problems]
