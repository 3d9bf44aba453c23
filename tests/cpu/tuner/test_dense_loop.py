"""Dense op kinds and variants through the whole loop: sweep on simulated times, train, evaluate, export, select."""

import json

import pytest

from deep_gemm import _C, selection
from deep_gemm.artifact import read_artifact
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.selector import Selector
from tests.fakes.sweeps import read_all, run_sweep, train_and_export
from tuner import cli

SHAPES = ((2112, 7168), (7168, 2048), (4096, 4096))
GRADIENT = {"recipe": "1d1d", "d_dtype": "fp32", "c_mode": "accumulate"}
PROBLEMS = [
    *(_C.Problem("fp8_gemm", m, n, k) for n, k in SHAPES for m in (16, 1024)),
    *(_C.Problem("fp8_gemm", 1024, n, k, **GRADIENT) for n, k in SHAPES),
    _C.Problem("fp8_gemm", 128, 2112, 7168, scale_layout="any"),
    *(_C.Problem("bf16_gemm", m, n, k) for n, k in SHAPES for m in (16, 1024)),
    *(_C.Problem("bf16_gemm", 128, n, k, b_major="mn") for n, k in SHAPES),
    _C.Problem("bf16_gemm", 128, 2112, 7168, a_major="mn", b_major="mn", d_dtype="fp32"),
]
DEVICE = _C.Device.known("h200")
OPS = ("fp8_gemm", "bf16_gemm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a swept database, a training folder and an artefact of both op kinds."""
    path = tmp_path_factory.mktemp("loop")
    run_sweep(path / "tuning.db", PROBLEMS)
    train_and_export(path / "tuning.db", path / "training", trees=4, portfolio_size=12)
    (path / "training" / "models").rename(path / "models")
    return path


@pytest.fixture
def selector(folder):
    """The artefact as the run time reads it."""
    return Selector(next((folder / "models").glob("*.dgsel")).read_bytes())


def test_problems_of_all_kinds_share_a_sweep(folder):
    rows, best = read_all(folder / "tuning.db")
    assert {row.block.problem for row in rows} == set(PROBLEMS) == {row.problem for row in best}
    for problem in PROBLEMS:
        measured = {row.config for row in rows if row.block.problem_key == problem.key}
        assert measured == {*_C.get_candidates(problem, DEVICE), _C.get_analytic_config(problem, DEVICE)}
    assert {row.block.problem.op: row.block.kernel_hash for row in rows} == {op: kernel_hash(op) for op in OPS}


def test_one_artefact_holds_a_model_of_every_op_kind(folder, selector):
    metadata, arrays = read_artifact(next((folder / "models").glob("*.dgsel")).read_bytes())
    assert set(metadata["ops"]) == set(OPS) and {name.partition("/")[0] for name in arrays} == set(OPS)
    assert selector.replay_golden() == 0
    for op in OPS:
        assert 12 <= len(selector.configs(op)) <= 64
        assert all(config.block_k == (128 if op == "fp8_gemm" else 64) for config in selector.configs(op))


def test_every_choice_is_legal_and_measured_problems_are_exact(selector):
    sources = set()
    for problem in PROBLEMS:
        choice = selector.choose(problem, DEVICE)
        sources.add((problem.op, choice.source))
        for mode in ("auto", "model"):
            assert _C.is_legal(problem, selector.choose(problem, DEVICE, mode).config, DEVICE)
    assert {(op, "exact") for op in OPS} <= sources


def test_the_documents_name_op_and_variant(folder):
    for op in OPS:
        rows = json.loads((folder / "training" / op / "out_of_fold.json").read_text())["rows"]
        assert {row["op"] for row in rows} == {op} and len(rows) == sum(problem.op == op for problem in PROBLEMS)
    variants = json.loads((folder / "training" / "fp8_gemm" / "training.json").read_text())["data"]["variants"]
    assert variants == {"default": 6, "recipe=1d1d d_dtype=fp32 c_mode=accumulate": 3, "scale_layout=any": 1}
    card = next((folder / "models").glob("*.md")).read_text()
    assert "## fp8_gemm" in card and "## bf16_gemm" in card


def test_one_op_kind_may_be_asked_for(folder, tmp_path, capsys):
    shared = ["--db", str(folder / "tuning.db"), "--json"]
    assert (
        cli.run(
            ["train", *shared, "--op", "bf16_gemm", "--out", str(tmp_path), "--trees", "2", "--portfolio-size", "4"]
        )
        == 0
    )
    assert list(json.loads(capsys.readouterr().out)["ops"]) == ["bf16_gemm"] and [
        path.name for path in tmp_path.iterdir()
    ] == ["bf16_gemm"]
    assert cli.run(["evaluate", "--training", str(tmp_path), "--op", "fp8_gemm"]) == 2
    assert "tuner train" in capsys.readouterr().err
    assert cli.run(["simulate", *shared, "--op", "bf16_gemm", "--problems", "2", "--seeds", "1"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["bf16_gemm"]
    assert cli.run(["inspect", *shared, "--preset", "bf16"]) == 0
    assert json.loads(capsys.readouterr().out)["ops"]["bf16_gemm"]["coverage"]["bf16"]["problems"] == 71


def test_a_portfolio_of_both_op_kinds_can_be_swept(folder, tmp_path, capsys):
    shapes, database = tmp_path / "shapes.json", tmp_path / "more.db"
    new = [_C.Problem(op, 333, 2112, 7168) for op in OPS]
    shapes.write_text("\n".join(problem.to_json() for problem in new))
    arguments = [
        "sweep",
        "--shapes",
        str(shapes),
        "--db",
        str(database),
        "--portfolio-size",
        "4",
        "--portfolio-from",
        str(folder / "tuning.db"),
        "--dry-run",
        "--json",
    ]
    assert cli.run(arguments) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["configs"]) == 8 and plan["problems"] == 2 and plan["measurements"] <= 2 * 5


def test_a_sweep_resumes_with_all_of_it(folder):
    summary = run_sweep(folder / "tuning.db", PROBLEMS)
    assert summary["already_measured"] == len(PROBLEMS) and set(summary["identities"]) == set(OPS)


def test_the_library_chooses_by_it(folder, monkeypatch):
    monkeypatch.setenv("DG_SELECTOR", str(next((folder / "models").glob("*.dgsel"))))
    selection.forget_selectors()
    sources = {(problem.op, selection.explain(problem, DEVICE).source) for problem in PROBLEMS}
    selection.forget_selectors()
    assert {(op, "exact") for op in OPS} <= sources
