"""What compute-sanitizer watches beside configs of dense and grouped products: kernels of groups with ends and of
attention logits, and a call of every public function. See sanitizer.py.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import torch

from deep_gemm import _C
from deep_gemm.jit.build import get_cubin

from . import logits_jobs, op_calls, watched
from .grouped_operands import (
    contiguous_alignment,
    count_grouped_wrong,
    list_launch_operands,
    make_grouped_output,
    prepare_grouped_c,
)
from .grouped_psum import PSUM_VARIANTS, derive_psum_shapes, make_psum_case, with_ends
from .grouped_sanitizer import FEW_SMS, get_signature
from .grouped_variants import GroupedVariant, get_grouped_space, list_hinted_configs
from .logits_operands import expect_paged, expect_prefill, make_paged, make_prefill
from .logits_operands import move as move_logits
from .memory import copy_to_gpu
from .op_calls import OpCall
from .op_jobs import find_fault, list_logits_variants, move
from .watched import Program
from .world import CaseCache

#: Variants of groups with ends of which every path is watched: rows of FP8, and blocks of K.
PSUM_MAIN = (PSUM_VARIANTS[0], PSUM_VARIANTS[5])
#: Every n-th config of each variant of logits is watched.
LOGITS_STRIDE = 24
#: A call has larger products than most configs are launched on.
COST_OF_CALL = float(op_calls.M * op_calls.N)


def make_host_world() -> SimpleNamespace:
    """Return what makes cases on the CPU."""
    return SimpleNamespace(torch_device="cpu", grouped_cases=CaseCache(1))


def choose_psum_pairs(device) -> list[tuple[GroupedVariant, object]]:
    """Return every (variant as the public op takes it, config) with ends that the tools watch."""

    def list_legal(variant: GroupedVariant) -> list:
        problem = with_ends(variant).problem()
        space = get_grouped_space(variant, device) + list_hinted_configs(problem, device)
        return [config for config in space if _C.is_legal(problem, config, device)]

    return watched.choose_pairs(PSUM_VARIANTS, PSUM_MAIN, list_legal, get_signature)


def run_psum(variant: GroupedVariant, config) -> list[str]:
    """Run one config of groups with ends on few SMs, with NaN between the groups; return what was wrong."""
    problem, shape = with_ends(variant).problem(), derive_psum_shapes(variant, config)[0]
    result = get_cubin(problem, config, None)
    kernel = _C.Kernel(result.cubin, result.kernel_name, problem, config, 0)
    case = make_psum_case(make_host_world(), variant, shape)
    host = make_grouped_output(case)
    c = prepare_grouped_c(case, host, is_aliased=variant.c_mode == "accumulate")
    options = {"groups": case.groups, "num_sms": FEW_SMS, "ensure_zero_padding": case.padding is not None}
    with contiguous_alignment(shape.alignment):
        watched.launch_on_copies(kernel, list_launch_operands(variant, case, 0), host, c, **options)
    is_wrong = int(count_grouped_wrong(case, host)) or int(host.num_dirty())
    return [f"{problem}: {config} {shape}: wrong result"] if is_wrong else []


def choose_logits_pairs(device) -> list[tuple]:
    """Return the (problem, config) of attention logits that the tools watch."""
    pairs = []
    for index, problem in enumerate(list_logits_variants()):
        space = _C.get_default_space(problem, device)
        pairs += [(problem, config) for config in space[index % min(LOGITS_STRIDE, len(space)) :: LOGITS_STRIDE]]
    return pairs


def run_logits(problem, config) -> list[str]:
    """Run one config of attention logits on ranges or pages with tails; return what was wrong."""
    kernel = logits_jobs.load(problem, config)
    if problem.op == "fp8_mqa_logits":
        operands = make_prefill(37, 333, problem.heads, problem.k)
        fault = _judge(logits_jobs.run_prefill, kernel, problem, operands, expect_prefill(operands), "clean")
    else:
        operands = make_paged([65, 0, 130], problem.next_n, problem.heads, problem.k, problem.block_kv)
        fault = _judge(logits_jobs.run_paged, kernel, problem, operands, expect_paged(operands, 160), "clean", 7)
    return [f"{problem} {config}: {fault}"] if fault else []


def _judge(run, kernel, problem, operands: dict, expected, *arguments) -> str | None:
    """Run on copies of the operands; the expected logits were computed on the CPU."""
    device = logits_jobs.DEVICE
    there = expected._replace(logits=expected.logits.to(device), magnitude=expected.magnitude.to(device))
    return run(kernel, problem, move_logits(operands, device), there, *arguments)


def choose_calls() -> list[OpCall]:
    """Return the calls that the tools watch: those of our own kernels."""
    return [call for call in op_calls.list_calls() if op_calls.is_ours(call)]


def run_call(call: OpCall) -> list[str]:
    """Make one call on copies of its operands; return what was wrong."""
    operands, function = call.make(), op_calls.find_function(call.name)
    expected = call.run(function, operands)
    found = call.run(function, move(operands, "cuda", copy_to_gpu))
    if found[0].is_cuda:
        torch.cuda.synchronize()
    fault = find_fault(found, expected, call.bound)
    return [f"{call.title}: {fault}"] if fault else []


def list_watched(device) -> list[Program]:
    """Return every program of groups with ends, of logits and of the public functions."""
    found = [
        _make_program(with_ends(variant), config, partial(run_psum, variant, config))
        for variant, config in choose_psum_pairs(device)
    ]
    found += [
        _make_program(problem, config, partial(run_logits, problem, config))
        for problem, config in choose_logits_pairs(device)
    ]
    calls = choose_calls()
    return found + [Program(call.kind, call.title, partial(run_call, call), call.name, COST_OF_CALL) for call in calls]


def _make_program(owner, config, run: Callable[[], list[str]]) -> Program:
    return Program(owner.op, f"{owner} {config}", run, str(owner), watched.estimate_cost(config))
