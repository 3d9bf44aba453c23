"""What the GPU suite covers of weights that leave L2 first, and that it notices wrong ones."""

import re
from pathlib import Path

import pytest

from deep_gemm import _C
from tests.fakes.gpu_world import FakeWorld
from tests.gpu import kernels, large_weights
from tests.gpu.large_weights import LARGE, MAX_M, PAIRS, ROWS

H200 = _C.Device.known("h200")
WALK = Path(__file__).parents[3] / "deep_gemm" / "include" / "deep_gemm" / "sm90" / "scheduler" / "group_walk.cuh"
SMALL = (136, 272)


def test_the_weights_are_as_large_as_the_kernels_ask():
    text = WALK.read_text(encoding="utf-8")
    (least,) = re.findall(r"kLargeBytes = (\d+);", text)
    assert (len(ROWS) - ROWS.count(0)) * LARGE[0] * LARGE[1] >= int(least) and len(ROWS) <= 32
    (most,) = re.findall(r"kMostTokensOnce = (\d+);", text)
    assert int(most) == large_weights.MOST_TOKENS
    rule = (
        "return Config::kSwapAB && Config::kBlockM <= kMostTokensOnce && "
        f"Config::kBlockN <= {large_weights.MOST_WEIGHT_ROWS} && 3 * (Config::kSharedBytes + kReserved) > kSmBytes && "
        "Config::kClusterM * Config::kClusterN == 1 && !Config::kMnMajorB;"
    )
    assert rule in " ".join(text.split())
    limits = f"kSmBytes = {large_weights.SM_BYTES}, kReserved = {large_weights.RESERVED_BYTES};"
    assert limits in text


def test_groups_have_rows_for_one_tile_and_for_two():
    for masked, _ in PAIRS:
        heights = {config.block_m for config in large_weights.list_configs(masked, H200)}
        assert {8, 16, 24, 32, 64} <= heights and max(heights) == large_weights.MOST_TOKENS
        for config in large_weights.list_configs(masked, H200):
            fitting, *others = large_weights.list_rows(config)
            assert max(fitting) <= config.block_m and fitting.count(0) == ROWS.count(0)
            assert others == ([ROWS] if config.block_m < max(ROWS) else [])
    assert max(ROWS) <= MAX_M and 0 in ROWS and any(0 < rows <= 8 for rows in ROWS) and any(rows > 16 for rows in ROWS)


def test_every_kernel_is_compiled_ahead():
    listed = kernels.list_kernels(H200, ["grouped_semantics"], ("nvrtc",), 48, True)
    needed = {(problem.to_json(), config.to_json()) for problem, config in large_weights.list_large_kernels(H200)}
    assert needed <= {(job.problem, job.config) for job in listed}


@pytest.mark.parametrize("masked", [masked for masked, _ in PAIRS], ids=str)
@pytest.mark.parametrize("is_right", [True, False])
def test_a_wrong_kernel_is_noticed(is_right, masked):
    def spoil(kernel, d):
        d[3, 0, 0] = 40.0

    world = FakeWorld(None if is_right else spoil)
    config = large_weights.list_configs(masked, H200)[0]
    cases, failures = large_weights.run_masked(world, masked, config, SMALL)
    assert config.block_m == 8 and cases == 4, "two runs with rows for one tile each, two with some for more"
    assert (failures == []) == is_right


def test_tiles_divide_the_alignment_of_the_ends(monkeypatch):
    shapes = []

    def note_shapes(*call):
        shapes.append(call[-1])
        return 1, []

    monkeypatch.setattr(large_weights, "run_psum_config", note_shapes)
    for masked, contiguous in PAIRS:
        for config in large_weights.list_psum_configs(masked, contiguous, H200):
            large_weights.run_psum(FakeWorld(), contiguous, config, SMALL)
            for shape in shapes[-1]:
                assert shape.alignment % config.block_m == 0 and shape.alignment >= max(ROWS)
    assert len(shapes) == len(PAIRS) * large_weights.NUM_PSUM_CONFIGS


def test_each_kernel_has_a_job():
    names = [name for name, _ in large_weights.large_jobs(FakeWorld())]
    assert len(names) == len(set(names)) == len(large_weights.list_large_kernels(H200))
    assert {name.split(": ")[0] for name in names} == {f"large weights {one}" for pair in PAIRS for one in pair}
