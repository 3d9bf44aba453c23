"""The learned residual: honest targets, choices among the best by estimate, nothing outside the hull."""

from dataclasses import replace

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tests.fakes.grouped_variants import CONTIGUOUS, make_grouped
from tuner.learn import learner, residual
from tuner.learn.dataset import CONFIRMED, UNMEASURED, build_dataset

TREES = learner.Settings().of_trees()


@pytest.fixture(scope="module")
def rows(data):
    return residual.make_config_rows(data)


@pytest.fixture(scope="module")
def fitted(data, rows):
    return residual.fit_trees(data, rows, TREES)


def test_rows_are_the_best_by_estimate_and_the_measured_best(data, rows):
    assert len(set(zip(rows.problem.tolist(), rows.column.tolist(), strict=True))) == len(rows.problem)
    first = rows.place == 0
    assert (rows.column[first] == data.heuristic[rows.problem[first]]).all()
    late = {(256, 112, 1), (64, 224, 1), (64, 256, 1), *((64, n, split) for n in (40, 48) for split in (2, 4, 8))}
    is_late = np.array([(config.block_m, config.block_n, config.split_k) in late for config in data.configs])
    assert not rows.estimate[first & ~is_late[rows.column]].any() and (rows.estimate[first] <= 0.0).all()
    for row in np.flatnonzero(data.full_space):
        own = rows.of(np.array([row]))
        ranked = own.where(own.place != residual.UNRANKED)
        assert data.oracle[row] in own.column and (np.diff(ranked.estimate[np.argsort(ranked.place)]) >= 0).all()


def test_targets_are_centred_and_near_optimal_rows_weigh_most(data, rows):
    targets, weights = residual.make_row_targets(data, rows)
    for problem in np.unique(rows.problem):
        own = rows.problem == problem
        assert (weights[own] * targets[own]).sum() == pytest.approx(0.0, abs=1e-9)
        times = data.log_ratio[problem, rows.column[own]]
        assert weights[own][times.argmin()] == weights[own].max() == pytest.approx(1 + residual.LEAST_WEIGHT)
        near = times < times.min() + residual.SLOWEST
        raw = times[near] - rows.estimate[own][near] - targets[own][near]
        assert raw == pytest.approx(np.full(near.sum(), raw[0]))


def test_the_trees_are_those_of_scikit_learn_bit_by_bit(data, rows, monkeypatch):
    fitted = []

    class Kept(residual.HistGradientBoostingRegressor):
        def fit(self, *arguments, **named):
            fitted.append(self)
            return super().fit(*arguments, **named)

    monkeypatch.setattr(residual, "HistGradientBoostingRegressor", Kept)
    forest = residual.fit_trees(data, rows, TREES)
    own = rows.where(data.state[rows.problem, rows.column] != UNMEASURED).features
    expected = fitted[0].predict(rows.features[:, np.flatnonzero(np.ptp(own, axis=0) > 0)])
    assert (forest.predict(rows.features) == expected).all() and np.ptp(expected) > 0.05


def test_the_same_seed_gives_the_same_model(data, rows, fitted):
    again = residual.fit_trees(data, rows, TREES)
    assert all((array == again.to_arrays()[name]).all() for name, array in fitted.to_arrays().items())


def choose(data, rows, problems, forest, margin=0.0):
    hull = learner.widen(rows.features, learner.SLACK)
    learned = learner.Learned(None, forest, learner.Guards(margin), *hull)
    return learner.choose(data, problems, learned, rows).column


def test_the_residual_removes_most_of_the_regret_that_it_was_fitted_on(data, rows, fitted):
    full = np.flatnonzero(data.full_space)
    chosen = choose(data, rows, full, fitted)
    regret, base = (data.regret_log(full, columns).mean() for columns in (chosen, data.heuristic[full]))
    assert base > 0.005 and regret < 0.5 * base


def test_outside_the_hull_the_heuristic_stays(data, rows, fitted):
    far = rows.features.copy()
    far[:, _C.config_feature_names().index("log2_n")] += 100.0
    hull = learner.widen(rows.features, learner.SLACK)
    every = np.arange(len(data.problems))
    learned = learner.Learned(None, fitted, learner.Guards(0.0), *hull)
    choices = learner.choose(data, every, learned, rows._replace(features=far))
    assert (choices.column == data.heuristic).all() and not choices.answered.any()


def test_only_legal_configs_of_the_shortlist_are_chosen(data, rows, fitted):
    every = np.arange(len(data.problems))
    chosen = choose(data, rows, every, fitted)
    assert data.legal[every, chosen].all() and (chosen != data.heuristic).any()
    for row, column in zip(every, chosen, strict=True):
        assert data.configs[column] in _C.get_shortlist(data.problems[row], data.device, _C.NUM_RANKED)


def time_singles(machine, problem) -> list:
    """Return rows of a problem that no pair of tiles was timed for."""
    pick = _C.get_analytic_config(problem, machine.device)
    block = replace(machine.make_block(problem, pick), block_id=problem.m)
    configs = dict.fromkeys([pick, *_C.get_candidates(problem, machine.device)])
    return [
        machine.make_row(block, config, "search", 1.0 if config == pick else 1.3, 1.0, 0.0)
        for config in configs if config.cluster_m == 1
    ]  # fmt: skip


def test_trees_learn_from_what_the_run_time_asks_them_about():
    """It leaves pairs out where no row had any, and asks about what stands behind them."""
    machine = synthetic.Machine()
    rows = {m: time_singles(machine, make_grouped(CONTIGUOUS[0], m, 4096, 4096, 8)) for m in (8192, 16384)}
    own = replace(synthetic.IDENTITY, op=CONTIGUOUS[0])
    data = build_dataset([row for each in rows.values() for row in each], own, machine.device)
    learned = residual.make_config_rows(data)
    for index, problem in enumerate(data.problems):
        ranked = (learned.problem == index) & (learned.place != residual.UNRANKED)
        timed = {row.config for row in rows[problem.m]}
        shortlist = _C.get_shortlist(problem, machine.device, _C.NUM_RANKED, pairs=False)
        assert {data.configs[column] for column in learned.column[ranked]} == timed.intersection(shortlist)


def test_a_tile_counts_with_and_without_knobs_where_both_were_timed(data):
    """Where only one of them was timed the other is no row: nothing would be known of it."""
    column = {config: index for index, config in enumerate(data.configs)}
    seen = set()
    for row, problem in enumerate(data.problems):
        shortlist = _C.get_shortlist(problem, data.device, _C.NUM_RANKED)
        pairs = [(one, _C.without_loop_knobs(one)) for one in shortlist if one != _C.without_loop_knobs(one)]
        for pair in (each for each in pairs if all(config in column for config in each)):
            state, indices = data.state.copy(), [column[config] for config in pair]
            for is_timed in ((True, True), (True, False), (False, True)):
                state[row, indices] = np.where(is_timed, CONFIRMED, UNMEASURED)
                places = residual.find_places(replace(data, state=state), column, row)
                legal = data.legal[row, indices]
                assert [index in places for index in indices] == list(legal & is_timed)
                seen.add((is_timed, *legal.tolist()))
    assert len(seen) >= 3


def test_what_stands_in_for_the_heuristics_pick_is_compared_in_its_place(data):
    """Without a row in the first place the trees would not answer at all."""
    column = {config: index for index, config in enumerate(data.configs)}
    for row, problem in enumerate(data.problems):
        first, *others = (column.get(config) for config in _C.get_shortlist(problem, data.device, residual.NUM_LEARNED))
        stand_in = next(index for index in others if index is not None)
        heuristic, state = data.heuristic.copy(), data.state.copy()
        heuristic[row], state[row, first] = stand_in, UNMEASURED
        places = residual.find_places(replace(data, heuristic=heuristic, state=state), column, row)
        assert places[stand_in] == 0 and list(places.values()).count(0) == 1 and first not in places


def test_what_failed_is_no_row(data, rows):
    row = int(np.flatnonzero(data.full_space)[0])
    column = {config: index for index, config in enumerate(data.configs)}
    places = residual.find_places(data, column, row)
    second = next(index for index, place in places.items() if place > 0)
    failed = replace(data, failed=[data.configs[second]])
    assert residual.find_places(failed, column, row).keys() == places.keys() - {second}
    built = {data.configs[second]: {_C.kernel_identity(data.problems[row])}}
    assert residual.find_places(replace(failed, built=built), column, row) == places, "it built for this variant"


def test_features_are_rounded_to_values_of_their_own_and_few_stay():
    """Histograms of at most as many values need no weighted percentiles, which took 90 % of a fit."""
    drawn = np.random.default_rng(0).normal(size=(2000, 2)).astype(np.float32)
    features = np.column_stack((drawn, np.arange(2000, dtype=np.float32) % 7))
    rounded = residual.round_features(features)
    assert rounded.dtype == features.dtype and (rounded[:, 2] == features[:, 2]).all()
    for column in (0, 1):
        assert len(np.unique(rounded[:, column])) <= residual.MAX_LEVELS < 2000
        assert set(rounded[:, column]) <= set(features[:, column])
        ranks = features[:, column].argsort().argsort()
        assert np.abs(np.searchsorted(np.sort(features[:, column]), rounded[:, column]) - ranks).max() <= 16


def test_leaves_are_smaller_where_there_are_fewer_rows(data, rows):
    settings = residual.TreeSettings(4, 64, 0.3, 0, 0)
    assert [residual.choose_min_leaf(settings, count) for count in (100, 6000, 60000)] == [4, 10, 20]
    assert residual.choose_min_leaf(settings._replace(min_leaf=7), 60000) == 7
    small, large = (
        residual.fit_trees(data, rows, settings._replace(min_leaf=min_leaf)).to_arrays() for min_leaf in (0, 200)
    )
    assert len(small["feature"]) > len(large["feature"])


def test_examples_from_elsewhere_count_by_their_weights(data, rows):
    """With hardly any weight they change nothing but the histograms; with much of it the trees follow them."""
    settings = residual.TreeSettings(16, 15, 0.3, 20, 0)
    own = residual.make_examples(data, rows)
    alone = residual.fit_trees(data, rows, settings).predict(own.features)
    found = [
        residual.fit_trees(data, rows, settings, own._replace(targets=-own.targets, weights=weight * own.weights))
        for weight in (1e-9, 9.0)
    ]
    near, opposite = (np.corrcoef(forest.predict(own.features), alone)[0, 1] for forest in found)
    assert near > 0.9 and opposite < -0.9
