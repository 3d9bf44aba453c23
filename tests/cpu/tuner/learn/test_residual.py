"""The learned residual: honest targets, choices among the best by estimate, nothing outside the hull."""

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tuner.learn import learner, residual


@pytest.fixture(scope="module")
def data():
    return synthetic.make_small_dataset()


@pytest.fixture(scope="module")
def rows(data):
    return residual.make_config_rows(data)


@pytest.fixture(scope="module")
def fitted(data, rows):
    return residual.fit_residual(data, rows, learner.Settings())


def test_rows_are_the_best_by_estimate_and_the_measured_best(data, rows):
    assert len(set(zip(rows.problem.tolist(), rows.column.tolist(), strict=True))) == len(rows.problem)
    first = rows.place == 0
    assert (rows.column[first] == data.heuristic[rows.problem[first]]).all() and not rows.estimate[first].any()
    for row in np.flatnonzero(data.full_space):
        own = rows.of(np.array([row]))
        assert data.oracle[row] in own.column and (np.diff(own.estimate[np.argsort(own.place)][:8]) >= 0).all()


def test_targets_are_centred_and_near_optimal_rows_weigh_most(data, rows):
    targets, weights = residual.make_row_targets(data, rows)
    for problem in np.unique(rows.problem):
        own = rows.problem == problem
        assert (weights[own] * targets[own]).sum() == pytest.approx(0.0, abs=1e-9)
        times = data.log_ratio[problem, rows.column[own]]
        assert weights[own][times.argmin()] == weights[own].max() == pytest.approx(1.02)
        near = times < times.min() + residual.SLOWEST
        raw = times[near] - rows.estimate[own][near] - targets[own][near]
        assert raw == pytest.approx(np.full(near.sum(), raw[0]))


def test_the_same_seed_gives_the_same_model(data, rows, fitted):
    again = residual.fit_residual(data, rows, learner.Settings())
    assert (again.predict(rows.features) == fitted.predict(rows.features)).all()


def test_the_residual_removes_most_of_the_regret_that_it_was_fitted_on(data, rows, fitted):
    full = np.flatnonzero(data.full_space)
    chosen = residual.choose_by_residual(data, rows, full, fitted)
    regret, base = (data.regret_log(full, columns).mean() for columns in (chosen, data.heuristic[full]))
    assert base > 0.005 and regret < 0.5 * base


def test_outside_the_hull_the_estimate_stays(data, rows, fitted):
    far = rows.features.copy()
    far[:, 1] += 100.0
    assert fitted.predict(rows.features).any() and not fitted.predict(far).any()
    moved = rows._replace(features=far)
    every = np.arange(len(data.problems))
    assert (residual.choose_by_residual(data, moved, every, fitted) == data.heuristic).all()


def test_only_legal_configs_are_chosen(data, rows, fitted):
    every = np.arange(len(data.problems))
    chosen = residual.choose_by_residual(data, rows, every, fitted)
    assert data.legal[every, chosen].all() and (chosen != data.heuristic).any()
    for row, column in zip(every, chosen, strict=True):
        problem = data.problems[row]
        ranked = _C.rank_candidates(problem, data.device, residual.NUM_RANKED)
        assert data.configs[column] in {*ranked, *(_C.with_loop_knobs(problem, tile, data.device) for tile in ranked)}
