"""What the GPU suite covers of kernels of two tiles; test_grouped_suite.py has that it notices wrong ones."""

import pytest

from deep_gemm import _C
from tests.fakes.gpu_world import FakeWorld
from tests.gpu import grouped_sanitizer, grouped_tiles, kernels, op_jobs, psum_tiles
from tests.gpu.grouped_psum import PsumRows, list_psum_shapes, with_ends
from tests.gpu.grouped_shapes import Masked
from tests.gpu.grouped_tiles import NUM_GROUPS, VARIANTS
from tests.gpu.grouped_variants import MAIN_GROUPED

H200 = _C.Device.known("h200")
#: (tiles, groups) of which no shape is found: the suite fails there. An H100's is to look through more shapes.
MISSING = {"h200": set(), "h100": {("64x32x128 s17 c1x1 warp or 64x64x128 s13 c1x1 warp", 8)}}


def takes_either(variant, tiles, device, num_groups) -> bool:
    """Return whether shapes that differ in rows alone are found, by which a kernel takes either tile."""
    try:
        shapes = grouped_tiles.find_shapes(variant, *tiles, device, num_groups)
    except ValueError:
        return False
    assert shapes[0]._replace(sizes=()) == shapes[1]._replace(sizes=())
    assert [shape.num_groups for shape in shapes] == [num_groups] * 2
    assert [grouped_tiles.takes_second(variant, shape, *tiles, device) for shape in shapes] == [False, True]
    return True


@pytest.mark.parametrize("sku", ["h200", "h100"])
def test_every_kernel_of_two_tiles_runs_both(sku):
    """By rows that differ alone, with each number of groups; watched ones, too."""
    device, missing = _C.Device.known(sku), set()
    kernels_of = {variant: grouped_tiles.list_tiles(variant, device) for variant in VARIANTS}
    for variant, found in kernels_of.items():
        assert len(found) >= (6 if variant in MAIN_GROUPED else 2)
        for tiles in found:
            assert _C.second_tile_reason(variant.problem(), *tiles) == ""
            groups = [number for number in NUM_GROUPS if not takes_either(variant, tiles, device, number)]
            missing |= {(_C.name_tiles(*tiles), number) for number in groups}
    assert missing == MISSING[sku]
    watched_tiles = grouped_sanitizer.choose_tiles(device)
    assert {variant for variant, *_ in watched_tiles} == set(kernels_of)
    assert all(tuple(tiles) in kernels_of[variant] for variant, *tiles in watched_tiles)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_each_number_of_groups_is_launched_up_to_the_bound(monkeypatch, variant):
    launched = []
    for name in ("run_grouped_repeats", "run_changed_rows"):
        monkeypatch.setattr(grouped_tiles, name, lambda *_: (0, []))
    monkeypatch.setattr(grouped_tiles, "run_shapes", lambda *call: (0, launched.append(call[-1]) or []))
    for index, tiles in enumerate(grouped_tiles.list_tiles(variant, H200)):
        grouped_tiles.run_tiles(FakeWorld(), variant, *tiles, index)
    assert {shape.num_groups for either in launched for shape in either} == set(NUM_GROUPS)
    assert {1, _C.MOST_GROUPS_OF_TWO_TILES} <= set(NUM_GROUPS)


@pytest.mark.parametrize("num_groups", NUM_GROUPS)
def test_a_graph_has_rows_for_each_of_its_groups(num_groups):
    either = Masked(24, 144, 300, (5,) * num_groups), Masked(24, 144, 300, (200,) * num_groups)
    listed = grouped_tiles.list_graph_rows(either)
    assert listed[:2] == [shape.sizes for shape in either] and {len(rows) for rows in listed} == {num_groups}
    assert {rows[0] for rows in listed[2:]} == {0, 64, -1, 1 << 30}


def test_kernels_of_two_tiles_are_compiled_ahead_and_have_jobs_of_their_own():
    found = [(variant, *tiles) for variant in VARIANTS for tiles in grouped_tiles.list_tiles(variant, H200)]
    assert len({name for name, _ in grouped_tiles.tile_jobs(FakeWorld())}) == len(found)
    listed = kernels.list_kernels(H200, ["grouped_configs"], ("nvrtc",), 48, True)
    compiled = {(job.problem, job.config, *([job.second] if job.second else [])) for job in listed}
    needed = {
        (problem.to_json(), *map(_C.Config.to_json, tiles)) for problem, *tiles in grouped_tiles.list_tile_kernels(H200)
    }
    assert needed <= compiled and len(needed) > len(found)


@pytest.mark.parametrize("variant", psum_tiles.VARIANTS, ids=str)
def test_shapes_of_groups_with_ends_take_either_tile(variant):
    found = psum_tiles.list_tiles(variant, H200)
    assert len(found) == psum_tiles.NUM_KERNELS
    for first, second in found:
        full, few = psum_tiles.find_shapes(variant, first, second, H200)
        assert psum_tiles.takes_second(variant, few, first, second, H200) and max(few.sizes) < 64 < min(full.sizes)
        assert not psum_tiles.takes_second(variant, full, first, second, H200)


def test_kernels_of_groups_with_ends_are_compiled_ahead_and_have_jobs_of_their_own():
    names = [name for name, _ in psum_tiles.psum_tile_jobs(FakeWorld())]
    assert len({*names}) == len(names) == 3 * psum_tiles.NUM_KERNELS
    listed = kernels.list_kernels(H200, ["grouped_semantics"], ("nvrtc",), 48, True)
    compiled = {(job.problem, job.config, *([job.second] if job.second else [])) for job in listed}
    needed = {
        (problem.to_json(), *map(_C.Config.to_json, tiles))
        for problem, *tiles in psum_tiles.list_psum_tile_kernels(H200)
    }
    assert needed <= compiled


@pytest.mark.parametrize("variant", op_jobs.PSUM_REPEATED, ids=str)
def test_choices_for_groups_with_ends_that_are_repeated_fit_their_shape(variant):
    """A launch refuses others; tiles of masked groups are among them."""
    found, shape = op_jobs.list_psum_choices(variant, H200), list_psum_shapes(variant)[0]
    assert all(_C.is_legal(with_ends(variant).problem(), config, H200) for config in found) and len(found) > 5
    if isinstance(shape, PsumRows):
        assert not any(shape.alignment % config.block_m for config in found)
        assert any(config.block_m < 64 for config in found)
