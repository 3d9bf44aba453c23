"""docs/search.md: its tables are what its commands print of the recorded snapshots, and its commands exist."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import pruners
from tuner import cli
from tuner.db import snapshot_path
from tuner.search import propose

PAGE = (Path(__file__).parents[4] / "docs" / "search.md").read_text(encoding="utf-8")


def find_table(label: str) -> tuple[str, str]:
    """Return the words behind a label, and the table that follows."""
    words, table = re.search(rf"<!-- {label} (.*?) -->\n(.*?)\n<!-- end -->", PAGE, re.DOTALL).groups()
    return words, table


COMMAND, TABLE = find_table("samplers: python -m tuner")
#: The rows of searchers that are no samplers.
FIXED = ("heuristic", "exhaustive")
SNAPSHOT = ["--db", str(snapshot_path("nvidia-h200-sm132"))]


def read_rows(table: str) -> dict[str, str]:
    """Return the lines of a table by the word in their first column."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return {line.split("|")[1].strip(): line for line in lines[2:]}


def run(arguments: list[str], capsys) -> str:
    """Return what a command of the page prints."""
    assert cli.run([*arguments, *SNAPSHOT]) == 0
    return capsys.readouterr().out.strip()


def with_samplers(names: str) -> list[str]:
    """Return the page's command with other samplers."""
    words = shlex.split(COMMAND)
    place = words.index("--samplers") + 1
    return [*words[:place], names, *words[place + 1 :]]


@pytest.mark.full
def test_the_orders_of_the_table_are_those_of_the_snapshot(capsys):
    found = run(with_samplers("analytic"), capsys)
    rows, shown = read_rows(found), read_rows(TABLE)
    for name in ("heuristic", "analytic", "exhaustive"):
        assert rows[name] == shown[name]
    assert found.splitlines()[-1] == TABLE.splitlines()[-1]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_table_is_what_its_command_prints(capsys):
    pytest.importorskip("cmaes")
    rows, shown = read_rows(run(shlex.split(COMMAND), capsys)), read_rows(TABLE)
    assert rows.keys() == shown.keys()
    for name in rows:  # another version of optuna or scikit-learn may move a mean within its interval
        for mean, old in zip(read_means(rows[name]), read_means(shown[name]), strict=True):
            assert old[1] - 0.05 <= mean[0] <= old[2] + 0.05, name


@pytest.mark.full
def test_the_table_of_pruners_is_what_its_command_prints(capsys, monkeypatch):
    words, table = find_table("pruners: python -m benchmarks.pruners")
    monkeypatch.setattr(sys, "argv", ["pruners", *shlex.split(words), *SNAPSHOT])
    pruners.main()
    assert capsys.readouterr().out.strip() == table


ENERGY_COMMAND, ENERGY_TABLE = find_table("energy: python -m tuner")


def replay_energies(capsys, seeds: str) -> list[str]:
    """Return the lines of the page's replay of energies, which is of the H100's recording."""
    words = shlex.split(ENERGY_COMMAND)
    words[words.index("--seeds") + 1] = seeds
    assert cli.run(words) == 0
    return capsys.readouterr().out.strip().splitlines()


def test_the_fronts_of_time_and_energy_are_those_of_the_snapshot(capsys):
    found, shown = replay_energies(capsys, "1"), ENERGY_TABLE.splitlines()
    assert len(found) == len(shown)
    fixed = [line for line in shown if not line.startswith(("| nsga2", "| random"))]
    assert fixed == [line for line in found if not line.startswith(("| nsga2", "| random"))] and len(fixed) > 12


@pytest.mark.full
def test_searches_for_time_and_energy_find_what_the_table_says(capsys):
    pairs = zip(replay_energies(capsys, "5"), ENERGY_TABLE.splitlines(), strict=True)
    for found, shown in pairs:  # another version of optuna draws otherwise
        if found.startswith(("| nsga2", "| random")):
            new, old = ([float(cell) for cell in line.split("|")[2:-1]] for line in (found, shown))
            assert new == pytest.approx(old, abs=3.0)


def read_means(line: str) -> list[tuple[float, ...]]:
    """Return (mean, low, high) of each budget of a row."""
    return [tuple(map(float, found)) for found in re.findall(r"([-\d.]+) \(([-\d.]+)\.\.([-\d.]+)\)", line)]


def test_the_default_is_the_best_of_the_table():
    means = {name: read_means(line) for name, line in read_rows(TABLE).items() if name not in FIXED}
    assert min(means, key=lambda name: means[name][0][0]) == propose.SEARCH_SAMPLER
    assert all(row[1][0] >= means[propose.SEARCH_SAMPLER][1][0] for row in means.values())


@pytest.mark.parametrize("line", re.findall(r"^python -m tuner (sweep .*)$", PAGE, re.MULTILINE))
def test_the_pages_sweeps_can_be_planned(line, capsys):
    words = shlex.split(line)
    assert cli.run([*words, "--dry-run"]) == 0 and "measurements" in capsys.readouterr().out
