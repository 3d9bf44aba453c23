"""The search space: bounded, legal, ordered, and without configs that another one makes pointless."""

import itertools

import pytest

from deep_gemm import _C
from tests.fakes.grouped_variants import (
    BATCHED,
    CONTIGUOUS,
    K_GROUPED,
    MASKED,
    WITH_ENDS,
    make_grouped,
    make_grouped_variants,
)
from tests.fakes.variants import make_variants

OP = "fp8_gemm"
H200 = _C.Device.known("h200")
SIZES = (1, 7, 8, 63, 64, 65, 127, 128, 129, 256, 257, 576, 4096, 2**31 - 1)
GROUPED = make_grouped_variants(4096, 4096, 4096, 8)
GROUP_SIZES = (1, 8, 64, 129, 512, 4096, 65536, 2**31 - 1)
VARIANTS = [*make_variants(4096, 4096, 4096), *GROUPED]
#: A multiple of all sides that a tile has along m, and of two of them.
ANY_TILE = _C.ANY_TILE_ALIGNMENT
ALIGNMENTS = (8, 16, 24, 40, 64, 96, 128, 136, 192, 256, 512, ANY_TILE, 65536)
PLAIN = {op: _C.Problem(op, 4096, 4096, 4096) for op in ("fp8_gemm", "bf16_gemm")}
SPACE = _C.get_default_space(PLAIN[OP], H200)


def with_fields(problem, **fields):
    return _C.Problem(**(problem.as_dict() | fields))


def with_sizes(problem, m, n, k, **fields):
    return with_fields(problem, m=m, n=n, k=k, **fields)


def fits(config, alignment: int) -> bool:
    """Whether tiles start where groups do; those of a pair may be of two groups."""
    return alignment % config.block_m == 0


@pytest.mark.parametrize("name", ["h200", "h100", "h800", "h20", "gh200"])
def test_default_space_is_bounded_legal_and_without_duplicates(name):
    device = _C.Device.known(name)
    for problem in VARIANTS:
        space = _C.get_default_space(problem, device)
        assert 10 <= len(space) <= 176 and len(set(space)) == len(space)
        assert all(_C.is_legal(problem, config, device) for config in space)
        assert any(config.swap_ab for config in space) == (problem.op not in K_GROUPED)
        assert any(config.split_k > 1 for config in space) == (problem.num_groups == 0)


@pytest.mark.parametrize("op", PLAIN)
def test_default_space_holds_every_knob(op):
    space = _C.get_default_space(PLAIN[op], H200)
    plain, swapped = ([config for config in space if config.swap_ab == swap] for swap in (0, 1))
    assert {config.block_m for config in plain} == {64, 128, 256}
    assert {(config.cluster_m, config.cluster_n) for config in plain} == {(1, 1), (2, 1), (1, 2)}
    assert {32, 48, 72, 80, 112, 128, 136, 144, 160, 192} <= {config.block_n for config in plain}
    assert {8, 16, 24, 32, 48, 64} == {config.block_m for config in swapped if config.block_m <= 64}
    assert any(config.block_m > 64 for config in swapped) == (op == "bf16_gemm")
    assert {(rows, split) for rows in (64, 128) for split in (1, 2, 4, 8)} - {(128, 8)} == {
        (config.block_n, config.split_k) for config in swapped
    }
    splits = {(config.block_m, config.block_n): config.split_k for config in plain if config.split_k > 1}
    both = {(64, 32): 4, (64, 48): 4, (64, 64): 8, (64, 96): 4, (128, 64): 4, (128, 96): 4}
    assert splits == both | ({(64, 40): 8} if op == "fp8_gemm" else {})
    assert len(space) >= 110


def test_bf16_has_wide_tiles():
    tiles = {(config.block_m, config.block_n) for config in _C.get_default_space(PLAIN["bf16_gemm"], H200)}
    assert {(128, 256), (256, 128), (64, 256), (256, 192), (128, 208)} <= tiles


@pytest.mark.parametrize("problem", VARIANTS, ids=str)
def test_tiles_side_by_side_are_for_dense_and_masked_fp8(problem):
    """From 65 rows on: with fewer, narrower tiles are better. Of dense products those have them that were swept with
    them: with block scales, a BF16 D and no C.
    """

    def list_beside(configs) -> set:
        return {config.block_n for config in configs if config.block_m == 64 and config.column_side > 208}

    if not problem.op.startswith(("fp8", "m_grouped_fp8", "k_grouped_fp8", "batched_fp8")):
        return
    fields = problem.op, problem.recipe, problem.d_dtype, problem.c_mode
    is_swept = problem.op in MASKED or fields == ("fp8_gemm", "1d2d", "bf16", "none")
    assert not is_swept or list_beside(_C.get_default_space(problem, H200)) <= {224, 256}
    assert is_swept == bool(list_beside(_C.get_default_space(problem, H200)))
    for m, some in ((64, False), (65, is_swept)):
        assert bool(list_beside(_C.get_candidates(with_sizes(problem, m, 14784, 6144), H200))) == some


def test_small_tiles_come_in_rings_for_neighbours():
    """Those of a split never take an SM for themselves; a ring for `blocks` blocks is the deepest that lets them share
    its shared memory.
    """
    for problem in PLAIN.values():
        rings = {}
        for config in _C.get_default_space(problem, H200):
            fields = config.as_dict()
            rings.setdefault(tuple(fields[name] for name in fields if name != "num_stages"), []).append(config)
        for tile in rings.values():
            assert [config.num_stages for config in tile] == sorted(
                {config.num_stages for config in tile}, reverse=True
            )
            if tile[0].split_k > 1 and (
                tile[0].block_n == 64 if tile[0].swap_ab else tile[0].block_m == 64 and tile[0].block_n <= 64
            ):
                assert all(2 * (_C.smem_bytes(problem, config) + 1024) <= 233472 for config in tile)
            elif len(tile) > 1:
                assert (
                    2 * (_C.smem_bytes(problem, tile[1]) + 1024)
                    <= 233472
                    < 2 * (_C.smem_bytes(problem, tile[0]) + 1024)
                )


def test_pointless_tiles_are_left_out():
    for m, n in ((4096, 4096), (8192, 24576)):
        candidates = _C.get_candidates(_C.Problem(OP, m, n, 7168), H200)
        assert not [config for config in candidates if config.swap_ab or config.block_m * config.block_n < 128 * 64]
    assert [config for config in _C.get_candidates(_C.Problem(OP, 16, 2112, 7168), H200) if config.split_k == 4]


def test_candidates_are_an_ordered_part_of_the_default_space():
    for problem in (*PLAIN.values(), with_sizes(PLAIN[OP], 1, 1, 1, recipe="1d1d", d_dtype="fp32", scale_layout="any")):
        space = _C.get_default_space(problem, H200)
        positions = {config: index for index, config in enumerate(space)}
        union = set()
        for m, n in itertools.product((*SIZES, 16, 24, 32, 40), SIZES):
            candidates = _C.get_candidates(with_sizes(problem, m, n, 7168), H200)
            indices = [positions[config] for config in candidates]
            assert candidates and indices == sorted(set(indices))
            union.update(candidates)
        assert union == set(space)


def test_candidates_are_deterministic_and_only_splits_depend_on_k():
    for m, n in itertools.product((1, 100, 5000), (64, 2112)):
        lists = [
            _C.get_candidates(_C.Problem(OP, m, n, k, compiled_dims=dims), H200)
            for k, dims in ((1, ""), (7168, ""), (7168, "nk"), (2**31 - 1, "nk"))
        ]
        assert lists[1] == lists[2] == lists[3]
        assert lists[0] == [config for config in lists[1] if config.split_k == 1]


def test_pointless_configs_are_dropped():
    widths = sorted({config.block_n for config in SPACE if not config.swap_ab})
    tokens = [8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192]
    for m, n, k in itertools.product(SIZES, SIZES, (128, 512, 7168)):
        for config in _C.get_candidates(_C.Problem(OP, m, n, k), H200):
            if config.swap_ab:
                assert config.block_m == 8 or tokens[tokens.index(config.block_m) - 1] < m
                assert config.block_n == 64 or n > config.block_n // 2
                tiles = -(-m // config.block_m) * -(-n // config.block_n)
                assert config.split_k == 1 or (
                    config.split_k <= -(-k // 128) // 2 and tiles * config.split_k <= 3 * 132
                )
            else:
                assert config.block_m == 64 or m > config.block_m // 2
                assert config.cluster_m == 1 or m > config.block_m
                assert config.cluster_n == 1 or n > config.block_n
                assert config.block_n == 32 or widths[widths.index(config.block_n) - 1] < n


def test_one_sm_leaves_no_clusters():
    for problem in VARIANTS:
        candidates = _C.get_candidates(with_fields(problem, num_sms=1), H200)
        assert candidates and all(config.cluster_m * config.cluster_n == 1 for config in candidates)


@pytest.mark.parametrize("fields", [{"num_sms": 131}, {"batch_invariant": True}])
def test_limits_leave_no_splits(fields):
    free, limited = (_C.get_candidates(_C.Problem(OP, 16, 2112, 7168, **given), H200) for given in ({}, fields))
    assert limited == [config for config in free if config.split_k == 1] != free


def test_device_decides_the_space():
    small = _C.Device(**H200.as_dict() | {"smem_bytes": 101376, "sku": None})
    blackwell = _C.Device(**H200.as_dict() | {"compute_capability": (10, 0), "sku": None})
    for problem in VARIANTS:
        space = _C.get_default_space(problem, small)
        assert space and all(_C.smem_bytes(problem, config) <= 101376 for config in space)
        assert _C.get_default_space(problem, blackwell) == [] == _C.get_candidates(problem, blackwell)


def test_tiles_that_spill_are_left_out():
    """Found by compiling every variant's wide tiles, and in sweeps: 8 to 264 bytes a thread."""
    gradient = _C.Problem(OP, 1, 1, 1, recipe="1d1d", d_dtype="fp32", c_mode="accumulate", scale_layout="any")
    tiles = {(config.block_m, config.block_n) for config in _C.get_default_space(gradient, H200)}
    assert not {(128, 136), (128, 160)} & tiles and (128, 144) in tiles
    general = _C.get_default_space(_C.Problem(OP, 1, 1, 1, c_mode="general", scale_layout="any"), H200)
    assert {(config.cluster_m, config.cluster_n) for config in general if config.block_m == 256} == {(1, 1)}
    rows = {
        (config.block_m, config.block_n)
        for config in _C.get_default_space(_C.Problem(OP, 1, 1, 1, scale_layout="any"), H200)
    }
    assert (64, 144) not in rows and (64, 136) in rows
    for fields, tile, is_kept in (
        ({"d_dtype": "fp32"}, (64, 136), False), ({"recipe": "per_row"}, (256, 128), True),
        ({"recipe": "per_row", "d_dtype": "fp32"}, (256, 128), False),
        ({"recipe": "per_row", "c_mode": "general"}, (256, 128), False),
    ):  # fmt: skip
        space = _C.get_default_space(_C.Problem(OP, 1, 1, 1, **fields), H200)
        assert is_kept == any((config.block_m, config.block_n) == tile for config in space), fields
    pairs = _C.get_default_space(_C.Problem("bf16_gemm", 1, 1, 1, d_dtype="fp32"), H200)
    clusters = {
        config.cluster_m * config.cluster_n for config in pairs if (config.block_m, config.block_n) == (128, 224)
    }
    assert clusters == {1}


def test_grouped_tiles_that_spill_are_left_out():
    """Beside a ring of two scale vectors the queue of tiles takes registers, too: 48 to 128 bytes a thread."""
    fields = {"m": 1, "n": 1, "k": 1, "num_groups": 1, "d_dtype": "fp32"}
    scaled = {"recipe": "1d1d", "scale_layout": "any", **fields}
    for op, c_mode, absent in (
        ("m_grouped_fp8_gemm_masked", "none", {(128, 192)}), ("k_grouped_fp8_gemm_contiguous", "general", {(128, 192)}),
        ("k_grouped_fp8_gemm_contiguous", "accumulate", {(128, 136), (128, 160), (128, 192)}),
    ):  # fmt: skip
        tiles = {
            (config.block_m, config.block_n)
            for config in _C.get_default_space(_C.Problem(op, c_mode=c_mode, **scaled), H200)
        }
        assert not absent & tiles and {(128, 112), (128, 128), (128, 136), (128, 144)} - absent <= tiles
    scaled["scale_layout"] = (
        "mn_major"  # without a ring, and stored directly: 32 bytes, with blocks of scales 60 to 112
    )
    masked = "m_grouped_fp8_gemm_masked"
    for op, recipe in ((masked, "1d1d"), (masked, "1d2d"), ("k_grouped_fp8_gemm_contiguous", "1d1d")):
        space = _C.get_default_space(_C.Problem(op, **scaled | {"recipe": recipe}), H200)
        widest = [config for config in space if (config.block_m, config.block_n) == (128, 192)]
        assert widest and all(config.cluster_m * config.cluster_n == 2 for config in widest)
    for c_mode, has_widest in (("none", False), ("accumulate", True)):
        problem = _C.Problem("k_grouped_bf16_gemm_contiguous", c_mode=c_mode, a_major="mn", b_major="mn", **fields)
        assert (
            any((config.block_m, config.block_n) == (256, 192) for config in _C.get_default_space(problem, H200))
            == has_widest
        )


def test_worth_trying_are_the_candidates_and_no_shallower_rings():
    problem = _C.Problem(OP, 16, 24576, 1536)
    candidates = _C.get_candidates(problem, H200)
    assert candidates and all(_C.is_worth_trying(problem, config, H200) for config in candidates)
    deepest = next(config for config in candidates if config.block_n == 128 and not config.swap_ab)
    shallower = _C.Config(**(deepest.as_dict() | {"num_stages": deepest.num_stages - 1}))
    assert _C.is_legal(problem, shallower, H200) and not _C.is_worth_trying(problem, shallower, H200)
    wide = _C.Config(256, 128, 3)
    assert _C.is_legal(problem, wide, H200) and not _C.is_worth_trying(problem, wide, H200)


def test_dense_tiles_of_any_width_may_be_worth_trying():
    """Recorded searches of wide spaces hold token tiles that no default space has."""
    for op, tokens in itertools.product(PLAIN, (40, 56)):
        rings = [_C.Config(tokens, 64, stages, block_k=128 if op == OP else 64, swap_ab=1) for stages in range(2, 25)]
        worth = [config for config in rings if _C.is_worth_trying(_C.Problem(op, tokens, 4096, 7168), config, H200)]
        deepest = [config for config in rings if _C.is_legal(PLAIN[op], config, H200)][-1]
        assert deepest in worth


def test_sizes_and_number_of_groups_never_matter():
    for problem in GROUPED:
        space = _C.get_default_space(problem, H200)
        for fields in (
            {"num_groups": 1},
            {"num_groups": 65535},
            {"m": 1, "n": 1, "k": 1},
            {"expected_m": 1} if problem.op in MASKED else {},
        ):
            assert all(_C.is_legal(with_fields(problem, **fields), config, H200) for config in space)
            assert _C.get_default_space(with_fields(problem, **fields), H200) == space


def test_the_alignment_takes_configs_away_and_adds_none():
    for problem in GROUPED:
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
        for m, n, groups in itertools.product(GROUP_SIZES, (1, 129, 4096), (1, 8, 256))
    ]
    if problem.op in MASKED:
        return sized + [with_fields(problem, m=4096, expected_m=rows) for rows in (1, 5, 64, 300, 4096)]
    if problem.op in CONTIGUOUS:
        return [with_fields(one, alignment=alignment) for one in sized for alignment in ALIGNMENTS]
    return sized


@pytest.mark.parametrize("problem", GROUPED, ids=str)
def test_every_grouped_problem_has_candidates_all_of_them_legal(problem):
    for one in make_sized(problem):
        candidates = _C.get_candidates(one, H200)
        assert 1 <= len(candidates) <= 176, one
        assert all(_C.is_legal(one, config, H200) and _C.is_worth_trying(one, config, H200) for config in candidates), (
            one
        )


def test_candidates_of_groups_are_an_ordered_part_of_the_default_space():
    for problem in GROUPED:
        space = _C.get_default_space(
            with_fields(problem, alignment=ANY_TILE) if problem.op in CONTIGUOUS else problem, H200
        )
        positions = {config: index for index, config in enumerate(space)}
        for one in make_sized(problem):
            indices = [positions[config] for config in _C.get_candidates(one, H200)]
            assert indices == sorted(set(indices))


def make_any(op: str, m: int = 200):
    """Return a problem of any op kind but index logits."""
    groups = {"num_groups": 4} if "group" in op or "batched" in op or "summed" in op else {}
    return _C.Problem(op, m, 4096, 4096, **groups)


def find_wide(problem) -> set[int]:
    """Return the rows of the swapped tiles of more than 64 among a problem's candidates."""
    return {config.block_m for config in _C.get_candidates(problem, H200) if config.swap_ab and config.block_m > 64}


def test_wide_swapped_tiles_are_for_bf16_where_they_waste_fewer_rows():
    wide = {m: find_wide(_C.Problem("bf16_gemm", m, 4096, 4096)) for m in (1, 64, 65, 72, 192, 404, 1058, 4096, 8191)}
    assert not any(wide[m] for m in (1, 64, 4096, 8191))
    assert wide[65] == wide[72] == {72, 80, 88, 96, 104, 112, 120}
    assert wide[192] == {72, 80, 96, 104, 112, 120, 192, 208, 224, 240} and {104, 136, 208} <= wide[404]
    assert {136, 152, 160} <= wide[1058] and 192 not in wide[1058]
    assert not find_wide(_C.Problem("bf16_gemm", 404, 64, 4096)), "a tile takes 128 columns"
    assert find_wide(_C.Problem("bf16_gemm", 404, 4096, 4096, a_major="mn")) <= {192}
    assert not find_wide(_C.Problem("fp8_gemm", 404, 4096, 4096))


def test_wide_swapped_tiles_are_for_masked_groups_of_some_rows():
    def find(rows):
        return find_wide(make_grouped("m_grouped_bf16_gemm_masked", 4096, 4096, 7168, 8, expected_m=rows))

    assert not find(16) and find(32) == {72} and {152, 192, 240} <= find(192) and 240 in find(512)
    assert not find(513) and not find(0), "the estimate would fit a number that is only expected"
    others = [problem for problem in GROUPED if problem.op != "m_grouped_bf16_gemm_masked"]
    spaces = [_C.get_default_space(problem, H200) for problem in (*others, PLAIN["fp8_gemm"])]
    assert not any(config.swap_ab and config.block_m > 64 for space in spaces for config in space)


@pytest.mark.parametrize(
    "op, fields",
    [
        ("bf16_gemm", {"block_n": 256, "num_stages": 3}),
        ("bf16_gemm", {"split_k": 8, "num_stages": 5}),
        ("fp8_gemm", {"block_k": 128, "num_stages": 6}),
        ("batched_bf16_gemm", {}),
    ],
)
def test_swapped_tiles_outside_every_space_are_not_worth_trying(op, fields):
    problem = make_any(op, 404)
    sound = {"block_m": 104, "block_n": 128, "num_stages": 6, "block_k": 64, "swap_ab": 1}
    assert _C.is_worth_trying(_C.Problem("bf16_gemm", 404, 4096, 4096), _C.Config(**sound), H200)
    config = _C.Config(**sound | fields)
    assert _C.is_legal(problem, config, H200), _C.legality_reason(problem, config, H200)
    assert not _C.is_worth_trying(problem, config, H200)


def test_few_rows_of_a_group_bring_narrow_tiles():
    def widths(op, m, num_groups, **fields):
        return {
            config.block_m
            for config in _C.get_candidates(make_grouped(op, m, 4096, 7168, num_groups, **fields), H200)
            if config.swap_ab and config.block_m <= 64
        }

    for op in MASKED:
        assert widths(op, 4096, 8, expected_m=8) == {8, 16} and widths(op, 4096, 8, expected_m=16) == {8, 16, 24, 32}
        assert widths(op, 4096, 8) == set() == widths(op, 4096, 8, expected_m=1024)
    for op in CONTIGUOUS:
        assert widths(op, 8 * 128, 8) == {8, 16, 32, 64} and widths(op, 8 * 1024, 8) == set(), (
            "groups of 128 rows may be mostly padding"
        )


@pytest.mark.parametrize("num_groups, m, n, num_sms", [(265, 64, 96, 0), (600, 1, 112, 0), (33, 16, 80, 16)])
@pytest.mark.parametrize("op", [K_GROUPED[1], WITH_ENDS[K_GROUPED[1]], BATCHED[1]])
def test_many_groups_of_few_rows_have_a_tile(op, num_groups, m, n, num_sms):
    """Tiles of an MN-major B are 64 or 128 wide: the narrow one was left out for a wider one, which n left out."""
    fields = {"d_dtype": "fp32", "a_major": "mn", "b_major": "mn"}
    problem = _C.Problem(op, m, n, 64 * num_groups, num_groups=num_groups, num_sms=num_sms, **fields)
    assert _C.get_candidates(problem, H200)
