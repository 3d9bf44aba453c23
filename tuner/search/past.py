"""What earlier sweeps left in the store, read so that a new sweep can go on where they stopped.

A problem is finished when its last block is. Its winner is stored in a transaction of its own right after; where a
sweep was killed in between, the winner is missing or old, and is chosen again here from the stored rows. A block of
times after rests stays open until its winner is stored: where the sweep was killed before that, they are taken again.
"""

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import NamedTuple

from deep_gemm import _C
from tuner.db.rested import date, find_rests
from tuner.db.rows import BlockRow, Identity, MeasurementRow, WinnerRow
from tuner.measured import TIMED
from tuner.problems.regimes import is_own, name_energy, name_rested
from tuner.problems.workload import Workload, is_drawn_enough
from tuner.search import rests
from tuner.search.energy import choose_configs, is_known
from tuner.search.propose import Outcome, to_outcome
from tuner.search.winners import Winner, choose_winner

#: The order of a block that does not exist: older than all others.
NEVER = ("", 0)
#: Problems whose rows are asked for together: a query takes so many values, and no more.
PROBLEMS_AT_A_TIME = 500


class StoredWinner(NamedTuple):
    """A winner that was chosen from stored rows."""

    problem: _C.Problem
    block_id: int
    winner: Winner


class Steady(NamedTuple):
    """What the newest finished block of a problem found without rests, and on which board: confirmed rows, the
    reference's time, noise.
    """

    block_id: int
    board: str | None
    rows: list[MeasurementRow]
    reference_us: float
    noise: float


class Past:
    """The rows of one sweep's identities, {op kind: Identity}. `workload` is what the sweep measures with: what went
    through fewer draws of the group sizes is measured again, and nothing is chosen or searched by it.
    """

    def __init__(self, store, identities: dict[str, Identity], workload: Workload):
        self.store, self.identities, self.workload = store, identities, workload

    def keep_drawn(self, rows: Iterable[MeasurementRow]) -> list[MeasurementRow]:
        """Return the rows of blocks that went through as many draws as they would now."""
        return [row for row in rows if is_drawn_enough(row.block, self.workload)]

    def load_rows(self, role: str) -> list[MeasurementRow]:
        """Return the stored rows of one role."""
        return [
            row
            for identity in self.identities.values()
            for row in self.store.load_measurements(role=role, **asdict(identity))
        ]

    def load_rested(self) -> list[MeasurementRow]:
        """Return what was confirmed after rests."""
        return [
            row
            for identity in self.identities.values()
            for row in self.store.load_measurements(
                role="confirm", **asdict(replace(identity, regime=name_rested(identity.regime)))
            )
        ]

    def load_all(self) -> list[MeasurementRow]:
        """Return the stored rows of both roles: a snapshot may leave out the search row of a confirmed config."""
        return [*self.load_rows("search"), *self.load_rows("confirm")]

    def find_unrested(self, problems: Iterable) -> dict[str, Steady]:
        """Return {problem key: what was confirmed} of the problems whose newest finished block no rests followed.

        Rests that failed count, too: they are not tried again.
        """
        wanted = {problem.key for problem in problems}
        if not wanted:
            return {}
        blocks = [
            block for block in self.load_blocks()
            if block.problem_key in wanted and is_drawn_enough(block, self.workload)
        ]  # fmt: skip
        rested, newest = find_rests(map(date, blocks)), {}
        for block in sorted(blocks, key=block_order):
            if is_own(block.regime) and block.status == "finished":
                newest[block.problem_key] = block
        bare = {block.block_id: block for block in newest.values() if block.block_id not in rested}
        found = (describe_steady(rows) for rows in self.load_confirmed(bare).values())
        return {steady.rows[0].block.problem_key: steady for steady in found if steady is not None}

    def load_blocks(self) -> list[BlockRow]:
        """Return the blocks of both ways of timing, back to back and after rests."""
        return [
            block
            for identity in self.identities.values()
            for regime in (identity.regime, name_rested(identity.regime))
            for block in self.store.load_blocks(**asdict(replace(identity, regime=regime)))
        ]

    def load_confirmed(self, blocks: dict[int, BlockRow]) -> dict[int, list[MeasurementRow]]:
        """Return {block: its confirmation rows} of some blocks."""
        ids = sorted({block.problem_id for block in blocks.values()})
        found: dict[int, list[MeasurementRow]] = {}
        for identity in self.identities.values():
            for start in range(0, len(ids), PROBLEMS_AT_A_TIME):
                some = tuple(ids[start : start + PROBLEMS_AT_A_TIME])
                for row in self.store.load_measurements(role="confirm", **asdict(identity), problem_ids=some):
                    if row.block.block_id in blocks:
                        found.setdefault(row.block.block_id, []).append(row)
        return found

    def load_histories(self, boards: Iterable[str], device) -> dict[str, dict[str, list[Outcome]]]:
        """Return for each board the outcomes from which searches go on there. What another board measured is left out:
        a problem is never of two boards.
        """
        rows = self.keep_drawn(self.load_all())
        return {board: find_history([row for row in rows if row.block.board == board], device) for board in boards}

    def find_without_energy(self, problems: Iterable, count: int) -> dict[str, list]:
        """Return {problem key: configs} of which the energy is to be measured and is not known, see energy.py.

        Those that failed there count as known, see is_known.
        """
        newest = take_newest(self.keep_drawn(self.load_all()), problems)
        known: set[tuple] = set()
        for identity in self.identities.values() if newest else ():
            with_energy = replace(identity, regime=name_energy(identity.regime))
            rows = self.keep_drawn(self.store.load_measurements(**asdict(with_energy)))
            known.update((row.block.problem_key, row.config) for row in rows if is_known(row))
        return {
            key: [config for config in choose_configs(rows, count) if (key, config) not in known]
            for key, rows in newest.items()
        }

    def load_best(self) -> list[WinnerRow]:
        """Return the stored winners."""
        return [row for identity in self.identities.values() for row in self.store.load_best(**asdict(identity))]

    def load_previous_winners(self) -> dict[str, list]:
        """Return {problem key: winners} of this SKU and regime under any kernel hash; they are confirmed again."""
        winners: dict[str, list] = {}
        for op, identity in self.identities.items():
            for row in self.store.load_best(sku=identity.sku, op=op, regime=identity.regime):
                winners.setdefault(row.problem_key, []).append(row.config)
        return winners


def take_newest(rows: Iterable[MeasurementRow], problems: Iterable) -> dict[str, list[MeasurementRow]]:
    """Return {problem key: rows of its newest finished block} of some problems."""
    wanted = {problem.key for problem in problems}
    blocks: dict[str, dict[tuple, list[MeasurementRow]]] = {}
    for row in rows:
        if row.block.problem_key in wanted and row.block.status == "finished":
            blocks.setdefault(row.block.problem_key, {}).setdefault(block_order(row.block), []).append(row)
    return {key: of_key[max(of_key)] for key, of_key in blocks.items()}


def describe_steady(rows: list[MeasurementRow]) -> Steady | None:
    """Return what a block's confirmation rows say, None where its reference has none."""
    reference, block = next((row for row in rows if row.is_reference), None), rows[0].block
    if reference is None:
        return None
    return Steady(block.block_id, block.board, rows, reference.median_us or 0.0, block.noise or 0.0)


def find_history(rows: list[MeasurementRow], device) -> dict[str, list[Outcome]]:
    """Return {problem key: outcomes} of the rows of both roles, from which a search goes on.

    A confirmation counts where the config's search row is missing, as in a snapshot that would else be too large. The
    ratios of a block are to its reference. Where that is not the heuristic's pick of today, because the heuristic has
    changed since, they cannot be compared with new ones and are left out.
    """
    history: dict[str, list[Outcome]] = {}
    picks: dict[str, _C.Config] = {}
    configs: dict[int | None, _C.Config] = {row.config_id: row.config for row in rows}
    searched: set[tuple[str, int]] = set()
    for row in sorted(rows, key=lambda row: row.role == "confirm"):
        key = row.block.problem_key
        if key not in picks:
            picks[key] = _C.get_analytic_config(row.block.problem, device)
        if configs.get(row.block.reference_config_id) != picks[key]:
            continue
        if row.role == "search" or (key, row.config_id) not in searched:
            history.setdefault(key, []).append(to_outcome(row, row.config))
            searched.add((key, row.config_id))
    return history


def block_order(block: BlockRow) -> tuple:
    """Return the sort key of blocks by age: the time first, because a merge of databases renumbers blocks."""
    return block.created, block.block_id


def find_missing_winners(
    rows: list[MeasurementRow], rested: list[MeasurementRow], best: list[WinnerRow], device, portfolio: set
) -> list[StoredWinner]:
    """Choose winners for the problems whose best block is another one than that of their stored winner, if any.

    The best one is the newest finished block that has times after rests (`rested`), without any the newest one: where
    databases were merged, a block without rests may be newer than one with them.
    """
    blocks, again = group_finished(rows), group_finished(rested)
    found = find_rests({date(row.block) for row in (*rows, *rested)})
    rests_of = {block_id: again[each.block] for block_id, each in found.items() if each.block in again}
    orders = {row.block.block_id: (row.block.block_id in rests_of, *block_order(row.block)) for row in rows}
    never = (False, *NEVER)
    known = {row.problem_key: orders.get(row.block_id, never) for row in best}
    chosen: dict[str, StoredWinner] = {}
    for block_id in sorted(blocks, key=orders.__getitem__):
        block = blocks[block_id][0].block
        if orders[block_id] > known.get(block.problem_key, never):
            winner = choose_stored_winner(blocks[block_id], rests_of.get(block_id, []), device, portfolio)
            if winner is not None:
                chosen[block.problem_key] = StoredWinner(block.problem, block_id, winner)
    return list(chosen.values())


def group_finished(rows: list[MeasurementRow]) -> dict[int, list[MeasurementRow]]:
    """Return {block: its confirmation rows} of the finished blocks."""
    blocks: dict[int, list[MeasurementRow]] = {}
    for row in rows:
        if row.role == "confirm" and row.block.status == "finished":
            blocks.setdefault(row.block.block_id, []).append(row)
    return blocks


def choose_stored_winner(
    rows: list[MeasurementRow], rested: list[MeasurementRow], device, portfolio: set
) -> Winner | None:
    """Return the winner among the confirmation rows of one block, judged with those of its rests, if any; None where
    none of them is right.
    """
    block, noise = rows[0].block, rows[0].block.noise or 0.0
    judged = rests.judge(rows, rested)
    if judged:
        noise = rests.join_noise(noise, rested[0].block.noise)
    timed = rested if judged else rows
    reference = next((row for row in timed if row.is_reference), timed[0])
    if reference.median_us is None:
        return None
    heuristic = _C.get_analytic_config(block.problem, device)
    return choose_winner(judged or rows, heuristic, reference.median_us, noise, portfolio)


def find_covered(rows: Iterable[MeasurementRow]) -> dict[str, set[str]]:
    """Return {problem key: keys of the configs with rows up to the problem's newest finished block}.

    The batches of a search stay open blocks. Only when the last block of the search is finished do they count.
    """
    rows = list(rows)
    newest: dict[str, tuple] = {}
    for row in rows:
        if row.block.status == "finished":
            key = row.block.problem_key
            newest[key] = max(block_order(row.block), newest.get(key, NEVER))
    covered: dict[str, set[str]] = {}
    for row in rows:
        if block_order(row.block) <= newest.get(row.block.problem_key, NEVER):
            covered.setdefault(row.block.problem_key, set()).add(row.config_key)
    return covered


def find_quarantined(rows: list[MeasurementRow]) -> dict:
    """Return {(op kind, config): reason} of configs that crashed or hung on a problem and were never timed on it.

    Who was confirmed had been timed in the search, whose row a snapshot may leave out.
    """
    fine = {(row.block.problem_key, row.config_key) for row in rows if row.status in TIMED or row.role == "confirm"}
    return {
        (row.block.problem.op, row.config): f"{row.status} on {row.block.problem}"
        for row in rows
        if row.status in ("crash", "timeout") and (row.block.problem_key, row.config_key) not in fine
    }
