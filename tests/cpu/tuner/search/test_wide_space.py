"""The wide space: its configs; a search beyond the default space finishes, resumes, and does not count as a sweep of
the default space.
"""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.fields import CONFIG_FIELDS
from tests.fakes import synthetic
from tests.fakes.in_process_worker import InProcessWorker
from tests.fakes.sweeps import run_sweep
from tuner import cli
from tuner.db import Store
from tuner.db.rows import BlockRow, MeasurementRow
from tuner.learn import baselines, learner
from tuner.learn.dataset import build_dataset, load_dataset
from tuner.problems.fields import kernel_identity, replace_problem, to_config
from tuner.search import candidates, past, propose, wide_space
from tuner.search.candidates import SweepOptions, find_kernels
from tuner.search.precompile import Compiled
from tuner.search.sweep import Sweep
from tuner.ship import exact_table

DEVICE = _C.Device.known("h200")
#: Both have wide spaces of several hundred configs, and default spaces that are measured quickly.
PROBLEMS = [_C.Problem("fp8_gemm", 64, 1024, 1536), _C.Problem("bf16_gemm", 4096, 2112, 512)]
FP8, BF16 = PROBLEMS
TRIALS = 30


def run(path, worker=None, problems=PROBLEMS, **options) -> dict:
    """Run a sweep on simulated times, by default a search of the wide space; return its summary."""
    chosen = {"space": "wide", "sampler": "tpe", "num_trials": TRIALS} | options
    return run_sweep(path, problems, worker, **chosen)


def measured(path, problem) -> set:
    """Return the configs with rows of `problem`, after the file was checked."""
    with Store.open(path, mode="ro") as store:
        assert store.check() == []
        return {row.config for row in store.load_measurements(op=problem.op) if row.block.problem_key == problem.key}


def beyond(configs, problem) -> set:
    """Return those of `configs` that are not in the default space of `problem`."""
    return set(configs).difference(_C.get_candidates(problem, DEVICE))


def stop_after(count: int) -> InProcessWorker:
    """Return a worker whose sweep is interrupted at its job number `count`."""
    worker = InProcessWorker()

    def interrupt(job: dict) -> None:
        if len(worker.jobs) == count:
            raise KeyboardInterrupt

    worker.on_job = interrupt
    return worker


ODD = [_C.Problem("fp8_gemm", 1, 576, 7168), _C.Problem("bf16_gemm", 512, 512, 512, a_major="mn", b_major="mn")]


@pytest.mark.parametrize("problem", PROBLEMS + ODD)
def test_the_default_space_comes_first_and_everything_is_legal(problem):
    space, default = wide_space.get_wide_space(problem, DEVICE), _C.get_candidates(problem, DEVICE)
    assert space[: len(default)] == default and len(set(space)) == len(space) > len(default)
    assert all(_C.is_legal(problem, config, DEVICE) for config in space)


def test_the_grid_has_what_the_kernels_can_do():
    problem = _C.Problem("bf16_gemm", 512, 4096, 7168)
    space = wide_space.get_wide_space(problem, DEVICE)
    sides = [
        (config.block_n, config.block_m) if config.swap_ab else (config.block_m, config.block_n) for config in space
    ]
    assert {rows for rows, _ in sides} == {64, 128, 256} and {columns for _, columns in sides} == set(range(8, 257, 8))
    sharing = {(config.swap_ab, config.cluster_m, config.cluster_n, config.split_k) for config in space}
    assert sharing == {(swap, 1, 1, split) for swap in (0, 1) for split in (1, 2, 4, 8)} | {(0, 2, 1, 1), (0, 1, 2, 1)}


def test_rings_are_the_deepest_a_shared_one_and_half():
    tile = {"block_m": 64, "block_n": 24, "block_k": 128}
    deepest, shared, half = wide_space.fit_rings(FP8, tile, DEVICE)
    assert not _C.is_legal(FP8, _C.Config(**tile, num_stages=deepest.num_stages + 1), DEVICE)
    assert _C.blocks_per_sm(FP8, deepest) == 1 and _C.blocks_per_sm(FP8, shared) == 2
    assert _C.blocks_per_sm(FP8, _C.Config(**tile, num_stages=shared.num_stages + 1)) == 1
    assert abs(half.num_stages - deepest.num_stages / 2) <= 1.5
    assert wide_space.fit_rings(FP8, tile | {"block_n": 20}, DEVICE) == []


def test_pointless_configs_are_left_out():
    rest = beyond(wide_space.get_wide_space(FP8, DEVICE), FP8)
    assert max(config.block_m for config in rest) == 128 and not any(
        config.cluster_m > 1 and config.block_m >= FP8.m for config in rest
    )
    short = _C.Problem("fp8_gemm", 64, 1024, 512)
    assert max(config.split_k for config in beyond(wide_space.get_wide_space(short, DEVICE), short)) == 2
    large = _C.Problem("fp8_gemm", 8192, 8192, 8192)
    assert {
        config.split_k
        for config in beyond(wide_space.get_wide_space(large, DEVICE), large)
        if config.block_m == config.block_n == 128
    } == {1}


@pytest.mark.parametrize("fields", [{"num_sms": 64}, {"batch_invariant": True}])
def test_problems_that_forbid_splits_have_none(fields):
    space = wide_space.get_wide_space(_C.Problem("fp8_gemm", 64, 1024, 2048, **fields), DEVICE)
    assert {config.split_k for config in space} == {1} and beyond(space, FP8)


def count_trials(problem, **options) -> tuple[int, int]:
    """Return how many configs count as trials of a search of `problem`, and how many it makes."""
    made = SweepOptions([problem], "", **({"space": "wide"} | options))
    space = candidates.choose_candidates(problem, DEVICE, made)
    counted, number = candidates.choose_trials(problem, DEVICE, made, space)
    return len(counted), number


def test_trials_are_those_beyond_the_default_space():
    space = wide_space.get_wide_space(FP8, DEVICE)
    assert count_trials(FP8) == (len(beyond(space, FP8)), wide_space.WIDE_TRIALS)
    assert count_trials(FP8, num_trials=30)[1] == 30 and count_trials(FP8, num_trials=10**6)[1] == len(
        beyond(space, FP8)
    )
    default = len(_C.get_candidates(FP8, DEVICE))
    assert count_trials(FP8, space="default") == (default, propose.default_trials(default))
    tiny = _C.Problem("fp8_gemm", 8, 8, 128)
    assert count_trials(tiny) == (len(wide_space.get_wide_space(tiny, DEVICE)),) * 2 and count_trials(tiny)[1] > 0


def test_a_wide_search_finishes_resumes_and_goes_beyond_the_default_space(tmp_path):
    path = tmp_path / "a.db"
    with pytest.raises(KeyboardInterrupt):
        run(path, stop_after(2))
    told = measured(path, FP8)
    summary = run(path)
    assert summary["measured"] == 2 and summary["remaining"] == 0
    for problem in PROBLEMS:
        found = measured(path, problem)
        assert len(beyond(found, problem)) == TRIALS and found & set(_C.get_candidates(problem, DEVICE))
        assert found <= set(wide_space.get_wide_space(problem, DEVICE)) and all(
            _C.is_legal(problem, config, DEVICE) for config in found
        )
    assert told and told < measured(path, FP8)
    assert run(path)["already_measured"] == 2
    assert (
        run(path, problems=[BF16], num_trials=TRIALS + 4)["measured"] == 1
        and len(beyond(measured(path, BF16), BF16)) == TRIALS + 4
    )


def test_a_search_by_default_resumes_from_its_history_too(tmp_path):
    path = tmp_path / "a.db"
    with pytest.raises(KeyboardInterrupt):
        run(path, stop_after(2), [FP8], sampler="auto")
    worker = InProcessWorker()
    run(path, worker, [FP8], sampler="auto")
    searched = worker.jobs[:-1]
    keys = Counter(tuple(config) for job in searched for config in job["configs"])
    new = sum(keys.values()) - 2 * len(searched)  # every batch has the reference and the best so far besides
    assert len(beyond(measured(path, FP8), FP8)) == TRIALS and new < TRIALS + propose.BATCH_SIZE


def test_ratios_to_another_reference_are_no_history():
    """After a change of the heuristic a block's ratios are to a config that is no longer the pick."""
    pick = _C.get_analytic_config(FP8, DEVICE)
    other = next(config for config in _C.get_candidates(FP8, DEVICE) if config != pick)
    machine = synthetic.Machine()
    rows = [
        machine.make_row(machine.make_block(FP8, reference), config, "search", ratio, 1.0, 0.0)
        for reference, ratios in ((pick, {pick: 1.0, other: 0.5}), (other, {other: 1.0, pick: 2.0}))
        for config, ratio in ratios.items()
    ]
    found = past.find_history(rows, DEVICE)
    assert [one[:3] for one in found.pop(FP8.key)] == [(pick, 0.0, "ok"), (other, math.log(0.5), "ok")] and not found


def test_a_confirmation_is_history_where_the_search_row_is_missing():
    pick = _C.get_analytic_config(FP8, DEVICE)
    first, second = [config for config in _C.get_candidates(FP8, DEVICE) if config != pick][:2]
    machine = synthetic.Machine()
    block = machine.make_block(FP8, pick)
    measured = (("confirm", pick, 1.0), ("confirm", first, 0.5), ("search", second, 0.75), ("confirm", second, 0.8))
    rows = [machine.make_row(block, config, role, ratio, 1.0, 0.0) for role, config, ratio in measured]
    found = {one.config: one.log_ratio for one in past.find_history(rows, DEVICE)[FP8.key]}
    assert found == {pick: 0.0, first: math.log(0.5), second: math.log(0.75)}


def test_what_was_searched_twice_counts_twice_and_its_confirmation_does_not():
    """Whatever comes first: rows of two blocks, and the confirmation before the search."""
    pick = _C.get_analytic_config(FP8, DEVICE)
    other = next(config for config in _C.get_candidates(FP8, DEVICE) if config != pick)
    machine = synthetic.Machine()
    rows = [
        machine.make_row(machine.make_block(FP8, pick), config, role, ratio, 1.0, 0.0)
        for config, role, ratio in (
            (other, "confirm", 0.9), (other, "search", 0.5), (other, "search", 0.6), (pick, "search", 1.0)
        )
    ]  # fmt: skip
    for given in (rows, rows[::-1]):
        found = sorted(one.log_ratio for one in past.find_history(given, DEVICE)[FP8.key] if one.config == other)
        assert found == pytest.approx([math.log(0.5), math.log(0.6)])


@pytest.mark.full
def test_neither_space_stands_for_the_other(tmp_path):
    path = tmp_path / "a.db"
    assert run(path, problems=[FP8], space="default", sampler="exhaustive")["measured"] == 1
    assert run(path, problems=[FP8])["measured"] == 1 and len(beyond(measured(path, FP8), FP8)) == TRIALS
    assert run(path, problems=[FP8], space="default", sampler="auto")["already_measured"] == 1
    most = len(_C.get_candidates(BF16, DEVICE)) - 2
    run(path, problems=[BF16], space="default", sampler="random", num_trials=most)
    assert (
        len(measured(path, BF16)) >= most
        and run(path, problems=[BF16], space="default", sampler="auto")["measured"] == 1
    )
    with Store.open(path, mode="ro") as store:
        for problem in PROBLEMS:
            data = load_dataset(Both(store, problem.op), DEVICE.sku, op=problem.op)
            assert data.full_space.all()


class Both:
    """A store that shows the rows of a problem under a second size too, because a table needs two problems."""

    def __init__(self, store, op: str):
        self.store, self.op = store, op

    def __getattr__(self, name: str):
        return getattr(self.store, name)

    def load_measurements(self, **choice) -> list[MeasurementRow]:
        """Return the rows twice; the second time of a problem with a few more tokens, and so the same candidates."""
        rows = self.store.load_measurements(**choice)
        return rows + [replace(row, block=make_second(row.block)) for row in rows]


def make_second(block: BlockRow) -> BlockRow:
    """Return a block as if it were of a second problem."""
    problem = replace_problem(block.problem, m=block.problem.m - 1)
    return replace(block, problem=problem, problem_key="second", block_id=-block.block_id)


def test_a_wide_search_alone_is_not_the_whole_space(tmp_path):
    run(tmp_path / "a.db", problems=[BF16])
    with Store.open(tmp_path / "a.db", mode="ro") as store:
        data = load_dataset(Both(store, BF16.op), DEVICE.sku, op=BF16.op)
    assert not data.full_space.any() and beyond(data.configs, BF16)


def test_a_winner_from_beyond_keeps_its_place_in_a_sweep_of_the_default_space(tmp_path):
    path, winner = tmp_path / "a.db", find_winner()
    run(path, problems=[FP8], space="default", configs=[winner], sampler="exhaustive")
    run(path, problems=[FP8], space="default", sampler="exhaustive")
    with Store.open(path, mode="ro") as store:
        assert store.load_best()[0].config == winner and set(_C.get_candidates(FP8, DEVICE)) <= measured(path, FP8)


def find_winner():
    """Return the simulated device's best config for FP8, which the default space does not have."""
    from tuner.measure.simulated import simulate_time_us

    winner = min(wide_space.get_wide_space(FP8, DEVICE), key=lambda config: simulate_time_us(FP8, config, DEVICE))
    assert beyond([winner], FP8)
    return winner


def test_a_wide_search_compiles_what_it_proposes(tmp_path, monkeypatch):
    compiled, failed = [], []

    def compile_some(self, candidates: dict) -> dict:
        kernels = find_kernels(candidates)
        compiled.extend(kernels)
        failed.extend(config for _, config in kernels[1::6])
        outcomes = {
            config: Compiled("spill" if config in failed else "ok", 168, 8, 1.0, error="spilled")
            for _, config in kernels
        }
        return {problem: outcomes for problem, _ in kernels}

    monkeypatch.setattr(Sweep, "compile", compile_some)
    worker = InProcessWorker()
    assert run(tmp_path / "a.db", worker, [FP8])["measured"] == 1
    assert len(compiled) == len(set(compiled)) <= len(measured(tmp_path / "a.db", FP8))
    assert {problem for problem, _ in compiled} == {kernel_identity(FP8)}
    launched = {
        to_config(dict(zip(CONFIG_FIELDS, values, strict=True))) for job in worker.jobs for values in job["configs"]
    }
    assert failed and not launched & set(failed) and set(failed) <= measured(tmp_path / "a.db", FP8)


def test_few_kernels_for_many_problems_are_compiled_ahead(tmp_path, monkeypatch):
    calls, problems = [], [_C.Problem("fp8_gemm", m, 1024, 1536) for m in range(49, 65)]
    monkeypatch.setattr(Sweep, "compile", lambda self, candidates: calls.append(find_kernels(candidates)) or {})
    run(tmp_path / "a.db", problems=problems, num_trials=None, time_budget_s=1e-6)
    assert {config for _, config in calls[0]} == {
        config for problem in problems for config in wide_space.get_wide_space(problem, DEVICE)
    }


def test_configs_from_beyond_train_and_reach_the_exact_table(tmp_path):
    machine = synthetic.Machine(seed=2)
    problem = _C.Problem("fp8_gemm", synthetic.FEW_M[1], *synthetic.FEW_SHAPES[0])
    space = wide_space.get_wide_space(problem, DEVICE)
    winner = min(beyond(space, problem), key=lambda config: _C.estimate_time_us(problem, config, DEVICE))
    rows = machine.measure(problem, [winner])
    block = replace(rows[0].block, block_id=10**6, reference_config_id=None)
    fast = {"ratio": 0.5, "median_us": 5.0, "status": "ok"}
    rows = [replace(row, block=block, **(fast if row.config == winner else {})) for row in rows]
    data = build_dataset([*synthetic.make_small_rows(), *rows], synthetic.IDENTITY, DEVICE)
    row, column = data.problems.index(problem), data.configs.index(winner)
    assert data.full_space.sum() == synthetic.make_small_dataset().full_space.sum()
    assert data.oracle[row] == column and data.candidate[row, column] and data.candidate[:, column].sum() == 1
    assert baselines.make_targets(data, np.array([row]), np.array([column]))[0, 0] < -0.5
    portfolio = learner.choose_portfolio(data, np.arange(len(data.problems)), (8,)).columns
    configs, exact = exact_table.choose_exact(data, [data.configs[index] for index in portfolio])
    assert configs[exact[problem]] == winner and len(configs) <= exact_table.MAX_CONFIGS


def test_command(tmp_path, capsys):
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps([{"m": 64, "n": 1024, "k": 2048}]))
    arguments = [
        "sweep",
        "--shapes",
        str(shapes),
        "--db",
        str(tmp_path / "a.db"),
        "--backend",
        "simulated",
        "--json",
        "--space",
        "wide",
    ]
    assert cli.run([*arguments, "--dry-run"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (
        plan["options"]["space"] == "wide"
        and plan["measurements"] == plan["kernels"] == wide_space.WIDE_TRIALS < plan["largest_space"]
    )
    assert cli.run([*arguments, "--n-trials", "8"]) == 0 and json.loads(capsys.readouterr().out)["measured"] == 1


@pytest.mark.parametrize(
    ("space", "others"), [("huge", []), ("wide", ["--configs", "any.json"]), ("wide", ["--portfolio-size", "4"])]
)
def test_bad_spaces_are_usage_errors(tmp_path, capsys, space, others):
    assert cli.run(["sweep", "--backend", "simulated", "--db", str(tmp_path / "a.db"), "--space", space, *others]) == 2
    assert f"--space {space}" in capsys.readouterr().err


def test_the_space_of_loops_adds_the_heuristics_knobs():
    """No other configs than those of the default space, with and without them."""
    problem = _C.Problem("fp8_gemm", 64, 1024, 7168)
    space = wide_space.get_loop_space(problem, DEVICE)
    default = _C.get_candidates(problem, DEVICE)
    assert space[: len(default)] == default and len(space) == len(set(space)) > len(default)
    assert set(space[len(default) :]) == {_C.with_loop_knobs(problem, config, DEVICE) for config in default} - set(
        default
    )
    assert wide_space.get_loop_space(BF16, DEVICE) == _C.get_candidates(BF16, DEVICE)
    columns = _C.Problem("fp8_gemm", 4096, 4096, 2048, recipe="1d1d", d_dtype="fp32", c_mode="accumulate")
    looped = [config for config in wide_space.get_loop_space(columns, DEVICE) if config.loop]
    narrow = {(128, 96), (128, 112), (128, 128), (128, 136), (128, 144), (128, 152)}
    assert {(config.block_m, config.block_n) for config in looped} == {*narrow, (256, 64)}
    added = {config.block_n for config in wide_space.get_loop_space(columns, DEVICE) if config.reduce_add}
    assert {144, 160} <= added  # the rule gives it to neither
    short = _C.Problem("fp8_gemm", 4096, 4096, 1024, recipe="1d1d")
    assert not any(_C.with_loop_knobs(short, config, DEVICE).loop for config in _C.get_candidates(short, DEVICE))
    assert any(config.loop for config in wide_space.get_loop_space(short, DEVICE))
    options = SweepOptions([problem], "unused.db", space="loops")
    assert set(candidates.choose_candidates(problem, DEVICE, options)) == set(space)
