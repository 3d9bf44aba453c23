"""Every config of the default space compiles by NVRTC, and a fixed sample of 24 by NVCC, without spills or lost
optimisations; of grouped
variants the tiles that take the most registers do."""

import os

import joblib
import pytest

from deep_gemm import _C
from deep_gemm.errors import CompileError
from deep_gemm.jit import compile, generator
from tests.fakes.compiler import require_compiler
from tests.gpu.grouped_variants import GROUPED_OPS, get_grouped_space, list_grouped_variants

OP = "fp8_gemm"
H200 = _C.Device.known("h200")
NUM_NVCC = 24
SPACE = _C.get_default_space(_C.Problem("fp8_gemm", 1, 1, 1), H200)
#: The first config of each tile side and cluster, and what else is spread evenly.
KINDS = list({(config.block_m, config.cluster_m, config.cluster_n): config for config in reversed(SPACE)}.values())
SAMPLE = list(dict.fromkeys([*KINDS, *SPACE[:: len(SPACE) // NUM_NVCC]]))[:NUM_NVCC]


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
    """Compile (problem, config) over the cores, in processes: that is how sweep and warm-up compile."""
    jobs = [
        (f"{problem} {config}", problem.op, generator.generate_source(problem, config), compiler)
        for problem, config in pairs
    ]
    with joblib.Parallel(n_jobs=len(os.sched_getaffinity(0))) as parallel:
        found = parallel(joblib.delayed(get_faults)(*job) for job in jobs)
    return [fault for faults in found for fault in faults]


def choose_crowded(variant, space: list) -> "_C.Config":
    """Return the tile that takes the most registers: of FP8 the widest that is multiplied two K blocks at a time (128
    rows, up to 128 columns).
    """
    single = [config for config in space if config.cluster_m * config.cluster_n == 1 and not config.swap_ab]
    some = [config for config in single if not variant.is_fp8 or (config.block_m == 128 and config.block_n <= 128)]
    return max(some, key=lambda config: config.block_m * config.block_n)


@pytest.mark.timeout(600)
def test_default_space_by_nvrtc():
    require_compiler("nvrtc", f"{len(SPACE)} NVRTC compilations")
    assert get_all_faults([(_C.Problem(OP, 1, 1, 1), config) for config in SPACE], "nvrtc") == []


@pytest.mark.timeout(600)
def test_crowded_grouped_tiles_by_nvrtc():
    variants = [
        variant
        for variant in list_grouped_variants()
        if not variant.is_fp8 or (variant.recipe, variant.scale_layout) == ("1d1d", "any")
    ]
    pairs = [(variant.problem(), choose_crowded(variant, get_grouped_space(variant, H200))) for variant in variants]
    require_compiler("nvrtc", f"{len(pairs)} NVRTC compilations")
    assert {variant.op for variant in variants} == set(GROUPED_OPS) and get_all_faults(pairs, "nvrtc") == []


@pytest.mark.timeout(600)
def test_sample_by_nvcc():
    require_compiler("nvcc", f"{NUM_NVCC} NVCC compilations")
    assert get_all_faults([(_C.Problem(OP, 1, 1, 1), config) for config in SAMPLE], "nvcc") == []


def test_sample_covers_tiles_and_clusters():
    assert {config.block_m for config in SAMPLE} == {config.block_m for config in SPACE}
    assert {(config.cluster_m, config.cluster_n) for config in SAMPLE} == {
        (config.cluster_m, config.cluster_n) for config in SPACE
    }
