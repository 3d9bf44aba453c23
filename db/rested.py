"""Which block of times after rests belongs to which block of times back to back.

Rests follow the block whose finalists they time again, on its board: those of a block are the ones between it and the
board's next block of the problem. Where databases are merged, a newer block of another board may come in between.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from tuner.db.rows import BlockRow
from tuner.problems.regimes import is_own, is_rested, name_own


class Dated(NamedTuple):
    """What of a block says which rests are its own; `of` is its problem, board, kernels and compiler."""

    block: Any
    of: tuple
    regime: str
    status: str
    created: str


def date(block: BlockRow) -> Dated:
    """Return a block as find_rests takes it, under its id."""
    of = block.problem_key, block.board or block.device_id, block.kernel_hash, block.compiler
    return Dated(block.block_id, of, block.regime, block.status, block.created)


def find_rests(blocks: Iterable[Dated]) -> dict[Any, Dated]:
    """Return {block: its newest rests} of the finished blocks that rests followed, those that failed included.

    Rests that are still open are none: their sweep was killed before the choice by both was stored.
    """
    found: dict[Any, Dated] = {}
    newest: dict[tuple, Any] = {}
    for each in sorted(blocks, key=lambda each: (each.created, is_rested(each.regime))):
        key = each.of, name_own(each.regime)
        if is_own(each.regime) and each.status == "finished":
            newest[key] = each.block
        elif is_rested(each.regime) and each.status != "open" and key in newest:
            found[newest[key]] = each
    return found
