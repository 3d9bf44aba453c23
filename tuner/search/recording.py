"""What a sweep writes: one device, one environment, one sweep; then blocks with their rows, and winners.

A sweep that is killed at any point loses at most the block that it was measuring; see past.py for how the next one goes
on.
"""

import subprocess
from dataclasses import asdict, fields
from pathlib import Path

from deep_gemm import _C, environment
from deep_gemm._version import __version__
from tuner.credentials import hide_credentials
from tuner.db.rows import Identity
from tuner.measure.records import Result
from tuner.measured import Measured
from tuner.problems.workload import Workload
from tuner.search.block import Block
from tuner.search.precompile import Compiled
from tuner.search.winners import Winner

RESULT_FIELDS = tuple(field.name for field in fields(Measured))
#: What a row of `block` takes from a report under the same name.
REPORT_FIELDS = ("confirm_rounds", "anchor_us", "noise", "clock_mhz", "power_w", "throttle")


def describe_source() -> dict:
    """Return {"git_sha", "git_dirty"} of the clone that holds this package; both None outside a clone."""
    unknown = {"git_sha": None, "git_dirty": None}
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return unknown
    try:
        sha = run_git(root, "rev-parse", "HEAD")
        return {"git_sha": sha, "git_dirty": int(bool(run_git(root, "status", "--porcelain", "--untracked-files=no")))}
    except (OSError, subprocess.SubprocessError):
        return unknown


def run_git(root: Path, *arguments: str) -> str:
    """Return the output of one git command. Raises: OSError, SubprocessError."""
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
    ).stdout.strip()


def compiler_kind() -> str:
    """Return which compiler the JIT uses: nvrtc or nvcc."""
    return "nvrtc" if environment.is_enabled("DG_JIT_USE_NVRTC", True) else "nvcc"


def describe_environment(hello: dict, compiled: dict) -> dict:
    """Return the fields of the environment's row of a board. `compiled` are outcomes by kernel problem and config."""
    from deep_gemm.jit import hashing

    outcomes = [outcome for of_problem in compiled.values() for outcome in of_problem.values()]
    versions = {outcome.compiler_version for outcome in outcomes if outcome.compiler_version}
    own = {
        "compiler": compiler_kind(),
        "compiler_version": max(versions, default=None),
        "package_version": __version__,
        "tree_hash": hashing.tree_hash(),
    }
    return hello["environment"] | describe_source() | own


def describe_sweep(options, identities: dict[str, Identity], regime: str) -> dict:
    """Return the fields of the sweep's row. `regime` is that of a sweep without any problem."""
    chosen = {name: getattr(options, name) for name in ("preset", "seed", "sampler", "effort")}
    regimes = sorted({identity.regime for identity in identities.values()})
    return chosen | {
        "regime": regimes[-1] if regimes else regime,
        "shard": "/".join(map(str, options.shard)),
        "argv": list(map(hide_credentials, options.argv)),
    }


class Recorder:
    """Writes the blocks and winners of one sweep. `identities`: one per op kind."""

    def __init__(
        self,
        store,
        identities: dict[str, Identity],
        workload: Workload,
        device_id: int,
        environment_id: int,
        sweep_id: int,
    ):
        self.store, self.identities, self.workload = store, identities, workload
        self.fields = {"device_id": device_id, "environment_id": environment_id, "sweep_id": sweep_id}

    def copy_for(self, identities: dict[str, Identity]) -> "Recorder":
        """Return a recorder of the same sweep for other identities."""
        return Recorder(self.store, identities, self.workload, *self.fields.values())

    def add_block(self, problem, block: Block, compiled: dict[object, Compiled], finish: bool) -> int:
        """Store one block with its rows and return its id; with `finish` the problem needs no further block."""
        config_ids = {
            config: self.store.get_or_add_config(problem.op, config)
            for config in {*block.configs, *(result.config for result in block.results)}
        }
        block_id = self.store.add_block(self.fields | self.describe_block(problem, block, config_ids))
        rows = [
            {"block_id": block_id, "config_id": config_ids[result.config]}
            | {name: getattr(result, name) for name in RESULT_FIELDS}
            | compile_facts(problem, result, compiled.get(result.config))
            for result in block.results
        ]
        self.store.add_measurements(rows, finish=finish)
        return block_id

    def describe_block(self, problem, block: Block, config_ids: dict[object, int]) -> dict:
        """Return the fields of a block's row that are not the whole sweep's."""
        report, identity = block.report, self.identities[problem.op]
        return {name: getattr(report, name) for name in REPORT_FIELDS} | {
            "regime": identity.regime,
            "kernel_hash": identity.kernel_hash,
            "compiler": identity.compiler,
            "status": "failed" if block.has_failed else "open",
            "problem_id": self.store.get_or_add_problem(problem),
            "reference_config_id": config_ids.get(block.reference),
            "rounds": report.search_rounds,
            "order": [config_ids[config] for config in block.configs],
            "extra": {"seconds": report.seconds, "spread": report.spread},
            "workload": self.workload.describe(problem),
        }

    def set_best(self, problem, block_id: int, winner: Winner) -> None:
        """Store the winner of a problem with its tie set, the winner first."""
        ordered = [winner.config, *(config for config in winner.ties if config != winner.config)]
        ids = [self.store.get_or_add_config(problem.op, config) for config in ordered]
        identity = asdict(self.identities[problem.op])
        del identity["op"]
        self.store.set_best(
            identity
            | {
                "problem_id": self.store.get_or_add_problem(problem),
                "config_id": ids[0],
                "tie_set": ids,
                "block_id": block_id,
            }
        )


def compile_facts(problem, result: Result, compiled: Compiled | None) -> dict:
    """Return the compiler's report for a search result; a confirmation result would only repeat it."""
    if compiled is None or result.role != "search" or compiled.registers is None:
        return {}
    return {
        "registers": compiled.registers,
        "spill_bytes": compiled.spill_bytes,
        "compile_ms": compiled.compile_ms,
        "smem_bytes": _C.smem_bytes(problem, result.config),
    }


def make_identity(op: str, device, regime: str) -> Identity:
    """Return what identifies this sweep's measurements of one op kind."""
    from deep_gemm.jit import hashing

    return Identity(op, device.sku, hashing.kernel_hash(op), compiler_kind(), regime)
