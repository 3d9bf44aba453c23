"""python -m tuner train: fit the selectors of one SKU, one per op kind, to the recorded measurements."""

import json
from collections.abc import Callable
from pathlib import Path

import typer

from tuner import errors
from tuner.commands.options import MAX_SEED, READ_DB, RECORDED_OP, SKU, AsJson, check_folder
from tuner.commands.tables import print_left_out
from tuner.credentials import hide_credentials
from tuner.learn.settings import LEAVES, RATE, TREES


def register(app) -> None:
    """Add `train` to the command line."""
    app.command("train")(train)


def train(
    database: str = READ_DB,
    device: str = SKU,
    op: str = RECORDED_OP,
    kernel_hash: str = typer.Option(
        "", help="Learn from rows with this kernel hash (needs --op). Default: the newest in the database."
    ),
    compiler: str = typer.Option("", help="nvrtc or nvcc. Default: the one with most rows."),
    regime: str = typer.Option("", help="Learn from rows of this regime. Default: the one with most rows."),
    out: Path = typer.Option(
        None, help="Training folder to write; each op kind gets a folder in it. Default: ~/.deep_gemm/training/<sku>."
    ),
    trees: int = typer.Option(TREES, min=1, max=255, help="Number of boosted trees; each takes time at every choice."),
    leaves: int = typer.Option(LEAVES, min=2, max=32, help="Leaves of a tree."),
    rate: float = typer.Option(RATE, min=0.01, max=1.0, help="Share of its prediction that a tree adds."),
    min_leaf: int = typer.Option(0, min=0, max=200, help="Least rows of a leaf; 0: by the number of all rows."),
    choose: bool = typer.Option(
        False, help="Choose the settings of the trees among a few by the regret on left-out families, for each op kind."
    ),
    portfolio_size: int = typer.Option(
        0, min=0, max=32, help="Number of configs in the portfolio; 0: as many as help on left-out families."
    ),
    portfolio_only: bool = typer.Option(
        False,
        help="Only print the portfolio, and what the folds of the validation would choose, for `sweep --configs`.",
    ),
    seed: int = typer.Option(0, min=0, max=MAX_SEED, help="Seed of the trees."),
    as_json: AsJson = False,
) -> None:
    """Fit trees, guards and portfolio and write a training folder.

    Op kinds that have too few rows are left out, and named on standard error, unless --op names one or there is no
    other.

    Example: python -m tuner train --db tuning.db --device h200
    """
    from tuner.learn import train as training
    from tuner.learn.learner import Settings
    from tuner.learn.portfolio import SIZES, describe_portfolios

    check_folder("--out", out)
    check_together(
        portfolio_only,
        choose,
        out,
        {"--trees": trees != TREES, "--leaves": leaves != LEAVES, "--rate": rate != RATE, "--min-leaf": min_leaf != 0},
    )
    if kernel_hash and not op:
        raise errors.UsageError("--kernel-hash: every op kind has its own; name one with --op")
    sizes = (portfolio_size,) if portfolio_size else SIZES
    settings = Settings(trees=trees, leaves=leaves, rate=rate, min_leaf=min_leaf, sizes=sizes, seed=seed)
    tables, left_out, source = load_tables(
        database,
        device,
        op,
        {"kernel_hash": kernel_hash or None, "compiler": compiler or None, "regime": regime or None},
        (lambda data: None) if portfolio_only else training.check_enough,
    )
    if portfolio_only:
        print_left_out(left_out)
        found = {data.identity.op: describe_portfolios(data, settings.sizes) for data in tables}
        print_portfolios(found, as_json)
        return
    folder = out or training.default_folder(tables[0].identity.sku)
    left_out = {name: reason + describe_earlier(folder / name) for name, reason in left_out.items()}
    print_left_out(left_out)
    # All are fitted before any is written: a folder never holds op kinds of different data.
    chosen = [training.choose(data, settings) if choose else settings for data in tables]
    fitted = [(data, own, training.train(data, own)) for data, own in zip(tables, chosen, strict=True)]
    records = {
        data.identity.op: training.save(folder / data.identity.op, data, learned, own, source).to_json()
        for data, own, learned in fitted
    }
    print_records(folder, source, records, left_out, as_json)


def check_together(portfolio_only: bool, choose: bool, out: Path | None, trees: dict[str, bool]) -> None:
    """Raise UsageError for options that another one leaves without effect; `trees` are those that --choose sets."""
    given = [flag for flag, is_given in {"--out": out is not None, "--choose": choose, **trees}.items() if is_given]
    if portfolio_only and given:
        raise errors.UsageError(f"{', '.join(given)}: --portfolio-only trains and writes nothing; drop one of them")
    fixed = [flag for flag in given if flag in trees]
    if choose and fixed:
        raise errors.UsageError(f"{', '.join(fixed)}: --choose chooses the settings of the trees; drop one of them")


def load_tables(
    database: str, device: str, op: str, identity: dict, check: Callable
) -> tuple[list, dict[str, str], str]:
    """Return a table of measurements per op kind that has enough, as `check` finds, too, why others are left out, and
    the database that they come from.
    """
    from tuner.learn.dataset import load_dataset
    from tuner.learn.each_op import try_each
    from tuner.learn.sources import find_device, find_ops, open_database

    with open_database(database, device) as store:
        sku = find_device(store, device).sku

        def load(kind: str):
            data = load_dataset(store, sku, op=kind, **identity)
            check(data)
            return data

        found, left_out = try_each(find_ops(store, sku, op), load)
        return list(found.values()), left_out, str(store.target)


def describe_earlier(folder: Path) -> str:
    """Return what becomes of an earlier training of an op kind that is left out, if there is one."""
    from tuner.learn.train import TRAINING

    if not (folder / TRAINING).is_file():
        return ""
    return f"; its earlier training stays for `evaluate` and `export`: remove {folder} to have none"


def print_portfolios(found: dict, as_json: bool) -> None:
    """Print the portfolios and the folds' unions, as JSON that `sweep --configs` reads or one config per line."""
    if as_json:
        configs = [config for entry in found.values() for config in entry["configs"]]
        print(json.dumps({"configs": configs, "ops": found}, indent=1))
        return
    for op, entry in found.items():
        print(
            f"{op}: portfolio of {len(entry['portfolio'])} configs; {len(entry['configs'])} with those of every fold:"
        )
        for config in entry["configs"]:
            print(f"  {json.dumps(config)}{'' if config in entry['portfolio'] else '  (folds only)'}")


def print_records(folder: Path, source: str, records: dict, left_out: dict, as_json: bool) -> None:
    """Print what was trained, as JSON with why other op kinds were not, or as one line per fact."""
    if as_json:
        print(json.dumps({"folder": str(folder), "ops": records, "left_out": left_out}, indent=1, sort_keys=True))
        return
    print(f"measurements of {hide_credentials(source)}")
    for op, record in records.items():
        print_record(op, record)
    print(f"written: {folder}; next: python -m tuner evaluate --training {folder}")


def print_record(op: str, record: dict) -> None:
    """Print what was trained for one op kind."""
    data, guards = record["data"], record["guards"]
    print(
        f"{op}: {data['problems']} problems ({data['full_space_problems']} over the whole space) in {data['families']}"
        f" families, {data['configs']} configs"
    )
    if data["older"]:
        print(f"{data['older']} problems are of older kernels, whose rows serve (deep_gemm/older_kernels.py)")
    if data["dropped"] or data["quarantined"]:
        dropped = ", ".join(f"{count} problems ({reason})" for reason, count in data["dropped"].items())
        print(f"left out: {dropped or 'none'}; quarantined: {', '.join(data['quarantined']) or 'none'}")
    for size, score in record["portfolio_curve"].items():
        print(f"portfolio of {size}: {score:z.2%} behind the best on left-out families")
    print(
        f"model: {record['settings']['trees']} trees; margin {guards['margin']:.1%}, hull +{guards['slack']:.0%};"
        f" exact table of {len(record['portfolio'])} configs"
    )
