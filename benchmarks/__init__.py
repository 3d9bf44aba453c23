"""Benchmarks: each script writes one JSON file below `results/`; `python -m benchmarks.summary` derives the targets
from them.
"""
