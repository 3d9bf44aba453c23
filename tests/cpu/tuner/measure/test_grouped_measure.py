"""Measuring grouped problems on fake CUDA: layouts of operands, rings of cold sets, and what the check of D finds and
lets pass.
"""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch

from deep_gemm import _C
from tests.fakes import cuda_backend
from tests.fakes.cuda_backend import FakeKernel
from tests.fakes.grouped_variants import (
    CONTIGUOUS,
    K_GROUPED,
    MASKED,
    WITH_ENDS,
    is_fp8,
    make_grouped,
    make_grouped_variants,
    with_ends,
)
from tuner.measure import operands
from tuner.measure.checked_output import CheckedOutput, Reference
from tuner.measure.protocol import ProtocolError, check_job, make_job
from tuner.measure.race import ReferenceFailed
from tuner.problems.fields import PROBLEM_DEFAULTS
from tuner.problems.workload import WORKLOADS, Workload, make_draws, make_group_tensor, make_groups
from tuner.search.problem_run import EFFORTS

H200 = _C.Device.known("h200")
PLAN = replace(EFFORTS["quick"], search_seconds=1.0)
#: Groups of different sizes, tails of n and k; some groups are empty under a skewed workload.
PROBLEMS = [
    make_grouped(CONTIGUOUS[0], 640, 136, 272, 4),
    make_grouped(CONTIGUOUS[1], 640, 136, 272, 4, b_major="mn"),
    make_grouped(CONTIGUOUS[0], 640, 136, 272, 4, recipe="1d1d", d_dtype="fp32", scale_layout="any", alignment=64),
    make_grouped(MASKED[0], 96, 136, 272, 4, expected_m=40),
    make_grouped(MASKED[1], 96, 131, 272, 4, expected_m=40, d_dtype="fp32"),
    make_grouped(K_GROUPED[0], 72, 136, 768, 4, c_mode="accumulate", group_layout="blocks"),
    make_grouped(K_GROUPED[0], 72, 136, 768, 4, c_mode="general"),
    make_grouped(K_GROUPED[1], 72, 136, 768, 4, c_mode="accumulate"),
    make_grouped(K_GROUPED[1], 72, 136, 768, 4),
]
PROBLEMS += [with_ends(problem) for problem in PROBLEMS if problem.op in WITH_ENDS]
#: Op kinds whose groups divide K.
K_DIVIDED = (*K_GROUPED, *(WITH_ENDS[op] for op in K_GROUPED))


def run(backend, configs: list, problem, workload: str = "spread") -> dict:
    """Run one job; return its report."""
    return backend.run(make_job(problem, configs, [], PLAN, 1, workload), lambda stage, config: None)


def statuses(report: dict, count: int) -> list[str]:
    """Return the status of each config's search row."""
    found = {row["config"]: row["status"] for row in report["results"] if row["role"] == "search"}
    return [found[index] for index in range(count)]


#: The first problem of each FP8 op kind, which is one of each kind of groups; some cases of the rest need --full.
SOME = list({problem.op: problem for problem in reversed(PROBLEMS) if is_fp8(problem.op)}.values())


def full_unless(is_short: bool) -> tuple:
    """Return the marks of a case that always runs, or with --full only."""
    return () if is_short else (pytest.mark.full,)


@pytest.mark.parametrize(
    ("problem", "workload"),
    [
        pytest.param(problem, name, marks=full_unless(problem in SOME or name == "spread"))
        for problem in PROBLEMS
        for name in WORKLOADS
    ],
    ids=str,
)
def test_every_grouped_problem_is_measured(backend, problem, workload):
    configs = _C.get_candidates(problem, H200)[:3]
    assert statuses(run(backend, configs, problem, workload), 3) == ["ok"] * 3


@pytest.mark.parametrize("times_us", [(40.0, 70.0), (900.0, 1900.0)])
@pytest.mark.parametrize(
    "problem",
    [
        _C.Problem(MASKED[0], 96, 136, 272, num_groups=2, expected_m=40),
        _C.Problem(MASKED[1], 32, 64, 256, num_groups=20, expected_m=16),
        make_grouped(CONTIGUOUS[0], 1536, 136, 256, 3),
    ],
    ids=["few masked", "many masked", "contiguous"],
)
def test_a_replay_meets_every_draw_of_the_rows_as_often(backend, problem, times_us):
    configs = _C.get_candidates(problem, H200)[:2]
    FakeKernel.times_us = dict(zip(configs, times_us, strict=True))
    FakeKernel.groups_seen = {}
    run(backend, configs, problem, "spread")
    for config in configs:
        seen = Counter(tuple(groups.tolist()) for groups in FakeKernel.groups_seen[config])
        draws = [make_group_tensor(problem, draw, "cpu") for draw in make_draws(problem, Workload(seed=1))]
        assert sorted(seen) == sorted(tuple(draw.tolist()) for draw in draws) and len(seen) == 4
        assert len(set(seen.values())) == 1


def make_fault(change):
    """Return a fault of FakeKernel: the right product, then `change(problem, d, groups)`."""

    def fault(kernel, d, inputs) -> bool:
        groups, c = kernel.latest
        cuda_backend.multiply_groups(kernel.problem, *inputs, d, c, groups)
        change(kernel.problem, d, groups)
        return True

    return fault


def largest_group(groups: torch.Tensor) -> int:
    """Return the group with most rows or most of K."""
    return int(groups.argmax())


def write_padding(problem, d, groups) -> None:
    """Leave -0 in a row between groups."""
    d[int((groups == -1).nonzero()[0]), 3] = -0.0


def write_other_group(problem, d, groups) -> None:
    """Spoil a valid row of another group."""
    group = largest_group(groups) if d.dim() == 3 else 0
    (d[group] if d.dim() == 3 else d)[0, 5] += 40.0


def leave_row(problem, d, groups) -> None:
    """Leave the last valid row of a group as it was."""
    if d.dim() == 2:
        d[int((groups >= 0).nonzero()[-1])] = float("nan")
    else:
        group = largest_group(groups)
        d[group, int(groups[group]) - 1 if problem.op in MASKED else -1] = float("nan")


def write_outside(problem, d, groups) -> None:
    """Write one element after D."""
    torch.as_strided(d, (1,), (1,), d.storage_offset() + d.numel()).fill_(0.0)


ALIGNED = [problem for problem in PROBLEMS if problem.n % 8 == 0]
FAULTS = [(change, problem) for change in (write_other_group, leave_row, write_outside) for problem in ALIGNED]
FAULTS += [(write_padding, problem) for problem in ALIGNED if problem.op in CONTIGUOUS]


@pytest.mark.parametrize(
    ("change", "problem"),
    [pytest.param(*fault, marks=full_unless(fault[1] in SOME)) for fault in FAULTS],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_wrong_results_of_grouped_problems_never_rank(backend, change, problem):
    configs = _C.get_candidates(problem, H200)[:3]
    FakeKernel.faults = {configs[1]: make_fault(change)}
    assert statuses(run(backend, configs, problem), 3) == ["ok", "incorrect", "ok"]
    FakeKernel.faults = {configs[0]: make_fault(change)}
    with pytest.raises(ReferenceFailed):
        run(backend, configs, problem)


@pytest.mark.parametrize("op", MASKED)
def test_rows_behind_a_masked_groups_last_one_may_hold_anything(backend, op):
    problem = make_grouped(op, 96, 136, 272, 4, expected_m=40)
    values = itertools.count(1.0)

    def overwrite(problem, d, groups) -> None:
        for group, size in enumerate(groups.tolist()):
            d[group, size:] = next(values)

    configs = _C.get_candidates(problem, H200)[:3]
    FakeKernel.faults = {configs[0]: make_fault(overwrite), configs[2]: make_fault(overwrite)}
    assert statuses(run(backend, configs, problem), 3) == ["ok"] * 3


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_reference_agrees_with_the_librarys_own(problem):
    for name in WORKLOADS:
        groups = make_groups(problem, Workload(name))
        pool = operands.OperandPool("cpu", 1 << 10, 0)
        entry, start = pool.make_ring(problem, groups)[0], pool.make_start(problem)
        output = CheckedOutput(problem, "cpu", groups)
        output.prepare(start)
        c = output.d if problem.c_mode == "accumulate" else entry.c
        cuda_backend.multiply_groups(problem, *entry[:4], output.d, c, entry.groups)
        reference = Reference(problem, entry, groups)
        message, error = reference.compare(output)
        assert message is None and 0.0 <= error < 1.0
        assert len(reference.rows) == len(set(reference.rows.tolist())) == count_checked(problem, groups)


def count_checked(problem, groups) -> int:
    """Return the rows that small problems compare: all that hold tokens, or all of D."""
    return problem.num_groups * problem.m if problem.op in K_DIVIDED else sum(groups.sizes)


def test_a_large_problem_checks_edges_of_every_group(monkeypatch):
    monkeypatch.setattr("tuner.measure.checked_output.FULL_REFERENCE_PRODUCTS", 1)
    problem = make_grouped(CONTIGUOUS[1], 8 * 256, 16, 64, 8)
    groups = make_groups(problem, Workload())
    entry = operands.OperandPool("cpu", 1, 0).make_ring(problem, groups)[0]
    rows = set(Reference(problem, entry, groups).rows.tolist())
    assert len(rows) == 8 * 32
    for start, size in zip(*groups, strict=True):
        assert {start, start + 7, start + size - 8, start + size - 1} <= rows


@pytest.mark.parametrize("problem", make_grouped_variants(130, 136, 384, 3) + PROBLEMS, ids=str)
def test_operands_have_the_layout_of_the_contract(problem):
    (entry, *_), (m, n, k, count) = (
        operands.OperandPool("cpu", 1 << 10, 1).make_ring(problem),
        (problem.m, problem.n, problem.k, problem.num_groups),
    )
    steps = -(-k // 128)
    is_masked, is_k = problem.op in MASKED, problem.op in K_DIVIDED
    blocks = problem.group_layout == "blocks"
    assert entry.a.shape == ((m * k,) if blocks else (count, m, k) if is_masked else (m, k))
    assert entry.b.shape == ((n * k,) if blocks else (n, k) if is_k else (count, n, k))
    assert entry.d.shape == ((count, m, n) if is_masked or is_k else (m, n)) and entry.d.stride(-1) == 1
    if is_fp8(problem.op):
        assert entry.scale_a.shape == ((count, m, steps) if is_masked else (m, steps))
        rows = n if problem.recipe == "1d1d" else -(-n // 128)
        assert entry.scale_b.shape == ((rows, steps) if is_k else (count, rows, steps))
    else:
        assert entry.scale_a is None and entry.scale_b is None
    assert (entry.c is None) == (problem.c_mode == "none") and (entry.c is entry.d) == (problem.c_mode == "accumulate")
    assert entry.groups.dtype == torch.int32 and entry.groups.shape == ((m,) if problem.op in CONTIGUOUS else (count,))
    check_strides(problem, entry)


def check_strides(problem, entry) -> None:
    """Assert that TMA can load the operands: one contiguous dimension, everything else in steps of 16 bytes."""
    majors = {"a": problem.a_major, "b": problem.b_major, "d": "k"}
    for name, major in majors.items():
        tensor = getattr(entry, name)
        assert tensor.data_ptr() % 16 == 0
        if tensor.dim() > 1:
            along, across = (
                (tensor.stride(-1), tensor.stride(-2)) if major == "k" else (tensor.stride(-2), tensor.stride(-1))
            )
            assert along == 1 and all(
                stride * tensor.element_size() % 16 == 0 for stride in (across, *tensor.stride()[:-2])
            )
        else:
            assert tensor.is_contiguous()
    vectors = [
        scales for scales in (entry.scale_a, entry.scale_b if problem.recipe == "1d1d" else None) if scales is not None
    ]
    assert all(
        (scales.stride(-2) == 1 and scales.stride(-1) % 4 == 0) == (problem.scale_layout == "mn_major")
        for scales in vectors
    )


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_sets_of_a_ring_are_disjoint_and_touch_more_than_the_cache(problem):
    l2_bytes, groups = 1 << 19, make_groups(problem, Workload(seed=1))
    ring = operands.OperandPool("cpu", l2_bytes, 1).make_ring(problem, groups)
    touched = operands.get_touched_bytes(problem, groups)
    assert len(ring) * touched >= operands.RING_L2_MULTIPLE * l2_bytes > (
        len(ring) - 1
    ) * touched and touched <= operands.get_set_bytes(problem)
    for name in ("a", "b", "d"):
        spans = sorted(
            (tensor.data_ptr(), tensor.data_ptr() + span_bytes(tensor))
            for tensor in (getattr(entry, name) for entry in ring)
        )
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert all(entry.groups is ring[0].groups for entry in ring)


def span_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes from a view's first element to its last."""
    return (
        1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    ) * tensor.element_size()


def test_masked_sets_count_the_rows_expected_and_memory_is_bounded():
    problem = make_grouped(MASKED[0], 4096, 512, 512, 2, expected_m=20)
    groups = make_groups(problem, Workload())
    rows, weights = sum(groups.sizes), 2 * 512 * (512 + 4 / 128 * 4)
    assert operands.get_touched_bytes(problem, groups) == pytest.approx(
        weights + rows * (512 + 512 * 2 + 4 * 4), rel=0.01
    )
    room = operands.get_set_bytes(problem)
    assert (
        operands.count_sets(problem, groups, 1 << 20)
        == -(-3 * (1 << 20) // operands.get_touched_bytes(problem, groups))
        > 1
    )
    assert operands.count_sets(problem, groups, 1 << 40) == min(operands.MAX_RING_SETS, operands.MAX_RING_BYTES // room)
    large = make_grouped(MASKED[1], 8192, 28672, 4096, 64, expected_m=20)
    assert operands.count_sets(large, make_groups(large, Workload()), 50 << 20) == 1


def test_a_skewed_problem_does_not_read_the_matrices_of_empty_groups():
    problem = make_grouped(MASKED[0], 512, 1024, 1024, 16, expected_m=8)
    touched = {name: operands.get_touched_bytes(problem, make_groups(problem, Workload(name))) for name in WORKLOADS}
    assert touched["skewed"] < 0.6 * touched["uniform"]


def test_a_job_names_one_of_the_workloads():
    job = make_job(PROBLEMS[0], _C.get_candidates(PROBLEMS[0], H200)[:1], [], PLAN, 1)
    assert job["workload"] == "spread" and set(job["problem"]) == set(PROBLEM_DEFAULTS)
    check_job(job | {"workload": "skewed"})
    for wrong in ("heavy", "", None, 3, []):
        with pytest.raises(ProtocolError, match="workload"):
            check_job(job | {"workload": wrong})


def test_only_valid_rows_of_masked_groups_are_compared_bit_by_bit():
    problem = make_grouped(MASKED[1], 64, 64, 64, 3, expected_m=20)
    groups = make_groups(problem, Workload())
    one, other = (CheckedOutput(problem, "cpu", groups) for _ in range(2))
    for output, beyond in ((one, 1.0), (other, 2.0)):
        output.prepare(None)
        for group, size in enumerate(groups.sizes):
            output.d[group, :size], output.d[group, size:] = 3.0, beyond
    assert one.equals(other) and other.equals(one)
    other.d[2, groups.sizes[2] - 1, 63] = 3.5
    assert not one.equals(other)
    other.d[2, groups.sizes[2] - 1, 63] = 3.0
    other.bits[0] = 0
    assert not other.equals(one)


def test_all_rows_of_contiguous_groups_are_compared_and_padding_is_plus_zero():
    problem = make_grouped(CONTIGUOUS[1], 512, 64, 64, 2)
    groups = make_groups(problem, Workload())
    indices = make_group_tensor(problem, groups, "cpu")
    output = CheckedOutput(problem, "cpu", groups)
    output.prepare(None)
    output.d.copy_(torch.where((indices >= 0)[:, None], 1.0, 0.0))
    assert output.has_clean_padding() and output.has_clean_guards()
    output.d[int((indices == -1).nonzero()[0]), 7] = -0.0
    assert not output.has_clean_padding()
