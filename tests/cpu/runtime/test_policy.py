"""Switches of the process: what they take, what they return, and that what was read restores what held."""

import numpy as np
import pytest
import torch

import deep_gemm
from deep_gemm.errors import ArgumentError, ProblemError


@pytest.mark.parametrize("ratio, kept", [(0, 0.0), (1, 1.0), (0.5, 0.5), (100, 1.0), (80, 0.8)])
def test_tensor_core_utilisation_is_kept(ratio, kept):
    try:
        deep_gemm.set_tc_util(ratio)
        assert deep_gemm.get_tc_util() == kept
    finally:
        deep_gemm.set_tc_util(1.0)


@pytest.mark.parametrize("ratio", [-1, 101, float("nan"), "all", None])
def test_what_is_no_utilisation(ratio):
    with pytest.raises(ArgumentError, match="ratio = "):
        deep_gemm.set_tc_util(ratio)
    assert deep_gemm.get_tc_util() == 1.0


@pytest.mark.parametrize(
    "setter, getter, default", [("set_pdl", "get_pdl", True), ("set_batch_invariant", "is_batch_invariant", None)]
)
def test_switches(setter, getter, default):
    found = getattr(deep_gemm, getter)()
    assert found is default
    try:
        for value in (True, False):
            getattr(deep_gemm, setter)(value)
            assert getattr(deep_gemm, getter)() is value
        for value in (1, "yes"):
            with pytest.raises(ArgumentError, match="is_enabled = .*: must be a bool"):
                getattr(deep_gemm, setter)(value)
    finally:
        getattr(deep_gemm, setter)(found)
    assert getattr(deep_gemm, getter)() is found


def test_the_default_of_batch_invariance_comes_back():
    ops = ("bf16_gemm", "fp8_gemm")
    try:
        deep_gemm.set_batch_invariant(False)
        assert [deep_gemm.is_batch_invariant(op) for op in ops] == [False, False]
        deep_gemm.use_deterministic_algorithms(True)
        assert [deep_gemm.is_batch_invariant(op) for op in ops] == [True, True]
        deep_gemm.use_deterministic_algorithms(False)
        assert [deep_gemm.is_batch_invariant(op) for op in ops] == [True, False], "what a caller finds, it restores"
        deep_gemm.set_batch_invariant(False)
        deep_gemm.use_deterministic_algorithms(deep_gemm.get_deterministic_algorithms())
        assert deep_gemm.is_batch_invariant() is False, "nor does it touch what is not on"
        with pytest.raises(ArgumentError, match="is_enabled = None: must be a bool"):
            deep_gemm.use_deterministic_algorithms(None)
        with pytest.raises(ProblemError, match="op = 'gemm'"):
            deep_gemm.is_batch_invariant("gemm")
    finally:
        deep_gemm.set_batch_invariant(None)


@pytest.mark.parametrize("chosen", [None, False, True])
def test_what_is_read_restores_batch_invariance(chosen):
    def in_force() -> list[bool | None]:
        return [deep_gemm.is_batch_invariant(op) for op in ("bf16_gemm", "fp8_gemm", "summed_bf16_gemm")]

    try:
        deep_gemm.set_batch_invariant(chosen)
        before, saved = in_force(), deep_gemm.is_batch_invariant()
        assert saved is chosen
        for other in (True, False, None):
            deep_gemm.set_batch_invariant(other)
            deep_gemm.set_batch_invariant(saved)
            assert in_force() == before
    finally:
        deep_gemm.set_batch_invariant(None)


class Unprintable:
    def __repr__(self):
        raise KeyError


@pytest.mark.parametrize(
    "name", ["use_deterministic_algorithms", "set_ignore_compile_dims", "set_block_size_multiple_of"]
)
def test_messages_print_no_tensor_and_nothing_long(name):
    """The numbers of a tensor whose memory was freed ended the process."""
    tensor = torch.randn(8, 16)
    tensor.untyped_storage().resize_(0)
    for value in (tensor, (tensor, tensor), {tensor}, "x" * 1000, Unprintable()):
        with pytest.raises(ArgumentError, match="(is_enabled|value) = .*: must be a") as error:
            getattr(deep_gemm, name)(value)
        assert len(str(error.value)) < 200


@pytest.mark.parametrize("value", [8, (8, 16), [8], np.int64(8)], ids=repr)
def test_sizes_of_blocks_are_taken(value):
    assert deep_gemm.set_block_size_multiple_of(value) is None
    with pytest.raises(ArgumentError, match="value = .*: must be an int >= 1, or two of them"):
        deep_gemm.set_block_size_multiple_of((8, 8, 8) if value == 8 else 0)


@pytest.mark.parametrize(
    "setter, number", [("set_num_sms", 0), ("set_compile_mode", 0), ("set_mk_alignment_for_contiguous_layout", 128)]
)
def test_a_setting_is_no_tensor(setter, number):
    """To read one on a GPU would make the host wait."""
    for value in (torch.tensor(number), torch.tensor(bool(number))):
        with pytest.raises(ArgumentError, match=" = an object of type Tensor: must be an integer, and no tensor"):
            getattr(deep_gemm, setter)(value)
    getattr(deep_gemm, setter)(np.int64(number))
