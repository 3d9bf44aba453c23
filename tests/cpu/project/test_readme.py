"""The tables of docs/ agree with the code."""

import re
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.stamp import RESULTS, read_json
from deep_gemm import environment
from tuner import cli, errors
from tuner.commands import db
from tuner.problems import shapes
from tuner.ship import gates

ROOT = Path(__file__).resolve().parents[3]
README, CONFIGURATION, TUNING = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/configuration.md", "docs/tuning.md")
)


def first_column(page: str, header: str) -> list[str]:
    """Return the names in the first cells of the table whose header row begins with `header`."""
    table = page.split(f"| {header} |", 1)[1].split("\n\n", 1)[0]
    cells = re.findall(r"^\|([^|]+)\|", table, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_commands_are_those_of_the_tuner():
    assert first_column(TUNING, "command") == list(cli.COMMANDS)


def test_sub_commands_of_db_are_listed():
    text = next(line for line in TUNING.splitlines() if line.startswith("| `db` |"))
    commands = {command.name or command.callback.__name__ for command in db.app.registered_commands}
    assert set(re.findall(r"`([a-z]+)`", text)) - {"db"} == commands


def test_presets_are_those_of_the_tuner():
    parts = {name for name in shapes.preset_names() if name.startswith("portfolio")}
    shown = {name for name in shapes.preset_names() if name not in parts} | {"portfolio_dense", "portfolio_grouped"}
    assert set(first_column(TUNING, "preset")) == shown


def test_limits_of_export_are_those_of_the_gates():
    text = re.sub(r"\s+", " ", TUNING)
    assert f"mean regret at most {gates.MAX_MEAN:.0%}".replace("%", " %") in text
    assert f"percentile at most {gates.MAX_P95:.0%}".replace("%", " %") in text
    assert f"at least {gates.MIN_ANSWERED:.0%}".replace("%", " %") in text


def test_exit_codes_are_those_of_the_tuner():
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(code) for code in first_column(CONFIGURATION, "exit code")} == codes


def test_make_targets_are_those_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)) - {"help"}
    assert set(first_column(CONFIGURATION, "target")) == targets


def test_every_environment_variable_is_listed():
    assert first_column(CONFIGURATION, "variable") == list(environment.VARIABLES)


@pytest.mark.parametrize("name", tables.TABLES)
def test_generated_tables_are_up_to_date(name):
    page, make_lines = tables.TABLES[name]
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count(f"<!-- {name}: begin -->") == text.count(f"<!-- {name}: end -->") == 1
    assert tables.replace_table(text, name, make_lines()) == text, "run python -m benchmarks.tables"


def test_replacing_a_table_leaves_the_rest_of_the_page():
    page = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"
    assert tables.replace_table(page, "x", ["| new |"]) == page.replace("old", "| new |")


def test_the_readme_claims_what_was_measured():
    entries = read_json(RESULTS / "summary.json")
    text = re.sub(r"\s+", " ", README)
    assert f"dense FP8 is {entries['P1']['value']:.2f}x as fast as DeepGEMM in the same run" in text
    out_of_fold = entries["P1"]["out_of_fold"]  # None where the run had no such choices
    claim = "never saw the problem's weight"
    assert claim + (f", {out_of_fold:.2f}x" if out_of_fold else ". ") in text
    words = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    words += ["eleven", "twelve", "thirteen", "fourteen", "fifteen"]
    missed = sum(not entry["met"] for entry in entries.values())
    unmeasured = sum(entry["stale"] is not None for entry in entries.values())
    for_want = f", {words[unmeasured]} for want of a run" if unmeasured else ""
    assert f"{words[missed]} of the project's {len(entries)} targets are not met{for_want}: [docs/perf" in text
    assert (
        f"{entries['R1']['problems']} shapes drawn at random, which it never saw, it is {entries['R1']['value']:.2f}x"
        in text
    )


def test_the_page_on_reliability_counts_the_cases_of_the_record():
    record = read_json(RESULTS / "gpu_record.json")
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8"))
    assert record["complete"] and not record["failures"]
    assert f"ran whole (`benchmarks/results/h200/gpu_record.json`): {record['cases']:,} cases" in page
    assert f"without a finding on {record['sections']['sanitizer_memcheck']['cases']} programs each" in page
