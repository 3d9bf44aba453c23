"""Configs of the default space compile without spills and without lost optimisations.

Both compilers always build a sample, NVRTC also the tile of one variant of each grouping that needs the most registers.
With --full, NVRTC builds the whole space and every grouped variant, and NVCC a larger sample.
"""

import os

import joblib
import pytest

from deep_gemm import _C
from deep_gemm.errors import CompileError
from deep_gemm.jit import compile, generator
from tests.fakes.compiler import require_compiler
from tests.gpu.grouped_variants import (
    BF16_CONTIGUOUS,
    FP8_K_GROUPED,
    FP8_MASKED,
    GROUPED_OPS,
    get_grouped_space,
    list_grouped_variants,
)

OP = "fp8_gemm"
H200 = _C.Device.known("h200")
NUM_SAMPLED = {"nvrtc": 9, "nvcc": 2}
NUM_NVCC = 24
PROBLEM = _C.Problem(OP, 1, 1, 1)
SPACE = _C.get_default_space(PROBLEM, H200)


def get_faults(name: str, op: str, source: str, compiler: str) -> list[str]:
    """Compile one source, without any cache, and return what is wrong with it."""
    try:
        result = compile.compile_source(source, generator.kernel_name(op), compiler)
    except CompileError as error:
        return [f"{name}: {str(error)[:500]}"]
    numbers = {"spill_bytes": result.spill_bytes, "local_bytes": result.local_bytes}
    faults = [f"{name}: {field} = {value}" for field, value in numbers.items() if value]
    return faults + [f"{name}: {warning}" for warning in result.warnings]


def get_all_faults(pairs: list, compiler: str) -> list[str]:
    """Compile (problem, config): many in processes over the cores, as sweep and warm-up do. A few are done in this
    process before others have imported torch.
    """
    jobs = [
        (f"{problem} {config}", problem.op, generator.generate_source(problem, config), compiler)
        for problem, config in pairs
    ]
    num_processes = len(os.sched_getaffinity(0)) if len(jobs) > 20 else 1
    with joblib.Parallel(n_jobs=num_processes) as parallel:
        found = parallel(joblib.delayed(get_faults)(*job) for job in jobs)
    return [fault for faults in found for fault in faults]


def choose_sample(count: int) -> list:
    """Return the first config of each tile height and cluster, filled up with configs spread over the space."""
    kinds = {(config.block_m, config.cluster_m, config.cluster_n): config for config in reversed(SPACE)}
    return list(dict.fromkeys([*kinds.values(), *SPACE[:: len(SPACE) // count]]))[:count]


def choose_crowded(variant) -> tuple:
    """Return the variant's problem and the tile that takes the most registers.

    Of FP8 that is the widest tile of 128 rows that multiplies two K blocks at a time (up to 128 columns).
    """
    space = get_grouped_space(variant, H200)
    single = [config for config in space if config.cluster_m * config.cluster_n == 1 and not config.swap_ab]
    some = [config for config in single if not variant.is_fp8 or (config.block_m == 128 and config.block_n <= 128)]
    return variant.problem(), max(some, key=lambda config: config.block_m * config.block_n)


def list_crowded_variants() -> list:
    """Return every BF16 variant, and of FP8 those whose scales take the most registers: 1D1D of any layout."""
    return [
        variant
        for variant in list_grouped_variants()
        if not variant.is_fp8 or (variant.recipe, variant.scale_layout) == ("1d1d", "any")
    ]


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_default_space_by_nvrtc():
    require_compiler("nvrtc", f"{len(SPACE)} NVRTC compilations")
    assert get_all_faults([(PROBLEM, config) for config in SPACE], "nvrtc") == []


@pytest.mark.full
@pytest.mark.timeout(600)
def test_larger_sample_by_nvcc():
    require_compiler("nvcc", f"{NUM_NVCC} NVCC compilations")
    assert get_all_faults([(PROBLEM, config) for config in choose_sample(NUM_NVCC)], "nvcc") == []


@pytest.mark.full
@pytest.mark.timeout(600)
def test_crowded_grouped_tiles_by_nvrtc():
    pairs = [choose_crowded(variant) for variant in list_crowded_variants()]
    require_compiler("nvrtc", f"{len(pairs)} NVRTC compilations")
    assert get_all_faults(pairs, "nvrtc") == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("compiler", NUM_SAMPLED)
def test_sample(compiler):
    count = NUM_SAMPLED[compiler]
    require_compiler(compiler, f"{count} compilations")
    assert get_all_faults([(PROBLEM, config) for config in choose_sample(count)], compiler) == []


@pytest.mark.full
@pytest.mark.timeout(600)
def test_crowded_tile_of_each_grouping_by_nvrtc():
    variants = {variant.op: variant for variant in list_crowded_variants()}
    chosen = [variants[op] for op in (BF16_CONTIGUOUS, FP8_MASKED, FP8_K_GROUPED)]
    require_compiler("nvrtc", f"{len(chosen)} NVRTC compilations")
    assert get_all_faults([choose_crowded(variant) for variant in chosen], "nvrtc") == []


def test_every_grouped_op_is_compiled():
    assert {variant.op for variant in list_crowded_variants()} == set(GROUPED_OPS)


@pytest.mark.parametrize("count", [NUM_SAMPLED["nvrtc"], NUM_NVCC])
def test_sample_covers_tile_heights_and_clusters(count):
    sample = choose_sample(count)
    assert {config.block_m for config in sample} == {config.block_m for config in SPACE}
    clusters = {(config.cluster_m, config.cluster_n) for config in SPACE}
    assert {(config.cluster_m, config.cluster_n) for config in sample} == clusters
