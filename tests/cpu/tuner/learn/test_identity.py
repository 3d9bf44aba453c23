"""Which rows a table is made of where a database has several compilers and regimes."""

from types import SimpleNamespace

from tuner.db.rows import Identity
from tuner.learn import dataset


def test_compiler_and_regime_are_chosen_together():
    """Each alone, nvrtc and the regime `a` have most rows, but no row has both."""
    counts = {("nvcc", "a"): 334, ("nvrtc", "b"): 225, ("nvrtc", "c"): 221}
    blocks = [
        SimpleNamespace(identity=Identity("op", "sku", "hash", *pair), legal=SimpleNamespace(rows=rows))
        for pair, rows in counts.items()
    ]
    store = SimpleNamespace(load_summaries=lambda sku, op: blocks)
    assert dataset.choose_identity(store, "sku", "op", "hash", None, None) == blocks[0].identity
    assert dataset.choose_identity(store, "sku", "op", "hash", "nvrtc", None) == blocks[1].identity
    assert dataset.choose_identity(store, "sku", "op", "hash", None, "d") is None
