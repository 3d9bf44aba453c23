"""Measure on the GPU: the part that runs in the measuring process.

A time is that of a CUDA graph, replayed over a ring of buffer sets that is larger than the L2 cache, so that every
launch finds its operands cold. A replay is several launches of one config, each on the next set of the ring. Replays
are queued on one stream without waiting, behind one that is not timed, so that the device never idles between events.
"""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from deep_gemm import _C, errors
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit.build import get_cubin
from deep_gemm.jit.hashing import package_hash
from deep_gemm.quantize import ceil_div
from tuner.measure.anchor import Anchor, check_canary
from tuner.measure.checked_output import CheckedOutput, make_reference
from tuner.measure.devices import describe_device
from tuner.measure.energy import make_race
from tuner.measure.load import GraphLoad
from tuner.measure.operands import OperandPool, get_factors, get_head_splits
from tuner.measure.power import Draw, PowerMeter
from tuner.measure.protocol import Job, parse_job
from tuner.measure.race import Check
from tuner.measure.records import REPLAY_US, Plan
from tuner.measure.telemetry import Telemetry
from tuner.problems.fields import kernel_identity
from tuner.problems.workload import Workload, make_draws, make_group_tensor

DEVICE = "cuda"
#: The regime of the default workload; part of a measurement's identity, see workload.name_regime.
REGIME = "graph-cold"
#: A kernel that takes longer than this is launched once per replay.
SINGLE_LAUNCH_US = 500.0
MAX_LAUNCHES = 128
#: Every config gets as many launches per replay as the reference, so that overheads are equal, unless a replay would
#: last longer than this.
MAX_REPLAY_US = 4000.0
#: A single launch shorter than this says little about the kernel, because the host needs 5 to 10 us to launch it.
TRUSTED_QUICK_US = 25.0
#: Cycles of the SM clock that a rest takes per microsecond: no board of today runs faster.
REST_CYCLES_PER_US = 2000


class DeviceFault(Exception):
    """The driver reported an error, so nothing in this process can be trusted any more.

    `config` is the index of the config to blame, None where that is not known.
    """

    def __init__(self, config: int | None, error: BaseException):
        super().__init__(f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}")
        self.config = config


class CudaBackend:
    """Measures jobs on device 0 of this process (the parent chooses which GPU that is by CUDA_VISIBLE_DEVICES).

    From then on no kernel of this process starts while the one before it ends.
    """

    def __init__(self):
        if not torch.cuda.is_available():
            raise RuntimeError(
                "no CUDA GPU is visible; `python -m tuner sweep --dry-run` shows without one what would be measured"
            )
        torch.set_float32_matmul_precision("highest")  # TF32 would spoil the dequantised reference
        _C.set_pdl(False)  # a launch that starts during the one before has no time of its own
        torch.cuda.set_device(0)
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.device = _C.get_device(0)
        self.uuid = _C.get_device_uuid(0)
        self.telemetry = Telemetry(self.uuid)
        self.meter = PowerMeter(self.telemetry)
        self.pool: OperandPool | None = None
        self.kernels: dict = {}
        self.anchor = Anchor(DEVICE)
        check_canary(DEVICE)
        self.anchor.run_window()  # loads the vendor's library while the parent still waits long for a message

    def hello(self) -> dict:
        """Return what the parent must know: the package, the regime, the board and the software."""
        memory_bytes = torch.cuda.get_device_properties(0).total_memory
        device = describe_device(self.device, self.uuid, memory_bytes, self.telemetry.power_limit_w())
        return {
            "package": package_hash(),
            "regime": REGIME,
            "device": device,
            "environment": describe_environment(self.telemetry),
        }

    def run(self, message: dict, progress: Callable[[str, int | None], None]) -> dict:
        """Measure one job; return its report as JSON. Raises: ProtocolError, DeviceFault, race.ReferenceFailed."""
        job = self.parse(message)
        progress("setup", None)
        self.get_pool(job.seed)
        self.anchor.warm_up()
        timer = self.make_timer(job)
        progress("setup", None)
        report = make_race(timer, job, progress).run()
        return replace(report, **self.telemetry.read(), anchor_us=self.anchor.read()).to_json()

    def parse(self, message: dict) -> Job:
        """Return the job of a message. Raises: ProtocolError."""
        return parse_job(message)

    def make_timer(self, job: Job) -> "CudaTimer":
        """Return the race's timer."""
        return CudaTimer(self, job.problem, job.configs, job.plan, Workload(job.workload, job.seed))

    def get_pool(self, seed: int) -> OperandPool:
        """Return the pool of operands, made with the seed of the first job."""
        if self.pool is None:
            self.pool = OperandPool(DEVICE, self.device.l2_bytes, seed)
        return self.pool

    def get_kernel(self, problem, config) -> tuple["_C.Kernel", bool]:
        """Return the loaded kernel and whether it was loaded just now. Raises: CompileError, LaunchError."""
        key = kernel_identity(problem), config
        if key in self.kernels:
            return self.kernels[key], False
        result = get_cubin(problem, config)
        self.kernels[key] = _C.Kernel(result.cubin, result.kernel_name, problem, config, 0)
        return self.kernels[key], True


def divides_sums(problem: "_C.Problem", config: "_C.Config") -> bool:
    """Return whether `config` adds up the products of a D in an order of its own: K is split, heads of logits are added
    by lanes, or a sum over groups has as many parts as its tiles leave room for.
    """
    kind = OP_KINDS[problem.op]
    return config.split_k > 1 or kind.is_logits or (kind.is_summed and not problem.batch_invariant)


class CudaTimer:
    """The race's Timer for one problem, see race.Timer. Every driver error becomes a DeviceFault."""

    def __init__(self, backend: CudaBackend, problem, configs: list, plan: Plan, workload: Workload):
        self.backend, self.problem, self.configs, self.plan = backend, problem, configs, plan
        draws = make_draws(problem, workload)
        self.groups = draws[0] if draws else None
        # Launches take these in turn, where there are several: a time is then the mean over the draws.
        self.draws = [make_group_tensor(problem, groups, DEVICE) for groups in draws] if len(draws) > 1 else []
        pool = backend.get_pool(workload.seed)
        self.ring, self.start = pool.make_ring(problem, self.groups), pool.make_start(problem)
        self.reference = make_reference(problem, self.ring[0], self.groups)
        self.output = self.make_output()
        self.expected: CheckedOutput | None = None
        self.expected_error: float | None = None
        alpha, beta = get_factors(problem)
        self.options = {
            "num_sms": problem.num_sms,
            "alpha": alpha,
            "beta": beta,
            "head_splits": get_head_splits(problem),
            "stream": backend.stream.cuda_stream,
        }
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.num_launches: dict[int, int] = {}
        self.quick_us: dict[int, float] = {}
        self.max_abs_error: float | None = None
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.num_marks = 0

    def make_output(self) -> CheckedOutput:
        """Return a D into which checked launches write."""
        return CheckedOutput(self.problem, DEVICE, self.groups)

    def check(self, index: int) -> Check:
        """Launch once on set 0 into a poisoned D and compare it."""
        try:
            kernel, is_new = self.backend.get_kernel(self.problem, self.configs[index])
            return self.check_kernel(index, kernel, is_new)
        except errors.CompileError as error:
            return Check("compile_error", error=str(error)[-2000:])
        except errors.ConfigError as error:
            return Check("skipped", error=str(error))
        except RuntimeError as error:
            raise DeviceFault(index, error) from error

    def check_kernel(self, index: int, kernel: "_C.Kernel", is_new: bool) -> Check:
        """Time one launch of `kernel` and judge what it wrote."""
        output = self.output
        output.prepare(self.start)
        if is_new:
            self.launch(kernel, 0, output.d)  # the first launch loads the code: that is not part of any time
            output.prepare(self.start)
        self.events[0].record()
        self.launch(kernel, 0, output.d)
        self.events[1].record()
        self.events[1].synchronize()
        self.quick_us[index] = self.events[0].elapsed_time(self.events[1]) * 1e3
        error = self.judge(index, output)
        return Check("incorrect" if error else "ok", self.quick_us[index], finite(self.max_abs_error), error)

    def judge(self, index: int, output: CheckedOutput) -> str | None:
        """Return what is wrong with `output`, None where it is right.

        All configs of products that do not divide K must give the same bits: those of the first that passed its check.
        """
        has_own_bits = divides_sums(self.problem, self.configs[index])
        if self.expected is not None and not has_own_bits:
            is_equal = output.equals(self.expected)
            self.max_abs_error = self.expected_error if is_equal else None
            return None if is_equal else "D differs from the reference config's bits, or memory outside D was written"
        error, self.max_abs_error = self.reference.compare(output)
        if error is None and not has_own_bits:
            self.expected, self.output = output, self.make_output()
            self.expected_error = self.max_abs_error
        return error

    def launch(self, kernel: "_C.Kernel", number: int, d: torch.Tensor | None = None) -> None:
        """Launch number `number`, on a set of the ring and with a draw of the groups, into `d` or else the set's D."""
        operands = self.ring[number % len(self.ring)]
        if self.draws:
            operands = operands._replace(groups=self.draws[number % len(self.draws)])
        if d is not None:
            operands = operands._replace(d=d, c=d if operands.c is operands.d else operands.c)
        operands.launch(kernel, **self.options)

    def prepare(self, index: int, part: int = 0) -> None:
        """Capture the graph of `index` and replay it once, which uploads it; each part has as many launches and begins
        at another set of the ring, if that has several.
        """
        try:
            if not part:
                self.num_launches[index] = self.choose_launches(index)
            self.graphs[index] = self.capture(index, shift=find_shift(part, self.plan.confirm_parts, len(self.ring)))
            if self.num_launches[index] > 1 or index == 0:
                self.graphs[index].replay()
                self.backend.stream.synchronize()
        except RuntimeError as error:
            raise DeviceFault(index, error) from error

    def choose_launches(self, index: int) -> int:
        """Return the launches of one replay: as many as the reference's, unless they would take too long; always of all
        draws alike.
        """
        draws = max(len(self.draws), 1)
        if index == 0:
            return count_launches(self.estimate_reference_us(), draws)
        quick_us = max(self.quick_us[index], TRUSTED_QUICK_US)
        return min(self.num_launches[0], max(int(MAX_REPLAY_US / quick_us) // draws, 1) * draws)

    def estimate_reference_us(self) -> float:
        """Return the reference's time: of its checked launch, or of MAX_LAUNCHES where that was too short."""
        if self.quick_us[0] >= TRUSTED_QUICK_US:
            return self.quick_us[0]
        self.num_launches[0] = MAX_LAUNCHES
        self.graphs[0] = self.capture(0)
        self.graphs[0].replay()
        return self.time([0])[0]

    def capture(self, index: int, turn: int = 0, shift: int = 0) -> torch.cuda.CUDAGraph:
        """Capture launches over consecutive sets, or over those behind the ones of so many replays, or `shift` sets on.

        Where a replay is shorter than the ring, configs start at different sets, as choose_start says.
        """
        kernel, _ = self.backend.get_kernel(self.problem, self.configs[index])
        count = self.num_launches[index]
        start = self.choose_start(index, count) + turn * count + shift
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            for number in range(start, start + count):
                self.launch(kernel, number)
        finally:
            graph.capture_end()
        return graph

    def choose_start(self, index: int, count: int) -> int:
        """Return the number of the set that a replay of `count` launches begins with."""
        return index * count if count < len(self.ring) else 0

    def time(self, sequence: Sequence[int]) -> list[float]:
        """Replay the graphs of `sequence` back to back, or each after a rest where the plan has rests; return the
        microseconds per launch of each.
        """
        try:
            self.num_marks, spans = 0, []
            self.graphs[0].replay()  # keeps the device busy while the host queues the others
            last = self.mark()
            for index in sequence:
                first = self.rest(index) if self.plan.rest else last
                self.graphs[index].replay()
                last = self.mark()
                spans.append((first, last, index))
            last.synchronize()
            return [first.elapsed_time(end) * 1e3 / self.num_launches[index] for first, end, index in spans]
        except RuntimeError as error:
            raise DeviceFault(sequence[0] if self.plan.isolate else None, error) from error

    def mark(self) -> torch.cuda.Event:
        """Record an event of this call of `time` and return it."""
        if self.num_marks == len(self.events):
            self.events.append(torch.cuda.Event(enable_timing=True))
        self.num_marks += 1
        self.events[self.num_marks - 1].record()
        return self.events[self.num_marks - 1]

    def rest(self, index: int) -> torch.cuda.Event:
        """Queue a rest before a replay of `index`, as long as the plan says; return the event at its end.

        One thread counts cycles meanwhile: a host that waited would have to launch the replay afterwards, in its time.
        """
        replay_us = self.quick_us[index] * self.num_launches[index]
        torch.cuda._sleep(int(self.plan.rest * replay_us * REST_CYCLES_PER_US))
        return self.mark()

    def launches(self, index: int) -> int:
        """Return the launches of one replay of `index`."""
        return self.num_launches[index]

    def check_power(self) -> None:
        """Begin a block of energy. Raises: PowerUnknown where the board's power cannot be read."""
        self.backend.meter.start_block()

    def draw(self, index: int, seconds: float) -> Draw:
        """Replay `index` without pause and return what it drew. Raises: PowerUnknown."""
        try:
            return self.backend.meter.measure(GraphLoad(self, index), seconds)
        except RuntimeError as error:
            raise DeviceFault(index, error) from error


def count_launches(kernel_us: float, draws: int = 1) -> int:
    """Return how many launches of a kernel that takes `kernel_us` last about REPLAY_US: a multiple of `draws`."""
    if kernel_us >= SINGLE_LAUNCH_US:
        return draws
    launches = min(max(round(REPLAY_US / kernel_us), 2), MAX_LAUNCHES)
    return ceil_div(launches, draws) * draws


def find_shift(part: int, parts: int, ring: int) -> int:
    """Return how many sets of a ring further on a part of the confirmation begins than the first of its `parts`."""
    return part * max(ring // max(parts, 1), 1)


def finite(value: float | None) -> float | None:
    """Return `value`, or None where it is not finite, because JSON has finite numbers only."""
    return value if value is not None and value - value == 0 else None


def describe_environment(telemetry: Telemetry) -> dict:
    """Return the software of this process, as tables.environment has it."""
    return {
        "driver": telemetry.driver_version(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu_count": os.cpu_count(),
    }
