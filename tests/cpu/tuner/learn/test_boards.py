"""What the blocks of several boards say of one problem together."""

import numpy as np
import pytest

from tests.cpu.tuner.learn.test_dataset import PICK, PROBLEM, A, B, build, row, value_of
from tuner.learn.dataset import CONFIRMED


def test_a_block_without_search_rows_is_not_spoken_for_by_another_boards():
    """A snapshot leaves out the search rows of confirmed configs: the three rounds of a second board chose alone."""
    first = [row(config, ratio, role="confirm") for config, ratio in ((PICK, 1.0), (A, 0.90), (B, 0.93))]
    second = [
        row(config, ratio, role=role, block=2)
        for config, ratios in ((PICK, (1.0, 1.0)), (A, (0.96, 0.94)), (B, (0.95, 0.95)))
        for role, ratio in zip(("search", "confirm"), ratios, strict=True)
    ]
    data = build([*first, *second])
    place, column = data.problems.index(PROBLEM), data.configs.index
    assert data.search[place, column(A)] == pytest.approx(np.log([0.90, 0.96]).mean())
    assert data.search[place, column(B)] == pytest.approx(np.log([0.93, 0.95]).mean())
    assert data.oracle[place] == column(A) and value_of(data, A) == (
        pytest.approx(np.log([0.90, 0.94]).mean()),
        CONFIRMED,
    )
    assert build(second).oracle[build(second).problems.index(PROBLEM)] == build(second).configs.index(B)
