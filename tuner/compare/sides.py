"""Which rows of which database a side of a comparison is.

    DATABASE           the rows of the newest kernel hash of each op kind
    DATABASE@HASH      those of a kernel hash, by its first digits (of a URL at least eight)
    DATABASE@sweep:ID  those of one sweep, by its id in the file or the first digits of its uid
    DATABASE@driver:V  those measured with a driver whose version begins with V
    DATABASE@previous  those of the newest kernel hash but one

DATABASE is a file or a URL; without one it is the database that every reading command uses.
"""

import re
from pathlib import Path
from typing import NamedTuple

from tuner import errors
from tuner.compare.recorded import Side
from tuner.credentials import hide_credentials
from tuner.db import origins

WHICH = re.compile(r"[0-9a-fA-F]{8,64}|sweep:[0-9a-f]+|driver:[0-9.]+|previous")
#: Few digits, which may be the host of a URL.
DIGITS = re.compile(r"[0-9a-fA-F]{1,64}")


class Named(NamedTuple):
    """A side as the command line names it; `which` is "" for the newest kernels. As text it has no password."""

    database: str
    which: str = ""

    def __str__(self) -> str:
        database = hide_credentials(self.database)
        return f"{database}@{self.which}" if self.which else database


def read_name(text: str) -> Named:
    """Return the side that a text names; a URL may have an @ of its own, and so may the name of a file.

    Raises: UsageError where a file is named and what is behind its @ says nothing.
    """
    database, has_which, which = text.rpartition("@")
    if not has_which or ("://" not in text and Path(text).exists()):
        return Named(text)
    is_which = WHICH.fullmatch(which) or ("://" not in text and DIGITS.fullmatch(which))
    if not is_which and "://" not in text and (not database or Path(database).is_file()):
        raise errors.UsageError(
            f"{text}: behind the @ must be a kernel hash or its first digits, sweep:ID, driver:VERSION or previous;"
            " correct it, or name no more than the database"
        )
    return Named(database, which.lower()) if is_which else Named(text)


def load_side(store, sku: str, op: str, which: str) -> Side:
    """Return the rows and winners of one op kind. Raises: InconclusiveError where there are none."""
    kernel_hash = find_hash(store, sku, op, which)
    rows = store.load_measurements(sku=sku, op=op, kernel_hash=kernel_hash)
    winners = store.load_best(sku=sku, op=op, kernel_hash=kernel_hash)
    kind, _, value = which.partition(":")
    if kind in ("sweep", "driver") and value:
        kept = find_blocks(store, kind, value)
        rows = [row for row in rows if row.block.block_id in kept]
        winners = [winner for winner in winners if winner.block_id in kept]
    if not rows:
        raise errors.InconclusiveError(f"{store.target}: has no rows of {op} of {which or 'any kernel hash'}")
    return Side(rows, winners)


def find_hash(store, sku: str, op: str, which: str) -> str | None:
    """Return the kernel hash that `which` means, None for a sweep or driver. Raises: InconclusiveError."""
    with store.reading() as connection:
        hashes = origins.list_kernel_hashes(connection, op, sku)
    if ":" in which:
        return None
    if which in ("", "previous"):
        place = int(which == "previous")
        if len(hashes) <= place:
            raise errors.InconclusiveError(
                f"{store.target}: has {'only one kernel hash' if hashes else 'no rows'} of {op} on {sku}; name what to"
                " compare with, or choose it by `baseline set`"
            )
        return hashes[place]
    found = [one for one in hashes if one.startswith(which)]
    if not found:
        raise errors.InconclusiveError(f"{store.target}: has no rows of {op} with kernel hash {which}")
    if len(found) > 1:
        raise errors.UsageError(
            f"{store.target}@{which}: {len(found)} kernel hashes of {op} begin so"
            f" ({', '.join(one[:12] for one in found)}); give more digits"
        )
    return found[0]


def find_blocks(store, kind: str, value: str) -> set[int]:
    """Return the ids of the blocks of a sweep or a driver."""
    with store.reading() as connection:
        found = origins.load_origins(connection)
    if kind == "driver":
        return {block for block, origin in found.items() if (origin.driver or "").startswith(value)}
    return {
        block
        for block, origin in found.items()
        if value == str(origin.sweep_id) or (len(value) >= 8 and origin.sweep_uid.startswith(value))
    }
