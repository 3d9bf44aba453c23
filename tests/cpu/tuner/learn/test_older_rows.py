"""Rows of older kernels whose measurements choose for the newest ones: a sweep of some problems ends none of them."""

from dataclasses import asdict, replace

import pytest

from deep_gemm import older_kernels
from tests.fakes import synthetic
from tuner import cli, errors
from tuner.db import Store
from tuner.db.publish import snapshot
from tuner.learn import audit, dataset, record, train
from tuner.learn.dataset import load_dataset
from tuner.learn.typed import make_typed

NEW, OLD = synthetic.KERNEL_HASH, "cd" * 32


def write_both(path) -> set:
    """Write all problems with the older kernels, half as fast, and return those that the newest ran, too."""
    rows = synthetic.make_small_rows()
    problems = list(dict.fromkeys(row.block.problem for row in rows))
    both = set(problems[: len(problems) // 2])
    slower = [
        replace(row, block=replace(row.block, kernel_hash=OLD), ratio=row.ratio and 2 * row.ratio) for row in rows
    ]
    synthetic.write_database(path, slower)
    synthetic.write_database(path, [row for row in rows if row.block.problem in both])
    return both


def test_problems_of_older_kernels_that_serve_the_newest_count_too(tmp_path, monkeypatch):
    """Of a problem that both ran, the newest kernels' rows do; asked for a hash, its rows alone."""
    new, old, path = NEW, OLD, tmp_path / "tuning.db"
    both = write_both(path)
    with Store.open(path, mode="ro") as store:
        alone = load_dataset(store, synthetic.SKU)
        monkeypatch.setattr(older_kernels, "SERVED", {alone.identity.op: (new, old)})
        joined, asked = load_dataset(store, synthetic.SKU), load_dataset(store, synthetic.SKU, kernel_hash=new)
        of_old = load_dataset(store, synthetic.SKU, kernel_hash=old)
    assert asked.problems == alone.problems and set(alone.problems) <= both and alone.older == asked.older == 0
    assert joined.identity == alone.identity and joined.problems == of_old.problems
    assert joined.older == len(joined.problems) - len(alone.problems) > 0
    for place, problem in enumerate(joined.problems):
        source = alone if problem in alone.problems else of_old
        row = source.problems.index(problem)
        for column, config in enumerate(joined.configs):
            if joined.state[place, column] != dataset.UNMEASURED:
                assert joined.log_ratio[place, column] == source.log_ratio[row, source.configs.index(config)]


def test_a_record_says_how_many_there_are():
    counts = record.count_data(replace(synthetic.make_small_dataset(), older=3))
    stored = asdict(counts)
    assert counts.older == 3 and make_typed(record.DataCounts, stored) == counts
    del stored["older"]  # as before there were any
    assert make_typed(record.DataCounts, stored).older == 0


def test_what_was_trained_with_older_rows_is_read_with_them(tmp_path, monkeypatch):
    """`evaluate` and `export` refuse a training whose data has changed."""
    path, folder, op = tmp_path / "tuning.db", tmp_path / "training", "fp8_gemm"
    write_both(path)
    monkeypatch.setattr(older_kernels, "SERVED", {op: (NEW, OLD)})
    words = ["train", "--db", str(path), "--out", str(folder), "--trees", "3", "--portfolio-size", "4"]
    assert cli.run(words) == 0
    found, data = train.load_with_data(folder / op, "")
    assert found.record.data.older == data.older > 0
    with Store.open(path, mode="ro") as store:
        audited = audit.audit_op(store, synthetic.SKU, op)
    assert audited.censored == (data.state == dataset.CENSORED).sum()
    assert (audited.blocks, audited.older) == (len(data.problems), data.older)
    monkeypatch.setattr(older_kernels, "SERVED", {})
    with pytest.raises(errors.IntegrityError, match="changed since training"):
        train.load_with_data(folder / op, "")


@pytest.mark.parametrize("serving", [(NEW, OLD), pytest.param((NEW,), marks=pytest.mark.full)])
def test_a_snapshot_keeps_what_training_joins(tmp_path, monkeypatch, serving):
    """However little room there is; rows of older kernels that the newest ran as well, or that do not serve, go."""
    path, target = tmp_path / "tuning.db", tmp_path / "published.db"
    both = write_both(path)
    monkeypatch.setattr(older_kernels, "SERVED", {"fp8_gemm": serving})
    with Store.open(path, mode="ro") as store:
        data = load_dataset(store, synthetic.SKU)
    whole = snapshot(path, target, sku=synthetic.SKU)
    target.unlink()
    small = snapshot(path, target, sku=synthetic.SKU, max_bytes=whole["bytes"] - 1)
    with Store.open(target, mode="immutable") as store:
        kept = load_dataset(store, synthetic.SKU)
        of_old = {row.block.problem for row in store.load_measurements(kernel_hash=OLD)}
    assert kept.problems == data.problems and (kept.state == data.state).all() and kept.older == data.older
    assert of_old == (set(data.problems) - both if len(serving) > 1 else set())
    assert [each["kernel_hash"] for each in small["left_out"]] == [OLD]
