"""The tuning database: problems, configs, and what was measured, on which board and with which software.

with Store.open("tuning.db") as store: ...      read and write
snapshot("tuning.db", "nvidia-h200-sm132.db")   write a copy that may be published
merge("all.db", ["shard0.db", "shard1.db"])     add rows; the order and repetitions do not matter
"""

from pathlib import Path

from tuner.db.files import SNAPSHOTS, is_recorded
from tuner.db.flat import export_flat
from tuner.db.publish import snapshot
from tuner.db.store import Store
from tuner.db.transfer import export_json, import_json, merge

__all__ = ["Store", "export_flat", "export_json", "import_json", "is_recorded", "merge", "snapshot", "snapshot_path"]


def snapshot_path(sku: str) -> Path:
    """Return the path of a SKU's recorded snapshot, which may not exist; open it with mode `immutable`."""
    return SNAPSHOTS / f"{sku}.db"
