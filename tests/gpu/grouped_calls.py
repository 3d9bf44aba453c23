"""Fuzzed calls of the grouped ops, as calls.py has them for dense ones: a right result or a typed error, D untouched by
an error, nothing written outside D. The faults are in grouped_faults.py.

Shapes are those of the grouped semantics, so that hardly a call compiles a kernel of its own.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch

import deep_gemm

from .calls import CALLS_PER_JOB, ProductCall, call_typed, describe_wrong, run_changes
from .grouped_configs import get_grouped_case
from .grouped_memory import GroupedOutput, make_scale_layout_of_groups
from .grouped_op import (
    GROUPED_OP_VARIANTS,
    OMITTED,
    copy_grouped_case,
    list_arguments,
    list_group_arguments,
    list_op_shapes,
    make_random_shape,
    name_op,
)
from .grouped_operands import (
    GroupedCase,
    GroupedShape,
    contiguous_alignment,
    count_grouped_wrong,
    make_grouped_output,
    prepare_grouped_c,
)
from .grouped_semantics import NUM_RANDOM_SHAPES, list_memory_layouts, list_spellings
from .grouped_shapes import Masked
from .grouped_variants import FP8_CONTIGUOUS, FP8_MASKED, GroupedVariant
from .memory import SCALE_LAYOUTS
from .public_op import RECIPES
from .world import World

NUM_CALLS = 6000
#: What calls expect besides all rows that a group has room for.
FEW_ROWS = (1, 7)


@dataclass
class GroupedCall(ProductCall):
    """Arguments of one call under construction, and its required outcome: `right`, `error` or `either`.

    `a` and `b` are as the op takes them: FP8 ones are pairs with scales. `options` has the other keywords, C and the
    groups among them.
    """

    world: World
    rng: random.Random
    case: GroupedCase
    output: GroupedOutput
    name: str
    a: object
    b: object
    d: object
    options: dict = field(default_factory=dict)
    expected: str = "right"

    @property
    def groups_name(self) -> str:
        """The keyword of the tensor that describes the groups."""
        return next(name for name in ("m_indices", "masked_m", "ks_tensor") if name in list_group_arguments(self.case))

    def describe(self) -> str:
        """What the call is, for a failure."""
        return f"{self.name} {self.case.variant} {str(self.case.shape)[:200]}"

    def invoke(self) -> str:
        """Run the op; return "" or the typed error's text. Any other exception propagates."""
        given = {name: value for name, value in self.options.items() if value is not OMITTED}
        with contiguous_alignment(self.case.alignment):
            return call_typed(getattr(deep_gemm, self.name), self.a, self.b, self.d, **given)

    def find_wrong(self) -> str:
        """Return what is wrong with D, "" where nothing is."""
        return describe_wrong(int(count_grouped_wrong(self.case, self.output)))

    def set_operands(self, case: GroupedCase, suffix: str = "", scales: tuple | None = None) -> None:
        """Pass the operands of a case with the same values; `suffix` names the op of another memory layout."""
        self.a, self.b = list_arguments(case, suffix, scales)
        self.name = name_op(case.variant, suffix)

    def change_part(self, change: Callable[[torch.Tensor], object]) -> None:
        """Change A or B, or the scales of one, into something that must be refused."""
        name = self.rng.choice(("a", "b"))
        value = getattr(self, name)
        if isinstance(value, tuple):
            index = self.rng.randrange(2)
            changed: object = tuple(change(part) if place == index else part for place, part in enumerate(value))
        else:
            changed = change(value)
        setattr(self, name, changed)
        self.expected = "error"


def make_grouped_call(
    world: World, rng: random.Random, variant: GroupedVariant, shape: GroupedShape, gap: int | None = None
) -> GroupedCall:
    """Return a plain valid call; `gap`: rows between the groups of D."""
    case = replace(get_grouped_case(world, variant, shape), variant=variant, laid_out={})
    output = make_grouped_output(case) if gap is None else make_grouped_output(case, gap)
    c = prepare_grouped_c(case, output, variant.c_mode == "accumulate" or rng.random() < 0.5)
    call = GroupedCall(world, rng, case, output, "", None, None, output.d, list_group_arguments(case))
    call.set_operands(case)
    if c is not None:
        call.options["c"] = c
    if variant.op in (FP8_CONTIGUOUS, FP8_MASKED):
        call.options["recipe"] = RECIPES[variant.recipe]
    return call


# Valid variations: the result must be right.


def use_strides(call: GroupedCall) -> None:
    """Pass wider rows, and groups further apart or side by side."""
    call.set_operands(copy_grouped_case(call.case, call.rng.randint(0, 9), call.rng.choice((0, 3, 16))))


def use_scale_layouts(call: GroupedCall) -> None:
    """Give A's and B's scales another memory layout."""
    if call.case.scale_a is not None:
        layouts = [call.rng.choice(SCALE_LAYOUTS) for _ in range(2)]
        scales = zip((call.case.scale_a, call.case.scale_b), layouts, strict=True)
        call.set_operands(call.case, scales=tuple(make_scale_layout_of_groups(*each) for each in scales))


def use_memory_layout(call: GroupedCall) -> None:
    """Call the op of another name, on operands in its memory."""
    layouts = list_memory_layouts(call.case)
    if layouts:
        _, other, suffix = call.rng.choice(layouts)
        call.set_operands(other, suffix)


def use_spelling(call: GroupedCall) -> None:
    """Name the groups by an alias."""
    call.options.update(call.rng.choice(list(list_spellings(call.case).values())))


def use_expected_rows(call: GroupedCall) -> None:
    """Expect other rows than come: a hint, which must not change the result."""
    if isinstance(call.case.shape, Masked):
        call.options["expected_m"] = call.rng.choice((*FEW_ROWS, call.case.shape.max_m))


def use_stream(call: GroupedCall) -> None:
    """Name the stream explicitly, as an object or as a handle."""
    stream = torch.cuda.current_stream()
    call.options["stream"] = call.rng.choice((stream, stream.cuda_stream))


def use_dense_groups(call: GroupedCall) -> None:
    """Let the groups of D lie side by side."""
    tight = make_grouped_call(call.world, call.rng, call.case.variant, call.case.shape, gap=0)
    call.output, call.d, call.options = tight.output, tight.d, tight.options


VARIATIONS = (
    use_strides,
    use_scale_layouts,
    use_memory_layout,
    use_spelling,
    use_expected_rows,
    use_stream,
    use_dense_groups,
)


def list_call_shapes(variant: GroupedVariant) -> list[GroupedShape]:
    """Return the shapes of a variant's calls: those whose kernels are compiled ahead."""
    return [*list_op_shapes(variant), *(make_random_shape(variant, seed) for seed in range(NUM_RANDOM_SHAPES))]


def run_grouped_calls(world: World, seed: int, count: int) -> tuple[int, list[str]]:
    """Run `count` fuzzed calls of one seed, of all grouped ops in turn."""
    from .grouped_faults import FAULTS

    rng = random.Random(seed)

    def make() -> GroupedCall:
        variant = rng.choice(GROUPED_OP_VARIANTS)
        return make_grouped_call(world, rng, variant, rng.choice(list_call_shapes(variant)))

    return run_changes(rng, count, make, VARIATIONS, FAULTS)


def grouped_call_jobs(world: World) -> list:
    """Return the jobs of the fuzzer of grouped ops."""
    return [
        (f"grouped seed {seed}: all", partial(run_grouped_calls, world, seed, CALLS_PER_JOB))
        for seed in range(NUM_CALLS // CALLS_PER_JOB)
    ]
