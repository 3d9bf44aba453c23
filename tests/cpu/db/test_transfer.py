"""Merging and JSON: no row is lost or duplicated, and impossible rows are refused."""

import io
import itertools
import json
import random

import pytest
from sqlalchemy import update

from deep_gemm import _C
from tests.fakes.databases import CONFIGS, SKU, add_block, add_context, make_database, read_contents
from tuner import errors
from tuner.db import (
    Store,
    documents,
    export_json,
    import_json,
    merge,
    rows_merge,
    snapshot,
    snapshot_path,
    tables,
    transfer,
)
from tuner.db.documents import ADDED
from tuner.db.naturals import KEYS, merge_tables
from tuner.db.transfer import load_tables


def test_an_export_that_is_written_part_by_part_is_the_whole_document(shards, tmp_path, monkeypatch):
    merge(tmp_path / "all.db", shards)
    monkeypatch.setattr(transfer, "ROWS_AT_A_TIME", 7)
    size = export_json(tmp_path / "all.db", tmp_path / "all.json")
    written = (tmp_path / "all.json").read_bytes()
    assert written == read_contents(tmp_path / "all.db") and len(written) == size
    monkeypatch.setattr(transfer, "check_row", lambda path, name, columns, row, found: row["median_us"] or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_json(tmp_path / "all.db", tmp_path / "all.json")
    assert (tmp_path / "all.json").read_bytes() == written


@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.full)])
def test_merge_is_commutative_and_idempotent(shards, tmp_path, step):
    """Of the six orders every second one, in which each database comes first; all of them with --full."""
    results = set()
    for number, order in enumerate(list(itertools.permutations(shards))[::step]):
        target = tmp_path / f"{number}.db"
        for source in order:
            merge(target, [source])
        assert not any(merge(target, order).values())
        results.add(read_contents(target))
    merge(tmp_path / "once.db", shards)
    assert results == {read_contents(tmp_path / "once.db")}


def test_merge_reads_some_blocks_at_a_time(shards, tmp_path, monkeypatch):
    """Block by block the result is the same, also where both have versions of a row; no table of all rows is made."""
    merge(tmp_path / "whole.db", shards)
    monkeypatch.setattr(rows_merge, "BLOCKS_AT_A_TIME", 1)
    asked, read_rows = [], rows_merge.read_rows
    monkeypatch.setattr(
        rows_merge, "read_rows", lambda connection, blocks: asked.append(blocks) or read_rows(connection, blocks)
    )
    for source in shards:
        merge(tmp_path / "parts.db", [source])
    assert read_contents(tmp_path / "parts.db") == read_contents(tmp_path / "whole.db")
    assert max(map(len, asked)) == 1 and len(asked) == 2 * 7
    merge(tmp_path / "older.db", [tmp_path / "whole.db"])
    with Store.open(tmp_path / "older.db") as store, store.writing() as connection:
        table = tables.measurement
        connection.execute(update(table).where(table.c.role == "confirm").values(mad_us=None, samples=None))
    assert not any(merge(tmp_path / "older.db", [tmp_path / "whole.db"]).values())
    assert read_contents(tmp_path / "older.db") == read_contents(tmp_path / "whole.db")


def test_merge_loses_and_doubles_nothing(shards, tmp_path):
    gained = merge(tmp_path / "all.db", shards)
    assert (gained["block"], gained["sweep"], gained["measurement"], gained["device"]) == (7, 3, 56, 2)
    assert (gained["problem"], gained["config"], gained["best"]) == (4, 6, 4)
    with Store.open(tmp_path / "all.db", "ro") as store:
        assert store.check() == [] and len(store.load_measurements()) == 56
        rows = {(row.block.problem_key, row.config_key, row.role, row.median_us) for row in store.load_measurements()}
    wanted = set()
    for shard in shards:
        with Store.open(shard, "ro") as store:
            wanted |= {
                (row.block.problem_key, row.config_key, row.role, row.median_us) for row in store.load_measurements()
            }
    assert rows == wanted


def test_merge_renumbers_lists_of_configs(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        for config in reversed(CONFIGS):
            store.get_or_add_config("fp8_gemm", config)
    source = make_database(tmp_path / "b.db", num_problems=1)
    merge(tmp_path / "a.db", [source])
    with Store.open(tmp_path / "a.db", "ro") as store:
        (best,) = store.load_best()
        assert best.tie_set == tuple(CONFIGS[:2])
        with store.reading() as connection:
            (order,) = connection.execute(tables.block.select()).mappings()
        by_id = dict(zip(range(len(CONFIGS), 0, -1), CONFIGS, strict=True))
        assert [by_id[index] for index in json.loads(order["order"])] == CONFIGS[:6]


def test_a_later_copy_of_a_database_wins(tmp_path):
    path = make_database(tmp_path / "old.db", num_problems=1)
    copy = tmp_path / "new.db"
    copy.write_bytes(path.read_bytes())
    with Store.open(copy) as store:
        (block_id,) = {row.block.block_id for row in store.load_measurements()}
        config_id = store.get_or_add_config("fp8_gemm", CONFIGS[5])
        store.add_measurements(
            [
                {
                    "block_id": block_id,
                    "config_id": config_id,
                    "role": "search",
                    "status": "ok",
                    "median_us": 9.0,
                    "mad_us": 0.1,
                    "num_samples": 8,
                }
            ]
        )
        store.finish_block(block_id, confirm_rounds=60, throttle=4)
    merge(tmp_path / "ab.db", [path, copy])
    merge(tmp_path / "ba.db", [copy, path])
    assert read_contents(tmp_path / "ab.db") == read_contents(tmp_path / "ba.db") == read_contents(copy)


def test_two_boards_in_one_block_are_refused(shards):
    ours, theirs = load_tables(shards[0]), load_tables(shards[0])
    (other,) = load_tables(shards[2])["device"]
    key = next(iter(theirs["block"]))
    theirs["block"][key] = theirs["block"][key] | {"device_id": other[0]}
    with pytest.raises(errors.IntegrityError, match="two boards"):
        merge_tables(ours, theirs)


def test_json_round_trip_is_exact(shards, tmp_path):
    merge(tmp_path / "all.db", shards)
    size = export_json(tmp_path / "all.db", tmp_path / "all.json")
    assert size == (tmp_path / "all.json").stat().st_size
    gained = import_json(tmp_path / "again.db", tmp_path / "all.json")
    assert gained["measurement"] == 56
    assert not any(import_json(tmp_path / "again.db", tmp_path / "all.json").values())
    export_json(tmp_path / "again.db", tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "all.json").read_bytes()


def test_grouped_problems_and_their_workloads_travel(tmp_path):
    problem = _C.Problem(
        "k_grouped_fp8_gemm_contiguous",
        4096,
        7168,
        8192,
        num_groups=4,
        recipe="1d1d",
        d_dtype="fp32",
        group_layout="blocks",
    )
    with Store.open(tmp_path / "a.db") as store:
        add_block(
            store,
            add_context(store),
            problem,
            op=problem.op,
            workload={"seed": 3, "sizes": "skewed"},
            regime="graph-cold-skewed",
        )
    export_json(tmp_path / "a.db", tmp_path / "a.json")
    import_json(tmp_path / "b.db", tmp_path / "a.json")
    merge(tmp_path / "c.db", [tmp_path / "b.db"])
    snapshot(tmp_path / "c.db", tmp_path / "d.db", SKU)
    for name, mode in (("b.db", "ro"), ("c.db", "ro"), ("d.db", "immutable")):
        with Store.open(tmp_path / name, mode) as store:
            rows = store.load_measurements(op=problem.op)
            assert {(row.block.problem_key, row.block.workload, row.block.regime) for row in rows} == {
                (problem.key, '{"seed":3,"sizes":"skewed"}', "graph-cold-skewed")
            }


def change(path: list, value: object):
    """Return a function that sets one place of a JSON document."""

    def apply(document: dict) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return apply


def column(table: str, name: str) -> int:
    """Return the place of a column in a JSON row."""
    return [each.name for each in tables.metadata.tables[table].columns if each.name != "id"].index(name)


def at(table: str, name: str) -> list:
    """Return the path of a column of a table's first row."""
    return ["tables", table, "rows", 0, column(table, name)]


BAD_DOCUMENTS = [
    change(["format"], 2),
    change(["application"], "other"),
    change(["tables"], []),
    change(["tables", "device"], None),
    change(["tables", "measurement", "rows"], [[1]]),
    change(["tables", "measurement"], {}),
    change(["tables", "best"], {"columns": ["op"]}),
    change(at("measurement", "config_id"), None),
    change(at("best", "problem_id"), None),
    change(at("problem", "m"), 77),
    change(at("problem", "m"), "1"),
    change(at("problem", "m"), True),
    change(at("problem", "m"), 1.5),
    change(at("problem", "m"), -1),
    change(at("problem", "m"), 2**80),
    change(at("problem", "op"), "nope"),
    change(at("problem", "compiled_dims"), "../"),
    change(at("config", "block_m"), 65),
    change(at("config", "block_m"), None),
    change(at("device", "sku"), "a b"),
    change(at("device", "name"), ["x"]),
    change(at("device", "sm_count"), 131),
    change(at("block", "device_id"), "0" * 64),
    change(at("block", "sweep_id"), None),
    change(at("block", "uid"), "short"),
    change(at("block", "status"), "done"),
    change(at("block", "order"), '["x"]'),
    change(at("block", "order"), "7"),
    change(at("block", "created"), "\x1b[2J"),
    change(at("block", "noise"), float("inf")),
    change(at("block", "workload"), "uneven"),
    change(at("problem", "num_groups"), 2),
    change(at("measurement", "median_us"), -1.0),
    change(at("measurement", "median_us"), float("nan")),
    change(at("measurement", "samples"), "zz"),
    change(at("measurement", "samples"), "0000c0ff"),
    change(at("measurement", "samples"), 5),
    change(at("measurement", "role"), "x"),
    change(at("measurement", "role"), {}),
    change(at("measurement", "block_id"), 1),
    change(at("measurement", "config_id"), []),
    change(at("best", "tie_set"), "{"),
    change(at("best", "config_id"), "x"),
    change(at("compilation", "registers"), -1),
    change(at("compilation", "compiler"), "gcc"),
    change(at("sweep", "seed"), "x"),
]


#: More rows than any of the databases here has.
NUM_ROWS = 100
ADD_NEW = transfer.add_new


def read_whole(payload: bytes) -> tuple[dict, list[dict]]:
    """Return the small tables and the measured rows of a JSON document."""
    found = documents.read_small_tables("x.json", io.BytesIO(payload))
    return found, [row for part in documents.read_measured_rows("x.json", io.BytesIO(payload)) for row in part]


@pytest.mark.parametrize("number", range(len(BAD_DOCUMENTS)))
def test_import_refuses_what_export_never_writes(shards, tmp_path, number):
    document = json.loads(read_contents(shards[0]))
    BAD_DOCUMENTS[number](document)
    (tmp_path / "bad.json").write_text(json.dumps(document))
    with pytest.raises(errors.IntegrityError):
        import_json(tmp_path / "target.db", tmp_path / "bad.json")
    if (tmp_path / "target.db").exists():
        with Store.open(tmp_path / "target.db", "ro") as store:
            assert not any(store.stats()["tables"].values())


def test_import_survives_random_damage(shards, tmp_path):
    payload = read_contents(shards[0])
    generator = random.Random(0)
    for _ in range(150):
        damaged = bytearray(payload)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.choice(b'0123456789abcdef"[]{},:-.')
        try:
            found, rows = read_whole(bytes(damaged))
        except errors.IntegrityError:
            continue
        assert {*found, "measurement"} == set(KEYS) and len(rows) <= NUM_ROWS
    for junk in (b"", b"null", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"application": 1}'):
        with pytest.raises(errors.IntegrityError):
            read_whole(junk)


@pytest.mark.parametrize(
    "old, new",
    [
        (b'"rows":[', b'"rows":[[]],"rows":['),
        (b'"tables":{', b'"tables":{"device":{"columns":["key"],"rows":[]},'),
        (b'"tables":{', b'"tables":{},"tables":{'),
        (b'{"columns":', b'{"rows":[],"columns":'),
        (b'{"columns":', b'{"rows":[],"rows":[],"columns":'),
        (b',"rows":[', b',"others":['),
        (b'"rows":[', b'"columns":["key"],"rows":['),
        (b"}}\n", b"}}7"),
        (b"}}\n", b"}"),
    ],
)
def test_a_document_of_another_shape_is_refused(shards, tmp_path, old, new):
    payload = read_contents(shards[0])
    assert old in payload
    (tmp_path / "bad.json").write_bytes(payload.replace(old, new, 1))
    with pytest.raises(errors.IntegrityError, match="not an export"):
        import_json(tmp_path / "target.db", tmp_path / "bad.json")
    assert not (tmp_path / "target.db").exists()


@pytest.mark.parametrize("name", ["7", "7.5", "null", "true"])
def test_columns_whose_names_are_no_text_are_refused(shards, tmp_path, name):
    payload = read_contents(shards[0])
    (tmp_path / "bad.json").write_bytes(payload.replace(b'"sm_count"', name.encode(), 1))
    with pytest.raises(errors.IntegrityError, match="device: fields .* are missing or unknown"):
        import_json(tmp_path / "target.db", tmp_path / "bad.json")


def test_tables_may_come_in_any_order_and_spacing(shards, tmp_path):
    document = json.loads(read_contents(shards[0]))
    document["tables"] = dict(reversed(document["tables"].items()))
    (tmp_path / "other.json").write_text(json.dumps(document, indent=1))
    import_json(tmp_path / "target.db", tmp_path / "other.json")
    assert read_contents(tmp_path / "target.db") == read_contents(shards[0])


def test_two_measured_rows_of_one_key_are_refused_across_parts(shards, tmp_path, monkeypatch):
    document = json.loads(read_contents(shards[0]))
    rows = document["tables"]["measurement"]["rows"]
    rows.append(rows[0])
    (tmp_path / "bad.json").write_text(json.dumps(document))
    for size in (1, len(rows)):
        monkeypatch.setattr(documents, "ROWS_AT_A_TIME", size)
        with pytest.raises(errors.IntegrityError, match="two rows of one key"):
            import_json(tmp_path / "target.db", tmp_path / "bad.json")


def test_an_import_without_a_temporary_folder_says_so(shards, tmp_path, monkeypatch):
    (tmp_path / "all.json").write_bytes(read_contents(shards[0]))
    monkeypatch.setattr(transfer.tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(errors.StoreError, match="set TMPDIR"):
        import_json(tmp_path / "target.db", tmp_path / "all.json")
    assert not (tmp_path / "target.db").exists()


def test_an_import_holds_some_rows_at_a_time(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROWS_AT_A_TIME", 5)
    taken = []
    monkeypatch.setattr(transfer, "add_new", lambda *args: taken.append(len(args[2])) or ADD_NEW(*args))
    merge(tmp_path / "all.db", shards)
    export_json(tmp_path / "all.db", tmp_path / "all.json")
    assert import_json(tmp_path / "again.db", tmp_path / "all.json")["measurement"] == sum(taken) == 56
    assert max(taken) == 5 and read_contents(tmp_path / "again.db") == read_contents(tmp_path / "all.db")


def test_an_export_of_schema_1_can_be_imported(shards, tmp_path):
    export_json(shards[0], tmp_path / "new.json")
    document = json.loads((tmp_path / "new.json").read_text())
    for name, added in ADDED.items():
        table = document["tables"][name]
        kept = [place for place, column in enumerate(table["columns"]) if column not in added]
        table["columns"] = [table["columns"][place] for place in kept]
        table["rows"] = [[row[place] for place in kept] for row in table["rows"]]
    (tmp_path / "old.json").write_text(json.dumps(document))
    import_json(tmp_path / "again.db", tmp_path / "old.json")
    assert read_contents(tmp_path / "again.db") == read_contents(shards[0])


@pytest.mark.full
def test_the_recorded_snapshot_can_be_merged_whatever_its_schema(tmp_path):
    recorded = snapshot_path("nvidia-h200-sm132")
    before = recorded.read_bytes()
    gained = merge(tmp_path / "all.db", [recorded])
    assert gained["measurement"] > 0 and recorded.read_bytes() == before
