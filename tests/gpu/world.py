"""What the sections of the GPU suite share: the device, the config space, loaded kernels and cases by shape."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch

from deep_gemm import _C
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit.ahead import list_choices
from deep_gemm.jit.build import get_cubin
from tuner.measure.stamp import read_json

from .grouped_variants import GROUPED_OPS, list_grouped_problems
from .memory import make_scale_of_class
from .operands import Case, GuardedOutput, Shape, count_wrong, has_large_diff, make_case
from .variants import BF16, FP8, MAIN, SPREAD, Variant, choose_configs

#: Cases that are kept: the shapes that all configs meet on stay, those of one config go.
MAX_CASES = 1500
#: Fewer of grouped products, whose operands and outputs are larger.
MAX_GROUPED_CASES = 200
#: Files of problems from which the portfolio is picked where there is no artefact.
DATA = Path(__file__).parents[2] / "benchmarks" / "data"
DENSE_PROBLEMS = {FP8: DATA / "dense_fp8.json", BF16: DATA / "dense_bf16.json"}
#: The op kinds whose configs the sections of configs run.
OPS = (FP8, BF16, *GROUPED_OPS)
ALL_OPS = tuple(OP_KINDS)


def parse_ops(text: str) -> tuple[str, ...]:
    """Return the op kinds of a comma-separated list of names, or of parts of names.

    Raises:
        ValueError: no op kind has such a name.
    """
    found: list[str] = []
    for name in text.split(","):
        matches = [name] if name in ALL_OPS else [op for op in ALL_OPS if name in op]
        if not name or not matches:
            raise ValueError(f"{name!r}: no such op kind; known: {', '.join(ALL_OPS)}")
        found += matches
    return tuple(dict.fromkeys(found))


def sample(items: list, count: int) -> list:
    """Return `count` items spread evenly over the list (all of them when there are fewer)."""
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


class CaseCache:
    """The cases that were used last, by key."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._cases: OrderedDict = OrderedDict()

    def get(self, key: object, make: Callable) -> object:
        """Return the case of a key, made by `make()` where there is none."""
        if key not in self._cases:
            self._cases[key] = make()
            if len(self._cases) > self.capacity:
                self._cases.popitem(last=False)
        self._cases.move_to_end(key)
        return self._cases[key]


class World:
    """The GPU under test. Kernels and cases are made once and kept: shapes repeat between configs."""

    #: How often each fault is planted in a measuring process; a run says it.
    num_faults = 1

    def __init__(self, device: str = "cuda", spread: int = SPREAD):
        self.torch_device, self.spread = device, spread
        self.device = self._get_device()
        self.portfolios = {op: get_portfolio(op, self.device) for op in OPS}
        self._kernels: dict = {}
        self._cases, self.grouped_cases = CaseCache(MAX_CASES), CaseCache(MAX_GROUPED_CASES)

    def _get_device(self) -> "_C.Device":
        return _C.get_device()

    def configs(self, variant: Variant) -> list:
        """Return the configs of a variant that the suite runs."""
        return choose_configs(variant, self.device, self.spread)

    def portfolio(self, variant: Variant) -> list:
        """Return what the selector can choose for the variant's op kind, as far as it is legal for the variant."""
        configs, _ = self.portfolios[variant.op]
        return [config for config in configs if _C.is_legal(variant.problem(), config, self.device)]

    def kernel(self, variant: Variant, config, compiler: str | None = None, second=None):
        """Return the loaded kernel of a config, or of two.

        Raises: CompileError, LaunchError, ConfigError.
        """
        key = (variant, config, compiler, second)
        if key not in self._kernels:
            self._kernels[key] = self._load(variant.problem(), config, compiler, second)
        return self._kernels[key][0]

    def _load(self, problem, config, compiler: str | None, second=None) -> tuple:
        result = get_cubin(problem, config, compiler, second=second)
        return _C.Kernel(result.cubin, result.kernel_name, problem, config, 0, second), result

    def compile_result(self, variant: Variant, config, compiler: str | None = None, second=None):
        """Return the compiler's report of a config, or of two."""
        self.kernel(variant, config, compiler, second)
        return self._kernels[variant, config, compiler, second][1]

    def case(self, variant: Variant, shape: Shape, integers: bool = False) -> Case:
        """Return the operands and reference of a shape, the same for every config and scale layout."""
        key = (variant._replace(scale_layout="mn_major"), shape, integers)
        return self._cases.get(key, lambda: make_case(shape, self.torch_device, key[0], integers))

    def launch(
        self,
        variant: Variant,
        config,
        case: Case,
        output: GuardedOutput,
        *,
        index: int = 0,
        num_sms: int = 0,
        compiler: str | None = None,
    ) -> None:
        """Launch one config on a case, into a freshly poisoned D, on the current stream.

        index: picks the scales' memory layout and whether C is D, so that a caller that counts meets all of them.
        """
        c = prepare_c(case, output, is_aliased=index % 2 == 1)
        self.kernel(variant, config, compiler).launch(
            case.a,
            lay_out_scale(case.scale_a, variant, index, True),
            case.b,
            lay_out_scale(case.scale_b, variant, index // 2, False),
            output.d,
            c,
            num_sms=num_sms,
            **launch_options(case),
        )


def lay_out_scale(scale: torch.Tensor | None, variant: Variant, index: int, is_a: bool) -> torch.Tensor | None:
    """Return scales in a layout that the variant's kernels take; B's block scales may have any."""
    if scale is None or variant.recipe == "per_row":
        return scale
    is_vector = is_a or variant.recipe == "1d1d"
    layout_class = variant.scale_layout if is_vector else ("mn_major", "any")[index % 2]
    return make_scale_of_class(scale, layout_class, index)


def prepare_c(case: Case, output: GuardedOutput, is_aliased: bool) -> torch.Tensor | None:
    """Poison D and return the C to pass: none, D itself holding C, or another tensor."""
    if case.variant.c_mode == "accumulate" or (case.c is not None and is_aliased):
        output.poison(case.c)
        return output.d
    output.poison()
    if case.c is None:
        return None
    other = GuardedOutput(*output.d.shape, output.d.device, output.d.dtype)
    other.d.copy_(case.c)
    return other.d


def launch_options(case: Case) -> dict:
    """Return alpha, beta and head_splits as `_C.Kernel.launch` takes them; what the mode does not have is left out."""
    options = {"alpha": case.alpha, "beta": case.beta} if case.variant.c_mode == "general" else {}
    return options | ({"head_splits": case.head_splits} if case.head_splits else {})


def compare(case: Case, config, output: GuardedOutput) -> torch.Tensor:
    """Return int64 [4] on the device: wrong elements, dirty red-zone elements, bits unlike the first config's, large
    diff.

    A config that splits K is compared with its own first run only.
    """
    group = str(config) if getattr(config, "split_k", 1) > 1 else ""
    bits = output.bits
    if group not in case.first:
        case.first[group] = (str(config), bits.clone())
    unlike = (bits != case.first[group][1]).sum()
    return torch.stack(
        [count_wrong(case, output.values), output.num_dirty(), unlike, has_large_diff(case, output.values)]
    )


COMPARISONS = (
    "elements outside their bound",
    "elements written outside D",
    "elements unlike the first config's bits",
    "calc_diff above its bound",
)


def describe(counts: list[int]) -> str:
    """Return the non-zero comparisons in words, "" when all are zero."""
    return ", ".join(f"{count} {what}" for count, what in zip(counts, COMPARISONS, strict=True) if count)


def get_portfolio(op: str, device) -> tuple[list, str]:
    """Return every config that the library can choose for an op kind on this device, and where they come from."""
    return list_choices(op, list_grouped_problems(op) if op in GROUPED_OPS else list_dense_problems(op), device)


def list_dense_problems(op: str) -> list:
    """Return the problems of an op kind's benchmark, of its main variants."""
    rows = read_json(DENSE_PROBLEMS[op])["rows"]
    sizes = dict.fromkeys((row["m"], row["n"], row["k"]) for row in rows)
    return [variant.problem(*size) for variant in MAIN if variant.op == op for size in sizes]
