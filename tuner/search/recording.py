"""What a sweep writes: one device, one environment, one sweep, then blocks with their rows, and winners.

A problem is finished when its last block is, and its winner follows in a transaction of its own; a winner that is
missing or old because the sweep was killed in between is chosen again from the stored rows. So a sweep killed at any
point loses at most the block in hand.
"""

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from deep_gemm import _C, environment
from tuner.measure import statistics
from tuner.problems.fields import to_config, to_problem
from tuner.problems.workload import Workload
from tuner.search.precompile import Compiled
from tuner.search.problem_run import Block

ROW_FIELDS = (
    "role",
    "status",
    "error",
    "n",
    "median_us",
    "mad_us",
    "q10_us",
    "q90_us",
    "ratio",
    "ratio_low",
    "ratio_high",
    "samples",
    "max_abs_error",
)
REPORT_FIELDS = ("confirm_rounds", "anchor_us", "noise", "clock_mhz", "power_w", "throttle")


def describe_source() -> dict:
    """Return {"git_sha", "git_dirty"} of the clone that this package runs from, both None where it is installed
    elsewhere.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {"git_sha": None, "git_dirty": None}
    try:
        sha = run_git(root, "rev-parse", "HEAD")
        return {"git_sha": sha, "git_dirty": int(bool(run_git(root, "status", "--porcelain", "--untracked-files=no")))}
    except (OSError, subprocess.SubprocessError):
        return {"git_sha": None, "git_dirty": None}


def run_git(root: Path, *arguments: str) -> str:
    """Return the output of one git command. Raises: OSError, SubprocessError."""
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
    ).stdout.strip()


def package_version() -> str | None:
    """Return the installed version of deep_gemm, None where it is not installed."""
    try:
        return version("deep_gemm")
    except PackageNotFoundError:
        return None


def compiler_kind() -> str:
    """Return which compiler the JIT uses."""
    return "nvrtc" if environment.is_enabled("DG_JIT_USE_NVRTC", True) else "nvcc"


class Recorder:
    """Writes the blocks and winners of one sweep. `identities`: sku, kernel_hash, compiler, regime of each op kind."""

    def __init__(
        self, store, identities: dict[str, dict], workload: Workload, device_id: int, environment_id: int, sweep_id: int
    ):
        self.store, self.identities, self.workload = store, identities, workload
        self.fields = {"sweep_id": sweep_id, "device_id": device_id, "environment_id": environment_id}

    def add_block(self, problem, block: Block, compiled: dict[object, Compiled], finish: bool) -> int:
        """Store one block with its rows; return its id. `finish` says that the problem needs no further block."""
        report, identity = block.report, self.identities[problem.op]
        config_ids = {
            config: self.store.get_or_add_config(problem.op, config)
            for config in {*block.configs, *(row["config"] for row in block.rows)}
        }
        block_id = self.store.add_block(
            self.fields
            | {name: identity[name] for name in ("regime", "kernel_hash", "compiler")}
            | {name: report.get(name) for name in REPORT_FIELDS}
            | {
                "status": "failed" if block.has_failed else "open",
                "problem_id": self.store.get_or_add_problem(problem),
                "reference_config_id": config_ids.get(block.reference),
                "rounds": report.get("search_rounds"),
                "order": [config_ids[config] for config in block.configs],
                "extra": {"seconds": report.get("seconds", {})},
                "workload": self.workload.describe(problem),
            }
        )
        rows = [
            {"block_id": block_id, "config_id": config_ids[row["config"]]}
            | {name: row.get(name) for name in ROW_FIELDS}
            | compile_facts(problem, row, compiled.get(row["config"]))
            for row in block.rows
        ]
        self.store.add_measurements(rows, finish=finish)
        return block_id

    def set_best(self, problem, block_id: int, winner, ties: list) -> None:
        """Store the winner of a problem with its tie set, the winner first."""
        ordered = [winner, *(config for config in ties if config != winner)]
        self.store.set_best(
            self.identities[problem.op]
            | {
                "problem_id": self.store.get_or_add_problem(problem),
                "config_id": self.store.get_or_add_config(problem.op, winner),
                "tie_set": [self.store.get_or_add_config(problem.op, config) for config in ordered],
                "block_id": block_id,
            }
        )


def compile_facts(problem, row: dict, compiled: Compiled | None) -> dict:
    """Return the compiler's report for a search row; a confirmation row would only repeat it."""
    if compiled is None or row["role"] != "search" or compiled.registers is None:
        return {}
    return {
        "registers": compiled.registers,
        "spill_bytes": compiled.spill_bytes,
        "compile_ms": compiled.compile_ms,
        "smem_bytes": _C.smem_bytes(problem, row["config"]),
    }


def choose_winner(rows: list[dict], heuristic, reference_us: float, noise: float, portfolio: set) -> tuple | None:
    """Return (winner, tie set, fastest first) from the confirmation rows of one block, None without any that is right."""
    timed = [
        statistics.Timed(row["config"], row["ratio"], row["config"] == heuristic, row["config"] in portfolio)
        for row in rows
        if row["role"] == "confirm" and row["status"] == "ok"
    ]
    if not timed:
        return None
    ties = statistics.find_tie_set(timed, reference_us, noise)
    return statistics.choose_winner(ties).config, [entry.config for entry in ties]


def block_order(row: dict) -> tuple:
    """Sort blocks by age: by time, because a merge of databases renumbers them."""
    return row["created"], row["block_id"]


def find_missing_winners(rows: list[dict], best: list[dict], device, portfolio: set) -> list[tuple]:
    """Return (problem, block id, winner, ties) for problems whose newest finished block is newer than their winner's,
    if any.
    """
    ages = {row["block_id"]: block_order(row) for row in rows}
    known = {row["problem_key"]: ages.get(row["block_id"], ("", 0)) for row in best}
    blocks: dict[int, list[dict]] = {}
    for row in sorted(rows, key=block_order):
        if (
            row["role"] == "confirm"
            and row["block_status"] == "finished"
            and block_order(row) > known.get(row["problem_key"], ("", 0))
        ):
            blocks.setdefault(row["block_id"], []).append(row | {"config": to_config(row)})
    found = {}
    for block_rows in blocks.values():
        winner = choose_stored_winner(block_rows, device, portfolio)
        if winner is not None:
            found[block_rows[0]["problem_key"]] = winner
    return list(found.values())


def choose_stored_winner(rows: list[dict], device, portfolio: set) -> tuple | None:
    """Return (problem, block id, winner, ties) from the loaded confirmation rows of one block, None without any that is
    right.
    """
    first, problem = rows[0], to_problem(rows[0])
    reference = [row for row in rows if row["config_id"] == row["reference_config_id"]]
    reference_us = (reference or rows)[0]["median_us"]
    winner = choose_winner(
        rows, _C.get_analytic_config(problem, device), reference_us, first["noise"] or 0.0, portfolio
    )
    return None if winner is None else (problem, first["block_id"], *winner)


def find_covered(rows: list[dict]) -> dict[str, set[str]]:
    """Return {problem key: keys of the configs with search rows up to the problem's newest finished block}.

    A search by proposals leaves its batches in blocks that stay open; only its last block, once finished, makes them
    count.
    """
    newest: dict[str, tuple] = {}
    for row in rows:
        if row["block_status"] == "finished":
            newest[row["problem_key"]] = max(block_order(row), newest.get(row["problem_key"], ("", 0)))
    covered: dict[str, set[str]] = {}
    for row in rows:
        if block_order(row) <= newest.get(row["problem_key"], ("", 0)):
            covered.setdefault(row["problem_key"], set()).add(row["config_key"])
    return covered


def find_quarantined(rows: list[dict]) -> dict:
    """Return {(op kind, config): reason} of configs that crashed or hung on a stored problem and were never timed on
    it.
    """
    fine = {(row["problem_key"], row["config_key"]) for row in rows if row["status"] in ("ok", "censored")}
    return {
        (row["op"], to_config(row)): f"{row['status']} on {to_problem(row)}"
        for row in rows
        if row["status"] in ("crash", "timeout") and (row["problem_key"], row["config_key"]) not in fine
    }
