"""Every code block of the README and of docs/ runs, every link leads somewhere, and the plots show the records.

A fenced block is `python` (run on the CPU: device="cuda" becomes "cpu"; the blocks of a page share their names, in
order), `python transformers` (run where that library is installed), `python gpu` (needs a GPU: compiled only), `sh`
(commands, checked or run, see `check_command`), `sql` (run by tests/cpu/db/test_views.py) or `text` (a drawing).
"""

import ast
import importlib.util
import re
import shlex
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import typer

from benchmarks import plots, summary
from deep_gemm import environment
from deep_gemm.testing import calc_diff
from examples import moe_layer
from tuner import cli
from tuner.report import drawing

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
KINDS = ("python", "python transformers", "python gpu", "sh", "sql", "text")
#: Kinds that run here.
RUN = ("python", "python transformers") if importlib.util.find_spec("transformers") else ("python",)
#: Pages that other changes bring; remove them here as soon as they are there.
EXPECTED: set[str] = set()
#: Tuner commands that are run as they stand, beside those with --dry-run: they only read, and take no time.
RUN_AS_WRITTEN = ("select",)


class Block(NamedTuple):
    """A fenced block: its page, the line of its first line of code, its info string and its text."""

    page: Path
    line: int
    kind: str
    text: str

    @property
    def name(self) -> str:
        """Return what a failure shows."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(page, text.count("\n", 0, found.start()) + 2, found[1], found[2]) for found in FENCE.finditer(text)]


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Return (name, command) of every line of a shell block."""
    lines = block.text.splitlines()
    return [(f"{block.page.name}:{block.line + index}", line) for index, line in enumerate(lines) if line.strip()]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = [command for block in BLOCKS if block.kind == "sh" for command in commands_of(block)]
PYTHON_PAGES = sorted({block.page for block in BLOCKS if block.kind.startswith("python")})


def test_every_block_says_what_it_is():
    assert not [f"{block.name}: {block.kind!r}" for block in BLOCKS if block.kind not in KINDS]
    assert all(page.read_text(encoding="utf-8").count("```") == 2 * len(blocks_of(page)) for page in PAGES)


def run_page(page: Path, monkeypatch) -> dict:
    """Run a page's Python blocks in order, on the CPU, and return the names that they define."""
    compile_graph = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *a, **k: compile_graph(*a, **k, backend="eager"))  # no C++ compiler
    names = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.kind.startswith("python"):
            source = "\n" * (block.line - 1) + block.text.replace('device="cuda"', 'device="cpu"')
            code = compile(source, str(page), "exec")
            if block.kind in RUN:
                exec(code, names)
    return names


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.name)
def test_python_blocks_run_on_the_cpu(page, monkeypatch):
    names = run_page(page, monkeypatch)
    if page.name == "README.md":
        assert calc_diff(names["d"], names["x"] @ names["w"].T) < 1e-3


def test_only_blocks_that_need_a_gpu_are_skipped():
    for block in BLOCKS:
        if block.kind == "python gpu":
            used = {node.attr for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Attribute)}
            assert "cuda" in used or "get_best_config" in used, f"{block.name} names nothing that needs a GPU"


@cache
def makefile() -> str:
    """Return the Makefile's text."""
    return (ROOT / "Makefile").read_text(encoding="utf-8")


def check_make(words: list[str]) -> None:
    """Check that the targets and variables of a make command exist."""
    for word in words:
        name, is_variable, _ = word.partition("=")
        pattern = rf"^{re.escape(name)} [?:]?=" if is_variable else rf"^{re.escape(name)}:"
        assert re.search(pattern, makefile(), re.MULTILINE), f"the Makefile has no {name}"


def check_pip(words: list[str]) -> None:
    """Check that `pip install` takes this package with extras that exist."""
    assert words[0] == "install" and re.fullmatch(r"\.(\[\w+\])?", words[1]) and len(words) == 2
    extra = words[1][2:-1]
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("setup.py", "pyproject.toml"))
    assert not extra or re.search(rf'^\s*"?{extra}"?\s*[:=]', text, re.MULTILINE)


@cache
def tuner_command():
    """Return the parser of `python -m tuner`, with every command."""
    return typer.main.get_command(cli.make_app(cli.COMMANDS))


def check_tuner(words: list[str]) -> Callable[[], int] | None:
    """Check a tuner command with all its options; return what runs it where that may be done here, else None."""
    command, context, rest = tuner_command(), None, list(words)
    while hasattr(command, "commands"):
        assert rest[0] in command.commands, f"there is no tuner command {rest[0]}"
        context = command.make_context(command.name or "tuner", [rest[0]], parent=context, resilient_parsing=True)
        command = command.commands[rest.pop(0)]
    command.make_context(command.name, list(rest), parent=context).close()
    may_run = "--dry-run" in words or " ".join(words).startswith(RUN_AS_WRITTEN)
    return partial(cli.run, words) if may_run else None


def check_module(module: str, words: list[str]) -> Callable[[], int] | None:
    """Check `python -m module options`; return what runs it where that may be done here, else None."""
    if module == "tuner":
        return check_tuner(words)
    found = importlib.util.find_spec(module)
    assert found is not None, f"there is no {module}"
    source = Path(found.origin).read_text(encoding="utf-8")
    assert all(f'"{word}"' in source for word in words if word.startswith("-"))
    return partial(moe_layer.main, words) if module == moe_layer.__name__ else None


def check_command(line: str) -> Callable[[], int] | None:
    """Check one shell line; return what runs it where that may be done here, else None."""
    words, is_plain = shlex.split(line), True
    while "=" in words[0]:
        name = words.pop(0).partition("=")[0]
        assert name in environment.VARIABLES, f"{name} is not read"
        is_plain = False
    if words[:2] == ["python", "-m"]:
        run = check_module(words[2], words[3:])
        return run if is_plain else None
    {"make": check_make, "pip": check_pip}[words[0]](words[1:])
    return None


@pytest.mark.parametrize(("name", "line"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_commands_exist_and_run(name, line, tmp_path, monkeypatch):
    run = check_command(line)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DG_TUNER_DB", raising=False)
    assert run is None or run() == 0, f"{name}: {line}"


def test_commands_in_sentences_exist():
    for page in PAGES:
        text = re.sub(r"\s+", " ", FENCE.sub("", page.read_text(encoding="utf-8")))
        for line in re.findall(r"`((?:make|python -m|pip) [^`]+)`", text):
            if line not in ("python -m tuner", "python -m tuner COMMAND"):
                check_command(line)


def test_a_wrong_command_is_found():
    for line in ("make no-target", "make demo NOTHING=1", "pip install .[none]", "python -m benchmarks.nothing"):
        with pytest.raises(AssertionError):
            check_command(line)
    for line in ("python -m tuner nothing", "python -m benchmarks.plots --none", "DG_NONE=1 python -m tuner inspect"):
        with pytest.raises(AssertionError):
            check_command(line)
    for options in ("select 1 2 3 --nothing", "select 1 2", "train --trees x"):
        with pytest.raises(typer.BadParameter.__base__):  # every error of usage; typer may bring its own click
            check_command(f"python -m tuner {options}")


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
        target, _, anchor = (link[0] or link[1]).partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists() or str(path.relative_to(ROOT)) in EXPECTED, f"{page.name}: {target}"
        assert not anchor or anchor in anchors_of(path), f"{page.name}: #{anchor}"


def test_expected_pages_are_still_missing():
    assert not [name for name in EXPECTED if (ROOT / name).exists()], "these pages are there: take them out of EXPECTED"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_sentences_exist(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for path in re.findall(r"`([a-z_]+/[\w./-]*)`", text):
        assert (ROOT / path).exists() or any((ROOT / folder / path).exists() for folder in ("tuner", "tests")), path


def test_every_page_of_docs_is_linked_from_the_readme():
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", PAGES[0].read_text(encoding="utf-8")))
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= linked


@pytest.mark.parametrize("theme", plots.THEMES)
@pytest.mark.parametrize("name", plots.COLLECTORS)
def test_plots_show_the_records(name, theme):
    assert drawing.read_plotted(plots.image_path(name, theme)) == plots.COLLECTORS[name]()


def test_plotted_means_are_those_of_the_summary():
    rows = {(row["name"], row["peer"]): row for row in plots.collect_speed()}
    entries = summary.make_summary()
    figures = {
        "P1": ("Dense FP8, all", plots.UPSTREAM),
        "P2": ("Dense FP8, M ≤ 64", plots.UPSTREAM),
        "P3": ("Dense FP8, M ≥ 2048", plots.UPSTREAM),
        "P4": ("Dense FP8, all", plots.VENDOR),
        "P5": ("Dense BF16, all", plots.VENDOR),
        "P6": ("Weight gradients FP8", plots.UPSTREAM),
        "P8": ("Masked FP8, decode", plots.UPSTREAM),
        "P9": ("k-grouped FP8 nt", plots.UPSTREAM),
    }
    for name, key in figures.items():
        row, entry = rows[key], entries[name]
        assert row["tuned_mean"] == pytest.approx(entry["value"], abs=1e-3), name
        assert row["is_out_of_fold"] == (entry.get("out_of_fold") is not None), name
        assert row["mean"] == pytest.approx(entry.get("out_of_fold") or entry["value"], abs=1e-3), name


def test_drawing_is_repeatable(tmp_path):
    pytest.importorskip("matplotlib")
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        plots.write_plot("regret", tmp_path / folder)
    first, second = (plots.image_path("regret", "dark", tmp_path / folder) for folder in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    assert drawing.read_plotted(first) == plots.collect_regret()


def test_the_readme_is_read_to_its_end():
    lines = PAGES[0].read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
