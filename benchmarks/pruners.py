"""The race's rule for dropping configs against optuna's WilcoxonPruner, on rounds drawn from a recording.

    python -m benchmarks.pruners                      # the recorded snapshot; no GPU
    python -m benchmarks.pruners --db tuning.db --problems 80 --seeds 3

The recording has a median and a median absolute deviation of each config, but no search rounds one by one. So rounds
are drawn: a config's time in a round is its recorded ratio times a log-normal error of its recorded deviation. Both
rules see the same rounds, keep the five fastest, and choose by the median of what they saw. The launches that check the
configs are not drawn, so that nothing is dropped by them.
"""

import argparse
import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import optuna
from optuna.trial import TrialState

from tuner.db.rows import MeasurementRow
from tuner.learn.sources import open_database
from tuner.measure import statistics
from tuner.measured import TIMED
from tuner.search.problem_run import EFFORTS

#: Configs that a problem must have.
LEAST_CONFIGS = 20
#: Times its median absolute deviation, the standard deviation of normal errors.
NORMAL = 1.4826

Rule = Callable[[Sequence[float], Sequence[float]], bool]


def is_pruned(samples: Sequence[float], best: Sequence[float]) -> bool:
    """Return whether optuna's WilcoxonPruner, with its defaults, prunes `samples` beside `best` of the same rounds."""
    study = optuna.create_study(pruner=optuna.pruners.WilcoxonPruner())
    steps = dict(enumerate(best))
    study.add_trial(
        optuna.trial.create_trial(state=TrialState.COMPLETE, value=float(np.mean(best)), intermediate_values=steps)
    )
    trial = study.ask()
    for step, value in enumerate(samples):
        trial.report(value, step)
    return trial.should_prune()


def is_hopeless(samples: Sequence[float], best: Sequence[float]) -> bool:
    """Return whether the race drops `samples` beside `best` of the same rounds, by these alone."""
    return statistics.is_hopeless(statistics.paired_ratios(samples, best))


RULES: dict[str, Rule] = {"race": is_hopeless, "wilcoxon": is_pruned}


def load_problems(database: str, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (ratios, deviations of their logs) of the configs of `count` recorded blocks, evenly spread."""
    with open_database(database) as store:
        rows = store.load_measurements(role="search")
    blocks: dict[int, list[MeasurementRow]] = {}
    for row in rows:
        if row.ratio and row.status in TIMED:
            blocks.setdefault(row.block.block_id, []).append(row)
    found = [describe_block(block) for block in blocks.values() if len(block) >= LEAST_CONFIGS]
    return [found[place] for place in np.linspace(0, len(found) - 1, min(count, len(found))).astype(int)]


def describe_block(rows: list[MeasurementRow]) -> tuple[np.ndarray, np.ndarray]:
    """Return ratios and deviations; a config of fewer than three rounds gets the block's median deviation."""
    known = [
        NORMAL * row.mad_us / row.median_us if row.mad_us and row.median_us and (row.num_samples or 0) > 2 else math.nan
        for row in rows
    ]
    usual = float(np.nanmedian(known)) if not np.isnan(known).all() else 0.004
    return np.array([row.ratio for row in rows]), np.where(np.isnan(known), usual, known)


def race(times: np.ndarray, rule: Rule, finalists: int) -> tuple[int, float]:
    """Race configs over times[round, config]; return the winner and the time spent."""
    alive, spent = list(range(times.shape[1])), 0.0
    for number in range(1, len(times) + 1):
        spent += float(times[number - 1, alive].sum())
        ranked = sorted(alive, key=lambda config: float(np.median(times[:number, config])))
        best = times[:number, ranked[0]].tolist()
        alive = ranked[:finalists] + [
            config for config in ranked[finalists:] if not rule(times[:number, config].tolist(), best)
        ]
    return min(alive, key=lambda config: float(np.median(times[:, config]))), spent


def compare(problems: Sequence[tuple[np.ndarray, np.ndarray]], rounds: int, seeds: int, finalists: int) -> dict:
    """Return {rule: [mean log regret, share of the time of dropping nothing, share of races that lost every tie]}."""
    found: dict[str, list[tuple[float, float, bool]]] = {name: [] for name in RULES}
    for number, (ratios, deviations) in enumerate(problems):
        for seed in range(seeds):
            noise = np.random.default_rng([number, seed]).normal(size=(rounds, len(ratios)))
            times = ratios * np.exp(noise * deviations)
            for name, rule in RULES.items():
                winner, spent = race(times, rule, finalists)
                regret = math.log(ratios[winner] / ratios.min())
                found[name].append((regret, spent / times.sum(), regret > statistics.TIE_RATIO))
    return {name: np.mean(rows, axis=0).tolist() for name, rows in found.items()}


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description="The race's rule against optuna's WilcoxonPruner.")
    parser.add_argument("--db", default="")
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    problems = load_problems(arguments.db, arguments.problems)
    print(
        "| rounds | rule | time of measuring | mean regret | winner beyond the tie |\n| --- | --- | --- | --- | --- |"
    )
    for effort, plan in EFFORTS.items():
        found = compare(problems, plan.search_rounds, arguments.seeds, plan.finalists)
        for name, (regret, share, lost) in found.items():
            cells = (
                f"{plan.search_rounds} ({effort})",
                name,
                f"{share:.0%}",
                f"{math.expm1(regret):.2%}",
                f"{lost:.0%}",
            )
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
