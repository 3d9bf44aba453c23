"""A database as large as a recorded one: the snapshot fits the package and loads quickly.

Without --full it has a tenth of the rows, and is left a tenth of the size (beside the empty tables); the time is then
not looked at, because a busy machine would decide over it: what is, is that all rows come by a fixed number of queries.
"""

import json
import random
import tempfile
import time
import uuid
from pathlib import Path

import pytest
from sqlalchemy import event

from deep_gemm import _C
from tests.fakes.databases import CONFIGS, IDENTITY, KERNEL_HASH, SKU, make_database
from tuner.db import Store, snapshot, tables
from tuner.db.naturals import KEYS
from tuner.db.transfer import add_tables, load_tables
from tuner.problems.fields import problem_row

#: Problems measured over their whole space, and by the portfolio; the configs of each; how many of them are confirmed.
WHOLE, BY_PORTFOLIO = (300, 110), (1230, 25)
CONFIRMED = 12
NUM_ROWS = sum(problems * (configs + CONFIRMED) for problems, configs in (WHOLE, BY_PORTFOLIO))
MAX_BYTES, MAX_SECONDS = 8_000_000, 5.0  # 60 us a row
EMPTY_BYTES = 100_000  # of a database without rows
MAX_QUERIES = 9


def make_recording(part: int) -> dict:
    """Return the contents of a database with one `part`-th of the problems of a recorded one, which has 82,110 rows; of
    the search rows two thirds are censored.
    """
    generator = random.Random(0)
    configs = {config.key("fp8_gemm"): config for config in CONFIGS[:130]}
    found = {name: {} for name in KEYS}
    base = load_base()
    for name in ("device", "environment", "sweep"):
        found[name] = base[name]
    (device,), (environment,), (sweep,) = (next(iter(base[name])) for name in ("device", "environment", "sweep"))
    found["config"] = {
        (key,): config.as_dict() | {"key": key, "op": "fp8_gemm", "extra": None} for key, config in configs.items()
    }
    for index in range((WHOLE[0] + BY_PORTFOLIO[0]) // part):
        problem = _C.Problem("fp8_gemm", 1 + index, 2112 + 16 * (index % 60), 7168)
        uid = uuid.UUID(int=generator.getrandbits(128)).hex
        keys = list(configs)[: WHOLE[1] if index < WHOLE[0] // part else BY_PORTFOLIO[1]]
        found["problem"][(problem.key,)] = problem_row(problem) | {"key": problem.key}
        found["block"][(uid,)] = make_block(uid, problem.key, keys, device, environment, sweep)
        for place, key in enumerate(keys):
            for role in ("search", "confirm") if place < CONFIRMED else ("search",):
                found["measurement"][(uid, key, role)] = make_measurement(generator, uid, key, role, place)
        identity = (problem.key, *(IDENTITY[name] for name in ("sku", "kernel_hash", "compiler", "regime")))
        found["best"][identity] = dict(zip(KEYS["best"], identity, strict=True)) | {
            "created": "2026-01-01T00:00:00.000Z",
            "config_id": keys[0],
            "tie_set": json.dumps(keys[:5], separators=(",", ":")),
            "block_id": uid,
        }
    found["compilation"] = {
        (key, "", KERNEL_HASH, "nvrtc"): {
            "config_id": key,
            "variant": "",
            "kernel_hash": KERNEL_HASH,
            "compiler": "nvrtc",
            "registers": 168,
            "spill_bytes": 0,
            "local_bytes": 0,
            "smem_bytes": 200_000,
            "compile_ms": generator.uniform(100, 400),
        }
        for key in configs
    }
    return found


def load_base() -> dict:
    """Return one board, environment and sweep in natural form."""
    with tempfile.TemporaryDirectory() as folder:
        return load_tables(make_database(Path(folder) / "base.db", num_problems=1))


def make_block(uid: str, problem_key: str, keys: list[str], device: str, environment: str, sweep: str) -> dict:
    """Return a block in natural form."""
    row = {name: None for name in (each.name for each in tables.block.columns) if name != "id"}
    references = {
        "problem_id": problem_key,
        "device_id": device,
        "environment_id": environment,
        "sweep_id": sweep,
        "reference_config_id": keys[0],
    }
    numbers = {
        "rounds": 8,
        "confirm_rounds": 30,
        "anchor_us": 190.123456,
        "noise": 0.00123,
        "clock_mhz": 1755.0,
        "power_w": 612.345,
        "throttle": 4,
    }
    return (
        row
        | references
        | numbers
        | {
            "uid": uid,
            "status": "finished",
            "created": "2026-01-01T00:00:00.000Z",
            "regime": "graph-cold",
            "kernel_hash": KERNEL_HASH,
            "compiler": "nvrtc",
            "order": json.dumps(keys, separators=(",", ":")),
            "workload": "",
        }
    )


def make_measurement(generator: random.Random, uid: str, key: str, role: str, place: int) -> dict:
    """Return a measured row in natural form, with full-precision numbers; six finalists keep their samples."""
    samples = bytes(b"\x00\x00\xb0@" * 30) if role == "confirm" and place < 6 else None
    times = {
        name: generator.uniform(5, 50)
        for name in ("median_us", "mad_us", "q10_us", "q90_us", "ratio", "ratio_low", "ratio_high", "max_abs_error")
    }
    return {
        "block_id": uid,
        "config_id": key,
        "role": role,
        "status": "censored" if role == "search" and place % 3 else "ok",
        "num_samples": 30,
        **times,
        "clock_mhz": None,
        "power_w": None,
        "samples": samples,
        "error": None,
        "checksum": None,
    }


@pytest.mark.parametrize("part", [10, pytest.param(1, marks=pytest.mark.full)])
def test_a_recorded_snapshot_fits_and_loads_quickly(tmp_path, part):
    add_tables(tmp_path / "all.db", [make_recording(part)])
    result = snapshot(tmp_path / "all.db", tmp_path / "published.db", sku=SKU)
    assert result["tables"]["measurement"] == NUM_ROWS / part and NUM_ROWS == 82_110
    assert (
        result["bytes"] == (tmp_path / "published.db").stat().st_size <= (MAX_BYTES - EMPTY_BYTES) / part + EMPTY_BYTES
    )
    with Store.open(tmp_path / "published.db", "immutable") as store:
        queries = []
        event.listen(store.engine, "before_cursor_execute", lambda *args: queries.append(args[2]))
        start = time.process_time()
        rows = store.load_measurements(sku=SKU)
        seconds = time.process_time() - start
    assert len(rows) == NUM_ROWS / part and len(queries) <= MAX_QUERIES, queries
    assert part > 1 or seconds < MAX_SECONDS
