"""Fuzzed calls of the dense ops, and what those of grouped ops (grouped_calls.py) share with them: a right result or a
typed error, nothing written outside D, no CUDA error left behind.

Each call starts from valid arguments of a random variant and shape and takes one valid variation or one fault, so that
a wrong answer names its cause. The faults are in faults.py.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

import deep_gemm
from deep_gemm.errors import DeepGemmError

from .memory import PITCH_BYTES, SCALE_LAYOUTS, align, make_operand, make_scale_layout, make_shifted
from .operands import Case, GuardedOutput, Shape, count_wrong, make_output, set_reference
from .public_op import RECIPES
from .variants import BF16, Variant
from .world import World

if TYPE_CHECKING:
    AnyCall = "Call | GroupedCall | PublicCall"

NUM_CALLS = 8000
CALLS_PER_JOB = 100
NUM_SHAPES = 20
SHAPE_SEED = 7
#: Share of calls that carry a fault; the rest must all be right.
FAULT_SHARE = 0.6
#: Stands for scales that are left out.
MISSING = object()
CALL_VARIANTS = (
    Variant(),
    Variant(scale_layout="any"),
    Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate"),
    Variant(recipe="per_row"),
    Variant(d_dtype="fp32", c_mode="general"),
    Variant(BF16),
    Variant(BF16, d_dtype="fp32", a_major="mn"),
    Variant(BF16, c_mode="general", b_major="mn"),
)


class ProductCall:
    """What calls of dense and of grouped products have in common: a case, its guarded output, and the D that is passed,
    which may be another one.
    """

    @property
    def is_cuda(self) -> bool:
        """Whether kernels run."""
        return self.case.a.is_cuda

    @property
    def written(self) -> list:
        """What an error must leave as it was: the D that was passed, wherever it lies, and the original D if a
        variation has replaced it.
        """
        return [self.d, self.output.d]

    def num_dirty(self) -> int:
        """Count the elements that were written outside D."""
        return int(self.output.num_dirty())


@dataclass
class Call(ProductCall):
    """Arguments of one call under construction, and its required outcome: `right`, `error` or `either`."""

    world: World
    rng: random.Random
    case: Case
    output: GuardedOutput
    a: object
    scale_a: object
    b: object
    scale_b: object
    d: object
    c: object
    options: dict = field(default_factory=dict)
    expected: str = "right"

    @property
    def shape(self) -> Shape:
        """Sizes of the product."""
        return self.case.shape

    @property
    def operand_names(self) -> tuple[str, ...]:
        """The operands that the variant has."""
        return ("a", "b", "scale_a", "scale_b") if self.case.variant.is_fp8 else ("a", "b")

    def describe(self) -> str:
        """What the call is, for a failure."""
        return f"{self.case.variant} {tuple(self.shape)} {self.options or ''}"

    def invoke(self) -> str:
        """Run the op; return "" or the typed error's text. Any other exception propagates."""
        options = self.options | ({} if self.c is None else {"c": self.c})
        a, b = self.a, self.b
        if self.case.variant.is_fp8:
            a, b = a if self.scale_a is MISSING else (a, self.scale_a), (b, self.scale_b)
        op = deep_gemm.fp8_gemm_nt if self.case.variant.is_fp8 else deep_gemm.bf16_gemm_nt
        return call_typed(op, a, b, self.d, **options)

    def find_wrong(self) -> str:
        """Return what is wrong with D, "" where nothing is."""
        return describe_wrong(int(count_wrong(self.case, self.d)))

    def replace(self, change: Callable, names: tuple[str, ...] = ()) -> None:
        """Change one operand, chosen among `names` (default: all), into one that must be refused."""
        name = self.rng.choice(names or self.operand_names)
        setattr(self, name, change(getattr(self, name)))
        self.expected = "error"


def make_call(world: World, rng: random.Random, variant: Variant, shape: Shape) -> Call:
    """Return a plain valid call."""
    case = world.case(variant, shape)
    output = make_output(case)
    c = None
    if case.c is not None and (variant.c_mode == "accumulate" or rng.random() < 0.5):
        output.poison(case.c)
        c = output.d
    elif case.c is not None:
        c = make_operand(case.c, "k", rng.randint(0, 3))
    layout = "mn_major" if variant.scale_layout == "mn_major" else "row_major"
    scales = [None if scale is None else make_scale_layout(scale, layout) for scale in (case.scale_a, case.scale_b)]
    call = Call(world, rng, case, output, case.a, scales[0], case.b, scales[1], output.d, c)
    if variant.c_mode == "general":
        call.options.update(alpha=case.alpha, beta=case.beta)
    if variant.is_fp8 and RECIPES[variant.recipe]:
        call.options["recipe"] = RECIPES[variant.recipe]
    return call


# Valid variations: the result must be right.


def use_scale_layout(call: Call) -> None:
    """Give A's and B's scales another memory layout."""
    if call.case.variant.is_fp8:
        call.scale_a = make_scale_layout(call.scale_a, call.rng.choice(SCALE_LAYOUTS))
        call.scale_b = make_scale_layout(call.scale_b, call.rng.choice(SCALE_LAYOUTS))


def use_strided_rows(call: Call) -> None:
    """Make A and B slices of wider tensors whose further elements are NaN."""
    variant = call.case.variant
    call.a, call.b = (
        make_operand(call.a, variant.a_major, call.rng.randint(1, 9)),
        make_operand(call.b, variant.b_major, call.rng.randint(1, 9)),
    )


def use_majors(call: Call) -> None:
    """Pass A and B in another memory order: BF16 kernels take both, FP8 operands are transposed by the library."""
    call.a, call.b = (
        make_operand(tensor, call.rng.choice(("k", "mn")), call.rng.randint(0, 2)) for tensor in (call.a, call.b)
    )


def use_offset(call: Call) -> None:
    """Start A 16 bytes into its memory: the smallest aligned offset."""
    unit = PITCH_BYTES // call.a.element_size()
    call.a = make_shifted(call.a, unit, align(call.shape.k, unit) + unit)


def use_alpha(call: Call) -> None:
    """Scale the product; beta stays as it is."""
    call.options["alpha"] = call.rng.choice((0.5, -2.0, 0.0, 1e-3))
    call.case = set_reference(replace(call.case, alpha=call.options["alpha"]))


def use_stream(call: Call) -> None:
    """Name the stream explicitly, as an object or as a handle."""
    stream = torch.cuda.current_stream()
    call.options["stream"] = call.rng.choice((stream, stream.cuda_stream))


def use_keywords(call: Call) -> None:
    """Spell out the defaults."""
    call.options.update(compiled_dims=None)
    if call.case.variant.is_fp8:
        call.options.update(disable_ue8m0_cast=call.rng.random() < 0.5)


def use_broadcast_scales(call: Call) -> None:
    """Give B's scales a stride of 0: the first row's scales stand for all."""
    if call.case.variant.is_fp8:
        call.scale_b = call.scale_b[:1].expand_as(call.scale_b)
        call.case = set_reference(replace(call.case, scale_b=call.scale_b))


def call_typed(op: Callable, *arguments: object, **options: object) -> str:
    """Call an op; return "" or the typed error's text. Any other exception propagates."""
    try:
        result = op(*arguments, **options)
    except DeepGemmError as error:
        return f"{type(error).__name__}: {error}"
    return "" if result is None else f"returned {result!r}"


def describe_wrong(count: int) -> str:
    """Return what is wrong with so many elements, "" for none."""
    return f"{count} elements outside their bound" if count else ""


def copy_memory(d: object) -> torch.Tensor | None:
    """Copy the bytes of all the memory that D lies in, with what lies around it; None for a D that is no tensor."""
    if not isinstance(d, torch.Tensor) or d.device.type == "meta":
        return None
    size = d.untyped_storage().nbytes() // d.element_size()
    return d.as_strided((size,), (1,), 0).view(torch.uint8).clone()


def judge(call: "AnyCall", error: str, before: list[torch.Tensor | None]) -> str:
    """Return what is wrong with a finished call, "" when nothing is; `before`: the memory that an error must leave as
    it was.
    """
    if call.is_cuda:
        torch.cuda.synchronize()
    if call.num_dirty():
        return "wrote outside D"
    if error:
        if call.expected == "right":
            return f"valid call refused: {error}"
        now = [copy_memory(d) for d in call.written]
        written = any(old is not None and not torch.equal(old, new) for old, new in zip(before, now, strict=True))
        return "wrote to D before the error" if written else ""
    if call.expected == "error":
        return "invalid call was accepted"
    return call.find_wrong()


def make_shapes(seed: int) -> list[Shape]:
    """Return the shapes of the fuzzer: few, so that each occurs many times, with tails in every dimension."""
    rng = random.Random(seed)
    return [
        Shape(rng.choice((1, 2, 63, 65, rng.randint(1, 300))), rng.randint(1, 400), rng.randint(1, 900))
        for _ in range(NUM_SHAPES)
    ]


def run_calls(world: World, seed: int, count: int) -> tuple[int, list[str]]:
    """Run `count` fuzzed calls of one seed."""
    from .faults import FAULTS

    rng, shapes = random.Random(seed), make_shapes(SHAPE_SEED)

    def make() -> Call:
        return make_call(world, rng, rng.choice(CALL_VARIANTS), rng.choice(shapes))

    return run_changes(rng, count, make, VARIATIONS, FAULTS)


def run_changes(
    rng: random.Random, count: int, make: Callable, variations: tuple, faults: tuple
) -> tuple[int, list[str]]:
    """Make `count` calls, each with one change."""
    failures = []
    for _ in range(count):
        call = make()
        change = rng.choice(faults if rng.random() < FAULT_SHARE else variations)
        verdict = run_call(call, change)
        if verdict:
            failures.append(f"{change.__name__} {call.describe()}: {verdict}")
    return count, failures


def run_call(call: "AnyCall", change: Callable) -> str:
    """Apply one change, call and judge; an exception that is no error of the library is a verdict, too."""
    change(call)
    before = [copy_memory(d) for d in call.written]
    try:
        return judge(call, call.invoke(), before)
    except (TypeError, ValueError, LookupError, AttributeError, AssertionError, RuntimeError) as error:
        return f"untyped {type(error).__name__}: {error}"


VARIATIONS = (
    use_scale_layout,
    use_strided_rows,
    use_majors,
    use_offset,
    use_alpha,
    use_stream,
    use_keywords,
    use_broadcast_scales,
)


def call_jobs(world: World) -> list:
    """Return the jobs of the fuzzers."""
    from .grouped_calls import grouped_call_jobs
    from .public_calls import public_call_jobs

    dense = [
        (f"seed {seed}: all", partial(run_calls, world, seed, CALLS_PER_JOB))
        for seed in range(NUM_CALLS // CALLS_PER_JOB)
    ]
    return dense + grouped_call_jobs(world) + public_call_jobs(world)
