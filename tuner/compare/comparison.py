"""One comparison of two kernel sets: ask both what they do with the problems, measure, and report.

Each set answers in a process of its own (set_child.py). Measuring is one process for both (tuner/measure/sets.py).
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from deep_gemm import _C
from tuner import errors
from tuner.compare import duel, set_child
from tuner.compare.duel import NEW, OLD, Duel, Pair, make_pair
from tuner.compare.kernel_sets import KernelSet
from tuner.files import make_folder
from tuner.measure import statistics
from tuner.measure.devices import choose_visible_device, read_device
from tuner.measure.gpu_lock import GpuLock
from tuner.measure.sets import MANIFEST
from tuner.measure.worker import SETS_BACKEND
from tuner.measure.worker_client import MeasuringWorker

#: A set that says nothing for this long is hung. A kernel takes 0.1 to 2 s to compile.
ASK_LIMIT_S = 1800.0


@dataclass(frozen=True)
class Options:
    """What to compare, and how.

    config          fields of OLD's config, None for what it chooses
    configs         a config for each problem instead
    new_config      fields of NEW's config, None for OLD's
    change          fields that NEW's config has instead
    has_own_choice  NEW chooses for itself
    any_bits        results need not be equal to the bit, only right
    identical_too   measure problems whose kernels are the same code
    compile_only    measure nothing
    out             a folder that keeps the kernels and their sources
    """

    problems: list
    config: dict | None = None
    configs: list[dict] | None = None
    new_config: dict | None = None
    change: dict = field(default_factory=dict)
    has_own_choice: bool = False
    any_bits: bool = False
    identical_too: bool = False
    compile_only: bool = False
    workload: str = "spread"
    seed: int = 0
    turns: int = duel.TURNS
    device: int = 0
    out: Path | None = None


def make_worker(folder: Path, device: int) -> MeasuringWorker:
    """Return the measuring process of the sets of `folder`, not yet started. Raises: UsageError."""
    return MeasuringWorker(f"{SETS_BACKEND}={folder}", {"CUDA_VISIBLE_DEVICES": choose_visible_device(device)})


def require_gpu(options: Options) -> None:
    """Raise what make_worker raises without the GPU of the options: before a revision is built, which takes minutes."""
    if not options.compile_only:
        make_worker(Path(), options.device)


def compare_sets(
    old: KernelSet, new: KernelSet, options: Options, on_event: Callable[[int, int], None] = lambda done, total: None
) -> dict:
    """Compare two sets and return the report that `--json` prints. Raises: TunerError."""
    with keep_folder(options.out) as name:
        folder = Path(name)
        natives = [None if one.native is None else str(one.native) for one in (old, new)]
        (folder / MANIFEST).write_text(json.dumps(natives), encoding="utf-8")
        if options.compile_only:
            device = _C.Device.known("h200")
            return describe(old, new, ask_both(old, new, options, device, folder), {"name": device.name}, True)
        with make_worker(folder, options.device) as worker:
            hello = worker.start()
            pairs = ask_both(old, new, options, read_device(hello["device"]), folder)
            with GpuLock(hello["device"]["uuid_hash"]):
                Duel(worker, pairs, options.any_bits, options.workload, options.seed, options.turns, on_event).run()
        return describe(old, new, pairs, hello["device"] | hello["environment"], False)


def keep_folder(out: Path | None) -> AbstractContextManager:
    """Return a folder for kernels as a context: `out`, or one that is removed."""
    if out is None:
        return tempfile.TemporaryDirectory(prefix="kernel-sets-")
    make_folder(out)
    return _Kept(str(out.resolve()))


class _Kept(AbstractContextManager):
    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *exception: object) -> None:
        pass


def ask_both(old: KernelSet, new: KernelSet, options: Options, device, folder: Path) -> list[Pair]:
    """Return the pairs of all problems, compiled."""
    problems = options.problems
    wanted: list[dict | None] = [*options.configs] if options.configs else [options.config] * len(problems)
    of_old = ask(old, [(problem, config, {}) for problem, config in zip(problems, wanted, strict=True)], device, folder)
    given = [None if options.has_own_choice else options.new_config or entry.get("config") for entry in of_old]
    asked = [(problem, config, options.change) for problem, config in zip(problems, given, strict=True)]
    of_new = ask(new, asked, device, folder)
    is_same_host = old.native == new.native
    return [
        make_pair(problem, one, other, is_same_host, options.identical_too)
        for problem, one, other in zip(problems, of_old, of_new, strict=True)
    ]


def ask(asked: KernelSet, wanted: list[tuple], device, folder: Path) -> list[dict]:
    """Return what a set does with each (problem, config or None, change), with kernels in `folder`."""
    rows = [
        {"problem": problem.as_dict(with_defaults=False), "config": config, "change": change}
        for problem, config, change in wanted
    ]
    return run_child(asked, {"out": str(folder), "device": device.as_dict(), "wanted": rows, "hashes": []})["found"]


def ask_hashes(asked: KernelSet, ops: list[str] | None = None) -> dict[str, str]:
    """Return {op kind: kernel hash} of a set; None: of all its op kinds."""
    with tempfile.TemporaryDirectory() as folder:
        device = _C.Device.known("h200").as_dict()
        return run_child(asked, {"out": folder, "device": device, "wanted": [], "hashes": ops})["hashes"]


def run_child(asked: KernelSet, request: dict) -> dict:
    """Return a set's answer, see set_child.py. Raises: TunerError."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        own = {"answer": str(answer), "package": str(asked.folder / "deep_gemm"), "parent": os.getpid()}
        whole = request | own | {"processes": len(os.sched_getaffinity(0))}
        path = os.pathsep.join(filter(None, (str(asked.folder), os.environ.get("PYTHONPATH"))))
        try:
            done = subprocess.run(
                [sys.executable, "-P", set_child.__file__],
                input=json.dumps(whole).encode(),
                capture_output=True,
                cwd=folder,
                env=os.environ | {"PYTHONPATH": path},
                timeout=ASK_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise errors.TunerError(f"{asked.name}: its package does not answer") from error
        if done.returncode or not answer.is_file():
            tail = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]
            raise errors.TunerError(f"{asked.name}: its package cannot answer: {tail[-500:]}")
        return json.loads(answer.read_text(encoding="utf-8"))


def describe(old: KernelSet, new: KernelSet, pairs: list[Pair], device: dict, is_compiled_only: bool) -> dict:
    """Return the report."""
    rows = [describe_pair(pair) for pair in pairs]
    return {
        "old": {"name": old.name, "label": old.label, "folder": str(old.folder)},
        "new": {"name": new.name, "label": new.label, "folder": str(new.folder)},
        "device": device,
        "pairs": rows,
        "summary": summarize(rows),
        "exit_code": choose_exit_code(rows, is_compiled_only),
    }


def describe_pair(pair: Pair) -> dict:
    """Return one row of the report: ratios are times of NEW over those of OLD in the same round."""
    row = {
        "problem": pair.problem.as_dict(with_defaults=False),
        "verdict": pair.verdict or "compiled",
        "error": pair.error,
        "old": describe_side(pair.old, pair.times_us[OLD]),
        "new": describe_side(pair.new, pair.times_us[NEW]),
        "is_same_code": pair.old.get("kernel") is not None and pair.old.get("kernel") == pair.new.get("kernel"),
    }
    if not pair.times_us[NEW]:
        return row
    ratios = pair.ratios(NEW)
    low, high = statistics.median_interval(ratios)
    return row | {
        "ratio": statistics.median(ratios),
        "ratio_low": low,
        "ratio_high": high,
        "noise": pair.noise,
        "threshold": pair.threshold,
        "rounds": len(ratios),
    }


def describe_side(side: dict, times_us: list[float]) -> dict:
    """Return what a row says of one set."""
    names = ("config", "name", "chosen_by", "kernel", "registers", "spill_bytes", "local_bytes", "shared_bytes")
    time = {"median_us": statistics.median(times_us)} if times_us else {}
    return {name: side.get(name) for name in names} | time


def summarize(rows: list[dict]) -> dict:
    """Return the counts of verdicts, and the geometric mean of the ratios that were measured."""
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    noises = [row["noise"] for row in rows if "noise" in row]
    return {
        "verdicts": dict(sorted(Counter(row["verdict"] for row in rows).items())),
        "measured": len(ratios),
        "mean_ratio": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        "median_noise": statistics.median(noises) if noises else None,
    }


def choose_exit_code(rows: list[dict], is_compiled_only: bool = False) -> int:
    """Return 3 where a result is wrong, a kernel failed, or nothing could be compared; else 1 where NEW is slower
    somewhere; else 0.
    """
    verdicts = {row["verdict"] for row in rows}
    if verdicts & set(duel.BROKEN) or verdicts <= set(duel.SILENT):
        return errors.EXIT_INCONCLUSIVE
    return errors.EXIT_FAILURE if "slower" in verdicts and not is_compiled_only else errors.EXIT_OK
