"""What a job found: one block of the database before it is stored."""

from dataclasses import dataclass, field

from tuner.measure.records import Report, Result
from tuner.measure.statistics import MAX_NOISE
from tuner.measured import TIMED


@dataclass
class Block:
    """One job's outcome; `results` are the report's and those of configs that could not be launched.

    A block that `has_failed` holds only the failures of a problem that was given up, without reference or report. One
    that `is_rested` follows the last block of its problem; `judged` are its results with the ratios of both, and
    `judged_noise` is the noise of these. Where the board was lost, it holds failures alone and has not failed. One that
    `is_energy` holds power and no times to choose by.
    """

    reference: object
    results: list[Result]
    report: Report
    configs: list
    is_last: bool = True
    has_failed: bool = False
    is_rested: bool = False
    is_energy: bool = False
    judged: list = field(default_factory=list)
    judged_noise: float = 0.0

    @property
    def timed(self) -> list:
        """Return the results by which the winner is chosen."""
        return self.judged if self.is_rested else self.results

    @property
    def statuses(self) -> list[str]:
        """Return a status for each config: those of the search, none after rests or of energy."""
        has_any = not self.is_rested and not self.is_energy
        return [result.status for result in self.results if has_any and result.role == "search"]

    @property
    def noise(self) -> float:
        """Return the noise of the ratios of `timed`."""
        return self.judged_noise if self.is_rested else self.report.noise or 0.0

    @property
    def is_noisy(self) -> bool:
        """Return whether equal configs differed by more than a block should tell apart."""
        return self.noise > MAX_NOISE


def find_failed(block: Block, others: set) -> list[Result]:
    """Return the failures of a block but for those of the configs `others`."""
    return [result for result in block.results if result.status not in TIMED and result.config not in others]


def choose_quiet(first: Block, second: Block) -> Block:
    """Return the quieter of two blocks of the same configs, with the failures of both: wrong once is wrong.

    Where the reference of the first failed in the second, the first has nothing to compare with.
    """
    quiet, other = sorted((second, first), key=lambda block: (block.reference != second.reference, block.noise))
    failures = [result for result in other.results if result.status not in TIMED]
    failed = {result.config for result in failures}
    quiet.results = [result for result in quiet.results if result.config not in failed] + failures
    return quiet
