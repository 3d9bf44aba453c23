"""The measuring backend on fake CUDA: what is launched, timed, compared and recorded (the GPU itself is tested in
tests/gpu).
"""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from deep_gemm import _C
from deep_gemm.errors import LaunchError
from tests.fakes import cuda_backend
from tests.fakes.cuda_backend import FakeKernel
from tuner.measure import backend as measure
from tuner.measure import checked_output, operands
from tuner.measure.checked_output import CheckedOutput, Reference
from tuner.measure.protocol import make_job
from tuner.measure.race import ReferenceFailed
from tuner.measure.records import Plan
from tuner.search.problem_run import EFFORTS

PROBLEM = _C.Problem("fp8_gemm", 70, 136, 272)
H200 = _C.Device.known("h200")
PLAN = replace(EFFORTS["quick"], search_seconds=1.0)


def take_configs(count: int) -> list:
    """Return some candidates."""
    return _C.get_candidates(PROBLEM, H200)[:count]


def run(backend, configs: list, plan: Plan = PLAN, problem=PROBLEM) -> dict:
    """Run one job; return its report."""
    stages = []
    report = backend.run(make_job(problem, configs, [], plan, 1), lambda stage, config: stages.append((stage, config)))
    assert {stage for stage, _ in stages} >= {"setup", "check", "prepare", "search", "recheck"}
    return report


def find(report: dict, config: int, role: str = "search") -> dict:
    """Return one row of a report."""
    return next(row for row in report["results"] if row["config"] == config and row["role"] == role)


def test_times_and_ratios_are_those_of_the_kernels(backend):
    configs = take_configs(6)
    FakeKernel.times_us = dict(zip(configs, (100.0, 80.0, 120.0, 149.0, 151.0, 300.0), strict=True))
    report = run(backend, configs)
    assert [find(report, index)["median_us"] for index in range(6)] == pytest.approx(
        [100.0, 80.0, 120.0, 149.0, 151.0, 300.0]
    )
    assert [find(report, index)["ratio"] for index in range(6)] == pytest.approx([1.0, 0.8, 1.2, 1.49, 1.51, 3.0])
    assert [find(report, index)["status"] for index in range(6)] == ["ok"] * PLAN.finalists + ["censored"]
    assert {row["config"] for row in report["results"] if row["role"] == "confirm"} == {0, 1, 2, 3, 4}
    assert (
        find(report, 1, "confirm")["num_samples"] == PLAN.confirm_rounds == len(find(report, 1, "confirm")["samples"])
    )
    assert report["noise"] == 0.0 and report["reference_us"] == pytest.approx(100.0)


def test_no_launch_starts_during_the_one_before(backend):
    assert FakeKernel.pdl == [False]


def test_slow_checked_launches_are_dropped_without_a_round(backend):
    configs = take_configs(3)
    FakeKernel.times_us = dict(zip(configs, (100.0, 90.0, 1000.0), strict=True))
    report = run(backend, configs)
    assert find(report, 2)["status"] == "censored" and find(report, 2)["num_samples"] == 3
    assert find(report, 2)["ratio"] == pytest.approx(10.0)
    assert configs[2] not in FakeKernel.sets_seen


@pytest.mark.parametrize(
    ("kernel_us", "launches"), [(3.0, 100), (1.0, 128), (149.0, 2), (499.0, 2), (501.0, 1), (5000.0, 1)]
)
def test_replays_last_long_enough(kernel_us, launches):
    assert measure.count_launches(kernel_us) == launches


@pytest.mark.parametrize(("kernel_us", "launches"), [(3.0, 100), (149.0, 4), (70.0, 4), (40.0, 8), (5000.0, 4)])
def test_replays_take_all_draws_alike(kernel_us, launches):
    assert measure.count_launches(kernel_us, draws=4) == launches


def test_graphs_walk_the_whole_ring(backend):
    configs = take_configs(2)
    FakeKernel.times_us = dict.fromkeys(configs, 4.0)
    run(backend, configs)
    ring = backend.pool.make_ring(PROBLEM)
    assert len(ring) == -(-operands.RING_L2_MULTIPLE * (1 << 16) // operands.get_set_bytes(PROBLEM))
    for config in configs:
        assert set(FakeKernel.sets_seen[config]) == {entry.a.data_ptr() for entry in ring}


def test_sets_of_a_ring_do_not_overlap(backend):
    backend.pool = operands.OperandPool("cpu", 1 << 18, 3)
    ring = backend.pool.make_ring(PROBLEM)
    for name in ("a", "scale_a", "b", "scale_b", "d"):
        starts = [getattr(entry, name) for entry in ring]
        spans = sorted(
            (tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()) for tensor in starts
        )
        assert all((start - spans[0][0]) % 1024 == 0 for start, _ in spans)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert all(entry.a.shape == (70, 272) and entry.scale_b.shape == (2, 3) for entry in ring)


def test_pools_are_seeded_and_hold_quantised_normals():
    first, again, other = (operands.make_fp8_pool("cpu", seed, 1 << 16) for seed in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, other)
    values = first.view(torch.float8_e4m3fn).float().view(-1, 128)
    assert (values.abs().amax(1) == 448).all() and 120 < values.std() < 200


VARIANTS = [
    _C.Problem("fp8_gemm", 70, 136, 272, recipe="1d1d", d_dtype="fp32", c_mode="accumulate"),
    _C.Problem("fp8_gemm", 70, 136, 272, recipe="1d1d", scale_layout="any"),
    _C.Problem("fp8_gemm", 70, 136, 272, recipe="per_row", d_dtype="fp32"),
    _C.Problem("fp8_gemm", 70, 136, 272, c_mode="general"),
    _C.Problem("fp8_gemm", 70, 256, 272, c_mode="head_split"),
    _C.Problem("fp8_gemm", 70, 136, 272, c_mode="head_split"),
    _C.Problem("fp8_gemm", 33, 131, 250),
    _C.Problem("fp8_gemm", 1, 136, 100, scale_layout="any"),
    _C.Problem("bf16_gemm", 70, 136, 272, d_dtype="fp32", c_mode="general"),
    *(_C.Problem("bf16_gemm", 70, 131, 270, a_major=a, b_major=b) for a in ("k", "mn") for b in ("k", "mn")),
]


@pytest.mark.parametrize("problem", VARIANTS, ids=str)
def test_every_variant_is_measured_and_a_wrong_result_of_it_found(backend, problem):
    configs = _C.get_candidates(problem, H200)[:4]
    FakeKernel.faults = {
        configs[1]: write_nothing if problem.m == 1 or problem.c_mode == "head_split" else write_shifted
    }
    report = run(backend, configs, problem=problem)
    assert [find(report, index)["status"] for index in range(4)] == ["ok", "incorrect", "ok", "ok"]


@pytest.mark.parametrize("problem", VARIANTS, ids=str)
def test_operands_have_the_layout_of_their_variant(backend, problem):
    ring = operands.OperandPool("cpu", 1 << 16, 1).make_ring(problem)
    for entry in ring:
        rows = [
            tensor.stride(0) if tensor.stride(-1) == 1 else tensor.stride(1) for tensor in (entry.a, entry.b, entry.d)
        ]
        assert all(
            pitch * tensor.element_size() % 16 == 0
            for pitch, tensor in zip(rows, (entry.a, entry.b, entry.d), strict=True)
        )
        assert entry.a.shape == (problem.m, problem.k) and entry.b.shape == (problem.n, problem.k)
        assert (entry.a.stride(0) == 1) == (problem.a_major == "mn") and (entry.b.stride(0) == 1) == (
            problem.b_major == "mn"
        )
        assert (entry.c is entry.d) == (problem.c_mode == "accumulate") and (entry.c is None) == (
            problem.c_mode in ("none", "head_split")
        )
        for scales in (entry.scale_a, entry.scale_b if problem.recipe == "1d1d" else None):
            if scales is not None and scales.dim() == 2:
                assert is_mn_major(scales) == (problem.scale_layout == "mn_major")
        if problem.c_mode == "accumulate":
            assert torch.isfinite(entry.d).all()


def is_mn_major(scales: torch.Tensor) -> bool:
    """Return whether TMA can load vectors of scales: contiguous along the rows, aligned; sizes of 1 have no stride."""
    (rows, steps), (along_rows, along_k) = scales.shape, scales.stride()
    return (rows == 1 or along_rows == 1) and (steps == 1 or along_k % 4 == 0) and scales.data_ptr() % 16 == 0


def test_a_split_of_k_is_judged_by_the_bound_and_defines_no_bits(backend):
    plain, split = _C.Config(64, 64, 4), _C.Config(16, 64, 4, split_k=4, swap_ab=1)
    other = _C.Config(64, 32, 4)
    FakeKernel.split_errors = {split: 1e-3}
    for configs in ([plain, split, other], [split, plain, other]):
        assert [find(run(backend, configs), index)["status"] for index in range(3)] == ["ok"] * 3
    FakeKernel.split_errors = {split: 1e3}
    assert find(run(backend, [plain, split, other]), 1)["status"] == "incorrect"
    FakeKernel.split_errors = {other: 1e-1}
    assert [find(run(backend, [split, plain, other]), index)["status"] for index in range(3)] == [
        "ok",
        "ok",
        "incorrect",
    ]


def write_half(kernel, d, inputs) -> bool:
    """Leave the second half of D as it was."""
    rows = d.shape[0] // 2
    d[:rows] = cuda_backend.multiply(*inputs)[:rows]
    return True


def write_nothing(kernel, d, inputs) -> bool:
    """Leave D stale."""
    return True


def write_shifted(kernel, d, inputs) -> bool:
    """Write every row one place too far."""
    d.copy_(cuda_backend.multiply(*inputs).roll(1, 0))
    return True


def write_nan(kernel, d, inputs) -> bool:
    """Write one NaN."""
    d.copy_(cuda_backend.multiply(*inputs))
    d[-1, -1] = float("nan")
    return True


def write_outside(kernel, d, inputs) -> bool:
    """Write the right D, and one element after it."""
    d.copy_(cuda_backend.multiply(*inputs))
    torch.as_strided(d, (1,), (1,), d.storage_offset() + d.numel()).fill_(0.0)
    return True


def write_right_then_wrong(kernel, d, inputs) -> bool:
    """Be right twice (loading and first check), then wrong."""
    return kernel.count > 2 and write_shifted(kernel, d, inputs)


FAULTS = [write_half, write_nothing, write_shifted, write_nan, write_outside, write_right_then_wrong]


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_results_never_rank(backend, fault):
    configs = take_configs(4)
    FakeKernel.times_us = dict(zip(configs, (100.0, 80.0, 90.0, 95.0), strict=True))
    FakeKernel.faults = {configs[1]: fault}
    report = run(backend, configs)
    rows = [row for row in report["results"] if row["config"] == 1]
    assert rows and all(row["status"] == "incorrect" and "median_us" not in row for row in rows)
    assert find(report, 2)["status"] == "ok"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_reference_fails_the_job(backend, fault):
    configs = take_configs(2)
    FakeKernel.faults = {configs[0]: fault}
    with pytest.raises(ReferenceFailed):
        run(backend, configs)


def test_a_driver_error_is_blamed_on_its_config(backend):
    def fail(kernel, d, inputs):
        raise LaunchError("cuLaunchKernelEx: illegal memory access")

    configs = take_configs(3)
    FakeKernel.faults = {configs[2]: fail}
    with pytest.raises(measure.DeviceFault) as caught:
        run(backend, configs)
    assert caught.value.config == 2


def test_large_problems_check_edges_and_a_spread_of_rows():
    assert checked_output.choose_rows(1000, 1000, 1000) == list(range(1000))
    rows = checked_output.choose_rows(8192, 7168, 16384)
    assert (
        len(rows) == len(set(rows)) == checked_output.SAMPLED_ROWS and rows[:64] == list(range(64)) and rows[-1] == 8191
    )


def test_the_reference_is_compared_on_every_element(backend):
    pool = operands.OperandPool("cpu", 1 << 10, 0)
    (entry, *_), output = pool.make_ring(PROBLEM), CheckedOutput(PROBLEM, "cpu")
    output.prepare(None)
    output.d.copy_(cuda_backend.multiply(entry.a, entry.scale_a, entry.b, entry.scale_b))
    reference = Reference(PROBLEM, entry)
    assert reference.compare(output)[0] is None
    output.d[69, 135] *= 1.03
    assert "1 elements" in reference.compare(output)[0]


def test_isolation_times_one_config_at_a_time(backend):
    configs, stages = take_configs(3), []
    backend.run(
        make_job(PROBLEM, configs, [], replace(PLAN, isolate=True), 1),
        lambda stage, config: stages.append((stage, config)),
    )
    assert all(config is not None for stage, config in stages if stage in ("search", "confirm"))


def test_hello_describes_the_board_by_a_hash(backend):
    hello = backend.hello()
    assert hello["regime"] == "graph-cold" and hello["device"]["uuid_hash"] == cuda_backend.uuid_hash()
    assert "GPU-fake" not in str(hello) and hello["device"]["l2_bytes"] == 1 << 16


@pytest.mark.parametrize(
    ("op", "fields", "split_k", "divides"),
    [
        ("fp8_gemm", {}, 1, False),
        ("fp8_gemm", {}, 2, True),
        ("fp8_mqa_logits", {"heads": 64, "d_dtype": "fp32"}, 1, True),
        ("batched_bf16_gemm", {"num_groups": 4}, 1, False),
        ("summed_bf16_gemm", {"num_groups": 4, "d_dtype": "fp32"}, 1, True),
        ("summed_bf16_gemm", {"num_groups": 4, "d_dtype": "fp32", "batch_invariant": True}, 1, False),
    ],
)
def test_configs_with_sums_of_their_own_are_not_compared_by_bits(op, fields, split_k, divides):
    """A sum over groups has as many parts as its tiles leave room for: its other bits are no error."""
    problem, config = _C.Problem(op, 128, 256, 128, **fields), _C.Config(64, 64, 4, split_k=split_k)
    assert measure.divides_sums(problem, config) == divides


def test_a_config_with_the_references_bits_has_its_error_whatever_was_checked_before():
    problem = _C.Problem("fp8_gemm", 64, 4096, 7168)
    configs = _C.get_candidates(problem, _C.Device.known("h200"))
    plain, split = ([one for one in configs if (one.split_k > 1) == is_split] for is_split in (False, True))
    timer, errors, equal = object.__new__(measure.CudaTimer), iter([0.001, 0.5]), [True, False]
    output = SimpleNamespace(equals=lambda other: equal.pop(0))
    timer.problem, timer.configs, timer.expected, timer.output = (
        problem,
        [plain[0], split[0], *plain[1:3]],
        None,
        output,
    )
    timer.make_output, timer.reference = lambda: output, SimpleNamespace(compare=lambda d: (None, next(errors)))
    found = [(timer.judge(index, output) is None, timer.max_abs_error) for index in range(4)]
    assert found == [(True, 0.001), (True, 0.5), (True, 0.001), (False, None)]
