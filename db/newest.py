"""Which blocks of a database a snapshot keeps: those of one SKU, of the newest kernels of each op kind."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from tuner import errors
from tuner.db.naturals import Tables

#: With two kernel hashes of an op kind, `compare` finds what the newer one made slower.
KEPT_HASHES = 2


class Kernels(NamedTuple):
    """The kernels of one op kind, and how many measured rows they have."""

    op: str
    kernel_hash: str
    rows: int


def find_sku(found: Tables, name: str) -> str:
    """Return the SKU that `name` means, which may be a short name such as h200, in any case.

    Raises: UsageError where no block was measured on it.
    """
    try:
        sku = _C.Device.known(name).sku
    except DeepGemmError:
        sku = name
    measured = {found["device"][(row["device_id"],)]["sku"] for row in found["block"].values()}
    if sku not in measured:
        raise errors.UsageError(
            f"--sku {name}: nothing was measured on it, so nothing was written; use one of"
            f" {', '.join(sorted(measured)) or 'none: the database holds no measurements'}"
        )
    return sku


def find_newest(found: Tables, rows_of: Mapping[str, int], sku: str) -> tuple[list[Kernels], list[Kernels]]:
    """Return the newest kernels of each op kind on `sku`, and the ones before them, those with fewest rows first;
    `rows_of` are the measured rows of blocks by uid.
    """
    dates: dict[str, dict[str, str]] = {}
    rows: Counter = Counter()
    kernels = {key[0]: of_block for key, of_block in find_blocks(found, sku)}
    for key, (op, kernel_hash) in kernels.items():
        known = dates.setdefault(op, {})
        known[kernel_hash] = max(known.get(kernel_hash, ""), found["block"][(key,)]["created"])
        rows[op, kernel_hash] += rows_of.get(key, 0)
    ranked = [
        [
            Kernels(op, name, rows[op, name])
            for name in sorted(known, key=lambda name: (known[name], name), reverse=True)
        ]
        for op, known in dates.items()
    ]
    older = [each for of_op in ranked for each in of_op[1:KEPT_HASHES]]
    return [of_op[0] for of_op in ranked], sorted(older, key=lambda each: (each.rows, each))


def find_blocks(found: Tables, sku: str) -> list[tuple[tuple, tuple[str, str]]]:
    """Return (key, (op kind, kernel hash)) of the blocks of a SKU."""
    return [
        (key, (found["problem"][(row["problem_id"],)]["op"], row["kernel_hash"]))
        for key, row in found["block"].items()
        if found["device"][(row["device_id"],)]["sku"] == sku
    ]


def select_kernels(found: Tables, sku: str, kernels: list[Kernels]) -> Tables:
    """Return the blocks of `sku` that `kernels` measured, with everything that they refer to; no measured rows."""
    wanted = {(each.op, each.kernel_hash) for each in kernels}
    blocks = {key: found["block"][key] for key, of_block in find_blocks(found, sku) if of_block in wanted}
    hashes = {kernel_hash for _, kernel_hash in wanted}
    kept = found | {"block": blocks}
    kept["best"] = {key: row for key, row in found["best"].items() if (row["block_id"],) in blocks}
    kept["compilation"] = {key: row for key, row in found["compilation"].items() if row["kernel_hash"] in hashes}
    for name in ("sweep", "problem", "device", "environment"):
        used = {row[f"{name}_id"] for row in blocks.values()}
        kept[name] = {key: row for key, row in found[name].items() if key[0] in used}
    return kept


def choose_left_out(older: list[Kernels], excess: float, bytes_of_row: float) -> int:
    """Return how many of `older`, from their end, must go so that a file becomes smaller by `excess` bytes."""
    saved, count = 0.0, 0
    while count < len(older) and (not count or saved < excess):
        count += 1
        saved += older[-count].rows * bytes_of_row
    return count
