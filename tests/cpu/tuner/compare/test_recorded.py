"""Two recorded sweeps: a config that became slower beside the others is found, and sessions that differ are clean."""

import json
import math
import random
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from deep_gemm import _C
from tests.fakes import databases
from tests.fakes.databases import CONFIGS, IDENTITY, SKU
from tuner import cli, errors
from tuner.commands.tables import WIDTH
from tuner.compare import blocks, recorded
from tuner.db import Store
from tuner.db.rows import BlockRow, MeasurementRow

PROBLEMS = [_C.Problem("fp8_gemm", m, n, 7168) for n in (2112, 4096) for m in range(64, 1344, 128)]
SLOWED = CONFIGS[2]
#: Spreads of logarithms of times: of a block in a session, and of a config in a block (a few are ten times that).
BLOCK_SPREAD, CONFIG_SPREAD, FAR_SHARE = 0.04, 0.003, 0.03


def draw_us(generator: random.Random, slowed: float) -> dict[tuple, float]:
    """Return {(problem, config): microseconds} of one sweep; SLOWED takes `slowed` times as long."""
    times = {}
    for problem in PROBLEMS:
        block = generator.gauss(0.0, BLOCK_SPREAD)
        for index, config in enumerate(CONFIGS[:8]):
            spread = CONFIG_SPREAD * (10.0 if generator.random() < FAR_SHARE else 1.0)
            factor = slowed if config == SLOWED else 1.0
            times[problem, config] = (20.0 + index) * factor * math.exp(block + generator.gauss(0.0, spread))
    return times


def make_rows(times: dict, statuses: dict | None = None) -> list[MeasurementRow]:
    """Return the confirmed rows of a sweep."""
    names = {problem: index for index, problem in enumerate(PROBLEMS)}
    fields = {name: IDENTITY[name] for name in ("sku", "kernel_hash", "compiler", "regime")}
    rows = []
    for (problem, config), median_us in times.items():
        number = names[problem]
        block = BlockRow(
            block_id=number, problem=problem, problem_id=number, problem_key=problem.key, status="finished",
            created="2026-01-01", **fields,
        )  # fmt: skip
        status = (statuses or {}).get((problem, config), "ok")
        rows.append(
            MeasurementRow(
                block=block, config=config, config_id=0, config_key=config.key("fp8_gemm"), role="confirm",
                status=status, median_us=median_us if status == "ok" else None, error="D differs",
            )
        )  # fmt: skip
    return rows


def compare(seed: int, slowed: float = 1.0, **options) -> dict:
    """Compare two sweeps on simulated times."""
    generator = random.Random(seed)
    first, second = draw_us(generator, 1.0), draw_us(generator, slowed)
    return recorded.compare_rows("fp8_gemm", make_rows(first), make_rows(second, **options))


def list_verdicts(report: dict) -> dict[str, str]:
    """Return {config: verdict} of the configs that are not the same."""
    return {row["config"]: row["verdict"] for row in report["configs"] if row["verdict"] != "same"}


def test_a_slower_config_is_found_beside_the_others():
    report = compare(1, slowed=1.02)
    assert list_verdicts(report) == {str(SLOWED): "slower"} and report["verdict"] == "slower"
    row = report["configs"][0]
    assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"] and row["ratio"] == pytest.approx(1.02, abs=0.005)
    assert list_verdicts(compare(1, slowed=1.0 / 1.02)) == {str(SLOWED): "faster"}
    assert recorded.choose_exit_code([report]) == errors.EXIT_FAILURE


def test_a_config_that_fails_is_a_failure():
    report = compare(2, statuses={(PROBLEMS[0], CONFIGS[1]): "incorrect"})
    assert report["failing"][0]["status"] == "incorrect" and report["verdict"] == "slower"


def test_a_failure_before_the_newest_block_counts_no_more():
    times = draw_us(random.Random(3), 1.0)
    again = [replace(row, block=replace(row.block, block_id=100 + row.block.block_id)) for row in make_rows(times)]
    failed = make_rows(times, {(PROBLEMS[0], CONFIGS[1]): "timeout"})
    for newer, older, verdict in ((again, failed, "same"), (failed, [], "slower")):
        report = recorded.compare_rows("fp8_gemm", make_rows(times), older + newer)
        assert report["verdict"] == verdict and bool(report["failing"]) == (verdict == "slower")


def test_a_shift_of_all_is_no_kernels_fault_but_no_answer():
    generator = random.Random(4)
    first = draw_us(generator, 1.0)
    second = {key: time_us * 1.2 for key, time_us in draw_us(generator, 1.0).items()}
    report = recorded.compare_rows("fp8_gemm", make_rows(first), make_rows(second))
    assert report["verdict"] == "suspect" and not list_verdicts(report)
    assert report["shift"]["verdict"] == "suspect" and report["shift"]["ratio"] == pytest.approx(1.2, rel=0.05)
    assert recorded.choose_exit_code([report]) == errors.EXIT_INCONCLUSIVE


def test_too_little_in_common_is_no_answer():
    times = draw_us(random.Random(5), 1.0)
    few = {key: time_us for key, time_us in times.items() if key[0] in PROBLEMS[:5]}
    report = recorded.compare_rows("fp8_gemm", make_rows(times), make_rows(few))
    assert report["verdict"] == "few" and report["lost"] == len(PROBLEMS) - 5
    empty = recorded.compare_rows("fp8_gemm", make_rows(times), [])
    assert empty["shift"] is None and recorded.choose_exit_code([empty]) == recorded.choose_exit_code([]) == 3


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """Two databases with ten common problems of two configs each, and the first one's rows under another hash."""
    folder = tmp_path_factory.mktemp("compare")
    return [str(databases.make_database(folder / f"{seed}.db", num_problems=7, seed=seed)) for seed in range(2)]


def test_the_command_answers_in_every_format(sweeps, capsys, monkeypatch):
    monkeypatch.setattr(blocks, "MIN_CONFIGS", 2)
    code = cli.run(["compare", *sweeps, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == report["exit_code"] and report["sku"] == SKU and report["ops"][0]["problems"] == 7
    texts = {}
    for name in ("table", "markdown", "junit", "html"):
        assert cli.run(["compare", *sweeps, "--format", name]) == code
        texts[name] = capsys.readouterr().out
        assert "fp8_gemm" in texts[name]
    part = report["ops"][0]
    values = len(part["configs"]) + len(part["single"]) + sum(part[name] is not None for name in ("shift", "chosen"))
    suite = ElementTree.fromstring(texts["junit"])
    assert suite.get("tests") == str(values + len(part["failing"]))
    assert max(map(len, texts["table"].splitlines())) <= WIDTH
    assert texts["html"].startswith("<!DOCTYPE html>") and "http" not in texts["html"]


def test_sides_are_named_by_kernel_hash_too(sweeps, capsys):
    named = f"{sweeps[0]}@{databases.KERNEL_HASH[:12]}"
    assert cli.run(["compare", named, sweeps[0]]) == 3
    assert cli.run(["compare", f"{sweeps[0]}@{'0' * 12}", sweeps[0]]) == 3
    assert "no rows" in capsys.readouterr().err
    assert cli.run(["compare", *sweeps, "--format", "pdf"]) == errors.EXIT_USAGE


def test_a_sweep_is_equal_to_itself(sweeps):
    with Store.open(sweeps[0], mode="ro") as store:
        rows = store.load_measurements()
    report = recorded.compare_rows("fp8_gemm", rows, rows)
    assert report["single"] == [] and all(row["ratio"] == 1.0 for row in report["configs"])
