"""First tables.

Frozen: this file is never edited again. It spells out what tuner.db.tables had when schema 1 was released; later
    changes get a migration of their own, so that every file in the field can be brought up to date.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL = sa.Double().with_variant(sa.REAL(), "sqlite")


def make_column(name: str, kind: type, required: bool = False) -> sa.Column:
    """Return a column, NOT NULL where it is required."""
    return sa.Column(name, kind, nullable=not required)


def make_reference(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    """Return the foreign key of `column` to target.id."""
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=f"fk_{table}_{column}")


def upgrade() -> None:
    """Create every table."""
    for create in (
        create_device,
        create_environment,
        create_problem,
        create_config,
        create_sweep,
        create_block,
        create_measurement,
        create_compilation,
        create_best,
    ):
        create()


def create_device() -> None:
    """Create `device`."""
    op.create_table(
        "device",
        make_column("id", INTEGER, required=True),
        make_column("key", sa.Text, required=True),
        make_column("sku", sa.Text, required=True),
        make_column("name", sa.Text, required=True),
        make_column("uuid_hash", sa.Text),
        make_column("mig", sa.Text),
        make_column("sm_count", INTEGER, required=True),
        make_column("smem_bytes", INTEGER),
        make_column("l2_bytes", INTEGER),
        make_column("memory_bytes", INTEGER),
        make_column("compute_capability", sa.Text),
        make_column("clock_mhz", REAL),
        make_column("memory_gbps", REAL),
        make_column("power_limit_w", REAL),
        sa.PrimaryKeyConstraint("id", name="pk_device"),
        sa.UniqueConstraint("key", name="uq_device_key"),
        sa.CheckConstraint("sm_count >= 1 AND sm_count <= 65535", name="ck_device_sm_count"),
        sa.CheckConstraint("length(uuid_hash) = 64", name="ck_device_uuid_hash"),
        sqlite_strict=True,
    )


def create_environment() -> None:
    """Create `environment`."""
    op.create_table(
        "environment",
        make_column("id", INTEGER, required=True),
        make_column("key", sa.Text, required=True),
        make_column("driver", sa.Text),
        make_column("cuda", sa.Text),
        make_column("compiler", sa.Text),
        make_column("compiler_version", sa.Text),
        make_column("torch", sa.Text),
        make_column("python", sa.Text),
        make_column("package_version", sa.Text),
        make_column("git_sha", sa.Text),
        make_column("tree_hash", sa.Text),
        make_column("flags", sa.Text),
        make_column("git_dirty", INTEGER),
        make_column("cpu_count", INTEGER),
        sa.PrimaryKeyConstraint("id", name="pk_environment"),
        sa.UniqueConstraint("key", name="uq_environment_key"),
        sa.CheckConstraint("git_dirty >= 0 AND git_dirty <= 1", name="ck_environment_git_dirty"),
        sqlite_strict=True,
    )


def create_problem() -> None:
    """Create `problem`."""
    op.create_table(
        "problem",
        make_column("id", INTEGER, required=True),
        make_column("key", sa.Text, required=True),
        make_column("op", sa.Text, required=True),
        make_column("m", INTEGER, required=True),
        make_column("n", INTEGER, required=True),
        make_column("k", INTEGER, required=True),
        make_column("num_sms", INTEGER, required=True),
        make_column("compiled_dims", sa.Text, required=True),
        sa.PrimaryKeyConstraint("id", name="pk_problem"),
        sa.UniqueConstraint("key", name="uq_problem_key"),
        sa.CheckConstraint("m >= 1 AND m <= 2147483647", name="ck_problem_m"),
        sa.CheckConstraint("n >= 1 AND n <= 2147483647", name="ck_problem_n"),
        sa.CheckConstraint("k >= 1 AND k <= 2147483647", name="ck_problem_k"),
        sa.CheckConstraint("num_sms >= 0 AND num_sms <= 65535", name="ck_problem_num_sms"),
        sqlite_strict=True,
    )


def create_config() -> None:
    """Create `config`."""
    op.create_table(
        "config",
        make_column("id", INTEGER, required=True),
        make_column("key", sa.Text, required=True),
        make_column("op", sa.Text, required=True),
        make_column("block_m", INTEGER, required=True),
        make_column("block_n", INTEGER, required=True),
        make_column("block_k", INTEGER, required=True),
        make_column("num_stages", INTEGER, required=True),
        make_column("cluster_m", INTEGER, required=True),
        make_column("cluster_n", INTEGER, required=True),
        make_column("extra", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_config"),
        sa.UniqueConstraint("key", name="uq_config_key"),
        sa.CheckConstraint("block_m >= 1 AND block_m <= 65535", name="ck_config_block_m"),
        sa.CheckConstraint("block_n >= 1 AND block_n <= 65535", name="ck_config_block_n"),
        sa.CheckConstraint("block_k >= 1 AND block_k <= 65535", name="ck_config_block_k"),
        sa.CheckConstraint("num_stages >= 1 AND num_stages <= 65535", name="ck_config_num_stages"),
        sa.CheckConstraint("cluster_m >= 1 AND cluster_m <= 65535", name="ck_config_cluster_m"),
        sa.CheckConstraint("cluster_n >= 1 AND cluster_n <= 65535", name="ck_config_cluster_n"),
        sqlite_strict=True,
    )


def create_sweep() -> None:
    """Create `sweep`."""
    op.create_table(
        "sweep",
        make_column("id", INTEGER, required=True),
        make_column("uid", sa.Text, required=True),
        make_column("status", sa.Text, required=True),
        make_column("created", sa.Text, required=True),
        make_column("ended", sa.Text),
        make_column("preset", sa.Text),
        make_column("sampler", sa.Text),
        make_column("effort", sa.Text),
        make_column("regime", sa.Text),
        make_column("shard", sa.Text),
        make_column("argv", sa.Text),
        make_column("host", sa.Text),
        make_column("seed", INTEGER),
        sa.PrimaryKeyConstraint("id", name="pk_sweep"),
        sa.UniqueConstraint("uid", name="uq_sweep_uid"),
        sa.CheckConstraint("status IN ('running', 'finished', 'interrupted', 'failed')", name="ck_sweep_status"),
        sqlite_strict=True,
    )


def create_block() -> None:
    """Create `block`."""
    op.create_table(
        "block",
        make_column("id", INTEGER, required=True),
        make_column("uid", sa.Text, required=True),
        make_column("status", sa.Text, required=True),
        make_column("created", sa.Text, required=True),
        make_column("sweep_id", INTEGER, required=True),
        make_column("problem_id", INTEGER, required=True),
        make_column("device_id", INTEGER, required=True),
        make_column("environment_id", INTEGER, required=True),
        make_column("regime", sa.Text, required=True),
        make_column("kernel_hash", sa.Text, required=True),
        make_column("compiler", sa.Text, required=True),
        make_column("reference_config_id", INTEGER),
        make_column("rounds", INTEGER),
        make_column("confirm_rounds", INTEGER),
        make_column("order", sa.Text),
        make_column("anchor_us", REAL),
        make_column("noise", REAL),
        make_column("clock_mhz", REAL),
        make_column("power_w", REAL),
        make_column("throttle", INTEGER),
        make_column("extra", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_block"),
        make_reference("block", "sweep_id", "sweep"),
        make_reference("block", "problem_id", "problem"),
        make_reference("block", "device_id", "device"),
        make_reference("block", "environment_id", "environment"),
        make_reference("block", "reference_config_id", "config"),
        sa.UniqueConstraint("uid", name="uq_block_uid"),
        sa.CheckConstraint("status IN ('open', 'finished', 'failed')", name="ck_block_status"),
        sa.CheckConstraint("compiler IN ('nvrtc', 'nvcc')", name="ck_block_compiler"),
        sa.CheckConstraint("anchor_us > 0 AND anchor_us < 1000000000000.0", name="ck_block_anchor_us"),
        sa.CheckConstraint("noise >= 0.0 AND noise <= 1000.0", name="ck_block_noise"),
        sa.CheckConstraint("rounds >= 0 AND rounds <= 1000000000", name="ck_block_rounds"),
        sa.CheckConstraint("confirm_rounds >= 0 AND confirm_rounds <= 1000000000", name="ck_block_confirm_rounds"),
        sqlite_strict=True,
    )


def create_measurement() -> None:
    """Create `measurement`."""
    op.create_table(
        "measurement",
        make_column("block_id", INTEGER, required=True),
        make_column("config_id", INTEGER, required=True),
        make_column("role", sa.Text, required=True),
        make_column("status", sa.Text, required=True),
        make_column("num_samples", INTEGER),
        make_column("median_us", REAL),
        make_column("mad_us", REAL),
        make_column("q10_us", REAL),
        make_column("q90_us", REAL),
        make_column("ratio", REAL),
        make_column("ratio_low", REAL),
        make_column("ratio_high", REAL),
        make_column("max_abs_error", REAL),
        make_column("clock_mhz", REAL),
        make_column("power_w", REAL),
        make_column("samples", sa.LargeBinary),
        make_column("error", sa.Text),
        sa.PrimaryKeyConstraint("block_id", "config_id", "role", name="pk_measurement"),
        make_reference("measurement", "block_id", "block"),
        make_reference("measurement", "config_id", "config"),
        sa.CheckConstraint("role IN ('search', 'confirm')", name="ck_measurement_role"),
        sa.CheckConstraint(
            "status IN ('ok', 'censored', 'incorrect', 'compile_error', 'crash', 'timeout', 'spill', 'skipped')",
            name="ck_measurement_status",
        ),
        sa.CheckConstraint("status != 'ok' OR median_us IS NOT NULL", name="ck_measurement_ok_has_time"),
        sa.CheckConstraint("num_samples >= 1 AND num_samples <= 1000000000", name="ck_measurement_num_samples"),
        sa.CheckConstraint("median_us > 0 AND median_us < 1000000000000.0", name="ck_measurement_median_us"),
        sa.CheckConstraint("q10_us > 0 AND q10_us < 1000000000000.0", name="ck_measurement_q10_us"),
        sa.CheckConstraint("q90_us > 0 AND q90_us < 1000000000000.0", name="ck_measurement_q90_us"),
        sa.CheckConstraint("ratio > 0 AND ratio < 1000000000000.0", name="ck_measurement_ratio"),
        sa.CheckConstraint("ratio_low > 0 AND ratio_low < 1000000000000.0", name="ck_measurement_ratio_low"),
        sa.CheckConstraint("ratio_high > 0 AND ratio_high < 1000000000000.0", name="ck_measurement_ratio_high"),
        sa.CheckConstraint("mad_us >= 0.0 AND mad_us <= 1000000000000.0", name="ck_measurement_mad_us"),
        sqlite_strict=True,
    )


def create_compilation() -> None:
    """Create `compilation`."""
    op.create_table(
        "compilation",
        make_column("config_id", INTEGER, required=True),
        make_column("kernel_hash", sa.Text, required=True),
        make_column("compiler", sa.Text, required=True),
        make_column("registers", INTEGER),
        make_column("spill_bytes", INTEGER),
        make_column("local_bytes", INTEGER),
        make_column("smem_bytes", INTEGER),
        make_column("compile_ms", REAL),
        sa.PrimaryKeyConstraint("config_id", "kernel_hash", "compiler", name="pk_compilation"),
        make_reference("compilation", "config_id", "config"),
        sa.CheckConstraint("compiler IN ('nvrtc', 'nvcc')", name="ck_compilation_compiler"),
        sa.CheckConstraint("registers >= 0 AND registers <= 2147483647", name="ck_compilation_registers"),
        sa.CheckConstraint("spill_bytes >= 0 AND spill_bytes <= 2147483647", name="ck_compilation_spill_bytes"),
        sa.CheckConstraint("local_bytes >= 0 AND local_bytes <= 2147483647", name="ck_compilation_local_bytes"),
        sa.CheckConstraint("smem_bytes >= 0 AND smem_bytes <= 2147483647", name="ck_compilation_smem_bytes"),
        sa.CheckConstraint("compile_ms >= 0.0 AND compile_ms <= 1000000000000.0", name="ck_compilation_compile_ms"),
        sqlite_strict=True,
    )


def create_best() -> None:
    """Create `best`."""
    op.create_table(
        "best",
        make_column("problem_id", INTEGER, required=True),
        make_column("sku", sa.Text, required=True),
        make_column("kernel_hash", sa.Text, required=True),
        make_column("compiler", sa.Text, required=True),
        make_column("regime", sa.Text, required=True),
        make_column("created", sa.Text, required=True),
        make_column("config_id", INTEGER, required=True),
        make_column("tie_set", sa.Text, required=True),
        make_column("block_id", INTEGER, required=True),
        sa.PrimaryKeyConstraint("problem_id", "sku", "kernel_hash", "compiler", "regime", name="pk_best"),
        make_reference("best", "problem_id", "problem"),
        make_reference("best", "config_id", "config"),
        make_reference("best", "block_id", "block"),
        sa.CheckConstraint("compiler IN ('nvrtc', 'nvcc')", name="ck_best_compiler"),
        sqlite_strict=True,
    )
