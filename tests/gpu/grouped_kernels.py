"""The kernels that the library chooses for the calls of the grouped semantics, to be compiled ahead; kernels.py has
those of the other sections.
"""

from deep_gemm.errors import DeepGemmError
from deep_gemm.selection import explain_tiles

from .grouped_calls import FEW_ROWS
from .grouped_op import GROUPED_OP_VARIANTS, list_op_shapes, make_random_shape
from .grouped_operands import GroupedShape
from .grouped_semantics import ALIGNMENTS, NUM_RANDOM_SHAPES, make_aligned_shape
from .grouped_semantics_runtime import SMS, get_graph_shape, make_chain_shape
from .grouped_semantics_values import EXPECTED_ROWS
from .grouped_shapes import Contiguous, KGroups, Masked
from .grouped_variants import CONTIGUOUS_OPS, GroupedVariant
from .operands import Shape
from .variants import BF16, FP8, Variant


def list_grouped_op_pairs(device) -> list[tuple]:
    """Return (problem, config, second tile) of what the library itself chooses for most calls; the others are compiled
    when they come.
    """
    calls = [(variant, shape, fields) for variant in GROUPED_OP_VARIANTS for shape, fields in list_calls(variant)]
    return list(dict.fromkeys(pair for call in calls for pair in choose(*call, device)))


def list_calls(variant: GroupedVariant) -> list[tuple[GroupedShape, dict]]:
    """Return (shape, further fields of the problem) of the calls of a variant."""
    own = list_op_shapes(variant)
    shapes = [
        *own,
        get_graph_shape(variant),
        make_chain_shape(variant),
        *(make_random_shape(variant, seed) for seed in range(NUM_RANDOM_SHAPES)),
    ]
    if variant.op in CONTIGUOUS_OPS:
        shapes += [make_aligned_shape(alignment, False) for alignment in ALIGNMENTS]
    calls = [(shape, {}) for shape in shapes] + [(own[0], {"num_sms": num_sms}) for num_sms in SMS]
    for shape in shapes:
        if isinstance(shape, Masked):
            expected = {*FEW_ROWS, shape.max_m, *(EXPECTED_ROWS if shape in own else ())}
            calls += [(shape, {"expected_m": min(rows, shape.max_m)}) for rows in sorted(expected)]
    return calls


def choose(variant: GroupedVariant, shape: GroupedShape, fields: dict, device) -> list[tuple]:
    """Return the library's own (problem, config, second tile) for one call with scales of either layout; an empty list
    where it has none.
    """
    sizes = (shape.max_m if isinstance(shape, Masked) else shape.m, shape.n, shape.k)
    alignment = {"alignment": shape.alignment} if isinstance(shape, Contiguous) else {}
    pairs = []
    for layout in ("mn_major", "any") if variant.is_fp8 else ("mn_major",):
        laid_out = variant._replace(scale_layout=layout)
        try:
            problem = laid_out.problem(*(max(size, 1) for size in sizes), shape.num_groups, **fields, **alignment)
            choice, second = explain_tiles(problem, device)
        except DeepGemmError:  # the call itself will say so
            continue
        pairs.append((laid_out.problem(), choice.config, second))
    return pairs


def list_dense_calls() -> list[tuple[Variant, Shape]]:
    """Return the dense products that groups are compared with, one by one."""
    calls = []
    for variant in GROUPED_OP_VARIANTS:
        layout = "any" if variant.is_fp8 else "mn_major"
        dense = Variant(
            FP8 if variant.is_fp8 else BF16,
            variant.recipe,
            variant.d_dtype,
            variant.c_mode,
            variant.a_major,
            variant.b_major,
            layout,
        )
        for shape in list_op_shapes(variant):
            is_k = isinstance(shape, KGroups)
            sizes = [(shape.m, k) for k in shape.ks] if is_k else [(block.rows, shape.k) for block in shape.blocks()]
            calls += [(dense, Shape(m, shape.n, k)) for m, k in sizes if m and k]
    return list(dict.fromkeys(calls))
