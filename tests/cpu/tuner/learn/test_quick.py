"""Calibration: which problems are measured, when the prior's trees stay, and when rounds end; a synthetic machine."""

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes import databases, synthetic
from tests.fakes.sweeps import run_sweep
from tuner.db import Store
from tuner.learn import quick
from tuner.learn.dataset import build_dataset, load_dataset
from tuner.learn.families import find_families
from tuner.learn.learner import Settings, choose
from tuner.learn.residual import make_config_rows
from tuner.problems import regimes

DEVICE = _C.Device.known("h200")
POOL = [_C.Problem("fp8_gemm", m, n, k) for n, k in synthetic.SHAPES[1::2] for m in (8, 96, 1500)]
#: With more m a shape, for what is learned in several rounds.
LARGE_POOL = [_C.Problem("fp8_gemm", m, n, k) for n, k in synthetic.SHAPES[1::2] for m in (8, 32, 96, 400, 1500)]
SETTINGS = Settings(trees=32, sizes=(8,))
#: Eight shapes teach little of this machine.
KEPT = 0.04


def make_calibration(pool=POOL) -> quick.Calibration:
    """Return a calibration that starts from the synthetic machine's rows."""
    prior = quick.make_source(synthetic.make_small_dataset(), quick.PRIOR_WEIGHT)
    return quick.Calibration("fp8_gemm", DEVICE, prior, list(pool), SETTINGS)


def measure(problems: list, is_other: bool) -> quick.Dataset:
    """Return the table of some problems on the synthetic machine, or on one whose wide tiles are 30 % slower."""
    known = synthetic.true_time_us

    def time_us(problem, config, device) -> float:
        return known(problem, config, device) * (1.3 if config.block_n >= 128 else 1.0)

    with pytest.MonkeyPatch.context() as patch:
        if is_other:
            patch.setattr(synthetic, "true_time_us", time_us)
        machine = synthetic.Machine(seed=4)  # of six seeds three end after two rounds, the second no better
        rows = [row for problem in problems for row in machine.measure(problem, _C.get_candidates(problem, DEVICE))]
    return build_dataset(rows, synthetic.IDENTITY, DEVICE)


def run(calibration: quick.Calibration, pool: list, is_other: bool) -> None:
    """Run rounds until none is worth it."""
    while not calibration.is_done:
        batch = calibration.choose_batch()
        problems = [problem for problem in pool if problem in calibration.measured or problem in batch]
        calibration.learn(batch, measure(problems, is_other))


@pytest.fixture(scope="module")
def same():
    found = make_calibration()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quick, "KEPT_MEAN", KEPT)
        run(found, POOL, False)
    return found


@pytest.fixture(scope="module")
def other():
    found = make_calibration(LARGE_POOL)
    run(found, LARGE_POOL, True)
    return found


def test_on_the_same_machine_one_round_shows_that_the_trees_may_stay(same):
    prior = make_calibration()
    assert same.is_kept and len(same.rounds) == 1 and len(same.measured) == quick.ROUND
    assert same.rounds[0].mean <= min(KEPT, same.rounds[0].heuristic)
    rows = prior.prior.rows.features
    assert (same.learned.forest.predict(rows) == prior.learned.forest.predict(rows)).all()


def test_on_another_machine_the_trees_are_fitted_until_they_get_no_better(other):
    assert not other.is_kept and 2 <= len(other.rounds) <= 6
    means = [each.mean for each in other.rounds]
    assert means[0] > KEPT and min(means[1:]) < 0.7 * means[0]
    assert other.is_done and len(other.measured) == quick.ROUND * len(other.rounds)


def test_what_was_learned_serves_problems_that_no_round_measured(other):
    left = [problem for problem in LARGE_POOL if problem not in other.measured]
    data = measure(left, True)
    rows, every = make_config_rows(data), np.arange(len(data.problems))
    before, after = (
        data.regret_log(every, choose(data, every, learned, rows).column).mean()
        for learned in (make_calibration().learned, other.finish())
    )
    assert after < 0.7 * before and after < 0.7 * data.regret_log(every, data.heuristic).mean()


def test_the_first_problems_are_those_of_most_doubt_and_of_different_families():
    calibration = make_calibration()
    batch, doubts = calibration.choose_batch(), calibration.measure_doubt(POOL)
    families = find_families(POOL)
    best = {family: max(doubts[families == family]) for family in set(families.tolist())}
    chosen = [families[POOL.index(problem)] for problem in batch]
    assert len(set(chosen)) == quick.ROUND <= len(best)
    assert (
        sorted((best[family] for family in chosen), reverse=True) == sorted(best.values(), reverse=True)[: quick.ROUND]
    )


def test_few_problems_fill_a_round_whatever_their_family():
    pool = [problem for problem in POOL if (problem.n, problem.k) == (POOL[0].n, POOL[0].k)]
    assert set(make_calibration(pool).choose_batch()) == set(pool)


def test_where_the_trees_would_not_answer_doubt_is_large():
    far = _C.Problem("bf16_gemm", 64, 4096, 7168)
    assert make_calibration().measure_doubt([far, POOL[0]]).tolist()[0] == quick.UNANSWERED


def test_no_problem_is_learned_from_before_a_round_has_scored_it(monkeypatch):
    """The database may have rows of these kernels from before."""
    calibration, fitted, known = make_calibration(), [], quick.fit
    batch = calibration.choose_batch()
    data = measure([*batch, *[problem for problem in POOL if problem not in batch][:4]], True)
    monkeypatch.setattr(quick, "KEPT_MEAN", -1.0)
    monkeypatch.setattr(quick, "fit", lambda data, places, *rest: fitted.append(places) or known(data, places, *rest))
    calibration.learn(batch, data)
    assert {data.problems[place] for place in fitted[-1]} == set(batch) < set(data.problems)


def test_the_prior_is_of_other_kernels_of_this_gpu_else_of_another_gpu():
    with Store.open(synthetic.make_small_database(), "ro") as store:
        assert (
            quick.find_prior(store, synthetic.SKU, "fp8_gemm", "cd" * 32).identity.kernel_hash == synthetic.KERNEL_HASH
        )
        assert quick.find_prior(store, synthetic.SKU, "fp8_gemm", synthetic.KERNEL_HASH) is None
        sibling = quick.find_prior(store, "nvidia-h100-sm132", "fp8_gemm", synthetic.KERNEL_HASH)
        assert sibling.identity.sku == synthetic.SKU and len(sibling.problems) > 20
        assert quick.find_prior(store, synthetic.SKU, "bf16_gemm", "cd" * 32) is None


def test_a_prior_of_too_few_problems_gives_way_to_the_next(tmp_path):
    """One problem of the newest older kernels was all that a calibration had, and ended it for every op kind."""
    path = tmp_path / "a.db"
    path.write_bytes(synthetic.make_small_database().read_bytes())
    with Store.open(path) as store:
        context = databases.add_context(store, 1)
        limited = _C.Device.known(f"{synthetic.SKU}-500w")
        device_id = store.get_or_add_device(limited.as_dict() | {"uuid": "GPU-1"})
        problem = databases.make_problem()
        databases.add_block(store, context, problem, kernel_hash="cd" * 32)
        databases.add_block(store, context | {"device_id": device_id}, problem, kernel_hash="ef" * 32)
    with Store.open(path, "ro") as store:
        for sku in (synthetic.SKU, limited.sku):
            (found,) = quick.list_priors(store, sku, "fp8_gemm", "89" * 32)
            assert (found.identity.sku, found.identity.kernel_hash) == (synthetic.SKU, synthetic.KERNEL_HASH)


def test_a_prior_has_the_mean_of_both_ways_of_timing(few_sources, tmp_path):
    problems = [_C.Problem("fp8_gemm", m, 7168, 4096) for m in (2048, 4096)]
    few = _C.get_candidates(problems[0], DEVICE)[::8]
    run_sweep(tmp_path / "a.db", problems, configs=few)
    with Store.open(tmp_path / "a.db", "ro") as store:
        rows, data = store.load_measurements(), load_dataset(store, synthetic.SKU)
        prior = quick.find_prior(store, synthetic.SKU, "fp8_gemm", "cd" * 32, "simulated")
        assert quick.find_prior(store, synthetic.SKU, "fp8_gemm", "cd" * 32) is None
    assert (prior.log_ratio == data.log_ratio).all() and prior.identity == data.identity
    steady = build_dataset([row for row in rows if regimes.is_own(row.block.regime)], data.identity, DEVICE)
    assert (steady.log_ratio != prior.log_ratio).any()


def test_rounds_are_folds_of_their_own(other):
    results = other.make_results()
    assert [result.fold.label for result in results] == [f"round {n}" for n in range(1, 1 + len(other.rounds))]
    data = other.own.data
    for each, result in zip(other.rounds, results, strict=True):
        logs = data.regret_log(result.rows, result.columns["model"])
        assert {data.problems[row] for row in result.rows} == set(each.problems)
        assert np.expm1(logs.mean()) == pytest.approx(each.mean, abs=0.003)  # offsets of further blocks


def test_the_pool_has_the_presets_problems_of_one_op_kind():
    pool = quick.list_pool("m_grouped_fp8_gemm_masked")
    assert len(pool) > 50 and len(set(pool)) == len(pool) and {problem.op for problem in pool} == {pool[0].op}
