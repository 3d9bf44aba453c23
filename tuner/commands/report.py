"""python -m tuner report: one HTML page about a database."""

from pathlib import Path

import typer

from tuner.commands import options as shared_options

#: The README's pictures in a clone, whose descriptions hold the rows of the committed benchmarks; and their GPU.
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
PICTURES = {"speed": "speed.svg", "regret": "regret.svg"}


def register(app) -> None:
    """Add `report` to the command line."""
    app.command("report")(report)


def report(
    out: Path = typer.Option(Path("report.html"), "--out", help="File to write."),
    database: str = shared_options.READ_DB,
    device: str = shared_options.SKU,
    op: str = shared_options.RECORDED_OP,
) -> None:
    """Write one HTML page about a database: speed, regret, coverage, noise, regressions.

    The page needs no other file. It has M-sweeps, config heat maps and a roofline, too.

    Example: python -m tuner report --out report.html
    """
    from deep_gemm._version import __version__
    from tuner.commands.inspect import find_regressions
    from tuner.files import write_whole
    from tuner.learn.sources import find_device, find_ops, open_database
    from tuner.report.collect import collect_op
    from tuner.report.drawing import import_matplotlib
    from tuner.report.page import make_page

    import_matplotlib()
    shared_options.check_file("--out", out)
    with open_database(database, device) as store:
        known = find_device(store, device)
        ops = [collect_op(store, known, name) for name in find_ops(store, known.sku, op)]
        name = Path(str(store.target)).name if "://" not in str(store.target) else "a database server"
        found = find_regressions(database, store, known.sku, op)
    regressions = {"a": found[0]["a"], "b": "the newest kernels", "ops": found} if found else None
    facts = {"sku": known.sku, "name": known.name, "database": name, "version": __version__, "ops": ops}
    page = make_page(facts | read_benchmarks(known.sku) | {"regressions": regressions})
    write_whole(out, page.encode("utf-8"))
    print(f"{out}: {len(page.encode()) / 1e6:.1f} MB, {len(ops)} op kinds of {known.sku} in {name}")


def read_benchmarks(sku: str) -> dict[str, list[dict]]:
    """Return the rows of the README's pictures, [] where they are of another GPU or not there."""
    from tuner.learn.sources import RECORDED_SKU
    from tuner.report.drawing import read_plotted

    paths = {name: IMAGES / file for name, file in PICTURES.items()}
    is_there = sku == RECORDED_SKU and all(path.is_file() for path in paths.values())
    return {name: read_plotted(path) if is_there else [] for name, path in paths.items()}
