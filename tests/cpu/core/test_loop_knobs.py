"""The knobs of the main loop: what they need, what they cost, and that configs without them are what they were."""

import pytest

from deep_gemm import _C

DEVICE = _C.Device.known("h200")
BLOCKS = _C.Problem("fp8_gemm", 1, 1, 1)
VECTORS = _C.Problem("fp8_gemm", 1, 1, 1, recipe="1d1d", d_dtype="fp32", c_mode="accumulate")
KNOBS = ("loop", "scale_warp", "tile_barrier", "reduce_add")


@pytest.mark.parametrize(
    ("problem", "tile", "knobs", "word"),
    [
        (BLOCKS, (128, 128, 4), {"loop": 2}, "within 0..1"),
        (_C.Problem("bf16_gemm", 1, 1, 1), (128, 128, 4), {"loop": 1, "block_k": 64}, "loop = 1: needs FP8"),
        (_C.Problem("fp8_gemm", 1, 1, 1, recipe="per_row"), (128, 128, 3), {"loop": 1}, "loop = 1: needs FP8"),
        (BLOCKS, (16, 64, 4), {"loop": 1, "swap_ab": 1}, "without swap_ab"),
        (BLOCKS, (128, 256, 3), {"loop": 1}, "registers"),
        (VECTORS, (128, 128, 4), {"scale_warp": 1}, "scale_warp = 1: needs recipe 1d2d"),
        (BLOCKS, (64, 64, 4), {"tile_barrier": 1}, "needs two math warpgroups"),
        (BLOCKS, (128, 128, 4), {"reduce_add": 1}, "needs C that is added onto"),
        (_C.Problem("fp8_mqa_logits", 1, 1, 128, heads=64), (2, 128, 4), {"loop": 1}, "loop"),
    ],
)
def test_knobs_without_what_they_need_are_illegal(problem, tile, knobs, word):
    try:
        reason = _C.legality_reason(problem, _C.Config(*tile, **knobs), DEVICE)
    except ValueError as error:
        reason = str(error)
    assert word in reason


@pytest.mark.parametrize(
    ("problem", "tile", "knobs"),
    [
        (BLOCKS, (256, 128, 3), {"loop": 1, "scale_warp": 1, "tile_barrier": 1}),
        (BLOCKS, (128, 192, 4), {"loop": 1, "scale_warp": 1, "cluster_n": 2}),
        (BLOCKS, (16, 64, 4), {"scale_warp": 1, "swap_ab": 1, "split_k": 2}),
        (VECTORS, (128, 144, 4), {"loop": 1, "reduce_add": 1}),
        (_C.Problem("bf16_gemm", 1, 1, 1), (128, 256, 3), {"tile_barrier": 1, "block_k": 64}),
    ],
)
def test_knobs_with_what_they_need_are_legal(problem, tile, knobs):
    config = _C.Config(*tile, **knobs)
    assert _C.legality_reason(problem, config, DEVICE) == ""
    assert all(word.split("_")[-1] in str(config).split() for word in knobs if word in KNOBS)


@pytest.mark.parametrize(("tile", "blocks"), [((128, 128, 4), 1), ((128, 112, 6), 2)])
def test_block_buffers_replace_the_blocks_of_stages(tile, blocks):
    """Two buffers of 2 x 128 scales; their four barriers fit the last line of barriers here. A stage had 128 bytes."""
    before, after = (_C.smem_bytes(BLOCKS, _C.Config(*tile, scale_warp=warp)) for warp in (0, 1))
    assert after - before == 2 * 2 * 128 * 4 - tile[2] * 128


def test_adding_in_memory_needs_no_barriers_of_c():
    deep = _C.Config(64, 64, 7)  # 14 barriers of stages and 2 of C fill a line of 16
    added = _C.Config(64, 64, 7, reduce_add=1)
    assert _C.smem_bytes(VECTORS, added) <= _C.smem_bytes(VECTORS, deep)


def test_spaces_have_none_of_them():
    for problem in (BLOCKS, VECTORS, _C.Problem("fp8_gemm", 4096, 4096, 7168)):
        configs = [*_C.get_default_space(problem, DEVICE), *_C.get_candidates(problem, DEVICE)]
        assert not any(getattr(config, knob) for config in configs for knob in KNOBS)


def with_knobs(problem, *tile, **others) -> dict:
    """Return the knobs that the heuristic gives a tile, by name; only those that it uses."""
    config = _C.with_loop_knobs(problem, _C.Config(*tile, **others), DEVICE)
    assert _C.is_legal(problem, config, DEVICE)
    return {name: getattr(config, name) for name in KNOBS if getattr(config, name)}


@pytest.mark.parametrize(
    ("size", "tile", "others", "knobs"),
    [
        ((4096, 4096, 7168), (128, 192, 4), {}, {"loop": 1, "scale_warp": 1}),
        ((4096, 4096, 7168), (128, 128, 5), {}, {"scale_warp": 1}),  # 56 steps end within a round of five stages
        ((4096, 4096, 7168), (128, 192, 3), {}, {}),
        ((4096, 4096, 14080), (128, 192, 4), {}, {"loop": 1, "scale_warp": 1}),  # 110 steps: wide tiles gain
        ((4096, 4096, 14208), (128, 160, 5), {}, {"loop": 1, "scale_warp": 1}),
        ((4096, 4096, 14208), (128, 144, 5), {}, {"loop": 1, "scale_warp": 1}),
        ((4096, 4096, 14208), (128, 144, 4), {}, {"scale_warp": 1}),
        ((4096, 4096, 1792), (128, 144, 5), {}, {}),  # 14 steps within a round
        ((4096, 4096, 14208), (128, 144, 5), {"cluster_n": 2}, {}),  # timed as single CTAs
        ((4096, 4096, 7680), (128, 128, 5), {}, {"scale_warp": 1}),  # whole rounds, which others need for the loop
        ((4096, 4096, 7680), (128, 136, 5), {}, {"scale_warp": 1}),
        ((4096, 4096, 7680), (128, 112, 6), {}, {"scale_warp": 1}),
        ((4096, 4096, 1536), (128, 112, 6), {}, {"loop": 1}),  # 12 whole steps: what is better from 16 on was not timed
        ((4096, 4096, 1920), (128, 136, 5), {}, {"loop": 1, "scale_warp": 1}),
        ((4096, 4096, 1792), (128, 136, 5), {}, {}),
        ((4096, 4096, 7168), (128, 128, 4), {}, {"loop": 1, "scale_warp": 1}),
        ((1024, 1536, 7168), (128, 96, 7), {}, {"scale_warp": 1}),  # whole rounds
        ((1024, 1536, 7296), (128, 96, 7), {}, {"scale_warp": 1}),
        ((1024, 1536, 3584), (128, 96, 7), {}, {"loop": 1}),  # 28 whole steps
        ((1024, 1536, 4096), (128, 96, 4), {}, {"scale_warp": 1}),  # 32 whole steps, from which on it is the warp alone
        ((1024, 1536, 3968), (128, 96, 7), {}, {}),  # 31 steps within a round
        ((1024, 1536, 2176), (128, 96, 7), {}, {}),
        ((1024, 1536, 7168), (128, 96, 7), {"cluster_n": 2}, {"loop": 1}),  # timed as single CTAs
        ((375, 3456, 12672), (128, 80, 7), {}, {"loop": 1}),  # 99 steps within a round
        ((375, 3456, 12672), (128, 80, 6), {}, {}),
        ((375, 3456, 7680), (128, 80, 7), {}, {"loop": 1}),  # 60 steps
        ((375, 3456, 7552), (128, 80, 7), {}, {}),  # 59 steps
        ((4096, 4096, 1280), (128, 192, 4), {}, {}),
        ((2048, 2112, 7168), (256, 64, 4), {}, {"loop": 1}),
        ((2048, 2112, 7040), (256, 64, 4), {}, {}),
        ((4096, 4096, 14080), (128, 192, 3), {}, {}),  # 110 steps: not timed with three stages
        ((4096, 4096, 7168), (256, 128, 3), {}, {"loop": 1, "scale_warp": 1, "tile_barrier": 1}),
        ((512, 2112, 7168), (128, 64, 8), {}, {"loop": 1}),
        ((512, 2112, 7168), (128, 64, 7), {"split_k": 2}, {}),
        ((64, 4096, 7168), (64, 32, 14), {}, {"scale_warp": 1}),
        ((64, 4096, 2048), (64, 32, 14), {}, {"scale_warp": 1}),
        ((64, 4096, 2048), (64, 136, 7), {}, {}),
        ((64, 4096, 4096), (64, 64, 6), {"split_k": 2}, {}),
        ((64, 4096, 2048), (64, 96, 10), {}, {"scale_warp": 1}),
        ((64, 4096, 1920), (64, 96, 10), {}, {}),
        ((64, 4096, 7168), (64, 144, 7), {}, {"scale_warp": 1}),
        ((64, 4096, 7168), (64, 160, 7), {}, {}),
        ((404, 4096, 1024), (64, 256, 4), {}, {"loop": 1, "scale_warp": 1}),  # side by side: 8 steps
        ((404, 4096, 896), (64, 256, 4), {}, {}),
        ((404, 4096, 2048), (64, 224, 5), {}, {"loop": 1, "scale_warp": 1}),  # 16 steps
        ((404, 4096, 1920), (64, 224, 5), {}, {}),
        ((404, 4096, 7168), (64, 256, 4), {"split_k": 2}, {}),
        ((16, 4096, 7168), (16, 64, 10), {"swap_ab": 1}, {}),
        ((4096, 4096, 512), (128, 128, 4), {}, {}),
    ],
)
def test_the_heuristic_gives_a_tile_the_knobs_that_paid(size, tile, others, knobs):
    """As measured on an H200 or an H100, beside the same tile without them."""
    assert with_knobs(_C.Problem("fp8_gemm", *size), *tile, **others) == knobs


def test_no_knob_takes_the_room_of_c_one_tile_ahead():
    """Three stages are few for a ring that gains nothing by it; 128x128 just has room for both."""
    plain = _C.Problem("fp8_gemm", 4096, 4096, 7168)
    onto_c = _C.Problem("fp8_gemm", 4096, 4096, 7168, d_dtype="fp32", c_mode="accumulate")
    assert with_knobs(plain, 128, 128, 3)["scale_warp"] == 1 and "scale_warp" not in with_knobs(onto_c, 128, 128, 3)
    assert "scale_warp" in with_knobs(onto_c, 128, 128, 4)
    wgrad = _C.Problem("fp8_gemm", 4096, 4096, 7168, recipe="1d1d", d_dtype="fp32", c_mode="accumulate")
    assert "reduce_add" not in with_knobs(wgrad, 128, 64, 6) and with_knobs(wgrad, 128, 64, 7)["reduce_add"] == 1


@pytest.mark.parametrize(
    ("k", "tile", "fields"),
    [
        (14080, (128, 192, 4), {"d_dtype": "fp32"}),
        (7296, (256, 64, 3), {"d_dtype": "fp32"}),
        (2048, (64, 96, 8), {"d_dtype": "fp32"}),
        (7296, (128, 136, 4), {"c_mode": "general"}),
        (2048, (256, 64, 4), {"recipe": "1d1d"}),
    ],
)
def test_what_sweeps_have_of_blocks_and_a_bf16_d_is_said_of_no_other_variant(k, tile, fields):
    """No sweep has 1D2D with an FP32 D, and with 1D1D few steps gain nothing."""
    assert with_knobs(_C.Problem("fp8_gemm", 1024, 4096, k), *tile)
    assert with_knobs(_C.Problem("fp8_gemm", 1024, 4096, k, **fields), *tile) == {}


@pytest.mark.parametrize(
    ("op", "tile", "knobs"),
    [
        ("m_grouped_fp8_gemm_masked", (128, 192, 4), {"loop": 1, "scale_warp": 1}),
        ("m_grouped_fp8_gemm_contiguous", (128, 192, 4), {}),
        ("m_grouped_fp8_gemm_masked", (256, 64, 4), {}),
        ("m_grouped_fp8_gemm_masked", (64, 128, 8), {"scale_warp": 1}),
        ("m_grouped_fp8_gemm_contiguous", (64, 128, 8), {}),
        ("m_grouped_fp8_gemm_masked", (64, 48, 12), {"scale_warp": 1}),
        ("m_grouped_fp8_gemm_masked", (128, 160, 5), {"loop": 1, "scale_warp": 1}),
        ("m_grouped_fp8_gemm_contiguous", (128, 160, 5), {"loop": 1, "scale_warp": 1}),
        ("m_grouped_fp8_gemm_masked", (128, 136, 5), {"scale_warp": 1}),
        ("m_grouped_fp8_gemm_contiguous", (128, 144, 5), {"scale_warp": 1}),
        ("m_grouped_fp8_gemm_contiguous", (128, 128, 5), {"scale_warp": 1}),
        ("m_grouped_fp8_gemm_contiguous", (128, 112, 5), {}),
        ("m_grouped_fp8_gemm_psum", (128, 160, 5), {}),
        ("m_grouped_fp8_gemm_psum", (128, 136, 5), {}),
        ("batched_fp8_gemm", (128, 160, 5), {}),
        ("batched_fp8_gemm", (128, 136, 5), {}),
    ],
)
def test_groups_have_rules_of_their_own(op, tile, knobs):
    """23 steps of K, which end within a round of each of these rings."""
    assert with_knobs(_C.Problem(op, 1024, 4096, 2944, num_groups=4), *tile) == knobs


def test_the_heuristics_choice_has_the_knobs_of_its_tile():
    problem = _C.Problem("fp8_gemm", 4096, 4096, 7168)
    chosen = _C.get_analytic_config(problem, DEVICE)
    assert chosen == _C.with_loop_knobs(problem, chosen, DEVICE)
    assert _C.Config(**{name: value for name, value in chosen.as_dict().items() if name not in KNOBS}) != chosen


def test_scales_that_others_copy_need_no_warp():
    any_layout = _C.Problem("fp8_gemm", 4096, 4096, 7168, scale_layout="any")
    assert with_knobs(any_layout, 128, 192, 4) == {"loop": 1}
    assert with_knobs(any_layout, 128, 64, 7) == {}, "a buffer of eight steps ends within a round"


@pytest.mark.parametrize(
    ("k", "tile", "knobs"),
    [
        (7168, (128, 128, 4), {"loop": 1, "reduce_add": 1}),
        (7168, (128, 144, 4), {"loop": 1}),
        (7168, (128, 80, 6), {"reduce_add": 1}),
        (1280, (128, 128, 4), {"loop": 1, "reduce_add": 1}),
        (512, (128, 128, 4), {}),
    ],
)
def test_narrow_tiles_of_long_sums_are_added_in_memory(k, tile, knobs):
    gradient = _C.Problem("fp8_gemm", 4096, 4096, k, recipe="1d1d", d_dtype="fp32", c_mode="accumulate")
    assert with_knobs(gradient, *tile) == knobs


@pytest.mark.parametrize("k, knobs", [(7168, {"loop": 1}), (2048, {})])
def test_a_bf16_gradient_takes_the_loop_where_k_is_long(k, knobs):
    assert with_knobs(_C.Problem("fp8_gemm", 4096, 4096, k, recipe="1d1d"), 128, 112, 6) == knobs


def test_tiles_that_take_the_loop_of_two_vectors_are_rated_by_it():
    constants = {**_C.heuristic_constants(), "vector_loop_fraction": 0.0}
    gains = {}
    for k, columns in ((7168, 128), (7168, 160), (7168, 80), (512, 128)):
        problem = _C.Problem("fp8_gemm", 4096, 4096, k, recipe="1d1d", d_dtype="fp32", c_mode="accumulate")
        config = _C.Config(128, columns, 3)
        without = _C.estimate_time_us(problem, config, DEVICE, constants)
        gains[k, columns] = without / _C.estimate_time_us(problem, config, DEVICE)
    assert gains[7168, 128] > 1.03
    assert gains[7168, 160] == gains[7168, 80] == gains[512, 128] == 1.0


def test_groups_of_few_rows_take_the_scale_warp_with_narrow_tiles_too():
    masked = _C.Problem("m_grouped_fp8_gemm_masked", 1024, 4096, 7168, num_groups=32, expected_m=192)
    assert with_knobs(masked, 128, 96, 6) == with_knobs(masked, 64, 96, 8) == {"scale_warp": 1}


def test_bf16_only_adds_onto_c():
    problem = _C.Problem("bf16_gemm", 4096, 4096, 7168)
    assert with_knobs(problem, 256, 128, 3, block_k=64) == {}
    onto = {"d_dtype": "fp32", "c_mode": "accumulate"}
    for k, knobs in ((64 * 19, {}), (64 * 20, {"reduce_add": 1})):
        assert with_knobs(_C.Problem("bf16_gemm", 4096, 4096, k, **onto), 128, 128, 5, block_k=64) == knobs
    long = _C.Problem("bf16_gemm", 4096, 4096, 4096, **onto)
    assert with_knobs(long, 256, 128, 3, block_k=64) == {}  # not staged
    assert with_knobs(long, 32, 128, 5, block_k=64, swap_ab=1) == {}


@pytest.mark.parametrize("block_n, knobs", [(128, 8), (136, 16), (144, None), (152, 16), (160, None)])
def test_wide_fp8_tiles_add_onto_c_from_their_own_steps(block_n, knobs):
    onto = {"recipe": "1d1d", "d_dtype": "fp32", "c_mode": "accumulate"}
    for steps in (7, 8, 15, 16, 64):
        problem = _C.Problem("fp8_gemm", 4096, 4096, 128 * steps, **onto)
        added = with_knobs(problem, 128, block_n, 3).get("reduce_add", 0)
        assert added == int(knobs is not None and steps >= knobs)


def test_256x112_has_the_knobs_of_256x128():
    for k, knobs in ((128 * 11, {}), (128 * 13, {"loop": 1, "scale_warp": 1, "tile_barrier": 1})):
        problem = _C.Problem("fp8_gemm", 4096, 7168, k)
        assert with_knobs(problem, 256, 112, 3) == with_knobs(problem, 256, 128, 3) == knobs
