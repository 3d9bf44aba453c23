"""The winner of a block: only right confirmed rows count, and ties go to the heuristic's pick."""

from deep_gemm import _C
from tuner.measure.records import Result
from tuner.search.winners import choose_winner

FIRST, SECOND, THIRD = _C.get_default_space(_C.Problem("fp8_gemm", 64, 512, 512), _C.Device.known("h200"))[:3]


def make(config, ratio: float, role: str = "confirm", status: str = "ok") -> Result:
    """Return what a config got."""
    return Result(config=config, role=role, status=status, ratio=ratio)


def choose(rows, heuristic=THIRD, noise: float = 0.001, reference_us: float = 10.0):
    return choose_winner(rows, heuristic, reference_us, noise, set())


def test_only_right_confirmed_rows_count():
    rows = [make(FIRST, 1.0), make(SECOND, 0.5, role="search"), make(THIRD, 0.5, status="incorrect")]
    assert choose(rows).config == FIRST and choose(rows).ties == [FIRST]


def test_ties_go_to_the_heuristics_pick():
    rows = [make(FIRST, 0.999), make(SECOND, 1.0), make(THIRD, 2.0)]
    assert choose(rows, heuristic=FIRST).config == FIRST and choose(rows, heuristic=SECOND).config == SECOND
    assert choose(rows).ties == [FIRST, SECOND]


def test_in_a_noisy_block_more_configs_tie():
    rows = [make(FIRST, 0.98), make(SECOND, 1.0)]
    assert choose(rows, heuristic=SECOND, reference_us=100.0).config == FIRST
    noisy = choose(rows, heuristic=SECOND, noise=0.015, reference_us=100.0)
    assert noisy.config == SECOND and noisy.ties == [FIRST, SECOND]


def test_without_a_right_row_nobody_wins():
    assert choose([make(FIRST, 1.0, status="crash"), make(SECOND, 1.0, role="search")]) is None
