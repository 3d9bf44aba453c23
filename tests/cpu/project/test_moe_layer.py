"""The example's mixture-of-experts layer on the CPU: both forms and dtypes against the loop and a plain FP32 layer, and
where rows are placed.
"""

import json
import re

import pytest
import torch

import deep_gemm
from examples import moe_layer
from examples.moe_layer import Sizes, get_worst_diff, make_layer, place_contiguous, place_masked, run_grouped, run_loop

SIZES = Sizes(hidden=144, intermediate=80, experts=5, top_k=2, prefill_tokens=7, decode_tokens=3)
FORMS = [place_contiguous, place_masked]
ROUTING = torch.tensor([[3, 0], [3, 1], [0, 3], [3, 0]])  # experts 2 and 4 get nothing


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def widen(weights) -> torch.Tensor:
    """Return weights [experts, n, k] in FP32, FP8 ones with their scales."""
    if not isinstance(weights, tuple):
        return weights.float()
    values, scales = weights
    blocks = scales.repeat_interleave(128, 1).repeat_interleave(128, 2)
    return values.float() * blocks[:, : values.shape[1], : values.shape[2]]


def run_plainly(x: torch.Tensor, layer: moe_layer.Layer) -> torch.Tensor:
    """Return the layer in FP32: every expert on every token, the unchosen ones with weight 0."""
    scores = (x @ layer.router.t()).float().softmax(-1)
    gates = torch.zeros_like(scores).scatter(1, scores.topk(layer.top_k).indices, scores.topk(layer.top_k).values)
    gate, up = torch.einsum("th,enh->etn", x.float(), widen(layer.gate_up)).chunk(2, -1)
    out = torch.einsum("etn,ehn->eth", torch.nn.functional.silu(gate) * up, widen(layer.down))
    return torch.einsum("te,eth->th", gates / gates.sum(1, keepdim=True), out)


@pytest.mark.parametrize("place", FORMS)
@pytest.mark.parametrize(("dtype", "noise"), [("fp8", 5e-3), ("bf16", 5e-5)])
def test_both_forms_give_the_layers_output(dtype, noise, place):
    layer, x = make_layer(SIZES, dtype, "cpu"), torch.randn(7, SIZES.hidden).bfloat16()
    out = run_grouped(x, layer, place)
    assert out.shape == x.shape and out.dtype == torch.bfloat16
    assert get_worst_diff(out, run_loop(x, layer)) < 1e-5
    assert get_worst_diff(out, run_plainly(x, layer)) < noise


@pytest.mark.parametrize("place", FORMS)
def test_nothing_comes_from_rows_that_hold_no_token(monkeypatch, place):
    layer, x = make_layer(SIZES, "fp8", "cpu"), torch.randn(7, SIZES.hidden).bfloat16()
    expected = run_grouped(x, layer, place)
    for name in ("empty", "new_empty"):  # every byte 0xff is NaN
        owner = torch if name == "empty" else torch.Tensor
        make = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, make=make, **options: fill_with_ones(make(*args, **options)))
    assert torch.equal(run_grouped(x, layer, place), expected)


def fill_with_ones(tensor: torch.Tensor) -> torch.Tensor:
    """Set every bit of a tensor."""
    tensor.view(torch.uint8).fill_(0xFF)
    return tensor


def test_contiguous_rows_of_an_expert_start_at_the_alignment():
    alignment, placement = deep_gemm.get_mk_alignment_for_contiguous_layout(), place_contiguous(ROUTING, 5)
    assert placement.rows.unique().numel() == ROUTING.numel() and placement.shape == placement.groups.shape
    assert (
        torch.equal(placement.groups[placement.rows], ROUTING.int())
        and int((placement.groups >= 0).sum()) == ROUTING.numel()
    )
    assert [int(placement.rows[ROUTING.eq(expert)].min()) for expert in (0, 1, 3)] == [0, alignment, 2 * alignment]
    assert placement.rows[ROUTING == 3].tolist() == [2 * alignment + index for index in range(4)]


@pytest.mark.parametrize(
    "experts",
    [torch.tensor([[index] for index in range(5)]), torch.zeros(300, 1, dtype=torch.int64)],
    ids=["one each", "all to one"],
)
def test_any_routing_finds_room(experts):
    for placement in (place_contiguous(experts, 5), place_masked(experts, 5)):
        num_rows = int(torch.tensor(placement.shape).prod())
        assert placement.rows.unique().numel() == experts.numel() and int(placement.rows.max()) < num_rows


def test_masked_rows_of_an_expert_fill_its_room_from_the_start():
    placement = place_masked(ROUTING, 5)
    assert placement.groups.tolist() == [3, 1, 0, 4, 0] and placement.shape == (5, 4) and placement.expected_m == 2
    assert placement.rows.tolist() == [[12, 0], [13, 4], [1, 14], [15, 2]]


def test_a_wrong_row_shows_in_the_worst_token():
    x = torch.randn(100, 64)
    y = x.clone()
    y[17] *= 1.2
    assert get_worst_diff(x, x) == 0.0 and get_worst_diff(x, y) == pytest.approx(0.2**2 / (1 + 1.2**2))


def test_the_command_compares_both_forms_and_writes_its_figures(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(moe_layer, "SMALL", SIZES)
    assert moe_layer.main(["--out", str(tmp_path / "moe.json")]) == 0
    result = json.loads((tmp_path / "moe.json").read_text())
    assert [(row["dtype"], row["form"]) for row in result["rows"]] == [
        (dtype, form) for dtype in ("fp8", "bf16") for form in ("contiguous", "masked")
    ]
    assert all(row["is_right"] and row["grouped_us"] > 0 < row["loop_us"] for row in result["rows"])
    text = capsys.readouterr().out
    assert set(result["meta"]["kernel_hash"]) == set(moe_layer.OPS) and "5 experts" in text
    assert "times are those of the reference" in text and "nothing of the kernels" in text and "speed-up" not in text
    assert text.count("contiguous (prefill)") == text.count("masked (decode)") == 2 and not re.search(r"\dx\b", text)
    monkeypatch.setattr(moe_layer, "run_loop", lambda x, layer: 1.1 * run_loop(x, layer))
    assert moe_layer.main(["--experts", "3"]) == 1 and "WRONG" in capsys.readouterr().out


def test_only_times_of_kernels_are_compared(capsys):
    rows = [
        {"dtype": "fp8", "form": form, "tokens": 7, "grouped_us": 10.0, "loop_us": 25.0, "diff": 0.0, "is_right": True}
        for form in ("contiguous", "masked")
    ]
    moe_layer.show(rows, SIZES, "NVIDIA H200", "cuda")
    text = capsys.readouterr().out
    assert "speed-up" in text and text.count("2.50x") == 2 and "reference" not in text and "masked (decode)" in text
    widths = {len(line) for line in text.splitlines()[1:]}
    assert len(widths) == 1  # columns line up under their titles
