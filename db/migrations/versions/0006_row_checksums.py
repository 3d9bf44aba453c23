"""Row checksums: the checksum of a measured row, see tuner.db.checksums.

Frozen, as every migration is. The column is added in place, as in 0002: rows that were recorded before have none.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the column."""
    kind = INTEGER.compile(dialect=op.get_bind().dialect)
    op.execute(
        f"ALTER TABLE measurement ADD COLUMN checksum {kind} CONSTRAINT ck_measurement_checksum CHECK"
        " (checksum >= -2147483648 AND checksum <= 2147483647)"
    )
