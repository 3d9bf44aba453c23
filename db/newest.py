"""Which blocks of a database a snapshot keeps: of one SKU, the newest kernels of each op kind, those of older ones that
training joins to them, and older energies.

Their sentinels stay, because `compare` tells from them how noisy a sweep was. They say nothing of which kernels have
results.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import chain

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.older_kernels import list_serving
from tuner import errors
from tuner.db.documents import MEASURED
from tuner.db.naturals import Tables
from tuner.problems.regimes import is_energy, is_own, is_rested, is_sentinel, name_own
from tuner.problems.workload import count_stored_draws

#: With two kernel hashes of an op kind, `compare` finds what the newer one made slower.
KEPT_HASHES = 2
#: What blocks have in common, beside SKU and regime, whose configs the tuner reads from those of most draws alone.
SAME = ("problem_id", "kernel_hash", "compiler")
#: What visits to a sentinel have in common that are repeats of each other.
ALIKE = ("sweep_id", "device_id", "problem_id", "kernel_hash", "compiler", "regime", "workload")


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

    Raises: UsageError where no block of a sweep's own regime was measured to the end on it.
    """
    try:
        sku = _C.Device.known(name).sku
    except DeepGemmError:
        sku = name
    measured = {found["device"][(row["device_id"],)]["sku"] for row in found["block"].values() if is_result(row)}
    if sku not in measured:
        known = f"use one of {', '.join(sorted(measured))}" if measured else "nor was anything elsewhere: sweep first"
        raise errors.UsageError(f"--sku {name}: nothing was measured on it to the end, so nothing was written; {known}")
    return sku


def is_result(row: Mapping) -> bool:
    """Return whether a block tells something of its kernels, in the way of origins.list_kernel_hashes: it is finished
    and of a sweep's own regime.
    """
    return row["status"] == "finished" and is_own(row["regime"])


def find_newest(
    found: Tables, rows_of: Mapping[str, int], powered: Set[tuple], sku: str
) -> tuple[list[Kernels], list[Kernels], list[Kernels]]:
    """Return the newest kernels of each op kind on `sku` with what training joins to them, the energies that older ones
    alone have, and what else the ones before the newest have; of the last two those with fewest rows first.

    `rows_of` are the measured rows of blocks by uid, `powered` the blocks that hold energies.
    """
    ranked = rank_kernels(found, rows_of, powered, sku)
    joined = [each for of_op in ranked for each in find_joined(found, of_op)]
    needed = {key for each in joined for key in each.rows_of}
    alone = find_energies(found, ranked, powered) - needed
    energies = [each.select(alone, energies=True) for of_op in ranked for each in of_op[1:]]
    older = [
        each.select(each.rows_of.keys() - alone - needed, energies=False)
        for of_op in ranked
        for each in of_op[1:KEPT_HASHES]
    ]
    return [*(of_op[0] for of_op in ranked), *joined], sort_kernels(energies), sort_kernels(older)


def find_joined(found: Tables, ranked: list[Kernels]) -> list[Kernels]:
    """Return, of the kernels of one op kind, older ones whose measurements choose for the newest ones, too
    (deep_gemm.older_kernels), each with the blocks of problems that no newer one of them was swept on.
    """
    op, newest = ranked[0].op, ranked[0].kernel_hash
    of_hash = {each.kernel_hash: each for each in ranked}
    known, joined = set[str](), list[Kernels]()
    for each in (of_hash[one] for one in list_serving(op, newest) if one in of_hash):
        problem_of = {key: found["block"][key]["problem_id"] for key in each.rows_of}
        own = {problem for key, problem in problem_of.items() if is_own(found["block"][key]["regime"])} - known
        joined.append(each.select({key for key, problem in problem_of.items() if problem in own}, energies=False))
        known |= own
    return [each for each in joined[1:] if each.rows_of]


def rank_kernels(found: Tables, rows_of: Mapping[str, int], powered: Set[tuple], sku: str) -> list[list[Kernels]]:
    """Return the kernels of each op kind on `sku`, the newest first, and last those that have nothing but energies.

    Kernels that no problem was measured with to the end are left out: sentinels of a sweep that was stopped before its
    first problem ended would take the place of results.
    """
    kernels: dict[str, dict[str, Kernels]] = {}
    dates: dict[tuple[str, str], tuple[bool, str]] = {}
    for key, row in found["block"].items():
        if found["device"][(row["device_id"],)]["sku"] == sku:
            op, kernel_hash = found["problem"][(row["problem_id"],)]["op"], row["kernel_hash"]
            each = kernels.setdefault(op, {}).setdefault(kernel_hash, Kernels(op, kernel_hash, {}))
            each.rows_of[key] = rows_of.get(key[0], 0)
            if is_result(row) or key in powered:
                date = is_result(row), row["created"]
                dates[op, kernel_hash] = max(dates.get((op, kernel_hash), date), date)
    order = sorted(dates, key=lambda place: (dates[place], place[1]), reverse=True)
    ranked = [[of_op[name] for one, name in order if one == op] for op, of_op in kernels.items()]
    return [of_op for of_op in ranked if of_op]


def find_mixed(found: Tables) -> dict[tuple, dict[tuple, int]]:
    """Return {problem, SKU, kernels, compiler and regime: {block: draws}} where blocks went through several numbers of
    draws of the group sizes. Rests are of the regime of what they follow; energies are left out, and so is what a sweep
    left open.
    """
    places: dict[tuple, dict[tuple, int]] = {}
    for key, row in found["block"].items():
        if is_sentinel(row["regime"]) or (row["status"] == "finished" and not is_energy(row["regime"])):
            sku, regime = found["device"][(row["device_id"],)]["sku"], name_own(row["regime"])
            place = (sku, regime, *(row[name] for name in SAME))
            places.setdefault(place, {})[key] = count_stored_draws(row["workload"])
    return {place: draws for place, draws in places.items() if len(set(draws.values())) > 1}


def leave_superseded(found: Tables, told: Mapping[str, Set[int]]) -> Tables:
    """Return the tables without blocks that no table reads, because others went through more draws of the group sizes.

    Such a block has a winner no more, and of each config that it tells something of (`told`, by uid: it was not
    skipped) a block of more draws does, too. It stays where `compare` has no other that is like those of other kernels:
    see find_compared. Rests go with all blocks of their draws that they may follow, and
    sentinels where there are some of more draws.
    """
    best, left_out = {row["block_id"] for row in found["best"].values()}, set[tuple]()
    compared = find_compared(found)
    for draws in find_mixed(found).values():
        regimes = {key: found["block"][key]["regime"] for key in draws}
        steady = {key for key in draws if is_own(regimes[key])}
        gone = {
            key
            for key in steady
            if key[0] not in best
            and key not in compared
            and told.get(key[0], set()) <= union(told.get(one[0], set()) for one in steady if draws[one] > draws[key])
        }
        kept = {draws[key] for key in steady - gone}
        most = max(draws.values())
        left_out |= gone | {key for key in draws if is_rested(regimes[key]) and draws[key] not in kept}
        left_out |= {key for key in draws if is_sentinel(regimes[key]) and draws[key] < most}
    return found | {"block": {key: row for key, row in found["block"].items() if key not in left_out}}


def leave_visits(found: Tables) -> Tables:
    """Return the tables with the first and the last visit alone of each board of a sweep to a sentinel: two tell what
    boards differ by, and by how much a board differs from itself.
    """
    visits: dict[tuple, list[tuple]] = {}
    for key, row in sorted(found["block"].items(), key=lambda item: (item[1]["created"], item[0])):
        if is_sentinel(row["regime"]):
            visits.setdefault(tuple(row[name] for name in ALIKE), []).append(key)
    gone = {key for keys in visits.values() for key in keys[1:-1]}
    return found | {
        "block": {key: row for key, row in found["block"].items() if key not in gone},
        "best": {key: row for key, row in found["best"].items() if (row["block_id"],) not in gone},
        MEASURED: {key: row for key, row in found[MEASURED].items() if key[:1] not in gone},
    }


def count_sentinels(found: Tables) -> int:
    """Return how many measured rows are of sentinels."""
    visits = {key for key, row in found["block"].items() if is_sentinel(row["regime"])}
    return sum(key[:1] in visits for key in found[MEASURED])


def find_compared(found: Tables) -> set[tuple]:
    """Return the blocks with as many draws as other kernels have at most of the same problem, SKU and regime."""
    steady: dict[tuple, dict[tuple, tuple[str, int]]] = {}
    for key, row in found["block"].items():
        if is_own(row["regime"]) and row["status"] == "finished":
            place = found["device"][(row["device_id"],)]["sku"], row["problem_id"], row["compiler"], row["regime"]
            steady.setdefault(place, {})[key] = row["kernel_hash"], count_stored_draws(row["workload"])
    compared = set()
    for blocks in steady.values():
        most: dict[str, int] = {}
        for kernel_hash, draws in blocks.values():
            most[kernel_hash] = max(draws, most.get(kernel_hash, 0))
        compared |= {
            key for key, (own, draws) in blocks.items() if any(most[one] == draws for one in most.keys() - {own})
        }
    return compared


def union(sets: Iterable[Set[int]]) -> set[int]:
    """Return what is in any of the sets."""
    return set(chain.from_iterable(sets))


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
