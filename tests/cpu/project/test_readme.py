"""The README's tables say what the code has."""

import re
from pathlib import Path

from benchmarks import readme_table
from benchmarks.stamp import RESULTS, read_json
from tuner import cli, errors
from tuner.commands import db

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def first_column(header: str) -> list[str]:
    """Return the first cells of the table whose header row begins with `header`."""
    table = README.split(f"| {header} |", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"^\|\s*`([^`]+)`", table, re.MULTILINE)


def test_commands_are_those_of_the_tuner():
    assert first_column("command") == list(cli.COMMANDS)


def test_exit_codes_are_those_of_the_tuner():
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(code) for code in first_column("exit code")} == codes


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)) - {"help"}
    assert set(first_column("target")) == targets


def test_sub_commands_of_db_are_listed():
    text = next(line for line in README.splitlines() if line.startswith("| `db` |"))
    commands = {command.name or command.callback.__name__ for command in db.app.registered_commands}
    assert set(re.findall(r"`([a-z]+)`", text)) - {"db"} == commands


def test_measured_figures_are_those_of_the_summary():
    assert readme_table.replace_table(README, readme_table.make_table(read_json(RESULTS / "summary.json"))) == README
