"""python -m tuner train: fit the selector of one SKU to the recorded measurements."""

import json
from pathlib import Path

import typer

from tuner import errors


def register(app) -> None:
    """Add `train` to the command line."""
    app.command("train")(train)


def train(
    database: str = typer.Option("", "--db", help="Database to learn from; default: $DG_TUNER_DB, ~/.deep_gemm/tuning.db, else the recorded snapshot."),
    device: str = typer.Option("", help="SKU or short name (h200); default: the only one in the database."),
    kernel_hash: str = typer.Option("", help="Kernel hash of the rows to learn from; default: the database's newest."),
    compiler: str = typer.Option("", help="nvrtc or nvcc; default: the one with most rows."),
    regime: str = typer.Option("", help="Regime of the rows to learn from; default: the one with most rows."),
    out: Path = typer.Option(None, help="Training folder to write; default: ~/.deep_gemm/training/<sku>."),
    kind: str = typer.Option("extra-trees", help="extra-trees, random-forest, or auto: the better one on left-out families."),
    trees: int = typer.Option(32, min=1, max=256, help="Trees of the forest."),
    depth: int = typer.Option(10, min=1, max=20, help="Depth of the trees."),
    clip: float = typer.Option(0.25, min=0.02, max=0.7, help="Log ratio beyond which slow configs count as equally slow."),
    portfolio_size: int = typer.Option(0, min=0, max=32, help="Configs of the portfolio; 0: as many as pay on left-out families."),
    portfolio_only: bool = typer.Option(False, help="Only print the portfolio and what the folds of the validation would choose (for `sweep --configs`)."),
    seed: int = typer.Option(0, min=0, help="Seed of the trees."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Fit portfolio, forest and guards and write a training folder. Example: python -m tuner train --db tuning.db --device h200"""
    from tuner import train as training
    from tuner.dataset import load_dataset
    from tuner.learner import KINDS, Settings
    from tuner.portfolio import SIZES, describe_portfolios
    from tuner.sources import open_database

    if kind not in ("auto", *KINDS):
        raise errors.UsageError(f"--kind {kind}: must be one of auto, {', '.join(KINDS)}")
    settings = Settings(kind=kind, trees=trees, depth=depth, clip=clip, sizes=(portfolio_size,) if portfolio_size else SIZES, seed=seed)
    with open_database(database) as store:
        data = load_dataset(store, device, kernel_hash=kernel_hash or None, compiler=compiler or None, regime=regime or None)
        source = str(store.target)
    if portfolio_only:
        return print_portfolio(describe_portfolios(data, settings.sizes), as_json)
    folder = out or training.default_folder(data.identity.sku)
    print_record(folder, training.save(folder, data, training.train(data, settings), settings, source), as_json)


def print_portfolio(found: dict, as_json: bool) -> None:
    """Print the portfolio and the folds' union, as JSON that `sweep --configs` reads or one config per line."""
    if as_json:
        return print(json.dumps(found, indent=1))
    print(f"portfolio of {len(found['portfolio'])} configs; {len(found['configs'])} with those of every fold:")
    for config in found["configs"]:
        print(f"  {json.dumps(config)}{'' if config in found['portfolio'] else '  (folds only)'}")


def print_record(folder: Path, record: dict, as_json: bool) -> None:
    """Print what was trained, as JSON or as one line per fact."""
    if as_json:
        return print(json.dumps(record | {"folder": str(folder)}, indent=1, sort_keys=True))
    data, guards = record["data"], record["guards"]
    print(f"data: {data['problems']} problems ({data['full_space_problems']} over the whole space) in {data['families']} families, {data['configs']} configs")
    if data["dropped"] or data["quarantined"]:
        print(f"left out: {data['dropped']}; quarantined: {', '.join(data['quarantined']) or 'none'}")
    for size, score in record["portfolio_curve"].items():
        print(f"portfolio of {size}: {score:.2%} behind the best on left-out families")
    print(f"model: {record['kind']} over {len(record['portfolio'])} configs; margin {guards['margin']:.1%}, spread at most {guards['max_spread']:.3f}, hull +{guards['slack']:.0%}")
    print(f"written: {folder}; next: python -m tuner evaluate --training {folder}")
