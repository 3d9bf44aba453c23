"""Merging, JSON and snapshots: nothing is lost, nothing is doubled, nothing private is published."""

import itertools
import json
import random
import socket
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tests.fakes.databases import CONFIGS, DEVICE, SKU, add_block, add_context, make_database, make_problem, make_row
from tuner import errors
from tuner.db import Store, export_json, import_json, merge, snapshot, snapshot_path, tables
from tuner.db.naturals import KEYS, merge_tables
from tuner.db.rows import MeasurementRow
from tuner.db.transfer import ADDED, load_tables, parse_json, to_json_bytes
from tuner.learn import inspection
from tuner.learn.dataset import CENSORED, CONFIRMED, load_dataset


def contents(path) -> bytes:
    """Return a database's contents, independent of ids."""
    return to_json_bytes(load_tables(path))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Three databases that share configs, and partly boards and problems."""
    folder = tmp_path_factory.mktemp("shards")
    return [
        make_database(folder / "a.db", num_problems=3, seed=0),
        make_database(folder / "b.db", num_problems=2, first_m=3, seed=0),
        make_database(folder / "c.db", num_problems=2, first_m=2, seed=1),
    ]


def test_merge_is_commutative_and_idempotent(shards, tmp_path):
    results = set()
    for number, order in enumerate(itertools.permutations(shards)):
        target = tmp_path / f"{number}.db"
        for source in order:
            merge(target, [source])
        assert not any(merge(target, order).values())
        results.add(contents(target))
    merge(tmp_path / "once.db", shards)
    assert results == {contents(tmp_path / "once.db")}


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
        by_id = {store_id: config for store_id, config in zip(range(len(CONFIGS), 0, -1), CONFIGS, strict=True)}
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
    assert contents(tmp_path / "ab.db") == contents(tmp_path / "ba.db") == contents(copy)


def test_a_snapshot_does_not_replace_what_it_was_made_of(shards, tmp_path):
    source = tmp_path / "full.db"
    merge(source, shards)
    before = load_tables(source)
    snapshot(source, tmp_path / "published.db")
    merge(source, [tmp_path / "published.db"])
    after = load_tables(source)
    assert all(after[name] == before[name] for name in KEYS if name != "environment")


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


@pytest.mark.parametrize("number", range(len(BAD_DOCUMENTS)))
def test_import_refuses_what_export_never_writes(shards, tmp_path, number):
    document = json.loads(contents(shards[0]))
    BAD_DOCUMENTS[number](document)
    (tmp_path / "bad.json").write_text(json.dumps(document))
    with pytest.raises(errors.IntegrityError):
        import_json(tmp_path / "target.db", tmp_path / "bad.json")
    if (tmp_path / "target.db").exists():
        with Store.open(tmp_path / "target.db", "ro") as store:
            assert not any(store.stats()["tables"].values())


def test_import_survives_random_damage(shards, tmp_path):
    payload = contents(shards[0])
    generator = random.Random(0)
    for _ in range(150):
        damaged = bytearray(payload)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.choice(b'0123456789abcdef"[]{},:-.')
        try:
            found = parse_json("x.json", bytes(damaged))
        except errors.IntegrityError:
            continue
        assert set(found) == set(KEYS)
    for junk in (b"", b"null", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"application": 1}'):
        with pytest.raises(errors.IntegrityError):
            parse_json("x.json", junk)


def test_snapshot_holds_nothing_private(shards, tmp_path):
    merge(tmp_path / "all.db", shards)
    with Store.open(tmp_path / "all.db") as store:
        context = add_context(store) | {
            "environment_id": store.get_or_add_environment({"compiler": "nvrtc", "flags": "-I/opt/cuda -O3"})
        }
        add_block(store, context, make_problem(500), extra={"host": socket.gethostname(), "log": "/srv/x"})
    result = snapshot(tmp_path / "all.db", tmp_path / "out" / "published.db")
    payload = (tmp_path / "out" / "published.db").read_bytes()
    assert result["bytes"] == len(payload) and result["tables"]["block"] == 8
    for word in (b"GPU-0000", b"node17", b"someone", b'["tuner"', b"kernel.cu", b"/tmp", b"/home", b"/srv", b"/opt"):
        assert word not in payload
    with sqlite3.connect(tmp_path / "out" / "published.db") as raw:
        texts = [
            text
            for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for row in raw.execute(f'SELECT * FROM "{name}"')
            for text in row
            if isinstance(text, str)
        ]
    raw.close()
    assert len(texts) > 100 and not [
        text for text in texts if "/" in text and text != "1/4" or "\\" in text or socket.gethostname() in text
    ]
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["published.db"]


def test_snapshot_keeps_what_training_reads(shards, tmp_path):
    snapshot(shards[0], tmp_path / "published.db")
    with Store.open(tmp_path / "published.db", "immutable") as after, Store.open(shards[0], "ro") as before:
        assert after.check() == []
        for old, new in zip(by_key(before.load_measurements()), by_key(after.load_measurements()), strict=True):
            left_out = ["error", "samples"]
            if old.role == "search":
                left_out += ["mad_us", "q10_us", "q90_us", "max_abs_error"]
            assert without_ids(replace(old, **dict.fromkeys(left_out))) == without_ids(new)
        assert [row.config_key for row in after.load_best()] == [row.config_key for row in before.load_best()]
        assert [load_flags(after)] == ["-std=c++20"]


def test_snapshot_rows_hold_what_it_says_and_nothing_else(tmp_path):
    path, key = tmp_path / "tuning.db", ["block_id", "config_id", "role", "status"]
    with Store.open(path) as store:
        block_id = add_block(store, add_context(store), make_problem())
        config_id = store.get_or_add_config("fp8_gemm", CONFIGS[9])
        censored = make_row(random.Random(0), block_id, config_id, "search") | {
            "status": "censored",
            "samples": [5.5],
            "error": "slow",
        }
        store.add_measurements([censored, censored | {"role": "confirm"}])
    snapshot(path, tmp_path / "published.db")
    found = {name: set() for name in itertools.product(("search", "confirm"), tables.STATUSES)}
    for row in load_tables(tmp_path / "published.db")["measurement"].values():
        found[row["role"], row["status"]].add(tuple(name for name, value in row.items() if value is not None))
    telemetry, interval = ["clock_mhz", "power_w"], ["ratio_low", "ratio_high"]
    confirmed = [
        *key,
        "num_samples",
        "median_us",
        "mad_us",
        "q10_us",
        "q90_us",
        "ratio",
        *interval,
        "max_abs_error",
        *telemetry,
    ]
    assert {name: columns for name, columns in found.items() if columns} == {
        ("search", "ok"): {(*key, "num_samples", "median_us", "ratio", *interval, *telemetry)},
        ("search", "censored"): {(*key, "num_samples", "median_us", "ratio", *telemetry)},
        ("search", "compile_error"): {tuple(key)},
        ("confirm", "ok"): {tuple(confirmed)},
        ("confirm", "censored"): {tuple(confirmed)},
    }


def test_the_tuner_finds_in_a_snapshot_what_the_database_had(tmp_path):
    source = synthetic.make_small_database()
    snapshot(source, tmp_path / "published.db", sku=SKU)
    with Store.open(source, "ro") as before, Store.open(tmp_path / "published.db", "immutable") as after:
        assert inspection.inspect(after, SKU, "fp8_gemm") == inspection.inspect(before, SKU, "fp8_gemm")
        assert inspection.inspect(after, SKU, "fp8_gemm")["noise"]["confirmation_mad"]["count"] > 100
        old, new = vars(load_dataset(before, SKU)), vars(load_dataset(after, SKU))
    assert (old["state"] == CENSORED).any() and (old["state"] == CONFIRMED).any()
    for name, value in old.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, new[name])
        elif name != "device":
            assert value == new[name], name


def without_ids(row: MeasurementRow) -> MeasurementRow:
    """Return a row without the ids, which are local to one file."""
    block = replace(row.block, block_id=0, problem_id=0, device_id=0, reference_config_id=None)
    return replace(row, block=block, config_id=0)


def by_key(rows: list[MeasurementRow]) -> list[MeasurementRow]:
    """Return rows in an order that does not depend on ids."""
    return sorted(rows, key=lambda row: (row.block.problem_key, row.config_key, row.role))


def load_flags(store) -> str:
    """Return the compiler flags of the only environment."""
    with store.reading() as connection:
        return connection.execute(tables.environment.select()).mappings().one()["flags"]


def test_snapshot_of_one_sku_keeps_its_newest_kernel_hash(tmp_path):
    path = tmp_path / "all.db"
    with Store.open(path) as store:
        context = add_context(store)
        add_block(store, context, make_problem(1))
        add_block(store, context, make_problem(2), kernel_hash="cd" * 32)
        other = store.get_or_add_device(DEVICE.as_dict() | {"sku": "nvidia-h100-sm132", "uuid": "GPU-1"})
        add_block(store, context | {"device_id": other}, make_problem(3), kernel_hash="ef" * 32)
    result = snapshot(path, tmp_path / "published.db", sku=SKU)
    assert (result["tables"]["block"], result["tables"]["problem"], result["tables"]["device"]) == (1, 1, 1)
    with Store.open(tmp_path / "published.db", "immutable") as store:
        assert {row.block.kernel_hash for row in store.load_measurements()} == {"cd" * 32} and store.newest_kernel_hash(
            "fp8_gemm", SKU
        ) == "cd" * 32


def test_snapshot_replaces_nothing_that_holds_more(shards, tmp_path):
    with Store.open(tmp_path / "empty.db"):
        pass
    published = tmp_path / "published.db"
    snapshot(shards[0], published)
    before = published.read_bytes()
    with pytest.raises(errors.UsageError, match="measurements, the snapshot would have 0"):
        snapshot(tmp_path / "empty.db", published)
    assert published.read_bytes() == before
    snapshot(shards[0], published)
    with Store.open(tmp_path / "sweeps.db") as store:
        store.start_sweep(
            {
                "preset": "demo",
                "seed": 0,
                "sampler": "exhaustive",
                "effort": "full",
                "regime": "cold-graph",
                "argv": ["sweep"],
            }
        )
    with pytest.raises(errors.UsageError, match="a database of sweeps"):
        snapshot(shards[0], tmp_path / "sweeps.db")


def test_snapshot_refuses_private_text_size_and_wrong_targets(shards, tmp_path):
    with Store.open(tmp_path / "odd.db") as store:
        store.get_or_add_environment({"driver": "/usr/lib/libcuda.so"})
    target = tmp_path / "published.db"
    with pytest.raises(errors.IntegrityError, match="looks private"):
        snapshot(tmp_path / "odd.db", target)
    with pytest.raises(errors.IntegrityError, match="at most 1000"):
        snapshot(shards[0], target, max_bytes=1000)
    assert not target.exists()
    with pytest.raises(errors.UsageError, match="one file"):
        snapshot(shards[0], shards[0])
    target.write_text("not ours")
    with pytest.raises(errors.IntegrityError):
        snapshot(shards[0], target)
    assert target.read_text() == "not ours"
    with pytest.raises(errors.UsageError, match="PostgreSQL|SQLite"):
        snapshot("postgresql://host/x", tmp_path / "y.db")


def test_snapshot_while_a_sweep_writes(shards, tmp_path):
    path = make_database(tmp_path / "tuning.db")
    with Store.open(path) as writer:
        context = add_context(writer)
        snapshot(path, tmp_path / "published.db")
        add_block(writer, context, make_problem(77))
        result = snapshot(path, tmp_path / "published.db")
    assert result["tables"]["block"] == 4


def test_snapshot_path_is_where_the_package_keeps_it():
    path = snapshot_path(SKU)
    assert (
        path.name == f"{SKU}.db"
        and path.parent.name == "snapshots"
        and path.parent.parent.joinpath("store.py").exists()
    )


def test_the_recorded_snapshot_is_sound():
    path = snapshot_path(SKU)
    with Store.open(path, "immutable") as store:
        assert store.check() == [] and path.stat().st_size <= 8_000_000
        assert store.newest_kernel_hash("fp8_gemm", SKU)


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
    assert contents(tmp_path / "again.db") == contents(shards[0])
