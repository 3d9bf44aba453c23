"""A synthetic machine for tests: an analytic estimate with rates of its own, bent by a smooth function of shape and
config, plus noise.

`make_rows` gives measured rows as `Store.load_measurements` returns them; `write_database` puts the same rows into a
database.
"""

import atexit
import math
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from deep_gemm import _C
from tuner.db import Store
from tuner.db.rows import BlockRow, Identity, MeasurementRow
from tuner.learn.dataset import Dataset, build_dataset
from tuner.learn.portfolio import choose_portfolio

SKU = "nvidia-h200-sm132"
KERNEL_HASH = "ab" * 32
COMPILER = "nvrtc"
REGIME = "graph-cold"
#: (n, k) of a few public models, several of them near one another, so that families have more than one member.
SHAPES = (
    (2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (7168, 2048), (4096, 7168), (36864, 7168), (7168, 18432),
    (4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (5120, 5120), (51200, 5120), (5120, 25600), (7168, 5120),
    (10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672), (1280, 8192), (2560, 2560), (19456, 2560), (2560, 9728),
    (3072, 3072), (16384, 3072), (3072, 8192), (2048, 2048), (12288, 2048), (2048, 6144), (18432, 7168), (12288, 4096),
)  # fmt: skip
FULL_M = (1, 64, 512, 4096)
DENSE_M = (3, 8, 16, 24, 32, 48, 80, 96, 128, 160, 192, 256, 320, 384, 640, 768, 1024, 1536, 2048, 8192)


#: The machine's rates: not the package's, which are fitted anew from time to time.
RATES = {
    "launch_us": 2.5,
    "hbm_gbps": 3000.0,
    "l2_gbps": 18000.0,
    "sm_gbps": 137.0,
    "load_latency_ns": 600.0,
    "dense_tflops": 1650.0,
    "step_base_64_ns": 85.0,
    "step_base_128_ns": 95.0,
    "step_base_256_ns": 117.0,
    "step_slope_64_ns": 1.15,
    "step_slope_128_ns": 1.65,
    "step_slope_256_ns": 3.77,
    "two_scale_fraction": 0.04,
    "unpipelined_fraction": 0.02,
    "cluster_step_ns": 5.0,
    "epilogue_base_ns": 630.0,
    "epilogue_row_ns": 0.34,
}


def true_log_ratio(problem, config) -> float:
    """Return log(true time / estimate): what the heuristic does not know and a model can learn from the shape."""
    n, k, m = (math.log2(value) for value in (problem.n, problem.k, problem.m))
    wide = min(config.block_n, 192) / 128.0  # tiles whose warpgroups stand side by side are no wider than others
    bend = 0.07 * math.sin(0.9 * n + 1.7 * wide) + 0.06 * math.sin(0.8 * k - 1.3 * wide + 0.4 * config.cluster_m)
    bend += 0.05 * math.cos(0.6 * m + config.block_m / 64.0 + 0.5 * config.cluster_n) - 0.03 * math.tanh(
        (config.num_stages - 4) / 3.0
    )
    return bend


def true_time_us(problem, config, device) -> float:
    """Return the synthetic machine's exact time."""
    return _C.estimate_time_us(problem, config, device, RATES) * math.exp(true_log_ratio(problem, config))


class Machine:
    """Times problems in blocks, with drift between blocks and noise in each median; a seed gives the same numbers."""

    def __init__(self, seed: int = 0, noise: float = 0.004):
        self.device = _C.Device.known(SKU)
        self.random = np.random.default_rng(seed)
        self.noise = noise
        self.block_id = 0
        self.config_ids: dict = {}

    def measure(self, problem, configs: list, confirm: int = 5) -> list[MeasurementRow]:
        """Return the rows of one block: search over `configs` and the heuristic's pick, then confirmation of the
        fastest.
        """
        self.block_id += 1
        heuristic = _C.get_analytic_config(problem, self.device)
        ordered = [heuristic, *(config for config in configs if config != heuristic)]
        times = np.array([true_time_us(problem, config, self.device) for config in ordered]) * math.exp(
            self.random.normal(0, 0.02)
        )
        block = self.make_block(problem, heuristic)
        search = self.observe(times, 8)
        rows = [
            self.make_row(block, config, "search", time_us, search[0], search.min())
            for config, time_us in zip(ordered, search, strict=True)
        ]
        chosen = sorted({0, *np.argsort(search, kind="stable")[:confirm].tolist()})
        confirmed = self.observe(times[chosen], 30)
        return rows + [
            self.make_row(block, ordered[index], "confirm", time_us, confirmed[0], 0.0)
            for index, time_us in zip(chosen, confirmed, strict=True)
        ]

    def observe(self, times: np.ndarray, rounds: int) -> np.ndarray:
        """Return noisy medians of `rounds` rounds."""
        return times * np.exp(self.random.normal(0, self.noise * 1.25 / math.sqrt(rounds), len(times)))

    def get_config_id(self, config) -> int:
        """Return the id of a config."""
        return self.config_ids.setdefault(config, len(self.config_ids) + 1)

    def make_block(self, problem, reference) -> BlockRow:
        """Return the block of one call of measure."""
        return BlockRow(
            block_id=self.block_id,
            problem=problem,
            problem_id=0,
            problem_key=problem.key,
            sku=SKU,
            kernel_hash=KERNEL_HASH,
            compiler=COMPILER,
            regime=REGIME,
            status="finished",
            created="2026-01-02T03:04:05.678Z",
            reference_config_id=self.get_config_id(reference),
        )

    def make_row(
        self, block: BlockRow, config, role: str, time_us: float, reference_us: float, fastest: float
    ) -> MeasurementRow:
        """Return one measured row; a config 1.5x slower than the fastest counts as dropped by the race."""
        status = "censored" if fastest and time_us > 1.5 * fastest and time_us != reference_us else "ok"
        ratio = float(time_us / reference_us)
        return MeasurementRow(
            block=block,
            config=config,
            config_id=self.get_config_id(config),
            config_key=config.key(block.problem.op),
            role=role,
            status=status,
            median_us=float(time_us),
            mad_us=float(time_us) * self.noise,
            ratio=ratio,
            ratio_low=ratio * 0.998,
            ratio_high=ratio * 1.002,
        )


def full_rows(
    machine: Machine, shapes: tuple = SHAPES, values: tuple = FULL_M, get_space: Callable = _C.get_candidates
) -> list[MeasurementRow]:
    """Return rows of problems measured over their whole space."""
    problems = [_C.Problem("fp8_gemm", m, n, k) for n, k in shapes for m in values]
    return [row for problem in problems for row in machine.measure(problem, get_space(problem, machine.device))]


def portfolio_rows(
    machine: Machine, portfolio: list, shapes: tuple = SHAPES, values: tuple = DENSE_M
) -> list[MeasurementRow]:
    """Return rows of problems measured with `portfolio` alone (those of its configs that are candidates)."""
    rows = []
    for problem in (_C.Problem("fp8_gemm", m, n, k) for n, k in shapes for m in values):
        candidates = set(_C.get_candidates(problem, machine.device))
        rows += machine.measure(problem, [config for config in portfolio if config in candidates])
    return rows


def write_database(path, rows: list[MeasurementRow]) -> None:
    """Write measured rows through the store: one sweep, one board, the blocks as they were measured."""
    with Store.open(path) as store:
        device = _C.Device.known(SKU)
        shared = {
            "device_id": store.get_or_add_device({**device.as_dict(), "uuid": "GPU-0"}),
            "environment_id": store.get_or_add_environment({"compiler": COMPILER}),
            "sweep_id": store.start_sweep(
                {"preset": "synthetic", "seed": 0, "sampler": "exhaustive", "effort": "full", "regime": REGIME}
            ),
        }
        blocks: dict = {}
        for row in rows:
            blocks.setdefault(row.block.block_id, []).append(row)
        for block in blocks.values():
            write_block(store, block, shared)
        store.finish_sweep(shared["sweep_id"])


def write_block(store, rows: list[MeasurementRow], shared: dict) -> None:
    """Write one block: its first row is the reference's."""
    first = rows[0].block
    ids = {row.config: store.get_or_add_config(first.problem.op, row.config) for row in rows}
    block = store.add_block(
        {
            **shared,
            "problem_id": store.get_or_add_problem(first.problem),
            "regime": REGIME,
            "kernel_hash": first.kernel_hash,
            "compiler": COMPILER,
            "reference_config_id": ids[rows[0].config],
            "rounds": 8,
            "confirm_rounds": 30,
            "anchor_us": 100.0,
            "noise": 0.001,
        }
    )
    names = ("role", "status", "median_us", "mad_us", "ratio", "ratio_low", "ratio_high")
    store.add_measurements(
        [
            {"block_id": block, "config_id": ids[row.config], "num_samples": 8}
            | {name: getattr(row, name) for name in names}
            for row in rows
        ],
        finish=True,
    )


IDENTITY = Identity("fp8_gemm", SKU, KERNEL_HASH, COMPILER, REGIME)
FEW_SHAPES = SHAPES[::4]
FEW_M = (1, 128, 2048)
SOME_M = (7, 48, 320, 1024, 8192)


@cache
def make_small_rows() -> tuple:
    """Return the rows of eight shapes: three m over the whole space, five with a portfolio."""
    machine = Machine(seed=2)
    rows = full_rows(machine, FEW_SHAPES, FEW_M)
    data = build_dataset(rows, IDENTITY, machine.device)
    chosen = choose_portfolio(data, np.arange(len(data.problems)), (24,)).columns
    return tuple(rows + portfolio_rows(machine, [data.configs[column] for column in chosen], FEW_SHAPES, SOME_M))


@cache
def make_small_dataset() -> Dataset:
    """Return make_small_rows as a table."""
    return build_dataset(list(make_small_rows()), IDENTITY, _C.Device.known(SKU))


@cache
def make_small_database() -> Path:
    """Return the path of a database with make_small_rows, written once per process and removed when it ends."""
    memory = Path("/dev/shm")  # a commit there costs no disk flush
    folder = tempfile.TemporaryDirectory(prefix="synthetic-", dir=memory if memory.is_dir() else None)
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "tuning.db"
    write_database(path, list(make_small_rows()))
    return path


def save_training(folder: Path, learned, settings) -> Path:
    """Write what was learned from make_small_dataset as a training folder, and return it; its rows are those of
    make_small_database.
    """
    from tuner.learn import train

    train.save(folder, make_small_dataset(), learned, settings, str(make_small_database()))
    return folder
