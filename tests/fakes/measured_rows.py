"""Rows of the tuning database, made by hand: a few words where a test depends on few fields."""

from deep_gemm import _C
from tests.fakes.databases import CONFIGS, IDENTITY
from tuner.db.rows import BlockRow, MeasurementRow

#: Problems of one weight, by their m.
PROBLEMS = [_C.Problem("fp8_gemm", m, 4096, 7168) for m in (64, 192, 320, 448, 576, 704, 832, 960)]


def make_block(problem, number: int = 1, **fields) -> BlockRow:
    """Return a finished block, whose reference is the first config."""
    own = {name: IDENTITY[name] for name in ("sku", "kernel_hash", "compiler", "regime")}
    own |= {"created": f"2026-01-{number:02}", "status": "finished", "reference_config_id": 0} | fields
    return BlockRow(block_id=number, problem=problem, problem_id=1, problem_key=problem.key, **own)


def make_row(block: BlockRow, config: int, us: float | None, role: str = "confirm", **fields) -> MeasurementRow:
    """Return a row of one of databases.CONFIGS, by its number."""
    chosen = CONFIGS[config]
    told = {"status": "ok", "median_us": us} | fields
    return MeasurementRow(
        block=block, config=chosen, config_id=config, config_key=chosen.key("fp8_gemm"), role=role, **told
    )


def make_rows(block: BlockRow, times: dict[int, float], **fields) -> list[MeasurementRow]:
    """Return the confirmed rows of a block, {number of a config: microseconds}; ratios are to the first one."""
    return [make_row(block, config, us, ratio=us / times[min(times)], **fields) for config, us in times.items()]
