"""Groups of a problem (their number, the rows expected in one, the alignment of their first rows, the memory of groups of K), and the
workload of a block: which group sizes it was measured with.

Frozen, as every migration is. Columns are added in place, as in 0002: rows keep their ids and keys, and what was measured before has no
groups.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the columns."""
    add_integer("problem", "num_groups", 0, 65535, 0)
    add_integer("problem", "expected_m", 0, 2**31 - 1, 0)
    add_integer("problem", "alignment", 8, 65536, 128)
    add_column("problem", "group_layout", "TEXT", "'joint'", "group_layout IN ('joint', 'blocks')")
    add_column("block", "workload", "TEXT", "''", "length(workload) <= 1024")


def add_integer(table: str, name: str, low: int, high: int, default: int) -> None:
    """Add a required integer column."""
    kind = INTEGER.compile(dialect=op.get_bind().dialect)
    add_column(table, name, kind, str(default), f"{name} >= {low} AND {name} <= {high}")


def add_column(table: str, name: str, kind: str, default: str, check: str) -> None:
    """Add a required column; `default` and `check` are SQL."""
    op.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind} DEFAULT {default} NOT NULL CONSTRAINT ck_{table}_{name} CHECK ({check})")
