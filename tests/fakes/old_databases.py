"""Databases of older schemas, as the package of their time wrote them."""

import sqlite3
from pathlib import Path

from sqlalchemy import Connection, create_engine

from deep_gemm import _C
from tuner.db import schema, tables, views
from tuner.db.naturals import KEYS
from tuner.db.values import make_key

PROBLEM, CONFIG = _C.Problem("fp8_gemm", 64, 2112, 7168), _C.Config(64, 64, 4)
OLD_ROWS = (
    "INSERT INTO device (id, key, sku, name, sm_count) VALUES (1, '{device}', 'nvidia-h200-sm132', 'NVIDIA H200', 132)",
    "INSERT INTO environment (id, key) VALUES (1, '{environment}')",
    (
        "INSERT INTO problem (id, key, op, m, n, k, num_sms, compiled_dims) VALUES (3, '{problem}', 'fp8_gemm', 64,"
        " 2112, 7168, 0, '')"
    ),
    (
        "INSERT INTO config (id, key, op, block_m, block_n, block_k, num_stages, cluster_m, cluster_n) VALUES (5,"
        " '{config}', 'fp8_gemm', 64, 64, 128, 4, 1, 1)"
    ),
    "INSERT INTO sweep (id, uid, status, created) VALUES (1, '00000000000000000000000000000000', 'finished', '{time}')",
    (
        "INSERT INTO block (id, uid, status, created, sweep_id, problem_id, device_id, environment_id, regime,"
        " kernel_hash, compiler) VALUES (1, '00000000000000000000000000000001', 'finished', '{time}', 1, 3, 1, 1,"
        " 'graph-cold', '{hash}', 'nvrtc')"
    ),
    "INSERT INTO measurement (block_id, config_id, role, status, median_us) VALUES (1, 5, {role}, {status}, 12.5)",
    (
        "INSERT INTO compilation (config_id, {variant}kernel_hash, compiler, registers, compile_ms) VALUES (5,"
        " {empty}'{hash}', 'nvrtc', 168, 250.0)"
    ),
    "INSERT INTO best VALUES (3, 'nvidia-h200-sm132', '{hash}', 'nvrtc', 'graph-cold', '{time}', 5, '[5]', 1)",
)


def make_old_database(path: Path, version: int = 1) -> Path:
    """Write a database of an older schema, with the rows of write_old_rows; return its path."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        write_old_rows(connection, version)
    engine.dispose()
    return path


def write_old_rows(connection: Connection, version: int) -> None:
    """Create the tables of a schema, and one row in each: a config on a problem without any variant."""
    create_old_tables(connection, version)
    variant, empty = ("", "") if version == 1 else ("variant, ", "'', ")
    words = {"role": "'search'", "status": "'ok'"}
    numbers = {"role": tables.ROLE.get_number("search"), "status": tables.STATUS.get_number("ok")}
    known = (words if version < 7 else numbers) | {
        "problem": PROBLEM.key,
        "config": CONFIG.key("fp8_gemm"),
        "device": make_key({"sku": "nvidia-h200-sm132", "name": "NVIDIA H200", "sm_count": 132}),
        "environment": make_key({}),
        "hash": "ab" * 32,
        "time": "2026-01-02T03:04:05.678Z",
    }
    for statement in OLD_ROWS:
        connection.exec_driver_sql(statement.format(**known, variant=variant, empty=empty))


def create_old_tables(connection: Connection, version: int) -> None:
    """Create the tables of a schema."""
    tables.alembic_version.create(connection)
    schema.migrate(connection, version)


def copy_as_schema_6(source: Path, target: Path) -> Path:
    """Write the rows of a database of today to a new file of schema 6, with an index and a view; return its path."""
    engine = create_engine(f"sqlite:///{target}")
    with engine.begin() as connection:
        create_old_tables(connection, 6)
        connection.exec_driver_sql(views.get_statements()["ix_block_problem_id"])
        connection.exec_driver_sql("CREATE VIEW v_measurement AS SELECT m.role, m.status FROM measurement AS m")
    engine.dispose()
    words = {"role": tables.ROLE.to_sql("role"), "status": tables.STATUS.to_sql("status")}
    with sqlite3.connect(target) as raw:
        raw.execute("ATTACH ? AS today", [str(source)])
        for name in KEYS:
            names = [f'"{column.name}"' for column in tables.metadata.tables[name].columns]
            values = [words.get(each.strip('"'), each) for each in names] if name == "measurement" else names
            raw.execute(f"INSERT INTO {name} ({', '.join(names)}) SELECT {', '.join(values)} FROM today.{name}")
    raw.close()
    return target
