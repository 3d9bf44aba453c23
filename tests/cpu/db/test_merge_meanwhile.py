"""Merging a database that a sweep goes on writing to."""

from deep_gemm import _C
from tests.fakes.databases import add_block, add_context
from tuner.db import Store, merge, transfer


def test_what_a_sweep_stores_while_its_database_is_merged_comes_with_the_next_merge(tmp_path, monkeypatch):
    source, target = tmp_path / "source.db", tmp_path / "all.db"
    with Store.open(source) as store:
        add_block(store, add_context(store), _C.Problem("fp8_gemm", 64, 2112, 7168))
    add_to = transfer.add_to

    def add_late(*arguments):
        with Store.open(source) as store:
            add_block(store, add_context(store), _C.Problem("fp8_gemm", 128, 2112, 7168), num_configs=7)
        return add_to(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(transfer, "add_to", add_late)
        first = merge(target, [source])
    second = merge(target, [source])
    assert first["block"] == second["block"] == 1 and min(first["measurement"], second["measurement"]) > 0
    with Store.open(source, "ro") as one, Store.open(target, "ro") as other:
        assert one.count_measurements() == other.count_measurements()
