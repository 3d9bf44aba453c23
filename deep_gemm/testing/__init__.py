"""Compare results, count bytes and time functions on the GPU, under the names of DeepGEMM's `deep_gemm.testing`."""

from deep_gemm.testing import numeric, utils
from deep_gemm.testing.bench import bench, bench_kineto
from deep_gemm.testing.numeric import assert_bitwise_equal, calc_diff, count_bytes
from deep_gemm.testing.utils import get_arch_major, ignore_env, test_filter

__all__ = [
    "assert_bitwise_equal",
    "bench",
    "bench_kineto",
    "calc_diff",
    "count_bytes",
    "get_arch_major",
    "ignore_env",
    "numeric",
    "test_filter",
    "utils",
]
