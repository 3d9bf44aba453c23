"""The learned choice: equal to scikit-learn bit by bit, and guarded at every step."""

import copy
import time

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.errors import ArgumentError, ModelError
from deep_gemm.selector import Selector
from tests.fakes.selectors import (
    DEVICE,
    KERNEL_HASH,
    MARGIN,
    OP,
    exact_arrays,
    get_rows,
    make_artifact,
    make_parts,
    make_problems,
    pack,
    widest_hull,
)
from tests.fakes.variants import make_variants
from tuner.learn.artifact import build_artifact

H100 = _C.Device.known("h100")


def load(change_metadata=None, **arrays):
    """Return the selector with changed metadata of the op or arrays."""
    metadata, original, _, _ = make_parts()
    metadata = copy.deepcopy(metadata)
    if change_metadata:
        change_metadata(metadata)
    return Selector(pack(metadata, original | arrays))


def change_op(**fields):
    return lambda metadata: metadata["ops"][OP].update(fields)


def change_top(**fields):
    return lambda metadata: metadata.update(fields)


@pytest.fixture
def no_exact():
    """A selector without an exact table, and the training problems."""
    return load(**exact_arrays([])), make_parts()[3]


def predict(model, problem) -> np.ndarray:
    """Return the scores of a problem's shortlist by scikit-learn: log ratios to the heuristic's pick, the first."""
    rows = get_rows(problem)
    predicted = rows[:, -1].astype(np.float64) + np.clip(model.predict(rows), -_C.MAX_RESIDUAL, _C.MAX_RESIDUAL)
    return np.concatenate([[0.0], predicted[1:] - predicted[0]])


# ---- scores ----


def test_scores_equal_scikit_learn_bit_by_bit():
    metadata, arrays, model, _ = make_parts(24, 100, 15)
    selector = Selector(pack(metadata, arrays | widest_hull()))
    num_rows = 0
    for problem in make_problems(400, seed=11):
        scores = selector.choose_learned(problem, DEVICE).scores
        assert list(scores) == _C.get_shortlist(problem, DEVICE, _C.NUM_RANKED)
        assert np.array_equal(list(scores.values()), predict(model, problem))
        num_rows += len(scores)
    assert num_rows > 3000


def test_residuals_are_clipped():
    every = {"tree_start": [0, 3], "feature": [len(_C.config_feature_names()) - 1, -1, -1]}
    every |= {"left": [1, 0, 1], "right": [2, -1, -1]}
    trees = {name: np.array(values, np.int32) for name, values in every.items()}
    trees |= {"threshold": np.array([1e-6, 0.0, 0.0]), "leaf_value": np.array([9.0, -9.0])}
    selector = load(**trees, **widest_hull())
    problem = make_parts()[3][30]
    rows = get_rows(problem)
    is_slower = rows[1:, -1] > 1e-6  # than the pick, by the estimate
    found = list(selector.choose_learned(problem, DEVICE).scores.values())[1:]
    assert is_slower.any() and found == pytest.approx(rows[1:, -1].astype(float) - 2 * _C.MAX_RESIDUAL * is_slower)


def test_thresholds_between_two_floats_compare_as_doubles():
    value = np.float32(0.1)
    for threshold, goes_left in (
        (float(value), True),
        (np.nextafter(float(value), 0), False),
        (np.nextafter(float(value), 1), True),
        (1e300, True),
        (-1e300, False),
    ):
        for score, is_found in ((1.0, goes_left), (2.0, not goes_left)):
            selector = one_split_selector(threshold, value, score)
            for lanes in (4, 8, 16):
                assert selector.replay_golden(lanes) == (0 if is_found else 1)


def one_split_selector(threshold: float, value: float, score: float):
    """Return a selector of one tree that splits on feature 0: left gives 1.0, right 2.0.

    Its golden vector says that features of `value` give `score`.
    """
    integers = {"tree_start": [0, 3], "feature": [0, -1, -1], "left": [1, 0, 1], "right": [2, -1, -1]}
    integers |= {"golden_start": [0, 1], "golden_choice": [0]}
    arrays = {name: np.array(values, np.int32) for name, values in integers.items()}
    golden = {
        "golden_features": np.full((1, make_parts()[1]["feature_min"].size), value, np.float32),
        "golden_scores": np.array([score]),
    }
    leaves = {"threshold": np.array([threshold, 0.0, 0.0]), "leaf_value": np.array([1.0, 2.0])}
    return load(**leaves, **arrays, **widest_hull(), **golden)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_vectors_of_every_width_give_the_same_bits(lanes):
    """Of those that this host has: without AVX-512, 16 is a narrower one again."""
    assert Selector(make_artifact()).replay_golden(lanes) == 0
    assert load(leaf_value=make_parts()[1]["leaf_value"] + 1.0).replay_golden(lanes) >= 200


def test_golden_vectors_replay_and_show_changes():
    assert Selector(make_artifact()).replay_golden() == 0
    original = make_parts()[1]
    scores, choices = original["golden_scores"].copy(), original["golden_choice"].copy()
    row = original["golden_start"][3] + 1
    scores[row] = np.nextafter(scores[row], 1)
    choices[5] = 1 if choices[5] == 0 else 0
    assert load(golden_scores=scores, golden_choice=choices).replay_golden() == 2
    assert load(leaf_value=original["leaf_value"] + 1.0).replay_golden() == original["golden_choice"].size >= 200


def test_metadata_and_configs():
    selector = load(change_op(quarantined=[2]))
    assert selector.sku == DEVICE.sku and selector.metadata["ops"][OP]["margin"] == MARGIN
    assert len(selector.configs(OP)) == 8 and selector.quarantined(OP) == [selector.configs(OP)[2]]
    with pytest.raises(AttributeError):
        selector.sku = "x"


# ---- the choice and its guards ----


def test_exact_table_answers_first(no_exact):
    selector, problems = Selector(make_artifact()), make_parts()[3]
    for index, problem in enumerate(problems[:20]):
        choice = selector.choose(problem, DEVICE, "auto", KERNEL_HASH)
        assert (choice.source, choice.config, choice.scores) == ("exact", selector.configs(OP)[index % 8], None)
        assert selector.choose(problem, DEVICE, "model", KERNEL_HASH).source != "exact"
    for problem in problems[20:60]:
        assert str(selector.choose(problem, DEVICE)) == str(no_exact[0].choose(problem, DEVICE))


def test_the_measured_best_is_batch_invariant_where_it_does_not_split(no_exact):
    """A problem with the flag has no measurement of its own."""
    selector, problems = Selector(make_artifact()), make_parts()[3]
    kept = 0
    for index, problem in enumerate(problems[:20]):
        invariant = _C.Problem(**(problem.as_dict() | {"batch_invariant": True}))
        measured, choice = selector.configs(OP)[index % 8], selector.choose(invariant, DEVICE, "auto", KERNEL_HASH)
        expected = no_exact[0].choose(invariant, DEVICE, "auto", KERNEL_HASH)
        is_kept = _C.is_legal(invariant, measured, DEVICE)
        assert choice.config == (measured if is_kept else expected.config) and choice.config.split_k == 1
        assert (choice.source == "exact") == is_kept
        kept += is_kept
    assert 0 < kept < 20


def test_learned_choice_is_the_first_best_score_beyond_the_margin():
    selector = load(**exact_arrays([]), **widest_hull())
    counts = {"chosen": 0, "heuristic": 0}
    for problem in [*make_parts()[3], *make_problems(120, seed=11)]:
        choice, scores = selector.choose(problem, DEVICE), predict(make_parts()[2], problem)
        shortlist = _C.get_shortlist(problem, DEVICE, _C.NUM_RANKED)
        assert choice.source == "learned" and choice.scores == dict(zip(shortlist, scores, strict=True))
        is_chosen = scores.min() < -MARGIN
        assert choice.config == (shortlist[scores.argmin()] if is_chosen else _C.get_analytic_config(problem, DEVICE))
        counts["chosen" if is_chosen else "heuristic"] += 1
    assert counts["chosen"] > 80 and counts["heuristic"] > 20


def test_the_shortlist_has_tiles_with_and_without_the_knobs_of_the_loop():
    problem = _C.Problem(OP, 4096, 7168, 4096)
    shortlist = _C.get_shortlist(problem, DEVICE, _C.NUM_RANKED)
    tiles = list(dict.fromkeys(map(_C.without_loop_knobs, shortlist)))
    assert len(tiles) < len(shortlist) == len(set(shortlist)) == _C.NUM_RANKED
    assert shortlist[0] == _C.get_analytic_config(problem, DEVICE) != tiles[0] == shortlist[1]
    both = (each for tile in tiles for each in (_C.with_loop_knobs(problem, tile, DEVICE), tile))
    assert shortlist == list(dict.fromkeys(both))[: _C.NUM_RANKED]
    times = [_C.estimate_time_us(problem, tile, DEVICE) for tile in tiles]
    rest = set(_C.get_candidates(problem, DEVICE)) - set(tiles)
    assert times == sorted(times) and times[-1] <= min(_C.estimate_time_us(problem, each, DEVICE) for each in rest)


def test_margin_keeps_the_heuristic(no_exact):
    selector = load(change_op(margin=5.0), **exact_arrays([]))
    for problem in no_exact[1][:80]:
        choice = selector.choose(problem, DEVICE)
        assert (choice.source, choice.reason) == ("learned", "heuristic predicted best")
        assert choice.config == _C.get_analytic_config(problem, DEVICE)


def check_analytic(selector, problem, words: str, device=DEVICE, mode="auto", kernel_hash=KERNEL_HASH) -> None:
    choice = selector.choose(problem, device, mode, kernel_hash)
    assert choice.source == "analytic" and words in choice.reason, choice
    assert choice.config == _C.get_analytic_config(problem, device)


@pytest.mark.parametrize(
    "change, words",
    [
        (change_top(sku="nvidia-h100-sm132"), "is for nvidia-h100-sm132"),
        (change_top(sm_count=131), "is for"),
        (change_top(stale="old kernels"), "stale: old kernels"),
        (change_op(kernel_hash="f" * 64), "kernel hash differs"),
    ],
)
def test_guards_of_the_whole_artefact(change, words):
    check_analytic(load(change), make_parts()[3][0], words)


@pytest.mark.parametrize(
    "change, words",
    [
        (change_top(features_version=_C.FEATURES_VERSION + 1), "features version"),
        (change_top(heuristic_version="x"), "heuristic version"),
    ],
)
def test_guards_of_the_forest_leave_the_exact_table(change, words):
    selector, problems = load(change), make_parts()[3]
    assert selector.choose(problems[0], DEVICE).source == "exact"
    check_analytic(selector, problems[0], words, mode="model")
    check_analytic(selector, problems[50], words)


def test_other_gpu_gets_the_heuristic():
    check_analytic(Selector(make_artifact()), make_parts()[3][0], "not nvidia-h100", device=H100)


def test_unknown_kernel_hash_is_no_mismatch():
    selector, problem = Selector(make_artifact()), make_parts()[3][0]
    assert selector.choose(problem, DEVICE, "auto", "").source == "exact"
    check_analytic(selector, problem, "kernel hash", kernel_hash="0" * 64)


def test_outside_the_hull(no_exact):
    selector, problems = no_exact
    check_analytic(selector, _C.Problem(OP, 10**6, 10**6, 10**6), "outside the training hull: log2_pick_us")
    check_analytic(selector, _C.Problem(OP, 512, 512, 512, num_sms=60), "outside the training hull: num_sms")
    assert selector.choose(problems[0], DEVICE).source == "learned"


def test_hull_slack_is_relative():
    original = make_parts()[1]
    sms = _C.config_feature_names().index("num_sms")
    for factor, source in ((1 - 1e-7, "learned"), (1 - 1e-5, "analytic")):
        high = original["feature_max"].copy()
        high[sms] *= factor
        selector = load(feature_min=np.minimum(original["feature_min"], high), feature_max=high, **exact_arrays([]))
        assert selector.choose(make_parts()[3][0], DEVICE).source == source


def test_rows_outside_the_hull_are_not_chosen(no_exact):
    """A hull without swapped tiles: where the pick is another tile, the rest of the shortlist still counts."""
    high, swap = make_parts()[1]["feature_max"].copy(), _C.config_feature_names().index("swap_ab")
    high[swap] = 0.0
    selector, seen = load(feature_max=high, **exact_arrays([])), set()
    for problem in no_exact[1]:
        choice, pick = selector.choose(problem, DEVICE), _C.get_analytic_config(problem, DEVICE)
        if pick.swap_ab:
            check_analytic(selector, problem, "outside the training hull: swap_ab")
            continue
        swapped = {config: score for config, score in choice.scores.items() if config.swap_ab}
        assert set(swapped.values()) <= {np.inf} and not choice.config.swap_ab
        own = no_exact[0].choose(problem, DEVICE).config
        assert choice.config == own or own.swap_ab
        seen.add((bool(swapped), bool(own.swap_ab)))
    assert {(True, True), (True, False)} <= seen


def test_illegal_configs_are_never_chosen():
    selector = load()
    for problem in make_parts()[3][:60]:
        single = _C.Problem(OP, problem.m, problem.n, problem.k, num_sms=1)
        assert _C.is_legal(single, selector.choose(single, DEVICE).config, DEVICE)


# ---- op kinds and variants ----

BF16 = "bf16_gemm"


def two_op_selector():
    """Return a selector that knows both op kinds."""
    metadata, arrays, _, _ = make_parts()
    other, other_arrays, _, _ = make_parts(op=BF16)
    merged = {
        f"{op}/{name}": array for op, part in ((OP, arrays), (BF16, other_arrays)) for name, array in part.items()
    }
    return Selector(build_artifact(metadata | {"ops": metadata["ops"] | other["ops"]}, merged))


def test_each_op_kind_has_its_own_model():
    both, single = two_op_selector(), load()
    assert both.replay_golden() == 0 and both.configs(OP) == single.configs(OP) != both.configs(BF16)
    for problem in [*make_parts()[3][:40], *make_parts(op=BF16)[3][:40]]:
        choice = both.choose(problem, DEVICE, "auto", KERNEL_HASH)
        assert choice.source != "analytic" and choice.config.block_k == (128 if problem.op == OP else 64)
    check_analytic(single, make_parts(op=BF16)[3][0], "does not know this op kind")
    with pytest.raises(ModelError, match="does not know bf16_gemm"):
        single.configs(BF16)


def test_a_variant_without_training_is_outside_the_hull(no_exact):
    for problem in make_variants(512, 2112, 7168):
        if problem.op == OP and problem != _C.Problem(OP, 512, 2112, 7168):
            check_analytic(no_exact[0], problem, "outside the training hull: ")


def test_what_a_variant_cannot_run_is_not_asked_about(no_exact):
    for problem in no_exact[1]:
        invariant = _C.Problem(**(problem.as_dict() | {"batch_invariant": True}))
        choice = no_exact[0].choose(invariant, DEVICE)
        assert choice.config.split_k == 1 and all(config.split_k == 1 for config in choice.scores or ())


def test_configs_need_to_be_legal_for_some_variant_alone():
    original = make_parts()[1]["configs"]
    deep = [
        _C.Config(128, 128, stages) for stages in (6, 7)
    ]  # six stages fit without a D tile, seven without scales too
    assert [_C.is_legal(_C.Problem(OP, 1, 1, 1), config, DEVICE) for config in deep] == [False, False]
    for config, fields in ((deep[0], {"c_mode": "general"}), (deep[1], {"c_mode": "general", "recipe": "per_row"})):
        assert _C.is_legal(_C.Problem(OP, 1, 1, 1, **fields), config, DEVICE)
        changed = original.copy()
        changed[0] = list(config.as_dict().values())
        assert load(configs=changed, **exact_arrays([])).configs(OP)[0] == config
    for row in (
        [128, 128, 128, 8, 1, 1, 1, 0],
        [256, 64, 128, 2, 1, 1, 2, 0],
        [64, 64, 128, 4, 1, 1, 1, 2],
        [64, 64, 64, 4, 1, 1, 1, 0],
    ):
        changed[0] = [*row, *[0] * (changed.shape[1] - len(row))]
        with pytest.raises(ModelError, match="not legal|out of range"):
            load(configs=changed)
    with pytest.raises(ModelError, match="wrong shape"):
        load(configs=np.ascontiguousarray(original[:, :6]))


def test_wrong_arguments():
    selector, problem = load(), make_parts()[3][0]
    with pytest.raises(ArgumentError, match="must be 'auto' or 'model'"):
        selector.choose(problem, DEVICE, "fast")
    with pytest.raises(ArgumentError, match="must be bytes"):
        Selector("text")
    with pytest.raises(ArgumentError, match="source"):
        _C.Choice(selector.configs(OP)[0], "oracle", "")


@pytest.mark.full
def test_a_new_problem_takes_a_few_times_the_heuristic():
    """128 trees of 15 leaves are walked for up to 12 configs; the heuristic's choice is the unit of time here."""
    metadata, arrays, _, problems = make_parts(24, 128, 15)
    selector = Selector(pack(metadata, arrays | widest_hull()))
    rounds = [
        (
            time_of(lambda problem: selector.choose(problem, DEVICE, "model", KERNEL_HASH), problems),
            time_of(lambda problem: _C.get_analytic_config(problem, DEVICE), problems),
        )
        for _ in range(20)
    ]
    learned, analytic = (min(times) for times in zip(*rounds, strict=True))
    assert learned <= 6 * analytic


def time_of(choose, problems) -> float:
    """Return the seconds of this thread per choice; time that other processes take does not count."""
    start = time.thread_time()
    list(map(choose, problems))
    return (time.thread_time() - start) / len(problems)
