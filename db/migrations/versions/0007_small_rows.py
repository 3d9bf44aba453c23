"""Small rows: `role` and `status` of a measured row are numbers, and SQLite's `best` loses its rowid.

Frozen, as every migration is. Both tables, to which nothing refers, are written anew in SQLite, because it can neither
change a column's type nor take a table's rowid away in place. The numbers of roles are in the order of the words, so
that rows stay in the order of their keys.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL = sa.Double().with_variant(sa.REAL(), "sqlite")
#: Each word's place is its number.
WORDS = {
    "role": ("confirm", "search"),
    "status": ("ok", "censored", "incorrect", "compile_error", "crash", "timeout", "spill", "skipped"),
}
CHECKS = {
    "role": "role IN (0, 1)",
    "status": "status IN (0, 1, 2, 3, 4, 5, 6, 7)",
    "ok_has_time": "status != 0 OR median_us IS NOT NULL",
}
KEY = ("block_id", "config_id", "role")
REALS = (
    *("median_us", "mad_us", "q10_us", "q90_us", "ratio", "ratio_low", "ratio_high"),
    *("max_abs_error", "clock_mhz", "power_w"),
)
POSITIVE = ("median_us", "q10_us", "q90_us", "ratio", "ratio_low", "ratio_high")
BEST_NAMES = ("sku", "kernel_hash", "compiler", "regime")


def upgrade() -> None:
    """Store words as numbers; take the rowid of `best`."""
    if op.get_context().dialect.name == "sqlite":
        renew("measurement", create_measurement, KEY)
        renew("best", create_best, ("problem_id", *BEST_NAMES))
    else:
        alter_measurement()


def spell_number(name: str) -> str:
    """Return the SQL of a column's word as its number."""
    cases = " ".join(f"WHEN '{word}' THEN {number}" for number, word in enumerate(WORDS[name]))
    return f"CASE {name} {cases} END"


def alter_measurement() -> None:
    """Change the two columns in place; a constraint that compares them with words must not be there meanwhile."""
    for name in CHECKS:
        op.execute(f"ALTER TABLE measurement DROP CONSTRAINT ck_measurement_{name}")
    changes = ", ".join(f"ALTER COLUMN {name} TYPE SMALLINT USING {spell_number(name)}" for name in WORDS)
    op.execute(f"ALTER TABLE measurement {changes}")
    for name, condition in CHECKS.items():
        op.execute(f"ALTER TABLE measurement ADD CONSTRAINT ck_measurement_{name} CHECK ({condition})")


def renew(name: str, create, key: tuple[str, ...]) -> None:
    """Write a table anew, every row as it was, in the order of its key, which fills pages best.

    The old table makes room for the new one under another name, so that the new one's statement is that of a fresh
    database. A word that is unknown becomes NULL, which the new table refuses.
    """
    op.rename_table(name, f"old_{name}")
    columns = [column.name for column in create().columns]
    values = [spell_number(column) if column in WORDS else column for column in columns]
    op.execute(
        f"INSERT INTO {name} ({', '.join(columns)}) SELECT {', '.join(values)} FROM old_{name}"
        f" ORDER BY {', '.join(f'old_{name}.{column}' for column in key)}"
    )
    op.drop_table(f"old_{name}")


def create_measurement() -> sa.Table:
    """Create `measurement` without words."""
    return op.create_table(
        "measurement",
        *(sa.Column(name, INTEGER, nullable=False) for name in ("block_id", "config_id", "role", "status")),
        sa.Column("num_samples", INTEGER),
        *(sa.Column(name, REAL) for name in REALS),
        sa.Column("samples", sa.LargeBinary),
        sa.Column("error", sa.Text),
        sa.Column("checksum", INTEGER, make_check("checksum", "checksum >= -2147483648 AND checksum <= 2147483647")),
        sa.PrimaryKeyConstraint(*KEY, name="pk_measurement"),
        *make_references("measurement", "block", "config"),
        *(make_check(name, condition) for name, condition in CHECKS.items()),
        make_check("num_samples", "num_samples >= 1 AND num_samples <= 1000000000"),
        *(make_check(name, f"{name} > 0 AND {name} < 1000000000000.0") for name in POSITIVE),
        make_check("mad_us", "mad_us >= 0.0 AND mad_us <= 1000000000000.0"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def create_best() -> sa.Table:
    """Create `best` without a rowid, whose rows then have their key once, not a second time in an index."""
    return op.create_table(
        "best",
        sa.Column("problem_id", INTEGER, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in (*BEST_NAMES, "created")),
        sa.Column("config_id", INTEGER, nullable=False),
        sa.Column("tie_set", sa.Text, nullable=False),
        sa.Column("block_id", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("problem_id", *BEST_NAMES, name="pk_best"),
        *make_references("best", "problem", "config", "block"),
        sa.CheckConstraint("compiler IN ('nvrtc', 'nvcc')", name="ck_best_compiler"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def make_references(table: str, *targets: str) -> list[sa.ForeignKeyConstraint]:
    """Return the foreign keys of a table to the ids of others."""
    return [
        sa.ForeignKeyConstraint([f"{target}_id"], [f"{target}.id"], name=f"fk_{table}_{target}_id")
        for target in targets
    ]


def make_check(name: str, condition: str) -> sa.CheckConstraint:
    """Return a CHECK of `measurement`."""
    return sa.CheckConstraint(condition, name=f"ck_measurement_{name}")
