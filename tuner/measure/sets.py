"""Measure kernels of several sets in one process: each is loaded and launched by the native module of its own set.

So both kernels have one CUDA context, one clock and the same operands, and a set may pass its kernels other parameters,
grids and tensor maps than the next: the host code that knows is its own. Native modules of different sources live side
by side because they are built with different ABI tags for pybind11 (see tuner/compare/kernel_sets.py). Only the second
kernel of a sum of products, which adds up its parts, and the schedule of paged logits are always this package's own.

The folder that the backend is made with holds the cubins, and sets.json: a list with the path of each set's native
module, null for this package's own. A job's message:
    {"type": "job", "problem": {fields}, "entries": [see Entry], "plan": {fields}, "seed": int, "workload": str,
     "turn": int}
`turn` numbers the jobs of a problem: rounds are shuffled and replays start at other operands in each. An entry that
is to be compared with itself stands in a job twice, with a graph for each.
"""

import importlib.machinery
import importlib.util
import json
import random
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from deep_gemm import _C
from tuner.measure.backend import CudaBackend, CudaTimer
from tuner.measure.checked_output import CheckedOutput
from tuner.measure.protocol import Job, ProtocolError, check_plan, encode_plan, is_integer, require
from tuner.measure.race import Shuffler
from tuner.measure.records import Plan
from tuner.problems.workload import WORKLOADS, Workload

MANIFEST = "sets.json"


class Entry(NamedTuple):
    """One kernel of a job: the number of its set, its config's fields as a text of JSON, its file, its symbol, and
    whether its D must have the bits of entry 0.
    """

    set: int
    config: str
    kernel: str
    symbol: str
    has_same_bits: bool


def make_sets_job(
    problem, entries: list[Entry], plan: Plan, seed: int = 0, workload: str = "spread", turn: int = 0
) -> dict:
    """Return the message that asks to measure `entries` on `problem`."""
    return {
        "type": "job",
        "problem": problem.as_dict(),
        "entries": [list(entry) for entry in entries],
        "plan": encode_plan(plan),
        "seed": seed,
        "workload": workload,
        "turn": turn,
    }


@dataclass(frozen=True)
class SetsJob(Job):
    """A checked job: `configs` are its entries."""

    turn: int = 0


def parse_sets_job(message: dict) -> SetsJob:
    """Check a job's message and return it. Raises: ProtocolError."""
    require(set(message) == {"type", "problem", "entries", "plan", "seed", "workload", "turn"}, "fields")
    entries = message["entries"]
    require(isinstance(entries, list) and 1 <= len(entries) <= 16, "entries")
    require(all(isinstance(row, list) and is_entry(row) for row in entries), "entries")
    require(is_integer(message["seed"]) and is_integer(message["turn"]), "seed or turn")
    require(message["workload"] in WORKLOADS, "workload")
    check_plan(message["plan"])
    try:
        problem = _C.Problem(**message["problem"])
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"job: bad problem: {error}") from error
    turn = message["turn"]
    return SetsJob(
        problem=problem,
        configs=[Entry(*row) for row in entries],
        must_confirm=list(range(len(entries))),
        plan=Plan(**message["plan"]),
        seed=message["seed"],
        workload=message["workload"],
        turn=turn,
        order=Shuffler(turn),
        has_twin=False,
    )


def is_entry(row: list) -> bool:
    """Return whether a list has the fields of an Entry; a kernel's file is a bare name."""
    kinds = (int, str, str, str, bool)
    return (
        len(row) == len(kinds)
        and all(type(value) is kind for value, kind in zip(row, kinds, strict=True))
        and Path(row[2]).name == row[2]
    )


class SetsBackend(CudaBackend):
    """A CudaBackend whose jobs name kernels of the sets of one folder."""

    def __init__(self, folder: str):
        super().__init__()
        self.folder = Path(folder)
        natives = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
        self.natives = [load_native(number, path) for number, path in enumerate(natives)]
        for native in self.natives:  # each has its own switch; with early starts a set's launches would look shorter
            if hasattr(native, "set_pdl"):
                native.set_pdl(False)

    def parse(self, message: dict) -> SetsJob:
        """Return the job of a message. Raises: ProtocolError."""
        return parse_sets_job(message)

    def make_timer(self, job) -> "SetsTimer":
        """Return the race's timer."""
        return SetsTimer(self, job)

    def get_kernel(self, problem, config: Entry) -> tuple:
        """Return the loaded kernel and whether it was loaded just now."""
        key = (_C.kernel_identity(problem), config[:4])
        if key in self.kernels:
            return self.kernels[key], False
        native = self.natives[config.set]
        cubin = (self.folder / config.kernel).read_bytes()
        described = native.Problem(**problem.as_dict(with_defaults=False)), native.Config(**json.loads(config.config))
        self.kernels[key] = native.Kernel(cubin, config.symbol, *described, 0)
        return self.kernels[key], True


def load_native(number: int, path: str | None) -> ModuleType:
    """Return the native module of a set; None is this package's own. It is not entered in sys.modules."""
    if path is None:
        return _C
    loader = importlib.machinery.ExtensionFileLoader(f"deep_gemm_set{number}._C", path)
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class SetsTimer(CudaTimer):
    """The timer of one job. Every D is compared with the dequantised product, and with entry 0's bits where the entry
    says so.
    """

    def __init__(self, backend: SetsBackend, job):
        super().__init__(backend, job.problem, job.configs, job.plan, Workload(job.workload, job.seed))
        self.turn = job.turn

    def judge(self, index: int, output: CheckedOutput) -> str | None:
        """Return what is wrong with `output`, None where it is right."""
        error, self.max_abs_error = self.reference.compare(output)
        if error is not None or not self.configs[index].has_same_bits:
            return error
        if self.expected is None:
            self.expected, self.output = output, self.make_output()
            return None
        return None if output.equals(self.expected) else "D has other bits than entry 0's"

    def choose_start(self, index: int, count: int) -> int:
        """Return the set that a replay begins with: as in a sweep, but from another place of the ring in each turn.

        A replay that goes round the ring leaves the same part of it in the L2 whichever kernel comes next, as all of
        them begin at one set.
        """
        first = random.Random(self.turn).randrange(len(self.ring))
        return (first + super().choose_start(index, count)) % len(self.ring)
