"""A space of configs for tests of searches: larger than most default spaces, and not changed when those are."""

from deep_gemm import _C


def make_space(problem, device) -> list:
    """Return about 200 configs that are legal for `problem`, a plain fp8_gemm one, on an SM90 GPU."""
    clusters = ({}, {"cluster_m": 2})
    configs = [
        _C.Config(block_m, block_n, num_stages, **cluster)
        for block_m in (64, 128, 256)
        for block_n in range(16, 193, 16)
        for num_stages in (3, 4, 5, 6)
        for cluster in clusters
    ]
    return [config for config in configs if _C.is_legal(problem, config, device)]
