"""The measuring process of two sets, on fake CUDA: whose kernel is launched, what is compared, which messages pass."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from deep_gemm import _C
from tests.fakes import cuda_backend
from tests.fakes.cuda_backend import FakeKernel
from tuner.compare.duel import PLAN
from tuner.measure import anchor, operands, sets
from tuner.measure.protocol import ProtocolError
from tuner.measure.race import ReferenceFailed
from tuner.measure.sets import Entry, make_sets_job, parse_sets_job
from tuner.measure.worker import SETS_BACKEND, load_backend

PROBLEM = _C.Problem("fp8_gemm", 70, 136, 272)
OLD, NEW = _C.get_candidates(PROBLEM, _C.Device.known("h200"))[:2]


@pytest.fixture
def backend(monkeypatch, tmp_path):
    """A backend of two sets with native modules of their own, which count what they load."""
    cuda_backend.install(monkeypatch)
    monkeypatch.setattr(operands, "MIN_POOL_BYTES", 1 << 16)
    monkeypatch.setattr(anchor, "STEADY_LIMIT_S", 0.0)
    loaded: list[tuple] = []
    early: dict[str | None, bool] = {}  # of each native module, the setting of early starts

    def load_native(number: int, path: str | None):
        def make_kernel(*arguments):
            loaded.append((path, arguments[3]))
            return FakeKernel(*arguments)

        def set_pdl(enabled: bool):
            early[path] = enabled

        early[path] = True  # as in a new process
        return SimpleNamespace(Kernel=make_kernel, Problem=_C.Problem, Config=_C.Config, set_pdl=set_pdl)

    monkeypatch.setattr(sets, "load_native", load_native)
    (tmp_path / sets.MANIFEST).write_text(json.dumps([None, "new.so"]))
    for name in ("old.cubin", "new.cubin"):
        (tmp_path / name).write_bytes(b"cubin")
    made = load_backend(f"{SETS_BACKEND}={tmp_path}")
    made.loaded, made.early = loaded, early
    return made


def make_entry(number: int, config, has_same_bits: bool = True) -> Entry:
    """Return an entry of one of the two sets."""
    name = ("old", "new")[number]
    return Entry(number, json.dumps(config.as_dict(with_defaults=False)), f"{name}.cubin", "kernel", has_same_bits)


def run(backend, new_config=NEW, turn: int = 0, problem=PROBLEM, **options: bool) -> dict:
    """Run one job of three entries; return its report."""
    entries = [make_entry(0, OLD), make_entry(1, new_config, **options), make_entry(0, OLD)]
    plan = replace(PLAN, confirm_rounds=10)
    return backend.run(make_sets_job(problem, entries, plan, turn=turn), lambda stage, config: None)


def find(report: dict, config: int, role: str = "confirm") -> dict:
    """Return one row of a report."""
    return next(row for row in report["results"] if row["config"] == config and row["role"] == role)


def test_no_set_starts_its_kernels_early(backend):
    """Its native module has a setting of its own: launches of one set took 0.4 us less than the other's (H100)."""
    assert backend.early == {None: False, "new.so": False}


def test_each_kernel_is_loaded_by_its_own_set(backend):
    FakeKernel.times_us = {OLD: 100.0, NEW: 80.0}
    report = run(backend)
    assert backend.loaded == [(None, OLD), ("new.so", NEW)]
    assert find(report, 1)["ratio"] == pytest.approx(0.8) and find(report, 2)["ratio"] == pytest.approx(1.0)
    assert len(find(report, 1)["samples"]) == 10
    run(backend, turn=1)
    assert len(backend.loaded) == 2


def flip_a_bit(kernel, d, operands) -> bool:
    """Compute the right product but for the last bit of one element."""
    d[:] = cuda_backend.multiply(*operands)
    d.view(-1)[5:6].view(dtype=cuda_backend.torch.int16)[0] ^= 1
    return True


def test_a_single_bit_is_wrong_where_bits_must_be_equal(backend):
    FakeKernel.faults = {NEW: flip_a_bit}
    report = run(backend)
    assert find(report, 1, "search")["status"] == "incorrect" and "bits" in find(report, 1, "search")["error"]
    report = run(backend, has_same_bits=False)
    assert find(report, 1, "search")["status"] == "ok"


def test_a_wrong_product_is_wrong_whatever_its_bits(backend):
    FakeKernel.faults = {NEW: lambda kernel, d, operands: d.fill_(1.0) is d}
    assert find(run(backend, has_same_bits=False), 1, "search")["status"] == "incorrect"
    FakeKernel.faults = {OLD: lambda kernel, d, operands: d.fill_(1.0) is d}
    with pytest.raises(ReferenceFailed):
        run(backend)


def test_turns_start_at_other_operands(backend):
    FakeKernel.times_us = {OLD: 600.0, NEW: 600.0}
    for turn in range(6):
        run(backend, turn=turn)
    assert len(FakeKernel.sets_seen[OLD]) == 12 and len(set(FakeKernel.sets_seen[OLD])) > 1


@pytest.mark.parametrize(
    "change",
    [
        {"entries": []},
        {"entries": [[0, "{}", "../a.cubin", "kernel", True]]},
        {"entries": [[True, "{}", "a.cubin", "kernel", True]]},
        {"entries": [[0, "{}", "a.cubin", "kernel"]]},
        {"turn": 1.5},
        {"plan": {}},
        {"workload": "heavy"},
        {"problem": {"op": "fp8_gemm", "m": -1, "n": 1, "k": 1}},
        {"path": "x"},
    ],
)
def test_other_messages_are_refused(change):
    job = make_sets_job(PROBLEM, [make_entry(0, OLD)], PLAN)
    assert parse_sets_job(job).problem == PROBLEM
    with pytest.raises(ProtocolError):
        parse_sets_job(job | change)
