"""No message, log or record shows the password of a database's URL."""

import json

import pytest

from deep_gemm import _C
from tests.fakes.in_process_worker import InProcessWorker
from tuner import cli, errors
from tuner.compare import baselines
from tuner.compare.sides import read_name
from tuner.credentials import hide_credentials
from tuner.db import Store
from tuner.search.candidates import SweepOptions
from tuner.search.sweep import Sweep
from tuner.ship.diagnosis import check_variables

#: Nobody listens there.
URL = "postgresql+psycopg://me:hidden@127.0.0.1:1/tuning?connect_timeout=1"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:pa/ss@host/db",
        "postgresql://me:pa@ss@host/db@previous",
        "mysql://host/db?user=me&password=pa/ss",
        "x://pa/ss@h",
    ],
)
def test_no_part_of_a_password_is_shown(url):
    hidden = hide_credentials(f"cannot open {url} now")
    assert "pa" not in hidden.replace("password", "") and "ss" not in hidden.replace("password", "") and "now" in hidden
    assert hide_credentials(hidden) == hidden


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("postgresql://u:p@w/x@h/db", "postgresql://***@h/db"),
        ("postgresql://u:p w@h", "postgresql://***@h"),
        ("postgresql://u:p w@h/db", "postgresql://***@h/db"),
        ("postgresql://u:p@w x@h/db", "postgresql://***@h/db"),
        ("postgresql://u:p@w@h", "postgresql://***@h"),
        ("postgresql://u:12/34@h/db", "postgresql://***@h/db"),
        ("postgresql://u:p?w=1@h/db", "postgresql://***@h/db"),
        ("postgresql://u/v:p@w/x@h/db", "postgresql://***@h/db"),
        ("postgresql://h/db?password=a@b&x=1", "postgresql://h/db?password=***&x=1"),
        ("postgresql://h/db?password=a@b&user=u:p@h/", "postgresql://***@h/"),
        ("host=h password='a b' port=1", "host=h password=*** port=1"),
        (r"password='a\' b' port=1", "password=*** port=1"),
        ('PASSWORD="a b', "PASSWORD=***"),
        ("x://u:p@h/a and y://v:q@i/b@previous", "x://***@h/a and y://***@i/b@previous"),
        ("x://h:5432/a and b@previous", "x://h:5432/a and b@previous"),
    ],
)
def test_what_is_left_of_a_password_that_is_not_escaped(text, hidden):
    assert hide_credentials(text) == hidden == hide_credentials(hidden)


def test_what_is_no_credential_stays():
    for text in ("sqlite:///a/b.db", "https://host/a", "a@b: C://x", "postgresql://host:5432/db"):
        assert hide_credentials(text) == text


@pytest.mark.parametrize(
    "command",
    [
        ["db", "stats", "--db", URL],
        ["db", "merge", URL, "absent.db"],
        ["inspect", "--db", URL],
        ["compare", "absent.db", f"{URL}@previous"],
        ["db", "export", "out.json", "--db", URL.replace("postgresql+psycopg", "nothing")],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_errors_of_commands(own_home, monkeypatch, capsys, command):
    monkeypatch.chdir(own_home)
    assert cli.run(command) in (errors.EXIT_FAILURE, errors.EXIT_USAGE)
    said = capsys.readouterr()
    assert said.err.startswith("tuner: ") and "hidden" not in said.err + said.out


def test_errors_and_names():
    assert "hidden" not in str(errors.StoreError(f"{URL}: no")) and "127.0.0.1" in str(errors.StoreError(f"{URL}: no"))
    assert str(read_name(f"{URL}@previous")) == "postgresql+psycopg://***@127.0.0.1:1/tuning?connect_timeout=1@previous"
    assert read_name(URL).database == URL, "what is opened is the whole URL"


def test_a_store_is_called_by_its_url_without_the_password(monkeypatch, tmp_path):
    with Store.open(tmp_path / "a.db") as opened:
        monkeypatch.setattr("tuner.db.store.open_engine", lambda *arguments: (opened.engine, lambda: None))
        assert Store.open(URL).target == hide_credentials(URL) != URL


def test_the_summary_of_a_sweep(tmp_path):
    problem = _C.Problem("fp8_gemm", 64, 512, 512)
    configs = _C.get_candidates(problem, _C.Device.known("h200"))[:2]
    options = SweepOptions([problem], URL, backend="simulated", configs=configs)
    with Store.open(tmp_path / "a.db") as store:
        summary = Sweep(options, store, InProcessWorker()).run()
    assert summary["measured"] == 1 and summary["database"] == hide_credentials(URL)


def test_baselines_keep_the_url_and_show_none_of_it(own_home, capsys):
    baselines.save("nvidia-h200-sm132", {"fp8_gemm": read_name(f"{URL}@previous")})
    assert baselines.load()["nvidia-h200-sm132"]["fp8_gemm"].database == URL
    for more in ([], ["--json"]):
        assert cli.run(["baseline", "list", *more]) == 0
        said = capsys.readouterr().out
        assert "127.0.0.1" in said and "hidden" not in said
    assert json.loads(said)


def test_variables_that_are_set(own_home, monkeypatch):
    monkeypatch.setenv("DG_TUNER_DB", URL)
    assert "DG_TUNER_DB=postgresql" in check_variables().found and "hidden" not in check_variables().found
