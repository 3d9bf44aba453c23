"""Groups of a problem (their number, the rows expected in one, the alignment of their first rows, the memory of groups
of K), and the workload of a block: which group sizes it was measured with. SQLite's `measurement` loses its rowid.

Frozen, as every migration is. Columns are added in place, as in 0002: rows keep their ids and keys, and what was
measured before has no groups. `measurement`, to which nothing refers, is written anew, because SQLite cannot take a
table's rowid away in place.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL = sa.Double().with_variant(sa.REAL(), "sqlite")
KEY = ("block_id", "config_id", "role")
REALS = (
    "median_us",
    "mad_us",
    "q10_us",
    "q90_us",
    "ratio",
    "ratio_low",
    "ratio_high",
    "max_abs_error",
    "clock_mhz",
    "power_w",
)
POSITIVE = ("median_us", "q10_us", "q90_us", "ratio", "ratio_low", "ratio_high")
STATUSES = "'ok', 'censored', 'incorrect', 'compile_error', 'crash', 'timeout', 'spill', 'skipped'"


def upgrade() -> None:
    """Add the columns; take the rowid of `measurement`."""
    add_integer("problem", "num_groups", 0, 65535, 0)
    add_integer("problem", "expected_m", 0, 2**31 - 1, 0)
    add_integer("problem", "alignment", 8, 65536, 128)
    add_column("problem", "group_layout", "TEXT", "'joint'", "group_layout IN ('joint', 'blocks')")
    add_column("block", "workload", "TEXT", "''", "length(workload) <= 1024")
    if op.get_bind().dialect.name == "sqlite":
        renew_measurement()


def add_integer(table: str, name: str, low: int, high: int, default: int) -> None:
    """Add a required integer column."""
    kind = INTEGER.compile(dialect=op.get_bind().dialect)
    add_column(table, name, kind, str(default), f"{name} >= {low} AND {name} <= {high}")


def add_column(table: str, name: str, kind: str, default: str, check: str) -> None:
    """Add a required column; `default` and `check` are SQL."""
    op.execute(
        f"ALTER TABLE {table} ADD COLUMN {name} {kind} DEFAULT {default} NOT NULL CONSTRAINT ck_{table}_{name} CHECK"
        f" ({check})"
    )


def renew_measurement() -> None:
    """Write `measurement` anew without a rowid, every row as it was.

    A table with a rowid has its key a second time, in an index: 25 % of a snapshot. The old table makes room for the
    new one under another name, so that the new one's statement is that of a fresh database; the rows come in the order
    of their key, which fills pages best.
    """
    op.rename_table("measurement", "old_measurement")
    table = create_measurement()
    names = ", ".join(column.name for column in table.columns)
    op.execute(f"INSERT INTO measurement ({names}) SELECT {names} FROM old_measurement ORDER BY {', '.join(KEY)}")
    op.drop_table("old_measurement")


def create_measurement() -> sa.Table:
    """Create `measurement` with the columns and constraints that it had."""
    return op.create_table(
        "measurement",
        *(sa.Column(name, INTEGER, nullable=False) for name in ("block_id", "config_id")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("role", "status")),
        sa.Column("num_samples", INTEGER),
        *(sa.Column(name, REAL) for name in REALS),
        sa.Column("samples", sa.LargeBinary),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint(*KEY, name="pk_measurement"),
        *(make_reference(column, target) for column, target in (("block_id", "block"), ("config_id", "config"))),
        make_check("role", "role IN ('search', 'confirm')"),
        make_check("status", f"status IN ({STATUSES})"),
        make_check("ok_has_time", "status != 'ok' OR median_us IS NOT NULL"),
        make_check("num_samples", "num_samples >= 1 AND num_samples <= 1000000000"),
        *(make_check(name, f"{name} > 0 AND {name} < 1000000000000.0") for name in POSITIVE),
        make_check("mad_us", "mad_us >= 0.0 AND mad_us <= 1000000000000.0"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def make_reference(column: str, target: str) -> sa.ForeignKeyConstraint:
    """Return the foreign key of a column of `measurement` to target.id."""
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=f"fk_measurement_{column}")


def make_check(name: str, condition: str) -> sa.CheckConstraint:
    """Return a CHECK of `measurement`."""
    return sa.CheckConstraint(condition, name=f"ck_measurement_{name}")
