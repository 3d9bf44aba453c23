"""The kernels that the suite needs, in the order in which its sections use them, to be compiled ahead."""

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.jit.ahead import Job, make_jobs
from deep_gemm.selection import explain

from . import calls, logits_jobs, op_jobs, sanitizer
from .configs import choose_nvcc
from .grouped_configs import choose_grouped_nvcc
from .grouped_kernels import list_dense_calls, list_grouped_op_pairs
from .grouped_psum import choose_psum_pairs, with_ends
from .grouped_repeats import CHOSEN_VARIANTS
from .grouped_tiles import list_tile_kernels
from .grouped_variants import choose_grouped_pairs
from .large_weights import list_large_kernels
from .psum_tiles import list_psum_tile_kernels
from .public_op import OP_VARIANTS
from .repeats import PORTFOLIO_VARIANTS
from .semantics import C_VARIANTS, SHAPES
from .semantics_layouts import MAJOR_VARIANTS
from .variants import MAIN, Variant, choose_configs, choose_pairs
from .world import ALL_OPS, get_portfolio


def list_kernels(
    device,
    sections: list[str],
    compilers: tuple[str, ...],
    spread: int,
    has_sanitizer: bool,
    ops: tuple[str, ...] = ALL_OPS,
) -> list[Job]:
    """Return the job of every kernel of those op kinds, each once, in the order in which they are needed; NVCC's last,
    as is their section.

    Grouped semantics need dense kernels, too: groups are compared with the dense op.
    """
    pairs = sanitizer.choose_all_pairs(device, ops) if has_sanitizer else []  # its children start at once
    if "op_repeats" in sections:
        pairs += list_psum_portfolio(device)
    if {"configs", "space_repeats"} & set(sections):
        pairs += [(variant.problem(), config) for variant, config in choose_pairs(device, spread)]
    if {"grouped_configs", "grouped_repeats"} & set(sections):
        pairs += [(variant.problem(), config) for variant, config in choose_grouped_pairs(device, spread)]
    if "grouped_configs" in sections:
        pairs += list_tile_kernels(device)
    if "grouped_repeats" in sections:
        pairs += list_portfolio_pairs(device, CHOSEN_VARIANTS)
    if "grouped_semantics" in sections:
        pairs += list_grouped_op_pairs(device) + list_psum_tile_kernels(device) + list_large_kernels(device)
    if "portfolio_repeats" in sections:
        pairs += list_portfolio_pairs(device, PORTFOLIO_VARIANTS)
    if {"semantics", "calls"} & set(sections):
        pairs += list_op_pairs(device)
    pairs = [pair for pair in pairs if pair[0].op in ops]
    if "grouped_semantics" in sections:
        pairs += [pair for call in list_dense_calls() for pair in choose(*call, device, True)]
        pairs += [(with_ends(variant).problem(), config) for variant, config in choose_psum_pairs(device, ops)]
    if {"logits", "op_repeats"} & set(sections):
        pairs += [pair for pair in logits_jobs.list_kernels() if pair[0].op in ops]
    nvcc = list_nvcc_pairs(device, spread) if "nvcc" in sections and "nvcc" in compilers else []
    return make_jobs(pairs, "nvrtc") + make_jobs([pair for pair in nvcc if pair[0].op in ops], "nvcc")


def list_nvcc_pairs(device, spread: int) -> list[tuple]:
    """Return (problem, config) of the kernels that NVCC compiles, too."""
    pairs = [(variant, config) for variant in MAIN for config in choose_nvcc(choose_configs(variant, device, spread))]
    pairs += choose_grouped_nvcc(device, spread)
    return [(variant.problem(), config) for variant, config in pairs]


def list_psum_portfolio(device) -> list[tuple]:
    """Return (problem, config) of what the library can choose for groups with ends."""
    return [
        (with_ends(variant).problem(), config)
        for variant in op_jobs.PSUM_REPEATED for config in op_jobs.list_psum_choices(variant, device)
    ]  # fmt: skip


def list_portfolio_pairs(device, variants: tuple) -> list[tuple]:
    """Return (problem, config) of every portfolio config on its variants."""
    portfolios = {op: get_portfolio(op, device)[0] for op in dict.fromkeys(variant.op for variant in variants)}
    return [
        (variant.problem(), config)
        for variant in variants for config in portfolios[variant.op] if _C.is_legal(variant.problem(), config, device)
    ]  # fmt: skip


def list_op_pairs(device) -> list[tuple]:
    """Return (problem, config) of what the library itself chooses for most calls of the suite; the others are compiled
    when they come.
    """
    variants = dict.fromkeys((*OP_VARIANTS, *C_VARIANTS, *MAJOR_VARIANTS))
    shapes = [(variant, shape) for variant in variants for shape in SHAPES]
    shapes += [(variant, shape) for variant in calls.CALL_VARIANTS for shape in calls.make_shapes(calls.SHAPE_SEED)]
    return [
        pair
        for variant, shape in shapes
        for is_invariant in (False, True)
        for pair in choose(variant, shape, device, is_invariant)
    ]


def choose(variant: Variant, shape: tuple, device, is_invariant: bool) -> list[tuple]:
    """Return the library's own (problem, config) for one call, an empty list where it has none."""
    is_invariant = is_invariant or deep_gemm.get_deterministic_algorithms()
    try:
        config = explain(
            variant.problem(*(max(size, 1) for size in shape), batch_invariant=is_invariant), device
        ).config
    except DeepGemmError:  # the call itself will say so
        return []
    return [(variant.problem(), config)]
