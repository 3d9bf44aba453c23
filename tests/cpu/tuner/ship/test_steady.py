"""Of configs that tie on masked groups, the one that bears a group with all rows; it may join the table for that."""

from types import SimpleNamespace

import numpy as np
import pytest

from deep_gemm import _C
from tuner.learn.dataset import CONFIRMED, SEARCHED
from tuner.ship import exact_table, steady
from tuner.ship.steady import UNEVEN_GAIN, choose_steady_extra, make_uneven, prefer_steady

DEVICE = _C.Device.known("h100")
MASKED = _C.Problem("m_grouped_fp8_gemm_masked", 4096, 7168, 3072, num_groups=32, expected_m=20)
NARROW, WIDE = _C.Config(24, 64, 6, swap_ab=1), _C.Config(32, 256, 5, swap_ab=1)
SLACK = np.log(1.01)


def make_data(problem=MASKED, log_ratio=0.008, state=CONFIRMED):
    """Return a table in which WIDE takes exp(log_ratio) times as long as NARROW."""
    return SimpleNamespace(
        problems=[problem],
        configs=[NARROW, WIDE],
        device=DEVICE,
        log_ratio=np.array([[0.0, log_ratio]]),
        state=np.array([[CONFIRMED, state]]),
        heuristic=np.array([0]),
    )


def choose(columns=(0, 1), **case):
    """Return the config that is chosen where NARROW was."""
    data = make_data(**case)
    return data.configs[prefer_steady(data, np.array([0]), np.array(columns), SLACK)[0]]


def test_a_config_that_ties_is_chosen_for_uneven_sizes():
    narrow, wide = _C.estimate_times_us(make_uneven(MASKED), [NARROW, WIDE], DEVICE)
    assert wide < (1.0 - UNEVEN_GAIN) * narrow
    assert choose() == WIDE and choose(log_ratio=0.012) == NARROW


@pytest.mark.parametrize(
    "case",
    [
        {"state": SEARCHED},
        {"columns": (0,)},
        {"problem": _C.Problem("m_grouped_fp8_gemm_masked", 4096, 7168, 3072, num_groups=1, expected_m=20)},
        {"problem": _C.Problem("m_grouped_fp8_gemm_masked", 4096, 7168, 3072, num_groups=32)},
        {"problem": _C.Problem("batched_fp8_gemm", 20, 7168, 3072, num_groups=32)},
    ],
)
def test_else_the_choice_stays(case):
    assert choose(**case) == NARROW


@pytest.mark.parametrize(
    ("case", "extra"),
    [
        ({"columns": (0,)}, [1]),
        ({"columns": (0,), "count": 0}, []),
        ({"columns": (0, 1)}, []),
        ({"columns": (0,), "log_ratio": 0.012}, []),
        ({"columns": (0,), "state": SEARCHED}, []),
    ],
)
def test_a_config_joins_the_table_for_uneven_sizes(case, extra):
    columns, count = np.array(case.pop("columns")), case.pop("count", 9)
    found = choose_steady_extra(make_data(**case), np.array([0]), columns, SLACK, count)
    assert found.tolist() == extra


def test_the_config_that_serves_most_problems_joins_first():
    data = make_data()
    small, wide = _C.Config(32, 128, 10, swap_ab=1), 1
    data.configs = [NARROW, WIDE, small]
    data.problems = [MASKED] * 3
    data.log_ratio = np.array([[0.0, 0.5, 0.0], [0.0, 0.0, 0.5], [0.0, 0.0, 0.5]])
    data.state = np.full((3, 3), CONFIRMED)
    chosen = np.zeros(3, int)
    assert choose_steady_extra(data, chosen, np.array([0]), SLACK, 9).tolist() == [wide, 2]
    assert choose_steady_extra(data, chosen, np.array([0]), SLACK, 1).tolist() == [wide]


@pytest.mark.parametrize(("wide_us", "is_chosen"), [(91.0, False), (89.0, True)])
def test_a_tie_must_gain_a_tenth(wide_us, is_chosen, monkeypatch):
    times = {0: 100.0, 1: wide_us}
    monkeypatch.setattr(steady, "estimate_uneven", lambda data, row, columns: [times[one] for one in columns])
    assert (choose() == WIDE) == is_chosen


@pytest.mark.parametrize(("best_us", "extra"), [(78.0, []), (76.0, [2])])
def test_what_joins_must_gain_a_tenth_over_what_the_table_has(best_us, extra, monkeypatch):
    times = {0: 100.0, 1: 85.0, 2: best_us}
    monkeypatch.setattr(steady, "estimate_uneven", lambda data, row, columns: [times[one] for one in columns])
    data = make_data()
    data.configs = [NARROW, WIDE, _C.Config(32, 128, 10, swap_ab=1)]
    data.log_ratio, data.state = np.zeros((1, 3)), np.full((1, 3), CONFIRMED)
    assert choose_steady_extra(data, np.array([0]), np.array([0, 1]), SLACK, 9).tolist() == extra


@pytest.mark.parametrize(("room", "configs"), [(64, [NARROW, WIDE]), (1, [NARROW])])
def test_the_exact_table_names_a_config_that_joined(room, configs, monkeypatch):
    monkeypatch.setattr(exact_table, "MAX_CONFIGS", room)
    data = make_data()
    data.search = data.log_ratio
    assert exact_table.choose_exact(data, [NARROW]) == (configs, {MASKED: len(configs) - 1})


def test_what_joined_for_uneven_sizes_is_an_entry_where_the_first_choice_has_no_confirmed_time():
    data = make_data()
    data.state, data.search = np.array([[SEARCHED, CONFIRMED]]), data.log_ratio
    assert exact_table.choose_exact(data, [NARROW, WIDE]) == ([NARROW, WIDE], {MASKED: 1})


def test_uneven_groups_have_no_more_rows_than_there_is_room_for():
    assert make_uneven(MASKED).expected_m == 640 and make_uneven(MASKED).num_groups == 1
    crowded = _C.Problem("m_grouped_bf16_gemm_masked", 1024, 64, 64, num_groups=32, expected_m=192)
    assert make_uneven(crowded).expected_m == 1024
