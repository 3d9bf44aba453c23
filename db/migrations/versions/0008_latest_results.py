"""Latest results: the view `v_latest` leaves sentinels out, and kernels that nothing but extras was measured of.

Frozen, as every migration is. No table changes: schema.migrate writes all views anew. The number of the schema tells
packages of before that the view is another one.
"""

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Change no table."""
