"""Which kernels have the same machine code as before a change: what was measured of them stays true.

Example: python -m benchmarks.same_code 08329c4e --every 20        (writes same_code.json beside this file)

Any change of a header gives every kernel that includes it another hash, also one that the compiler does not see. This
compiles canonical kernels of each op kind whose hash changed, and those of two tiles, with the headers of an older set,
named as `python -m tuner ab` names it, and with the tree's, and compares the machine code (.text) byte by byte. Kernels
that take the same branches, as far as `name_family` knows them, are a family; of each family one in `--every` is drawn,
at least one. The layouts of A and B and what is done with C are counted apart, since a change may concern one of them
alone.

Result: {"changes": [{"op", "before", "now": kernel hashes, "compiler", "of": canonical kernels, "families", "kernels":
{layouts as "a_major b_major", with C as "a_major b_major c_mode", all that the op kind has: compared; older changes
count kernels with C under the layouts alone}, "differ": {layouts: kernels with other code}, "added": those that the
older generator does not write, which are not compared,
"neither": that compile with neither headers (one is there for its text and need not be legal), "gone": {layouts: how
many of those before the tree's generator writes differently}, "grids": [before, now]: the revisions of grids, where
they differ}]}. It is written after each op kind; a new comparison of
the same two hashes takes the place of the older one, others stay. The release check (stale.py) takes a record as
current where kernels of each layout in it were compared, and all have the same code. Code alone says it, because no
kernel reads tables of its own (tests/cpu/jit/test_sass_tables.py). Where grids differ, a record must have no product of
few rows besides, for these alone have others (csrc/core/grid.hpp).

Exit codes: 0 all compared, 1 there is nothing to compare, flags or arguments of kernels changed, or kernels did not
compile, 2 wrong arguments.
"""

import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from pathlib import Path

from joblib import Parallel, delayed

from deep_gemm import _C
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit import cubin, generator, hashing, nvrtc
from tuner import errors
from tuner.compare.comparison import ask_hashes
from tuner.compare.kernel_sets import Clone
from tuner.compare.revisions import make_set

from . import today
from .harness import Family
from .stamp import ROOT, read_json, write_json

PROOF = ROOT / "benchmarks" / "same_code.json"
SEED = 26
K_MAJOR = "k k"
#: Records whose rows do not say which layouts they are of: of products of K-major operands, of the host's part of a
#: call, in which kernels have none, and of a snapshot, which says it.
OF_K_MAJOR = ("batch_invariance.json", "choice_regret.json", "moe_layer.json", "pdl.json")
OF_HOST = ("host_ops.json", "host_time.json")
OF_SNAPSHOT = ("calibration.json", "evaluation.json", "fit_rates.json")
#: Records that hang on no grid: of the host's part, of compilers, of races within a CTA and of right results.
OF_NO_GRID = (*OF_HOST, "callers.json", "compile_time.json", "racecheck.json")
#: Most rows of a product of which the grid has changed: of one tile of tokens in the default space.
FEW_ROWS = 64
#: What is compared: the kernels of each op kind, and the choice between two tiles.
NAMES = sorted((*OP_KINDS, hashing.SECOND_TILE))
_ASK = """
import json, sys
from deep_gemm import _C
from deep_gemm.jit import generator, hashing, nvcc, nvrtc
rules = {"abi": _C.LAUNCH_ABI, "flags": [*nvcc.FLAGS, *(flag for _, flag in nvrtc.FLAGS)]}
sources = {}
for op in json.load(sys.stdin):
    if op == hashing.SECOND_TILE:
        sources[op] = [(source, ["k", "k", "none"]) for source in generator.second_tile_sources()]
        continue
    problems = [problem for problem, _ in generator.canonical_cases(op)]
    fields = [[problem.a_major, problem.b_major, problem.c_mode] for problem in problems]
    sources[op] = list(zip(generator.canonical_sources(op), fields))
get_revision = getattr(_C, "grid_revision", lambda op: 1)
grids = {op: get_revision(op) for op in sources if op != hashing.SECOND_TILE}
json.dump({"grids": grids, "rules": rules, "sources": sources}, sys.stdout)
"""


def name_layouts(problem) -> str:
    """Return the layouts of a problem's operands, and its mode of C, as the result names them."""
    return join_layouts(problem.a_major, problem.b_major, problem.c_mode)


def join_layouts(a_major: str, b_major: str, c_mode: str) -> str:
    """Return the name of these fields."""
    return " ".join([a_major, b_major, *([] if c_mode == "none" else [c_mode])])


def name_family(problem, config) -> tuple:
    """Return what kernels of a family share: fields that choose branches, and what tile and stages choose by it."""
    fields = problem.a_major, problem.b_major, problem.c_mode, problem.d_dtype, problem.compiled_dims
    more = problem.recipe, problem.scale_layout, problem.group_layout, config.cluster_m, config.cluster_n
    knobs = config.swap_ab, config.loop, config.scale_warp, config.tile_barrier, config.reduce_add
    if OP_KINDS[problem.op].is_logits:
        return (*fields, problem.k, problem.heads, problem.next_n, problem.block_kv, config.block_n)
    tile = _C.is_staged(problem, config), _C.is_pipelined(problem, config), _C.num_threads(problem, config)
    return (*fields, *more, *knobs, *tile, config.split_k > 1)


def draw(cases: list, every: int) -> list[int]:
    """Return the places of the cases that are compared: of each family one in so many, at least one."""
    families: dict[tuple, list[int]] = {}
    for place, case in enumerate(cases):
        families.setdefault(name_family(*case), []).append(place)
    source = random.Random(SEED)
    return sorted(place for some in families.values() for place in source.sample(some, max(1, len(some) // every)))


def ask(folder: Path, ops: Iterable[str]) -> dict:
    """Return {"sources": {op kind: (source, fields that name its layouts) of each canonical kernel}, "grids": the
    revision of the grids of each, "rules": what else all kernels hang on} by the package in a folder.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", _ASK],
        input=json.dumps(list(ops)),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def list_kernels(op: str) -> tuple[list[tuple], list[str]]:
    """Return (problem, config) and the source of each canonical kernel of an op kind, or of SECOND_TILE."""
    if op == hashing.SECOND_TILE:
        return [case[:2] for case in generator.second_tile_cases()], generator.second_tile_sources()
    return generator.canonical_cases(op), generator.canonical_sources(op)


def compile_code(source: str, include: Path) -> bytes | str:
    """Return the machine code of a kernel with the headers of a folder, or why it has none."""
    output = nvrtc.get_nvrtc().compile(source, hashing.get_included_headers(source, include))
    return f"{output.error}: {output.log[-500:]}" if output.error else cubin.read_code(output.image)


def is_same(source: str, old: Path) -> bool | str:
    """Return whether a kernel has the same machine code with the headers in `old` as with the tree's, or why it has
    none with either.
    """
    before, now = (compile_code(source, include) for include in (old, ROOT / "deep_gemm" / "include"))
    return now if isinstance(before, str) and isinstance(now, str) else before == now


def compare(op: str, sources: list[tuple[str, list[str]]], old: Path, every: int) -> dict:
    """Return what the result says of the kernels of an op kind, whose headers were those in `old`, and of which the
    older generator tells `sources` (ask). Raises: TunerError where more than one kernel compiles with neither headers.
    """
    cases, own = list_kernels(op)
    told = {source for source, _ in sources}
    old_cases = [place for place, source in enumerate(own) if source in told]  # no record is of the others
    some = [old_cases[place] for place in draw([cases[place] for place in old_cases], every)]
    found = Parallel(n_jobs=-1)(delayed(is_same)(own[place], old) for place in some)
    layouts = [name_layouts(cases[place][0]) for place in some]
    reasons = [one for one in found if isinstance(one, str)]
    if len(reasons) > 1:
        raise errors.TunerError(f"{op}: {len(reasons)} of {len(some)} kernels do not compile: {reasons[0]}")
    known = [(layout, same) for layout, same in zip(layouts, found, strict=True) if not isinstance(same, str)]
    none, written = dict.fromkeys((name_layouts(problem) for problem, _ in cases), 0), set(own)
    gone = {source: join_layouts(*fields) for source, fields in sources if source not in written}
    return {
        "of": len(cases),
        "families": len({name_family(*cases[place]) for place in old_cases}),
        "kernels": dict(sorted((none | Counter(layout for layout, _ in known)).items())),
        "differ": dict(sorted(Counter(layout for layout, same in known if not same).items())),
        "added": len(cases) - len(old_cases),
        "neither": len(reasons),
        "gone": dict(sorted(Counter(gone.values()).items())),
    }


@cache
def read_changes() -> list[dict]:
    """Return the changes that were found so far, the newest last."""
    return read_json(PROOF)["changes"] if PROOF.exists() else []


def has_change(op: str, recorded: str) -> bool:
    """Return whether a change of the kernels of a hash was looked at."""
    return any(change["op"] == op and change["before"] == recorded for change in read_changes())


def holds(op: str, recorded: str, current: str | None, layouts: frozenset[str] | None, has_few: bool = False) -> bool:
    """Return whether what kernels of `recorded` did with operands of `layouts` (None: any) those of `current` do, too:
    each change between left the machine code as it was, and the grids where there are products of few rows (`has_few`).
    """
    reached = {current}
    for change in reversed(read_changes()):
        is_one = change["op"] == op and change["now"] in reached
        if is_one and leaves(change, layouts) and not (has_few and "grids" in change):
            reached.add(change["before"])
    return recorded in reached


def leaves(change: dict, layouts: frozenset[str] | None) -> bool:
    """Return whether kernels of each layout were compared, and a change left all of them as they were."""
    kernels = change["kernels"]
    some = set(kernels) if layouts is None else as_counted(change, layouts)
    were_compared = bool(kernels) and all(kernels.get(layout) for layout in some)
    return were_compared and not some & {*change["differ"], *change["gone"]}


def as_counted(change: dict, layouts: Iterable[str]) -> set[str]:
    """Return layouts as a change counts them: with the mode of C, or, in older ones, without."""
    knows_c = any(len(name.split()) > 2 for name in change["kernels"])
    return {name if knows_c else " ".join(name.split()[:2]) for name in layouts}


def find_layouts(path: Path, op: str) -> frozenset[str] | None:
    """Return the layouts of the operands of an op kind in a record, None where it does not say; of a record of the
    host's part none.
    """
    if path.name in OF_HOST:
        return frozenset()
    if path.name in OF_K_MAJOR:
        return frozenset({K_MAJOR})
    if path.name in OF_SNAPSHOT:
        return read_snapshot_layouts(path.parent.name, op)
    family = today.FAMILIES.get(path.name)
    if family is None:
        return None
    return frozenset(name_layouts(problem) for problem in list_problems(path, family, op)) or None


def list_problems(path: Path, family: Family, op: str) -> list:
    """Return the problems of an op kind that the rows of a record are of."""
    keys = [{name: row[name] for name in family.key} for row in read_json(path)["rows"]]
    return [problem for key in keys for problem in family.make_problems(key).values() if problem.op == op]


def find_few(path: Path, op: str) -> bool:
    """Return whether a record hangs on the grids of products of few rows, also where it does not say."""
    kind = OP_KINDS.get(op)
    if path.name in OF_NO_GRID or kind is None or kind.is_grouped or kind.is_logits:
        return False
    family = today.FAMILIES.get(path.name)
    if family is not None:
        return any(problem.m <= FEW_ROWS for problem in list_problems(path, family, op))
    rows = read_json(path).get("rows", [])
    return not rows or any(row.get("m", 0) <= FEW_ROWS for row in rows)


def read_snapshot_layouts(model: str, op: str) -> frozenset[str] | None:
    """Return the layouts in the snapshot of a GPU model, as a folder of results is named; None where there are none."""
    for path in (ROOT / "db" / "snapshots").glob(f"*-{model}*.db"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
            rows = connection.execute("SELECT DISTINCT a_major, b_major, c_mode FROM problem WHERE op = ?", (op,))
            return frozenset(join_layouts(*row) for row in rows) or None
    return None


def replace(changes: list[dict], change: dict) -> list[dict]:
    """Return the changes with one more, which takes the place of an older comparison of the same kernels."""
    names = [[one[key] for key in ("op", "before", "now")] for one in (*changes, change)]
    place = names.index(names[-1])  # its own at last, where there was none before
    return [*changes[:place], change, *changes[place + 1 :]]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", help="the older kernels: a git revision or a clone")
    parser.add_argument("--op", choices=NAMES, help="one op kind only")
    parser.add_argument("--every", type=int, default=1, help="compare one in so many of a family (default: all)")
    parser.add_argument("--out", type=Path, default=PROOF, help="JSON file (default: %(default)s)")
    args = parser.parse_args(arguments)
    if args.every < 1:
        parser.error(f"--every {args.every}: at least 1")
    return args


def main(arguments: list[str] | None = None) -> int:
    """Compare, print a line for each op kind whose hash changed, and write the result."""
    args = parse(arguments)
    try:
        return run(args)
    except errors.TunerError as error:
        print(f"same_code: {error}", file=sys.stderr)
        return error.exit_code


def run(args: argparse.Namespace) -> int:
    """Do what `main` says. Raises: TunerError."""
    old = make_set(Clone.here(), args.old)
    before = ask_hashes(old, [args.op] if args.op else NAMES)
    changed = [op for op, hash_ in before.items() if hash_ != hashing.kernel_hash(op)]
    if not changed:
        raise errors.TunerError(f"{args.old}: nothing to compare: no kernel hash differs; name an older revision")
    told = ask(old.folder, changed)
    if told["rules"] != ask(ROOT, ())["rules"]:
        raise errors.TunerError(f"{args.old}: nothing to compare: flags or arguments differ, so no kernel is the same")
    changes, compiler = list(read_changes()), f"NVRTC {nvrtc.get_nvrtc().version_text}"
    for op in changed:
        found = compare(op, told["sources"][op], old.folder / "deep_gemm" / "include", args.every)
        print(f"{op}: {found}", flush=True)
        change = {"op": op, "before": before[op], "now": hashing.kernel_hash(op), "compiler": compiler} | found
        grids = [told["grids"].get(op, 1), ask(ROOT, [op])["grids"].get(op, 1)]
        change |= {"grids": grids} if grids[0] != grids[1] else {}
        changes = replace(changes, change)
        write_json(args.out, {"changes": changes})
    return 0


if __name__ == "__main__":
    sys.exit(main())
