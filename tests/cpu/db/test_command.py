"""python -m tuner db: exit codes, one-line errors, JSON."""

import json
import os
from pathlib import Path

import pytest
import typer

from deep_gemm import _C
from tests.fakes.databases import IDENTITY, add_block, add_context, make_database, make_problem
from tuner import cli, errors
from tuner.commands import db
from tuner.commands import tables as printed
from tuner.db import Store, tables
from tuner.db.files import SNAPSHOTS
from tuner.learn import sources

COMMANDS = ("init", "upgrade", "check", "snapshot", "merge", "export", "import", "stats", "show")


@pytest.fixture
def run(capsys, monkeypatch):
    """Run one command line of `db` alone; return (exit code, standard output, standard error)."""
    app = typer.Typer()
    app.callback()(lambda: None)
    db.register(app)
    monkeypatch.setattr(cli, "make_app", lambda loaded: app)

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.run(["db", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def database(tmp_path) -> Path:
    """A database of three problems."""
    return make_database(tmp_path / "tuning.db")


def test_init_creates_and_keeps(run, tmp_path):
    path = tmp_path / "new" / "tuning.db"
    assert run("init", "--db", path)[0] == 0 and path.exists()
    code, out, _ = run("init", "--db", path, "--json")
    assert code == 0 and json.loads(out) == {"database": str(path), "rows": 0}


def test_default_database_comes_from_the_environment(run, tmp_path, monkeypatch):
    monkeypatch.setenv("DG_TUNER_DB", str(tmp_path / "from_environment.db"))
    assert run("init")[0] == 0 and (tmp_path / "from_environment.db").exists()
    monkeypatch.delenv("DG_TUNER_DB")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run("init")[0] == 0 and (tmp_path / "home" / ".deep_gemm" / "tuning.db").exists()


def test_a_mistyped_path_creates_no_folders(run, tmp_path):
    code, _, err = run("init", "--db", tmp_path / "nope" / "x" / "tuning.db")
    assert code == errors.EXIT_USAGE and "nope does not exist" in err and not (tmp_path / "nope").exists()


@pytest.mark.parametrize("command", ["stats", "check"])
def test_reading_without_an_own_database_reads_the_recorded_one(run, tmp_path, monkeypatch, database, command):
    monkeypatch.delenv("DG_TUNER_DB", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sources, "snapshot_path", lambda sku: database)
    code, out, _ = run(command)
    assert code == 0 and out.startswith(str(database))


@pytest.mark.parametrize("command", ["stats", "check"])
def test_a_named_database_that_is_not_there_is_not_replaced_by_the_recording(run, tmp_path, monkeypatch, command):
    monkeypatch.setenv("DG_TUNER_DB", str(tmp_path / "typo.db"))
    code, out, err = run(command)
    assert code == errors.EXIT_USAGE and "DG_TUNER_DB" in err and "typo.db: no such file" in err and not out


def test_the_recording_is_that_of_the_gpu_named_or_at_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "snapshot_path", lambda sku: tmp_path / f"{sku}.db")
    h100, h200 = (_C.Device.known(name) for name in ("h100", "h200"))
    (tmp_path / f"{h100.sku}.db").touch()
    assert sources.find_recorded("H100").stem == h100.sku
    assert {sources.find_recorded(name).stem for name in ("", "h20", "nope", "h200")} == {h200.sku}
    monkeypatch.setattr(_C, "get_device", lambda ordinal: h100)
    assert sources.find_recorded().stem == h100.sku and sources.find_recorded("h200").stem == h200.sku


def test_a_gpu_model_names_the_recording_and_its_rows(run, tmp_path, monkeypatch):
    monkeypatch.delenv("DG_TUNER_DB", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    code, out, _ = run("stats", "--device", "h100")
    assert code == 0 and "h100-80gb-hbm3-sm132.db" in out and "nvidia-h200" not in out
    assert run("check", "--device", "h100")[0] == 0
    for command in ("stats", "check"):  # known, but never recorded: not another one's rows
        code, _, err = run(command, "--device", "h20")
        assert code == errors.EXIT_INCONCLUSIVE and "no measurements of any op kind" in err
        assert run(command, "--device", "rtx")[0] == errors.EXIT_USAGE


def test_stats_of_an_empty_database_say_so(run, tmp_path):
    run("init", "--db", tmp_path / "empty.db")
    assert "empty.db\nno rows;" in run("stats", "--db", tmp_path / "empty.db")[1]


def test_stats_are_lines_of_at_most_100_columns_without_escapes(run, monkeypatch):
    monkeypatch.delenv("DG_TUNER_DB", raising=False)
    text = run("stats", "--db", sources.snapshot_path(sources.RECORDED_SKU))[1].split("\n", 1)[1]
    counts, table = text.split("\n\n", 1)  # a table for each regime: sentinels have one of their own
    assert "measurement" in counts and "fp8_gemm" in table and "\\n" not in table
    assert max(map(len, (counts + "\n" + table).splitlines())) <= 100


def test_without_a_command_only_the_help_is_printed(run):
    code, out, err = run()
    assert code == errors.EXIT_USAGE and "stats" in out + err and "tuner: " not in err


def test_check(run, database):
    assert run("check", "--db", database)[:2] == (0, f"{database}: sound\n")
    code, out, _ = run("check", "--db", database, "--json")
    assert code == 0 and json.loads(out)["problems"] == []


def test_check_reports_damage_with_exit_4(run, database):
    payload = bytearray(database.read_bytes())
    payload[5000:9000] = b"\xff" * 4000
    database.write_bytes(payload)
    code, _, err = run("check", "--db", database)
    assert code == errors.EXIT_INTEGRITY and err.count("\n") == 1 and str(database) in err and ".recover" in err
    assert database.read_bytes() == payload


def test_stats(run, database):
    code, out, _ = run("stats", "--db", database)
    words = [line.split() for line in out.splitlines()]
    assert code == 0 and "24 measurement" in out and f"{IDENTITY['sku']}, nvrtc, graph-cold:" in out
    assert words[-1][:7] == ["fp8_gemm", "abababab", "3", "6", "24", "0", "3"]
    assert max(map(len, out.splitlines()[1:])) <= printed.WIDTH
    code, out, _ = run("stats", "--db", database, "--json")
    found = json.loads(out)
    assert found["tables"]["measurement"] == 24 and found["coverage"][0]["kernel_hash"] == IDENTITY["kernel_hash"]


def test_show_ranks_what_was_measured(run, database):
    code, out, _ = run("show", 2, 2112, 7168, "--db", database, "--json")
    found = json.loads(out)
    with Store.open(database, "ro") as store:
        rows = store.load_measurements(problem_key=make_problem(2).key)
    confirmed = sorted((row for row in rows if row.role == "confirm"), key=lambda row: row.ratio)
    assert code == 0 and [entry["median_us"] for entry in found["configs"][:2]] == [row.median_us for row in confirmed]
    assert [entry["role"] for entry in found["configs"]] == ["confirm"] * 2 + ["search"] * 4
    assert found["configs"][-1]["status"] == "compile_error" and found["others"] == 0
    assert [entry["name"] for entry in found["configs"] if entry["is_best"]] == [
        entry["name"] for entry in found["configs"] if entry["is_reference"]
    ]
    searched = [entry["ratio"] for entry in found["configs"][2:5]]
    assert searched == sorted(searched) and found["problem"] == make_problem(2).as_dict()


def test_show_prints_a_table(run, database):
    code, out, _ = run("show", 2, 2112, 7168, "--db", database, "--device", "h200", "--top", 3)
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("fp8_gemm m=2 n=2112 k=7168 on nvidia-h200")
    assert lines[1].split() == ["config", "us", "ratio", "count", "rounds", "status"]
    assert len([line for line in lines if line.split()[0].isdigit()]) == 3 and "... and 3 more" in out
    assert "best, reference" in out and max(map(len, lines[:-1])) <= printed.WIDTH


def is_plain(problem) -> bool:
    return problem == _C.Problem("fp8_gemm", problem.m, problem.n, problem.k)


def test_configs_that_cannot_be_told_apart_share_the_first_rank(run):
    snapshot = next(iter(SNAPSHOTS.glob("*.db")))
    with sources.open_database(str(snapshot)) as store:
        best = next(row for row in store.load_best(op="fp8_gemm") if len(row.tie_set) > 2 and is_plain(row.problem))
    asked = ("show", best.problem.m, best.problem.n, best.problem.k, "--db", snapshot)
    asked += ("--kernel-hash", best.kernel_hash)
    configs = json.loads(run(*asked, "--json")[1])["configs"]
    assert {one["name"] for one in configs if one["is_tied"]} == set(map(str, best.tie_set))
    assert [one["rank"] for one in configs] == [1 if one["is_tied"] else i for i, one in enumerate(configs, 1)]
    assert [one["rank"] for one in configs if one["is_best"]] == [1]
    lines = run(*asked)[1].splitlines()
    named = {str(config): next(line for line in lines if f" {config}  " in line) for config in best.tie_set}
    assert all(line.split()[0] == "1" for line in named.values())
    assert [line.endswith(("tied", "tied, reference")) for line in named.values()] == [False] + [True] * (
        len(best.tie_set) - 1
    )
    assert any(line.startswith("tied: the rounds cannot tell") for line in lines)


def test_show_without_measurements_is_inconclusive(run, database):
    code, out, err = run("show", 3, 3, 3, "--db", database)
    assert code == errors.EXIT_INCONCLUSIVE and not out and "was not measured on nvidia-h200-sm132" in err
    code, _, err = run("show", 2, 2112, 7168, "--db", database, "--kernel-hash", IDENTITY["kernel_hash"][:8])
    assert code == errors.EXIT_INCONCLUSIVE and f"{IDENTITY['kernel_hash'][:8]} (all 64 digits count)" in err
    assert run("show", 2, 2112, 7168, "--op", "none", "--db", database)[0] == errors.EXIT_USAGE


def test_snapshot_merge_export_import(run, database, tmp_path):
    code, out, _ = run("snapshot", tmp_path / "published.db", "--db", database, "--sku", IDENTITY["sku"], "--json")
    assert code == 0 and json.loads(out)["tables"]["measurement"] == 24
    code, out, _ = run("merge", tmp_path / "all.db", database, tmp_path / "published.db", "--json")
    assert code == 0 and json.loads(out)["gained"]["block"] == 3
    assert run("merge", tmp_path / "all.db", database)[1].endswith("nothing new\n")
    assert run("export", tmp_path / "all.json", "--db", tmp_path / "all.db")[0] == 0
    code, out, _ = run("import", tmp_path / "all.json", "--db", tmp_path / "again.db", "--json")
    assert code == 0 and json.loads(out)["gained"]["measurement"] == 24
    assert run("export", tmp_path / "again.json", "--db", tmp_path / "again.db", "--json")[0] == 0
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "all.json").read_bytes()


def test_a_folder_is_no_target_of_a_snapshot(run, database, tmp_path):
    """The database that is read was blamed for it."""
    code, _, err = run("snapshot", tmp_path, "--db", database)
    assert code == errors.EXIT_USAGE and err.startswith(f"tuner: TARGET {tmp_path}: not a regular file")


def test_a_snapshot_of_a_gpu_that_was_not_measured_is_refused(run, database, tmp_path):
    target = tmp_path / "published.db"
    for name in ("nope", "h100"):
        code, out, err = run("snapshot", target, "--db", database, "--sku", name)
        assert code == errors.EXIT_USAGE and not out and f"--sku {name}: nothing was measured on it" in err
        assert IDENTITY["sku"] in err and err.count("\n") == 1 and not target.exists()


@pytest.mark.parametrize("name", ["h200", "H200", IDENTITY["sku"].upper()])
def test_a_snapshot_takes_short_names_in_any_case(run, database, tmp_path, name):
    code, out, _ = run("snapshot", tmp_path / "published.db", "--db", database, "--sku", name, "--json")
    assert code == 0 and json.loads(out)["tables"]["measurement"] == 24


@pytest.mark.parametrize(
    "arguments, code",
    [
        (("check", "--db", "none.db"), 2),
        (("stats", "--db", "http://host/x"), 2),
        (("init", "--db", "."), 2),
        (("init", "--db", "file.txt/x.db"), 1),
        (("check", "--db", "file.txt"), 4),
        (("snapshot", "x.db", "--db", "none.db"), 2),
        (("snapshot", "file.txt", "--db", "tuning.db"), 4),
        (("snapshot", "x.db", "--db", "tuning.db", "--max-bytes", "10"), 4),
        (("snapshot", "x.db", "--max-bytes", "0"), 2),
        (("merge", "all.db"), 2),
        (("merge", "all.db", "file.txt"), 4),
        (("import", "none.json", "--db", "x.db"), 2),
        (("import", "file.txt", "--db", "x.db"), 4),
        (("export", "file.txt/x.json", "--db", "tuning.db"), 1),
        (("nonsense",), 2),
        (("check", "--colour"), 2),
    ],
)
def test_errors_are_one_line_with_their_exit_code(run, database, tmp_path, monkeypatch, arguments, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("not a database\n" * 100)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    found, out, err = run(*arguments)
    assert (found, out) == (code, "") and err.startswith("tuner: ") and err.count("\n") == 1, err
    assert all(path.read_bytes() == payload for path, payload in before.items() if not path.name.endswith(".lock"))


def test_a_second_writer_is_refused_with_the_holder(run, database):
    with Store.open(database):
        code, _, err = run("merge", database, database)
    assert code == errors.EXIT_FAILURE and f"process {os.getpid()}" in err


def test_control_characters_do_not_reach_the_terminal(run, tmp_path):
    path = tmp_path / "tuning.db"
    with Store.open(path) as store:
        context = add_context(store)
        device = store.get_or_add_device({"sku": "x-sm1", "name": "\x1b[2J\x07evil", "sm_count": 1})
        add_block(store, context | {"device_id": device}, make_problem())
    for command in ("stats", "check"):
        out = run(command, "--db", path)[1]
        assert "\x1b[2J" not in out and "\x07" not in out
    assert printed.printable("a\x1b[1m\nb\u202e") == "a\\x1b[1m\\nb\\u202e"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_a_real_example(run, command):
    code, out, _ = run(command, "--help")
    words = " ".join(out.replace("│", " ").split())
    assert code == 0 and f"Example: python -m tuner db {command}" in words


def test_upgrade_says_the_schema_and_creates_nothing(run, tmp_path):
    path = make_database(tmp_path / "own.db")
    before = path.read_bytes()
    code, out, _ = run("upgrade", "--db", path)
    assert code == 0 and f"schema {tables.SCHEMA_VERSION}" in out and path.read_bytes() == before
    assert run("upgrade", "--db", tmp_path / "absent.db")[0] == 2 and not (tmp_path / "absent.db").exists()
