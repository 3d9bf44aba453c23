"""What was measured of one problem: its configs in the order of their times."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from deep_gemm import _C
from tuner.db.rested import date, find_rests
from tuner.db.rows import BlockRow, MeasurementRow
from tuner.learn.energy import Energy, find_front, read_energies
from tuner.problems.regimes import is_own, name_energy
from tuner.search import rests


@dataclass(frozen=True)
class Ranking:
    """The configs of one block, fastest first: those with confirmation rounds, then the others.

    `others` counts the blocks of the same problem and GPU model that are not shown; `winner` is None where none was
    stored. `ties`: the configs that cannot be told from the fastest by the rounds of the block, the winner first.
    Of `num_rested` configs the winner was chosen by their times after rests, too, which are not shown. `judged` has the
    ratios by which it was chosen: of those configs alone, where there are any, the geometric mean of both. `energies`
    are those that other blocks of the same kernels and regime measured; configs on the `front` of these have none that
    is better in both time and energy.
    """

    block: BlockRow
    rows: list[MeasurementRow]
    winner: _C.Config | None
    others: int
    ties: tuple[_C.Config, ...] = ()
    num_rested: int = 0
    judged: dict[_C.Config, float] = field(default_factory=dict)
    energies: dict[_C.Config, Energy] = field(default_factory=dict)
    front: tuple[_C.Config, ...] = ()

    def place(self, index: int) -> int:
        """Return the rank of a row, from 1: all configs that cannot be told from the fastest share the first."""
        return 1 if self.rows[index].config in self.ties else index + 1

    @property
    def reference(self) -> MeasurementRow | None:
        """Return the row of the block's reference config, which was the heuristic's pick; None where it has no time."""
        return next((row for row in self.rows if row.is_reference), None)

    def to_json(self) -> dict:
        """Return the ranking as JSON values; `samples` are left out."""
        block = self.block
        names = ("sku", "kernel_hash", "compiler", "regime", "workload", "created", "noise", "anchor_us")
        measured = ("role", "status", "num_samples", "median_us", "mad_us", "ratio", "ratio_low", "ratio_high")
        return {
            "problem": block.problem.as_dict(),
            **{name: getattr(block, name) for name in names},
            "others": self.others,
            "num_rested": self.num_rested,
            "configs": [
                {"name": str(row.config), "config": row.config.as_dict(), "is_reference": row.is_reference}
                | {"rank": self.place(index), "is_best": row.config == self.winner, "is_tied": row.config in self.ties}
                | {name: getattr(row, name) for name in measured}
                | self.describe_energy(row.config)
                for index, row in enumerate(self.rows)
            ],
        }

    def describe_energy(self, config: _C.Config) -> dict:
        """Return the joules and watts of one config, None where they were not measured."""
        energy = self.energies.get(config)
        return {
            "energy_j": energy and energy.energy_j,
            "power_w": energy and energy.power_w,
            "is_on_front": None if energy is None else config in self.front,
        }


def rank(
    store,
    problem: _C.Problem,
    sku: str,
    kernel_hash: str | None = None,
    is_wanted: Callable[[BlockRow], bool] = lambda block: True,
) -> Ranking | None:
    """Return what was measured of `problem` on `sku` in one block; None where there is none.

    It is the block that the newest winner comes from, without a winner the newest one. Only within a block are times
    compared, by their ratios to its reference config, in which drift of the clocks cancels. `kernel_hash`: only blocks
    of these kernels; `is_wanted`: only those blocks.
    """
    every = [
        row
        for row in store.load_measurements(sku=sku, kernel_hash=kernel_hash, problem_key=problem.key)
        if is_wanted(row.block)
    ]
    rows = [row for row in every if is_own(row.block.regime)]
    if not rows:
        return None
    blocks = {row.block.block_id: row.block for row in rows}
    winners = store.load_best(sku=sku, kernel_hash=kernel_hash, problem_key=problem.key)
    known = (one for one in winners if one.block_id in blocks)
    winner = max(known, key=lambda one: one.created, default=None)
    shown = blocks[winner.block_id] if winner else max(blocks.values(), key=lambda one: (one.created, one.block_id))
    best: dict[str, MeasurementRow] = {}
    for row in sorted((row for row in rows if row.block.block_id == shown.block_id), key=order):
        best.setdefault(row.config_key, row)
    found, ties = (winner.config, winner.tie_set) if winner else (None, ())
    energies = read_energies(select_regime(every, shown, name_energy(shown.regime)))
    front = tuple(find_front(energies))
    again = find_rests({date(row.block) for row in every}).get(shown.block_id)
    rested = [row for row in every if again and row.block.block_id == again.block]
    judged = judge(best.values(), rested)
    num_rested = len({row.config for row in rested})
    return Ranking(shown, list(best.values()), found, len(blocks) - 1, ties, num_rested, judged, energies, front)


def select_regime(rows: list[MeasurementRow], shown: BlockRow, regime: str) -> list[MeasurementRow]:
    """Return the rows of one regime, of the same kernels as a block."""
    wanted = regime, shown.kernel_hash, shown.compiler
    return [row for row in rows if (row.block.regime, row.block.kernel_hash, row.block.compiler) == wanted]


def judge(steady: Iterable[MeasurementRow], rested: Sequence[MeasurementRow]) -> dict[_C.Config, float]:
    """Return {config: the ratio by which it is judged}, see Ranking.

    One that was not timed after rests is not compared with those that were, as the winner was not.
    """
    rows = [row for row in steady if row.status == "ok"]
    both = rests.judge(rows, rested)
    return {row.config: row.ratio for row in (both or rows) if row.ratio is not None}


def order(row: MeasurementRow) -> tuple:
    """Return what rows are sorted by: confirmed, searched, dropped by the race, failed; then by time."""
    is_timed = row.median_us is not None or row.ratio is not None  # a snapshot has only the ratio of a dropped one
    place = 3 if not is_timed else 2 if row.status != "ok" else 0 if row.role == "confirm" else 1
    return place, row.ratio or row.median_us or 0.0, row.config_key
