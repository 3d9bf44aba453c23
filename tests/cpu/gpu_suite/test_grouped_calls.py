"""The suite's fuzzed calls of grouped ops, on CPU tensors: right ones are right, faults are typed, and the suite would
find what is not.
"""

import random

import pytest

from tests.gpu import calls, grouped_calls, grouped_faults
from tests.gpu.grouped_op import GROUPED_OP_VARIANTS
from tests.gpu.grouped_shapes import Contiguous, KGroups, Masked
from tests.gpu.grouped_variants import CONTIGUOUS_OPS, MASKED_OPS

CONTIGUOUS = Contiguous(40, 144, 3, 128, ((0, 0, 5), (2, 3, 40)))
MASKED, K_GROUPS = Masked(40, 144, 9, (3, 0, 9)), KGroups(9, 40, (128, 0, 256))
#: Those that run without a CUDA stream.
VARIATIONS = tuple(change for change in grouped_calls.VARIATIONS if change is not grouped_calls.use_stream)


def choose_shape(variant):
    """Return a small shape of a variant's kind of groups."""
    return CONTIGUOUS if variant.op in CONTIGUOUS_OPS else MASKED if variant.op in MASKED_OPS else K_GROUPS


@pytest.mark.parametrize("change", [*VARIATIONS, *grouped_faults.FAULTS])
def test_each_change_of_a_grouped_call_can_be_judged(world, change):
    for seed, variant in enumerate(GROUPED_OP_VARIANTS):
        for turn in range(3):
            rng = random.Random(100 * turn + seed)
            call = grouped_calls.make_grouped_call(world, rng, variant, choose_shape(variant))
            assert calls.run_call(call, change) == "", call.describe()


def test_fuzzed_grouped_calls_end_right_or_typed(world, monkeypatch):
    monkeypatch.setattr(grouped_calls, "VARIATIONS", VARIATIONS)
    monkeypatch.setattr(grouped_calls, "list_call_shapes", lambda variant: [choose_shape(variant)])
    assert grouped_calls.run_grouped_calls(world, 1, 100) == (100, [])


def test_an_accepted_fault_and_a_wrong_result_are_found(world, monkeypatch):
    monkeypatch.setattr(grouped_calls.GroupedCall, "invoke", lambda call: "")
    variant, rng = GROUPED_OP_VARIANTS[0], random.Random(1)
    call = grouped_calls.make_grouped_call(world, rng, variant, CONTIGUOUS)
    assert calls.run_call(call, grouped_faults.break_groups_dtype) == "invalid call was accepted"
    call = grouped_calls.make_grouped_call(world, rng, variant, CONTIGUOUS)
    assert "outside their bound" in calls.run_call(call, grouped_calls.use_strides)
