"""Where the benchmarks' data and results are stored, and what a result records about its origin."""

from pathlib import Path

from tuner.measure import stamp
from tuner.measure.stamp import format_json, read_json, write_json

__all__ = [
    "DATA",
    "OP",
    "OPS",
    "RESULTS",
    "ROOT",
    "format_json",
    "make_stamp",
    "read_json",
    "write_json",
    "write_result",
]

OP = "fp8_gemm"
OPS = ("fp8_gemm", "bf16_gemm")
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "h200"
DATA = ROOT / "benchmarks" / "data"


def write_result(result: dict, out: Path | None, record: Path, is_gpu: bool) -> None:
    """Write a result to `out`; where none is named, to the record, which a run on the CPU must not replace."""
    if not is_gpu:
        print(
            "CPU reference: the times say nothing of the kernels" + ("" if out else f"; {record.name} stays as it is")
        )
    if out or is_gpu:
        write_json(out or record, result)


def make_stamp(device, ops: tuple[str, ...] = OPS) -> dict:
    """Return the origin of a run on kernels of some op kinds, the dense ones by default."""
    return stamp.make_stamp(device, ops)
