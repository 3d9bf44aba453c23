"""Generate the CUDA source of a kernel from a problem and a config.

The source takes validated integers and enumerators only, never a string from a file or caller. It names every constant,
emits the one WGMMA instruction wrapper that the config needs, and includes the device headers of
`deep_gemm/include/deep_gemm`.
"""

import itertools

from deep_gemm import _C
from deep_gemm.errors import ConfigError, ProblemError
from deep_gemm.fields import OP_KINDS

_RECIPES = {"1d2d": "k1D2D", "1d1d": "k1D1D", "per_row": "kPerRow"}
_C_MODES = {"none": "kNone", "accumulate": "kAccumulate", "general": "kGeneral", "head_split": "kHeadSplit"}
#: What a tile of queries costs besides its tiles of keys, in tiles of keys, by the size of a head (fitted on an H200).
_SEGMENT_COST = {32: 4, 64: 4, 128: 3}
#: Modes of C that came later than the others, and hence stand behind them in the list of canonical variants.
_LATE_C_MODES = {"accumulate": 1, "head_split": 2}

_HEAD = """\
// {op}: {config}
#include "deep_gemm/types.cuh"

namespace deep_gemm {{
{tiles}}}  // namespace deep_gemm

{includes}

extern "C" __global__ void __launch_bounds__(deep_gemm::Config::kThreads, 1)
"""

_TILE = """
struct {prefix}Config {{
{constants}
}};

struct {prefix}Wgmma {{
    // wgmma.mma_async.{shape}, {types}, both operands in shared memory.
    template <bool kAccumulate>
    __device__ static __forceinline__ void multiply(float (&d)[{accumulators}], u64 a, u64 b) {{
        asm volatile(
            "{{\\n"
            ".reg .pred accumulate;\\n"
            "setp.ne.b32 accumulate, %{accumulate_operand}, 0;\\n"
            "wgmma.mma_async.sync.aligned.{shape}.{types} {{{registers}}}, %{a_operand}, %{b_operand}, \
accumulate, {immediates};\\n"
            "}}\\n"
            : {outputs}
            : "l"(a), "l"(b), "n"(int(kAccumulate)));
    }}
}};

"""

_PRODUCT_ENTRY = """\
{kernel_name}(const __grid_constant__ deep_gemm::TensorMap map_a, const __grid_constant__ deep_gemm::TensorMap map_b,
    const __grid_constant__ deep_gemm::TensorMap map_d, const __grid_constant__ deep_gemm::TensorMap map_scale_a,
    const __grid_constant__ deep_gemm::TensorMap map_scale_b, const __grid_constant__ deep_gemm::TensorMap map_a_tail,
    const __grid_constant__ deep_gemm::Params params{group_parameter}) {{
    extern __shared__ __align__(1024) unsigned char shared[];
    const deep_gemm::u32 base = (deep_gemm::ptx::shared_address(shared) + 1023) & ~1023u;
    const deep_gemm::Maps maps{{map_a, map_b, map_d, map_scale_a, map_scale_b, map_a_tail}};{no_groups}{second_tile}
    deep_gemm::{kernel_class}<{template_arguments}>({arguments}).run();
}}
"""

_SECOND_PARAMETER = ",\n    const __grid_constant__ deep_gemm::SecondTile second"
_SECOND_TILE = """
    if (deep_gemm::takes_second<deep_gemm::Config, deep_gemm::SecondConfig{rows}>(maps, params, groups, second)) {{
        const deep_gemm::Maps own{{second.a, second.b, second.d, second.scale_a, second.scale_b, second.a_tail}};
        deep_gemm::{kernel_class}<{second_arguments}>(own, second.params, groups, base).run();
        return;
    }}"""

_LOGITS_ENTRY = """\
{kernel_name}(const __grid_constant__ deep_gemm::TensorMap map_q, const __grid_constant__ deep_gemm::TensorMap map_kv,
    const __grid_constant__ deep_gemm::TensorMap map_scale, const __grid_constant__ deep_gemm::TensorMap map_weights,
    const __grid_constant__ deep_gemm::MqaParams params) {{
    extern __shared__ __align__(1024) unsigned char shared[];
    const deep_gemm::u32 base = (deep_gemm::ptx::shared_address(shared) + 1023) & ~1023u;
    const deep_gemm::MqaMaps maps{{map_q, map_kv, map_scale, map_weights}};
    deep_gemm::{kernel_class}<{template_arguments}>(maps, params, base).run();
}}
"""


def kernel_name(op: str) -> str:
    """Return the symbol of the kernel of `op`. Raises ProblemError for an unknown op kind."""
    if op not in OP_KINDS:
        raise ProblemError(f"op = {op!r}: no such op kind; use one of {', '.join(sorted(OP_KINDS))}")
    return f"deep_gemm_{op}"


def generate_source(problem: "_C.Problem", config: "_C.Config", second: "_C.Config | None" = None) -> str:
    """Return the CUDA source of the kernel. Of the problem it depends on the variant and the compiled dims only.

    Args:
        problem: its variant and compiled dims.
        config: the tile, or the first one.
        second: a second tile, of which and `config` the kernel takes one by the rows of its groups.

    Raises:
        ConfigError: a config can never be legal (checked again here, because a config may come from a file), or no
            kernel can hold both.
    """
    reason = _C.tiles_reason(problem, config, second, _C.Device.known("h200"))
    if reason:
        raise ConfigError(reason)
    return _render(problem, config, second)


def canonical_sources(op: str) -> list[str]:
    """Return the sources that stand for the generator in the kernel hash of `op`.

    Raises ProblemError for an unknown op kind.
    """
    return [_render(problem, config) for problem, config in canonical_cases(op)]


def second_tile_cases() -> list[tuple["_C.Problem", "_C.Config", "_C.Config"]]:
    """Return (problem, config, second) of the kernels that stand for the choice between two tiles in the hash of
    SECOND_TILE: one a dtype, of masked groups.
    """
    problems = [_C.Problem(op, 1, 1, 1, num_groups=1) for op, kind in OP_KINDS.items() if kind.has_room]
    first, second = (
        [_C.Config(*sides, block_k=_C.stage_k(problem.op)) for problem in problems]
        for sides in ((128, 128, 4), (128, 64, 4))
    )
    return list(zip(problems, first, second, strict=True))


def second_tile_sources() -> list[str]:
    """Return the sources of second_tile_cases."""
    return [_render(*case) for case in second_tile_cases()]


def _count_columns(problem: "_C.Problem", config: "_C.Config") -> int:
    """Return the columns of the WGMMA."""
    if OP_KINDS[problem.op].is_logits:
        return _C.logits_columns(problem, config)
    return _C.columns_per_warpgroup(config)


def _render(problem: "_C.Problem", config: "_C.Config", second: "_C.Config | None" = None) -> str:
    parts = _skeleton(problem)
    tiles = _render_tile(problem, config)
    if second is not None:
        tiles += _render_tile(problem, second, "Second")[1:]
        parts["includes"] += '\n#include "deep_gemm/sm90/scheduler/tile_choice.cuh"'
        parts["group_parameter"] += _SECOND_PARAMETER
        parts["second_tile"] = _SECOND_TILE.format(**parts)
    return (_HEAD + (_LOGITS_ENTRY if OP_KINDS[problem.op].is_logits else _PRODUCT_ENTRY)).format(
        op=problem.op,
        config=_C.name_tiles(config, second),
        tiles=tiles,
        kernel_name=kernel_name(problem.op),
        **parts,
    )


def _render_tile(problem: "_C.Problem", config: "_C.Config", prefix: str = "") -> str:
    """Return the constants and the multiplication of a tile, of which a second one has a prefix."""
    columns, kind = _count_columns(problem, config), OP_KINDS[problem.op]
    accumulators = columns // 2
    constants = _logits_constants(problem, config) if kind.is_logits else _constants(problem, config)
    return _TILE.format(
        prefix=prefix,
        constants="\n".join(f"    static constexpr {type_} {name} = {value};" for type_, name, value in constants),
        shape=f"m64n{columns}k{config.block_k // 4}",
        types="f32.e4m3.e4m3" if kind.is_fp8 else "f32.bf16.bf16",
        immediates=_immediates(problem, config),
        accumulators=accumulators,
        registers=", ".join(f"%{i}" for i in range(accumulators)),
        outputs=", ".join(f'"+f"(d[{i}])' for i in range(accumulators)),
        a_operand=accumulators,
        b_operand=accumulators + 1,
        accumulate_operand=accumulators + 2,
    )


def _skeleton(problem: "_C.Problem") -> dict[str, str]:
    """Return what the kernel of a problem includes, is passed and instantiates, by the template's names."""
    kind = OP_KINDS[problem.op]
    headers = [kind.kernel]
    if kind.is_logits:
        headers.append("mqa_paged_schedule" if kind.is_paged else "mqa_prefill_schedule")
    else:  # which tiles there are is the scheduler's to say
        headers.append(f"sm90/scheduler/{kind.grouping}_scheduler")
    scheduler = _class_of(headers[1].rpartition("/")[2])
    if problem.has_signals:  # the same tiles, and an epilogue that says when they are stored
        headers.append("sm90/epilogue/signals")
        scheduler = "SignallingScheduler"
    return {
        "includes": "\n".join(f'#include "deep_gemm/{header}.cuh"' for header in headers),
        "group_parameter": ",\n    const __grid_constant__ deep_gemm::GroupParams groups" if kind.is_grouped else "",
        "no_groups": "" if kind.is_grouped else "\n    const deep_gemm::GroupParams groups = {};",
        "kernel_class": _class_of(kind.kernel),
        "arguments": "maps, params, groups, base",
        "template_arguments": _template_arguments(scheduler),
        "second_arguments": _template_arguments(scheduler, "Second"),
        "rows": ", deep_gemm::PsumGroupRows" if kind.grouping == "m_psum" else "",
        "second_tile": "",
    }


def _template_arguments(scheduler: str, prefix: str = "") -> str:
    config, wgmma = f"deep_gemm::{prefix}Config", f"deep_gemm::{prefix}Wgmma"
    return f"{config}, {wgmma}, deep_gemm::{scheduler}<{config}>"


def _class_of(header: str) -> str:
    """Return the class that a header is named after: "bf16_gemm" has Bf16Gemm."""
    return "".join(word.capitalize() for word in header.split("_"))


def _immediates(problem: "_C.Problem", config: "_C.Config") -> str:
    """Return the signs of both operands and, for BF16, whether each is transposed; the instruction's A is the side of
    64 rows.
    """
    if OP_KINDS[problem.op].is_fp8:
        return "1, 1"
    majors = [problem.b_major, problem.a_major] if config.swap_ab else [problem.a_major, problem.b_major]
    return "1, 1, " + ", ".join(str(int(major == "mn")) for major in majors)


def _constants(problem: "_C.Problem", config: "_C.Config") -> list[tuple[str, str, str]]:
    """Return (type, name, value) of the constants of the generated Config."""
    sizes = {name: getattr(problem, name) if name in problem.compiled_dims else 0 for name in "mnk"}
    numbers = {
        "kBlockM": config.block_m,
        "kBlockN": config.block_n,
        "kBlockK": config.block_k,
        "kNumStages": config.num_stages,
        "kClusterM": config.cluster_m,
        "kClusterN": config.cluster_n,
        "kSplitK": config.split_k,
        "kThreads": _C.num_threads(problem, config),
        "kSharedBytes": _C.smem_bytes(problem, config),
        "kElementBytes": 128 // config.block_k,
        "kShapeM": sizes["m"],
        "kShapeN": sizes["n"],
        "kShapeK": sizes["k"],
    }
    switches = {
        "kSwapAB": config.swap_ab, "kMnMajorA": problem.a_major == "mn", "kMnMajorB": problem.b_major == "mn",
        "kFloatD": problem.d_dtype == "fp32", "kScaleRing": problem.scale_layout == "any",
        "kStaged": _C.is_staged(problem, config), "kPipelined": _C.is_pipelined(problem, config),
        "kLoop": config.loop, "kScaleWarp": config.scale_warp,
        "kTileBarrier": config.tile_barrier, "kReduceAdd": config.reduce_add,
    }  # fmt: skip
    if OP_KINDS[problem.op].is_grouped:
        numbers |= {
            "kSharedBytes": numbers["kSharedBytes"] - _C.TILE_QUEUE_BYTES,
            "kTileQueueBytes": _C.TILE_QUEUE_BYTES,
        }
        switches["kGroupBlocks"] = problem.group_layout == "blocks"
    if OP_KINDS[problem.op].has_ends and OP_KINDS[problem.op].k_is_divided:  # each group has maps that end with it
        switches |= {"kGroupBlocks": True, "kSeparateBlocks": problem.group_layout == "blocks"}
    recipe = _RECIPES[problem.recipe] if OP_KINDS[problem.op].is_fp8 else "kNone"
    return [
        *(("u32", name, str(int(value))) for name, value in numbers.items()),
        *(("bool", name, "true" if value else "false") for name, value in switches.items()),
        ("Recipe", "kRecipe", f"Recipe::{recipe}"),
        ("CMode", "kCMode", f"CMode::{_C_MODES[problem.c_mode]}"),
    ]


def _logits_constants(problem: "_C.Problem", config: "_C.Config") -> list[tuple[str, str, str]]:
    """Return (type, name, value) of the constants of the generated Config of attention logits."""
    numbers = {
        "kHeads": problem.heads,
        "kHeadDim": problem.k,
        "kBlockQ": config.block_m,
        "kColumns": _C.logits_columns(problem, config),
        "kNumStages": config.num_stages,
        "kMathGroups": config.block_n // 64,
        "kThreads": _C.num_threads(problem, config),
        "kQueryStages": _C.logits_query_stages(problem, config),
        "kSegmentCost": _SEGMENT_COST[problem.k],
        "kNextN": problem.next_n,
        "kPageRows": problem.block_kv or 64,
        "kSharedBytes": _C.smem_bytes(problem, config),
    }
    switches = {"kFloatD": problem.d_dtype == "fp32"}
    return [
        *(("u32", name, str(value)) for name, value in numbers.items()),
        *(("bool", name, "true" if value else "false") for name, value in switches.items()),
    ]


def canonical_cases(op: str) -> list[tuple["_C.Problem", "_C.Config"]]:
    """Return the (problem, config) pairs whose sources stand for the generator in the kernel hash of `op`.

    They cover the variants of the op with tiles of every kind, shallow and deep rings, with and without clusters and
    split K, and every knob, so that a change of a constant of any kernel shows. Legality alone filters them, so that
    neither the heuristic nor the candidate list changes the hash.
    """
    kernel_name(op)
    device = _C.Device.known("h200")
    if OP_KINDS[op].is_logits:
        return _canonical_logits(op, device)
    variants = _canonical_variants(OP_KINDS[op])
    cases = [(_C.Problem(op, 1, 1, 1, **variant), config) for variant in variants for config in _canonical_configs(op)]
    fixed = (
        _C.Problem(op, 128, 256, 512, compiled_dims="mnk", **variants[0]),
        _C.Config(64, 8, 8, block_k=_C.stage_k(op)),
    )
    return [(problem, config) for problem, config in cases if _C.is_legal(problem, config, device)] + [fixed]


def _canonical_logits(op: str, device: "_C.Device") -> list[tuple["_C.Problem", "_C.Config"]]:
    """Return the canonical cases of attention logits."""
    is_paged = OP_KINDS[op].is_paged
    pages = [{"next_n": next_n, "block_kv": block_kv} for next_n in (1, 2, 6) for block_kv in _C.PAGE_SIZES]
    variants = _merge(
        [{"heads": heads} for heads in (8, 32, 64, 128)],
        [{"d_dtype": d_dtype} for d_dtype in OP_KINDS[op].d_dtypes],
        pages if is_paged else [{}],
    )
    problems = [
        _C.Problem(op, variant.get("next_n", 1), 1, head_dim, **variant)
        for variant in variants
        for head_dim in _C.HEAD_SIZES
    ]
    # Two math warpgroups and three, which divide the stages among them.
    configs = [
        _C.Config(tokens, 64 * groups, groups * each) for tokens in (1, 2, 4) for groups in (2, 3) for each in (2, 4)
    ]
    return [(problem, config) for problem in problems for config in configs if _C.is_legal(problem, config, device)]


def _canonical_variants(kind: "_C.OpKind") -> list[dict]:
    """Return the fields of the variants of an op kind. Their order is part of the kernel hash, so it is historical."""
    outputs = [{"d_dtype": d_dtype, "c_mode": c_mode} for d_dtype in kind.d_dtypes for c_mode in kind.c_modes]
    # Batched products took an MN-major A when others had been measured. Its kernels differ from those by constants that
    # dense products have, too: left out, they leave the hash of the measured ones as it was.
    majors_a = [major for major in kind.a_majors if major == "k" or not kind.is_batched]
    majors = [{"a_major": a_major, "b_major": b_major} for a_major in majors_a for b_major in kind.b_majors]
    scales = [{"recipe": recipe, "scale_layout": layout} for recipe in kind.recipes for layout in kind.scale_layouts]
    layouts = [{"group_layout": layout} for layout in sorted(kind.group_layouts)]
    if kind.is_grouped:
        groups = {"num_groups": 1} | ({"alignment": _C.ANY_TILE_ALIGNMENT} if kind.m_is_shared else {})
        variants = _merge(majors, layouts, outputs, scales, [groups])
    else:
        outputs.sort(key=lambda output: _LATE_C_MODES.get(output["c_mode"], 0))
        variants = _merge(outputs, majors, scales)
    return [variant for variant in variants if _exists(kind.name, variant)]


def _exists(op: str, variant: dict) -> bool:
    """Return whether the fields agree. head_split is an epilogue of its own: one layout of scales stands for it."""
    if variant["c_mode"] == "head_split" and variant["scale_layout"] != "mn_major":
        return False
    try:
        _C.Problem(op, 1, 1, 1, **variant)
    except ProblemError:
        return False
    return True


def _merge(*choices: list[dict]) -> list[dict]:
    """Return every combination of one dict of each list, merged."""
    return [{name: value for part in parts for name, value in part.items()} for parts in itertools.product(*choices)]


def _canonical_configs(op: str) -> list["_C.Config"]:
    block_k = _C.stage_k(op)
    clusters: tuple[dict[str, int], ...] = ({}, {"cluster_m": 2}, {"cluster_n": 2})
    plain = [
        _C.Config(block_m, block_n, num_stages, block_k=block_k, **cluster)
        for block_m in (64, 128, 256)
        for block_n in (8, 48, 64, 128, 192, 256)
        for num_stages in (2, 4, 12)
        for cluster in clusters
    ]
    swapped = [
        _C.Config(block_m, block_n, num_stages, block_k=block_k, split_k=split_k, swap_ab=1)
        for block_m in (8, 16, 64, 128) for block_n in (64, 128, 256) for num_stages in (2, 6) for split_k in (1, 2, 8)
    ]  # fmt: skip
    split = [_C.Config(block_m, 64, 4, block_k=block_k, split_k=2) for block_m in (64, 128)]
    tiles: tuple[tuple[int, int], ...] = ((64, 64), (64, 256), (128, 112), (128, 128), (128, 192), (256, 128))
    looped = [
        _C.Config(*tile, 3, block_k=block_k, loop=loop, scale_warp=warp, tile_barrier=int(tile[0] == 256), **others)
        for tile in tiles for loop in (0, 1)
        for warp in (0, 1) for others in ({}, {"cluster_m": 2}, {"reduce_add": 1}) if (loop, warp) != (0, 0)
    ]  # fmt: skip
    knobs = [
        _C.Config(*tile, 3, block_k=block_k, **knob)
        for tile in tiles
        for knob in ({"reduce_add": 1}, {"tile_barrier": 1})
    ]
    return plain + swapped + split + looped + knobs
