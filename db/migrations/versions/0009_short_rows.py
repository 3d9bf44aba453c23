"""Short rows: the columns of `measurement` that a snapshot leaves empty stand last, each with its CHECK.

Frozen, as every migration is. SQLite writes the table anew, because it cannot move a column; nothing refers to it. A
snapshot can then add these columns behind its rows, which store nothing of them (tuner.db.short_rows). The order of
columns means nothing in PostgreSQL.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL = sa.Double().with_variant(sa.REAL(), "sqlite")
KEY = ("block_id", "config_id", "role")
RANGE = "{name} > 0 AND {name} < 1000000000000.0"


def upgrade() -> None:
    """Write the table anew, every row as it was, in the order of its key, which fills pages best.

    The old table makes room for the new one under another name, so that the new one's statement is that of a fresh
    database.
    """
    if op.get_context().dialect.name != "sqlite":
        return
    op.rename_table("measurement", "old_measurement")
    names = ", ".join(column.name for column in create_measurement().columns)
    order = ", ".join(f"old_measurement.{name}" for name in KEY)
    op.execute(f"INSERT INTO measurement ({names}) SELECT {names} FROM old_measurement ORDER BY {order}")
    op.drop_table("old_measurement")


def create_measurement() -> sa.Table:
    """Create `measurement` with its columns in the order of this schema."""
    return op.create_table(
        "measurement",
        *(sa.Column(name, INTEGER, nullable=False) for name in ("block_id", "config_id", "role", "status")),
        sa.Column("num_samples", INTEGER),
        *(sa.Column(name, REAL) for name in ("median_us", "ratio")),
        sa.Column("checksum", INTEGER, make_check("checksum", "checksum >= -2147483648 AND checksum <= 2147483647")),
        *(sa.Column(name, REAL, make_check(name, RANGE.format(name=name))) for name in ("ratio_low", "ratio_high")),
        *(sa.Column(name, REAL) for name in ("max_abs_error", "clock_mhz", "power_w")),
        sa.Column("mad_us", REAL, make_check("mad_us", "mad_us >= 0.0 AND mad_us <= 1000000000000.0")),
        *(sa.Column(name, REAL, make_check(name, RANGE.format(name=name))) for name in ("q10_us", "q90_us")),
        sa.Column("samples", sa.LargeBinary),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint(*KEY, name="pk_measurement"),
        *(
            sa.ForeignKeyConstraint([f"{target}_id"], [f"{target}.id"], name=f"fk_measurement_{target}_id")
            for target in ("block", "config")
        ),
        make_check("role", "role IN (0, 1)"),
        make_check("status", "status IN (0, 1, 2, 3, 4, 5, 6, 7)"),
        make_check("ok_has_time", "status != 0 OR median_us IS NOT NULL"),
        make_check("num_samples", "num_samples >= 1 AND num_samples <= 1000000000"),
        *(make_check(name, RANGE.format(name=name)) for name in ("median_us", "ratio")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def make_check(name: str, condition: str) -> sa.CheckConstraint:
    """Return a CHECK of `measurement`."""
    return sa.CheckConstraint(condition, name=f"ck_measurement_{name}")
