"""The geometry of the kernels and the predicate that every launch passes."""

import itertools
import random

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
from tests.fakes.variants import OPS, make_variants

OP = "fp8_gemm"
H200 = _C.Device.known("h200")
PROBLEM = _C.Problem(OP, 1, 1, 1)
VARIANTS = [*make_variants(), *make_grouped_variants()]
BASE = {"block_m": 128, "block_n": 128, "num_stages": 4}
SWAPPED = {"block_m": 16, "block_n": 64, "num_stages": 4, "swap_ab": 1}
#: What a grouped kernel's tiles take on their way to the math warps (tile_queue.cuh).
TILE_QUEUE_BYTES = 384
ALIGNMENTS = (8, 16, 24, 40, 64, 96, 128, 136, 192, 256, 512, 15360, 65536)


def align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def sides(config) -> tuple[int, int]:
    """Return the rows and the columns of the matrix instructions."""
    return (config.block_n, config.block_m) if config.swap_ab else (config.block_m, config.block_n)


def is_beside(config) -> bool:
    """Return whether two math warpgroups take half of the columns each: wide FP8 tiles of 64 rows."""
    return config.block_k == 128 and not config.swap_ab and config.block_m == 64 and config.block_n > 208


def math_groups(config) -> int:
    return 1 if sides(config)[0] == 64 and not is_beside(config) else 2


def group_sides(config) -> tuple[int, int]:
    """Return the rows and the columns of a math warpgroup."""
    rows, columns = sides(config)
    return (rows, columns // 2) if is_beside(config) else (rows // math_groups(config), columns)


def has_scales(problem) -> bool:
    return is_fp8(problem.op) and problem.recipe != "per_row"


def has_ring(problem) -> bool:
    return has_scales(problem) and problem.scale_layout == "any"


def d_bytes(problem, config) -> int:
    return align(config.block_m * config.block_n * (4 if problem.d_dtype == "fp32" else 2), 1024)


def is_staged(problem, config) -> bool:
    return problem.c_mode in ("none", "accumulate") and config.split_k == 1 and d_bytes(problem, config) <= 81920


def expected_smem(problem, config) -> int:
    """The table of gemm_layout.cuh; two D tiles where C is loaded for two math warpgroups and both fit."""
    loads_c = problem.c_mode == "accumulate" and is_staged(problem, config)
    both = smem_of_tiles(problem, config, 2)
    is_ahead = loads_c and math_groups(config) == 2 and both <= 232448
    return both if is_ahead else smem_of_tiles(problem, config, int(is_staged(problem, config)))


def smem_of_tiles(problem, config, tiles: int) -> int:
    """Slack, D tiles, stages, their scales, parts of a split, barriers, ring of scales."""
    columns, is_1d1d = group_sides(config)[1], problem.recipe == "1d1d"
    most_blocks = most_scale_blocks(config.block_n) if is_beside(config) else 2
    stage = (config.block_m + config.block_n) * 128
    if has_scales(problem) and not has_ring(problem):
        blocks = max(1, config.block_n // 128) if config.swap_ab else most_blocks
        stage += align(config.block_m * 4, 128) + align((config.block_n if is_1d1d else blocks) * 4, 128)
    buffers = (4 if math_groups(config) == 1 else 2) if has_ring(problem) else 0
    ring = align(buffers * 8 * 4 * (config.block_m + (config.block_n if is_1d1d else most_blocks)), 128)
    split = config.split_k
    receive = split * -(-(columns // 8) // split) * 128 * math_groups(config) * 16 if split > 1 else 0
    of_c = 2 * tiles * math_groups(config) if problem.c_mode == "accumulate" and is_staged(problem, config) else 0
    barriers = align((2 * config.num_stages + 2 * buffers + (split > 1) + of_c) * 8, 128)
    queue = TILE_QUEUE_BYTES if problem.op in GROUPED_OPS else 0
    return 1024 + tiles * d_bytes(problem, config) + config.num_stages * stage + receive + barriers + ring + queue


def expected_registers(problem, config) -> int:
    rows, columns = group_sides(config)
    final = rows // 64 * columns // 2
    if not is_fp8(problem.op):
        return final + 40
    partials = 2 if _C.is_pipelined(problem, config) else 1
    accumulators = final + partials * columns // 2
    has_columns = has_scales(problem) and (problem.recipe == "1d1d" or config.swap_ab)
    held = partials * (columns // 4) if has_columns else 0
    return accumulators + (held if accumulators + held <= 176 else 0) + (16 if partials == 2 else 40)


def most_scale_blocks(width: int) -> int:
    """Walk every start of a tile, or of a warpgroup's part of one, up to a full period and count the 128-column blocks
    that so many columns meet.
    """
    return max((start + width - 1) // 128 - start // 128 + 1 for start in range(0, 128 * width, width))


def expected_legal(problem, config) -> bool:
    """Every rule of the kernels for a tile whose sides are in range."""
    rules = [
        expected_smem(problem, config) <= 232448,
        expected_registers(problem, config) <= (248 if math_groups(config) == 1 else 232),
        config.swap_ab
        or not has_scales(problem)
        or problem.recipe == "1d1d"
        or most_scale_blocks(group_sides(config)[1]) <= 2,
        group_sides(config)[1] % 8 == 0,
        config.cluster_m == 1 or config.block_n % 16 == 0,
        config.cluster_m * config.cluster_n == 1 or not config.swap_ab,
        problem.a_major == "k" or config.block_m % 64 == 0,
        problem.b_major == "k" or config.block_n % 64 == 0,
        config.split_k == 1
        or (sides(config)[0] <= 128 and problem.num_sms == 0 and not problem.batch_invariant and problem.op in OPS),
        problem.op not in CONTIGUOUS or problem.alignment % config.block_m == 0,
    ]
    return all(rules)


def block_k_of(op: str) -> int:
    return 128 if is_fp8(op) else 64


def grid_of_configs(op: str = OP):
    """Yield configs whose sides, depth, cluster and split are each in range."""
    block_k = block_k_of(op)
    widths, depths = range(8, 264, 8), (2, 3, 5, 9, 24, 32)
    for rows, columns, stages, cluster in itertools.product((64, 128, 256), widths, depths, ((1, 1), (2, 1), (1, 2))):
        yield _C.Config(rows, columns, stages, block_k=block_k, cluster_m=cluster[0], cluster_n=cluster[1])
    for rows, columns, stages, split in itertools.product((64, 128, 256), widths, depths, (1, 2, 4, 8)):
        yield _C.Config(columns, rows, stages, block_k=block_k, split_k=split, swap_ab=1)
        if split > 1:
            yield _C.Config(rows, columns, stages, block_k=block_k, split_k=split)


GRIDS = {op: list(grid_of_configs(op)) for op in (*OPS, *GROUPED_OPS)}


@pytest.mark.parametrize("problem", VARIANTS, ids=str)
def test_geometry_and_legality_of_every_variant(problem):
    generator = random.Random(str(problem))
    for config in generator.sample(GRIDS[problem.op], 800):
        assert _C.smem_bytes(problem, config) == expected_smem(problem, config), config
        assert _C.num_threads(problem, config) == 128 + 128 * math_groups(config)
        assert _C.is_staged(problem, config) == is_staged(problem, config)
        wanted = expected_legal(problem, config)
        assert _C.is_legal(problem, config, H200) == wanted, config
        assert (_C.legality_reason(problem, config, H200) == "") == wanted


def test_pipelined_tiles():
    def widest(problem, **fields):
        side = "block_m" if fields.get("swap_ab") else "block_n"
        return max(
            (
                width
                for width in range(8, 216, 8)
                if _C.is_pipelined(problem, _C.Config(**(fields | {side: width, "num_stages": 4})))
            ),
            default=0,
        )

    one_dim, per_row = (_C.Problem(OP, 1, 1, 1, recipe=recipe) for recipe in ("1d1d", "per_row"))
    assert [widest(PROBLEM, block_m=block_m) for block_m in (64, 128, 256)] == [144, 128, 0]
    assert [widest(PROBLEM, block_n=block_n, swap_ab=1) for block_n in (64, 128, 256)] == [32, 32, 0]
    assert [widest(one_dim, block_m=block_m) for block_m in (64, 128, 256)] == [128, 128, 0]
    assert [widest(per_row, block_n=block_n, swap_ab=1) for block_n in (64, 128, 256)] == [144, 128, 0]
    assert widest(_C.Problem("bf16_gemm", 1, 1, 1), block_m=64) == 0
    beside = {"block_m": 64, "block_n": 256, "num_stages": 4}  # two math warpgroups of 128 columns
    assert [_C.is_pipelined(problem, _C.Config(**beside)) for problem in (PROBLEM, one_dim, per_row)] == [True] * 3
    assert not _C.is_pipelined(PROBLEM, _C.Config(**beside, loop=1))


@pytest.mark.parametrize(
    "config, words",
    [
        (BASE | {"block_m": 192}, "block_m = 192: must be 64, 128 or 256"),
        (BASE | {"block_m": 32}, "block_m = 32"),
        (BASE | {"block_n": 100}, "block_n = 100: must be a multiple of 8"),
        (BASE | {"block_n": 264}, "block_n = 264"),
        (BASE | {"block_n": 4}, "block_n = 4"),
        (BASE | {"block_n": 176}, "block_n = 176: a math warpgroup may touch"),
        (BASE | {"block_k": 64}, "block_k = 64: must be 128 for fp8_gemm"),
        (BASE | {"num_stages": 1}, "num_stages = 1"),
        (BASE | {"num_stages": 33}, "num_stages = 33"),
        (BASE | {"cluster_m": 2, "cluster_n": 2}, "cluster = 2x2"),
        (BASE | {"cluster_m": 4}, "cluster = 4x1"),
        (BASE | {"cluster_m": 2, "block_n": 24}, "block_n = 24: must be a multiple of 16"),
        (BASE | {"block_m": 256, "block_n": 144, "num_stages": 2}, "registers = 256"),
        (BASE | {"num_stages": 9}, "shared memory = "),
        (BASE | {"block_n": 256, "num_stages": 2}, "registers = 296"),
        (BASE | {"block_m": 64, "block_n": 216}, "block_n = 216: two math warpgroups take half of the columns"),
        (BASE | {"block_m": 64, "block_n": 232}, "block_n = 232: two math warpgroups take half of the columns"),
        (BASE | {"split_k": 2, "block_m": 256}, "split_k = 2: needs an MMA row side"),
        (SWAPPED | {"block_n": 80}, "block_n = 80: must be 64, 128 or 256"),
        (SWAPPED | {"block_m": 12}, "block_m = 12: must be a multiple of 8"),
        (SWAPPED | {"cluster_m": 2}, "swap_ab = 1: goes with a 1x1 cluster"),
        (SWAPPED | {"split_k": 3}, "split_k = 3: must be 1, 2, 4 or 8"),
        (SWAPPED | {"split_k": 16}, "split_k = 16: must be"),
        (
            SWAPPED | {"split_k": 2, "block_n": 256},
            "split_k = 2: needs an MMA row side (block_m, with swap_ab block_n) of at most 128",
        ),
    ],
)
def test_reason_names_value_rule_and_remedy(config, words):
    reason = _C.legality_reason(PROBLEM, _C.Config(**config), H200)
    assert words in reason and ("; " in reason)


def test_a_wrong_block_k_is_said_before_what_hangs_on_it():
    """By it tiles of FP8 and BF16 differ."""
    reason = _C.legality_reason(_C.Problem("bf16_gemm", 1, 1, 1), _C.Config(64, 232, 4), H200)
    assert reason.startswith("block_k = 128: must be 64")


@pytest.mark.parametrize(
    "fields, config, words",
    [
        ({"op": "bf16_gemm"}, BASE, "block_k = 128: must be 64 for bf16_gemm"),
        ({"num_sms": 100}, SWAPPED | {"split_k": 2}, "split_k = 2: cannot keep to a limit of SMs"),
        ({"batch_invariant": True}, SWAPPED | {"split_k": 4}, "split_k = 4: changes the order of sums"),
        ({"op": "bf16_gemm", "a_major": "mn"}, SWAPPED | {"block_k": 64}, "steps of 64"),
    ],
)
def test_reason_of_a_variant(fields, config, words):
    problem = _C.Problem(**({"op": OP, "m": 1, "n": 1, "k": 1} | fields))
    reason = _C.legality_reason(problem, _C.Config(**config), H200)
    assert words in reason and ("; " in reason)


@pytest.mark.parametrize(
    "op, fields, config, words",
    [
        (
            CONTIGUOUS[0],
            {},
            {"block_m": 256, "block_n": 128},
            "block_m = 256: must divide the alignment 128 of the groups' rows; choose a smaller tile",
        ),
        (
            CONTIGUOUS[1],
            {"alignment": 40},
            {"block_m": 16, "block_n": 64, "swap_ab": 1},
            "block_m = 16: must divide the alignment 40",
        ),
        (
            CONTIGUOUS[1],
            {"b_major": "mn"},
            {"block_m": 128, "block_n": 96},
            "an MN-major operand needs a tile side in steps of 64",
        ),
        (K_GROUPED[1], {}, {"block_m": 64, "block_n": 80}, "an MN-major operand needs a tile side in steps of 64"),
        (
            K_GROUPED[1],
            {},
            {"block_m": 32, "block_n": 64, "swap_ab": 1},
            "an MN-major operand needs a tile side in steps of 64",
        ),
        (
            K_GROUPED[0],
            {},
            {"block_m": 64, "block_n": 64, "split_k": 2},
            f"split_k = 2: {K_GROUPED[0]} does not split K; use 1",
        ),
        (
            MASKED[0],
            {},
            {"block_m": 16, "block_n": 64, "split_k": 4, "swap_ab": 1},
            f"split_k = 4: {MASKED[0]} does not split K; use 1",
        ),
        (MASKED[0], {}, {"block_m": 64, "block_n": 176}, "block_n = 176: a math warpgroup may touch at most two"),
        (
            MASKED[1],
            {},
            {"block_m": 64, "block_n": 64, "block_k": 128},
            "block_k = 128: must be 64 for m_grouped_bf16_gemm_masked, 128 bytes; use it",
        ),
    ],
)
def test_reason_of_a_grouped_problem(op, fields, config, words):
    problem = make_grouped(op, 1, 1, 128, 1, **fields)
    config = _C.Config(**({"num_stages": 2, "block_k": block_k_of(op)} | config))
    reason = _C.legality_reason(problem, config, H200)
    assert words in reason and "; " in reason and not _C.is_legal(problem, config, H200)


def test_no_group_is_ever_split():
    for problem in make_grouped_variants(4096, 4096, 4096, 8):
        for split, swap in itertools.product((2, 4, 8), (0, 1)):
            config = _C.Config(64, 64, 2, block_k=block_k_of(problem.op), split_k=split, swap_ab=swap)
            assert not _C.is_legal(problem, config, H200) and _C.is_legal(
                problem, _C.Config(**(config.as_dict() | {"split_k": 1})), H200
            )
            with pytest.raises(ConfigError, match="does not split K"):
                _C.estimate_time_us(problem, config, H200)


def test_a_tile_has_rows_of_one_group():
    """The tile of a CTA starts where a group starts and ends before the next one; the two of a pair may be of two."""
    for op, alignment in itertools.product(CONTIGUOUS, ALIGNMENTS):
        problem = make_grouped(op, 1, 1, 1, 1, alignment=alignment)
        plain = [
            _C.Config(rows, 64, 2, block_k=block_k_of(op), cluster_m=cluster)
            for rows in (64, 128, 256)
            for cluster in (1, 2)
        ]
        swapped = [_C.Config(tokens, 64, 2, block_k=block_k_of(op), swap_ab=1) for tokens in range(8, 136, 8)]
        for config in plain + swapped:
            assert _C.is_legal(problem, config, H200) == (alignment % config.block_m == 0), config


def test_only_hopper_is_supported():
    numbers = H200.as_dict() | {"name": "NVIDIA B200", "sku": None, "compute_capability": (10, 0)}
    assert "need 9.0" in _C.legality_reason(PROBLEM, _C.Config(**BASE), _C.Device(**numbers))


def test_a_cluster_needs_its_sms():
    pair, split = _C.Config(**BASE, cluster_m=2), _C.Config(**SWAPPED, split_k=8)
    assert not _C.is_legal(_C.Problem(OP, 1, 1, 1, num_sms=1), pair, H200)
    assert _C.is_legal(_C.Problem(OP, 1, 1, 1, num_sms=2), pair, H200)
    for sm_count in (7, 8):
        assert _C.is_legal(PROBLEM, split, _C.Device(**H200.as_dict() | {"sm_count": sm_count, "sku": None})) == (
            sm_count == 8
        )


def test_sizes_never_matter():
    generator = random.Random(3)
    for config in generator.sample(GRIDS[OP], 200):
        sizes = [generator.choice((1, 7, 128, 4096, 2**31 - 1)) for _ in range(3)]
        assert _C.is_legal(_C.Problem(OP, *sizes), config, H200) == _C.is_legal(PROBLEM, config, H200)


def test_extreme_fields_do_not_wrap():
    for swap_ab in (0, 1):
        huge = _C.Config(
            65535, 65535, 65535, block_k=65535, cluster_m=65535, cluster_n=65535, split_k=65535, swap_ab=swap_ab
        )
        for problem in VARIANTS:
            assert _C.smem_bytes(problem, huge) > 2**39 and not _C.is_legal(problem, huge, H200)
    assert isinstance(_C.LAUNCH_ABI, int)


@pytest.mark.parametrize("op", [*OPS, *GROUPED_OPS])
def test_one_block_k_is_legal(op):
    problem = next(variant for variant in VARIANTS if variant.op == op)
    wanted = _C.stage_k(op)
    assert wanted == _C.STAGE_K_BYTES // (1 if is_fp8(op) else 2)
    legal = [k for k in (32, 64, 128, 256) if _C.is_legal(problem, _C.Config(64, 64, 4, block_k=k), H200)]
    assert legal == [wanted]


@pytest.mark.parametrize("op", ["fp8_mqa_logits", "fp8_paged_mqa_logits"])
def test_math_warpgroups_of_attention_logits_share_no_stage(op):
    """A warpgroup that has not seen the phase before takes a tile under way for one that landed."""
    problem = _C.Problem(op, 64, 4096, 128, heads=64, **({"next_n": 1, "block_kv": 64} if "paged" in op else {}))
    for groups, stages in itertools.product((2, 3), range(1, 16)):
        config = _C.Config(1, 64 * groups, stages)
        reason = _C.legality_reason(problem, config, H200)
        assert (f"must be a multiple of the {groups} warpgroups" in reason) == (stages % groups != 0)
    assert all(config.num_stages % (config.block_n // 64) == 0 for config in _C.get_default_space(problem, H200))
