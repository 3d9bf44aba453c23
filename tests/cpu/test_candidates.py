"""The search space: bounded, legal, ordered, and without configs that another one makes pointless."""

import itertools

import pytest

from deep_gemm import _C

OP = "fp8_gemm"
H200 = _C.Device.known("h200")
SIZES = (1, 7, 8, 63, 64, 65, 127, 128, 129, 256, 257, 576, 4096, 2**31 - 1)
SPACE = _C.get_default_space(H200)


@pytest.mark.parametrize("name", ["h200", "h100", "h800", "h20", "gh200"])
def test_default_space_is_bounded_legal_and_without_duplicates(name):
    device = _C.Device.known(name)
    space = _C.get_default_space(device)
    assert 100 <= len(space) <= 160 and len(set(space)) == len(space)
    assert all(_C.is_legal(_C.Problem(OP, 1, 1, 1), config, device) for config in space)


def test_default_space_holds_every_knob():
    assert {config.block_m for config in SPACE} == {64, 128, 256}
    assert {(config.cluster_m, config.cluster_n) for config in SPACE} == {(1, 1), (2, 1), (1, 2)}
    assert {8, 16, 48, 80, 112, 128, 144, 160, 192} <= {config.block_n for config in SPACE}
    deepest = {(c.block_m, c.block_n): c.num_stages for c in SPACE if c.cluster_m == 2}
    for (block_m, block_n), stages in deepest.items():
        deeper = _C.Config(block_m, block_n, stages + 1)
        assert stages == 24 or not _C.is_legal(_C.Problem(OP, 1, 1, 1), deeper, H200)


def test_candidates_are_an_ordered_part_of_the_default_space():
    positions = {config: index for index, config in enumerate(SPACE)}
    union = set()
    for m, n in itertools.product(SIZES, SIZES):
        candidates = _C.get_candidates(_C.Problem(OP, m, n, 512), H200)
        indices = [positions[config] for config in candidates]
        assert candidates and indices == sorted(set(indices))
        union.update(candidates)
    assert union == set(SPACE)


def test_candidates_do_not_depend_on_k_and_are_deterministic():
    for m, n in itertools.product((1, 100, 5000), (64, 2112)):
        lists = [
            _C.get_candidates(_C.Problem(OP, m, n, k, compiled_dims=dims), H200) for k, dims in ((1, ""), (7168, ""), (2**31 - 1, "nk"))
        ]
        assert lists[0] == lists[1] == lists[2]


def test_pointless_configs_are_dropped():
    widths = sorted({config.block_n for config in SPACE})
    for m, n in itertools.product(SIZES, SIZES):
        for config in _C.get_candidates(_C.Problem(OP, m, n, 512), H200):
            assert config.block_m == 64 or m > config.block_m // 2
            assert config.cluster_m == 1 or m > config.block_m
            assert config.cluster_n == 1 or n > config.block_n
            assert config.block_n == 8 or widths[widths.index(config.block_n) - 1] < n


def test_one_sm_leaves_no_clusters():
    candidates = _C.get_candidates(_C.Problem(OP, 4096, 4096, 512, num_sms=1), H200)
    assert candidates and all(config.cluster_m * config.cluster_n == 1 for config in candidates)


def test_device_decides_the_space():
    small = _C.Device(**H200.as_dict() | {"smem_bytes": 101376, "sku": None})
    space = _C.get_default_space(small)
    assert space and all(_C.smem_bytes(config) <= 101376 for config in space)
    blackwell = _C.Device(**H200.as_dict() | {"compute_capability": (10, 0), "sku": None})
    assert _C.get_default_space(blackwell) == [] == _C.get_candidates(_C.Problem(OP, 64, 64, 64), blackwell)
