"""The GPU suite's calls of the public grouped ops, on CPU tensors: what it expects of them is what they do."""

import pytest
import torch

import deep_gemm
from tests.gpu import grouped_semantics, grouped_semantics_runtime, grouped_semantics_values
from tests.gpu.grouped_op import GROUPED_OP_VARIANTS
from tests.gpu.grouped_shapes import Contiguous, KGroups, Masked
from tests.gpu.grouped_variants import CONTIGUOUS_OPS, K_GROUPED_OPS, MASKED_OPS

SHAPES = {
    "contiguous": Contiguous(136, 272, 4, 128, ((0, 0, 30), (2, 5, 17), (0, 128, 0), (1, 0, 1))),
    "masked": Masked(136, 272, 37, (5, 37, 0, 1)), "k": KGroups(21, 136, (128, 0, 256)),
}  # fmt: skip
CONTIGUOUS = [variant for variant in GROUPED_OP_VARIANTS if variant.op in CONTIGUOUS_OPS]
MASKED = [variant for variant in GROUPED_OP_VARIANTS if variant.op in MASKED_OPS]


def get_shape(variant):
    """Return a small shape of a variant's kind."""
    return SHAPES["contiguous" if variant.op in CONTIGUOUS_OPS else "masked" if variant.op in MASKED_OPS else "k"]


@pytest.mark.parametrize("run", [
    grouped_semantics.run_products, grouped_semantics.run_keywords, grouped_semantics.run_scale_layouts,
    grouped_semantics_values.run_nan,
])  # fmt: skip
@pytest.mark.parametrize("variant", GROUPED_OP_VARIANTS, ids=str)
def test_ops_keep_what_the_suite_asks(world, variant, run):
    cases, failures = run(world, variant, get_shape(variant))
    assert failures == [] and (cases > 0 or not variant.is_fp8)


@pytest.mark.parametrize("variant", GROUPED_OP_VARIANTS, ids=str)
def test_sizes_are_as_the_suite_expects(world, monkeypatch, variant):
    monkeypatch.setattr(grouped_semantics, "NUM_RANDOM_SHAPES", 2)
    assert grouped_semantics.run_random(world, variant) == (4, [])
    assert grouped_semantics.run_zero_sizes(world, variant) == (32, [])


@pytest.mark.parametrize("variant", GROUPED_OP_VARIANTS, ids=str)
def test_operands_in_every_memory_are_right(world, variant):
    failures = grouped_semantics.run_memory_layouts(world, variant, get_shape(variant))[1]
    assert not [
        failure for failure in failures if "other bits" not in failure
    ]  # FP32 sums of torch depend on the memory
    assert grouped_semantics.run_strides(world, variant, get_shape(variant))[1] == []


@pytest.mark.parametrize("variant", CONTIGUOUS, ids=str)
def test_alignments_are_as_the_suite_expects(world, variant):
    assert grouped_semantics.run_alignments(world, variant)[1] == []
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128


@pytest.mark.parametrize("variant", MASKED, ids=str)
def test_hints_change_nothing(world, variant):
    assert grouped_semantics_values.run_hints(world, variant, get_shape(variant)) == (
        2 * len(grouped_semantics_values.EXPECTED_ROWS),
        [],
    )


@pytest.mark.parametrize("variant", [*CONTIGUOUS, *MASKED], ids=str)
def test_groups_may_change_between_calls(world, monkeypatch, variant):
    monkeypatch.setattr(grouped_semantics_runtime, "capture", lambda body: (body(), body)[1])
    monkeypatch.setattr(
        grouped_semantics_runtime, "MASKED_SIZES", ((150,) * 4, (0,) * 4, (1, 150, 0, 77))
    )  # on the CPU others are refused
    assert grouped_semantics_runtime.run_graph(world, variant)[1] == []


def test_sampled_rows_find_a_wrong_one(monkeypatch):
    variant = MASKED[0]
    shape = Masked(136, 128, 50, (3, 0, 50, 47))
    assert grouped_semantics_values.check_large(shape, variant, "cpu") == (12, [])
    call = grouped_semantics_values.call_grouped

    def spoil(case, d):
        call(case, d)
        d[2, 49, 7] += 1.0

    monkeypatch.setattr(grouped_semantics_values, "call_grouped", spoil)
    assert grouped_semantics_values.check_large(shape, variant, "cpu")[1] == ["row (2, 49): outside the bound"]


def test_corrupt_sizes_may_spoil_nothing_but_d(world, monkeypatch):
    variant = next(variant for variant in GROUPED_OP_VARIANTS if variant.op in K_GROUPED_OPS)
    monkeypatch.setattr(grouped_semantics_values, "MANY_K_GROUPS", KGroups(21, 136, (128,) * 4))
    run, is_careful = grouped_semantics_values.run_grouped_op, True

    def follow_ks(case, output):
        """On the CPU the op refuses sizes that are not those of `ks`."""
        bits = run(case, output, ks_tensor=torch.tensor(case.shape.ks, dtype=torch.int32))
        if not is_careful and case.groups.tolist() != list(case.shape.ks):
            output.buffer[0] = 0
        return bits

    monkeypatch.setattr(grouped_semantics_values, "run_grouped_op", follow_ks)
    assert grouped_semantics_values.run_corrupt_sizes(world, variant) == (4, [])
    is_careful = False
    assert grouped_semantics_values.run_corrupt_sizes(world, variant)[1] == [
        f"{name}: wrote outside D" for name in grouped_semantics_values.CORRUPT_SIZES
    ]


@pytest.mark.parametrize("variant", grouped_semantics_runtime.COMPILED_VARIANTS, ids=str)
def test_compiled_calls_are_as_the_suite_expects(world, variant):
    assert grouped_semantics_runtime.run_compiled(world, variant, get_shape(variant)) == (2, [])
