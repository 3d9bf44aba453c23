"""Grouped op kinds through the whole tuner, on simulated times: sweep, train, evaluate, export, select, inspect,
simulate.
"""

import hashlib
import json

import numpy as np
import pytest

from deep_gemm import _C, selection
from deep_gemm.jit import hashing
from deep_gemm.selector import Selector
from tests.fakes.grouped_variants import CONTIGUOUS, GROUPED_OPS, K_GROUPED, MASKED, make_grouped
from tests.fakes.in_process_worker import InProcessWorker
from tests.fakes.sweeps import run_sweep, train_and_export
from tuner import cli
from tuner.db import Store
from tuner.learn import inspection, train, validate
from tuner.learn.baselines import find_nearest
from tuner.learn.dataset import load_dataset
from tuner.problems import shapes, workload
from tuner.problems.fields import OPS, get_tokens, get_work, kernel_identity, replace_problem
from tuner.problems.regimes import RESTED
from tuner.problems.workload import Workload
from tuner.search import wide_space
from tuner.search.candidates import SweepOptions, choose_candidates, find_kernels
from tuner.ship import export

H200 = _C.Device.known("h200")
#: Weights of four families, and what varies of each op kind: tokens of a group, and groups.
WEIGHTS = ((4096, 7168), (2880, 2880), (1536, 2048), (28672, 4096))
SIZES = ((4, 256), (8, 512), (16, 1024))


def make_problems(op: str) -> list:
    """Return a dozen problems of an op kind."""
    if op in K_GROUPED:
        return [
            make_grouped(op, m, n, count * tokens, count, c_mode="accumulate")
            for m, n in WEIGHTS
            for count, tokens in SIZES
        ]
    if op in MASKED:
        return [
            make_grouped(op, 2048, n, k, count, expected_m=tokens // 4) for n, k in WEIGHTS for count, tokens in SIZES
        ]
    return [make_grouped(op, count * tokens, n, k, count) for n, k in WEIGHTS for count, tokens in SIZES]


OPS_SWEPT = (CONTIGUOUS[0], MASKED[1], K_GROUPED[0])
PROBLEMS = {op: make_problems(op) for op in OPS_SWEPT}


def hash_of(op: str) -> str:
    """Return a stand-in for the hash of an op kind's kernels, which no simulated sweep compiles."""
    return hashlib.sha256(op.encode()).hexdigest()


@pytest.fixture(scope="module", autouse=True)
def kernel_hashes():
    """Make the hashes of kernels those of hash_of, and keep artefacts of other tests out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "kernel_hash", hash_of)
        patch.setattr(selection, "kernel_hash", hash_of)
        yield


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database with every problem measured over its whole space."""
    path = tmp_path_factory.mktemp("grouped") / "tuning.db"
    summary = run_sweep(path, [problem for problems in PROBLEMS.values() for problem in problems])
    assert summary["measured"] == 36 and not summary["failed"]
    return path


def load(path, op: str):
    """Return the table of one op kind."""
    with Store.open(path, "ro") as store:
        return load_dataset(store, H200.sku, op=op)


def test_rows_say_of_which_workload_they_are(database):
    with Store.open(database, "ro") as store:
        assert store.check() == []
        for op, problems in PROBLEMS.items():
            rows = store.load_measurements(op=op)
            assert {row.block.problem for row in rows} == set(problems)
            assert {(row.block.workload, row.block.regime.removesuffix(RESTED)) for row in rows} == {
                (Workload().describe(problem), "simulated") for problem in problems
            }
            for problem in problems:
                measured = {row.config_key for row in rows if row.block.problem_key == problem.key}
                assert {config.key(op) for config in _C.get_candidates(problem, H200)} <= measured


def test_workloads_never_mix(tmp_path):
    path, problems, dense = tmp_path / "a.db", PROBLEMS[MASKED[1]][:2], _C.Problem("fp8_gemm", 64, 2112, 7168)
    few = _C.get_candidates(problems[0], H200)[:3]
    run_sweep(path, problems, configs=few)
    worker = InProcessWorker()
    summary = run_sweep(path, [*problems, dense], worker, configs=few, workload="skewed", seed=7)
    assert summary["already_measured"] == 0 and {job["workload"] for job in worker.jobs} == {"skewed"}
    assert (
        summary["identities"][MASKED[1]]["regime"] == "simulated-skewed"
        and summary["identities"]["fp8_gemm"]["regime"] == "simulated"
    )
    assert run_sweep(path, problems, configs=few, workload="skewed", seed=7)["already_measured"] == 2
    with Store.open(path, "ro") as store:
        rows = store.load_measurements(op=None)
        assert {(row.block.regime, row.block.workload) for row in rows} == {
            *(("simulated", Workload().describe(problem)) for problem in problems),
            ("simulated-rested", Workload().describe(problems[-1])),
            ("simulated-skewed", '{"seed":7,"sizes":"skewed"}'),
            ("simulated-skewed-rested", '{"seed":7,"sizes":"skewed"}'),
            ("simulated", ""),
        }
        assert (
            load_dataset(store, H200.sku, op=MASKED[1], regime="simulated-skewed").problems
            == load_dataset(store, H200.sku, op=MASKED[1]).problems
        )
        with store.reading() as connection:
            assert connection.exec_driver_sql("SELECT regime FROM sweep ORDER BY id").scalars().all() == [
                "simulated",
                "simulated-skewed",
                "simulated-skewed",
            ]
        covered = inspection.inspect(store, H200.sku, MASKED[1])
    assert {entry["regime"] for entry in covered["identities"]} == {"simulated", "simulated-skewed"}


def test_coverage_counts_the_default_workload_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(shapes, "preset_names", lambda: ["mine"])
    monkeypatch.setattr(shapes, "load_preset", lambda name: PROBLEMS[MASKED[1]][:2])
    few = _C.get_candidates(PROBLEMS[MASKED[1]][0], H200)[:3]
    run_sweep(tmp_path / "a.db", PROBLEMS[MASKED[1]][:2], configs=few, workload="skewed")
    run_sweep(tmp_path / "a.db", PROBLEMS[MASKED[1]][:1], configs=few)
    with Store.open(tmp_path / "a.db", "ro") as store:
        assert inspection.inspect(store, H200.sku, MASKED[1])["coverage"]["mine"]["measured"] == 1


def test_coverage_leaves_out_what_a_sweep_would_measure_again(tmp_path, monkeypatch):
    problems = PROBLEMS[MASKED[1]][:2]
    monkeypatch.setattr(shapes, "preset_names", lambda: ["mine"])
    monkeypatch.setattr(shapes, "load_preset", lambda name: problems)
    few = _C.get_candidates(problems[0], H200)[:3]
    with monkeypatch.context() as patch:
        patch.setattr(workload, "NUM_DRAWS", 1)
        run_sweep(tmp_path / "a.db", problems, configs=few)
    run_sweep(tmp_path / "a.db", problems[:1], configs=few)
    with Store.open(tmp_path / "a.db", "ro") as store:
        found = inspection.inspect(store, H200.sku, MASKED[1])["coverage"]["mine"]
    assert (found["measured"], found["missing"]) == (1, [str(problems[1])])


@pytest.mark.parametrize("op", OPS_SWEPT)
def test_families_are_weights_and_unseen_sizes_are_tokens_of_a_group(database, op):
    data = load(database, op)
    assert sorted(data.problems, key=str) == sorted(PROBLEMS[op], key=str) and data.full_space.all()
    assert len(set(data.families.tolist())) == len(WEIGHTS)
    weights = {fold.label for fold in validate.family_folds(data)}
    assert weights == {f"m{first}-n{second}" if op in K_GROUPED else f"n{first}-k{second}" for first, second in WEIGHTS}
    folds = list(validate.size_folds(data))
    assert len(folds) == len({get_tokens(problem) for problem in data.problems}) == 3
    for fold in folds:
        held_out = {get_tokens(problem) for problem, out in zip(data.problems, fold.held_out, strict=True) if out}
        kept = {get_tokens(problem) for problem, out in zip(data.problems, fold.held_out, strict=True) if not out}
        assert len(held_out) == 1 and not held_out & kept
    assert {"DeepSeek-V3", "GPT-OSS-120B", "Qwen3-30B-A3B", "Mixtral-8x7B"} == set(data.models)


def test_the_nearest_problem_has_as_many_tokens_and_groups(database):
    data = load(database, MASKED[1])
    rows = np.arange(len(data.problems))
    assert find_nearest(data, rows, rows).tolist() == rows.tolist()


@pytest.fixture(scope="module")
def exported(database, tmp_path_factory):
    """Train, evaluate and export by the commands; return the folder."""
    folder = tmp_path_factory.mktemp("training")
    train_and_export(database, folder, trees=4, portfolio_size=6)
    return folder


@pytest.mark.parametrize("op", OPS_SWEPT)
def test_a_selector_is_trained_evaluated_and_exported(database, exported, op):
    record = json.loads((exported / op / train.TRAINING).read_text())
    assert record["data"]["problems"] == 12 and record["data"]["values_of_m"] == 3 and len(record["portfolio"]) == 6
    assert len(record["feature_min"]) == len(_C.config_feature_names())
    evaluation = json.loads((exported / op / train.EVALUATION).read_text())
    few = sum(problem.num_groups <= 4 for problem in PROBLEMS[op]) if op in MASKED else 0
    apart = {"few_groups"} if 0 < few < 12 else set()
    assert set(evaluation["splits"]) == {"family", "model", "unseen_m", "m_range", "weight_size"} | apart
    assert sum(evaluation["splits"][name]["model"]["problems"] for name in {"family"} | apart) == 12
    assert all("num_groups=" in worst["groups"] for worst in evaluation["worst"])
    selector = Selector((exported / "models" / f"{H200.sku}.dgsel").read_bytes())
    assert selector.replay_golden() == 0
    sources = {selector.choose(problem, H200).source for problem in PROBLEMS[op]}
    assert "exact" in sources
    card = (exported / "models" / f"{H200.sku}.md").read_text()
    assert f"## {op}" in card and ("groups of K" in card) and "rows expected in a group" in card


@pytest.mark.parametrize("op", OPS_SWEPT)
def test_golden_vectors_lie_between_the_measured_problems(op):
    for problem in PROBLEMS[op]:
        moved = export.move(problem, rows=100, n=8, k=128)
        assert (moved.n, moved.k, moved.num_groups) == (problem.n + 8, problem.k + 128, problem.num_groups)
        assert (moved.m, moved.expected_m) == (
            (2048, problem.expected_m + 100) if op in MASKED else (problem.m + 100, 0)
        )
    full = make_grouped(MASKED[0], 64, 512, 512, 2, expected_m=60)
    assert export.move(full, rows=17).expected_m == 64


def select_arguments(problem) -> list[str]:
    """Return a problem as arguments of `select`."""
    fields = problem.as_dict()
    names = (
        "op",
        "num_groups",
        "expected_m",
        "alignment",
        "group_layout",
        "recipe",
        "d_dtype",
        "c_mode",
        "a_major",
        "b_major",
        "scale_layout",
    )
    options = [part for name in names for part in (f"--{name.replace('_', '-')}", str(fields[name]))]
    return ["select", *(str(fields[name]) for name in "mnk"), *options, "--device", "h200", "--json"]


def test_select_shows_the_run_times_choice(exported, monkeypatch, capsys):
    monkeypatch.setenv("DG_MODEL_DIR", str(exported / "models"))
    selection.forget_selectors()
    for problems in PROBLEMS.values():
        choice = selection.explain(problems[1], H200)
        assert cli.run(select_arguments(problems[1])) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["name"], found["source"]) == (str(choice.config), choice.source) and found["problem"] == problems[
            1
        ].as_dict()
        assert choice.source in ("exact", "learned")
    selection.forget_selectors()


def test_select_rounds_the_rows_expected_as_the_library_does(monkeypatch, capsys):
    monkeypatch.setenv("DG_SELECTOR", "analytic")
    selection.forget_selectors()
    arguments = [
        "select",
        "4096",
        "4096",
        "7168",
        "--op",
        MASKED[0],
        "--num-groups",
        "32",
        "--device",
        "h200",
        "--json",
    ]
    for given, rounded in ((33, 40), (9999, 4096), (0, 0)):
        assert cli.run([*arguments, "--expected-m", str(given)]) == 0
        assert json.loads(capsys.readouterr().out)["problem"]["expected_m"] == rounded
    for wrong in (["--num-groups", "0"], ["--alignment", "64"], ["--group-layout", "blocks"], ["--expected-m", "-1"]):
        assert cli.run([*arguments, *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    selection.forget_selectors()


def test_simulate_replays_a_grouped_op(database, capsys):
    assert (
        cli.run(["simulate", "--db", str(database), "--op", MASKED[1], "--problems", "2", "--seeds", "1", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)[MASKED[1]]["problems"] == 2


@pytest.mark.parametrize("command", ["train", "evaluate", "simulate", "inspect", "export", "select"])
def test_help_lists_every_op_kind(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert cli.run([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert all(op in text for op in OPS)


def test_the_sweep_command_takes_a_workload(tmp_path, capsys):
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps({"problems": [PROBLEMS[MASKED[1]][0].as_dict()]}))
    arguments = ["sweep", "--shapes", str(path), "--db", str(tmp_path / "a.db"), "--dry-run", "--json"]
    assert cli.run([*arguments, "--workload", "skewed"]) == 0
    assert json.loads(capsys.readouterr().out)["options"]["workload"] == "skewed"
    assert cli.run([*arguments, "--workload", "heavy"]) == 2 and "spread, uniform, skewed" in capsys.readouterr().err


def test_one_kernel_serves_all_groups_and_alignments():
    problem = make_grouped(CONTIGUOUS[0], 1024, 512, 512, 4)
    others = [
        replace_problem(problem, num_groups=2, m=2048),
        replace_problem(problem, alignment=256),
        replace_problem(problem, n=520),
    ]
    assert {kernel_identity(other) for other in others} == {kernel_identity(problem)} and kernel_identity(
        problem
    ).alignment == _C.ANY_TILE_ALIGNMENT
    masked = make_grouped(MASKED[0], 1024, 512, 512, 4, expected_m=20)
    assert kernel_identity(masked) == make_grouped(MASKED[0], 1, 1, 1, 1)
    assert kernel_identity(make_grouped(K_GROUPED[0], 64, 64, 256, 2, group_layout="blocks")).group_layout == "blocks"
    configs = _C.get_candidates(problem, H200)
    assert len(find_kernels({problem: configs, others[0]: configs})) == len(configs)


@pytest.mark.parametrize("op", GROUPED_OPS)
def test_every_config_of_a_space_is_legal_for_the_kernels_own_problem(op):
    problem = make_grouped(op, 4096, 4096, 4096, 8)
    identity = kernel_identity(problem)
    for config in {
        *_C.get_default_space(problem, H200),
        *choose_candidates(problem, H200, SweepOptions([problem], "")),
    }:
        assert _C.is_legal(identity, config, H200)
        assert op not in CONTIGUOUS or _C.ANY_TILE_ALIGNMENT % (config.block_m * config.cluster_m) == 0
    space = wide_space.get_wide_space(problem, H200)
    assert set(_C.get_candidates(problem, H200)) < set(space)
    assert all(
        _C.is_legal(problem, config, H200) and _C.is_legal(identity, config, H200) and config.split_k == 1
        for config in space
    )


def test_shards_share_the_work_of_grouped_problems():
    problems = [problem for problem in shapes.load_preset("portfolio_grouped") if problem.op in MASKED]
    parts = [shapes.take_shard(problems, index, 4) for index in range(4)]
    assert sorted(problem.key for part in parts for problem in part) == sorted(problem.key for problem in problems)
    work = [sum(map(get_work, part)) for part in parts]
    assert max(work) < 1.25 * min(work)
    assert get_work(make_grouped(MASKED[0], 4096, 8, 16, 32, expected_m=20)) == 32 * 20 * 8 * 16
    assert get_work(make_grouped(K_GROUPED[0], 8, 8, 1024, 4)) == 8 * 8 * 1024


def test_a_worker_is_told_the_seed_of_the_group_sizes(tmp_path):
    worker = InProcessWorker()
    run_sweep(tmp_path / "a.db", PROBLEMS[CONTIGUOUS[0]][:1], worker, configs=[], seed=11)
    assert {(job["seed"], job["workload"]) for job in worker.jobs} == {(11, "spread")}
