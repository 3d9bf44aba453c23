"""The GPU suite's calls of every public function: nothing is left out, right calls pass, and wrong ones do not."""

import types

import pytest
import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit.plain_kernels import PLAIN_KERNELS
from deep_gemm.ops import EXPORTS, OPS
from tests.fakes.gpu_world import copy_storage
from tests.gpu import einsum, jobs, kernels, op_calls, op_jobs, plain_kernels, run, sanitizer_calls, watched
from tests.gpu.grouped_psum import PSUM_VARIANTS
from tests.gpu.world import ALL_OPS

H200 = _C.Device.known("h200")
CALLS = op_calls.list_calls()
#: Calls that take seconds on a CPU.
SLOW = ("fp8_paged_mqa_logits 64x128", "_fp4_")
QUICK = [call for call in CALLS if not any(word in call.title for word in SLOW)]


# What is covered.


def test_every_row_of_the_table_of_ops_has_a_call_under_each_of_its_names():
    assert {call.name for call in CALLS} >= {op.name for op in OPS}
    assert {name for call in CALLS for name in op_calls.list_names(call)} >= set(EXPORTS)


def test_every_op_kind_and_plain_kernel_is_called():
    assert op_calls.list_kinds(CALLS) == set(OP_KINDS) == set(ALL_OPS)
    assert {name for call in CALLS for name in call.kernels} == set(PLAIN_KERNELS)


def test_the_sections_have_a_job_for_every_call(world):
    found = jobs.get_jobs(world, list(jobs.OP_SECTIONS), (1, 1))
    called = [name for section, name, _ in found if section == "ops"]
    repeated = [name for section, name, _ in found if section == "op_repeats"]
    assert all(f"call {call.title}: all" in called for call in CALLS)
    assert all(f"repeat {call.title}: all" in repeated for call in CALLS if op_calls.is_ours(call))
    assert len(set(called)) == len(called) and len(set(repeated)) == len(repeated)
    launched = {op for op in OP_KINDS if any(name.startswith((op, f"repeat {op} ")) for name in repeated)}
    assert launched == {op for op, kind in OP_KINDS.items() if kind.has_ends or kind.is_logits}


def test_a_thousand_repeats():
    assert op_jobs.ALONE + op_jobs.BUSY + op_jobs.GRAPH_LAUNCHES * op_jobs.REPLAYS >= 1000


def test_kernels_of_new_op_kinds_are_compiled_ahead():
    listed = kernels.list_kernels(H200, ["op_repeats"], ("nvrtc",), 48, True)
    kinds = {_C.Problem.from_json(problem).op for problem, *_ in listed}
    assert kinds == {op for op, kind in OP_KINDS.items() if not (kind.is_batched or kind.is_summed)}


@pytest.mark.parametrize("sections, kinds", [
    ("ops", set(OP_KINDS)), ("logits", {op for op, kind in OP_KINDS.items() if kind.is_logits}),
    ("configs", {"fp8_gemm", "bf16_gemm"}),
])  # fmt: skip
def test_a_section_needs_the_kernels_of_its_op_kinds(sections, kinds):
    found = set(run.choose_watched_ops(run.parse_arguments(["--sections", sections])))
    assert kinds <= found and (sections != "configs" or found == kinds)


# Right and wrong calls.


@pytest.mark.parametrize("call", QUICK, ids=lambda call: call.title)
def test_right_calls_pass_and_repeat(world, call):
    function = op_calls.find_function(call.name)
    operands = call.make()
    assert op_jobs.find_fault(call.run(function, operands), call.run(function, operands), call.bound) is None


def find_call(title: str) -> op_calls.OpCall:
    """Return the first call whose title begins so."""
    return next(call for call in CALLS if call.title.startswith(title))


WATCHED = (
    *("bf16_gemm_nt plain", "fp8_mqa_logits 8x32", "get_paged", "per_token", "get_mn_major", "einsum bmk"),
    *("nn_spread bfloat16 plain", "nn_combine bfloat16 plain"),  # an operand is absent
)


@pytest.mark.parametrize("title", WATCHED)
def test_wrong_calls_are_found(world, monkeypatch, title):
    call = find_call(title)
    assert op_jobs.run_call(world, call) == (len(op_calls.list_names(call)), [])
    right, count = op_calls.find_function(call.name), [0]

    def run(function, operands):
        found = call.run(right, operands)
        count[0] += 1
        if count[0] > 1:
            spoil(found[0])
        return found

    _, failures = op_jobs.run_call(world, call._replace(run=run))
    assert len(failures) == len(op_calls.list_names(call))


def spoil(tensor: torch.Tensor) -> None:
    """Make one element wrong."""
    place = (0,) * tensor.dim()
    tensor[place] = float("nan") if tensor.is_floating_point() else tensor[place] + 1


def test_a_bit_that_differs_once_is_counted(world):
    call, late = find_call("bf16_gemm_nt plain"), [0]
    operands = call.make()

    def run():
        (found,) = call.run(op_calls.find_function(call.name), operands)
        late[0] += 1
        if late[0] == 5:
            found[3, 5] = found[3, 5] * (1 + 2.0**-7)
        return (found,)

    repeater = op_jobs.CallRepeater(run)
    for _ in range(4):
        repeater.count()
    assert int(repeater.unlike) == 1


def test_outputs_are_poisoned_after_each_call():
    kept = torch.ones(3, 4), torch.ones(2, 2).to(torch.float8_e4m3fn)
    repeater = op_jobs.CallRepeater(lambda: kept)
    assert all(part.float().isnan().all() for part in kept)
    kept[0].fill_(2.0)
    repeater.count()
    assert int(repeater.unlike) == 1 and kept[0].isnan().all()


def test_a_copy_to_the_host_hides_no_strides(monkeypatch):
    """It keeps no padding between rows."""
    padded = torch.ones(3, 5, 132).mT[:, :129]
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: self.clone())
    assert padded.cpu().stride() != padded.stride()
    assert op_jobs.find_fault((padded,), (padded,), 0.0) is None


@pytest.mark.parametrize("found, wanted, bound, fault", [
    (torch.ones(2, 3), torch.ones(3, 2), 1e-6, "expected torch.float32 [3, 2]"),
    (torch.ones(2, 3).t(), torch.ones(3, 2), 0.0, "strides"),
    (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), 0.0, "1 elements differ"),
    (torch.tensor([1.0, float("inf")]), torch.tensor([1.0, -float("inf")]), 1e-6, "infinity"),
    (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")]), 1e-6, "NaN"),
    (torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]), 1e-6, "zeros"),
    (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), 1e-6, "calc_diff"),
])  # fmt: skip
def test_faults_have_words(found, wanted, bound, fault):
    assert fault in op_jobs.find_fault((found,), (wanted,), bound)
    assert op_jobs.find_fault((wanted,), (wanted,), bound) is None


def test_compiling_never_fails_the_suite(world, monkeypatch):
    monkeypatch.setattr(op_calls, "find_function", lambda name: None)
    assert op_jobs.compile_calls(world, CALLS[:2]) == (0, [])


# Sanitizer, and sections of their own.


class PsumKernel:
    """_C.Kernel of rows of groups with ends: the public op on CPU tensors, spoiled afterwards if asked."""

    is_wrong = False

    def __init__(self, cubin, name, problem, config, device):
        self.op = deep_gemm.m_grouped_fp8_gemm_nt_contiguous

    def launch(self, a, scale_a, b, scale_b, d, c, *, groups, num_sms, ensure_zero_padding):
        options = {"use_psum_layout": True, "ensure_zero_padding": ensure_zero_padding}
        self.op((a, scale_a), (b, scale_b), d, groups, **options)
        d[0] += self.is_wrong


def test_the_sanitizers_groups_with_ends_are_judged(monkeypatch):
    built = types.SimpleNamespace(cubin=b"", kernel_name="")
    monkeypatch.setattr(watched, "copy_to_gpu", copy_storage)
    monkeypatch.setattr(sanitizer_calls, "get_cubin", lambda *_: built)
    monkeypatch.setattr(sanitizer_calls._C, "Kernel", PsumKernel)
    chosen = sanitizer_calls.choose_psum_pairs(H200)
    variant, config = next(pair for pair in chosen if pair[0] == PSUM_VARIANTS[0])
    assert sanitizer_calls.run_psum(variant, config) == []
    monkeypatch.setattr(PsumKernel, "is_wrong", True)
    assert len(sanitizer_calls.run_psum(variant, config)) == 1


def test_the_sanitizer_finds_a_wrong_call(monkeypatch):
    monkeypatch.setattr(sanitizer_calls, "move", lambda operands, device, copy: operands)
    call = find_call("bf16_gemm_nt plain")
    assert sanitizer_calls.run_call(call) == []
    count = [0]

    def run(function, operands):
        found = call.run(function, operands)
        count[0] += 1
        found[0].add_(count[0] == 2)
        return found

    assert sanitizer_calls.run_call(call._replace(run=run))


def test_sections_of_einsum_and_casts_have_distinct_jobs():
    for found in (einsum.einsum_jobs(), plain_kernels.plain_jobs()):
        assert len({name for name, _ in found}) == len(found) > 8
    assert einsum.FP8_BLOCKS and len(einsum.CHECKS) == 5


def test_outputs_of_casts_are_poisoned_only_within(monkeypatch):
    found = []
    monkeypatch.setattr(_C, "set_allocator", found.append)
    with plain_kernels.poisoned_outputs():
        assert callable(found[0]) and len(found) == 1
    assert found[1:] == [None] and plain_kernels.is_kernel()
    with plain_kernels.using_formula():
        assert not plain_kernels.is_kernel()


def test_no_job_compiles_for_many_calls_and_all_calls_have_one(world):
    """One job for all of them was silent for longer than a job may be, and was killed."""
    parts = [job.args[1] for name, job in op_jobs.op_jobs(world) if name.startswith("compile: ")]
    assert max(map(len, parts)) <= op_jobs.CALLS_COMPILED < len(op_calls.list_calls())
    assert sorted(call.title for part in parts for call in part) == sorted(call.title for call in op_calls.list_calls())
