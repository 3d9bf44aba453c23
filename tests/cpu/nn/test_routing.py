"""Where the rows of choices of experts lie, and how tokens get there and back."""

import pytest
import torch

from deep_gemm import errors
from deep_gemm.nn import Fp8Experts, Fp8GroupedLinear
from deep_gemm.nn.routing import nn_combine, nn_spread, place_contiguous, place_masked
from deep_gemm.quantize import align
from tests.cpu.nn.test_experts import EXPERTS, make_routing

pytestmark = pytest.mark.usefixtures("fresh_inputs")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_that_are_quantised_once_give_the_same_bits(dtype):
    """As rows that are copied first, also of wide rows apart and a choice of no expert; nothing asks for padding."""
    layer, x = Fp8GroupedLinear(3, 144, 48, trainable=False), torch.randn(70, 160).to(dtype)[:, :144]
    index = torch.randint(0, 3, (70, 2))
    index[5, 1] = -1
    rows, num_rows, ends = place_contiguous(index, 3)
    wanted = layer(nn_spread(x, rows, None, num_rows), ends)
    got = layer.forward_tokens(x, rows, num_rows, ends, 47)
    used = rows[rows < num_rows]
    assert got.shape == wanted.shape and got.dtype == wanted.dtype and len(used) == 139
    assert torch.equal(got[used], wanted[used]) and wanted[used].abs().amin(0).max() > 0
    hidden = torch.randn(num_rows, 288).to(dtype)
    plain, hinted = (layer(hidden, ends, is_swiglu=True, expected_m=given) for given in (None, 47))
    assert torch.equal(plain[used], hinted[used])


def test_forms_without_backward_say_so():
    layer, x = Fp8GroupedLinear(3, 48, 32), torch.randn(4, 48)
    rows, num_rows, ends = place_contiguous(torch.tensor([[0], [1], [2], [2]]), 3)
    for call in (
        lambda: layer.forward_tokens(x, rows, num_rows, ends, 2),
        lambda: layer(torch.randn(num_rows, 48), ends, expected_m=2),
    ):
        with pytest.raises(errors.ArgumentError, match="no backward; call under torch.no_grad"):
            call()
        with torch.no_grad():
            assert call().shape == (num_rows, 32)
    with pytest.raises(errors.ArgumentError, match="expected_m"), torch.no_grad():
        layer(torch.randn(num_rows, 48), ends, expected_m=1.5)


def test_rows_are_placed_without_overlap():
    index, _ = make_routing(50)
    contiguous, masked = place_contiguous(index, EXPERTS), place_masked(index, EXPERTS)
    assert contiguous.rows.unique().numel() == masked.rows.unique().numel() == 100
    assert contiguous.num_rows % 128 == 0 and contiguous.rows.max() < contiguous.num_rows
    counts = torch.bincount(index.flatten(), minlength=EXPERTS)
    assert masked.groups.tolist() == counts.tolist() and masked.groups.dtype == torch.int32
    starts = [0, *(align(end, 128) for end in contiguous.groups.tolist())]
    assert (contiguous.groups - torch.tensor(starts[:-1])).tolist() == counts.tolist()
    assert torch.equal(torch.bucketize(contiguous.rows, torch.tensor(starts[1:]), right=True), index)


def test_choices_of_no_expert_have_no_row():
    """Nor do they move the rows of others."""
    index = torch.tensor([[0, -1, 2], [3, 2, 2], [1 << 40, 0, 0]])
    contiguous, masked = place_contiguous(index, 3), place_masked(index, 3)
    assert contiguous.rows.tolist() == [[0, 384, 128], [384, 129, 130], [384, 1, 2]] and contiguous.num_rows == 384
    assert contiguous.groups.tolist() == [3, 128, 131]
    assert masked.rows.tolist() == [[0, 9, 6], [9, 7, 7], [9, 1, 1]] and masked.groups.tolist() == [2, 0, 2]


def test_choices_without_a_row_move_nothing():
    """In dtypes and sizes that have no kernel, too, forward and backward."""
    rows = torch.tensor([[1, 9], [-1, 0]])  # of three
    x, weights = torch.randn(2, 16, requires_grad=True), torch.rand(2, 2, requires_grad=True)
    y = torch.full((3, 16), torch.nan).index_copy(0, torch.tensor([0, 1]), torch.randn(2, 16)).requires_grad_()
    assert torch.equal(nn_spread(x, rows, None, 3), torch.stack([x[1], x[0], torch.zeros(16)]))
    assert torch.equal(nn_spread(x, rows, weights, 3)[:2], torch.stack([x[1] * weights[1, 1], x[0] * weights[0, 0]]))
    out, grad = nn_combine(y, rows, weights), torch.randn(2, 16)
    assert torch.equal(out, torch.stack([y[1] * weights[0, 0], y[0] * weights[1, 1]]))
    dy, dw = torch.autograd.grad(out, (y, weights), grad)
    assert torch.equal(dy, torch.stack([grad[1] * weights[1, 1], grad[0] * weights[0, 0], torch.zeros(16)]))
    assert torch.equal(
        dw, torch.stack([(y[1] * grad[0]).sum(), dw.new_zeros(()), dw.new_zeros(()), (y[0] * grad[1]).sum()]).view(2, 2)
    )
    (dx,) = torch.autograd.grad(nn_spread(x, rows, None, 3), x, y.detach())
    assert torch.equal(dx, torch.stack([y[1], y[0]]))


def test_choices_may_be_of_any_integers():
    layer, x = Fp8Experts(3, 48, 32), torch.randn(5, 48)
    index, weights = torch.randint(0, 3, (5, 2)), torch.rand(5, 2)
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.uint16, torch.uint32, torch.uint64):
        assert torch.equal(layer(x, index.to(dtype), weights), layer(x, index, weights))
    with pytest.raises(errors.ArgumentError, match=r"top_k_index: holds 3, must be experts 0..2"):
        layer(x, index.add(3).clamp(max=3).to(torch.uint32), weights)


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("tokens, top_k", [(5, 1), (5, 2), (0, 2)])
def test_a_column_of_choices_may_have_any_strides(trainable, tokens, top_k):
    """To torch, a column and nothing at all are contiguous with any strides."""
    layer, x = Fp8Experts(3, 48, 32, trainable=trainable), torch.randn(tokens, 48)
    index, weights = torch.randint(0, 3, (top_k, 5))[:, :tokens].t(), torch.rand(top_k, tokens).t()
    assert index.stride() == (1, 5)
    wanted = layer(x, torch.tensor(index.tolist()).view(tokens, top_k).long(), weights.clone())
    assert torch.equal(layer(x, index, weights), wanted)


def test_most_rows_that_any_routing_needs_fit():
    for tokens, top_k, experts in ((1, 1, 4), (3, 2, 3), (130, 2, 3)):
        index = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])
        placement = place_contiguous(index, experts)
        assert placement.rows.max() < placement.num_rows and placement.groups.max() <= placement.num_rows
