"""The table of measurements: the reference of each time, the rows that count, the oracle, and shape families."""

import math
from dataclasses import replace

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.fields import CONFIG_FIELDS
from tests.fakes import databases, synthetic
from tuner import errors
from tuner.db import Store
from tuner.learn import dataset
from tuner.learn import train as training
from tuner.learn.dataset import (
    CENSORED,
    CONFIG_ORDER,
    CONFIRMED,
    LOG_TWO,
    SEARCHED,
    UNMEASURED,
    build_dataset,
    load_dataset,
)
from tuner.learn.families import find_families, find_near, split_families
from tuner.learn.residual import make_config_rows
from tuner.learn.train import fingerprint
from tuner.problems import regimes

DEVICE = _C.Device.known(synthetic.SKU)
PROBLEM = _C.Problem("fp8_gemm", 64, 2112, 7168)
OTHER = _C.Problem("fp8_gemm", 4096, 2112, 7168)
ROW_MAJOR = _C.Problem("fp8_gemm", 64, 2112, 7168, scale_layout="any")
PICK = _C.get_analytic_config(PROBLEM, DEVICE)
MACHINE = synthetic.Machine()
A, B, C = [config for config in _C.get_candidates(PROBLEM, DEVICE) if config != PICK][:3]


def row(
    config, ratio, *, problem=PROBLEM, role="search", status="ok", block=1, reference=None, block_status="finished"
):
    """Return one measured row; its time is the ratio times 10 us."""
    own = MACHINE.make_block(problem, reference or PICK)
    made = MACHINE.make_row(replace(own, block_id=block, status=block_status), config, role, 1.0, 1.0, 0.0)
    return replace(made, status=status, ratio=ratio, median_us=None if ratio is None else 10.0 * ratio)


def complete(problem):
    """Return rows of `problem` measured over its whole space."""
    pick = _C.get_analytic_config(problem, DEVICE)
    configs = {pick, *_C.get_candidates(problem, DEVICE)}
    return [
        row(config, 1.0 if config == pick else 1.3, problem=problem, block=problem.key, reference=pick)
        for config in configs
    ]


def build(rows):
    """Build a table of `rows` and a second, complete problem."""
    return build_dataset(rows + complete(OTHER), synthetic.IDENTITY, DEVICE)


def value_of(data, config, problem=PROBLEM):
    """Return (log ratio, state) of one cell."""
    cell = data.problems.index(problem), data.configs.index(config)
    return float(data.log_ratio[cell]), int(data.state[cell])


def test_configs_are_sorted_by_all_of_their_fields():
    assert set(CONFIG_ORDER) == set(CONFIG_FIELDS) and len(CONFIG_ORDER) == len(CONFIG_FIELDS)


def test_values_are_relative_to_the_heuristics_pick_whatever_the_reference():
    data = build([row(A, 1.0, reference=A), row(PICK, 0.8, reference=A), row(B, 1.2, reference=A)])
    assert value_of(data, PICK) == (0.0, SEARCHED)
    assert value_of(data, A)[0] == pytest.approx(math.log(1 / 0.8))
    assert value_of(data, B)[0] == pytest.approx(math.log(1.2 / 0.8))


def test_confirmation_comes_before_search_before_censored():
    rows = [
        row(PICK, 1.0),
        row(A, 0.9),
        row(B, 1.7, status="censored"),
        row(PICK, 1.0, role="confirm"),
        row(A, 0.95, role="confirm"),
    ]
    data = build(rows)
    assert value_of(data, A) == (pytest.approx(math.log(0.95)), CONFIRMED)
    assert value_of(data, B) == (pytest.approx(math.log(1.7)), CENSORED)
    assert value_of(data, C if C in data.configs else B)[1] in (UNMEASURED, CENSORED)


def test_unmeasured_cells_count_as_twice_as_slow():
    data = build([row(PICK, 1.0), row(A, 0.9)])
    cell = data.problems.index(PROBLEM), next(i for i, config in enumerate(data.configs) if config not in (PICK, A))
    assert data.log_ratio[cell] == LOG_TWO and data.state[cell] == UNMEASURED and math.isnan(data.search[cell])


def test_a_block_without_the_pick_is_tied_through_its_reference():
    rows = [row(PICK, 1.0), row(A, 0.9), row(A, 1.0, block=2, reference=A), row(B, 0.8, block=2, reference=A)]
    assert value_of(build(rows), B)[0] == pytest.approx(math.log(0.8 * 0.9))


def test_blocks_are_combined_by_their_median():
    rows = [
        entry
        for block, ratio in enumerate((0.9, 0.8, 0.2))
        for entry in (row(PICK, 1.0, block=block), row(A, ratio, block=block))
    ]
    assert value_of(build(rows), A)[0] == pytest.approx(math.log(0.8))


def test_the_oracle_is_chosen_on_search_and_scored_on_confirmation():
    confirm = [row(PICK, 1.0, role="confirm"), row(A, 0.95, role="confirm"), row(B, 0.93, role="confirm")]
    data = build([row(PICK, 1.0), row(A, 0.90), row(B, 0.91), row(C, 0.5), *confirm])
    index = data.problems.index(PROBLEM)
    assert data.configs[data.oracle[index]] == A  # C was never confirmed, B looked slower in the search
    chosen = np.array([data.configs.index(B)])
    assert data.regret_log(np.array([index]), chosen)[0] == pytest.approx(
        math.log(0.93 / 0.95)
    )  # negative, and kept so


def test_a_table_knows_the_late_kinds_of_its_timed_configs():
    pair = next(config for config in _C.get_candidates(OTHER, DEVICE) if config.cluster_m == 2)
    early = (one for one in complete(OTHER) if one.config.cluster_m == 1 and one.config.column_side <= 208)
    single = [row(PICK, 1.0), row(A, 0.9), *early]
    beside = row(_C.Config(64, 256, 4), 1.1)
    for more, known in (
        ([], ()),
        ([row(pair, 1.1, problem=OTHER, block=OTHER.key)], ("pairs",)),
        ([beside], ("beside",)),
    ):
        data = build_dataset([*single, *more], synthetic.IDENTITY, DEVICE)
        assert data.late_kinds == {kind: kind in known for kind, *_ in _C.LATE_KINDS}


def test_rows_of_open_blocks_do_not_count():
    data = build([row(PICK, 1.0), row(A, 0.9), row(PICK, 1.0, block=2), row(B, 0.5, block=2, block_status="open")])
    assert B not in data.configs or value_of(data, B)[1] == UNMEASURED


@pytest.mark.parametrize("status", ["incorrect", "crash", "timeout"])
def test_a_failed_config_is_quarantined_everywhere(status):
    data = build([row(PICK, 1.0), row(A, 0.9), row(B, None, status=status)])
    assert data.quarantined == [B] and B not in data.configs


@pytest.mark.parametrize("status", ["spill", "compile_error"])
def test_a_kernel_that_does_not_build_leaves_its_config_to_other_variants(status):
    common = next(
        config
        for config in _C.get_candidates(ROW_MAJOR, DEVICE)
        if _C.is_legal(PROBLEM, config, DEVICE) and config not in (PICK, A)
    )
    data = build([row(PICK, 1.0), row(A, 0.9), row(common, None, status=status), *complete(ROW_MAJOR)])
    assert not data.quarantined and common in data.configs
    column = data.configs.index(common)
    assert (
        not data.legal[data.problems.index(PROBLEM), column]
        and not data.candidate[data.problems.index(PROBLEM), column]
    )
    assert data.legal[data.problems.index(ROW_MAJOR), column]
    unseen = _C.Problem("fp8_gemm", 64, 2112, 7168, d_dtype="fp32")
    banned = [data.find_banned(problem) for problem in (PROBLEM, ROW_MAJOR, unseen)]
    assert banned == [{common}, set(), {common}], "nothing says that it builds for a variant that no row has"


def test_legality_is_that_of_the_variant():
    invariant = _C.Problem("fp8_gemm", 64, 2112, 7168, batch_invariant=True)
    data = build([*complete(PROBLEM), *complete(invariant)])
    split = np.array([config.split_k > 1 for config in data.configs])
    assert (
        split.any()
        and data.legal[data.problems.index(PROBLEM)][split].all()
        and not data.legal[data.problems.index(invariant)][split].any()
    )


def test_a_failure_that_went_away_is_forgiven():
    data = build([row(PICK, 1.0), row(A, None, status="crash"), row(PICK, 1.0, block=2), row(A, 0.9, block=2)])
    assert not data.quarantined and value_of(data, A)[0] == pytest.approx(math.log(0.9))


def test_a_problem_without_the_pick_is_left_out_and_counted():
    lonely = _C.Problem("fp8_gemm", 77, 2112, 7168)
    tile = _C.without_loop_knobs(_C.get_analytic_config(lonely, DEVICE))
    other = next(config for config in (A, B) if _C.without_loop_knobs(config) != tile)
    data = build([row(PICK, 1.0), row(other, 0.9, problem=lonely, block=3, reference=other)])
    assert lonely not in data.problems and data.dropped == {"heuristic's pick not measured": 1}


KNOBBED = _C.Problem("fp8_gemm", 4096, 4096, 7168)


@pytest.mark.parametrize(
    ("timed", "stand_in"),
    [([{"loop": 1}, {}], {}), ([{"loop": 1}], {"loop": 1}), ([{}, {"scale_warp": 1}], {"scale_warp": 1})],
    ids=["without knobs", "other knobs", "the pick itself"],
)
def test_the_tile_stands_in_for_a_pick_whose_knobs_no_sweep_knew(timed, stand_in):
    """Rules of the knobs change; problems that were swept before then stay."""
    pick = _C.get_analytic_config(KNOBBED, DEVICE)
    tile = _C.without_loop_knobs(pick)
    assert pick == _C.Config(**tile.as_dict() | {"scale_warp": 1})
    configs = [_C.Config(**tile.as_dict() | knobs) for knobs in timed]
    rows = [row(config, 1.0, problem=KNOBBED, block=3, reference=configs[0]) for config in configs]
    data = build([row(PICK, 1.0), *rows])
    chosen = data.configs[data.heuristic[data.problems.index(KNOBBED)]]
    assert chosen == _C.Config(**tile.as_dict() | stand_in) and not data.dropped


@pytest.mark.parametrize("status", ["crash", "incorrect"])
def test_nothing_stands_in_for_a_pick_that_failed(status):
    """The run time would choose it all the same, so its problem cannot be scored by another config."""
    pick = _C.get_analytic_config(KNOBBED, DEVICE)
    failed = row(pick, None, problem=KNOBBED, block=3, status=status)
    data = build([row(PICK, 1.0), row(_C.without_loop_knobs(pick), 1.0, problem=KNOBBED, block=3), failed])
    assert KNOBBED not in data.problems and data.dropped == {"heuristic's pick not measured": 1}


@pytest.mark.parametrize("knobs, is_whole", [({"scale_warp": 1}, True), ({}, False)])
def test_regret_is_claimed_only_where_the_pick_itself_was_measured(knobs, is_whole):
    tiles = _C.get_candidates(KNOBBED, DEVICE)
    tile = _C.without_loop_knobs(_C.get_analytic_config(KNOBBED, DEVICE))
    configs = [*tiles, _C.Config(**tile.as_dict() | knobs)]
    rows = [row(config, 1.0, problem=KNOBBED, block=3, reference=configs[0]) for config in dict.fromkeys(configs)]
    data = build([row(PICK, 1.0), *rows])
    assert data.full_space[data.problems.index(KNOBBED)] == is_whole


def test_a_pick_that_left_the_race_keeps_its_problem():
    """The heuristic of today may choose what an earlier sweep dropped as slow.

    That problem is the one to learn from.
    """
    data = build([row(A, 1.0, reference=A), row(B, 0.9, reference=A), row(PICK, 1.6, status="censored", reference=A)])
    assert PROBLEM in data.problems and not data.dropped
    assert value_of(data, A)[0] == pytest.approx(math.log(1 / 1.6)) and value_of(data, B)[0] == pytest.approx(
        math.log(0.9 / 1.6)
    )


def test_too_few_problems_is_inconclusive():
    with pytest.raises(errors.InconclusiveError, match="at least 2"):
        build_dataset([row(PICK, 1.0)], synthetic.IDENTITY, DEVICE)


def test_full_space_needs_nearly_every_candidate():
    data = build([row(PICK, 1.0), row(A, 0.9)])
    assert data.full_space[data.problems.index(OTHER)] and not data.full_space[data.problems.index(PROBLEM)]


def test_weights_of_a_family_are_all_near_each_other():
    shapes = [(1000, 1000), (1240, 1000), (1500, 1100), (1000, 1300), (4000, 1000), (1000, 4000), (1250, 1000)]
    problems = [_C.Problem("fp8_gemm", 8, n, k) for n, k in shapes]
    families = find_families(problems).tolist()
    assert families[1] == families[6] != families[4] and len(set(families)) == 5
    assert len({families[0], families[2]}) == 2, "1000 -> 1240 -> 1500 is a chain: 1500 is 1.5x of 1000"
    assert find_families(problems[:1]).tolist() == [0]
    both = [_C.Problem("fp8_gemm", 8, size, size) for size in (1000, 1240)]
    assert find_families(both).tolist() == [0, 0], "each size counts by itself"
    chain = [_C.Problem("fp8_gemm", 8, round(1000 * 1.2**step), 1000) for step in range(12)]
    labels = find_families(chain)
    assert all(np.ptp(np.log([chain[row].n for row in np.flatnonzero(labels == label)])) < 0.224 for label in labels)
    assert 5 <= len(set(labels.tolist())) <= 9


def test_a_weight_is_near_where_both_sizes_are():
    problems = [_C.Problem("fp8_gemm", 8, n, k) for n, k in [(1000, 1000), (1250, 800), (1251, 1000), (1000, 1300)]]
    assert find_near(problems, np.array([True, False, False, False])).tolist() == [True, True, False, False]
    assert find_near(problems, np.array([False, False, True, True])).tolist() == [False, True, True, True]


def test_splits_keep_families_whole_and_hold_out_everything_once():
    families = np.random.default_rng(1).integers(0, 13, 200)
    problems = [_C.Problem("fp8_gemm", 8, 128 * 2**family, 1024) for family in families.tolist()]
    splits = split_families(problems, families, 4)
    assert (np.sum([split.held_out for split in splits], axis=0) == 1).all()
    assert sum(len(set(families[split.held_out])) for split in splits) == len(set(families)) == 13
    assert all((split.kept == ~split.held_out).all() for split in splits), "no weight is near another"
    assert max(split.held_out.sum() for split in splits) < 70
    assert len(split_families(problems[:1], families[:1], 4)) == 1


def test_a_split_keeps_no_weight_near_a_held_out_one():
    problems = [_C.Problem("fp8_gemm", 8, round(1000 * 1.2**step), 1000) for step in range(12)]
    for split in split_families(problems, find_families(problems), 3):
        assert (split.kept == ~find_near(problems, split.held_out)).all()
        assert split.kept.sum() < (~split.held_out).sum()


def test_loading_takes_one_identity_and_the_newest_kernel(tmp_path):
    old = [
        replace(entry, block=replace(entry.block, kernel_hash="cd" * 32)) for entry in synthetic.make_small_rows()[:60]
    ]
    path = tmp_path / "tuning.db"
    synthetic.write_database(path, old)
    synthetic.write_database(path, list(synthetic.make_small_rows()[:400]))
    with Store.open(path, mode="ro") as store:
        newest, older = load_dataset(store, ""), load_dataset(store, "h200", kernel_hash="cd" * 32)
        with pytest.raises(errors.InconclusiveError, match="no measurements"):
            load_dataset(store, "h100")
        with pytest.raises(errors.UsageError, match="not a known"):
            load_dataset(store, "h900")
    assert newest.identity.kernel_hash == synthetic.KERNEL_HASH and older.identity.kernel_hash == "cd" * 32
    assert len(newest.problems) > len(older.problems) and newest.newest.startswith("20")


def test_the_table_of_a_database_is_the_table_of_its_rows():
    with Store.open(synthetic.make_small_database(), mode="ro") as store:
        loaded = load_dataset(store, synthetic.SKU)
    made = synthetic.make_small_dataset()
    assert loaded.problems == made.problems and loaded.configs == made.configs
    assert (
        np.allclose(loaded.log_ratio, made.log_ratio)
        and (loaded.oracle == made.oracle).all()
        and (loaded.state == made.state).all()
    )


def test_a_table_is_the_same_however_many_problems_are_read_at_a_time(tmp_path, monkeypatch):
    """Also where a config failed on one problem: it is then quarantined for those that were read before."""
    problems = [_C.Problem("fp8_gemm", m, 2112, 7168) for m in (64, 65, 128, 300, 4096)]
    with Store.open(tmp_path / "a.db") as store:
        for problem in (*problems[3::-1], problems[-1]):
            add_problem(store, problem, is_last=problem is problems[-1])
    found, read = [], []
    load = Store.load_measurements
    monkeypatch.setattr(
        Store, "load_measurements", lambda self, **choice: read.append(choice["problem_ids"]) or load(self, **choice)
    )
    for at_a_time in (500, 2, 1):
        monkeypatch.setattr(dataset, "PROBLEMS_AT_A_TIME", at_a_time)
        read.clear()
        with Store.open(tmp_path / "a.db", "ro") as store:
            found.append(load_dataset(store, synthetic.SKU))
        assert max(map(len, read)) == min(at_a_time, 5)
        assert [number for ids in read for number in ids] == [5, 1, 2, 3, 4, 5], (
            "the problem with a failure comes first"
        )
    assert len({fingerprint(data) for data in found}) == 1 and found[0].problems == problems
    assert found[0].quarantined == [A] and A not in found[0].configs
    assert found[0].configs[-1] == _C.get_analytic_config(problems[-1], DEVICE)
    assert found[0].candidate[:, -1].tolist() == [False] * 4 + [True], "no other problem may take this one's pick"
    for data in found[1:]:
        np.testing.assert_array_equal(data.search, found[0].search)
        assert (data.quarantined, data.newest) == (found[0].quarantined, found[0].newest)


def test_sentinels_are_in_no_table_however_many(tmp_path):
    regime = regimes.name_sentinel(databases.REGIME)
    with Store.open(tmp_path / "a.db") as store:
        for m in (64, 128):
            add_problem(store, _C.Problem("fp8_gemm", m, 2112, 7168))
        for m in (1, 2, 3):
            add_problem(store, _C.Problem("fp8_gemm", m, 2112, 7168), regime=regime)
        data = load_dataset(store, synthetic.SKU)
    assert [problem.m for problem in data.problems] == [64, 128] and data.identity.regime == databases.REGIME


def add_problem(store, problem, is_last: bool = False, **fields) -> None:
    """Record a problem over three configs and its pick, one of which crashed on the last one."""
    context = databases.add_context(store) | fields
    configs = list(dict.fromkeys([_C.get_analytic_config(problem, DEVICE), A, B, C]))
    ids = [store.get_or_add_config("fp8_gemm", config) for config in configs]
    fields = {"problem_id": store.get_or_add_problem(problem), "reference_config_id": ids[0]}
    block = store.add_block(context | fields)
    rows = [
        {"block_id": block, "config_id": index, "role": "search", "status": "ok", "median_us": 10.0 * ratio}
        | {"ratio": ratio}
        for index, ratio in zip(ids, (1.0, 1.25, 0.75, 1.5), strict=False)
    ]
    if is_last:
        place = configs.index(A)
        rows[place] = {"block_id": block, "config_id": ids[place], "role": "search", "status": "crash", "error": "x"}
    store.add_measurements(rows, finish=True)


def test_a_selector_is_fitted_on_a_bounded_number_of_problems(monkeypatch):
    """Evenly over the shapes, so that memory does not grow with the table."""
    data = synthetic.make_small_dataset()
    assert training.choose_fitted(data).tolist() == list(range(len(data.problems)))
    monkeypatch.setattr(training, "MAX_FITTED", 9)
    chosen = training.choose_fitted(data)
    assert len(chosen) == 9 and chosen[0] == 0 and chosen[-1] == len(data.problems) - 1 and (np.diff(chosen) > 0).all()
    rows = make_config_rows(data, chosen)
    whole = make_config_rows(data).of(chosen)
    for part, wanted in zip(rows, whole, strict=True):
        np.testing.assert_array_equal(part, wanted)
