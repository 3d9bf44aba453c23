"""Where blocks come from: their sweep and driver, and which kernel hashes a database has of an op kind."""

from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, func, select

from tuner.db import tables
from tuner.problems.regimes import NOT_OWN, SENTINEL


class Origin(NamedTuple):
    """The sweep of a block (its id in the file and its uid) and the driver that it ran with."""

    sweep_id: int
    sweep_uid: str
    driver: str | None


def load_origins(connection: Connection) -> dict[int, Origin]:
    """Return the origin of every block, by the block's id."""
    block, sweep, environment = tables.block, tables.sweep, tables.environment
    query = select(block.c.id, sweep.c.id, sweep.c.uid, environment.c.driver).where(
        sweep.c.id == block.c.sweep_id, environment.c.id == block.c.environment_id
    )
    return {row[0]: Origin(*row[1:]) for row in connection.execute(query)}


def has_own_regime() -> ColumnElement[bool]:
    """Return the condition that a block is of a sweep's own regime, see regimes.is_own."""
    return and_(*(~tables.block.c.regime.endswith(suffix) for suffix in NOT_OWN))


def is_of_sentinel() -> ColumnElement[bool]:
    """Return the condition that a block is of a sentinel, see regimes.is_sentinel."""
    return tables.block.c.regime.endswith(SENTINEL)


def count_sentinels(connection: Connection) -> int:
    """Return the number of measured rows of sentinels."""
    block, measurement = tables.block, tables.measurement
    query = select(func.count()).select_from(measurement).join(block, block.c.id == measurement.c.block_id)
    return connection.execute(query.where(is_of_sentinel())).scalar_one()


def list_kernel_hashes(connection: Connection, op: str, sku: str) -> list[str]:
    """Return the kernel hashes of an op kind's blocks on a SKU, the newest first.

    Only finished blocks of a sweep's own regime count: sentinels and what a sweep left open tell nothing of kernels.
    """
    block, problem, device = tables.block, tables.problem, tables.device
    newest = func.max(block.c.created)
    query = (
        select(block.c.kernel_hash)
        .join(problem, block.c.problem_id == problem.c.id)
        .join(device, device.c.id == block.c.device_id)
        .where(problem.c.op == op, device.c.sku == sku, block.c.status == "finished", has_own_regime())
        .group_by(block.c.kernel_hash)
        .order_by(newest.desc(), block.c.kernel_hash)
    )
    return list(connection.execute(query).scalars())
