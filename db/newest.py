"""Which blocks of a database a snapshot keeps: of one SKU, the newest kernels of each op kind, and older energies."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from itertools import chain

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from tuner import errors
from tuner.db.naturals import Tables
from tuner.problems.regimes import is_energy, is_sentinel, name_own
from tuner.problems.workload import count_stored_draws

#: With two kernel hashes of an op kind, `compare` finds what the newer one made slower.
KEPT_HASHES = 2
#: What blocks have in common, beside SKU and regime, of which the tuner reads those of most draws alone.
SAME = ("problem_id", "kernel_hash", "compiler")


@dataclass(frozen=True)
class Kernels:
    """Blocks of the kernels of one op kind, each with how many measured rows it has.

    `energies`: these are the blocks that alone hold energies of a problem, see find_energies.
    """

    op: str
    kernel_hash: str
    rows_of: dict[tuple, int]
    energies: bool = False

    @property
    def rows(self) -> int:
        """Return how many measured rows these kernels have."""
        return sum(self.rows_of.values())

    def describe(self) -> dict:
        """Return what a snapshot says of kernels that it leaves out."""
        return {"op": self.op, "kernel_hash": self.kernel_hash, "energies": self.energies, "rows": self.rows}

    def select(self, blocks: Set[tuple], energies: bool) -> "Kernels":
        """Return these kernels with those of their blocks alone that are among `blocks`."""
        rows_of = {key: rows for key, rows in self.rows_of.items() if key in blocks}
        return replace(self, rows_of=rows_of, energies=energies)


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


def find_newest(
    found: Tables, rows_of: Mapping[str, int], powered: Set[tuple], sku: str
) -> tuple[list[Kernels], list[Kernels], list[Kernels]]:
    """Return the newest kernels of each op kind on `sku`, the energies that older ones alone have, and what else the
    ones before the newest have; of the last two those with fewest rows first.

    `rows_of` are the measured rows of blocks by uid, `powered` the blocks that hold energies.
    """
    ranked = rank_kernels(found, rows_of, sku)
    alone = find_energies(found, ranked, powered)
    energies = [each.select(alone, energies=True) for of_op in ranked for each in of_op[1:]]
    older = [
        each.select(each.rows_of.keys() - alone, energies=False) for of_op in ranked for each in of_op[1:KEPT_HASHES]
    ]
    return [of_op[0] for of_op in ranked], sort_kernels(energies), sort_kernels(older)


def rank_kernels(found: Tables, rows_of: Mapping[str, int], sku: str) -> list[list[Kernels]]:
    """Return the kernels of each op kind on `sku`, the newest first."""
    kernels: dict[str, dict[str, Kernels]] = {}
    dates: dict[tuple[str, str], str] = {}
    for key, row in found["block"].items():
        if found["device"][(row["device_id"],)]["sku"] == sku:
            op, kernel_hash = found["problem"][(row["problem_id"],)]["op"], row["kernel_hash"]
            each = kernels.setdefault(op, {}).setdefault(kernel_hash, Kernels(op, kernel_hash, {}))
            each.rows_of[key] = rows_of.get(key[0], 0)
            dates[op, kernel_hash] = max(dates.get((op, kernel_hash), ""), row["created"])
    return [
        [of_op[name] for name in sorted(of_op, key=lambda name: (dates[op, name], name), reverse=True)]
        for op, of_op in kernels.items()
    ]


def leave_superseded(found: Tables, configs_of: Mapping[str, int]) -> Tables:
    """Return the tables without blocks of fewer draws of the group sizes than another one, with at least as many
    configs, of the same problem, SKU, kernels, compiler and regime: of each config the tuner reads the latter alone.

    `configs_of` are the configs of blocks by uid. Times after rests go where the times without went; energies stay.
    """
    drawn: dict[tuple, list[tuple[int, int]]] = {}
    places: dict[tuple, tuple] = {}
    for key, row in found["block"].items():
        if not is_energy(row["regime"]):
            sku, regime = found["device"][(row["device_id"],)]["sku"], name_own(row["regime"])
            size = count_stored_draws(row["workload"]), configs_of.get(key[0], 0)
            places[key] = ((sku, regime, *(row[name] for name in SAME)), size)
            if row["status"] == "finished" or is_sentinel(row["regime"]):
                drawn.setdefault(places[key][0], []).append(size)

    def is_superseded(key: tuple) -> bool:
        place, (draws, configs) = places.get(key, (None, (0, 0)))
        return any(draws < more and configs <= others for more, others in drawn.get(place, ()))

    return found | {"block": {key: row for key, row in found["block"].items() if not is_superseded(key)}}


def find_energies(found: Tables, ranked: list[list[Kernels]], powered: Set[tuple]) -> set[tuple]:
    """Return the blocks that alone hold energies of a problem: those of the newest of its kernels that have any."""
    holders: dict[str, str] = {}
    alone = set()
    for each in chain.from_iterable(ranked):
        for key in each.rows_of.keys() & powered:
            if holders.setdefault(found["block"][key]["problem_id"], each.kernel_hash) == each.kernel_hash:
                alone.add(key)
    return alone


def sort_kernels(kernels: list[Kernels]) -> list[Kernels]:
    """Return the kernels that have blocks, those with fewest rows first."""
    return sorted((each for each in kernels if each.rows_of), key=lambda each: (each.rows, each.op, each.kernel_hash))


def select_kernels(found: Tables, kernels: list[Kernels]) -> Tables:
    """Return the blocks of `kernels`, with everything that they refer to; no measured rows."""
    wanted = {key for each in kernels for key in each.rows_of}
    blocks = {key: row for key, row in found["block"].items() if key in wanted}
    hashes = {each.kernel_hash for each in kernels}
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
