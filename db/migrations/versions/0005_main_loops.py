"""Main loops: the knobs loop, scale_warp, tile_barrier and reduce_add of a config.

Frozen, as every migration is. Columns are added in place, as in 0002: what was measured before used none of them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the columns."""
    for name, high in (("loop", 1), ("scale_warp", 1), ("tile_barrier", 1), ("reduce_add", 1)):
        kind = INTEGER.compile(dialect=op.get_bind().dialect)
        op.execute(
            f"ALTER TABLE config ADD COLUMN {name} {kind} DEFAULT 0 NOT NULL CONSTRAINT ck_config_{name} CHECK"
            f" ({name} >= 0 AND {name} <= {high})"
        )
