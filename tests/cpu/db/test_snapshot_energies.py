"""Snapshots keep the energies of a problem of which no newer kernels have any as long as anything else can go."""

import re
import time

import pytest

from tests.fakes.databases import CONFIGS, REGIME, SKU, add_block, add_context, make_problem
from tuner import cli, errors
from tuner.db import Store, snapshot
from tuner.db.transfer import load_tables
from tuner.problems.regimes import is_energy, name_energy

ENERGY = {"regime": name_energy(REGIME)}
OLDEST, OLDER, NEWEST = (digits * 32 for digits in ("67", "89", "cd"))


@pytest.fixture
def recorded(tmp_path):
    """A database with energies of three kernel hashes; those of the newest one for m = 1 all failed."""
    path = tmp_path / "all.db"
    with Store.open(path) as store:
        context = add_context(store)
        add_block(store, context, make_problem(3), num_configs=118, kernel_hash=OLDEST, **ENERGY)
        for kernel_hash, powered in ((OLDER, (1, 2)), (NEWEST, (2,))):
            time.sleep(0.002)  # blocks are ordered by milliseconds
            for m in range(1, 81):
                add_block(store, context, make_problem(m), num_configs=20, kernel_hash=kernel_hash)
            for m in powered:
                add_block(store, context, make_problem(m), num_configs=120, kernel_hash=kernel_hash, **ENERGY)
        add_failed_block(store, context | ENERGY | {"kernel_hash": NEWEST}, make_problem(1))
    return path


def add_failed_block(store, context: dict, problem) -> None:
    """Add a block of a problem whose only config failed, so that it holds no energy."""
    config_id = store.get_or_add_config("fp8_gemm", CONFIGS[0])
    block_id = store.add_block(context | {"problem_id": store.get_or_add_problem(problem)})
    row = {"block_id": block_id, "config_id": config_id, "role": "confirm", "status": "crash"}
    store.add_measurements([row], finish=True)


def find_energies(path) -> set[tuple[str, int]]:
    """Return (kernel hash, m) of the blocks that hold energies."""
    found = load_tables(path)
    powered = {block for (block, _, _), row in found["measurement"].items() if row["power_w"]}
    return {
        (row["kernel_hash"], found["problem"][(row["problem_id"],)]["m"])
        for (block,), row in found["block"].items()
        if is_energy(row["regime"]) and block in powered
    }


def holds_searches(path) -> bool:
    """Return whether a block has the search row of a config that it confirmed."""
    rows = load_tables(path)["measurement"]
    return any((block, config, "search") in rows for block, config, role in rows if role == "confirm")


@pytest.mark.full
def test_energies_that_older_kernels_alone_have_go_last(recorded, tmp_path, capsys):
    """The same energies of newer kernels take their place; else older kernels and search rows go before them."""
    target = tmp_path / "small.db"
    limit = snapshot(recorded, target, sku=SKU)["bytes"] - 1
    assert find_energies(target) == {(OLDEST, 3), (OLDER, 1), (OLDER, 2), (NEWEST, 2)}
    for kept, gone in (
        ({(OLDEST, 3), (OLDER, 1), (NEWEST, 2)}, "89898989 "),
        ({(OLDEST, 3), (OLDER, 1), (NEWEST, 2)}, "searches of confirmed configs "),
        ({(OLDEST, 3), (NEWEST, 2)}, "89898989, energies +122"),
        ({(NEWEST, 2)}, "67676767, energies +120"),
    ):
        target.unlink()
        words = ["db", "snapshot", str(target), "--db", str(recorded), "--sku", "h200", "--max-bytes", str(limit)]
        assert cli.run(words) == 0
        assert find_energies(target) == kept and re.search(f"fp8_gemm +{gone}", capsys.readouterr().out)
        limit = target.stat().st_size - 1
    target.unlink()
    with pytest.raises(errors.IntegrityError, match=f"at most {limit}"):
        snapshot(recorded, target, sku=SKU, max_bytes=limit)


def test_search_rows_that_fit_without_energies_are_not_said_to_be_missing(tmp_path):
    path, target = tmp_path / "all.db", tmp_path / "published.db"
    with Store.open(path) as store:
        context = add_context(store)
        for m in range(101, 106):
            add_block(store, context, make_problem(m), num_configs=120, kernel_hash=OLDER, **ENERGY)
        time.sleep(0.002)
        for m in range(1, 9):
            add_block(store, context, make_problem(m), num_configs=20, kernel_hash=NEWEST)
    whole = snapshot(path, target, sku=SKU)
    target.unlink()
    result = snapshot(path, target, sku=SKU, max_bytes=whole["bytes"] - 16384)
    assert [each["kernel_hash"] for each in result["left_out"]] == [OLDER] and not find_energies(target)
    assert holds_searches(target) and not result["searches_left_out"]
