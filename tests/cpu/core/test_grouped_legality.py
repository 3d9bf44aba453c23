"""What the groups forbid of a config, and the search space that is left: bounded, legal, never empty, without splits."""

import itertools

import pytest

from deep_gemm import _C
from deep_gemm.errors import ConfigError
from tests.fakes.grouped_variants import (
    CONTIGUOUS,
    GROUPED_OPS,
    K_GROUPED,
    MASKED,
    is_fp8,
    make_grouped,
    make_grouped_variants,
)

H200 = _C.Device.known("h200")
DEVICES = [_C.Device.known(name) for name in ("h200", "h100", "h800", "h20", "gh200")]
VARIANTS = make_grouped_variants(4096, 4096, 4096, 8)
#: A multiple of all sides that a tile has along m, and of two of them.
ANY_TILE = 15360
ALIGNMENTS = (8, 16, 24, 40, 64, 96, 128, 136, 192, 256, 512, ANY_TILE, 65536)
SIZES = (1, 8, 64, 129, 512, 4096, 65536, 2**31 - 1)


def with_fields(problem, **fields):
    return _C.Problem(**(problem.as_dict() | fields))


def block_k(problem) -> int:
    return 128 if is_fp8(problem.op) else 64


def fits(config, alignment: int) -> bool:
    return alignment % (config.block_m * config.cluster_m) == 0


def test_a_cluster_tile_has_rows_of_one_group():
    """The tile of a CTA, and of the pair that shares B, starts where a group starts and ends before the next one."""
    for op, alignment in itertools.product(CONTIGUOUS, ALIGNMENTS):
        problem = make_grouped(op, 1, 1, 1, 1, alignment=alignment)
        plain = [
            _C.Config(rows, 64, 2, block_k=block_k(problem), cluster_m=cluster)
            for rows in (64, 128, 256)
            for cluster in (1, 2)
        ]
        swapped = [_C.Config(tokens, 64, 2, block_k=block_k(problem), swap_ab=1) for tokens in range(8, 136, 8)]
        for config in plain + swapped:
            assert _C.is_legal(problem, config, H200) == fits(config, alignment), (alignment, config)


@pytest.mark.parametrize("op, fields, config, words", [
    (CONTIGUOUS[0], {}, {"block_m": 256, "block_n": 128}, "block_m = 256: with cluster_m it must divide the alignment 128 of the groups' rows; choose a smaller tile"),
    (CONTIGUOUS[0], {}, {"block_m": 128, "block_n": 128, "cluster_m": 2}, "block_m = 128: with cluster_m it must divide the alignment 128"),
    (CONTIGUOUS[1], {"alignment": 40}, {"block_m": 16, "block_n": 64, "swap_ab": 1}, "block_m = 16: with cluster_m it must divide the alignment 40"),
    (CONTIGUOUS[1], {"b_major": "mn"}, {"block_m": 128, "block_n": 96}, "an MN-major operand needs a tile side in steps of 64"),
    (K_GROUPED[1], {}, {"block_m": 64, "block_n": 80}, "an MN-major operand needs a tile side in steps of 64"),
    (K_GROUPED[1], {}, {"block_m": 32, "block_n": 64, "swap_ab": 1}, "an MN-major operand needs a tile side in steps of 64"),
    (K_GROUPED[0], {}, {"block_m": 64, "block_n": 64, "split_k": 2}, "split_k = 2: grouped ops do not split K; use 1"),
    (MASKED[0], {}, {"block_m": 16, "block_n": 64, "split_k": 4, "swap_ab": 1}, "split_k = 4: grouped ops do not split K; use 1"),
    (MASKED[0], {}, {"block_m": 64, "block_n": 176}, "block_n = 176: a tile may touch at most two"),
    (MASKED[1], {}, {"block_m": 64, "block_n": 64, "block_k": 128}, "block_k = 128: must be 64 for m_grouped_bf16_gemm_masked, 128 bytes; use it"),
])  # fmt: skip
def test_reason_names_value_rule_and_remedy(op, fields, config, words):
    problem = make_grouped(op, 1, 1, 128, 1, **fields)
    config = _C.Config(**({"num_stages": 2, "block_k": block_k(problem)} | config))
    reason = _C.legality_reason(problem, config, H200)
    assert words in reason and "; " in reason and not _C.is_legal(problem, config, H200)


def test_no_group_is_ever_split():
    for problem in VARIANTS:
        for split, swap in itertools.product((2, 4, 8), (0, 1)):
            config = _C.Config(64, 64, 2, block_k=block_k(problem), split_k=split, swap_ab=swap)
            assert not _C.is_legal(problem, config, H200) and _C.is_legal(
                problem, _C.Config(**(config.as_dict() | {"split_k": 1})), H200
            )
            with pytest.raises(ConfigError, match="grouped ops do not split K"):
                _C.estimate_time_us(problem, config, H200)


def test_sizes_and_number_of_groups_never_matter():
    for problem in VARIANTS:
        space = _C.get_default_space(problem, H200)
        for fields in (
            {"num_groups": 1},
            {"num_groups": 65535},
            {"m": 1, "n": 1, "k": 1},
            {"expected_m": 1} if problem.op in MASKED else {},
        ):
            assert all(_C.is_legal(with_fields(problem, **fields), config, H200) for config in space)
            assert _C.get_default_space(with_fields(problem, **fields), H200) == space


@pytest.mark.parametrize("problem", VARIANTS, ids=str)
def test_default_space_is_bounded_legal_and_without_duplicates(problem):
    for device in DEVICES:
        space = _C.get_default_space(problem, device)
        assert 10 <= len(space) <= 160 and len(set(space)) == len(space)
        assert all(_C.is_legal(problem, config, device) and config.split_k == 1 for config in space)
        assert any(config.swap_ab for config in space) == (problem.op not in K_GROUPED)


def test_the_alignment_takes_configs_away_and_adds_none():
    for problem in VARIANTS:
        if problem.op in CONTIGUOUS:
            whole = _C.get_default_space(with_fields(problem, alignment=ANY_TILE), H200)
            assert {config.block_m for config in whole if not config.swap_ab} == {64, 128, 256}
            for alignment in ALIGNMENTS:
                assert _C.get_default_space(with_fields(problem, alignment=alignment), H200) == [
                    config for config in whole if fits(config, alignment)
                ]


def make_sized(problem) -> list:
    """Return problems of one variant over sizes of m, groups and what its kind has beside them."""
    sized = [
        with_fields(problem, m=m, n=n, num_groups=groups)
        for m, n, groups in itertools.product(SIZES, (1, 129, 4096), (1, 8, 256))
    ]
    if problem.op in MASKED:
        return sized + [with_fields(problem, m=4096, expected_m=rows) for rows in (1, 5, 64, 300, 4096)]
    if problem.op in CONTIGUOUS:
        return [with_fields(one, alignment=alignment) for one in sized for alignment in ALIGNMENTS]
    return sized


@pytest.mark.parametrize("problem", VARIANTS, ids=str)
def test_every_problem_has_candidates_all_of_them_legal(problem):
    for one in make_sized(problem):
        candidates = _C.get_candidates(one, H200)
        assert 1 <= len(candidates) <= 160, one
        assert all(_C.is_legal(one, config, H200) and _C.is_worth_trying(one, config, H200) for config in candidates), (
            one
        )


def test_candidates_are_an_ordered_part_of_the_default_space():
    for problem in VARIANTS:
        space = _C.get_default_space(
            with_fields(problem, alignment=ANY_TILE) if problem.op in CONTIGUOUS else problem, H200
        )
        positions = {config: index for index, config in enumerate(space)}
        for one in make_sized(problem):
            indices = [positions[config] for config in _C.get_candidates(one, H200)]
            assert indices == sorted(set(indices))


def test_few_rows_of_a_group_bring_narrow_tiles():
    def widths(op, m, num_groups, **fields):
        return {
            config.block_m
            for config in _C.get_candidates(make_grouped(op, m, 4096, 7168, num_groups, **fields), H200)
            if config.swap_ab
        }

    for op in MASKED:
        assert widths(op, 4096, 8, expected_m=8) == {8, 16} and widths(op, 4096, 8, expected_m=16) == {8, 16, 24, 32}
        assert widths(op, 4096, 8) == set() == widths(op, 4096, 8, expected_m=1024)
    for op in CONTIGUOUS:
        assert widths(op, 8 * 128, 8) == {8, 16, 32, 64} and widths(op, 8 * 1024, 8) == set(), (
            "groups of 128 rows may be mostly padding"
        )


def test_one_sm_leaves_no_clusters():
    for problem in VARIANTS:
        candidates = _C.get_candidates(with_fields(problem, num_sms=1), H200)
        assert candidates and all(config.cluster_m * config.cluster_n == 1 for config in candidates)


def test_a_device_without_the_kernels_has_no_space():
    blackwell = _C.Device(**H200.as_dict() | {"compute_capability": (10, 0), "sku": None})
    for problem in VARIANTS:
        assert _C.get_default_space(problem, blackwell) == [] == _C.get_candidates(problem, blackwell)
