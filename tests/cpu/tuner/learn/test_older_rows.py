"""Rows of older kernels whose measurements choose for the newest ones: a sweep of some problems ends none of them."""

from dataclasses import asdict, replace

from deep_gemm import older_kernels
from tests.fakes import synthetic
from tuner.db import Store
from tuner.learn import dataset, record
from tuner.learn.dataset import load_dataset
from tuner.learn.typed import make_typed


def test_problems_of_older_kernels_that_serve_the_newest_count_too(tmp_path, monkeypatch):
    """Of a problem that both ran, the newest kernels' rows do; asked for a hash, its rows alone."""
    new, old, rows = synthetic.KERNEL_HASH, "cd" * 32, synthetic.make_small_rows()
    problems = list(dict.fromkeys(row.block.problem for row in rows))
    both, path = problems[: len(problems) // 2], tmp_path / "tuning.db"
    slower = [
        replace(row, block=replace(row.block, kernel_hash=old), ratio=row.ratio and 2 * row.ratio) for row in rows
    ]
    synthetic.write_database(path, slower)
    synthetic.write_database(path, [row for row in rows if row.block.problem in both])
    with Store.open(path, mode="ro") as store:
        alone = load_dataset(store, synthetic.SKU)
        monkeypatch.setattr(older_kernels, "SERVED", {alone.identity.op: (new, old)})
        joined, asked = load_dataset(store, synthetic.SKU), load_dataset(store, synthetic.SKU, kernel_hash=new)
        of_old = load_dataset(store, synthetic.SKU, kernel_hash=old)
    assert asked.problems == alone.problems and set(alone.problems) <= set(both) and alone.older == asked.older == 0
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
