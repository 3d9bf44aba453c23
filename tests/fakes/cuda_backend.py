"""Stand-ins that let tuner.measure.backend run on CPU tensors: streams, events and graphs of torch.cuda, and kernels
that multiply in torch.

A FakeKernel computes the right product unless `faults` names a fault for its config; a FakeClock advances by the
config's time at each launch, and events read it, so timings are exact and instant.
"""

import hashlib
from types import SimpleNamespace
from typing import ClassVar

import torch

from deep_gemm import _C, reference
from deep_gemm.fields import OP_KINDS
from deep_gemm.numerics import widen
from tuner.measure import anchor
from tuner.measure import backend as measure
from tuner.measure.checked_output import find_columns


class FakeClock:
    """Microseconds of device time that have passed."""

    now_us = 0.0


class FakeEvent:
    """torch.cuda.Event on the fake clock."""

    def __init__(self, enable_timing: bool = False):
        self.at_us = 0.0

    def record(self, stream: object = None) -> None:
        """Remember the clock."""
        self.at_us = FakeClock.now_us

    def synchronize(self) -> None:
        """Do nothing: the fake device is never behind."""

    def query(self) -> bool:
        """Return whether the device came so far."""
        return True

    def elapsed_time(self, end: "FakeEvent") -> float:
        """Return milliseconds."""
        return (end.at_us - self.at_us) / 1e3


class FakeStream:
    """torch.cuda.Stream."""

    cuda_stream = 7

    def synchronize(self) -> None:
        """Do nothing."""


class FakeGraph:
    """torch.cuda.CUDAGraph: records launches between capture_begin and capture_end, and repeats them."""

    capturing: "FakeGraph | None" = None

    def __init__(self):
        self.launches: list = []

    def capture_begin(self, capture_error_mode: str = "global") -> None:
        """Start recording."""
        assert FakeGraph.capturing is None
        FakeGraph.capturing = self

    def capture_end(self) -> None:
        """Stop recording."""
        FakeGraph.capturing = None

    def replay(self) -> None:
        """Repeat what was recorded."""
        assert self.launches
        for launch in self.launches:
            launch()


class FakeKernel:
    """_C.Kernel: the right bits at time `times_us[config]`, or a fault of `faults[config]`."""

    times_us: ClassVar[dict] = {}
    faults: ClassVar[dict] = {}
    sets_seen: ClassVar[dict] = {}
    groups_seen: ClassVar[dict] = {}
    split_errors: ClassVar[dict] = {}
    pdl: ClassVar[list[bool]] = []  # what _C.set_pdl was given

    def __init__(self, cubin: bytes, name: str, problem, config, device: int):
        assert cubin == b"cubin" and device == 0
        self.problem, self.config, self.count = problem, config, 0
        self.latest: tuple = ()

    def launch(
        self,
        a,
        scale_a,
        b,
        scale_b,
        d,
        c=None,
        *,
        groups=None,
        num_sms: int = 0,
        alpha: float = 1.0,
        beta: float = 1.0,
        head_splits=None,
        stream: int = 0,
    ) -> None:
        """Launch now, or into the graph that is capturing."""
        assert stream == FakeStream.cuda_stream
        if FakeGraph.capturing is not None:
            FakeKernel.sets_seen.setdefault(self.config, []).append(a.data_ptr())
            FakeKernel.groups_seen.setdefault(self.config, []).append(groups)
            FakeGraph.capturing.launches.append(self.advance)
            return
        self.count, self.latest = self.count + 1, (groups, c)
        self.advance()
        fault = FakeKernel.faults.get(self.config)
        if fault is not None and fault(self, d, (a, scale_a, b, scale_b)):
            return
        if groups is not None:
            assert (alpha, beta, head_splits) == (1.0, 1.0, None)
            multiply_groups(self.problem, a, scale_a, b, scale_b, d, c, groups)
            return
        product = alpha * multiply(a, scale_a, b, scale_b, dtype=torch.float32)
        if c is not None:
            product += beta * c.float()
        d[:, find_columns(self.problem)] = (product + FakeKernel.split_errors.get(self.config, 0.0)).to(d.dtype)

    def advance(self) -> None:
        """Let the config's time pass."""
        FakeClock.now_us += FakeKernel.times_us.get(self.config, 100.0)


def multiply(a, scale_a, b, scale_b, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return the product of the dequantised operands."""
    return (widen(a, scale_a) @ widen(b, scale_b).T).to(dtype)


def multiply_groups(problem, a, scale_a, b, scale_b, d, c, groups) -> None:
    """Write the product of a grouped problem as the library's own reference does."""
    scales, options = ({"scale_a": scale_a, "scale_b": scale_b}, {}) if "fp8" in problem.op else ({}, {})
    if problem.op.startswith("k_grouped"):
        options = {"c": c} | ({"is_blocks": problem.group_layout == "blocks"} if scales else {})
    elif scales:
        options = {"recipe": problem.recipe}
    if OP_KINDS[problem.op].has_ends and OP_KINDS[problem.op].m_is_shared:
        options |= {"alignment": problem.alignment}
    getattr(reference, problem.op)(a=a, b=b, d=d, groups=groups, **scales, **options)


def install(monkeypatch, l2_bytes: int = 1 << 16) -> None:
    """Replace what tuner.measure.backend uses of CUDA for the duration of a test."""
    FakeKernel.split_errors, FakeKernel.times_us, FakeKernel.faults, FakeKernel.sets_seen = {}, {}, {}, {}
    FakeKernel.pdl, FakeClock.now_us, FakeGraph.capturing = [], 0.0, None
    device = _C.Device("Fake H200", 132, l2_bytes=l2_bytes, clock_mhz=1980.0, memory_gbps=4800.0)
    module = SimpleNamespace(
        Kernel=FakeKernel,
        get_device=lambda ordinal: device,
        get_device_uuid=lambda ordinal: "GPU-fake",
        Device=_C.Device,
        set_pdl=lambda is_enabled: FakeKernel.pdl.append(is_enabled),
    )
    monkeypatch.setattr(measure, "_C", module)
    monkeypatch.setattr(measure, "DEVICE", "cpu")
    monkeypatch.setattr(anchor, "SIZE", 32)
    monkeypatch.setattr(
        measure, "get_cubin", lambda problem, config: SimpleNamespace(cubin=b"cubin", kernel_name="kernel")
    )
    replaced = {
        "Stream": FakeStream,
        "Event": FakeEvent,
        "CUDAGraph": FakeGraph,
        "set_stream": lambda stream: None,
        "set_device": lambda ordinal: None,
        "is_available": lambda: True,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    properties = SimpleNamespace(total_memory=1 << 30, uuid="fake")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda ordinal: properties)


def uuid_hash() -> str:
    """Return the hash that the fake board's hello carries."""
    return hashlib.sha256(b"GPU-fake").hexdigest()
