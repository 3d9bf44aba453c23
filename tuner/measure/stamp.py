"""What a record or result says about its origin, and how it is read and written."""

import datetime
import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tuner.files import write_whole

#: Key of a record whose figures hang on choices: the SHA-256 of the selector that chose, None where the heuristic did.
SELECTOR = "selector_sha256"
#: Key of the same by op kind (hash_parts): one that differs only in other op kinds chooses the same.
SELECTOR_PARTS = "selector_parts"


def name_model(sku: str) -> str:
    """Return what a GPU model's results are called by: its short name, or the whole SKU where it has none."""
    from deep_gemm import _C

    return next((name for name in _C.KNOWN_DEVICES if _C.Device.known(name).sku == sku), sku)


def name_model_here() -> str:
    """Return what the results of the GPU at hand are called by; without a GPU, those of an H200."""
    from deep_gemm import _C
    from deep_gemm.errors import DeviceError

    try:
        return name_model(_C.get_device().sku)
    except DeviceError:
        return _C.KNOWN_DEVICES[0]


def hash_selector(sku: str) -> str | None:
    """Return the SHA-256 of the artefact that chooses for a GPU model in this process, None without one."""
    return describe_selector(sku, ())[SELECTOR]


def describe_selector(sku: str, ops: Iterable[str]) -> dict:
    """Return {SELECTOR: as hash_selector, SELECTOR_PARTS: as hash_parts}; both None without an artefact."""
    from deep_gemm.selection import load_selector

    loaded = load_selector(sku)
    if not loaded.selector:
        return {SELECTOR: None, SELECTOR_PARTS: None}
    content = Path(loaded.file).read_bytes()
    return {SELECTOR: hashlib.sha256(content).hexdigest(), SELECTOR_PARTS: hash_parts(content, ops)}


def hash_parts(content: bytes, ops: Iterable[str]) -> dict[str, str | None]:
    """Return {op kind: SHA-256 of all that its choices hang on in an artefact}, None of what is a plain kernel.

    content: of the artefact. Choices hang on the metadata and arrays of the op kind, or of those whose records choose
        for it; on the GPU and the versions that the artefact is of; and on whether it chooses for the tree's
        kernels.
    Raises: ModelError where the artefact cannot be read.
    """
    from deep_gemm.artifact import canonical_json, read_artifact
    from deep_gemm.fields import OP_KINDS
    from deep_gemm.jit.hashing import kernel_hash
    from deep_gemm.selection import list_recorded_ops
    from deep_gemm.selector import Selector

    selector, (metadata, arrays) = Selector(content), read_artifact(content)
    common = [metadata[name] for name in ("sku", "sm_count", "features_version", "heuristic_version")]

    def hash_part(op: str) -> str:
        fault = selector.find_fault(op, kernel_hash(op))
        part = hashlib.sha256(canonical_json([common, fault, metadata["ops"].get(op)]).encode())
        for name in sorted(name for name in arrays if name.startswith(f"{op}/")):
            array = arrays[name]
            part.update(canonical_json([name, str(array.dtype), array.shape]).encode() + array.tobytes())
        return part.hexdigest()

    def join_parts(op: str) -> str:
        parts = [hash_part(name) for name in list_recorded_ops(op, selector)]
        return parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()

    return {op: join_parts(op) if op in OP_KINDS else None for op in ops}


def get_driver_version() -> str | None:
    """Return the driver's version as nvidia-smi gives it, None where it cannot be asked."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return lines[0] if lines else None


def make_stamp(device, ops: tuple[str, ...]) -> dict:
    """Return the origin of a run: device (a `_C.Device`), driver, versions, hashes and date.

    `kernel_hash` identifies the kernels of each op kind of `ops`, `tree_hash` the sources that were tested.
    """
    import torch

    from deep_gemm.jit.hashing import kernel_hash, tree_hash

    return {
        "device": device.name,
        "sku": device.sku,
        "sm_count": device.sm_count,
        "driver": get_driver_version(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernel_hash": {op: kernel_hash(op) for op in ops},
        "tree_hash": tree_hash(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def read_json(path: Path) -> dict:
    """Read one JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def format_json(value: dict) -> str:
    """Return readable JSON: a list named `rows` has one row a line, because diffs of results are read."""
    rows = value.get("rows")
    if rows is None:
        return json.dumps(value, indent=1, sort_keys=True) + "\n"
    head = json.dumps({key: item for key, item in value.items() if key != "rows"}, indent=1, sort_keys=True)
    body = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    start = "{" if head == "{}" else f"{head[:-2]},"
    return f'{start}\n "rows": [\n{body}\n]}}\n'


def write_json(path: Path, value: dict) -> None:
    """Replace a JSON file as a whole and durably, with a mode by the umask, as any result that a user writes.

    Raises: StoreError.
    """
    write_whole(path, format_json(value).encode("utf-8"))
