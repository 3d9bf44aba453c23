"""The command line itself: what its help costs and says, its version, and what is said where the extra is missing."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.text import Text

from deep_gemm import __version__
from deep_gemm.fields import OP_KINDS
from tuner import cli

#: Slow imports that no help text may wait for.
SLOW = ("torch", "numpy", "sqlalchemy", "alembic", "sklearn", "optuna", "joblib")
MAIN = """
import sys
from tuner import __main__
{before}
for words in {lines}:
    sys.argv = ["tuner", *words]
    try:
        __main__.main()
    except SystemExit as end:
        print("code", end.code)
    print("slow", sorted(set({slow}) & set(sys.modules)))
"""


def run_main(*lines: list[str], before: str = "") -> subprocess.CompletedProcess:
    """Run command lines one after the other through the entry point, in one fresh process."""
    code = MAIN.format(before=before, lines=list(lines), slow=SLOW)
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)


def test_no_help_text_waits_for_a_slow_import():
    lines = [["--help"], ["--version"], [], *([name, "--help"] for name in cli.COMMANDS), ["db", "stats", "--help"]]
    done = run_main(*lines)
    assert re.findall("^slow (.*)$", done.stdout, re.MULTILINE) == ["[]"] * len(lines), done.stderr
    assert re.findall("^code (.*)$", done.stdout, re.MULTILINE) == ["0", "0", "2", *["0"] * (len(lines) - 3)]
    assert f"deep_gemm {__version__}\n" in done.stdout


def test_the_help_lists_every_command_and_explains_how_configs_are_printed(capsys):
    assert cli.run(["--help"]) == 0
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert all(f" {name} {sentence[:40]}" in words for name, sentence in cli.COMMANDS.items())
    assert "64x96x128 s9 c1x1 k4 swap: tile of 64 rows" in words


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_list_of_commands_says_what_the_commands_say(name):
    command = typer.main.get_command(cli.make_app([name])).commands[name]
    said = inspect.cleandoc(command.help).split("\n\n")[0].replace("\n", " ").partition(" Example:")[0]
    assert cli.COMMANDS[name] == said


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_paragraph_of_a_help_text_is_one_line_that_the_window_breaks(name):
    said = typer.main.get_command(cli.make_app([name])).commands[name].help
    assert all("\n" not in paragraph for paragraph in inspect.cleandoc(said).split("\n\n"))


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_no_help_text_loses_what_stands_in_brackets(name):
    """Rich takes [@WHICH] for markup, and leaves it out."""
    command = typer.main.get_command(cli.make_app([name])).commands[name]
    parts = [command, *getattr(command, "commands", {}).values()]
    texts = [one.help for part in parts for one in (part, *part.params) if getattr(one, "help", None)]
    assert texts and [Text.from_markup(text).plain for text in texts] == texts


def test_the_help_of_sweep_names_every_preset_that_the_docs_name(capsys):
    assert cli.run(["sweep", "--help"]) == 0
    said = set(re.findall(r"\w+", capsys.readouterr().out))
    table = (
        Path("docs/tuning.md").read_text(encoding="utf-8").partition("| preset | problems |")[2].partition("\n\n")[0]
    )
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert "attention" in named and named <= said


def test_the_docs_say_what_the_sizes_of_every_other_op_kind_are():
    text = Path("docs/tuning.md").read_text(encoding="utf-8")
    rows = text.partition("| op kind | m | n | k |")[2].partition("\n\n")[0].splitlines()[2:]
    named = {name for row in rows for name in re.findall(r"`([\w{},]+)`", row.split("|")[1])}
    named = {one for name in named for one in (name.replace("{fp8,bf16}", "fp8"), name.replace("{fp8,bf16}", "bf16"))}
    named |= {name.replace("_contiguous", "_psum") for name in named} if "`_psum`" in "".join(rows) else set()
    assert named >= set(OP_KINDS) - {"fp8_gemm", "bf16_gemm"}


def test_a_warning_is_one_line_without_source():
    before = "import os; os.environ['DG_SELECTOR'] = '/missing'"
    done = run_main(["select", "64", "2112", "7168", "--device", "h200"], before=before)
    assert "code 0" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("tuner: warning: /missing: no such file; set DG_SELECTOR")


@pytest.mark.parametrize("module", ["typer", pytest.param("sqlalchemy", marks=pytest.mark.full)])
def test_without_the_extra_one_line_says_what_to_install(module):
    done = run_main(["inspect"], before=f"sys.modules[{module!r}] = None")
    assert "code 2" in done.stdout and done.stderr.count("\n") == 1
    assert f"{module}: this module is not installed" in done.stderr and 'pip install "deep_gemm[tuner]"' in done.stderr


def test_a_command_without_its_module_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tuner.commands.inspect", None)
    assert cli.run(["inspect"]) == 2
    assert "this module is not installed" in capsys.readouterr().err


def test_an_unknown_command_is_a_usage_error(capsys):
    assert cli.run(["nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
