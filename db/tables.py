"""The tables of the tuning database, as SQLAlchemy Core.

    device       a board: its SKU, limits and clocks; the UUID as a hash only
    environment  the software that took part: driver, compiler, torch, package, source tree
    problem      what was asked          config       how it was done (both with their frozen key)
    sweep        one run of the tuner    block        one problem measured on one board in one go
    measurement  one config in one block, once for choosing (search) and once for scoring (confirm)
    compilation  what the compiler reported for a config: the same for all problems of a variant
    best         the winner of a problem and its tie set

Views for questions in SQL are in views.py.

`block.workload` is canonical JSON of the group sizes that a grouped problem was measured with (see
tuner.problems.workload), "" for a dense problem. Databases can be merged (see transfer.py), because rows of `sweep` and
`block` have a random uid and all others a natural key. Integer ids are local to one file. Times are microseconds. Lists
are JSON text; samples are little-endian float32. Role and status of a measured row are numbers that stand for words
(see words.py). Every constraint has a name, because batch migrations drop unnamed CHECKs. SQLite tables are STRICT;
`measurement`, which takes nearly all of a file, and `best`, which has a long key, are WITHOUT ROWID.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain

from sqlalchemy import (
    REAL,
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
)

from deep_gemm import _C
from deep_gemm.fields import CONFIG_FIELDS, PROBLEM_FIELDS
from tuner.db.words import Word
from tuner.measured import STATUSES

APPLICATION_ID = 0x44474D54  # "DGMT", bytes 68-71 of the file: other applications' files are refused
SCHEMA_VERSION = 9  # user_version of the file; raised by every migration
REVISION = "0009"  # the newest migration

ROLES = ("confirm", "search")  # sorted: rows are then in the order of their words
SWEEP_STATUSES = ("running", "finished", "interrupted", "failed")
BLOCK_STATUSES = ("open", "finished", "failed")
COMPILERS = ("nvrtc", "nvcc")
#: What the words of a measured row are stored as: each as its place in its list.
ROLE, STATUS = Word(ROLES), Word(STATUSES)
MAX_TIME_US = 1e12  # longer than any sweep; infinity and NaN fail the comparison
#: Table -> descriptions of the fields that it stores.
FIELDS: dict[str, dict[str, _C.Field]] = {"problem": PROBLEM_FIELDS, "config": CONFIG_FIELDS}
#: Table -> its fields in the order of their columns: those of the first schema, then those of each migration.
FIELD_COLUMNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "problem": (
        ("m", "n", "k", "num_sms", "compiled_dims"),
        ("recipe", "d_dtype", "c_mode", "a_major", "b_major", "scale_layout", "batch_invariant"),
        ("num_groups", "expected_m", "alignment", "group_layout"),
        ("heads", "next_n", "block_kv"),
    ),
    "config": (
        ("block_m", "block_n", "block_k", "num_stages", "cluster_m", "cluster_n"),
        ("split_k", "swap_ab"),
        ("loop", "scale_warp", "tile_barrier", "reduce_add"),
    ),
}
#: Types of fields that are text; what is in `dims` only the library checks.
TEXT_TYPES = ("word", "dims")
MAX_WORKLOAD_LENGTH = 1024

INTEGER = BigInteger().with_variant(Integer(), "sqlite")
REAL_NUMBER: Double[float] = Double().with_variant(REAL(), "sqlite")

metadata = MetaData()


def one_of(table: str, column: str, values: Iterable[str | int]) -> CheckConstraint:
    """Return the CHECK that `column` is one of `values`."""
    return CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})", name=f"ck_{table}_{column}")


def between(table: str, column: str, low: float, high: float) -> CheckConstraint:
    """Return the CHECK that `column` is NULL or within [low, high]."""
    return CheckConstraint(f"{column} >= {low} AND {column} <= {high}", name=f"ck_{table}_{column}")


def positive(table: str, column: str, below: float) -> CheckConstraint:
    """Return the CHECK that `column` is NULL or a finite positive number."""
    return CheckConstraint(f"{column} > 0 AND {column} < {below:.1f}", name=f"ck_{table}_{column}")


def short(table: str, column: str, length: int) -> CheckConstraint:
    """Return the CHECK that `column` is text of at most `length` characters."""
    return CheckConstraint(f"length({column}) <= {length}", name=f"ck_{table}_{column}")


def check_field_columns(table: str, names: Collection[str]) -> None:
    """Check that FIELD_COLUMNS has each field of a table once. Raises: RuntimeError naming those that differ."""
    columns = Counter(chain.from_iterable(FIELD_COLUMNS[table]))
    wrong = {name for name in {*names, *columns} if columns[name] != (name in names)}
    if wrong:
        raise RuntimeError(
            f"db/tables.py: FIELD_COLUMNS[{table!r}] must list each described field once, and no other; mend"
            f" {', '.join(sorted(wrong))}; new fields go into a tuple of their own at the end, with a migration"
        )


for _table, _fields in FIELDS.items():
    check_field_columns(_table, _fields)


def get_fields(table: str, *, is_added: bool) -> list[_C.Field]:
    """Return the fields of a table in the order of their columns: those of the first schema, or those added later."""
    first, *later = FIELD_COLUMNS[table]
    return [FIELDS[table][name] for name in (chain.from_iterable(later) if is_added else first)]


def get_added_defaults(table: str) -> dict[str, str | int]:
    """Return the values of the fields that later migrations added, as rows of an older schema have them."""
    return {field.name: to_stored(field.default) for field in get_fields(table, is_added=True)}


def to_stored(value: str | int) -> str | int:
    """Return a value of a field as its column stores it: truth values as 0 and 1."""
    return value if isinstance(value, str) else int(value)


def first_columns(table: str) -> list[Column]:
    """Return the required columns of the first schema's fields; their CHECKs are the table's."""
    return [
        Column(field.name, Text if field.type in TEXT_TYPES else INTEGER, nullable=False)
        for field in get_fields(table, is_added=False)
    ]


def first_checks(table: str) -> list[CheckConstraint]:
    """Return the CHECKs that the numbers among the first schema's fields are within their ranges."""
    return [
        between(table, field.name, field.minimum, field.maximum)
        for field in get_fields(table, is_added=False)
        if field.type not in TEXT_TYPES
    ]


def added_columns(table: str) -> list[Column]:
    """Return the required columns of the fields that later migrations added, each with its default and its CHECK."""
    return [added_column(table, field) for field in get_fields(table, is_added=True)]


def added_column(table: str, field: _C.Field) -> Column:
    """Return the required column of a field that a later migration added."""
    if field.type == "word":
        check = one_of(table, field.name, field.words)
        return Column(field.name, Text, check, server_default=field.default, nullable=False)
    check = between(table, field.name, field.minimum, field.maximum)
    default = str(to_stored(field.default))
    return Column(field.name, INTEGER, check, server_default=literal_column(default), nullable=False)


def identifier(table: str) -> list:
    """Return the integer primary key `id`."""
    return [Column("id", INTEGER, nullable=False), PrimaryKeyConstraint("id", name=f"pk_{table}")]


def reference(table: str, column: str, target: str, nullable: bool = False) -> list:
    """Return a column that refers to `target`.id."""
    return [
        Column(column, INTEGER, nullable=nullable),
        ForeignKeyConstraint([column], [f"{target}.id"], name=f"fk_{table}_{column}"),
    ]


def text(*names: str) -> list[Column]:
    """Return required text columns."""
    return [Column(name, Text, nullable=False) for name in names]


def optional_text(*names: str) -> list[Column]:
    """Return text columns that may be NULL."""
    return [Column(name, Text) for name in names]


def integers(*names: str, nullable: bool = False) -> list[Column]:
    """Return integer columns."""
    return [Column(name, INTEGER, nullable=nullable) for name in names]


def reals(*names: str) -> list[Column]:
    """Return real columns that may be NULL."""
    return [Column(name, REAL_NUMBER) for name in names]


def checked(name: str, check: CheckConstraint) -> Column:
    """Return a real column that may be NULL, with its own CHECK."""
    return Column(name, REAL_NUMBER, check)


def make_table(name: str, *parts, has_rowid: bool = True) -> Table:
    """Return a STRICT table; `parts` are columns, constraints, or lists of them. `has_rowid` matters to SQLite only."""
    flat = [item for part in parts for item in (part if isinstance(part, list) else [part])]
    return Table(name, metadata, *flat, sqlite_strict=True, sqlite_with_rowid=has_rowid)


alembic_version = make_table(
    "alembic_version", text("version_num"), PrimaryKeyConstraint("version_num", name="alembic_version_pkc")
)

device = make_table(
    "device", identifier("device"), text("key", "sku", "name"), optional_text("uuid_hash", "mig"), integers("sm_count"),
    integers("smem_bytes", "l2_bytes", "memory_bytes", nullable=True), optional_text("compute_capability"),
    reals("clock_mhz", "memory_gbps", "power_limit_w"),
    UniqueConstraint("key", name="uq_device_key"),
    between("device", "sm_count", 1, 65535), CheckConstraint("length(uuid_hash) = 64", name="ck_device_uuid_hash"),
)  # fmt: skip

environment = make_table(
    "environment",
    identifier("environment"),
    text("key"),
    optional_text(
        "driver",
        "cuda",
        "compiler",
        "compiler_version",
        "torch",
        "python",
        "package_version",
        "git_sha",
        "tree_hash",
        "flags",
    ),
    integers("git_dirty", "cpu_count", nullable=True),
    UniqueConstraint("key", name="uq_environment_key"),
    between("environment", "git_dirty", 0, 1),
)

problem = make_table(
    "problem",
    identifier("problem"),
    text("key", "op"),
    first_columns("problem"),
    added_columns("problem"),
    UniqueConstraint("key", name="uq_problem_key"),
    first_checks("problem"),
)

config = make_table(
    "config",
    identifier("config"),
    text("key", "op"),
    first_columns("config"),
    optional_text("extra"),
    added_columns("config"),
    UniqueConstraint("key", name="uq_config_key"),
    first_checks("config"),
)

sweep = make_table(
    "sweep",
    identifier("sweep"),
    text("uid", "status", "created"),
    optional_text("ended", "preset", "sampler", "effort", "regime", "shard", "argv", "host"),
    integers("seed", nullable=True),
    UniqueConstraint("uid", name="uq_sweep_uid"),
    one_of("sweep", "status", SWEEP_STATUSES),
)

block = make_table(
    "block", identifier("block"), text("uid", "status", "created"),
    reference("block", "sweep_id", "sweep"), reference("block", "problem_id", "problem"),
    reference("block", "device_id", "device"), reference("block", "environment_id", "environment"),
    text("regime", "kernel_hash", "compiler"), reference("block", "reference_config_id", "config", nullable=True),
    integers("rounds", "confirm_rounds", nullable=True), optional_text("order"),
    reals("anchor_us", "noise", "clock_mhz", "power_w"), integers("throttle", nullable=True), optional_text("extra"),
    Column("workload", Text, short("block", "workload", MAX_WORKLOAD_LENGTH), server_default="", nullable=False),
    UniqueConstraint("uid", name="uq_block_uid"),
    one_of("block", "status", BLOCK_STATUSES), one_of("block", "compiler", COMPILERS),
    positive("block", "anchor_us", MAX_TIME_US), between("block", "noise", 0.0, 1000.0),
    between("block", "rounds", 0, 10**9), between("block", "confirm_rounds", 0, 10**9),
)  # fmt: skip

# From a problem to its blocks, and from there to their measurements by the key of these. Created with the views.
Index("ix_block_problem_id", block.c.problem_id)

# Without a rowid, SQLite keeps the rows in the tree of their key. With a rowid it would store every key a second time,
# in an index, which would be 25 % of a snapshot. The columns that a snapshot leaves empty stand last, with their
# CHECKs, so that they can be added behind its rows (short_rows.py).
measurement = make_table(
    "measurement",
    reference("measurement", "block_id", "block"),
    reference("measurement", "config_id", "config"),
    Column("role", ROLE, nullable=False),
    Column("status", STATUS, nullable=False),
    integers("num_samples", nullable=True),
    reals("median_us", "ratio"),
    # See checksums.py; NULL in rows that were recorded before there were any.
    Column("checksum", INTEGER, between("measurement", "checksum", -(2**31), 2**31 - 1)),
    checked("ratio_low", positive("measurement", "ratio_low", MAX_TIME_US)),
    checked("ratio_high", positive("measurement", "ratio_high", MAX_TIME_US)),
    reals("max_abs_error", "clock_mhz", "power_w"),
    checked("mad_us", between("measurement", "mad_us", 0.0, MAX_TIME_US)),
    checked("q10_us", positive("measurement", "q10_us", MAX_TIME_US)),
    checked("q90_us", positive("measurement", "q90_us", MAX_TIME_US)),
    Column("samples", LargeBinary),
    optional_text("error"),
    PrimaryKeyConstraint("block_id", "config_id", "role", name="pk_measurement"),
    one_of("measurement", "role", ROLE.numbers),
    one_of("measurement", "status", STATUS.numbers),
    CheckConstraint(f"status != {STATUS.get_number('ok')} OR median_us IS NOT NULL", name="ck_measurement_ok_has_time"),
    between("measurement", "num_samples", 1, 10**9),
    *(positive("measurement", name, MAX_TIME_US) for name in ("median_us", "ratio")),
    has_rowid=False,
)

REPORT_FIELDS = ("registers", "spill_bytes", "local_bytes", "smem_bytes")
compilation = make_table(
    "compilation",
    reference("compilation", "config_id", "config"),
    text("variant", "kernel_hash", "compiler"),
    integers(*REPORT_FIELDS, nullable=True),
    reals("compile_ms"),
    PrimaryKeyConstraint("config_id", "variant", "kernel_hash", "compiler", name="pk_compilation"),
    one_of("compilation", "compiler", COMPILERS),
    *(between("compilation", name, 0, 2**31 - 1) for name in REPORT_FIELDS),
    between("compilation", "compile_ms", 0.0, MAX_TIME_US),
)

best = make_table(
    "best", reference("best", "problem_id", "problem"), text("sku", "kernel_hash", "compiler", "regime", "created"),
    reference("best", "config_id", "config"), text("tie_set"), reference("best", "block_id", "block"),
    PrimaryKeyConstraint("problem_id", "sku", "kernel_hash", "compiler", "regime", name="pk_best"),
    one_of("best", "compiler", COMPILERS), has_rowid=False,
)  # fmt: skip
