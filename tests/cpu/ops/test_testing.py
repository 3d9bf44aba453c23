"""deep_gemm.testing and deep_gemm.utils under DeepGEMM's module names."""

import importlib
import os
import socket
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing

import deep_gemm
from deep_gemm import testing, utils
from deep_gemm.errors import ArgumentError, DeviceError
from deep_gemm.testing.bench import bench, bench_kineto, drop_flushes, list_kernels
from deep_gemm.utils import dist
from deep_gemm.utils.dist import uneven_all_gather


def test_names_of_submodules_are_those_of_the_packages():
    for package, modules in ((testing, ("numeric", "utils")), (utils, ("layout", "math", "dist"))):
        for name in modules:
            module = importlib.import_module(f"{package.__name__}.{name}")
            public = getattr(module, "__all__", None) or [
                each for each, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
            ]
            for each in public:
                if not each.startswith("_"):
                    assert getattr(package, each) is getattr(module, each) and each in package.__all__
    assert testing.bench is bench and testing.bench_kineto is bench_kineto
    assert set(utils.layout.__all__) | set(utils.math.__all__) <= set(deep_gemm.__all__)


def test_bits_are_compared():
    nan = torch.tensor([[1.0, float("nan")], [0.0, 2.0]])
    testing.assert_bitwise_equal(nan, nan.clone())
    testing.assert_bitwise_equal(torch.empty(0, 3), torch.empty(0, 3))
    testing.assert_bitwise_equal(torch.tensor(2), torch.tensor(2))
    for other, message in (
        (nan * torch.tensor([[1.0], [-1.0]]), r"here: 2 of 4 elements differ, first \[1, 0\]: 0.0 and -0.0"),
        (nan.double(), "here: torch.float32 .2, 2. is compared with torch.float64"),
        (nan[:1], "is compared with"),
    ):
        with pytest.raises(AssertionError, match=message):
            testing.assert_bitwise_equal(nan, other, "here")


def test_bits_of_lazily_conjugated_and_negated_numbers_are_compared():
    pairs = (torch.ones(4) * (1 - 2j)).conj()
    assert pairs.is_conj() and pairs.imag.is_neg()
    for lazy in (pairs, pairs.imag):
        testing.assert_bitwise_equal(lazy, lazy.clone().resolve_conj())
        with pytest.raises(AssertionError, match="4 of 4 elements differ"):
            testing.assert_bitwise_equal(lazy, -lazy.clone())


@pytest.mark.parametrize(
    "call", [testing.get_arch_major, lambda: bench(print), lambda: bench_kineto(print, "gemm", flush_l2=False)]
)
def test_what_needs_a_gpu_says_so(call, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="needs a GPU, and torch finds none"):
        call()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: bench_kineto(print, 3), "kernel_names = 3: must be a str or a tuple"),
        (lambda: bench_kineto(print, ("gemm", 3)), "kernel_names = .'gemm', 3.: must be"),
        (lambda: bench_kineto(3, "gemm"), "fn = 3: must be a function"),
        (lambda: bench(print, num_tests=0), "num_tests = 0: must be an int of 1"),
        (lambda: bench(print, num_warmups=None), "num_warmups = None"),
    ],
)
def test_what_cannot_be_timed(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize("holds", [False, True])
def test_a_filter_leaves_out_what_does_not_hold(holds, capsys):
    calls = []

    @testing.test_filter(lambda: holds)
    def run(x, y=0):
        calls.append((x, y))

    run(1, y=2)
    assert calls == ([(1, 2)] if holds else []) and ("run: left out" in capsys.readouterr().out) != holds


@pytest.mark.parametrize("holds", [False, True])
def test_a_variable_is_ignored_during_a_call(holds, monkeypatch):
    monkeypatch.setenv("DG_SOMETHING", "7")

    @testing.ignore_env("DG_SOMETHING", lambda: holds)
    def read(fails=False):
        if fails:
            raise KeyError
        return os.environ.get("DG_SOMETHING")

    assert read() == (None if holds else "7")
    with pytest.raises(KeyError):
        read(fails=True)
    assert os.environ["DG_SOMETHING"] == "7"


#: The module: its name in the package is that of a function, too.
BENCH = importlib.import_module("deep_gemm.testing.bench")

#: The kernels that empty the L2, the one of them whose name a call may ask for, and what one timed call runs.
READ = "reduce_kernel<long>"
FLUSH = ["Memset", READ]
ONCE = [("Memset", 1.0), (READ, 130.0), ("gemm", 20.0)]


def make_event(name: str, time: float, start: int, launch: int, **changes) -> SimpleNamespace:
    """What the profiler says of a kernel: `time` is in microseconds, `launch` the number of what started it."""
    event = {
        "name": name,
        "self_device_time_total": time,
        "time_range": SimpleNamespace(start=start),
        "id": launch,
        "device_type": torch.autograd.DeviceType.CUDA,
        "is_user_annotation": False,
    }
    return SimpleNamespace(**event | changes)


@pytest.fixture
def calls(monkeypatch):
    """Give bench_kineto a profiler that sees no kernel, as here without a GPU; returns what is called, in order."""
    calls = []

    class Profiler:
        def __init__(self, **options):
            self.events = list

        def take(self):
            """See what was called since the last step."""
            seen = calls.copy()
            calls.clear()
            self.events = lambda: seen

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def step(self):
            pass

        def export_chrome_trace(self, path):
            calls.append(f"trace {path}")

    monkeypatch.setattr(torch.profiler, "profile", Profiler)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: calls.append("sleep"))
    monkeypatch.setattr(BENCH, "_make_flush_buffer", lambda: torch.ones(4))
    return calls


def test_the_read_before_a_call_is_not_counted(calls, monkeypatch):
    """Its sum is a kernel named "reduce", which bench_kineto(..., "reduce") took for one of the call."""
    launches = iter(range(100))

    def run(name, time):
        number = next(launches)
        calls.append(make_event(name, time, start=number, launch=number))

    monkeypatch.setattr(torch.profiler.profile, "step", lambda self: self.take())
    monkeypatch.setattr(BENCH, "_make_flush_buffer", lambda: SimpleNamespace(sum=lambda: run(READ, 130.0)))
    found = bench_kineto(lambda: (run("gemm", 20.0), run(READ, 4.0)), ("gemm", "reduce", "x"), num_tests=2)
    assert found == pytest.approx((2e-5, 4e-6, 0.0))
    assert bench_kineto(lambda: run("gemm", 20.0), "reduce", num_tests=3) == 0.0


def test_a_kernel_that_did_not_run_takes_no_time(calls):
    options = {"suppress_kineto_output": True, "barrier": lambda: calls.append("barrier")}
    assert bench_kineto(lambda: calls.append("fn"), ("gemm", "x"), num_tests=2, **options) == (0.0, 0.0)
    assert calls == ["sleep", "barrier", "fn"] * 4


def test_what_empties_the_l2_is_no_kernel_of_a_call():
    names = ("reduce", "gemm")
    assert drop_flushes(ONCE * 3, FLUSH, 3, names) == [("Memset", 1.0), ("gemm", 20.0)] * 3
    assert drop_flushes(ONCE * 3, FLUSH, 3, ("Memset",)) == [(READ, 130.0), ("gemm", 20.0)] * 3
    twice = [*ONCE, (READ, 5.0)]
    assert drop_flushes(twice * 3, FLUSH, 3, ("",)) == [("gemm", 20.0), (READ, 5.0)] * 3
    assert drop_flushes(ONCE, [], 1, names) == ONCE


@pytest.mark.parametrize("kernels", [[], [*ONCE, *ONCE, (READ, 5.0), *ONCE], [*ONCE, *ONCE]], ids=len)
def test_reads_that_cannot_be_told_from_the_calls_own_are_an_error(kernels):
    """They were dropped, or counted, by a guess."""
    with pytest.raises(ArgumentError, match=r"also empties the L2, and ran \d times in 3 calls, not equally"):
        drop_flushes(kernels, FLUSH, 3, ("reduce",))
    assert drop_flushes(kernels, FLUSH, 3, ("gemm",)) == kernels


def test_events_of_the_profiler_have_what_is_asked_of_them():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.mm(torch.ones(8, 8), torch.ones(8, 8))
    events = profiler.events()
    assert any(event.name == "aten::mm" for event in events) and list_kernels(events) == []
    assert all(hasattr(event, name) for event in events for name in ("id", "time_range", "is_user_annotation"))


def test_kernels_are_what_ran_on_the_gpu_in_the_order_of_launches():
    events = [
        make_event("b", 2.0, start=3, launch=7),
        make_event("a", 1.0, start=9, launch=5),
        make_event("step", 7.0, start=0, launch=0, is_user_annotation=True),
        make_event("aten::mm", 3.0, start=1, launch=1, device_type=torch.autograd.DeviceType.CPU),
        make_event("nothing", 0.0, start=2, launch=2),
        make_event("c", 4.0, start=8, launch=7),
    ]
    assert list_kernels(events) == [("a", 1.0), ("b", 2.0), ("c", 4.0)]  # a graph's kernels have one launch


@pytest.mark.parametrize("path", [None, "trace.json"])
def test_a_trace_is_written_after_all_calls_where_one_is_asked_for(calls, path):
    assert bench_kineto(lambda: calls.append("fn"), "gemm", num_tests=1, trace_path=path) == 0.0
    assert calls == ["fn", "fn", *(["trace trace.json"] if path else [])]


@pytest.mark.parametrize("rank, environment", [(0, "1"), (1, "0"), (None, "0"), (None, "1"), (None, "")])
def test_a_line_for_each_rank_or_for_each_machine(monkeypatch, capsys, rank, environment):
    waits = []
    monkeypatch.setattr(dist, "_local_rank", rank)
    monkeypatch.setenv("LOCAL_RANK", environment)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    with pytest.raises(ArgumentError, match="there is no process group, .*; call init_dist or torch.distributed"):
        dist.dist_print("too early")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: waits.append(capsys.readouterr().out))
    dist.dist_print(s="from each")
    dist.dist_print("once", once_in_node=True)
    utils.dist_print()
    is_first = rank == 0 or (rank is None and environment == "0")
    assert waits == ["from each\n", "once\n" if is_first else "", "\n"]


def test_joining_needs_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="init_dist: needs a GPU"):
        dist.init_dist(0, 1)


def test_who_prints_is_known_from_where_a_process_joined(monkeypatch):
    joined = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch, "set_default_device", lambda device: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda **options: joined.update(options))
    for name in ("get_rank", "get_world_size", "new_group"):
        monkeypatch.setattr(torch.distributed, name, lambda *ranks, name=name: (name, *ranks))
    monkeypatch.setattr(dist, "_local_rank", None)
    monkeypatch.setenv("RANK", "1"), monkeypatch.setenv("WORLD_SIZE", "2")
    found = dist.init_dist(1, 4)
    assert found == (("get_rank",), ("get_world_size",), ("new_group", list(range(8))))
    assert (joined["rank"], joined["world_size"], dist._local_rank) == (5, 8, 1)


def gather(rank: int, port: int) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for dim in (0, 1):
        own = torch.full((rank + 2, 3) if dim == 0 else (3, rank + 2), float(rank))
        found = uneven_all_gather(own, dim)
        expected = torch.tensor([0.0] * 2 + [1.0] * 3)[:, None].expand(5, 3)
        assert torch.equal(found, expected if dim == 0 else expected.T) and found.is_contiguous()
    torch.distributed.destroy_process_group()


def test_tensors_of_several_sizes_are_gathered():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(gather, (port,), nprocs=2)
