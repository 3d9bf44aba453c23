"""Where the benchmarks' data and results are stored, and what a result records about its origin."""

from pathlib import Path

from tuner.measure import stamp
from tuner.measure.stamp import format_json, read_json, write_json

__all__ = ["DATA", "OP", "OPS", "RESULTS", "ROOT", "format_json", "make_stamp", "read_json", "write_json"]

OP = "fp8_gemm"
OPS = ("fp8_gemm", "bf16_gemm")
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "h200"
DATA = ROOT / "benchmarks" / "data"


def make_stamp(device, ops: tuple[str, ...] = OPS) -> dict:
    """Return the origin of a run on kernels of some op kinds, the dense ones by default."""
    return stamp.make_stamp(device, ops)
