"""Attention logits: heads, the tokens of a sequence and the keys in a page of a problem.

Frozen, as every migration is. Columns are added in place, as in 0002: rows keep their ids and keys, and what was
measured before were products of matrices.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the columns."""
    add_integer("heads", 0, 128, 0)
    add_integer("next_n", 1, 8, 1)
    add_integer("block_kv", 0, 64, 0)


def add_integer(name: str, low: int, high: int, default: int) -> None:
    """Add a required integer column to `problem`."""
    kind = INTEGER.compile(dialect=op.get_bind().dialect)
    op.execute(
        f"ALTER TABLE problem ADD COLUMN {name} {kind} DEFAULT {default} NOT NULL CONSTRAINT ck_problem_{name} CHECK"
        f" ({name} >= {low} AND {name} <= {high})"
    )
