"""What a snapshot keeps of the times of search rows."""

import random

import pytest

from tests.fakes.databases import CONFIGS, add_block, add_context, make_problem, make_row
from tuner.db import Store, snapshot


@pytest.mark.parametrize(
    ("role", "median_us", "kept_us"),
    [("search", 249.9, 249.9), ("search", 250.3, 250.0), ("search", 1234.56, 1235.0), ("confirm", 1234.56, 1234.56)],
)
def test_times_of_long_search_rows_are_whole(tmp_path, role, median_us, kept_us):
    """Their ratios stay exact."""
    path = tmp_path / "tuning.db"
    with Store.open(path) as store:
        block_id = add_block(store, add_context(store), make_problem())
        row = make_row(random.Random(0), block_id, store.get_or_add_config("fp8_gemm", CONFIGS[9]), role)
        store.add_measurements([row | {"status": "ok", "median_us": median_us, "ratio": 1.0123456}])
    snapshot(path, tmp_path / "published.db")
    with Store.open(tmp_path / "published.db", "immutable") as after:
        found = [(one.median_us, one.ratio) for one in after.load_measurements() if one.ratio == 1.0123456]
    assert found == [(kept_us, 1.0123456)]
