"""What masked products promise about signals: a counter for every 64 rows of a group becomes complete once these rows
are stored, with any tile, from graphs, and as another stream sees it while the product runs.
"""

from functools import partial

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.jit.build import get_cubin

from .grouped_configs import get_grouped_case
from .grouped_op import call_grouped, list_op_shapes, run_grouped_op
from .grouped_operands import (
    GroupedCase,
    count_grouped_wrong,
    list_launch_operands,
    make_grouped_output,
)
from .grouped_semantics_runtime import MASKED_SHAPE, MASKED_SIZES, capture
from .grouped_shapes import Masked, derive_masked
from .grouped_variants import BF16_MASKED, FP8_MASKED, MAIN_GROUPED, GroupedVariant, choose_grouped_configs
from .operands import ceil_div
from .public_op import Checks
from .world import World, sample

BLOCK_ROWS = 64
VARIANTS = (
    GroupedVariant(FP8_MASKED),
    GroupedVariant(BF16_MASKED),
    GroupedVariant(FP8_MASKED, "1d1d", "fp32", scale_layout="any"),
    GroupedVariant(BF16_MASKED, d_dtype="fp32"),
)
#: Configs of each main variant, and of each other one.
MAIN_CONFIGS, FEW_CONFIGS = 24, 6
#: What another stream looks at while it is computed, in a millisecond or so on half of the SMs, and how often.
WATCHED_SHAPE, SNAPSHOTS = Masked(2048, 4096, 512, (512, 1, 300, 0, 65, 64, 512, 511) * 2), 24


def get_threshold(shape: Masked) -> int:
    """Return what the signal of a block with rows ends at."""
    return BLOCK_ROWS // 8 * ceil_div(shape.n, 8)


def count_signals(shape: Masked) -> int:
    """Return how many signals the groups have."""
    return shape.num_groups * ceil_div(shape.max_m, BLOCK_ROWS)


def expect_signals(shape: Masked, length: int) -> torch.Tensor:
    """Return the signals in the end, in a tensor of `length`, all of which were 0."""
    firsts = range(0, shape.max_m, BLOCK_ROWS)
    values = [get_threshold(shape) * (first < size) for size in shape.sizes for first in firsts]
    return torch.tensor(values + [0] * (length - len(values)), dtype=torch.int32)


def make_signal(shape: Masked, device: object) -> torch.Tensor:
    """Return signals at 0 and a few more numbers, which nothing may write."""
    return torch.zeros(count_signals(shape) + 3, dtype=torch.int32, device=device)


def are_right(shape: Masked, signal: torch.Tensor) -> bool:
    """Return whether signals are complete where there are rows, and 0 elsewhere."""
    return torch.equal(signal.cpu(), expect_signals(shape, len(signal)))


def load_signalling(variant: GroupedVariant, config):
    """Return the loaded kernel of a config that signals."""
    problem = variant.problem().with_signals()
    result = get_cubin(problem, config)
    return _C.Kernel(result.cubin, result.kernel_name, problem, config)


def run_config(world: World, variant: GroupedVariant, config, index: int) -> tuple[int, list[str]]:
    """Run one config's kernel on shapes around its tile: D and the signals are right, nothing else is written."""
    checks, kernel = Checks(), load_signalling(variant, config)
    for place, shape in enumerate(derive_masked(config, index)):
        case = get_grouped_case(world, variant, shape)
        output, signal = make_grouped_output(case), make_signal(shape, case.a.device)
        operands = list_launch_operands(variant, case, index + place)
        kernel.launch(*operands, output.d, groups=case.groups, num_sms=place % 3, signal=signal)
        checks.expect(not int(count_grouped_wrong(case, output)), f"{shape}: wrong elements")
        checks.expect(not int(output.num_dirty()), f"{shape}: wrote outside D")
        checks.expect(are_right(shape, signal), f"{shape}: wrong signals")
    return checks.outcome()


def call_signalling(case: GroupedCase, d: torch.Tensor, signal: torch.Tensor) -> object:
    """Call the public op with signals, which are made 0 first."""
    signal.zero_()
    return call_grouped(case, d, enable_overlap=True, max_block_n=160, signal=signal)


def run_calls(world: World, variant: GroupedVariant, shape: Masked) -> tuple[int, list[str]]:
    """The public op gives the bits of the call without signals, on any number of SMs, and says what to wait for."""
    checks, case = Checks(), get_grouped_case(world, variant, shape)
    output, signal = make_grouped_output(case), make_signal(shape, case.a.device)
    bits = run_grouped_op(case, output).clone()
    try:
        for num_sms in (0, 1, world.device.sm_count - 3):
            deep_gemm.set_num_sms(num_sms)
            output.poison()
            returned = call_signalling(case, output.d, signal)
            checks.expect(returned == (BLOCK_ROWS, get_threshold(shape)), f"{num_sms} SMs: returned {returned}")
            checks.expect((output.bits == bits).all(), f"{num_sms} SMs: other bits")
            checks.expect(not int(output.num_dirty()), f"{num_sms} SMs: wrote outside D")
            checks.expect(are_right(shape, signal), f"{num_sms} SMs: wrong signals")
    finally:
        deep_gemm.set_num_sms(0)
    return checks.outcome()


def run_graph(world: World, variant: GroupedVariant) -> tuple[int, list[str]]:
    """A captured call signals the rows that its groups have at each replay."""
    checks, case = Checks(), get_grouped_case(world, variant, MASKED_SHAPE)
    output, signal, full = make_grouped_output(case), make_signal(MASKED_SHAPE, case.a.device), case.groups.clone()
    replay = capture(lambda: call_signalling(case, output.d, signal))
    try:
        for sizes in MASKED_SIZES:
            case.groups.copy_(torch.tensor(sizes, dtype=torch.int32))
            replay()
            checks.expect(are_right(MASKED_SHAPE._replace(sizes=sizes), signal), f"rows {sizes}: wrong signals")
    finally:
        case.groups.copy_(full)
    return checks.outcome()


def run_watched(world: World, variant: GroupedVariant) -> tuple[int, list[str]]:
    """Another stream copies the signals, then D, again and again while the product runs on half of the SMs: rows whose
    signal was complete have their final bits.
    """
    checks, case, shape = Checks(), get_grouped_case(world, variant, WATCHED_SHAPE), WATCHED_SHAPE
    output, signal = make_grouped_output(case), make_signal(shape, case.a.device)
    bits = run_grouped_op(case, output).clone()
    final = output.all_bits.clone()
    checks.expect(torch.equal(final[case.rows], bits), "the product without signals moved")
    copies = [(torch.empty_like(signal), torch.empty_like(output.all_bits)) for _ in range(SNAPSHOTS)]
    watcher = torch.cuda.Stream()
    output.poison()
    signal.zero_()
    torch.cuda.synchronize()
    deep_gemm.set_num_sms(world.device.sm_count // 2)
    try:
        call_grouped(case, output.d, enable_overlap=True, signal=signal)
    finally:
        deep_gemm.set_num_sms(0)
    with torch.cuda.stream(watcher):
        for counters, rows in copies:
            counters.copy_(signal, non_blocking=True)
            rows.copy_(output.all_bits, non_blocking=True)
    torch.cuda.synchronize()
    for number, (counters, rows) in enumerate(copies):
        seen = list_complete_rows(shape, counters)
        checks.expect(torch.equal(rows[seen], final[seen]), f"snapshot {number}: complete signals, other rows")
    checks.expect(are_right(shape, signal), "wrong signals")
    return checks.outcome()


def list_complete_rows(shape: Masked, counters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the index of the rows whose signals are complete."""
    complete = (counters[: count_signals(shape)] == get_threshold(shape)).view(shape.num_groups, -1)
    rows = complete.repeat_interleave(BLOCK_ROWS, dim=1)[:, : shape.max_m]
    sizes = torch.tensor(shape.sizes, device=counters.device)
    rows = rows & (torch.arange(shape.max_m, device=counters.device) < sizes[:, None])
    groups, places = rows.nonzero(as_tuple=True)
    return groups, places


def list_configs(world: World, variant: GroupedVariant) -> list:
    """Return the configs of a variant whose signals are checked."""
    count = MAIN_CONFIGS if variant in MAIN_GROUPED else FEW_CONFIGS
    return sample(choose_grouped_configs(variant, world.device, world.spread), count)


def signal_jobs(world: World) -> list:
    """Return one job for each promise, variant and config or shape."""
    jobs = [
        (f"run_signals {variant}: {config}", partial(run_config, world, variant, config, index))
        for variant in VARIANTS
        for index, config in enumerate(list_configs(world, variant))
    ]
    jobs += [
        (f"run_signal_calls {variant}: {number}", partial(run_calls, world, variant, shape))
        for variant in VARIANTS[:3]
        for number, shape in enumerate(list_op_shapes(variant))
    ]
    return jobs + [
        (f"{name} {variant}: all", partial(run, world, variant))
        for name, run in (("run_signal_graph", run_graph), ("run_watched_signals", run_watched))
        for variant in VARIANTS[:2]
    ]
