"""Variants of a problem (recipe, types, majors, layouts, C) and the knobs split_k and swap_ab of a config.

Frozen, as every migration is. Columns are added in place, each with its default and its CHECK in the column itself:
SQLite rebuilds nothing then, and rows keep their ids and their keys, in which fields at their default do not appear.
`compilation`, to which nothing refers, is written anew, because its key gains the variant.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

REPORT_FIELDS = ("registers", "spill_bytes", "local_bytes", "smem_bytes")
INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL = sa.Double().with_variant(sa.REAL(), "sqlite")
WORDS = {
    "recipe": ("1d2d", "1d1d", "per_row"),
    "d_dtype": ("bf16", "fp32"),
    "c_mode": ("none", "accumulate", "general", "head_split"),
    "a_major": ("k", "mn"),
    "b_major": ("k", "mn"),
    "scale_layout": ("mn_major", "any"),
}


def upgrade() -> None:
    """Add the columns."""
    for name, words in WORDS.items():
        add_column("problem", name, "TEXT", repr(words[0]), f"{name} IN ({', '.join(map(repr, words))})")
    add_integer("problem", "batch_invariant", 0, 1, 0)
    add_integer("config", "split_k", 1, 65535, 1)
    add_integer("config", "swap_ab", 0, 1, 0)
    renew_compilation()


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


def renew_compilation() -> None:
    """Write `compilation` anew; every old row is of the default variant."""
    rows = [
        dict(row) | {"variant": ""} for row in op.get_bind().execute(sa.text("SELECT * FROM compilation")).mappings()
    ]
    op.drop_table("compilation")
    table = op.create_table(
        "compilation",
        sa.Column("config_id", INTEGER, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("variant", "kernel_hash", "compiler")),
        *(sa.Column(name, INTEGER) for name in REPORT_FIELDS),
        sa.Column("compile_ms", REAL),
        sa.PrimaryKeyConstraint("config_id", "variant", "kernel_hash", "compiler", name="pk_compilation"),
        sa.ForeignKeyConstraint(["config_id"], ["config.id"], name="fk_compilation_config_id"),
        sa.CheckConstraint("compiler IN ('nvrtc', 'nvcc')", name="ck_compilation_compiler"),
        *(
            sa.CheckConstraint(f"{name} >= 0 AND {name} <= 2147483647", name=f"ck_compilation_{name}")
            for name in REPORT_FIELDS
        ),
        sa.CheckConstraint("compile_ms >= 0.0 AND compile_ms <= 1000000000000.0", name="ck_compilation_compile_ms"),
        sqlite_strict=True,
    )
    op.bulk_insert(table, rows)
