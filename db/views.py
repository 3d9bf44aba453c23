"""What is derived from the tables: four views for questions in SQL, and an index.

    v_measurement  a row per measured config: its problem, config, GPU model, kernel, session, and times
    v_latest       those of the newest kernel hash of each GPU model and op kind, without sentinels
    v_best         a row per winner: its problem, config and time, and the time of the reference config
    v_noise        a row per sweep, GPU model and op kind: how far equal blocks differed

A writer creates those that are missing when it opens a database. Readers of the package need none of them: a file
without views is as good. A statement changes only together with tables.SCHEMA_VERSION, because a file is refused where
one of these names stands for something else.
"""

from collections.abc import Iterable
from functools import cache

from sqlalchemy import Connection, inspect, text
from sqlalchemy.schema import CreateIndex

from tuner.db import tables
from tuner.problems.regimes import NOT_OWN, SENTINEL


def list_fields(table: str, alias: str) -> str:
    """Return the columns of a problem's or config's fields, with the alias of their table before each."""
    return ", ".join(f"{alias}.{name}" for names in tables.FIELD_COLUMNS[table] for name in names)


def spell_without(column: str, suffixes: Iterable[str]) -> str:
    """Return the condition in SQL that a column's text ends with none of `suffixes`."""
    return " AND ".join(f"{column} NOT LIKE '%{suffix}'" for suffix in suffixes)


PROBLEM = f"p.key AS problem_key, p.op, {list_fields('problem', 'p')}"
CONFIG = f"c.key AS config_key, {list_fields('config', 'c')}"
WORDS = f"{tables.ROLE.to_sql('m.role')} AS role, {tables.STATUS.to_sql('m.status')} AS status"
CONFIRMED = tables.ROLE.get_number("confirm")

V_MEASUREMENT = f"""
SELECT {PROBLEM}, {CONFIG}, {WORDS}, m.median_us, m.mad_us, m.ratio, m.ratio_low, m.ratio_high, m.num_samples,
  m.power_w, CASE WHEN m.config_id = b.reference_config_id THEN 1 ELSE 0 END AS is_reference,
  d.sku, d.uuid_hash AS board, b.kernel_hash, b.compiler, b.regime, b.workload, b.status AS block_status, b.created,
  b.noise, b.anchor_us, s.uid AS session, b.id AS block_id, p.id AS problem_id, c.id AS config_id
FROM measurement AS m
  JOIN block AS b ON b.id = m.block_id
  JOIN problem AS p ON p.id = b.problem_id
  JOIN config AS c ON c.id = m.config_id
  JOIN device AS d ON d.id = b.device_id
  JOIN sweep AS s ON s.id = b.sweep_id
"""

#: Which kernels are the newest is told by finished blocks of a sweep's own regime, as in origins.list_kernel_hashes.
V_LATEST = f"""
SELECT v.* FROM v_measurement AS v JOIN (
  SELECT d.sku, p.op, b.kernel_hash, ROW_NUMBER() OVER (
    PARTITION BY d.sku, p.op ORDER BY b.created DESC, b.id DESC
  ) AS place
  FROM block AS b JOIN problem AS p ON p.id = b.problem_id JOIN device AS d ON d.id = b.device_id
  WHERE b.status = 'finished' AND {spell_without("b.regime", NOT_OWN)}
) AS newest
  ON newest.sku = v.sku AND newest.op = v.op AND newest.kernel_hash = v.kernel_hash AND newest.place = 1
WHERE {spell_without("v.regime", [SENTINEL])}
"""

V_BEST = f"""
SELECT {PROBLEM}, {CONFIG}, w.sku, w.kernel_hash, w.compiler, w.regime, w.created, f.median_us,
  r.median_us AS reference_us, f.ratio, b.workload, w.tie_set, w.block_id, w.problem_id, w.config_id
FROM best AS w
  JOIN problem AS p ON p.id = w.problem_id
  JOIN config AS c ON c.id = w.config_id
  JOIN block AS b ON b.id = w.block_id
  LEFT JOIN measurement AS f ON f.block_id = w.block_id AND f.config_id = w.config_id AND f.role = {CONFIRMED}
  LEFT JOIN measurement AS r
    ON r.block_id = w.block_id AND r.config_id = b.reference_config_id AND r.role = {CONFIRMED}
"""

V_NOISE = """
SELECT s.uid AS session, s.created AS started, s.preset, d.sku, p.op, b.kernel_hash, b.regime, COUNT(*) AS blocks,
  AVG(b.noise) AS mean_noise, MAX(b.noise) AS max_noise, AVG(b.anchor_us) AS mean_anchor_us
FROM block AS b
  JOIN sweep AS s ON s.id = b.sweep_id
  JOIN problem AS p ON p.id = b.problem_id
  JOIN device AS d ON d.id = b.device_id
GROUP BY s.uid, s.created, s.preset, d.sku, p.op, b.kernel_hash, b.regime
"""

#: In the order in which they can be created.
VIEWS = {"v_measurement": V_MEASUREMENT, "v_latest": V_LATEST, "v_best": V_BEST, "v_noise": V_NOISE}


@cache
def get_statements() -> dict[str, str]:
    """Return the statement that creates each derived object, by name."""
    indices = {str(index.name): str(CreateIndex(index)) for index in tables.block.indexes}
    return indices | {name: f"CREATE VIEW {name} AS {' '.join(query.split())}" for name, query in VIEWS.items()}


def find_missing(connection: Connection) -> list[str]:
    """Return the statements that create what is missing, in the order in which they can run."""
    found = inspect(connection)
    present = {*found.get_view_names(), *(index["name"] for index in found.get_indexes("block"))}
    return [statement for name, statement in get_statements().items() if name not in present]


def create(connection: Connection) -> None:
    """Create what is missing, in the caller's transaction."""
    for statement in find_missing(connection):
        connection.execute(text(statement))  # a driver would take the % of a LIKE for a parameter


def drop(connection: Connection) -> None:
    """Drop every view, because a migration cannot change a table that one of them reads."""
    for name in reversed(VIEWS):
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
