"""Small tuning databases with plausible rows, for tests."""

import json
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deep_gemm import _C
from tuner.db import documents, tables
from tuner.db.naturals import encode
from tuner.db.transfer import load_tables

SKU = "nvidia-h200-sm132"
KERNEL_HASH = "ab" * 32
REGIME = "graph-cold"
IDENTITY = {"sku": SKU, "kernel_hash": KERNEL_HASH, "compiler": "nvrtc", "regime": REGIME}
DEVICE = _C.Device.known(SKU)
CONFIGS = _C.get_default_space(_C.Problem("fp8_gemm", 1, 1, 1), DEVICE)


@contextmanager
def without_flushes() -> Iterator[None]:
    """Let the writers of SQLite files that are opened meanwhile commit without waiting for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.db.engine.WRITER_PRAGMAS", ("journal_mode = DELETE", "synchronous = OFF"))
        yield


def read_contents(target) -> bytes:
    """Return the contents of a database, independent of ids, as the JSON document that an export must be."""
    found = {}
    for name, rows in load_tables(target).items():
        columns = [column.name for column in tables.metadata.tables[name].columns if column.name != "id"]
        values = [[encode(rows[key][column]) for column in columns] for key in sorted(rows)]
        found[name] = {"columns": columns, "rows": values}
    document = {"application": documents.APPLICATION, "format": documents.FORMAT, "tables": found}
    return (json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n").encode("ascii")


def add_context(store, seed: int = 0) -> dict:
    """Add a board, an environment and a sweep; return the fields that every block has."""
    device = DEVICE.as_dict() | {"uuid": f"GPU-0000-{seed}", "memory_bytes": 150_000_000_000, "power_limit_w": 700.0}
    environment = {
        "driver": "580.1",
        "cuda": "13.0",
        "compiler": "nvrtc",
        "compiler_version": "13.0",
        "torch": "2.13.0",
        "flags": "-std=c++20 -I/home/someone/include",
        "git_dirty": 0,
    }
    sweep = {
        "preset": "/home/someone/shapes.json",
        "seed": seed,
        "sampler": "exhaustive",
        "effort": "full",
        "regime": REGIME,
        "shard": "1/4",
        "argv": ["tuner", "sweep"],
        "host": "node17",
    }
    return {
        "device_id": store.get_or_add_device(device),
        "environment_id": store.get_or_add_environment(environment),
        "sweep_id": store.start_sweep(sweep),
        **{name: IDENTITY[name] for name in ("regime", "kernel_hash", "compiler")},
    }


def add_block(
    store,
    context: dict,
    problem,
    num_configs: int = 6,
    seed: int = 0,
    finish: bool = True,
    op: str = "fp8_gemm",
    **fields,
) -> int:
    """Add a block of `problem` with a search row per config, confirmation rows for two, a failure, and a winner."""
    ids = [store.get_or_add_config(op, config) for config in CONFIGS[:num_configs]]
    problem_id = store.get_or_add_problem(problem)
    block = {
        "problem_id": problem_id,
        "reference_config_id": ids[0],
        "order": ids,
        "rounds": 8,
        "confirm_rounds": 30,
        "anchor_us": 190.5,
        "noise": 0.001,
        "extra": {"seconds": 1.5},
    }
    block_id = store.add_block(context | block | fields)
    store.add_measurements(make_rows(block_id, ids, seed), finish=finish)
    store.set_best(
        IDENTITY
        | {
            "problem_id": problem_id,
            "config_id": ids[0],
            "tie_set": ids[:2],
            "block_id": block_id,
            "kernel_hash": (context | fields)["kernel_hash"],
        }
    )
    return block_id


def make_rows(block_id: int, config_ids: list[int], seed: int = 0) -> list[dict]:
    """Return measured rows; the last config failed with a log that names a path."""
    generator = random.Random(f"{seed} {block_id}")
    rows = [
        make_row(generator, block_id, config_id, "search") | {"samples": [5.5, 6.5]} for config_id in config_ids[:-1]
    ]
    rows += [
        make_row(generator, block_id, config_id, "confirm") | {"samples": [7.25] * 30} for config_id in config_ids[:2]
    ]
    return [
        *rows,
        {
            "block_id": block_id,
            "config_id": config_ids[-1],
            "role": "search",
            "status": "compile_error",
            "error": "/tmp/kernel.cu(3): error",
        },
    ]


def make_row(generator: random.Random, block_id: int, config_id: int, role: str) -> dict:
    """Return one row that succeeded."""
    median_us, ratio = generator.uniform(5, 50), generator.uniform(0.9, 1.4)
    return {
        "block_id": block_id,
        "config_id": config_id,
        "role": role,
        "status": "ok",
        "num_samples": 8,
        "median_us": median_us,
        "mad_us": 0.01,
        "q10_us": median_us * 0.99,
        "q90_us": median_us * 1.01,
        "ratio": ratio,
        "ratio_low": ratio * 0.99,
        "ratio_high": ratio * 1.01,
        "max_abs_error": 0.25,
        "clock_mhz": 1980,
        "power_w": 512.5,
        "registers": 168,
        "spill_bytes": 0,
        "local_bytes": 0,
        "smem_bytes": 200_000,
        "compile_ms": 250.0,
    }


def make_problem(m: int = 64, n: int = 2112, k: int = 7168):
    """Return a problem."""
    return _C.Problem("fp8_gemm", m, n, k)


def make_database(path, num_problems: int = 3, first_m: int = 1, seed: int = 0, **fields):
    """Create a database of a few blocks at `path`; return the path."""
    from tuner.db import Store

    with Store.open(path) as store:
        context = add_context(store, seed)
        for index in range(num_problems):
            add_block(store, context, make_problem(first_m + index), seed=seed, **fields)
        store.finish_sweep(context["sweep_id"])
    return path


def count_rows(path: Path) -> int:
    """Return the number of measured rows, read through a fresh Store."""
    from tuner.db import Store

    with Store.open(path, "ro") as store:
        return len(store.load_measurements())


@contextmanager
def memory_folder(fallback: Path) -> Iterator[Path]:
    """Yield a folder in memory where the system has one, else `fallback`: for many commits whose durability is not the
    point.
    """
    if not os.access("/dev/shm", os.W_OK):
        yield fallback
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)
