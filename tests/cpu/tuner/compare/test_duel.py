"""Old against new on simulated times: planted differences are found, equal kernels are not blamed, faults have a
verdict.
"""

import itertools
import json

import pytest

from deep_gemm import _C
from tests.fakes.sets_world import SetsWorker, make_side
from tuner.compare import comparison, duel
from tuner.compare.duel import Duel, make_pair
from tuner.measure.race import Check, Shuffler
from tuner.measure.simulated import simulate_time_us

H200 = _C.Device.known("h200")
PROBLEMS = [_C.Problem("fp8_gemm", m, n, k) for n, k in ((2112, 7168), (7168, 2048)) for m in (1, 64, 128, 1024)]
SLOWED = set(PROBLEMS[::4])


def make_pairs(problems=PROBLEMS, new: str = "new", **fields: object) -> list:
    """Return the pairs of two sets with one config; another kernel name is other code."""
    found = []
    for problem in problems:
        config = _C.get_analytic_config(problem, H200)
        found.append(make_pair(problem, make_side(config, "old"), make_side(config, new, **fields), True))
    return found


def fight(plant=lambda problem, entry: 1.0, seed: int = 0, pairs: list | None = None, **options) -> dict:
    """Run a duel; return {problem: verdict}."""
    pairs = make_pairs() if pairs is None else pairs
    Duel(SetsWorker(plant, seed), pairs, **options).run()
    return {pair.problem: pair.verdict for pair in pairs}


def slow_down(problem, entry) -> float:
    """Plant 2 % in the new kernels of some problems."""
    return 1.02 if entry.set == 1 and problem in SLOWED else 1.0


def is_clean(verdicts: dict) -> bool:
    """Return whether no problem was called slower or faster."""
    return set(verdicts.values()) == {"same"}


def finds_slowed(verdicts: dict) -> bool:
    """Return whether all slowed problems were found."""
    return all(verdicts[problem] == "slower" for problem in SLOWED)


def blames_only_slowed(verdicts: dict) -> bool:
    """Return whether nothing else was blamed."""
    return all(verdicts[problem] == "same" for problem in PROBLEMS if problem not in SLOWED)


def test_two_percent_are_found_and_nothing_else():
    for seed in range(3):
        verdicts = fight(slow_down, seed)
        assert finds_slowed(verdicts) and blames_only_slowed(verdicts)


def test_equal_kernels_are_clean():
    assert all(is_clean(fight(seed=seed)) for seed in range(3))


@pytest.mark.full
def test_two_percent_are_found_in_nearly_every_seed():
    found = [fight(slow_down, seed) for seed in range(1000, 1200)]
    assert sum(map(finds_slowed, found)) >= 190 and sum(map(blames_only_slowed, found)) >= 190


@pytest.mark.full
def test_equal_kernels_are_clean_in_nearly_every_seed():
    assert sum(is_clean(fight(seed=seed)) for seed in range(2000, 2200)) >= 190


def test_a_faster_kernel_is_no_failure():
    verdicts = fight(lambda problem, entry: 0.95 if entry.set == 1 else 1.0)
    assert set(verdicts.values()) == {"faster"}


def test_two_configs_of_one_set_differ_as_their_times_do():
    problem = PROBLEMS[2]
    configs = _C.get_candidates(problem, H200)
    times = {config: simulate_time_us(problem, config, H200) for config in configs}
    best, worst = min(configs, key=times.__getitem__), max(configs, key=times.__getitem__)
    pair = make_pair(problem, make_side(worst, "a"), make_side(best, "b"), True)
    Duel(SetsWorker(), [pair]).run()
    row = comparison.describe_pair(pair)
    assert row["ratio"] == pytest.approx(times[best] / times[worst], rel=0.01) and row["verdict"] == "faster"
    assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]


def test_flagged_problems_are_measured_again_and_others_are_not():
    worker, pairs = SetsWorker(slow_down), make_pairs()
    Duel(worker, pairs).run()
    turns = {
        problem: [job["turn"] for job in worker.jobs if job["problem"] == problem.as_dict()] for problem in PROBLEMS
    }
    for problem in SLOWED:
        assert turns[problem] == list(range(duel.TURNS + duel.AGAIN_TURNS))
    assert sum(len(found) == duel.TURNS for found in turns.values()) >= len(PROBLEMS) - len(SLOWED) - 2


def test_a_flagged_problem_is_judged_by_its_new_rounds_alone():
    """A difference that is gone when measured again was none."""
    worker = SetsWorker()
    worker.plant = lambda problem, entry: 1.02 if entry.set == 1 and worker.jobs[-1]["turn"] < duel.TURNS else 1.0
    pairs = make_pairs(PROBLEMS[:3])
    Duel(worker, pairs).run()
    assert all(pair.fresh_from is not None and pair.verdict == "same" for pair in pairs)


def test_identical_kernels_are_not_measured_unless_asked():
    pairs = make_pairs(new="old")
    assert {pair.verdict for pair in pairs} == {"identical"}
    config = make_side(_C.get_analytic_config(PROBLEMS[0], H200), "old")
    assert make_pair(PROBLEMS[0], config, config, is_same_host=False).verdict == ""
    assert make_pair(PROBLEMS[0], config, config, True, identical_too=True).verdict == ""


def test_wrong_results_have_a_verdict_and_the_others_go_on():
    wrong = Check("incorrect", error="D has other bits than entry 0's")
    pairs = make_pairs(PROBLEMS[:3])
    fight(lambda problem, entry: wrong if entry.set == 1 and problem == PROBLEMS[1] else 1.0, pairs=pairs)
    assert [pair.verdict for pair in pairs] == ["same", "wrong", "same"]
    assert pairs[1].error == "new: D has other bits than entry 0's"
    rows = [comparison.describe_pair(pair) for pair in pairs]
    assert comparison.choose_exit_code(rows) == 3


def test_a_wrong_old_kernel_and_a_crash_have_a_verdict():
    wrong = Check("incorrect", error="wrote outside D")
    pairs = make_pairs(PROBLEMS[:2])
    worker = SetsWorker(lambda problem, entry: wrong if entry.set == 0 else 1.0, crashing=[PROBLEMS[1]])
    Duel(worker, pairs).run()
    assert [pair.verdict for pair in pairs] == ["wrong", "failed"]
    assert pairs[0].error == "old: reference: wrote outside D"
    assert pairs[1].error == "new: crash: no reply (signal 11)"


def test_what_a_set_lacks_is_skipped_and_what_does_not_compile_has_failed():
    problem, config = PROBLEMS[0], _C.get_analytic_config(PROBLEMS[0], H200)
    good = make_side(config, "old")
    illegal = {"status": "illegal", "error": "no such field"}
    broken = make_side(config, "new", status="compile_error", error="error: expected ;")
    assert make_pair(problem, good, illegal, True).verdict == "skipped"
    assert make_pair(problem, illegal, illegal, True).error == "old: no such field"
    assert make_pair(problem, good, broken, True).verdict == "failed"


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["same", "faster", "identical"], 0),
        (["same", "skipped"], 0),
        (["same", "slower"], 1),
        (["slower", "wrong"], 3),
        (["same", "failed"], 3),
        (["skipped"], 3),
    ],
)
def test_exit_codes(verdicts, code):
    assert comparison.choose_exit_code([{"verdict": verdict} for verdict in verdicts]) == code


def list_bits(problem, old, new, **options) -> list[bool]:
    """Return which entries of a job must have the bits of the first."""
    pair = make_pair(problem, make_side(old, "old"), make_side(new, "new"), True)
    return [entry.has_same_bits for entry in Duel(None, [pair], **options).make_entries(pair)]


def test_bits_must_be_equal_unless_configs_round_differently():
    plain, other = _C.Config(64, 64, 4), _C.Config(64, 128, 4)
    split = _C.Config(64, 64, 4, split_k=2)
    assert list_bits(PROBLEMS[0], plain, other) == [True, True, True]
    assert list_bits(PROBLEMS[0], split, split) == [True, True, True]
    assert list_bits(PROBLEMS[0], plain, split) == [True, False, True]
    assert list_bits(PROBLEMS[0], plain, plain, any_bits=True) == [True, False, True]


def test_rounds_are_shuffled_anew_in_every_turn_and_no_kernel_follows_itself():
    slots = [(0, []), (1, []), (2, [])]
    orders = {}
    for turn in range(2):
        shuffler = Shuffler(turn)
        orders[turn] = [[index for index, _ in shuffler(slots, number)] for number in range(40)]
        flat = [index for order in orders[turn] for index in order]
        assert all(before != after for before, after in itertools.pairwise(flat))
        assert all(sorted(order) == [0, 1, 2] for order in orders[turn])
    assert orders[0] != orders[1] and len(set(map(tuple, orders[0]))) == 6


def test_the_old_kernel_runs_twice_under_names_of_its_own():
    worker, pairs = SetsWorker(), make_pairs(PROBLEMS[:1])
    Duel(worker, pairs).run()
    assert all(job["entries"][0] == job["entries"][2] for job in worker.jobs)
    assert len(pairs[0].times_us[duel.TWIN]) == len(pairs[0].times_us[duel.OLD]) >= duel.TURNS * 24


def test_a_report_is_json_and_has_every_figure():
    pairs = make_pairs(PROBLEMS[:2])
    Duel(SetsWorker(), pairs).run()
    rows = json.loads(json.dumps([comparison.describe_pair(pair) for pair in pairs]))
    assert {"ratio", "ratio_low", "ratio_high", "noise", "threshold", "rounds", "verdict"} <= set(rows[0])
    assert rows[0]["rounds"] >= duel.TURNS * duel.PLAN.confirm_rounds and rows[0]["threshold"] >= duel.MIN_DIFFERENCE
    assert comparison.summarize(rows)["measured"] == 2


def make_timed_pair(old: list, new: list, twin: list | None = None) -> duel.Pair:
    """Return an open pair with the times of each entry."""
    (pair,) = make_pairs(PROBLEMS[:1])
    pair.times_us.update({duel.OLD: old, duel.NEW: new, duel.TWIN: old if twin is None else twin})
    return pair


def test_a_difference_within_the_noise_is_none():
    old, new = [10.0] * 24, [10.2] * 24
    quiet, noisy = make_timed_pair(old, new), make_timed_pair(old, new, [10.4, 9.6] * 12)
    assert quiet.threshold == duel.MIN_DIFFERENCE and noisy.threshold == noisy.noise > 0.03
    assert quiet.test(1) < 0.001 < 0.9 < noisy.test(1)
    assert Duel(None, [quiet, noisy]).find_flagged() == [quiet]


def test_ten_rounds_that_agree_raise_a_flag():
    pairs = [make_timed_pair([10.0] * count, [11.0] * count) for count in (4, 10)]
    assert Duel(None, pairs).find_flagged() == pairs[1:]


def test_only_the_new_rounds_of_a_flagged_problem_decide():
    slow_once, slow = (make_timed_pair([10.0] * 64, [11.0] * 40 + [new] * 24) for new in (10.0, 11.0))
    slow_once.fresh_from = slow.fresh_from = 40
    Duel(None, []).decide([slow_once, slow])
    assert (slow_once.verdict, slow.verdict) == ("", "slower")


def test_what_has_a_verdict_is_not_measured():
    pairs = make_pairs(PROBLEMS[:3])
    pairs[1].verdict, measured, done = "wrong", [], []
    fight = Duel(None, pairs, on_event=lambda number, total: done.append((number, total)))
    fight.measure_one = lambda pair, turn, plan: measured.append((pair.problem, turn))
    fight.measure(pairs, range(2), duel.PLAN)
    assert measured == [(PROBLEMS[index], turn) for turn in range(2) for index in (0, 2)]
    assert done == [(number + 1, 6) for number in range(6)]
