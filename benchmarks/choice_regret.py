"""The selector's and the heuristic's choices beside a full sweep, on problems drawn at random that no preset has.

Example: python -m benchmarks.choice_regret --time-budget 150 --db choices.db
Example: python -m benchmarks.choice_regret --db choices.db --score
Example: python -m benchmarks.choice_regret --db old-choices.db --score --seed 14

Problems: for each op kind of COUNTS as many as it says, drawn from SEED before anything was timed on them: m from 1 to
    8,192 (of grouped ops the rows of a group, 4 to 1,024), n multiples of 64 from 256 to 32,768 (grouped: 1,024 to
    8,192), k multiples of 128 from 256 to 18,432 (1,024 to 8,192), all log-uniform; 2 to 32 groups. A weight (n, k)
    that a preset, random_fp8 or an older draw has is drawn again. Settings were chosen by the draws of OLD_SEEDS: their
    results can be read and scored, but no longer say whether the target is met.
Method: the tuner's sweep measures all configs of each problem, those with the knobs of the main loop too; both picks
    and the finalists are confirmed in the same rounds. The best config is chosen on search rounds and scored on
    confirmation rounds, as in `tuner evaluate`, so that a regret can be negative.
With `--score` nothing is timed: the choices of the artefact of today are looked up in the rows of `--db`.
    "refined" is what `python -m tuner refine` would install: of as many configs as it measures, those that the
    selector predicts fastest and the heuristic's pick, the best one on search rounds.
Result: {"meta": origin, artefact, seed; "kinds": {kind: {role: statistics}}, "all": {role: {"mean", "p95", "max"}},
    "rows": [problem, time and best config, each role's pick and its regret]}. Masked problems of at most FEW_GROUPS
    groups are a kind of their own.
"""

import argparse
import math
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from deep_gemm import _C, environment
from deep_gemm.fields import OP_KINDS
from tuner import errors
from tuner.commands.refine import COUNT
from tuner.commands.sweep import measure
from tuner.db import Store
from tuner.learn.baselines import choose_with_hindsight
from tuner.learn.dataset import CONFIRMED, UNMEASURED, Dataset, load_dataset
from tuner.learn.evaluate import summarize
from tuner.learn.sources import device_at_hand, find_device
from tuner.problems.fields import FEW_GROUPS, get_weight_shape, has_few_groups
from tuner.problems.shapes import expand_group, load_preset, preset_names
from tuner.search.candidates import SweepOptions
from tuner.search.problem_run import EFFORTS
from tuner.ship.tuned import list_finalists

from .choices import Choices
from .speedup import rounded
from .stamp import DATA, SELECTOR, find_results, hash_selector, read_json, write_json

SEED = 15
#: Seeds of draws by which a setting was chosen: the smallest leaves' weight of zero, by that of 14.
OLD_SEEDS = (14,)
COUNTS = {
    "fp8_gemm": 24,
    "bf16_gemm": 20,
    "m_grouped_fp8_gemm_masked": 16,
    "m_grouped_fp8_gemm_contiguous": 12,
    "m_grouped_fp8_gemm_psum": 12,
}
GROUPS = (2, 4, 8, 16, 32)
#: What the choices must reach: the mean regret over all problems, of which there must be so many.
MAX_MEAN, MIN_PROBLEMS = 0.02, 40
ROLES = ("selector", "heuristic", "refined")


def draw_log(source: random.Random, low: int, high: int, step: int = 1) -> int:
    """Return a multiple of `step` between two others, log-uniform."""
    return step * round(math.exp(source.uniform(math.log(low / step), math.log(high / step))))


def draw_one(op: str, source: random.Random) -> _C.Problem:
    """Return the next problem of one op kind."""
    if OP_KINDS[op].is_grouped:
        sizes: dict = {"num_groups": source.choice(GROUPS), "mean_m": [draw_log(source, 4, 1024)]}
        n, k = draw_log(source, 1024, 8192, 64), draw_log(source, 1024, 8192, 128)
        group: dict = {"op": op, "sizes": [sizes], "shapes": [{"n": n, "k": k}]}
    else:
        m, n = draw_log(source, 1, 8192), draw_log(source, 256, 32768, 64)
        group = {"op": op, "m": [m], "shapes": [{"n": n, "k": draw_log(source, 256, 18432, 128)}]}
    return expand_group(group)[0]


def draw_op(op: str, count: int, seed: int, known: set[tuple[int, int]]) -> list[_C.Problem]:
    """Return `count` problems of one op kind, the same in every run, none with a weight of `known`."""
    source, found = random.Random(f"{seed} {op}"), []
    while len(found) < count:
        problem = draw_one(op, source)
        if get_weight_shape(problem) not in known:
            found.append(problem)
    return found


def find_known(seed: int) -> set[tuple[int, int]]:
    """Return the weights that the draw of `seed` avoids: of presets, of random_fp8 and of the draws before it."""
    earlier = OLD_SEEDS[: OLD_SEEDS.index(seed)] if seed in OLD_SEEDS else OLD_SEEDS
    problems = [problem for name in preset_names() for problem in load_preset(name)]
    problems += [problem for each in earlier for problem in draw(seed=each)]
    rows = read_json(DATA / "random_fp8.json")["rows"]
    return {get_weight_shape(problem) for problem in problems} | {(row["n"], row["k"]) for row in rows}


def draw(counts: dict[str, int] | None = None, seed: int = SEED) -> list[_C.Problem]:
    """Return the problems of all op kinds, mixed evenly: where time ends early, every kind loses its share."""
    known = find_known(seed)
    placed = [
        ((index + 0.5) / count, problem)
        for op, count in (counts or COUNTS).items()
        for index, problem in enumerate(draw_op(op, count, seed, known))
    ]
    return [problem for _, problem in sorted(placed, key=lambda item: item[0])]


def name_kind(problem) -> str:
    """Return under which name a problem is counted."""
    return f"{problem.op}, at most {FEW_GROUPS} groups" if has_few_groups(problem) else problem.op


def run_sweep(problems: list, choices: dict, args: argparse.Namespace) -> dict:
    """Measure what `--db` does not have yet, as far as time allows; return the sweep's summary."""
    options = SweepOptions(
        problems=problems,
        database=args.db,
        must_confirm={problem: [found["auto"].config] for problem, found in choices.items()},
        space="loops",
        sampler="exhaustive",
        effort=args.effort,
        time_budget_s=args.time_budget,
        backend=args.backend,
    )
    return measure(options)


def find_chooser(args: argparse.Namespace) -> _C.Device:
    """Return the device to choose for: where nothing is timed that of the database, whatever GPU is at hand."""
    if not args.score:
        return device_at_hand("")
    with Store.open(args.db, "ro") as store:
        return find_device(store, "")


def find_choices(problems: list, device) -> dict:
    """Return {problem: {role: choice}}, see choices.py, and under "few" the configs that a refinement measures."""
    makers = {op: Choices(op, device) for op in {problem.op for problem in problems}}
    few = list_finalists(problems, device, environment.model_dir() or Path(), COUNT)
    return {problem: {**makers[problem.op].of(problem, ("heuristic",)), "few": few[problem]} for problem in problems}


def score(problems: list, choices: dict, store: Store) -> tuple[list[Dataset], list[dict]]:
    """Return the measured table of each op kind, and a row for each problem of which both picks were timed."""
    sku = find_device(store, "").sku
    tables, rows = load_tables(store, sku, list(dict.fromkeys(problem.op for problem in problems))), {}
    for data in tables:
        column = {config: index for index, config in enumerate(data.configs)}
        for row, problem in enumerate(data.problems):
            if problem not in choices:
                continue
            picks = column.get(choices[problem]["auto"].config, -1), int(data.heuristic[row])
            if data.full_space[row] and min(picks) >= 0 and all(data.state[row, picks] != UNMEASURED):
                few = [column[config] for config in choices[problem]["few"] if config in column]
                refined = int(choose_with_hindsight(data, np.array([row]), np.array([[*few, picks[1]]]))[0])
                rows[problem] = describe_row(data, row, (*picks, refined), choices[problem]["auto"].source)
    return tables, [rows[problem] for problem in problems if problem in rows]


def load_tables(store: Store, sku: str, ops: list[str]) -> list[Dataset]:
    """Return the tables of the op kinds that have enough rows. Raises: InconclusiveError where none has."""
    found = []
    for op in ops:
        try:
            found.append(load_dataset(store, sku, op=op))
        except errors.InconclusiveError:  # time was over before this op kind had two problems
            if op == ops[-1] and not found:
                raise
    return found


def describe_row(data: Dataset, row: int, picks: tuple[int, ...], source: str) -> dict:
    """Return one problem's row of the result; the picks of ROLES are columns of `data`."""
    problem = data.problems[row]
    regrets = np.expm1(data.regret_log(np.full(len(picks), row), np.array(picks)))
    chosen = {
        role: {
            "config": str(data.configs[pick]),
            "regret": rounded(float(regret)),
            "confirmed": bool(data.state[row, pick] == CONFIRMED),
        }
        for role, pick, regret in zip(ROLES, picks, regrets, strict=True)
    }
    sizes = {name: getattr(problem, name) for name in ("m", "n", "k", "num_groups", "expected_m")}
    return {
        "kind": name_kind(problem),
        "problem": problem.key,
        **{name: size for name, size in sizes.items() if size},
        "heuristic_us": rounded(float(data.heuristic_us[row])),
        "best": str(data.configs[data.oracle[row]]),
        "source": source,
        **chosen,
    }


def summarize_kind(tables: list[Dataset], rows: list[dict]) -> dict:
    """Return the statistics of the choices over the rows of one kind, and who chose how often."""
    found: dict = {"problems": len(rows), "sources": dict(Counter(row["source"] for row in rows))}
    keys = {row["problem"]: row for row in rows}
    data = next(table for table in tables if any(problem.key in keys for problem in table.problems))
    places = np.array([index for index, problem in enumerate(data.problems) if problem.key in keys])
    names = [str(config) for config in data.configs]
    for role in ROLES:
        picks = [names.index(keys[data.problems[place].key][role]["config"]) for place in places]
        statistics = summarize(data, places, np.array(picks)).to_json()
        found[role] = {name: rounded(value) for name, value in statistics.items() if isinstance(value, float)}
        found[role] |= {name: statistics[name] for name in ("wins", "losses")}
    return found


def summarize_all(rows: list[dict], role: str) -> dict:
    """Return the geometric mean, p95 and maximum of one choice's regrets over all kinds."""
    logs = np.log1p([row[role]["regret"] for row in rows])
    p95 = float(np.quantile(logs, 0.95, method="inverted_cdf"))
    return {
        name: rounded(math.expm1(value))
        for name, value in (("mean", float(logs.mean())), ("p95", p95), ("max", float(logs.max())))
    }


def make_result(tables: list[Dataset], rows: list[dict], planned: int, args: argparse.Namespace) -> dict:
    """Return the result of what was measured; `args`: the effort, and the seed of the problems."""
    first, whole = tables[0].identity, {role: summarize_all(rows, role) for role in ROLES}
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    meta = {
        "sku": first.sku,
        "kernel_hash": {table.identity.op: table.identity.kernel_hash for table in tables},
        "compiler": first.compiler,
        "regime": {table.identity.op: table.identity.regime for table in tables},
        "date": max(table.newest for table in tables)[:10],
        "seed": args.seed,
        "effort": args.effort,
        SELECTOR: hash_selector(first.sku),
        "problems": planned,
        "complete": len(rows) == planned,
    }
    return {
        "meta": meta,
        "all": {"problems": len(rows), **whole, "is_met": is_met(args.seed, len(rows), whole["selector"]["mean"])},
        "kinds": {kind: summarize_kind(tables, [row for row in rows if row["kind"] == kind]) for kind in kinds},
        "rows": rows,
    }


def is_met(seed: int, count: int, mean: float) -> bool:
    """Return whether a mean regret over `count` problems meets the target: those of an old draw say nothing."""
    return seed not in OLD_SEEDS and count >= MIN_PROBLEMS and mean <= MAX_MEAN


def print_result(result: dict) -> None:
    """Print a line for each kind, and one for all."""
    if result["meta"]["seed"] in OLD_SEEDS:
        print(f"of the old draw (seed {result['meta']['seed']}), by which a setting was chosen:")
    for name, part in {**result["kinds"], "all": result["all"]}.items():
        texts = (f"{role} {part[role]['mean']:.2%} (p95 {part[role]['p95']:.1%})" for role in ROLES)
        print(f"{name}: {part['problems']} problems, mean regret: {', '.join(texts)}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Exit codes: 0 all right, 3 not every problem was measured."
    )
    parser.add_argument("--out", type=Path, default=find_results() / "choice_regret.json", help="where the result goes")
    parser.add_argument(
        "--db", type=Path, help="tuning database to record in and to go on from (default: none is kept)"
    )
    parser.add_argument("--score", action="store_true", help="measure nothing: score today's choices by --db")
    parser.add_argument(
        "--seed", type=int, choices=(*OLD_SEEDS, SEED), default=SEED, help=f"which draw (default {SEED}, the newest)"
    )
    parser.add_argument("--effort", choices=EFFORTS, default="full", help="see python -m tuner sweep (default full)")
    parser.add_argument("--time-budget", type=float, default=150.0, help="seconds, compiling included (default 150)")
    parser.add_argument("--backend", choices=("cuda", "simulated"), default="cuda", help="simulated needs no GPU")
    args = parser.parse_args(arguments)
    if args.score and args.db is None:
        parser.error("--score: needs --db")
    return args


def main(arguments: list[str] | None = None) -> int:
    """Measure, write the result and print the figures."""
    args = parse(arguments)
    problems = draw(seed=args.seed)
    with tempfile.TemporaryDirectory() as folder:
        args.db = args.db or Path(folder) / "choices.db"
        choices = find_choices(problems, find_chooser(args))
        if not args.score:
            run_sweep(problems, choices, args)
        with Store.open(args.db, "ro") as store:
            result = make_result(*score(problems, choices, store), len(problems), args)
    write_json(args.out, result)
    print_result(result)
    return 0 if result["meta"]["complete"] else 3


if __name__ == "__main__":
    sys.exit(main())
