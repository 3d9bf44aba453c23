"""Where the benchmarks' data and results are stored, and what a result records about its origin.

`python -m benchmarks.stamp` prints the folder of this machine's results.
"""

from pathlib import Path

from deep_gemm import _C
from deep_gemm.selector_files import list_skus
from tuner.measure import stamp
from tuner.measure.stamp import (
    SELECTOR,
    SELECTOR_PARTS,
    describe_selector,
    format_json,
    hash_parts,
    hash_selector,
    read_json,
    write_json,
)

from . import ROOT

__all__ = [
    "DATA",
    "OP",
    "OPS",
    "RECORDS",
    "RESULTS",
    "ROOT",
    "SELECTOR",
    "SELECTOR_PARTS",
    "find_packaged",
    "find_results",
    "find_sku",
    "format_json",
    "hash_parts",
    "hash_selector",
    "make_stamp",
    "read_json",
    "results_of",
    "write_json",
    "write_result",
]

OP = "fp8_gemm"
OPS = ("fp8_gemm", "bf16_gemm")
#: A folder of results for each GPU model that was measured.
RECORDS = ROOT / "benchmarks" / "results"
#: Those of the GPU that README.md and docs/performance.md speak of, and that the recorded peers were measured on.
RESULTS = RECORDS / "h200"
DATA = ROOT / "benchmarks" / "data"


def results_of(sku: str) -> Path:
    """Return the folder of a GPU model's results."""
    return RECORDS / stamp.name_model(sku)


def find_sku(model: str) -> str:
    """Return the SKU that a folder of results is named after."""
    return _C.Device.known(model).sku if model in _C.KNOWN_DEVICES else model


def find_results() -> Path:
    """Return the folder of the results of the GPU at hand; without one, RESULTS."""
    return RECORDS / stamp.name_model_here()


def find_packaged(sku: str) -> Path:
    """Return where the tree has the selector that chooses for a board: that of its SKU, else of its model."""
    paths = [ROOT / "models" / f"{one}.dgsel" for one in list_skus(sku)]
    return next(filter(Path.exists, paths), paths[-1])


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
    return stamp.make_stamp(device, ops) | describe_selector(device.sku, ops)


if __name__ == "__main__":
    print(find_results())
