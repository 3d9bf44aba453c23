"""Which kernels have the same machine code as before a change: what was measured of them stays true.

Example: python -m benchmarks.same_code 08329c4e        (writes same_code.json beside this file)

Any change of a header gives every kernel that includes it another hash, also one that the compiler does not see. This
compiles canonical kernels of each op kind whose hash changed (`--every`: one in so many, in their order) with the
headers of an older set, named as `python -m tuner ab` names it, and with the tree's, and compares the machine code
(.text) byte by byte. It counts by the layouts of A and B, since a change may concern one of them alone.
Result: {"compiler", "changes": [{"op", "before", "now": kernel hashes, "kernels": compared, "of": canonical kernels
before, "differ": {layouts as "a_major b_major": kernels with other code}, "gone": how many of those before the tree's
generator writes differently}]}; changes that were found before stay. The release check (stale.py) takes a record as
current where the kernels of the layouts in it are the same.
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from pathlib import Path

from joblib import Parallel, delayed

from deep_gemm.fields import OP_KINDS
from deep_gemm.jit import cubin, generator, hashing, nvrtc
from tuner.compare.comparison import ask_hashes
from tuner.compare.kernel_sets import Clone
from tuner.compare.revisions import make_set

from . import today
from .stamp import ROOT, read_json, write_json

PROOF = ROOT / "benchmarks" / "same_code.json"
K_MAJOR = "k k"
#: Records whose rows do not say which layouts they are of: of products of K-major operands, of the host's part of a
#: call, in which kernels have none, and of a snapshot, which says it.
OF_K_MAJOR = ("batch_invariance.json", "choice_regret.json", "moe_layer.json", "pdl.json")
OF_HOST = ("host_ops.json", "host_time.json")
OF_SNAPSHOT = ("calibration.json", "evaluation.json", "fit_rates.json")
_ASK = """
import json, sys
from deep_gemm.jit import generator
json.dump({op: generator.canonical_sources(op) for op in json.load(sys.stdin)}, sys.stdout)
"""


def name_layouts(problem) -> str:
    """Return the layouts of a problem's operands as the result names them."""
    return f"{problem.a_major} {problem.b_major}"


def ask_sources(folder: Path, ops: Iterable[str]) -> dict[str, list[str]]:
    """Return {op kind: canonical sources} of the package in a folder."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _ASK],
        input=json.dumps(list(ops)),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def compile_code(source: str, include: Path) -> bytes:
    """Return the machine code of a kernel with the headers of a folder. Raises: RuntimeError where it has none."""
    headers = {name: (include / name).read_text(encoding="utf-8") for name in hashing.get_included_headers(source)}
    output = nvrtc.get_nvrtc().compile(source, headers)
    if output.error:
        raise RuntimeError(f"{source.splitlines()[0]}: {output.error}: {output.log[-500:]}")
    return cubin.read_code(output.image)


def is_same(source: str, old: Path) -> bool:
    """Return whether a kernel has the same machine code with the headers in `old` as with the tree's."""
    return compile_code(source, old) == compile_code(source, ROOT / "deep_gemm" / "include")


def compare(op: str, sources: list[str], old: Path, every: int) -> dict:
    """Return what the result says of the kernels of an op kind, whose older `sources` have the headers in `old`."""
    tree = dict(zip(generator.canonical_sources(op), generator.canonical_cases(op), strict=True))
    shared = [source for source in sources if source in tree]
    some = shared[::every]
    same = Parallel(n_jobs=-1)(delayed(is_same)(source, old) for source in some)
    differ = Counter(name_layouts(tree[source][0]) for source, one in zip(some, same, strict=True) if not one)
    gone = len(sources) - len(shared)
    return {"kernels": len(some), "of": len(sources), "differ": dict(sorted(differ.items())), "gone": gone}


@cache
def read_changes() -> list[dict]:
    """Return the changes that were found so far, the newest last."""
    return read_json(PROOF)["changes"] if PROOF.exists() else []


def has_change(op: str, recorded: str) -> bool:
    """Return whether a change of the kernels of a hash was looked at."""
    return any(change["op"] == op and change["before"] == recorded for change in read_changes())


def holds(op: str, recorded: str, current: str | None, layouts: frozenset[str] | None) -> bool:
    """Return whether what kernels of `recorded` did with operands of `layouts` (None: any) those of `current` do, too:
    each change between left the machine code as it was.
    """
    reached = {current}
    for change in reversed(read_changes()):
        is_same = not change["gone"] and not (change["differ"] if layouts is None else layouts & set(change["differ"]))
        if change["op"] == op and change["now"] in reached and is_same:
            reached.add(change["before"])
    return recorded in reached


def find_layouts(path: Path, op: str) -> frozenset[str] | None:
    """Return the layouts of the operands of an op kind in a record, None where it does not say."""
    if path.name in OF_HOST:
        return frozenset()
    if path.name in OF_K_MAJOR:
        return frozenset({K_MAJOR})
    if path.name in OF_SNAPSHOT:
        return read_snapshot_layouts(path.parent.name, op)
    family = today.FAMILIES.get(path.name)
    if family is None:
        return None
    keys = [{name: row[name] for name in family.key} for row in read_json(path)["rows"]]
    problems = [problem for key in keys for problem in family.make_problems(key).values()]
    return frozenset(name_layouts(problem) for problem in problems if problem.op == op)


def read_snapshot_layouts(model: str, op: str) -> frozenset[str] | None:
    """Return the layouts in the snapshot of a GPU model, as a folder of results is named; None where there is none."""
    for path in (ROOT / "db" / "snapshots").glob(f"*-{model}*.db"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
            rows = connection.execute("SELECT DISTINCT a_major, b_major FROM problem WHERE op = ?", (op,))
            return frozenset(f"{a_major} {b_major}" for a_major, b_major in rows)
    return None


def main() -> int:
    """Compare, print a line for each op kind whose hash changed, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", help="the older kernels: a git revision or a clone")
    parser.add_argument("--op", choices=sorted(OP_KINDS), help="one op kind only")
    parser.add_argument("--every", type=int, default=1, help="compare one kernel in so many (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=PROOF, help="JSON file (default: %(default)s)")
    args = parser.parse_args()
    old = make_set(Clone.here(), args.old)
    before = ask_hashes(old, [args.op] if args.op else sorted(OP_KINDS))
    changed = [op for op, hash_ in before.items() if hash_ != hashing.kernel_hash(op)]
    changes, sources = list(read_changes()), ask_sources(old.folder, changed)
    for op in changed:
        found = compare(op, sources[op], old.folder / "deep_gemm" / "include", args.every)
        print(f"{op}: {found['kernels']} kernels, {found['gone']} gone, differ: {found['differ']}", flush=True)
        changes.append({"op": op, "before": before[op], "now": hashing.kernel_hash(op)} | found)
    write_json(args.out, {"compiler": f"NVRTC {nvrtc.get_nvrtc().version_text}", "changes": changes})
    return 0


if __name__ == "__main__":
    sys.exit(main())
