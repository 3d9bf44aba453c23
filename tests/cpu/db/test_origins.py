"""Which op kinds and kernels a database has: what was measured to the end, sentinels and other extras left out."""

import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tests.fakes.databases import (
    IDENTITY,
    KERNEL_HASH,
    REGIME,
    SKU,
    add_block,
    add_context,
    make_database,
    make_problem,
)
from tuner.db import Store
from tuner.db.origins import list_kernel_hashes
from tuner.learn.dataset import load_dataset
from tuner.learn.sources import find_ops
from tuner.problems import regimes

NEW = "cd" * 32
NAMES = (regimes.name_sentinel, regimes.name_rested, regimes.name_energy)


def add_newer(path, regime: str) -> None:
    """Add a block of newer kernels."""
    with Store.open(path) as store:
        add_block(store, add_context(store), make_problem(9), kernel_hash=NEW, regime=regime)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_have_rows_of_a_sweeps_own_regime(tmp_path, name):
    """A sweep that ended after its first sentinels hid the kernels before it."""
    path = make_database(tmp_path / "a.db")
    add_newer(path, regime=name(REGIME))
    with Store.open(path, "ro") as store:
        assert store.newest_kernel_hash("fp8_gemm", SKU) == KERNEL_HASH
        with store.reading() as connection:
            assert list_kernel_hashes(connection, "fp8_gemm", SKU) == [KERNEL_HASH]


@pytest.mark.parametrize("status", ["open", "failed"])
def test_kernels_have_a_finished_block(tmp_path, status):
    path = make_database(tmp_path / "a.db")
    with Store.open(path) as store:
        block_id = add_block(store, add_context(store), make_problem(9), finish=False, kernel_hash=NEW)
        if status != "open":
            store.finish_block(block_id, status=status)
        assert store.newest_kernel_hash("fp8_gemm", SKU) == KERNEL_HASH
        store.finish_block(block_id)
        assert store.newest_kernel_hash("fp8_gemm", SKU) == NEW


@pytest.mark.parametrize("name", NAMES)
def test_op_kinds_have_rows_of_a_sweeps_own_regime(tmp_path, name):
    """Commands read every op kind: one with sentinels alone kept all others from being trained."""
    path = make_database(tmp_path / "a.db")
    with Store.open(path) as store:
        context = add_context(store)
        other = _C.Problem("bf16_gemm", 64, 2112, 7168)
        assert store.list_ops(SKU) == {"fp8_gemm"}
        add_block(store, context | {"regime": name(REGIME)}, other, op=other.op)
        assert store.list_ops(SKU) == {"fp8_gemm"} and find_ops(store, SKU) == ["fp8_gemm"]
        add_block(store, context, other, op=other.op)
        assert store.list_ops(SKU) == {"fp8_gemm", "bf16_gemm"}


def test_a_table_is_of_the_kernels_before_those_of_sentinels_alone(tmp_path):
    path = tmp_path / "a.db"
    path.write_bytes(synthetic.make_small_database().read_bytes())
    add_newer(path, regime=regimes.name_sentinel(IDENTITY["regime"]))
    with Store.open(path, "ro") as store:
        assert load_dataset(store, SKU).identity.kernel_hash == synthetic.KERNEL_HASH
