"""Which recorded choices of the selector are no longer what this tree would choose.

Example: python -m benchmarks.today        (a line for each result; exit 1 where a choice changed)

The results of products and of attention logits that P1 to P10 and R1 follow from name the config of each row; so does
that of choice_regret.py. A new artefact, another rule of the heuristic or other features may choose another one since,
and what was recorded is then not what a call runs today.
"""

import sys
from functools import cache

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.selection import choose_by, make_room
from deep_gemm.selector import Selector

from . import (
    choice_regret,
    dense_bf16,
    dense_fp8,
    k_grouped,
    m_grouped_contiguous,
    m_grouped_masked,
    mqa_logits,
    random_fp8,
    second_tile,
    wgrad_fp8,
)
from .choices import find_run
from .harness import Family
from .stamp import RECORDS, ROOT, find_packaged, read_json

FAMILIES: dict[str, Family] = {
    f"{module.FAMILY.name}.json": module.FAMILY
    for module in (
        *(dense_fp8, dense_bf16, random_fp8, wgrad_fp8),
        *(m_grouped_contiguous, m_grouped_masked, second_tile, k_grouped, mqa_logits),
    )
}


REGRET = "choice_regret.json"


@cache
def load_packaged(sku: str) -> Selector | None:
    """Return the selector that the tree has for a GPU model, or a board of it with a lower power limit."""
    path = find_packaged(sku)
    return Selector(path.read_bytes()) if path.exists() else None


def choose(problem, device) -> object:
    """Return the config that is chosen for a problem."""
    selector = load_packaged(device.sku)
    if selector is None:
        return _C.get_analytic_config(problem, device)
    choice, _ = choose_by(selector, problem, device)
    if not _C.is_legal(problem, choice.config, device):
        return _C.get_analytic_config(problem, device)
    return make_room(problem, choice, device).config


def name_call(problem, device) -> str:
    """Return the config that a call runs for a problem, or both tiles of its kernel, as results name them."""
    run = find_run(problem, "auto")
    config = choose(run, device)
    return _C.name_tiles(config, _C.find_second_tile(run, config, device))


def name_choice(problem, device) -> str:
    """Return the config alone, which sweeps measure."""
    return str(choose(problem, device))


def list_choices(family: Family, row: dict) -> list[tuple[str, object]]:
    """Return (config that was run, problem) of each layout of a recorded row; none of one that failed."""
    recorded = row["choices"].get("auto")
    problems = family.make_problems({name: row[name] for name in family.key}) if recorded else {}
    return [(recorded.get(layout, recorded["config"]), problem) for layout, problem in problems.items()]


def list_regret_choices(result: dict) -> list[list[tuple[str, object]]]:
    """Return the same of a result of choice_regret.py, whose rows name their problems by key."""
    problems = {problem.key: problem for problem in choice_regret.draw(seed=result["meta"]["seed"])}
    return [[(row["selector"]["config"], problems[row["problem"]])] for row in result["rows"]]


def count_changed(file: str, result: dict) -> int:
    """Return in how many rows of a result `file` a choice changed; 0 for results without choices, and for those of a
    GPU model that this package does not know.
    """
    if file not in (REGRET, *FAMILIES):
        return 0
    try:
        device = _C.Device.known(result["meta"].get("sku", ""))
    except DeepGemmError:
        return 0
    rows = (
        list_regret_choices(result) if file == REGRET else [list_choices(FAMILIES[file], row) for row in result["rows"]]
    )
    name = name_choice if file == REGRET else name_call
    return sum(any(config != name(problem, device) for config, problem in row) for row in rows)


def get_reason(file: str, result: dict) -> str | None:
    """Return why a result counts as stale by its choices, None while they are those of the tree."""
    if not (changed := count_changed(file, result)):
        return None
    return f"{changed} of {len(result['rows'])} problems have another choice now; measuring again is due"


def main() -> int:
    """Print how many rows of each result have other choices now."""
    total = 0
    for path in sorted(RECORDS.glob("*/*.json")):
        if path.name in (REGRET, *FAMILIES):
            result = read_json(path)
            total += (changed := count_changed(path.name, result))
            print(f"{path.relative_to(ROOT)!s:60} {changed} of {len(result['rows'])} rows have another choice now")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
