"""The kernel variants of the grouped ops, how closely each is covered, and the problems whose picks are repeated most.

As for dense products, every config of the main variants' default spaces is compiled and run, and a sample of the
others. Each op kind has one main variant; its space holds all tiles, whatever alignment of the groups they need.
"""

from itertools import product
from typing import NamedTuple

from deep_gemm import _C
from deep_gemm.fields import OP_KINDS

from .variants import FAR, MIN_CONFIGS, SPREAD, add_loops

FP8_CONTIGUOUS, BF16_CONTIGUOUS = "m_grouped_fp8_gemm_contiguous", "m_grouped_bf16_gemm_contiguous"
FP8_MASKED, BF16_MASKED = "m_grouped_fp8_gemm_masked", "m_grouped_bf16_gemm_masked"
FP8_K_GROUPED, BF16_K_GROUPED = "k_grouped_fp8_gemm_contiguous", "k_grouped_bf16_gemm_contiguous"
CONTIGUOUS_OPS, MASKED_OPS, K_GROUPED_OPS = (
    (FP8_CONTIGUOUS, BF16_CONTIGUOUS),
    (FP8_MASKED, BF16_MASKED),
    (FP8_K_GROUPED, BF16_K_GROUPED),
)
GROUPED_OPS = (*CONTIGUOUS_OPS, *MASKED_OPS, *K_GROUPED_OPS)
#: A multiple of the token side of every tile, and of two of them.
ANY_TILE_ALIGNMENT = 3072


class GroupedVariant(NamedTuple):
    """The fields of a grouped problem that decide which kernel runs it; the defaults are those of `_C.Problem`."""

    op: str = FP8_CONTIGUOUS
    recipe: str = "1d2d"
    d_dtype: str = "bf16"
    c_mode: str = "none"
    a_major: str = "k"
    b_major: str = "k"
    scale_layout: str = "mn_major"
    group_layout: str = "joint"

    def __str__(self) -> str:
        """Return a short name, e.g. `k_grouped_fp8_gemm_contiguous 1d1d fp32 accumulate any blocks`."""
        layout = (self.scale_layout,) if self.is_fp8 else (f"{self.a_major},{self.b_major}",)
        groups = (self.group_layout,) if self.op == FP8_K_GROUPED else ()
        return " ".join((self.op, *([self.recipe] if self.is_fp8 else []), self.d_dtype, self.c_mode, *layout, *groups))

    @property
    def is_fp8(self) -> bool:
        """Whether the operands are FP8 with scales."""
        return "fp8" in self.op

    @property
    def is_blocks(self) -> bool:
        """Whether each group of K lies in memory of its own."""
        return self.group_layout == "blocks"

    def problem(self, m: int = 128, n: int = 128, k: int = 128, num_groups: int = 1, **fields) -> "_C.Problem":
        """Return the problem of that size; one cubin serves every size, number of groups and alignment."""
        if OP_KINDS[self.op].m_is_shared:
            fields = {"alignment": ANY_TILE_ALIGNMENT} | fields
        own = {name: value for name, value in self._asdict().items() if name != "op"}
        return _C.Problem(self.op, m, n, k, num_groups=num_groups, **own, **fields)


_FP8_K = GroupedVariant(FP8_K_GROUPED, "1d1d", "fp32", group_layout="blocks")
_BF16_K = GroupedVariant(BF16_K_GROUPED, d_dtype="fp32", a_major="mn", b_major="mn")
MAIN_GROUPED = (
    GroupedVariant(FP8_CONTIGUOUS),
    GroupedVariant(BF16_CONTIGUOUS),
    GroupedVariant(FP8_MASKED),
    GroupedVariant(BF16_MASKED),
    _FP8_K._replace(c_mode="accumulate"),
    _BF16_K._replace(c_mode="accumulate"),
)


def list_grouped_variants() -> list[GroupedVariant]:
    """Return every variant, the main ones first."""
    dtypes, layouts, c_modes = ("bf16", "fp32"), ("mn_major", "any"), ("none", "accumulate", "general")
    rows = [
        GroupedVariant(op, recipe, d_dtype, scale_layout=layout)
        for op, recipe, d_dtype, layout in product((FP8_CONTIGUOUS, FP8_MASKED), ("1d2d", "1d1d"), dtypes, layouts)
    ]  # fmt: skip
    rows += [
        GroupedVariant(BF16_CONTIGUOUS, d_dtype=d_dtype, b_major=b_major)
        for d_dtype, b_major in product(dtypes, ("k", "mn"))
    ]
    rows += [GroupedVariant(BF16_MASKED, d_dtype=d_dtype) for d_dtype in dtypes]
    columns = [
        _FP8_K._replace(c_mode=c_mode, scale_layout=layout, group_layout=groups)
        for groups, c_mode, layout in product(("joint", "blocks"), c_modes, layouts)
    ]  # fmt: skip
    return list(
        dict.fromkeys((*MAIN_GROUPED, *rows, *columns, *(_BF16_K._replace(c_mode=c_mode) for c_mode in c_modes)))
    )


def get_grouped_stride(variant: GroupedVariant, spread: int = SPREAD) -> int:
    """Return which share of a variant's default space is covered: every `stride`-th config."""
    main = next(main for main in MAIN_GROUPED if main.op == variant.op)
    distance = sum(mine != other for mine, other in zip(variant, main, strict=True))
    return 1 if distance == 0 else spread if distance == 1 else FAR * spread


def get_grouped_space(variant: GroupedVariant, device) -> list:
    """Return every config of the variant's default space on `device`, then those with the knobs of the main loop."""
    return add_loops(variant.problem(), list(_C.get_default_space(variant.problem(), device)), device)


def choose_grouped_configs(variant: GroupedVariant, device, spread: int = SPREAD) -> list:
    """Return the configs of a variant that the suite runs: its share, and at least one of each cluster and order of
    operands.
    """
    space = get_grouped_space(variant, device)
    stride = min(get_grouped_stride(variant, spread), max(len(space) // MIN_CONFIGS, 1))
    chosen = space[list_grouped_variants().index(variant) % stride :: stride]
    paths = {get_path(config) for config in chosen}
    others = {get_path(config): config for config in space if get_path(config) not in paths}
    return chosen + list(others.values())


def list_hinted_configs(problem, device) -> list:
    """Return the configs of a variant with ends that only calls have which say that groups fill a part of the
    alignment: those of masked groups; none where K is divided, or where no masked product has such operands.
    """
    if OP_KINDS[problem.op].k_is_divided:
        return []
    twin = _C.find_masked_twin(_C.Problem(**problem.as_dict() | {"expected_m": 1}))
    own = _C.get_default_space(problem, device)
    masked = _C.get_default_space(twin, device) if twin else []
    return [config for config in masked if config not in own and _C.is_legal(problem, config, device)]


def get_path(config) -> tuple[int, int, int]:
    """Return what makes a kernel load and store its tiles in another way."""
    return config.cluster_m, config.cluster_n, config.swap_ab


def choose_grouped_pairs(device, spread: int = SPREAD) -> list[tuple[GroupedVariant, object]]:
    """Return every (variant, config) of the suite, in the order in which they run."""
    return [
        (variant, config)
        for variant in list_grouped_variants()
        for config in choose_grouped_configs(variant, device, spread)
    ]


#: n and k of the m-grouped benchmarks, and a narrow and a small one.
_COLUMNS = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048), (768, 7168), (512, 384))
#: (groups, mean rows).
_CONTIGUOUS = ((4, 8192), (8, 4096), (8, 64), (32, 300))
_MASKED = ((1, 1024), (4, 256), (6, 1024), (32, 192), (32, 20), (6, 20), (128, 4))
_MAX_M = 4096
#: (groups, m, n, mean k).
_K_GROUPED = ((4, 4096, 7168, 8192), (8, 7168, 2048, 4096), (16, 4096, 7168, 2048), (16, 768, 512, 512))


def list_grouped_problems(op: str) -> list:
    """Return typical problems of an op's main variant, on which the heuristic picks configs."""
    variant = next(main for main in MAIN_GROUPED if main.op == op)
    if op in K_GROUPED_OPS:
        return [variant.problem(m, n, num_groups * k, num_groups) for num_groups, m, n, k in _K_GROUPED]
    if op in MASKED_OPS:
        return [
            variant.problem(_MAX_M, *columns, num_groups, expected_m=mean)
            for num_groups, mean in _MASKED
            for columns in _COLUMNS
        ]
    return [
        variant.problem(num_groups * mean, *columns, num_groups, alignment=128)
        for num_groups, mean in _CONTIGUOUS
        for columns in _COLUMNS
    ]
