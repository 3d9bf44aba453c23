"""Row checksums: a database that is damaged, and yet readable, is never learned from, published or passed on."""

import math
import shutil
import sqlite3
import struct
import zlib
from pathlib import Path

import pytest

from tests.fakes.databases import CONFIGS, add_block, add_context, make_database, make_problem
from tuner import cli, errors
from tuner.db import Store, checksums, export_flat, export_json, import_json, merge, snapshot, tables
from tuner.learn.dataset import load_dataset

CONFIRM, SEARCH = map(tables.ROLE.get_number, ("confirm", "search"))
OK, CENSORED = map(tables.STATUS.get_number, ("ok", "censored"))
#: Values that are as possible as what they replace: only a checksum tells. Each changes one or more measured rows.
DAMAGE = {
    "a time": f"UPDATE measurement SET median_us = median_us * 1.001 WHERE block_id = 1 AND role = {CONFIRM}",
    "a bit of a time": "UPDATE measurement SET ratio = 1.0000000000000002 WHERE block_id = 1 AND config_id = 1",
    "samples": "UPDATE measurement SET samples = x'0000803f' WHERE block_id = 1 AND samples IS NOT NULL",
    "a count": "UPDATE measurement SET num_samples = num_samples + 1 WHERE block_id = 1",
    "a value that is gone": "UPDATE measurement SET ratio_low = NULL WHERE block_id = 1",
    "a log": f"UPDATE measurement SET error = 'fine' WHERE block_id = 1 AND status != {OK}",
    "a status": f"UPDATE measurement SET status = {CENSORED} WHERE block_id = 1 AND config_id = 2",
    "a role": f"UPDATE measurement SET role = {CONFIRM} WHERE block_id = 1 AND config_id = 4",
    "another config": "UPDATE measurement SET config_id = 30 WHERE block_id = 1 AND config_id = 3",
    "another block": "UPDATE measurement SET block_id = 2, config_id = 31 WHERE block_id = 1 AND config_id = 3",
    "a checksum": "UPDATE measurement SET checksum = checksum + 1 WHERE block_id = 1 AND config_id = 1",
    "a block's kernels": f"UPDATE block SET kernel_hash = '{'cd' * 32}'",
    "a block's problem": "UPDATE block SET problem_id = 2 WHERE id = 1",
    "a block's board": "UPDATE block SET device_id = 2 WHERE id = 1",
    "a block's reference": "UPDATE block SET reference_config_id = 2 WHERE id = 1",
    "a block's regime": "UPDATE block SET regime = 'graph-hot' WHERE id = 1",
    "a block's date": "UPDATE block SET created = '2027-01-01T00:00:00.000Z' WHERE id = 1",
}

#: The kinds that `make test` plants.
QUICK = ("a bit of a time", "samples", "a status", "another block", "a block's kernels", "a block's reference")


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A sound database with rows of two boards, and configs that were not measured."""
    path = make_database(tmp_path_factory.mktemp("sound") / "tuning.db", num_problems=3)
    with Store.open(path) as store:
        for config in CONFIGS[:40]:
            store.get_or_add_config("fp8_gemm", config)
        add_context(store, seed=1)
    return path


def damage(sound: Path, folder: Path, statement: str) -> Path:
    """Return a copy of a database in which a statement has changed something."""
    path = shutil.copy(sound, folder / "damaged.db")
    with sqlite3.connect(path) as raw:
        assert raw.execute(statement).rowcount > 0
    raw.close()
    return path


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.full) for name in DAMAGE]
)
def test_damage_that_only_a_checksum_shows_is_found_by_every_reader(sound, tmp_path, name):
    path = damage(sound, tmp_path, DAMAGE[name])
    with Store.open(path, "ro") as store:
        (problem,) = store.check()
        uses = {
            "load": store.load_measurements,
            "train": lambda: load_dataset(store, "nvidia-h200-sm132"),
            "merge": lambda: merge(tmp_path / "merged.db", [path]),
            "json": lambda: export_json(path, tmp_path / "export.json"),
            "csv": lambda: export_flat(path, tmp_path / "export.csv", "csv"),
            "snapshot": lambda: snapshot(path, tmp_path / "snapshot.db"),
        }
        for use, call in uses.items():
            with pytest.raises(errors.IntegrityError, match="not what was recorded") as caught:
                call()
            assert str(path) in str(caught.value), use
    assert "not what was recorded" in problem
    assert not list(tmp_path.glob("export*")) and not (tmp_path / "snapshot.db").exists()
    if (tmp_path / "merged.db").exists():
        with Store.open(tmp_path / "merged.db", "ro") as store:
            assert not store.has_measurements()


def test_the_commands_refuse_a_damaged_database(sound, tmp_path, capsys):
    path = damage(sound, tmp_path, DAMAGE["a time"])
    for words in (["db", "check"], ["train", "--op", "fp8_gemm", "--out", str(tmp_path / "trained")]):
        assert cli.run([*words, "--db", str(path)]) == errors.EXIT_INTEGRITY
        shown = capsys.readouterr()
        assert "not what was recorded" in " ".join((shown.out + shown.err).split())  # lines end where paths are long
    assert not (tmp_path / "trained").exists()


def test_rows_of_before_are_read_and_counted(sound, tmp_path, capsys):
    """Also where they are damaged: nothing shows it."""
    path = damage(sound, tmp_path, "UPDATE measurement SET checksum = NULL, median_us = median_us * 2")
    with Store.open(path, "ro") as store:
        rows = store.load_measurements()
        assert store.count_unverified() == store.stats()["unverified"] == store.count_measurements() == len(rows) > 0
        assert store.check() == []
    for command in ("check", "stats"):
        assert cli.run(["db", command, "--db", str(path)]) == 0
        assert f"{store_count(path)} rows without a checksum" in " ".join(capsys.readouterr().out.split())
    with Store.open(sound, "ro") as store:
        assert store.count_unverified() == 0
    assert cli.run(["db", "check", "--db", str(sound)]) == 0
    assert capsys.readouterr().out.strip().endswith(": sound")


def store_count(path: Path) -> int:
    """Return the number of measured rows of a file."""
    with Store.open(path, "ro") as store:
        return store.count_measurements()


def read_checksums(path: Path) -> dict[tuple, int | None]:
    """Return the checksums of a file by what the rows are, whatever their ids."""
    query = (
        "SELECT b.uid, c.key, m.role, m.checksum FROM measurement m JOIN block b ON b.id = m.block_id"
        " JOIN config c ON c.id = m.config_id"
    )
    with sqlite3.connect(path) as raw:
        found = {tuple(row[:3]): row[3] for row in raw.execute(query)}
    raw.close()
    return found


def test_checksums_do_not_depend_on_ids_or_on_the_way(sound, tmp_path):
    """A merge and an export copy them, although ids differ; rows of before stay without one, except in an import."""
    wanted = read_checksums(sound)
    assert None not in wanted.values() and len(set(wanted.values())) == len(wanted)
    other = make_database(tmp_path / "other.db", num_problems=2, first_m=90)
    merge(other, [sound])
    export_json(sound, tmp_path / "export.json")
    import_json(tmp_path / "imported.db", tmp_path / "export.json")
    assert wanted.items() <= read_checksums(other).items() and read_checksums(tmp_path / "imported.db") == wanted
    path = damage(sound, tmp_path, "UPDATE measurement SET checksum = NULL")
    merge(tmp_path / "merged.db", [path])
    assert set(read_checksums(tmp_path / "merged.db").values()) == {None}
    export_json(path, tmp_path / "old.json")
    import_json(tmp_path / "again.db", tmp_path / "old.json")
    assert read_checksums(tmp_path / "again.db") == wanted


def test_a_row_that_is_measured_again_has_a_new_checksum(tmp_path):
    path = make_database(tmp_path / "tuning.db", num_problems=1)
    before = read_checksums(path)
    with Store.open(path) as store:
        config_id = store.get_or_add_config("fp8_gemm", CONFIGS[0])
        store.add_measurements(
            [{"block_id": 1, "config_id": config_id, "role": "search", "status": "ok", "median_us": 3.5}]
        )
        store.finish_block(1, noise=0.002, clock_mhz=1500.0, status="finished")
        with pytest.raises(errors.UsageError, match="unknown field 'kernel_hash'"):
            store.finish_block(1, kernel_hash="cd" * 32)
        assert store.check() == []
    after = read_checksums(path)
    assert sum(after[key] != before[key] for key in before) == 1


def test_a_checksum_is_the_crc_of_all_parts():
    """Fixed values: a checksum that is computed in another way would make every database look damaged."""
    values = dict.fromkeys(tables.measurement.columns.keys()) | {
        **{"block_id": 7, "config_id": 9, "role": "search", "status": "ok", "num_samples": 8},
        **{"median_us": 12.5, "mad_us": -0.0, "ratio": 1.0, "samples": b"\0\0\xc8A", "error": "slow"},
    }
    blocks = {7: checksums.digest_block(["ab" * 16, "p", "d", None, "cd" * 32, "nvrtc", "graph-cold", "", "2026"])}
    numbers = [math.nan if values[name] is None else values[name] for name in checksums.NUMBERS]
    parts = [blocks[7], *map(zlib.crc32, (b"k", b"search", b"ok")), *numbers, *map(zlib.crc32, (b"\0\0\xc8A", b"slow"))]
    wanted = zlib.crc32(struct.pack(f"<{len(parts)}d", *(part + 0.0 for part in parts)))
    rows = [tuple((values | changes).values()) for changes in ({}, {"mad_us": 0.0}, {"error": None, "samples": None})]
    found = checksums.make_checksums(rows, blocks, {9: checksums.digest("k")}).tolist()
    assert found == [wanted, wanted, -90350753] and wanted == 457184375


def test_a_wrong_row_is_named_among_thousands(tmp_path):
    with Store.open(tmp_path / "tuning.db") as store:
        block_id = add_block(store, add_context(store), make_problem())
        with store.writing() as connection:
            connection.exec_driver_sql(f"UPDATE measurement SET power_w = 1.0 WHERE config_id = 2 AND role = {SEARCH}")
        with pytest.raises(
            errors.IntegrityError, match=rf"block {block_id}, config 2, search\): not .* so are 1 of the 8 rows"
        ):
            store.load_measurements()


def test_what_is_no_text_has_a_checksum_of_its_own():
    """A damaged page may put a number where the table has text; it must be found, and not be a TypeError."""
    assert checksums.digest(1) != checksums.digest("1") != checksums.digest(1.5)
    assert checksums.digest_block(("uid", 1)) != checksums.digest_block(("uid", "1"))
    assert checksums.digest_block(("uid", None)) == checksums.digest_block(("uid", ""))
