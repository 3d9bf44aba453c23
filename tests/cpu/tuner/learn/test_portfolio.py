"""The portfolio: near the best subset, sized on left-out families, made of measured configs only."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tests.fakes.weights import make_chain
from tuner.learn import portfolio
from tuner.learn.dataset import LOG_TWO, UNMEASURED
from tuner.learn.families import find_families, find_near, split_families


def test_greedy_with_swaps_comes_near_the_best_subset_of_small_tables():
    random, ratios = np.random.default_rng(0), []
    for _ in range(20):
        regret = random.exponential(0.1, (14, 9))
        best = min(regret[:, list(columns)].min(axis=1).mean() for columns in itertools.combinations(range(9), 3))
        chosen = portfolio.swap(regret, portfolio.greedy(regret, 3))
        assert len(set(chosen)) == 3
        ratios.append(regret[:, chosen].min(axis=1).mean() / best)
    assert min(ratios) >= 1.0 and np.mean(ratios) < 1.02 and max(ratios) < 1.2


def test_swaps_never_make_it_worse_and_undo_a_greedy_mistake():
    regret = np.array([[0.1, 0.0, 0.9], [0.1, 0.9, 0.0], [0.1, 0.0, 0.9], [0.1, 0.9, 0.0]])
    greedy = portfolio.greedy(regret, 2)
    assert greedy[0] == 0 and sorted(portfolio.swap(regret, greedy)) == [1, 2]


def test_greedy_never_takes_a_column_twice():
    assert sorted(portfolio.greedy(np.ones((5, 4)), 4)) == [0, 1, 2, 3]


def test_the_smallest_size_within_the_tolerance_wins():
    assert portfolio.choose_size({8: 0.05, 12: 0.0208, 16: 0.02}) == 12
    assert portfolio.choose_size({8: 0.05, 12: 0.03, 16: 0.02}) == 16


def test_folds_keep_families_whole_and_learn_from_nothing_near():
    problems = list(synthetic.make_small_dataset().problems)
    families = find_families(problems)
    splits = split_families(problems, families, 4)
    assert (np.sum([split.held_out for split in splits], axis=0) == 1).all()
    assert sum(len(set(families[split.held_out])) for split in splits) == len(set(families))
    for held_out, kept in splits:
        assert not (kept & find_near(problems, held_out)).any() and (kept | find_near(problems, held_out)).all()


def test_a_weight_near_a_held_out_one_is_of_neither_side():
    """Weights 1, 1.2 and 1.4 apart: the first two are a family; the third is near the second alone."""
    problems = [_C.Problem("fp8_gemm", 64, n, 4096) for n in (1024, 1216, 1472, 8192)]
    families = np.array([0, 0, 1, 2])
    splits = {int(families[split.held_out][0]): split for split in split_families(problems, families, 3)}
    assert splits[0].held_out.tolist() == [True, True, False, False]
    assert splits[0].kept.tolist() == [False, False, False, True]
    assert splits[1].kept.tolist() == [True, False, False, True]
    assert splits[2].kept.tolist() == [True, True, True, False]


def test_sizes_are_scored_without_weights_near_the_held_out_ones(monkeypatch):
    data, seen = synthetic.make_small_dataset(), []
    data = replace(data, **make_chain(data))
    monkeypatch.setattr(portfolio, "greedy", lambda regret, size: seen.append(len(regret)) or list(range(size)))
    rows = np.flatnonzero(data.full_space)
    portfolio.choose_portfolio(data, rows, (6,))
    problems, families = [data.problems[row] for row in rows], data.families[rows]
    splits = split_families(problems, families, portfolio.INNER_FOLDS)
    assert seen == [*(split.kept.sum() for split in splits), len(rows)]
    assert any(split.kept.sum() < (~split.held_out).sum() for split in splits)


def test_one_family_alone_takes_the_largest_size():
    data = synthetic.make_small_dataset()
    rows = np.flatnonzero(data.full_space & (data.families == data.families[0]))
    assert portfolio.choose_portfolio(data, rows, (4, 6)).curve == {6: 0.0}


def test_more_configs_serve_left_out_families_better_up_to_noise():
    data = synthetic.make_small_dataset()
    found = portfolio.choose_portfolio(data, np.arange(len(data.problems)), (4, 8, 16))
    assert found.curve[4] > found.curve[8] > found.curve[16] - 0.01 and len(found.columns) in (8, 16)


def test_what_was_measured_with_an_earlier_portfolio_plays_no_part():
    data = synthetic.make_small_dataset()
    rows = np.arange(len(data.problems))
    state, log_ratio = data.state.copy(), data.log_ratio.copy()
    state[~data.full_space], log_ratio[~data.full_space] = UNMEASURED, LOG_TWO
    changed = replace(data, state=state, log_ratio=log_ratio)
    assert (portfolio.choose_portfolio(changed, rows).columns == portfolio.choose_portfolio(data, rows).columns).all()


def test_configs_without_any_time_cannot_join():
    data = synthetic.make_small_dataset()
    rows = np.arange(len(data.problems))
    chosen = portfolio.choose_portfolio(data, rows, (6,)).columns
    state = data.state.copy()
    state[:, chosen[0]] = UNMEASURED
    again = portfolio.choose_portfolio(replace(data, state=state), rows, (6,)).columns
    assert chosen[0] not in again and len(again) == 6


def test_the_choice_is_deterministic_and_depends_on_the_given_rows_alone():
    data = synthetic.make_small_dataset()
    rows = np.flatnonzero(data.families != data.families[0])
    poisoned = data.log_ratio.copy()
    poisoned[data.families == data.families[0]] = np.random.default_rng(0).normal(
        size=poisoned[data.families == data.families[0]].shape
    )
    first, second = (
        portfolio.choose_portfolio(table, rows).columns.tolist() for table in (data, replace(data, log_ratio=poisoned))
    )
    assert first == second == portfolio.choose_portfolio(data, rows).columns.tolist()


def test_the_union_holds_what_every_fold_chooses():
    data = synthetic.make_small_dataset()
    found = portfolio.describe_portfolios(data, (6,))
    assert len(found["portfolio"]) == 6 and found["configs"][:6] == found["portfolio"]
    assert len(found["configs"]) == len({tuple(config.values()) for config in found["configs"]}) > 6


@pytest.mark.parametrize("size", [1, 32])
def test_extreme_sizes(size):
    data = synthetic.make_small_dataset()
    columns = portfolio.choose_portfolio(data, np.arange(len(data.problems)), (size,)).columns
    assert 1 <= len(columns) <= size and len(set(columns.tolist())) == len(columns)
