"""The kernel variants of the suite: everything of a problem but its sizes, and how closely each is covered.

Every legal config of the main variants' default spaces is compiled and run. A variant that differs from a main one in a
single field runs every `spread`-th config, any other every `FAR * spread`-th. They start at different configs, so that
together the variants run all of them.
"""

from itertools import product
from typing import NamedTuple

from deep_gemm import _C

FP8, BF16 = "fp8_gemm", "bf16_gemm"
SPREAD = 4
#: How much rarer configs of a variant are that differs from every main one in more than one field.
FAR = 4
#: K steps of a problem that gets knobs of the main loop, and columns of the 1D1D tiles that may be looped.
KNOB_STEPS, LOOPED_COLUMNS = (56, 60), (96, 112, 128)
#: Of a small space more than its share is covered.
MIN_CONFIGS = 4


class Variant(NamedTuple):
    """The fields of a problem that decide which kernel runs it; the defaults are those of `_C.Problem`."""

    op: str = FP8
    recipe: str = "1d2d"
    d_dtype: str = "bf16"
    c_mode: str = "none"
    a_major: str = "k"
    b_major: str = "k"
    scale_layout: str = "mn_major"

    def __str__(self) -> str:
        """Return a short name, e.g. `fp8_gemm 1d1d fp32 accumulate any` or `bf16_gemm bf16 none mn,k`."""
        layout = self.scale_layout if self.is_fp8 else f"{self.a_major},{self.b_major}"
        return " ".join((self.op, *([self.recipe] if self.is_fp8 else []), self.d_dtype, self.c_mode, layout))

    @property
    def is_fp8(self) -> bool:
        """Whether the operands are FP8 with scales."""
        return self.op == FP8

    def problem(self, m: int = 128, n: int = 128, k: int = 128, **fields) -> "_C.Problem":
        """Return the problem of that size; with run-time sizes one cubin serves all of them."""
        return _C.Problem(self.op, m, n, k, **self._asdict_without_op(), **fields)

    def _asdict_without_op(self) -> dict:
        return {name: value for name, value in self._asdict().items() if name != "op"}


MAIN = (Variant(), Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate"), Variant(BF16))
#: What a D of each dtype can be made of; the heads' split is of FP8 with block scales alone.
_OUTPUTS = [("bf16", "none"), ("bf16", "general"), ("fp32", "none"), ("fp32", "accumulate"), ("fp32", "general")]
_HEADS = [Variant(c_mode="head_split", scale_layout=layout) for layout in ("mn_major", "any")]


def list_variants() -> list[Variant]:
    """Return every variant, the main ones first."""
    fp8 = [
        Variant(FP8, recipe, *output, scale_layout=layout)
        for recipe, output, layout in product(("1d2d", "1d1d", "per_row"), _OUTPUTS, ("mn_major", "any"))
        if recipe != "per_row" or layout == "mn_major"
    ]  # fmt: skip
    bf16 = [
        Variant(BF16, "1d2d", *output, *majors) for output, majors in product(_OUTPUTS, product(("k", "mn"), repeat=2))
    ]
    return list(dict.fromkeys((*MAIN, *fp8, *_HEADS, *bf16)))


def get_stride(variant: Variant, spread: int = SPREAD) -> int:
    """Return which share of a variant's default space is covered: every `stride`-th config."""
    distance = min(sum(mine != main for mine, main in zip(variant, other, strict=True)) for other in MAIN)
    return 1 if distance == 0 else spread if distance == 1 else FAR * spread


def get_space(variant: Variant, device) -> list:
    """Return every config of the variant's default space on `device`, then those with the knobs of the main loop."""
    return add_loops(variant.problem(), list(_C.get_default_space(variant.problem(), device)), device)


def add_loops(problem: "_C.Problem", space: list, device) -> list:
    """Return `space` and its configs as the heuristic and the tuner would give them knobs where K is long.

    One of KNOB_STEPS ends with a round of any ring that it uses; two scale vectors get the unrolled loop, too.
    """
    block_k = _C.stage_k(problem.op)
    long = [_C.Problem(**problem.as_dict() | {"k": steps * block_k}) for steps in KNOB_STEPS]
    found = [_C.with_loop_knobs(one, config, device) for one in long for config in space]
    if problem.recipe == "1d1d":
        looped = [_C.Config(**config.as_dict() | {"loop": 1}) for config in found if config.block_n in LOOPED_COLUMNS]
        found += [config for config in looped if config.block_m == 128 and _C.is_legal(problem, config, device)]
    return list(dict.fromkeys([*space, *found]))


def choose_configs(variant: Variant, device, spread: int = SPREAD) -> list:
    """Return the configs of a variant that the suite runs."""
    space = get_space(variant, device)
    stride = min(get_stride(variant, spread), max(len(space) // MIN_CONFIGS, 1))
    chosen = space[list_variants().index(variant) % stride :: stride]
    return chosen + [config for config in list_pairs(variant, space) if config not in chosen]


def list_pairs(variant: Variant, space: list) -> list:
    """Return the first config of each pair of CTAs for an MN-major operand: its second box of 64 columns has an offset
    in the descriptor.
    """
    if variant.a_major == variant.b_major == "k":
        return []
    pairs = {
        (config.cluster_m, config.cluster_n): config
        for config in reversed(space)
        if config.cluster_m * config.cluster_n > 1
    }
    return list(pairs.values())


def choose_pairs(device, spread: int = SPREAD) -> list[tuple[Variant, object]]:
    """Return every (variant, config) of the suite, in the order in which they run."""
    return [(variant, config) for variant in list_variants() for config in choose_configs(variant, device, spread)]
