"""The suite's fuzzed calls of every public function, on CPU tensors: right ones are right, faults are typed, and the
suite would find what is not.
"""

import random

import pytest
import torch

from deep_gemm.ops import OPS
from tests.gpu import calls, grouped_calls, op_calls, public_calls, public_faults

#: Those that run without a CUDA stream.
VARIATIONS = tuple(change for change in public_calls.VARIATIONS if change is not public_calls.use_stream)
#: Calls that take seconds on a CPU, and of the others one for each function and kernel.
SLOW = ("fp8_paged_mqa_logits 64x128", "_fp4_", "k 28672")
QUICK = {
    (call.name, call.kind, call.kernels): call
    for call in op_calls.list_public_calls() if not any(word in call.title for word in SLOW)
}  # fmt: skip


@pytest.mark.parametrize("change", [*VARIATIONS, *public_faults.FAULTS], ids=lambda change: change.__name__)
def test_each_change_of_a_public_call_can_be_judged(world, change):
    for seed, call in enumerate(QUICK.values()):
        made = public_calls.make_public_call(world, random.Random(seed), call)
        assert calls.run_call(made, change) == "", made.describe()


@pytest.mark.full
@pytest.mark.parametrize("seed", range(20))
def test_fuzzed_public_calls_end_right_or_typed(world, monkeypatch, seed):
    monkeypatch.setattr(public_calls, "VARIATIONS", VARIATIONS)
    monkeypatch.setattr(op_calls, "list_public_calls", lambda: list(QUICK.values()))
    assert public_calls.run_public_calls(world, seed, 100) == (100, [])


def test_every_public_function_is_called_in_turn(world, monkeypatch):
    made = []
    monkeypatch.setattr(public_calls, "make_public_call", lambda world, rng, call: made.append(call))
    monkeypatch.setattr(calls, "run_call", lambda call, change: "")
    listed = op_calls.list_public_calls()
    count = len(listed)
    assert public_calls.run_public_calls(world, 3, count) == (count, [])
    assert {call.name for call in made} == {call.name for call in listed} >= {op.name for op in OPS}
    assert 40 * count <= public_calls.NUM_CALLS


def test_twenty_thousand_calls_are_planned(world):
    names = [name for name, _ in calls.call_jobs(world)]
    assert len(names) == len(set(names)) and len(names) * calls.CALLS_PER_JOB == 20_000
    assert calls.NUM_CALLS + grouped_calls.NUM_CALLS + public_calls.NUM_CALLS == 20_000


# What it would find.


def find_call(name: str) -> op_calls.OpCall:
    """Return a call of a function."""
    return next(call for call in op_calls.list_public_calls() if call.name == name)


def judge(world, monkeypatch, name: str, change, spoil) -> str:
    """Return the verdict on a call of a function, which `spoil` runs after."""
    call, right = find_call(name), op_calls.find_function(name)

    def function(*positional, **named):
        result = right(*positional, **named)
        spoil(named | dict(zip(public_calls.list_parameters(name), positional, strict=False)), result)
        return result

    public_calls.get_expected(call.title, "cpu")
    made = public_calls.make_public_call(world, random.Random(0), call)
    with monkeypatch.context() as patch:
        patch.setattr(op_calls, "find_function", lambda name: function)
        return calls.run_call(made, change)


def write_outside(given, result):
    d = given["d"]
    d.as_strided((1,), (1,), d.storage_offset() - 1).fill_(0)


def write_operand(given, result):
    given["a"].view(-1)[7] = 0


def return_wrong(given, result):
    result[0].view(torch.uint8)[0, 0] ^= 8


@pytest.mark.parametrize("name, spoil, verdict", [
    ("bf16_gemm_nt", write_outside, "wrote outside D"), ("einsum", write_operand, "wrote outside D"),
    ("cublaslt_gemm_nt", write_outside, "wrote outside D"), ("per_token_cast_to_fp8", return_wrong, "output 0"),
    ("tf32_hc_prenorm_gemm", lambda given, result: given["d"].mul_(1.01), "output 0: calc_diff"),
])  # fmt: skip
def test_a_wrong_function_is_found(world, monkeypatch, name, spoil, verdict):
    assert verdict in judge(world, monkeypatch, name, public_calls.use_keywords, spoil)
    assert judge(world, monkeypatch, name, public_calls.use_keywords, lambda given, result: None) == ""


def test_an_accepted_fault_is_found(world, monkeypatch):
    call = find_call("fp8_mqa_logits")
    made = public_calls.make_public_call(world, random.Random(0), call)
    monkeypatch.setattr(public_calls.PublicCall, "invoke", lambda self: "")
    assert calls.run_call(made, public_faults.break_type) == "invalid call was accepted"


def test_an_error_after_something_was_written_is_found(world, monkeypatch):
    def spoil(call):
        call.outputs["sqr_sum"].d.fill_(1.0)
        return "LaunchError: too late"

    made = public_calls.make_public_call(world, random.Random(0), find_call("tf32_hc_prenorm_gemm"))
    monkeypatch.setattr(public_calls.PublicCall, "invoke", spoil)
    assert calls.run_call(made, public_faults.break_dtype) == "wrote to D before the error"


def test_what_is_expected_keeps_its_strides(monkeypatch):
    padded = torch.ones(3, 5, 132).mT[:, :129]
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: self.clone())
    assert public_calls.to_host(padded).stride() == padded.stride() != padded.cpu().stride()
