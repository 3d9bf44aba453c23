"""Generate the CUDA source of a kernel from a problem and a config.

The source takes validated integers only, never a string from a file or caller. It names every constant, emits the one WGMMA
instruction wrapper that the config needs, and includes the device headers of `deep_gemm/include/deep_gemm`.
"""

from deep_gemm import _C
from deep_gemm.errors import ConfigError, ProblemError

_KERNEL_NAMES = {"fp8_gemm": "deep_gemm_fp8_gemm_nt"}

_TEMPLATE = """\
// {op}: {config}
#include "deep_gemm/types.cuh"

namespace deep_gemm {{

struct Config {{
{constants}
}};

struct Wgmma {{
    // wgmma.mma_async.m64n{block_n}k32, E4M3 x E4M3 -> FP32, both operands in shared memory.
    template <bool kAccumulate>
    __device__ static __forceinline__ void multiply(float (&d)[{accumulators}], u64 a, u64 b) {{
        asm volatile(
            "{{\\n"
            ".reg .pred accumulate;\\n"
            "setp.ne.b32 accumulate, %{accumulate_operand}, 0;\\n"
            "wgmma.mma_async.sync.aligned.m64n{block_n}k32.f32.e4m3.e4m3 {{{registers}}}, %{a_operand}, %{b_operand}, accumulate, 1, 1;\\n"
            "}}\\n"
            : {outputs}
            : "l"(a), "l"(b), "n"(int(kAccumulate)));
    }}
}};

}}  // namespace deep_gemm

#include "deep_gemm/{header}"

extern "C" __global__ void __launch_bounds__(deep_gemm::Config::kThreads, 1)
{kernel_name}(const __grid_constant__ deep_gemm::TensorMap map_a, const __grid_constant__ deep_gemm::TensorMap map_b,
    const __grid_constant__ deep_gemm::TensorMap map_d, const __grid_constant__ deep_gemm::Params params) {{
    extern __shared__ __align__(1024) unsigned char shared[];
    const deep_gemm::u32 base = (deep_gemm::ptx::shared_address(shared) + 1023) & ~1023u;
    deep_gemm::Fp8Gemm<deep_gemm::Config, deep_gemm::Wgmma>(map_a, map_b, map_d, params, base).run();
}}
"""


def kernel_name(op: str) -> str:
    """Return the symbol of the kernel of `op`. Raises ProblemError for an unknown op kind."""
    if op not in _KERNEL_NAMES:
        raise ProblemError(f"op = {op!r}: unknown op kind; known: {', '.join(sorted(_KERNEL_NAMES))}")
    return _KERNEL_NAMES[op]


def generate_source(problem: "_C.Problem", config: "_C.Config") -> str:
    """Return the CUDA source of the kernel; it depends on the problem's op kind and compiled dims only, not on other sizes.

    Raises:
        ConfigError: the config can never be legal (checked again here, because a config may come from a file).
    """
    reason = _C.legality_reason(problem, config, _C.Device.known("h200"))
    if reason:
        raise ConfigError(f"config = {config}: {reason}")
    accumulators = config.block_n // 2
    return _TEMPLATE.format(
        op=problem.op,
        config=config,
        constants="\n".join(f"    static constexpr {kind} {name} = {value};" for kind, name, value in _constants(problem, config)),
        block_n=config.block_n,
        accumulators=accumulators,
        registers=", ".join(f"%{i}" for i in range(accumulators)),
        outputs=", ".join(f'"+f"(d[{i}])' for i in range(accumulators)),
        a_operand=accumulators,
        b_operand=accumulators + 1,
        accumulate_operand=accumulators + 2,
        header="fp8_gemm.cuh",
        kernel_name=kernel_name(problem.op),
    )


def _constants(problem: "_C.Problem", config: "_C.Config") -> list[tuple[str, str, str]]:
    """Return (type, name, value) of the constants of the generated Config."""
    sizes = {name: getattr(problem, name) if name in problem.compiled_dims else 0 for name in "mnk"}
    numbers = {
        "kBlockM": config.block_m, "kBlockN": config.block_n, "kBlockK": config.block_k, "kNumStages": config.num_stages,
        "kClusterM": config.cluster_m, "kClusterN": config.cluster_n, "kThreads": _C.num_threads(config), "kSharedBytes": _C.smem_bytes(config),
        "kChains": _C.wgmma_chains(config),
        "kShapeM": sizes["m"], "kShapeN": sizes["n"], "kShapeK": sizes["k"],
    }
    constants = [("u32", name, str(int(value))) for name, value in numbers.items()]
    return [*constants, ("bool", "kPipelined", "true" if _C.is_pipelined(config) else "false")]


def canonical_cases(op: str) -> list[tuple["_C.Problem", "_C.Config"]]:
    """Return the (problem, config) pairs whose sources stand for the generator in the kernel hash of `op`.

    Every tile, at a shallow and a deep ring, with and without a cluster, so that a change of any constant of any kernel shows; legality
    alone decides which, so that neither the heuristic nor the candidate list changes the hash.
    """
    kernel_name(op)
    problem, device = _C.Problem(op, 1, 1, 1), _C.Device.known("h200")
    clusters = ({}, {"cluster_m": 2}, {"cluster_n": 2})
    configs = [
        _C.Config(block_m, block_n, num_stages, **cluster)
        for block_m in (64, 128, 256) for block_n in range(8, 257, 8) for num_stages in (2, 4, 16) for cluster in clusters
    ]  # fmt: skip
    fixed = _C.Problem(op, 128, 256, 512, compiled_dims="mnk")
    return [(problem, config) for config in configs if _C.is_legal(problem, config, device)] + [(fixed, _C.Config(64, 8, 8))]
