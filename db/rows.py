"""The records that the database gives to its readers: one class per kind of row, problems and configs as objects.

Times are microseconds. Ids are local to one file; keys mean the same in every database. SQL columns become these
records in `queries.py`, and nowhere else.
"""

from dataclasses import dataclass

from deep_gemm import _C
from tuner.measured import Measured


@dataclass(frozen=True, slots=True)
class Identity:
    """What measurements must have in common before their times may be compared."""

    op: str
    sku: str
    kernel_hash: str
    compiler: str
    regime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """One problem, measured on one board in one go.

    `board` is the hash of the board's UUID. `workload` is canonical JSON of the group sizes, "" for a dense problem.
    `anchor_us` times a fixed product of the vendor's library; `noise` is how far equal configs seem apart, relative;
    `throttle` holds NVML's reasons for a lower clock, as bits.
    """

    block_id: int
    problem: _C.Problem
    problem_id: int
    problem_key: str
    sku: str
    kernel_hash: str
    compiler: str
    regime: str
    status: str
    created: str
    device_id: int = 0
    board: str | None = None
    workload: str = ""
    reference_config_id: int | None = None
    anchor_us: float | None = None
    noise: float | None = None
    clock_mhz: float | None = None
    power_w: float | None = None
    throttle: int | None = None

    @property
    def identity(self) -> Identity:
        """Return what other blocks must share to be comparable with this one."""
        return Identity(self.problem.op, self.sku, self.kernel_hash, self.compiler, self.regime)


@dataclass(frozen=True, slots=True)
class CompilerReport:
    """What the compiler said about one kernel; None where it said nothing."""

    registers: int | None = None
    spill_bytes: int | None = None
    local_bytes: int | None = None
    smem_bytes: int | None = None
    compile_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementRow(Measured):
    """One config in one block, in one role. Ratios are to the block's reference config."""

    block: BlockRow
    config: _C.Config
    config_id: int
    config_key: str
    report: CompilerReport = CompilerReport()

    @property
    def is_reference(self) -> bool:
        """Return whether the ratios of the block are to this config."""
        return self.config_id == self.block.reference_config_id


@dataclass(frozen=True, slots=True, kw_only=True)
class WinnerRow:
    """The best config of a problem, and `tie_set`: the configs that cannot be told from it, the winner first."""

    problem: _C.Problem
    problem_id: int
    problem_key: str
    config: _C.Config
    config_id: int
    config_key: str
    tie_set: tuple[_C.Config, ...]
    sku: str
    kernel_hash: str
    compiler: str
    regime: str
    block_id: int
    created: str
