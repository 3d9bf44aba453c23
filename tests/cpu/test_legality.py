"""The geometry of the kernels and the predicate that every launch passes."""

import itertools
import random

import pytest

from deep_gemm import _C

OP = "fp8_gemm"
H200 = _C.Device.known("h200")
PROBLEM = _C.Problem(OP, 1, 1, 1)
BASE = {"block_m": 128, "block_n": 128, "num_stages": 4}


def align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def expected_smem(config) -> int:
    """The table of fp8_gemm.cuh: slack, D tile, stages, barriers of stages and scales, scales."""
    scale_buffers = 4 if config.block_m == 64 else 2
    d_tile = align(config.block_m * config.block_n * 2, 1024)
    stages = config.num_stages * (config.block_m + config.block_n) * config.block_k
    return 1024 + d_tile + stages + align((config.num_stages + scale_buffers) * 16, 128) + scale_buffers * 8 * (config.block_m + 2) * 4


def most_scale_blocks(block_n: int) -> int:
    """Walk every tile start up to a full period and count the 128-column blocks that the tile meets."""
    return max((start + block_n - 1) // 128 - start // 128 + 1 for start in range(0, 128 * block_n, block_n))


def grid_of_configs():
    for block_m, block_n, stages, cluster in itertools.product(
        (64, 128, 256), range(8, 200, 8), (2, 3, 5, 9, 24, 32), ((1, 1), (2, 1), (1, 2))
    ):
        yield _C.Config(block_m, block_n, stages, cluster_m=cluster[0], cluster_n=cluster[1])


def test_smem_and_threads():
    for config in grid_of_configs():
        assert _C.smem_bytes(config) == expected_smem(config)
        assert _C.num_threads(config) == (256 if config.block_m == 64 else 384)


def test_legal_exactly_when_every_rule_holds():
    for config in grid_of_configs():
        rows = 64 if config.block_m < 256 else 128
        limit = 248 if config.block_m == 64 else 232
        partial = 2 * _C.wgmma_chains(config) * config.block_n // 2 + 16 if _C.is_pipelined(config) else config.block_n // 2 + 40
        registers = rows // 64 * config.block_n // 2 + partial
        assert _C.estimate_registers(config) == registers
        wanted = expected_smem(config) <= 232448 and registers <= limit and most_scale_blocks(config.block_n) <= 2
        wanted &= config.cluster_m == 1 or config.block_n % 16 == 0
        assert _C.is_legal(PROBLEM, config, H200) == wanted, config
        assert (_C.legality_reason(PROBLEM, config, H200) == "") == wanted


def test_pipelined_tiles():
    assert _C.is_pipelined(_C.Config(64, 144, 4)) and _C.is_pipelined(_C.Config(128, 8, 4))
    assert not _C.is_pipelined(_C.Config(128, 160, 4)) and not _C.is_pipelined(_C.Config(256, 8, 4))


def test_two_groups_of_chains_fit_the_ring():
    """Both are held before the first is released; a smaller ring would wait for itself for ever."""
    for config in grid_of_configs():
        assert 2 * _C.wgmma_chains(config) <= config.num_stages or not _C.is_pipelined(config)
    assert [_C.wgmma_chains(_C.Config(64, 16, stages)) for stages in (2, 3, 4, 7, 8, 24)] == [1, 1, 2, 2, 2, 2]
    assert [_C.wgmma_chains(_C.Config(64, block_n, 12)) for block_n in (8, 32, 40, 64, 80)] == [2, 2, 2, 2, 1]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"block_m": 192}, "block_m = 192: must be 64, 128 or 256"), ({"block_m": 32}, "block_m = 32"), ({"block_n": 100}, "block_n = 100: must be a multiple of 8"),
        ({"block_n": 200}, "block_n = 200"), ({"block_n": 4}, "block_n = 4"), ({"block_n": 176}, "block_n = 176: a tile may touch"), ({"block_k": 64}, "block_k = 64"),
        ({"num_stages": 1}, "num_stages = 1"), ({"num_stages": 33}, "num_stages = 33"), ({"cluster_m": 2, "cluster_n": 2}, "cluster = 2x2"),
        ({"cluster_m": 4}, "cluster = 4x1"), ({"cluster_m": 2, "block_n": 24}, "block_n = 24: must be a multiple of 16"),
        ({"block_m": 256, "block_n": 144, "num_stages": 2}, "registers = 256"), ({"num_stages": 9}, "shared memory = "),
    ],
)  # fmt: skip
def test_reason_names_value_rule_and_remedy(change, words):
    reason = _C.legality_reason(PROBLEM, _C.Config(**(BASE | change)), H200)
    assert words in reason and ("; " in reason)


def test_only_hopper_is_supported():
    numbers = H200.as_dict() | {"name": "NVIDIA B200", "sku": None, "compute_capability": (10, 0)}
    assert "need 9.0" in _C.legality_reason(PROBLEM, _C.Config(**BASE), _C.Device(**numbers))


def test_a_cluster_needs_two_sms():
    pair = _C.Config(**BASE, cluster_m=2)
    assert not _C.is_legal(_C.Problem(OP, 1, 1, 1, num_sms=1), pair, H200)
    assert _C.is_legal(_C.Problem(OP, 1, 1, 1, num_sms=2), pair, H200)


def test_shape_never_matters():
    generator = random.Random(3)
    configs = list(grid_of_configs())
    for config in generator.sample(configs, 200):
        sizes = [generator.choice((1, 7, 128, 4096, 2**31 - 1)) for _ in range(3)]
        assert _C.is_legal(_C.Problem(OP, *sizes), config, H200) == _C.is_legal(PROBLEM, config, H200)


def test_extreme_fields_do_not_wrap():
    huge = _C.Config(65535, 65535, 65535, block_k=65535, cluster_m=65535, cluster_n=65535)
    assert _C.smem_bytes(huge) > 2**45 and not _C.is_legal(PROBLEM, huge, H200)
    assert isinstance(_C.LAUNCH_ABI, int)
