"""docs/reliability.md names tests that exist, every id of the plan, and nothing twice; SECURITY.md leads there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
COUNTS = {"C": 8, "N": 5, "L": 9, "W": 4, "D": 6, "G": 3, "M": 3, "S": 2, "I": 2}
IDS = {f"F-{group}{number}" for group, count in COUNTS.items() for number in range(1, count + 1)}


def rows() -> list[list[str]]:
    """Return the cells of the rows of every table, without the headings."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("| id |")]


def test_every_named_test_exists():
    named = [row[2].strip("`").split("::") for row in rows()]
    assert len(named) > 50
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"


def test_every_id_is_named():
    assert set(re.findall(r"F-[A-Z]\d", PAGE)) == IDS


def test_rows_are_whole_and_say_where():
    for row in rows():
        assert len(row) == 6 and row[1] and row[3] and row[5] in ("CPU", "stub", "GPU"), row
    assert len({(row[0], row[1]) for row in rows()}) == len(rows())


def test_a_figure_of_make_test_full_has_a_test_that_is_full():
    """In the file that the row names, or a section of the GPU suite."""
    for row in rows():
        if row[4] and row[5] != "GPU":
            text = (ROOT / row[2].strip("`").partition("::")[0]).read_text(encoding="utf-8")
            assert "pytest.mark.full" in text, row


def test_the_page_of_security_names_what_shows_it():
    assert "docs/reliability.md" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "../SECURITY.md" in PAGE
