"""Options of `sweep`, and which of them go together."""

import json
from pathlib import Path

import typer

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from tuner import errors

MAX_PORTFOLIO, MAX_BEST = 32, 16
PRESET_HELP = (
    "Problems to measure: default, bf16, wgrad, row_major, drawn, drawn_edges, dense (all six), training, drawn_log,"
    " drawn_decode, grouped, psum, drawn_grouped, drawn_contiguous, drawn_masked, batched, attention, wide (for --space"
    " wide), portfolio, portfolio_bf16, portfolio_random, portfolio_variants, portfolio_dense (these four),"
    " portfolio_grouped or demo. Default: default."
)
SPACE_HELP = (
    "default (at most 176 configs per problem), loops (those, each with the knobs of the main loop that the heuristic"
    " would give it, and some with a loop or an add by TMA that it would not), or wide (a grid of all tile widths,"
    " splits and clusters, of which a search measures a part)."
)
WORKLOAD_HELP = (
    "Group sizes of grouped ops: spread (0.7 to 1.3 times the mean), uniform, or skewed (one group has nearly all"
    " rows)."
)
SAMPLER_HELP = (
    "auto (exhaustive for spaces of up to 256 configs, else forest), exhaustive, forest (by the predictions of the"
    " installed selector), analytic (by the heuristic's), tpe, gp, cmaes, random or qmc."
)
BACKEND_HELP = "cuda, or simulated: estimates with noise instead of times, without a GPU, under the regime `simulated`."
STORAGE_HELP = "URL of an optuna storage, such as sqlite:///studies.db, to which every study is told while it runs."

PORTFOLIO_SIZE = typer.Option(
    0, min=0, max=MAX_PORTFOLIO, help="Measure only this many configs, chosen by recorded measurements."
)
BEST = typer.Option(
    0,
    min=0,
    max=MAX_BEST,
    help=(
        "Measure again, of each problem, only this many of the fastest configs on record, with the heuristic's pick and"
        " earlier winners, and confirm them all. For another board: one board alone may favour a config by chance."
        " Problems measured longest ago come first; none is skipped."
    ),
)
PORTFOLIO_FROM = typer.Option("", help="Database that --portfolio-size and --best choose from. Default: --db.")
N_TRIALS = typer.Option(
    0,
    min=0,
    help=(
        "Configs that a search measures; in the wide space, those beyond the default space. 0: a third of the space, in"
        " the wide space at most 96. For spaces of up to 256 configs give --sampler, too: auto measures them whole."
    ),
)


def check_space(space: str, chosen: dict) -> None:
    """Raise UsageError for configs that two options of `chosen` name, or one beside a space."""
    given = [name for name, value in chosen.items() if value]
    if len(given) > 1:
        raise errors.UsageError(f"{given[0]}: cannot be combined with {given[1]}; drop one")
    if given and space != "default":
        raise errors.UsageError(f"--space {space}: cannot be combined with {given[0]}, which names configs; drop one")


def check_portfolio(source: str, size: int) -> None:
    """Raise UsageError for a database from which nothing is to be chosen."""
    if source and not size:
        raise errors.UsageError(
            f"--portfolio-from {source}: only for --portfolio-size and --best; drop it, or give one of them, too"
        )


def choose_recorded(source: str | Path, portfolio_size: int, best: int):
    """Return by which rows a sweep's configs are chosen (recorded_configs.Recorded); None where they are not."""
    from tuner.learn.recorded_configs import Recorded

    return Recorded(source, portfolio_size, best) if portfolio_size or best else None


def load_configs(path: Path) -> list:
    """Return the configs of a JSON file, without repeats.

    It holds a list of {"block_m": ..., ...}, or an object with such a list as `configs` or `portfolio`. Raises:
    UsageError.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = document if isinstance(document, list) else document.get("configs") or document["portfolio"]
        if not rows:
            raise ValueError("it is empty")
        return list(dict.fromkeys(_C.Config.from_json(json.dumps(row)) for row in rows))
    except OSError as error:
        raise errors.UsageError(f"--configs {path}: cannot be read ({error.strerror}); name a JSON file") from error
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError, DeepGemmError) as error:
        raise errors.UsageError(f"--configs {path}: not a list of configs ({type(error).__name__}: {error})") from error
