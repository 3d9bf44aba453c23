"""The grouped part of the GPU suite on the CPU: what it covers, that right kernels pass and wrong ones do not, and its
jobs.
"""

import pytest
import torch

from deep_gemm import _C, reference
from tests.fakes.gpu_world import FakeWorld, copy_storage
from tests.fakes.grouped_kernel import FakeGroupedKernel
from tests.fakes.grouped_variants import GROUPED_OPS, make_grouped_variants
from tests.gpu import (
    grouped_configs,
    grouped_repeats,
    grouped_sanitizer,
    grouped_tiles,
    jobs,
    kernels,
    run,
    watched,
)
from tests.gpu.grouped_memory import is_mn_major_of_groups, make_groups, make_scale_layout_of_groups
from tests.gpu.grouped_op import GROUPED_OP_VARIANTS, list_op_shapes
from tests.gpu.grouped_operands import (
    compare_grouped,
    count_grouped_wrong,
    launch_grouped,
    make_grouped_case,
    make_grouped_output,
)
from tests.gpu.grouped_shapes import COMMON_ALIGNMENTS, Contiguous, KGroups, Masked, derive_contiguous, get_tile
from tests.gpu.grouped_variants import (
    CONTIGUOUS_OPS,
    MAIN_GROUPED,
    MASKED_OPS,
    choose_grouped_configs,
    get_grouped_space,
    get_path,
    list_grouped_variants,
)
from tests.gpu.memory import ANY_LAYOUTS, MN_MAJOR_LAYOUTS, SCALE_LAYOUTS
from tests.gpu.world import parse_ops

H200 = _C.Device.known("h200")
VARIANTS = list_grouped_variants()
#: A few rows and K steps, with what makes each layout delicate.
SMALL_CONTIGUOUS = (
    Contiguous(24, 144, 4, 128, ((2, 3, 20), (0, 128, 0), (0, 0, 1))),
    Contiguous(130, 272, 2, 128, ((1, 0, 37),), False),
)
SMALL_MASKED = (Masked(24, 144, 21, (21, 0, -3, 1 << 30)), Masked(130, 272, 37, (5, 37)))
SMALL_K = (KGroups(17, 24, (128, 0, 256)), KGroups(37, 130, (256, 128)))


def small_shapes(variant):
    """Return two small shapes of a variant's kind."""
    return SMALL_CONTIGUOUS if variant.op in CONTIGUOUS_OPS else SMALL_MASKED if variant.op in MASKED_OPS else SMALL_K


# What is covered.


def test_variants_are_all_that_a_grouped_problem_can_be():
    problems = {
        variant.problem(1, 1, 1, **({"alignment": 128} if variant.op in CONTIGUOUS_OPS else {})) for variant in VARIANTS
    }
    assert problems == set(make_grouped_variants()) and len(problems) == len(VARIANTS)
    assert {variant.op for variant in MAIN_GROUPED} == set(GROUPED_OPS) and len(MAIN_GROUPED) == len(GROUPED_OPS)


def test_main_variants_are_covered_whole_and_all_others_on_every_path():
    for variant in VARIANTS:
        space, chosen = get_grouped_space(variant, H200), choose_grouped_configs(variant, H200, 12)
        assert len(chosen) == len(set(chosen)) == len(space) if variant in MAIN_GROUPED else len(chosen) >= 4, variant
        assert {get_path(config) for config in chosen} == {get_path(config) for config in space}
        assert all(_C.is_legal(variant.problem(), config, H200) for config in chosen)


@pytest.mark.parametrize("variant", MAIN_GROUPED, ids=str)
def test_sizes_of_a_config_surround_its_tile(variant):
    for index, config in enumerate(get_grouped_space(variant, H200)):
        tile = config.block_m if variant.op in CONTIGUOUS_OPS else get_tile(config)[0]
        shapes = grouped_configs.derive_grouped_shapes(variant, config, index)
        if isinstance(shapes[0], KGroups):
            assert {1, tile - 1, tile, tile + 1} <= {shape.m for shape in shapes} and any(
                0 in shape.ks for shape in shapes
            )
            continue
        rows = {block.rows for shape in shapes for block in shape.blocks()}
        assert {0, 1, tile - 1, tile, tile + 1} <= rows
        steps = {shape.k // config.block_k for shape in shapes}
        assert {config.num_stages - 1, config.num_stages, config.num_stages + 1} <= steps


def test_a_tile_of_a_contiguous_shape_has_one_group_and_padding_of_every_kind():
    """Those of a pair have one group, two, or padding beside a group."""
    for index, config in enumerate(get_grouped_space(MAIN_GROUPED[0], H200)):
        tile, kinds, pairs = config.block_m, set(), set()
        for shape in [*derive_contiguous(config, index), *grouped_configs.list_common_shapes(MAIN_GROUPED[0], config)]:
            assert shape.alignment % tile == 0
            owners = [-1] * shape.m
            for group, first, rows in shape.blocks():
                owners[first : first + rows] = [group] * rows
            tiles = [owners[start : start + tile] for start in range(0, shape.m, tile)]
            assert all(len(set(rows) - {-1}) <= 1 for rows in tiles)
            owned = [max(rows) for rows in tiles]
            pairs |= {
                "padding" if min(pair) < 0 <= max(pair) else "two" if pair[0] != pair[1] else "one"
                for pair in zip(owned[::2], owned[1::2], strict=False) if max(pair) >= 0
            }  # fmt: skip
            kinds |= {"all" for rows in tiles if set(rows) == {-1}} | {
                "before" for rows in tiles if rows[0] == -1 and max(rows) >= 0
            }
            kinds |= {"behind" for rows in tiles if rows[-1] == -1 and max(rows) >= 0} | {
                "cut" for rows in tiles if len(rows) < tile
            }
        assert kinds == {"all", "before", "behind", "cut"}, config
        assert config.cluster_m == 1 or pairs == {"one", "two", "padding"}, config


def test_all_configs_meet_on_shapes_of_one_of_two_alignments():
    for variant in MAIN_GROUPED[:2]:
        tiles = {config.block_m for config in get_grouped_space(variant, H200)}
        assert all(COMMON_ALIGNMENTS[1] % tile == 0 for tile in tiles)


def test_sanitizer_watches_every_variant_and_every_path_of_the_main_ones():
    pairs = grouped_sanitizer.choose_grouped_pairs(H200)
    assert {variant for variant, _ in pairs} == set(VARIANTS) and len(pairs) < 100
    for variant in MAIN_GROUPED:
        chosen, space = [config for owner, config in pairs if owner == variant], get_grouped_space(variant, H200)
        assert {get_path(config) for config in chosen} == {get_path(config) for config in space}
        assert {_C.is_staged(variant.problem(), config) for config in chosen} == {
            _C.is_staged(variant.problem(), config) for config in space
        }


def test_sections_can_be_run_alone_and_for_one_op_kind(world):
    args = run.parse_arguments(["--sections", "grouped_semantics", "grouped_configs", "--ops", "k_grouped_fp8"])
    assert args.sections == ["grouped_configs", "grouped_semantics"]
    assert args.ops == ("k_grouped_fp8_gemm_contiguous", "k_grouped_fp8_gemm_psum")
    assert run.choose_watched_ops(args) == args.ops
    found = jobs.get_jobs(world, args.sections, (1, 1), args.ops)
    assert {section for section, *_ in found} == set(args.sections) and all(
        "k_grouped_fp8_gemm_contiguous" in name for _, name, _ in found
    )
    listed = kernels.list_kernels(H200, args.sections, ("nvrtc",), 12, True, args.ops)
    kinds = {_C.Problem.from_json(problem).op for problem, *_ in listed}
    dense = {"fp8_gemm", "bf16_gemm"}  # groups are compared with the dense op
    assert kinds == {"k_grouped_fp8_gemm_contiguous", "k_grouped_fp8_gemm_psum"} | dense
    assert not any(
        "grouped" in problem for problem, *_ in kernels.list_kernels(H200, ["configs"], ("nvrtc",), 12, False)
    )
    assert parse_ops("fp8_gemm") == ("fp8_gemm",) and len(parse_ops("masked,bf16_gemm")) == 3
    with pytest.raises(SystemExit):
        run.parse_arguments(["--ops", "nothing"])


def test_every_section_has_jobs_of_distinct_names(world):
    found = jobs.get_jobs(world, list(jobs.SECTIONS), (1, 1))
    assert {section for section, *_ in found} == set(jobs.SECTIONS)
    assert len({(section, name) for section, name, _ in found}) == len(found) and not [
        name for _, name, _ in found if name.startswith("planning")
    ]


# Right and wrong kernels.


def run_small(world, monkeypatch, variant, config):
    """Run one config of a variant on small shapes."""
    shapes = list(small_shapes(variant))
    monkeypatch.setattr(grouped_configs, "derive_grouped_shapes", lambda variant, config, index: shapes)
    monkeypatch.setattr(grouped_configs, "list_common_shapes", lambda variant, config: [*shapes, shapes[0]])
    return grouped_configs.run_grouped_config(world, variant, config, 1)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_right_kernels_pass(world, monkeypatch, variant):
    cases, failures = run_small(world, monkeypatch, variant, choose_grouped_configs(variant, H200, 12)[0])
    assert cases > 8 and failures == []


def spoil_first(kernel, d):
    d[(0,) * d.dim()] += 1.0


def spoil_behind_group(kernel, d):
    torch.as_strided(d, (1,), (1,), d.storage_offset() + d.stride(-2) * d.shape[-2]).zero_()


def leave_first_row(kernel, d):
    d[(0,) * (d.dim() - 1)] = float("nan")


def spoil_late(kernel, d):
    if kernel.count == 4:
        d[(0,) * d.dim()] *= 1.0 + 2.0**-6


@pytest.mark.parametrize("fault", [spoil_first, spoil_behind_group, leave_first_row, spoil_late])
@pytest.mark.parametrize("variant", MAIN_GROUPED, ids=str)
def test_wrong_kernels_do_not_pass(monkeypatch, variant, fault):
    _, failures = run_small(FakeWorld(fault), monkeypatch, variant, choose_grouped_configs(variant, H200, 12)[0])
    assert failures


def test_rows_beyond_masked_m_may_hold_anything_and_padding_must_be_zero(world):
    for variant in MAIN_GROUPED[:4]:
        shape = small_shapes(variant)[0]
        case = make_grouped_case(shape, "cpu", variant)
        output = make_grouped_output(case)
        launch_grouped(FakeGroupedKernel(variant.problem(), None), variant, case, output)
        assert compare_grouped(case, None, output).tolist() == [0, 0, 0, 0]
        free = (1, 0) if isinstance(shape, Masked) else (0,)  # group 1 has no rows; row 0 is padding
        output.d[free] = -0.0
        found = compare_grouped(case, None, output).tolist()
        assert found[:2] == ([0, 0] if isinstance(shape, Masked) else [shape.n, 0])
        assert int(output.make_watched().sum()) == output.buffer.numel() - (
            output.d.numel() - case.rows[0].numel() * shape.n if case.rows else 0
        )


def test_padding_is_nan_in_the_operands():
    case = make_grouped_case(SMALL_CONTIGUOUS[0], "cpu", MAIN_GROUPED[0])
    padding = case.padding
    assert len(padding) and case.a.float()[padding].isnan().all() and case.scale_a[padding].isnan().all()
    assert not case.a.float()[case.groups >= 0].isnan().any()
    masked = make_grouped_case(SMALL_MASKED[1], "cpu", MAIN_GROUPED[2])
    assert (
        masked.a[0, 5:].float().isnan().all()
        and masked.scale_a[0, 5:].isnan().all()
        and not masked.a[1].float().isnan().any()
    )


# Kernels of two tiles; test_tiles_suite.py has what they cover.


def run_small_tiles(world, monkeypatch, variant, tiles):
    shapes = list(SMALL_MASKED)
    monkeypatch.setattr(grouped_tiles, "derive_masked", lambda config, index: shapes)
    monkeypatch.setattr(grouped_tiles, "list_common_masked", lambda: shapes[:1])
    return grouped_tiles.run_shapes(world, variant, *tiles, 1, (shapes[0], shapes[1]))


@pytest.mark.parametrize("variant", grouped_tiles.VARIANTS, ids=str)
def test_right_kernels_of_two_tiles_pass_and_wrong_ones_do_not(monkeypatch, variant):
    tiles = grouped_tiles.list_tiles(variant, H200)[0]
    world = FakeWorld()
    cases, failures = run_small_tiles(world, monkeypatch, variant, tiles)
    assert cases == 10 and failures == []
    assert world.loaded.count(tiles) > 0 and set(world.loaded) <= {tiles, (tiles[0], None)}
    for fault in (spoil_first, spoil_behind_group, leave_first_row, spoil_late):
        assert run_small_tiles(FakeWorld(fault), monkeypatch, variant, tiles)[1]


# The library's reference, repeats, memory.


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant.scale_layout == "mn_major"], ids=str)
def test_the_reference_op_is_right_on_the_suites_cases(variant, integers):
    for shape in small_shapes(variant):
        case = make_grouped_case(shape, "cpu", variant, integers)
        output = make_grouped_output(case)
        options = {"recipe": variant.recipe} if variant.is_fp8 and not isinstance(shape, KGroups) else {}
        if isinstance(shape, KGroups):
            options = {"c": case.c} | ({"is_blocks": variant.is_blocks} if variant.is_fp8 else {})
        scales = {"scale_a": case.scale_a, "scale_b": case.scale_b} if variant.is_fp8 else {}
        a, b = (case.operand(name, variant.is_blocks) for name in ("a", "b"))
        getattr(reference, variant.op)(a=a, b=b, d=output.d, groups=case.groups, **scales, **options)
        assert not int(count_grouped_wrong(case, output)) and not int(output.num_dirty())


@pytest.mark.parametrize("variant", grouped_repeats.CHOSEN_VARIANTS, ids=str)
def test_repeats_count_what_differs(world, monkeypatch, variant):
    monkeypatch.setattr(
        grouped_repeats, "get_repeated_shape", lambda variant, config, is_large=False: small_shapes(variant)[0]
    )
    config = world.portfolio(variant)[0]
    repeater, _ = grouped_repeats.make_grouped_repeater(world, variant, config)
    kernel = world.kernel(variant, config)
    for fault, count in ((None, 0), (spoil_behind_group, 1)):
        kernel.fault = fault
        repeater.count(0)
        assert int(repeater.unlike[0]) == count
    kernel.fault = None
    assert grouped_repeats.run_grouped_large(world, variant, config)[1] == []


def test_repeats_walk_several_tiles_on_few_sms():
    for variant in MAIN_GROUPED:
        for config in get_grouped_space(variant, H200):
            shape = grouped_repeats.get_repeated_shape(variant, config)
            (height, width), rows = (
                get_tile(config),
                [block.rows for block in shape.blocks()] if not isinstance(shape, KGroups) else [shape.m] * 7,
            )
            assert sum(-(-count // height) for count in rows) * -(-shape.n // width) > 6


@pytest.mark.parametrize("layout", SCALE_LAYOUTS)
def test_scales_of_groups_keep_their_values_in_every_layout(layout):
    for size in ((3, 5, 2), (1, 1, 1), (2, 8, 1), (4, 1, 3)):
        scale = torch.rand(size)
        found = make_scale_layout_of_groups(scale, layout)
        assert torch.equal(found, scale) and (layout not in MN_MAJOR_LAYOUTS or is_mn_major_of_groups(found))
        assert layout != "shifted" or not is_mn_major_of_groups(found)


#: Every FP8 variant whose scales are laid out as those of no variant before it.
LAID_OUT = list({(one.op, one.recipe, one.scale_layout): one for one in reversed(VARIANTS) if one.is_fp8}.values())


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(variant, marks=() if variant in LAID_OUT else pytest.mark.full)
        for variant in VARIANTS
        if variant.is_fp8
    ],
    ids=str,
)
def test_scales_of_a_class_are_of_it_for_every_size(variant):
    for shape in (*small_shapes(variant), *list_op_shapes(variant)):
        case = make_grouped_case(shape, "cpu", variant)
        for index in range(len(MN_MAJOR_LAYOUTS + ANY_LAYOUTS)):
            assert is_mn_major_of_groups(case.scale("scale_a", variant.scale_layout, index)) == (
                variant.scale_layout == "mn_major"
            )
            is_free = variant.recipe == "1d2d"
            assert is_free or is_mn_major_of_groups(case.scale("scale_b", variant.scale_layout, index)) == (
                variant.scale_layout == "mn_major"
            )


@pytest.mark.parametrize("major", ["k", "mn"])
def test_groups_lie_in_nan_at_whole_pitches(major):
    values = torch.randn(3, 5, 19).bfloat16()
    found = make_groups(values, major, extra=1, gap=2)
    assert torch.equal(found, values) and found.stride(2 if major == "k" else 1) == 1
    assert all(stride * 2 % 16 == 0 for stride in found.stride() if stride != 1)


@pytest.mark.parametrize("variant", GROUPED_OP_VARIANTS, ids=str)
def test_the_sanitizers_copies_give_the_same_result(monkeypatch, variant):
    monkeypatch.setattr(watched, "copy_to_gpu", copy_storage)
    config = choose_grouped_configs(variant, H200, 12)[0]
    for index, shape in enumerate(grouped_sanitizer.list_watched_shapes(variant, config)):
        case = make_grouped_case(shape, "cpu", variant, integers=index == 1)
        host = make_grouped_output(case)
        grouped_sanitizer.launch_on_copies(FakeGroupedKernel(variant.problem(), config), variant, case, host, index, 4)
        assert not int(count_grouped_wrong(case, host)) and not int(host.num_dirty())
