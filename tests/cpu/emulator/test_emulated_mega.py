"""Kernels that bring tokens to experts on other GPUs, and add up what comes back, equal their formulas to the bit."""

import pytest

from tests.emulator.mega import compare_steps


@pytest.mark.parametrize(
    "ranks, tokens, experts, top_k, hidden, first",
    [
        (2, 21, 6, 3, 384, 4),
        *(
            pytest.param(*sizes, marks=pytest.mark.full)
            for sizes in ((1, 70, 70, 8, 128, 0), (3, 5, 99, 32, 1280, 1), (2, 130, 4, 1, 256, 0))
        ),
    ],
)
def test_each_step(emulate, ranks, tokens, experts, top_k, hidden, first):
    """More experts than a warp has lanes, as many choices, choices of nobody, and tokens in the middle of a buffer."""
    assert emulate(compare_steps, ranks, tokens, experts, top_k, hidden, first, seed=2) == []
