"""What functions in Python ask of their arguments, and how messages name them."""

import numpy as np
import pytest
import torch

from deep_gemm import arguments, operands
from deep_gemm.errors import ArgumentError


@pytest.mark.parametrize("value", [True, torch.tensor(3), 2.0, "3", None, -1, 1 << 31])
def test_what_is_no_integer(value):
    with pytest.raises(ArgumentError, match="size = "):
        arguments.check_integer("size", value)


@pytest.mark.parametrize("values", ["12", b"12", {1, 2}, 3, [1, True], [1, [2]]])
def test_what_is_no_list_of_integers(values):
    with pytest.raises(ArgumentError, match="sizes"):
        arguments.check_integers("sizes", values)


def test_tensors_are_named_and_not_printed_wherever_they_are():
    endless: list = []
    endless.append(endless)
    tensor = torch.ones(3)
    within = [tensor], (1, [tensor]), {"x": tensor}, {tensor: 1}, {tensor}, [[[[tensor]]]], [[[[[tensor]]]]]
    for value in (tensor, *within, endless):
        assert arguments.shorten(value) == f"an object of type {type(value).__name__}"
    for value in (3, "x", [1, 2], {"x": (1, 2)}, None):
        assert arguments.shorten(value) == ascii(value)


def test_freed_memory_is_told_from_none():
    tensor, empty = torch.ones(3), torch.ones(0)
    views = [tensor[1:], tensor.view(3, 1), torch.nn.Parameter(tensor)]
    assert not any(map(operands.is_freed, [tensor, empty, *views, torch.ones(3, device="meta")]))
    tensor.untyped_storage().resize_(0)
    assert all(map(operands.is_freed, [tensor, *views])) and not operands.is_freed(empty)
    with pytest.raises(ArgumentError, match="x: a tensor without memory"):
        operands.check_tensor("x", tensor)
    assert not operands.is_freed(torch.func.vmap(lambda x: x)(torch.ones(2, 2)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_whatever_their_layout():
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=layout)
        with pytest.raises(ArgumentError, match="x: a tensor without plain strided numbers"):
            operands.check_tensor("x", nested)


def test_integers_are_told_from_everything_else():
    class Raises:
        def __index__(self):
            raise KeyError

    assert arguments.to_integer(7) == arguments.to_integer(np.int64(7)) == 7
    for value in (True, np.bool_(True), 7.0, "7", None, torch.tensor(7), Raises()):
        assert arguments.to_integer(value) is None
