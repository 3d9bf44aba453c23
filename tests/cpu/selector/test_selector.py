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
    make_artifact,
    make_parts,
    make_problems,
    pack,
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


def find_best(selector, problem) -> int | None:
    """Return the index of the best-scored portfolio config that is worth trying for `problem`, the first of equals."""
    is_usable = [_C.is_worth_trying(problem, config, DEVICE) for config in selector.portfolio(OP)]
    return int(np.argmin(np.where(is_usable, selector.scores(problem, DEVICE), np.inf))) if any(is_usable) else None


# ---- scores ----


def test_scores_equal_scikit_learn_bit_by_bit():
    _, _, forest, _ = make_parts(24, 32, 10)
    selector = Selector(make_artifact(24, 32, 10))
    problems = make_problems(1000, seed=11)
    features = np.array([_C.get_features(problem, DEVICE, selector.portfolio(OP)) for problem in problems], np.float32)
    assert np.array_equal([selector.scores(problem, DEVICE) for problem in problems], forest.predict(features))


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
            assert one_split_selector(threshold, value, score).replay_golden() == (0 if is_found else 1)


def one_split_selector(threshold: float, value: float, score: float):
    """Return a selector of one tree that splits on feature 0: left gives 1.0, right 2.0.

    Its golden vector says that features of `value` give `score`.
    """
    width, outputs = make_parts()[1]["feature_min"].size, make_parts()[1]["leaf_value"].shape[1]
    integers = {"tree_start": [0, 3], "feature": [0, -1, -1], "left": [1, 0, 1], "right": [2, -1, -1]}
    arrays = {name: np.array(values, np.int32) for name, values in integers.items()}
    golden = {
        "golden_features": np.full((1, width), value, np.float32),
        "golden_scores": np.full((1, outputs), score),
        "golden_choice": np.array([-1], np.int32),
    }
    hull = {"feature_min": np.full(width, -1e9), "feature_max": np.full(width, 1e9)}
    return load(
        threshold=np.array([threshold, 0.0, 0.0]),
        leaf_value=np.array([[1.0] * outputs, [2.0] * outputs]),
        **arrays,
        **hull,
        **golden,
    )


def test_golden_vectors_replay_and_show_changes():
    assert Selector(make_artifact()).replay_golden() == 0
    original = make_parts()[1]
    scores, choices = original["golden_scores"].copy(), original["golden_choice"].copy()
    scores[3, 1] = np.nextafter(scores[3, 1], 1)
    choices[5] = choices[5] - 1 if choices[5] >= 0 else 0
    assert load(golden_scores=scores, golden_choice=choices).replay_golden() == 2
    assert load(leaf_value=original["leaf_value"] + 1.0).replay_golden() == original["golden_choice"].size >= 200


def test_metadata_and_portfolio():
    selector = load(change_op(num_portfolio=8, quarantined=[2]))
    assert selector.sku == DEVICE.sku and selector.metadata["ops"][OP]["margin"] == MARGIN
    assert selector.portfolio(OP) == selector.configs(OP)[:8] and selector.quarantined(OP) == [
        selector.portfolio(OP)[2]
    ]
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


def test_learned_choice_is_the_first_best_score_beyond_the_margin(no_exact):
    selector, problems = no_exact
    counts = {"chosen": 0, "heuristic": 0}
    for problem in problems:
        choice, best = selector.choose(problem, DEVICE), find_best(selector, problem)
        if best is None:
            assert (choice.source, choice.reason) == ("analytic", "no usable config in the portfolio")
            continue
        scores = selector.scores(problem, DEVICE)
        assert choice.source == "learned" and choice.scores == dict(zip(selector.portfolio(OP), scores, strict=True))
        is_chosen = scores[best] < -MARGIN
        assert choice.config == (selector.portfolio(OP)[best] if is_chosen else _C.get_analytic_config(problem, DEVICE))
        counts["chosen" if is_chosen else "heuristic"] += 1
    assert counts["chosen"] > 100


def test_margin_keeps_the_heuristic(no_exact):
    selector = load(change_op(margin=5.0), **exact_arrays([]))
    for problem in (problem for problem in no_exact[1][:80] if find_best(selector, problem) is not None):
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
    check_analytic(selector, _C.Problem(OP, 10**6, 10**6, 10**6), "outside the training hull: log2_m")
    check_analytic(selector, _C.Problem(OP, 512, 512, 512, num_sms=60), "outside the training hull: num_sms")
    assert selector.choose(problems[0], DEVICE).source == "learned"


def test_hull_slack_is_relative():
    original = make_parts()[1]
    names = _C.feature_names(OP, load().portfolio(OP))
    sms = names.index("num_sms")
    for factor, source in ((1 - 1e-7, "learned"), (1 - 1e-5, "analytic")):
        high = original["feature_max"].copy()
        high[sms] *= factor
        selector = load(feature_min=np.minimum(original["feature_min"], high), feature_max=high, **exact_arrays([]))
        assert selector.choose(make_parts()[3][0], DEVICE).source == source


def test_disagreeing_trees(no_exact):
    selector = load(change_op(max_spread=0.0), **exact_arrays([]))
    choices = [selector.choose(problem, DEVICE) for problem in no_exact[1] if find_best(selector, problem) is not None]
    refused = [choice for choice in choices if choice.source == "analytic"]
    assert len(refused) > 0.8 * len(choices) > 40 and all(
        choice.reason == "the trees disagree" and choice.scores for choice in refused
    )


def test_spread_is_the_standard_deviation_over_trees(no_exact):
    selector, problems = no_exact
    forest = make_parts()[2]
    features = np.array(
        [_C.get_features(problem, DEVICE, selector.portfolio(OP)) for problem in problems[:30]], np.float32
    )
    trees = np.array([tree.predict(features) for tree in forest.estimators_])
    for index, problem in enumerate(problems[:30]):
        best = find_best(selector, problem)
        if best is None:
            continue
        spread = trees[:, index].std(axis=0)[best]
        assert (
            load(change_op(max_spread=spread * 1.0001), **exact_arrays([])).choose(problem, DEVICE).source == "learned"
        )
        assert (
            load(change_op(max_spread=spread * 0.9999), **exact_arrays([])).choose(problem, DEVICE).source == "analytic"
        )


def test_quarantined_configs_are_never_chosen(no_exact):
    quarantine = list(range(1, 8))
    selector = load(change_op(quarantined=quarantine))
    banned = set(selector.quarantined(OP))
    for problem in no_exact[1]:
        choice = selector.choose(problem, DEVICE)
        assert choice.config not in banned or choice.config == _C.get_analytic_config(problem, DEVICE)
        assert choice.source != "exact" or choice.config == selector.portfolio(OP)[0]
    check_analytic(load(change_op(quarantined=list(range(8)))), no_exact[1][30], "no usable config")


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
    assert both.replay_golden() == 0 and both.portfolio(OP) == single.portfolio(OP) != both.portfolio(BF16)
    for problem in [*make_parts()[3][:40], *make_parts(op=BF16)[3][:40]]:
        choice = both.choose(problem, DEVICE, "auto", KERNEL_HASH)
        assert choice.source != "analytic" and choice.config.block_k == (128 if problem.op == OP else 64)
    check_analytic(single, make_parts(op=BF16)[3][0], "does not know this op kind")
    with pytest.raises(ModelError, match="does not know bf16_gemm"):
        single.portfolio(BF16)


def test_a_variant_without_training_is_outside_the_hull(no_exact):
    for problem in make_variants(512, 2112, 7168):
        if problem.op == OP and problem != _C.Problem(OP, 512, 2112, 7168):
            check_analytic(no_exact[0], problem, "outside the training hull: ")


def test_what_a_variant_cannot_run_is_dropped():
    """With the whole portfolio but one split config in quarantine, a batch-invariant problem has nothing left to
    choose.
    """
    selector = load(**exact_arrays([]))
    split = next(index for index, config in enumerate(selector.portfolio(OP)) if config.split_k > 1)
    selector = load(change_op(quarantined=[index for index in range(8) if index != split]), **exact_arrays([]))
    problem = next(
        problem for problem in make_parts()[3] if _C.is_worth_trying(problem, selector.portfolio(OP)[split], DEVICE)
    )
    assert selector.choose(problem, DEVICE).source == "learned"
    check_analytic(selector, _C.Problem(**(problem.as_dict() | {"batch_invariant": True})), "no usable config")


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
        _C.Choice(selector.portfolio(OP)[0], "oracle", "")


def test_a_new_problem_takes_a_few_times_the_heuristic():
    """The walk scores a portfolio of 32 with 24 trees; the heuristic's choice is the unit of time here."""
    selector = Selector(make_artifact(24, 32, 10))
    problems = make_parts(24, 32, 10)[3]
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
    for problem in problems:
        choose(problem)
    return (time.thread_time() - start) / len(problems)
