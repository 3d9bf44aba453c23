"""The problems of a sweep: presets, shape files, shards, and which public model a shape comes from.

A preset is `tuner/presets/<name>.json`, either {"name": str, "description": str, "includes": [names of presets]} or
    {"name": str, "description": str, "groups": [{"model": str, "op": str, "fields": {...}, "layouts": ["nt", ...], "m": [int],
                                                  "shapes": [{"name": str, "n": int, "k": int, "m": [int]}]}]}
A shape's own "m" replaces its group's. "op" (default fp8_gemm), "fields" (further fields of the problems) and "layouts" (of bf16_gemm,
default nt) may be left out. A user's shape file may instead hold {"problems": [{"m": int, "n": int, "k": int, ...}]}, with any further
field of a problem, or be JSON lines of problems, as DG_RECORD_SHAPES writes them.
"""

import json
import re
from functools import cache
from pathlib import Path

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from tuner import errors
from tuner.fields import OPS

PRESET_DIR = Path(__file__).parent / "presets"
#: Memory layout of A, then B, as the ops' names have it -> the contiguous dimension of each.
MAJORS = {"nt": ("k", "k"), "nn": ("k", "mn"), "tn": ("mn", "mn"), "tt": ("mn", "k")}
#: What a shape of no preset belongs to.
OTHER_MODEL = "other"


def preset_names() -> list[str]:
    """Return the names of the presets that come with the package."""
    return sorted(path.stem for path in PRESET_DIR.glob("*.json"))


def load_preset(name: str) -> list:
    """Return the problems of a preset, in its order. Raises: UsageError for an unknown name."""
    if name not in preset_names():
        raise errors.UsageError(f"--preset {name}: unknown; use one of {', '.join(preset_names())}")
    return list(dict.fromkeys(problem for document in read_preset(name) for problem in expand(document)))


def read_preset(name: str) -> list[dict]:
    """Return the documents with the groups of a preset: its own, or those of the presets that it includes."""
    document = json.loads((PRESET_DIR / f"{name}.json").read_text(encoding="utf-8"))
    return [part for included in document["includes"] for part in read_preset(included)] if "includes" in document else [document]


def load_file(path: Path) -> list:
    """Return the problems of a shape file without repeats. Raises: UsageError naming the file and the fault."""
    try:
        text = path.read_text(encoding="utf-8")
        return expand(parse_document(text))
    except (OSError, UnicodeDecodeError) as error:
        raise errors.UsageError(f"--shapes {path}: cannot be read ({error})") from error
    except (ValueError, TypeError, KeyError, AttributeError, DeepGemmError) as error:
        raise errors.UsageError(f"--shapes {path}: not a shape file ({type(error).__name__}: {error}); see tuner/shapes.py for the format") from error


def parse_document(text: str) -> dict:
    """Return the document of a shape file; JSON lines, also a single one, become its list of problems."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        return {"problems": [json.loads(line) for line in text.splitlines() if line.strip()]}
    return {"problems": [document]} if isinstance(document, dict) and ("fields" in document or "m" in document) else document


def expand(document: dict | list) -> list:
    """Return the problems of a preset's or shape file's document, in order, without repeats."""
    rows = document if isinstance(document, list) else document.get("problems", [])
    problems = [make_problem(row) for row in rows]
    for group in document.get("groups", []) if isinstance(document, dict) else []:
        problems += expand_group(group)
    if not problems:
        raise ValueError("it holds no problem")
    return list(dict.fromkeys(problems))


def expand_group(group: dict) -> list:
    """Return the problems of one group: layout by layout, shape by shape."""
    op, fields = group.get("op", OPS[0]), group.get("fields", {})
    problems = []
    for layout in group.get("layouts", ["nt"]):
        majors = {"a_major": MAJORS[layout][0], "b_major": MAJORS[layout][1]} if layout != "nt" else {}
        for shape in group["shapes"]:
            problems += [_C.Problem(op, m, shape["n"], shape["k"], **fields, **majors) for m in shape.get("m", group.get("m", []))]
    return problems


def make_problem(row: dict):
    """Return the problem of one {"m", "n", "k", ...} object."""
    fields = dict(row.get("fields", row))
    return _C.Problem(fields.pop("op", row.get("op", OPS[0])), fields.pop("m"), fields.pop("n"), fields.pop("k"), **fields)


def parse_shard(text: str) -> tuple[int, int]:
    """Return (i, n) of "i/n", 0 <= i < n. Raises: UsageError."""
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    index, count = (int(part) for part in match.groups()) if match else (0, 0)
    if not index < count:
        raise errors.UsageError(f"--shard {text}: must be i/n with 0 <= i < n, such as 0/4")
    return index, count


def take_shard(problems: list, index: int, count: int) -> list:
    """Return shard `index` of `count`, in the given order; shards hold equally many problems of every size of work."""
    by_work = sorted(problems, key=lambda problem: (problem.m * problem.n * problem.k, problem.key))
    mine = set(by_work[index::count])
    return [problem for problem in problems if problem in mine]


@cache
def model_of_shape() -> dict[tuple[int, int], str]:
    """Return {(n, k): the public model it was taken from} over all presets; a shape of several models is the first one's."""
    found: dict[tuple[int, int], str] = {}
    for name in sorted(preset_names(), key=lambda name: (name != "default", name)):
        for group in (group for document in read_preset(name) for group in document["groups"]):
            for shape in group["shapes"]:
                found.setdefault((shape["n"], shape["k"]), group["model"])
    return found


def model_names(problems: list) -> list[str]:
    """Return for each problem the public model that its n and k come from, OTHER_MODEL where no preset has them."""
    known = model_of_shape()
    return [known.get((problem.n, problem.k), OTHER_MODEL) for problem in problems]
