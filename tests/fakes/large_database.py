"""Tuning databases of any size, for tests of what a command costs: `python -m tests.fakes.large_database FILE ROWS`.

Every block has the same 40 configs of one problem of its own, searched, and five of them confirmed, with times that a
seed determines. 10^7 rows take two minutes and 1 GB (with samples 2.2 GB).
"""

import argparse
from itertools import islice
from pathlib import Path

import numpy as np
from sqlalchemy import Connection, insert

from deep_gemm import _C
from deep_gemm.jit.hashing import kernel_hash
from tests.fakes.databases import CONFIGS, add_context
from tuner.db import Store, tables
from tuner.db.checks import MEASUREMENT_COLUMNS
from tuner.db.checksums import CHECKSUM, load_block_digests, load_config_digests, make_checksums
from tuner.db.values import to_json
from tuner.problems.fields import problem_row

NUM_CONFIGS, NUM_CONFIRMED = 40, 5
ROWS_OF_BLOCK = NUM_CONFIGS + NUM_CONFIRMED
#: Problems that are written in one transaction.
BATCH = 500
OP = "fp8_gemm"
#: Weights (n, k); the rows m count up, so that every problem is another.
WEIGHTS = [(n, k) for n in range(512, 8192, 512) for k in range(512, 8192, 512)]

#: What no row has: the largest error, clock and power.
MISSING = (None, None, None)
#: What the words of rows are stored as; a call for each of many rows would take long.
NUMBERS = {word: kind.get_number(word) for kind in (tables.ROLE, tables.STATUS) for word in kind.words}
INSERT_ROW = f"INSERT INTO measurement VALUES ({', '.join('?' * len(MEASUREMENT_COLUMNS))})"


def write_large_database(path: Path, num_rows: int, *, seed: int = 0, has_samples: bool = False) -> int:
    """Write a database with at least `num_rows` measured rows of this package's kernels; return how many it has."""
    num_blocks = -(-num_rows // ROWS_OF_BLOCK)
    with Store.open(path) as store:
        context = add_context(store) | {"kernel_hash": kernel_hash(OP)}
        configs = [store.get_or_add_config(OP, config) for config in CONFIGS[:NUM_CONFIGS]]
        numbers = iter(range(1, num_blocks + 1))
        while batch := list(islice(numbers, BATCH)):
            with store.writing() as connection:
                connection.execute(insert(tables.problem), [make_problem(number) for number in batch])
                connection.execute(insert(tables.block), [make_block(number, context, configs) for number in batch])
                rows = make_batch(batch, configs, seed, has_samples)
                connection.exec_driver_sql(INSERT_ROW, to_stored(connection, batch, rows))
                connection.execute(insert(tables.best), [make_best(number, context, configs) for number in batch])
        store.finish_sweep(context["sweep_id"])
    return num_blocks * ROWS_OF_BLOCK


def make_problem(number: int) -> dict:
    """Return the row of a problem."""
    m, (n, k) = 1 + number // len(WEIGHTS), WEIGHTS[number % len(WEIGHTS)]
    problem = _C.Problem(OP, m, n, k)
    return problem_row(problem) | {"id": number, "key": problem.key}


def make_block(number: int, context: dict, configs: list[int]) -> dict:
    """Return the row of a finished block."""
    return context | {
        "id": number,
        "uid": f"{number:032x}",
        "status": "finished",
        "created": make_date(number),
        "problem_id": number,
        "reference_config_id": configs[0],
        "rounds": 8,
        "confirm_rounds": 30,
        "anchor_us": 190.0 + number % 7,
        "noise": 0.001 * (1 + number % 5),
        "workload": "",
    }


def make_date(number: int) -> str:
    """Return a time that grows with the number."""
    minutes, seconds = divmod(number, 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"2026-{1 + hours // 672 % 12:02d}-{1 + hours // 24 % 28:02d}T{hours % 24:02d}:{minutes:02d}:{seconds:02d}.000Z"
    )


def make_batch(numbers: list[int], configs: list[int], seed: int, has_samples: bool) -> list[tuple]:
    """Return the measured rows of some blocks, in the order of MEASUREMENT_COLUMNS and of their key: SQLite then only
    appends. A third of the searched ones were dropped early.
    """
    samples = np.full(30, 12.5, "<f4").tobytes() if has_samples else None
    ratios = np.random.default_rng([seed, numbers[0]]).uniform(0.9, 1.6, (len(numbers), NUM_CONFIGS))
    ratios[:, 0] = 1.0
    rows = []
    for number, of_block in zip(numbers, ratios.tolist(), strict=True):
        for place, (config, ratio) in enumerate(zip(configs, of_block, strict=True)):
            values = (
                30,
                10.0 * ratio,
                ratio,
                None,
                ratio * 0.99,
                ratio * 1.01,
                *MISSING,
                0.01,
                None,
                None,
                samples,
                None,
            )
            if place < NUM_CONFIRMED:
                rows.append((number, config, "confirm", "ok", *values))
            rows.append((number, config, "search", "censored" if place % 3 == 2 else "ok", *values))
    return rows


def to_stored(connection: Connection, blocks: list[int], rows: list[tuple]) -> list[tuple]:
    """Return rows as they are stored: their words as numbers, and with their checksums."""
    digests = load_block_digests(connection, blocks), load_config_digests(connection)
    found = make_checksums(rows, *digests).tolist()
    return [
        (block, config, NUMBERS[role], NUMBERS[status], *values[: CHECKSUM - 4], checksum, *values[CHECKSUM - 3 :])
        for (block, config, role, status, *values), checksum in zip(rows, found, strict=True)
    ]


def make_best(number: int, context: dict, configs: list[int]) -> dict:
    """Return the row of a problem's winner."""
    return {
        "problem_id": number,
        "sku": "nvidia-h200-sm132",
        "created": make_date(number),
        "config_id": configs[0],
        "tie_set": to_json(configs[:2]),
        "block_id": number,
        **{name: context[name] for name in ("kernel_hash", "compiler", "regime")},
    }


def main() -> None:
    """Write one database."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("rows", type=int)
    parser.add_argument("--samples", action="store_true", help="with the samples of every row, as a sweep keeps them")
    arguments = parser.parse_args()
    print(write_large_database(arguments.path, arguments.rows, has_samples=arguments.samples), "rows")


if __name__ == "__main__":
    main()
