"""Workloads: group sizes add up, spread as they say, and follow from problem, workload and seed alone."""

import pytest
import torch

from deep_gemm import _C
from tests.fakes.grouped_variants import CONTIGUOUS, GROUPED_OPS, K_GROUPED, MASKED, make_grouped
from tuner import errors
from tuner.problems import workload
from tuner.problems.workload import (
    WORKLOADS,
    Workload,
    count_draws,
    count_stored_draws,
    make_draws,
    make_group_tensor,
    make_groups,
)

SHAPES = [(1, 128), (3, 5), (4, 8192), (7, 100), (64, 40)]


def contiguous(num_groups: int, mean: int, alignment: int = 128, extra: int = 0):
    """Return a problem of contiguous groups whose last one may end within a unit."""
    return _C.Problem(CONTIGUOUS[0], num_groups * mean + extra, 512, 1024, num_groups=num_groups, alignment=alignment)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(("num_groups", "mean"), SHAPES)
@pytest.mark.parametrize("alignment", [8, 128, 240])
def test_contiguous_groups_fill_m_in_units_of_the_alignment(name, num_groups, mean, alignment):
    for seed, extra in enumerate((0, 1, 77)):
        problem = contiguous(num_groups, mean, alignment, extra)
        starts, sizes = make_groups(problem, Workload(name, seed))
        assert len(starts) == len(sizes) == num_groups and starts[0] == 0
        ends = [*starts[1:], problem.m]
        assert all(start % alignment == 0 for start in starts if start < problem.m)
        for start, end, size in zip(starts, ends, sizes, strict=True):
            room = max(min(end, problem.m) - start, 0)
            assert 0 <= size <= room < size + alignment and (size > 0) == (room > 0)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(("num_groups", "mean"), SHAPES)
def test_groups_of_k_add_up_in_units_of_128(name, num_groups, mean):
    problem = make_grouped(K_GROUPED[0], 64, 64, 128 * mean * num_groups, num_groups)
    for seed in range(3):
        starts, sizes = make_groups(problem, Workload(name, seed))
        assert sum(sizes) == problem.k and all(size % 128 == 0 and size >= 0 for size in sizes)
        assert starts == [sum(sizes[:index]) for index in range(num_groups)]


def test_groups_of_k_that_cannot_add_up_are_a_usage_error():
    with pytest.raises(errors.UsageError, match=r"k = 200.*128"):
        make_groups(make_grouped(K_GROUPED[1], 64, 64, 200, 2), Workload())


@pytest.mark.parametrize(("expected_m", "mean"), [(20, 20), (1, 1), (4096, 4096), (0, 2048)])
def test_masked_groups_hold_around_the_rows_expected(expected_m, mean):
    problem = _C.Problem(MASKED[0], 4096, 512, 1024, num_groups=32, expected_m=expected_m)
    starts, sizes = make_groups(problem, Workload())
    assert starts == [group * 4096 for group in range(32)]
    assert all(0 <= size <= 4096 and 0.7 * mean - 0.5 <= size <= 1.3 * mean + 0.5 for size in sizes)
    assert mean < 20 or len(set(sizes)) > 5
    assert make_groups(problem, Workload("uniform")).sizes == [mean] * 32
    assert make_groups(_C.Problem(MASKED[0], 1, 8, 16, num_groups=2), Workload()).sizes == [1, 1]


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        (CONTIGUOUS[0], {"m": 16 * 1024, "k": 512}),
        (MASKED[1], {"m": 8192, "k": 512, "expected_m": 256}),
        (K_GROUPED[1], {"m": 64, "k": 16 * 1024}),
    ],
)
def test_skewed_means_one_large_group_and_some_empty(op, sizes):
    problem = make_grouped(op, sizes.pop("m"), 512, sizes.pop("k"), 16, **sizes)
    found = sorted(make_groups(problem, Workload("skewed")).sizes)
    assert found[-1] > 0.9 * sum(found) and found.count(0) == 8 and 0 < found[8] < found[-1] / 10


def test_a_skewed_group_has_no_more_rows_than_room():
    problem = _C.Problem(MASKED[0], 512, 512, 512, num_groups=64, expected_m=256)
    assert max(make_groups(problem, Workload("skewed")).sizes) == 512


@pytest.mark.parametrize("num_groups", [1, 3, 40])
def test_draws_of_masked_groups_meet_every_quarter_of_the_spread(num_groups):
    problem = _C.Problem(MASKED[0], 4096, 512, 1024, num_groups=num_groups, expected_m=1000)
    draws = make_draws(problem, Workload())
    assert len(draws) == count_draws(problem, Workload()) == 4 and draws[0] == make_groups(problem, Workload())
    for group in range(num_groups):
        quarters = sorted(int((draw.sizes[group] - 700) / 150) for draw in draws)
        assert quarters == [0, 1, 2, 3]
    total = sum(sum(draw.sizes) for draw in draws) / (4 * num_groups)
    assert abs(total - 1000) <= 75 and '"draws":4' in Workload().describe(problem)


def test_contiguous_groups_are_drawn_anew_and_fill_m_each_time():
    problem = contiguous(20, 1024)
    draws = make_draws(problem, Workload())
    assert len(draws) == count_draws(problem, Workload()) == 4 and draws[0] == make_groups(problem, Workload())
    assert len({tuple(draw.sizes) for draw in draws}) == 4 and draws == make_draws(problem, Workload())
    for draw in draws:
        ends = [start + size for start, size in zip(*draw, strict=True)]
        assert all(end <= start < end + 128 for end, start in zip(ends, [*draw.starts[1:], problem.m], strict=True))
    assert count_stored_draws(Workload().describe(problem)) == 4


def test_one_draw_is_enough_where_rows_are_not_drawn():
    few = _C.Problem(MASKED[0], 4096, 512, 1024, num_groups=2, expected_m=1000)
    split = make_grouped(K_GROUPED[0], 64, 64, 4096, 4)
    assert make_draws(few, Workload("uniform")) == [make_groups(few, Workload("uniform"))]
    assert make_draws(split, Workload()) == [make_groups(split, Workload())]
    assert make_draws(_C.Problem("fp8_gemm", 64, 128, 512), Workload()) == []
    assert "draws" not in Workload().describe(split) and count_stored_draws(Workload().describe(split)) == 1
    assert count_stored_draws("") == 1


def test_spread_sizes_differ_and_uniform_ones_do_not():
    problem = contiguous(8, 8192)
    spread, uniform = make_groups(problem, Workload()).sizes, make_groups(problem, Workload("uniform")).sizes
    assert uniform == [8192] * 8 and len(set(spread)) == 8
    assert min(spread) > 0.55 * 8192 and max(spread) < 1.6 * 8192  # a share of 0.7 to 1.3 of the mean of such draws
    assert 0 < problem.m - sum(spread) < 8 * 128


def test_sizes_depend_on_problem_workload_and_seed_alone():
    found = make_groups(contiguous(7, 1024), Workload(seed=3)).sizes
    assert found == [771, 1118, 1037, 1179, 781, 848, 823], "recorded measurements are of these sizes, in every process"
    draws = {
        tuple(make_groups(contiguous(7, mean), Workload(name, seed)).sizes)
        for mean in (8192, 8320)
        for name in ("spread", "skewed")
        for seed in (0, 1)
    }
    assert len(draws) == 8


@pytest.mark.parametrize("op", GROUPED_OPS)
def test_the_tensor_that_a_kernel_reads(op):
    problem = make_grouped(op, 512, 64, 512, 3)
    groups = make_groups(problem, Workload())
    tensor = make_group_tensor(problem, groups, "cpu")
    assert tensor.dtype == torch.int32 and tensor.is_contiguous()
    if op not in CONTIGUOUS:
        assert tensor.tolist() == groups.sizes
        return
    assert tensor.shape == (512,)
    for group, (start, size) in enumerate(zip(*groups, strict=True)):
        assert (tensor[start : start + size] == group).all()
    assert int((tensor == -1).sum()) == 512 - sum(groups.sizes)


def test_ends_of_groups_ascend_within_a_ragged_m():
    """6 units for 7 groups: one is empty, and the last unit, which is ragged, may lie before it."""
    for seed in range(8):
        problem = _C.Problem("m_grouped_bf16_gemm_psum", 700, 512, 1024, num_groups=7)
        groups = make_groups(problem, Workload("uniform", seed))
        ends = make_group_tensor(problem, groups, "cpu").tolist()
        assert sorted(groups.sizes) == [0, 60, 128, 128, 128, 128, 128] and groups.sizes.index(60) > 0
        assert ends == sorted(ends) and ends[-1] == 700
        assert ends == [sum(groups.sizes[: group + 1]) for group in range(7)]


def test_dense_problems_have_no_groups():
    problem = _C.Problem("fp8_gemm", 64, 64, 128)
    assert make_groups(problem, Workload("skewed")) is None and Workload("skewed").describe(problem) == ""


def test_what_is_stored_is_canonical_and_names_the_regime():
    problem = contiguous(2, 128)
    assert Workload(seed=5).describe(problem) == '{"draws":4,"seed":5,"sizes":"spread","spread":0.3}'
    assert Workload("skewed", 5).describe(problem) == '{"seed":5,"sizes":"skewed"}'
    texts = {name: Workload(name).describe(problem) for name in WORKLOADS}
    assert [workload.is_default(text) for text in ("", *texts.values())] == [True, True, False, False]
    assert [workload.name_regime("graph-cold", problem.op, name) for name in WORKLOADS] == [
        "graph-cold",
        "graph-cold-uniform",
        "graph-cold-skewed",
    ]
    assert workload.name_regime("graph-cold", "fp8_gemm", "skewed") == "graph-cold"
