"""Every command of the tuner with streams, disks and files at fault: a documented exit code, a line, nothing partial.

`make test` runs a few commands; `make test-full` the whole matrix.
"""

import os
import random
import shutil
import sys

import pytest

from tests.fakes import command_lines
from tests.fakes.command_lines import Ended, run_line
from tests.fakes.databases import count_rows, make_database
from tuner import cli, errors
from tuner.db import Store

NUM_ROWS = 24
CODES = {0, 1, 2, 3, 4}
#: A line of every command; {db} is a database, {out} an empty folder, {here} a folder with shapes. The first ones end
#: without a measuring process.
LINES = {
    "sweep": "sweep --dry-run --preset demo --backend simulated",
    "simulate": "simulate --db {db}",
    "train": "train --db {db} --out {out}/training",
    "evaluate": "evaluate --training {here}/none",
    "export": "export --training {here}/none --out {out}",
    "select": "select 64 2112 7168 --device h200 --explain",
    "warmup": "warmup {here}/none.json --device h200",
    "inspect": "inspect --db {db}",
    "compare": "compare {db} {db}",
    "bisect": "bisect HEAD HEAD 64 2112 7168",
    "models": "models list",
    "cache": "cache list",
    "doctor": "doctor",
    "db": "db stats --db {db}",
    "db init": "db init --db {out}/new.db",
    "db check": "db check --db {db}",
    "db audit": "db audit --db {db}",
    "db show": "db show 64 2112 7168 --db {db}",
    "db snapshot": "db snapshot {out}/snapshot.db --db {db}",
    "db merge": "db merge {out}/merged.db {db}",
    "db export": "db export {out}/rows.json --db {db}",
    "db upgrade": "db upgrade --db {db}",
    "tune": "tune 64 2112 7168 --backend simulated --db {out}/tune.db --out {out}/models",
    "ab": "ab HEAD HEAD 64 2112 7168",
    "refine": "refine --shapes {here}/none.json --backend simulated --db {out}/refine.db --out {out}/models",
    "report": "report --db {db} --out {out}/report.html",
    "baseline": "baseline list --db {db}",
}
FAULTS = {
    "closed input": command_lines.close(0),
    "closed output": command_lines.close(1),
    "closed error output": command_lines.close(2),
    "broken pipe": command_lines.break_pipe,
    "full output": command_lines.fill_output,
    "full disk": command_lines.fill_disk,
}
#: Cheap commands meet every fault in `make test`.
QUICK = ("db check", "db export")
PAIRS = [
    pytest.param(name, fault, marks=() if name in QUICK else pytest.mark.full) for name in LINES for fault in FAULTS
]
pytestmark = pytest.mark.usefixtures("few_sources")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The bytes of a small database."""
    return make_database(tmp_path_factory.mktemp("made") / "tuning.db").read_bytes()


@pytest.fixture
def places(tmp_path, made, monkeypatch) -> dict:
    """The folders and the database that the lines name, as a home of its own."""
    for name in [name for name in os.environ if name.startswith("DG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    places = {name: tmp_path / name for name in ("home", "here", "out")} | {"db": tmp_path / "here/tuning.db"}
    for name in ("home", "here", "out"):
        places[name].mkdir()
    places["db"].write_bytes(made)
    return places


def run(name: str, places: dict, prepare=lambda: None) -> Ended:
    """Run the line of a command."""
    return run_line(LINES[name].format(**places).split(), places["home"], prepare)


def check_ended(ended: Ended, places: dict, made: bytes) -> None:
    """Check what holds after every fault: the code, at most a few lines, no use of the network, nothing partial."""
    assert ended.code in CODES and "Traceback" not in ended.err and ended.network == ""
    assert len(ended.err.splitlines()) <= 4 and all(len(line) <= 2200 for line in ended.err.splitlines())
    assert places["db"].read_bytes() == made
    check_whole(places)


def check_whole(places: dict) -> None:
    """Check that what was written is whole, and that no temporary file is left."""
    for path in places["out"].rglob("*"):
        assert not path.name.startswith(".") and "-journal" not in path.name, path
        if path.suffix == ".db" and path.stat().st_size:
            with Store.open(path, "ro") as store:
                assert store.check() == []


def test_every_command_has_a_line():
    assert {name.split()[0] for name in LINES} == set(cli.COMMANDS)


@pytest.mark.parametrize("name, fault", PAIRS)
def test_streams_and_disks_at_fault(places, made, name, fault):
    clean = run(name, places)
    check_ended(clean, places, made)
    shutil.rmtree(places["out"])
    places["out"].mkdir()
    ended = run(name, places, FAULTS[fault])
    check_ended(ended, places, made)
    if fault in ("broken pipe", "full output", "full disk"):
        assert ended.code in (clean.code, errors.EXIT_FAILURE)
        assert ended.code or fault == "full disk" or not clean.out, "what could not be printed must not be a success"
    else:
        assert ended.code == clean.code
        assert ended.out == clean.out or fault == "closed output" or name == "doctor"
        assert ended.err == clean.err or fault == "closed error output" or name == "tune"  # says how far it is


def plant_input(places: dict, kind: str) -> str:
    """Return a database that is none."""
    path = places["here"] / "input"
    if kind == "binary":
        path.write_bytes(random.Random(1).randbytes(1 << 16))
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind == "folder":
        path.mkdir()
    elif kind == "dash":
        return "-input"
    elif "://" in kind:
        return kind
    return str(path)


INPUTS = ("missing", "binary", "huge", "folder", "dash", "http://host/tuning.db", "ftp://host/x", "file:///etc/passwd")
READERS = [name for name, line in LINES.items() if "{db}" in line and name not in ("db upgrade", "compare")]


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize(
    "name", ["db check", *(pytest.param(name, marks=pytest.mark.full) for name in READERS if name != "db check")]
)
def test_databases_that_are_none(places, made, name, kind):
    planted = plant_input(places, kind)
    ended = run_line(LINES[name].format(**places | {"db": planted}).split(), places["home"])
    assert ended.code in CODES - {0} and ended.out == "" and len(ended.err.splitlines()) == 1
    check_ended(ended, places, made)


INTERRUPTS = [("db merge", 4)]
INTERRUPTS += [pytest.param(name, 25, marks=pytest.mark.full) for name in LINES if name != "tune"]


@pytest.mark.parametrize("name, moments", INTERRUPTS)
def test_an_interrupt_at_any_moment(places, made, name, moments):
    generator = random.Random(name)
    for _ in range(moments):
        place = round(10 ** generator.uniform(1.0, 5.0))
        ended = run(name, places, lambda place=place: sys.setprofile(command_lines.InterruptAtCall(place)))
        assert ended.code in (*CODES, errors.EXIT_INTERRUPTED), place
        if ended.code == errors.EXIT_INTERRUPTED:
            assert ended.err.endswith(f"tuner: {errors.INTERRUPTED}\n")
        assert "Traceback" not in ended.err and count_rows(places["db"]) == NUM_ROWS
        shutil.rmtree(places["out"])
        places["out"].mkdir()
