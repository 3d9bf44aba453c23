"""Every config of the default space compiles by NVRTC, and a fixed sample of 24 by NVCC, without spills or lost optimisations."""

import os

import joblib
import pytest

from deep_gemm import _C
from deep_gemm.errors import CompileError
from deep_gemm.jit import compile, generator
from tests.fakes.compiler import require_compiler

OP = "fp8_gemm"
NUM_NVCC = 24
SPACE = _C.get_default_space(_C.Device.known("h200"))
#: The first config of each tile side and cluster, and what else is spread evenly.
KINDS = list({(config.block_m, config.cluster_m, config.cluster_n): config for config in reversed(SPACE)}.values())
SAMPLE = list(dict.fromkeys([*KINDS, *SPACE[:: len(SPACE) // NUM_NVCC]]))[:NUM_NVCC]


def get_faults(config: "_C.Config", compiler: str) -> list[str]:
    """Compile one config, without any cache, and return what is wrong with it."""
    try:
        result = compile.compile_source(generator.generate_source(_C.Problem(OP, 1, 1, 1), config), generator.kernel_name(OP), compiler)
    except CompileError as error:
        return [f"{config}: {str(error)[:500]}"]
    numbers = {"spill_bytes": result.spill_bytes, "local_bytes": result.local_bytes}
    faults = [f"{config}: {name} = {value}" for name, value in numbers.items() if value]
    return faults + [f"{config}: {warning}" for warning in result.warnings]


def get_all_faults(configs: list, compiler: str) -> list[str]:
    """Compile over the cores, in processes: that is how sweep and warm-up compile."""
    with joblib.Parallel(n_jobs=len(os.sched_getaffinity(0))) as parallel:
        found = parallel(joblib.delayed(get_faults)(config, compiler) for config in configs)
    return [fault for faults in found for fault in faults]


@pytest.mark.timeout(600)
def test_default_space_by_nvrtc():
    require_compiler("nvrtc", f"{len(SPACE)} NVRTC compilations")
    assert get_all_faults(SPACE, "nvrtc") == []


@pytest.mark.timeout(600)
def test_sample_by_nvcc():
    require_compiler("nvcc", f"{NUM_NVCC} NVCC compilations")
    assert get_all_faults(SAMPLE, "nvcc") == []


def test_sample_covers_tiles_and_clusters():
    assert {config.block_m for config in SAMPLE} == {config.block_m for config in SPACE}
    assert {(config.cluster_m, config.cluster_n) for config in SAMPLE} == {(config.cluster_m, config.cluster_n) for config in SPACE}
