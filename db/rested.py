"""Which block of times after rests belongs to which block of times back to back.

Rests follow the block whose finalists they time again, on its board: those of a block are the ones between it and the
board's next block of the problem. Where databases are merged, a newer block of another board may come in between.
Rests of a board that has no such block were made up for by a sweep of before: they follow the newest of any board of
its GPU model. Never that of another model: one database may hold several, whose times cannot be compared.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from tuner.db.rows import BlockRow
from tuner.problems.regimes import is_own, is_rested, name_own


class Dated(NamedTuple):
    """What of a block says which rests are its own; `of` is its problem, GPU model, kernels and compiler."""

    block: Any
    of: tuple
    board: Any
    regime: str
    status: str
    created: str


def date(block: BlockRow) -> Dated:
    """Return a block as find_rests takes it, under its id."""
    of = block.problem_key, block.sku, block.kernel_hash, block.compiler
    board = block.board or block.device_id
    return Dated(block.block_id, of, board, block.regime, block.status, block.created)


def find_rests(blocks: Iterable[Dated]) -> dict[Any, Dated]:
    """Return {block: its newest rests} of the finished blocks that rests followed, those that failed included.

    Rests that are still open are none: their sweep was killed before the choice by both was stored.
    """
    found: dict[Any, Dated] = {}
    newest: dict[tuple, Any] = {}
    for each in sorted(blocks, key=lambda each: (each.created, is_rested(each.regime))):
        anywhere = each.of, name_own(each.regime)
        here = *anywhere, each.board
        if is_own(each.regime) and each.status == "finished":
            newest[here] = newest[anywhere] = each.block
        elif is_rested(each.regime) and each.status != "open" and anywhere in newest:
            found[newest.get(here, newest[anywhere])] = each
    return found
