"""Sentinels: a few problems and configs that every sweep measures again and again, so that its noise is known.

A sweep measures the sentinels of its op kinds first, some times in between, and last. Equal kernels then have several
blocks in one sweep, and what these differ by is what `compare` must not call a regression. Their rows have a regime of
their own, so that nothing that ranks configs reads them.

The list is fixed: another problem or config has no past to be compared with. Configs that a GPU or a later version
refuses are left out there.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from deep_gemm import _C


class Sentinel(NamedTuple):
    """A problem and the configs that are timed on it."""

    problem: _C.Problem
    configs: tuple[_C.Config, ...]


def config(*sizes: int, **fields: int) -> _C.Config:
    """Return a config of block_m, block_n, num_stages and other fields."""
    return _C.Config(*sizes, **fields)


def sentinel(op: str, sizes: tuple[int, int, int], *configs: _C.Config, **fields: Any) -> Sentinel:
    """Return a sentinel of m, n, k and other fields of the problem."""
    return Sentinel(_C.Problem(op, *sizes, **fields), configs)


#: Two an op kind, of about 15 and 60 us on an H200 where the op kind has such problems. Taken from the presets, with
#: configs that were among the best there and that every SM90 GPU takes.
SENTINELS = (
    sentinel("fp8_gemm", (128, 24576, 1536), config(64, 128, 8), config(128, 96, 7), config(128, 64, 8)),
    sentinel("fp8_gemm", (8192, 576, 7168), config(128, 96, 7, loop=1), config(128, 96, 7), config(128, 144, 5)),
    sentinel(
        "bf16_gemm",
        (128, 2112, 7168),
        config(64, 64, 13, block_k=64),
        config(64, 64, 13, block_k=64, swap_ab=1),
        config(128, 64, 8, block_k=64, split_k=2),
        a_major="mn",
        b_major="mn",
    ),
    sentinel(
        "bf16_gemm",
        (1024, 32768, 512),
        config(128, 160, 5, block_k=64),
        config(128, 256, 3, block_k=64),
        config(128, 256, 3, block_k=64, cluster_m=2),
    ),
    sentinel(
        "m_grouped_fp8_gemm_contiguous",
        (32768, 4096, 2048),
        config(128, 192, 4, loop=1, scale_warp=1),
        config(128, 128, 5, scale_warp=1),
        config(128, 192, 4),
        num_groups=4,
    ),
    sentinel(
        "m_grouped_fp8_gemm_contiguous",
        (32768, 4096, 2048),
        config(128, 192, 4, loop=1, scale_warp=1),
        config(128, 128, 5, scale_warp=1),
        config(128, 192, 4),
        num_groups=8,
    ),
    sentinel(
        "m_grouped_bf16_gemm_contiguous",
        (32768, 4096, 2048),
        config(128, 128, 6, block_k=64),
        config(128, 160, 5, block_k=64),
        config(128, 128, 6, block_k=64, cluster_n=2),
        num_groups=8,
    ),
    sentinel(
        "m_grouped_bf16_gemm_contiguous",
        (32768, 4096, 2048),
        config(128, 128, 6, block_k=64, cluster_n=2),
        config(128, 128, 6, block_k=64),
        config(128, 160, 5, block_k=64),
        num_groups=4,
    ),
    sentinel(
        "m_grouped_fp8_gemm_masked",
        (4096, 4096, 2048),
        config(16, 64, 6, swap_ab=1),
        config(24, 64, 9, swap_ab=1),
        config(32, 64, 8, swap_ab=1),
        num_groups=6,
        expected_m=20,
    ),
    sentinel(
        "m_grouped_fp8_gemm_masked",
        (4096, 6144, 7168),
        config(16, 64, 10, swap_ab=1),
        config(16, 64, 6, swap_ab=1),
        config(24, 64, 6, swap_ab=1),
        num_groups=6,
        expected_m=20,
    ),
    sentinel(
        "m_grouped_bf16_gemm_masked",
        (4096, 4096, 2048),
        config(128, 192, 4, block_k=64),
        config(128, 96, 7, block_k=64),
        config(64, 192, 6, block_k=64),
        num_groups=1,
        expected_m=1024,
    ),
    sentinel(
        "m_grouped_bf16_gemm_masked",
        (4096, 4096, 4096),
        config(64, 192, 6, block_k=64),
        config(128, 160, 5, block_k=64),
        config(128, 160, 5, block_k=64, cluster_n=2),
        num_groups=4,
        expected_m=256,
    ),
    sentinel(
        "k_grouped_fp8_gemm_contiguous",
        (7168, 2048, 32768),
        config(128, 144, 4),
        config(128, 136, 4),
        config(128, 160, 3, cluster_m=2),
        num_groups=4,
        recipe="1d1d",
        d_dtype="fp32",
        c_mode="accumulate",
        group_layout="blocks",
    ),
    sentinel(
        "k_grouped_fp8_gemm_contiguous",
        (7168, 2048, 32768),
        config(128, 136, 4),
        config(128, 144, 4),
        config(128, 128, 4, cluster_n=2, reduce_add=1),
        num_groups=8,
        recipe="1d1d",
        d_dtype="fp32",
        c_mode="accumulate",
        group_layout="blocks",
    ),
    sentinel(
        "k_grouped_bf16_gemm_contiguous",
        (7168, 2048, 32768),
        config(128, 128, 5, block_k=64, cluster_n=2),
        config(128, 128, 5, block_k=64),
        config(128, 128, 5, block_k=64, cluster_m=2),
        num_groups=4,
        d_dtype="fp32",
        c_mode="accumulate",
        a_major="mn",
        b_major="mn",
    ),
    sentinel(
        "k_grouped_bf16_gemm_contiguous",
        (7168, 2048, 32768),
        config(128, 128, 5, block_k=64, cluster_m=2),
        config(128, 128, 5, block_k=64, cluster_n=2),
        config(128, 128, 5, block_k=64),
        num_groups=8,
        d_dtype="fp32",
        c_mode="accumulate",
        a_major="mn",
        b_major="mn",
    ),
    sentinel(
        "batched_fp8_gemm",
        (128, 1024, 4096),
        config(128, 64, 8, loop=1),
        config(64, 160, 7),
        config(128, 64, 8),
        num_groups=8,
        scale_layout="any",
    ),
    sentinel(
        "batched_fp8_gemm",
        (1024, 1024, 4096),
        config(128, 128, 5, scale_warp=1),
        config(256, 128, 3, loop=1, scale_warp=1, tile_barrier=1),
        config(256, 128, 3, cluster_n=2, loop=1, scale_warp=1, tile_barrier=1),
        num_groups=8,
    ),
    sentinel(
        "batched_bf16_gemm",
        (2048, 128, 512),
        config(64, 128, 8, block_k=64),
        config(128, 128, 6, block_k=64),
        config(128, 64, 8, block_k=64),
        num_groups=16,
    ),
    sentinel(
        "batched_bf16_gemm",
        (1024, 512, 128),
        config(256, 128, 3, block_k=64),
        config(128, 256, 3, block_k=64),
        config(64, 256, 4, block_k=64),
        num_groups=128,
        b_major="mn",
    ),
    sentinel(
        "summed_bf16_gemm",
        (256, 256, 256),
        config(64, 128, 8, block_k=64),
        config(128, 64, 8, block_k=64),
        config(64, 144, 7, block_k=64),
        num_groups=129,
        d_dtype="fp32",
    ),
    sentinel(
        "summed_bf16_gemm",
        (128, 128, 128),
        config(128, 96, 6, block_k=64),
        config(128, 112, 5, block_k=64),
        config(64, 128, 8, block_k=64),
        num_groups=4096,
        d_dtype="fp32",
    ),
    sentinel(
        "fp8_mqa_logits",
        (64, 32768, 32),
        config(4, 192, 12),
        config(4, 192, 9),
        config(4, 128, 6),
        d_dtype="fp32",
        heads=32,
    ),
    sentinel("fp8_mqa_logits", (512, 8192, 128), config(4, 128, 6), config(4, 128, 8), config(4, 128, 12), heads=64),
    sentinel(
        "fp8_paged_mqa_logits",
        (48, 65536, 128),
        config(3, 192, 6),
        config(3, 192, 9),
        config(3, 192, 12),
        d_dtype="fp32",
        heads=64,
        next_n=3,
        block_kv=64,
    ),
    sentinel(
        "fp8_paged_mqa_logits",
        (128, 65536, 64),
        config(1, 192, 12),
        config(1, 192, 9),
        config(1, 128, 12),
        d_dtype="fp32",
        heads=64,
        block_kv=64,
    ),
)


def get_sentinels(ops: Sequence[str], device) -> list[Sentinel]:
    """Return the sentinels of some op kinds, with the configs that are legal on `device`."""
    found = []
    for problem, configs in SENTINELS:
        if problem.op in ops:
            legal = tuple(one for one in configs if _C.is_legal(problem, one, device))
            found += [Sentinel(problem, legal)] if legal else []
    return found
