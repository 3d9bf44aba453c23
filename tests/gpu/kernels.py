"""Which kernels the suite needs, in the order in which its sections ask for them: what is compiled ahead."""

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.selection import explain

from . import calls, sanitizer
from .configs import choose_nvcc
from .public_op import OP_VARIANTS
from .repeats import PORTFOLIO_VARIANTS
from .semantics import C_VARIANTS, SHAPES
from .semantics_layouts import MAJOR_VARIANTS
from .variants import MAIN, Variant, choose_configs, choose_pairs
from .world import OPS, get_portfolio


def list_kernels(device, sections: list[str], compilers: tuple[str, ...], spread: int, has_sanitizer: bool) -> list[tuple[str, str, str]]:
    """Return (problem JSON, config JSON, compiler) of every kernel, each once; NVCC's first, because they take longest."""
    pairs = list_sanitizer_pairs(device) if has_sanitizer else []
    if {"configs", "space_repeats"} & set(sections):
        pairs += [(variant.problem(), config) for variant, config in choose_pairs(device, spread)]
    if "portfolio_repeats" in sections:
        pairs += list_portfolio_pairs(device)
    if {"semantics", "calls"} & set(sections):
        pairs += list_op_pairs(device)
    nvcc = [(variant.problem(), config) for variant in MAIN for config in choose_nvcc(choose_configs(variant, device, spread))]
    jobs = [(problem, config, "nvcc") for problem, config in nvcc if "nvcc" in compilers and "nvcc" in sections]
    jobs += [(problem, config, "nvrtc") for problem, config in pairs]
    return list(dict.fromkeys((problem.to_json(), config.to_json(), compiler) for problem, config, compiler in jobs))


def list_sanitizer_pairs(device) -> list[tuple]:
    """Return (problem, config) of what the sanitizer watches: its children start at once."""
    return [(variant.problem(), config) for variant, config in sanitizer.choose_pairs(device)]


def list_portfolio_pairs(device) -> list[tuple]:
    """Return (problem, config) of every portfolio config on its variants."""
    portfolios = {op: get_portfolio(op, device)[0] for op in OPS}
    return [
        (variant.problem(), config)
        for variant in PORTFOLIO_VARIANTS for config in portfolios[variant.op] if _C.is_legal(variant.problem(), config, device)
    ]  # fmt: skip


def list_op_pairs(device) -> list[tuple]:
    """Return (problem, config) of what the library itself chooses for most calls of the suite; the others are compiled when they come."""
    variants = dict.fromkeys((*OP_VARIANTS, *C_VARIANTS, *MAJOR_VARIANTS))
    shapes = [(variant, shape) for variant in variants for shape in SHAPES]
    shapes += [(variant, shape) for variant in calls.CALL_VARIANTS for shape in calls.make_shapes(calls.SHAPE_SEED)]
    return [pair for variant, shape in shapes for is_invariant in (False, True) for pair in choose(variant, shape, device, is_invariant)]


def choose(variant: Variant, shape: tuple, device, is_invariant: bool) -> list[tuple]:
    """Return the library's own (problem, config) for one call, an empty list where it has none."""
    is_invariant = is_invariant or deep_gemm.is_batch_invariant()
    try:
        config = explain(variant.problem(*(max(size, 1) for size in shape), batch_invariant=is_invariant), device).config
    except DeepGemmError:  # the call itself will say so
        return []
    return [(variant.problem(), config)]
