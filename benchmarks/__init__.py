"""Benchmarks: each script writes one JSON file below `results/`; `python -m benchmarks.summary` derives the targets
from them.
"""

from pathlib import Path

#: Of the repository; resolved, because folders that a user names are, too, and compared with it. Here, because stamp.py
#: needs the native module, which a GPU session builds first.
ROOT = Path(__file__).resolve().parents[1]
