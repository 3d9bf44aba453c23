"""A layer of experts across processes: its results, what it refuses, and the memory that processes share."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import deep_gemm
from deep_gemm import quantize
from deep_gemm.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from deep_gemm.mega import buffer as memory
from deep_gemm.mega import dispatch, layer
from tests.gpu.mega_operands import (
    FakeGroup,
    choose,
    fill,
    find_difference,
    link_buffers,
    make_weights,
    multiply_experts,
    prepare,
    run_together,
)

EXPERTS, HIDDEN, INTERMEDIATE, TOP_K = 6, 256, 128, 3


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def run_layer(num_ranks: int, tokens: list[int], room: int, limit: float | None = None) -> None:
    """Run the layer twice on so many processes, each with its tokens, and compare."""
    buffers = link_buffers(num_ranks, EXPERTS, room, TOP_K, HIDDEN, INTERMEDIATE)
    layers, local = make_weights(EXPERTS, HIDDEN, INTERMEDIATE), EXPERTS // num_ranks
    weights = [prepare(layers, slice(rank * local, (rank + 1) * local)) for rank in range(num_ranks)]
    stats = torch.zeros(EXPERTS, dtype=torch.int32).view(num_ranks, local)
    wanted_stats = torch.zeros(EXPERTS, dtype=torch.int64)
    for counts in (tokens, tokens[::-1]):
        inputs = [(torch.randn(count, HIDDEN).bfloat16(), *choose(count, EXPERTS, TOP_K)) for count in counts]

        def run(buffer, inputs=inputs):
            x, chosen, factors = inputs[buffer.rank]
            fill(buffer, x, chosen, factors)
            y = torch.full((len(x), HIDDEN), torch.nan, dtype=torch.bfloat16)
            deep_gemm.fp8_mega_moe(
                y, *weights[buffer.rank], buffer, stats[buffer.rank], recipe=(128, 128, 128), activation="swiglu",
                activation_clamp=limit, fast_math=True,
            )  # fmt: skip
            return y

        for y, (x, chosen, factors) in zip(run_together(buffers, run), inputs, strict=True):
            wanted = multiply_experts(x, chosen, factors, layers, limit)
            assert torch.allclose(y.float(), wanted, rtol=2.0**-6, atol=2.0**-6)
            wanted_stats += torch.bincount(chosen[chosen >= 0].long(), minlength=EXPERTS)
    assert stats.flatten().tolist() == wanted_stats.tolist()


@pytest.mark.parametrize("num_ranks, tokens, room", [(1, [37], 40), (3, [5, 0, 9], 16)])
def test_the_sums_of_every_token(num_ranks, tokens, room):
    """Processes with fewer tokens than others or none; the second step has fewer of them than the first."""
    run_layer(num_ranks, tokens, room)


def test_many_tokens_take_turns(monkeypatch):
    """In parts whose rows fit, with a limit of gates and ups."""
    monkeypatch.setattr(memory, "MOST_CHOICES", 2 * TOP_K * 8)
    assert link_buffers(2, EXPERTS, 20, TOP_K, HIDDEN, INTERMEDIATE)[0].tokens_at_once == 8
    run_layer(2, [20, 11], 20, limit=0.5)


def test_the_weights_of_the_first_layer_lie_in_turn():
    pairs = [deep_gemm.per_block_cast_to_fp8(one, False) for one in make_weights(2, 256, 128)]
    (data, scales), second = deep_gemm.transform_weights_for_mega_moe_sm90(*pairs)
    given = pairs[0][0].float()
    assert torch.equal(data.float()[:, 16:24], given[:, 8:16]) and torch.equal(
        data.float()[:, 24:32], given[:, 136:144]
    )
    blocks = pairs[0][1]
    assert second is pairs[1] and scales.shape == (2, 256, 2) and scales.stride(1) == 1
    assert torch.equal(scales[:, :8], blocks[:, :1].expand(-1, 8, -1))
    assert torch.equal(scales[:, 8:16], blocks[:, 1:].expand(-1, 8, -1))
    with pytest.raises(ShapeError, match=r"shape = \[2, 256, 2\]: are those of rows"):
        deep_gemm.transform_weights_for_mega_moe_sm90((data, scales), second)


def test_weights_that_are_replaced_in_place_count():
    """Also where nothing tells that they were, as loaders write them; of blocks, as SGLang passes them."""
    call, stats = make_call(), torch.zeros(4, dtype=torch.int32)
    fill(call["sym_buffer"], torch.randn(4, 256).bfloat16(), torch.zeros(4, 2).int(), torch.ones(4, 2))
    deep_gemm.fp8_mega_moe(**call)
    before, (data, rows) = call["y"].clone(), call["l1_weights"]
    blocks = rows.unflatten(1, (-1, 2, 8))[:, ::16, :, 0].transpose(1, 2).flatten(1, 2).contiguous()
    call["l1_weights"] = data, blocks
    deep_gemm.fp8_mega_moe(**call)
    assert torch.equal(call["y"], before)
    blocks.data.mul_(0.5)
    deep_gemm.fp8_mega_moe(**call, cumulative_local_expert_recv_stats=stats)
    assert not torch.equal(call["y"], before) and stats.tolist() == [8, 0, 0, 0]


def test_a_buffer_has_room_for_what_any_routing_needs():
    """All tokens of all processes choose the experts of one, and a token one of them twice."""
    buffers = link_buffers(2, 4, 100, 2, 128, 128)
    for buffer in buffers:
        buffer.topk_idx.copy_(torch.tensor([2, 3]))
        buffer.topk_idx[7] = 3
    routing = dispatch.place(dispatch.read_choices(buffers[1], 0, 100), 0, 4)
    assert routing.counts.tolist() == [0, 0, 198, 202]
    rows, _, ends = dispatch.pull(buffers[1], routing)
    assert ends.tolist() == [198, 256 + 202] and ends[-1] <= len(rows) == buffers[1].num_rows


def test_the_tensors_of_a_buffer():
    buffer = deep_gemm.get_symm_buffer_for_sm90_mega_moe(FakeGroup(0, 1), 4, 100, 2, 128, 128)
    assert buffer.num_max_tokens_per_rank == 128
    assert buffer.topk_idx.eq(-1).all() and buffer.x.shape == (128, 128) and buffer.x_sf.shape == (128, 1)
    assert buffer.topk_weights.dtype is torch.float32 and buffer.topk_idx.dtype is torch.int64
    buffer.destroy()
    assert buffer.handle is None and not hasattr(buffer, "x")


def test_a_gpu_does_not_wait_for_ever():
    """Unless it is told to; the limit of a meeting is the one that the buffer has then."""
    asked = []
    handle = SimpleNamespace(barrier=lambda channel, timeout_ms: asked.append((channel, timeout_ms)))
    buffer = memory.SymmBuffer(FakeGroup(0, 1), 4, 8, 2, 256, 128)
    buffer.handle = handle
    for seconds in (buffer.timeout_s, 0.5, None):
        buffer.timeout_s = seconds
        assert buffer.timeout_s == seconds
        buffer.meet(memory.MADE)
    assert asked == [(memory.MADE, 600_000), (memory.MADE, 500), (memory.MADE, 0)]
    assert memory.SymmBuffer(FakeGroup(0, 1), 4, 8, 2, 256, 128, timeout_s=7).timeout_s == 7


@pytest.mark.parametrize("seconds", [0, -1, 1e-4, float("nan"), float("inf"), True, "9"])
def test_times_that_nobody_waits(seconds):
    buffer = memory.SymmBuffer(FakeGroup(0, 1), 4, 8, 2, 256, 128)
    with pytest.raises(ArgumentError, match="timeout_s = .*: must be from 0.001 to 1000000 seconds; pass None"):
        buffer.timeout_s = seconds
    assert buffer.timeout_s == 600


def test_casts_into_a_buffer_are_those_of_tokens():
    buffer = memory.SymmBuffer(FakeGroup(0, 1), 4, 8, 2, 256, 128)
    x, (chosen, weights) = torch.randn(5, 256).bfloat16(), choose(5, 4, 2)
    buffer.topk_idx.fill_(3)
    deep_gemm.mega_moe_pre_dispatch_sm90(
        x, chosen, weights, buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, 5, routed_scaling_factor=2.5
    )
    data, scales = quantize.per_token_cast_to_fp8(x, False)
    assert torch.equal(buffer.x[:5].float(), data.float()) and torch.equal(buffer.x_sf[:5], scales)
    assert torch.equal(buffer.topk_weights[:5], weights * 2.5)
    assert buffer.topk_idx[:5].tolist() == chosen.tolist() and buffer.topk_idx[5:].eq(-1).all()


SIZES = {"num_experts": 4, "num_max_tokens_per_rank": 8, "num_topk": 2, "hidden": 256, "intermediate_hidden": 128}


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"num_experts": 3}, ShapeError, "num_experts = 3: must be a multiple of the 2 processes"),
        ({"num_topk": 33}, ShapeError, "num_topk = 33: must be at most 32"),
        ({"hidden": 200}, ShapeError, "hidden = 200: must be a multiple of 128"),
        ({"num_max_tokens_per_rank": 0}, ArgumentError, "num_max_tokens_per_rank = 0"),
        ({"activation": "gelu"}, ArgumentError, "activation = 'gelu'"),
        ({"num_shared_experts": 1}, ArgumentError, "num_shared_experts = 1"),
        ({"mma_type": "fp4xfp4"}, ArgumentError, "mma_type = 'fp4xfp4': no layer of SM90 has it; pass None or"),
        ({"group": None}, ArgumentError, "group = None: must be a process group"),
    ],
)
def test_sizes_that_no_buffer_has(changed, error, message):
    with pytest.raises(error, match=message):
        deep_gemm.get_symm_buffer_for_mega_moe(**{"group": FakeGroup(0, 2), **SIZES, **changed})


def make_call() -> dict:
    """Return the arguments of a call that is right."""
    buffer = memory.SymmBuffer(FakeGroup(0, 1), *SIZES.values())
    l1, l2 = prepare(make_weights(4, 256, 128))
    return {"y": torch.zeros(4, 256, dtype=torch.bfloat16), "l1_weights": l1, "l2_weights": l2, "sym_buffer": buffer}


def view_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return four int32 in the memory of a tensor."""
    return tensor.view(-1).view(torch.uint8)[:16].view(torch.int32)


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda call: {"y": call["y"].float()}, DtypeError, "y.dtype = torch.float32"),
        (lambda call: {"y": call["y"][:, :128]}, ShapeError, r"y.shape = \[4, 128\]"),
        (lambda call: {"y": torch.zeros(9, 256, dtype=torch.bfloat16)}, ShapeError, r"\[9, 256\]: .* at most 8"),
        (lambda call: {"y": torch.zeros(4, 512, dtype=torch.bfloat16)[:, ::2]}, LayoutError, "y.stride()"),
        (lambda call: {"l1_weights": call["l2_weights"]}, ShapeError, r"l1_weights.shape = \[4, 256, 128\]"),
        (lambda call: {"l1_weights": call["l1_weights"][0]}, ArgumentError, "l1_weights = .*: must be a pair"),
        (
            lambda call: {"l1_weights": tuple(one[:2] for one in call["l1_weights"]),
                          "l2_weights": tuple(one[:2] for one in call["l2_weights"])},
            ShapeError, r"l2_weights.shape = \[2, 256, 128\]: must be \[4, 256, 128\]",
        ),
        (lambda call: {"sym_buffer": None}, ArgumentError, "sym_buffer = None"),
        (lambda call: {"recipe": (1, 1, 32)}, ArgumentError, r"recipe = \(1, 1, 32\)"),
        (lambda call: {"activation": "gelu"}, ArgumentError, "activation = 'gelu'"),
        (lambda call: {"activation_clamp": -1.0}, ArgumentError, "activation_clamp = -1.0"),
        (lambda call: {"cumulative_local_expert_recv_stats": torch.zeros(4)}, DtypeError, "stats.dtype = "),
        (
            lambda call: {"cumulative_local_expert_recv_stats": torch.zeros(3).int()}, ShapeError,
            r"stats.shape = \[3\]: must be \[4\]",
        ),
        (
            lambda call: {"cumulative_local_expert_recv_stats": torch.zeros(1).int().expand(4)}, LayoutError,
            "must be contiguous",
        ),
        *(
            (lambda call, find=find: {"cumulative_local_expert_recv_stats": view_numbers(find(call))}, LayoutError,
             f"stats overlaps {name} in memory: they must be separate")
            for name, find in {
                "y": lambda call: call["y"],
                "the buffer": lambda call: call["sym_buffer"].topk_weights,
                "l1_weights": lambda call: call["l1_weights"][0],
                "l2_weights": lambda call: call["l2_weights"][1],
            }.items()
        ),
    ],
)  # fmt: skip
def test_calls_that_are_refused(change, error, message):
    """Before anything is written."""
    call = make_call()
    call["sym_buffer"].topk_idx.fill_(1)
    with pytest.raises(error, match=message):
        deep_gemm.fp8_mega_moe(**{**call, **change(call)})
    assert call["sym_buffer"].topk_idx.eq(1).all()


def test_another_alignment_than_that_of_the_buffer_is_refused():
    call = make_call()
    deep_gemm.set_mk_alignment_for_contiguous_layout(256)
    try:
        with pytest.raises(ArgumentError, match="alignment = 256: the buffer was made with 128"):
            deep_gemm.fp8_mega_moe(**call)
    finally:
        deep_gemm.set_mk_alignment_for_contiguous_layout(128)
    deep_gemm.fp8_mega_moe(**call)


def test_a_buffer_whose_step_did_not_end_is_refused(monkeypatch):
    """The processes would meet at different steps, and read rows that are not made yet."""
    call = make_call()
    with monkeypatch.context() as patch:
        patch.setattr(layer, "multiply_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            deep_gemm.fp8_mega_moe(**call)
    with pytest.raises(ArgumentError, match="a step of it did not end"):
        deep_gemm.fp8_mega_moe(**call)


def test_inference_mode_in_parts_and_tensors_that_require_grad():
    """Buffers and weights that are made in it, and used outside; router weights with a graph."""
    with torch.inference_mode():
        call, stats = make_call(), torch.zeros(4, dtype=torch.int32)
    call["y"] = torch.zeros(4, 256, dtype=torch.bfloat16)
    x, weights = torch.randn(4, 256, requires_grad=True), torch.ones(4, 2, requires_grad=True)
    fill(call["sym_buffer"], x.bfloat16(), torch.zeros(4, 2).int(), weights)
    deep_gemm.fp8_mega_moe(**call, cumulative_local_expert_recv_stats=stats)
    assert call["y"].any() and stats.tolist() == [8, 0, 0, 0] and not call["sym_buffer"].x_sf.requires_grad


def test_compile_mode_writes_nothing():
    call, stats = make_call(), torch.zeros(4, dtype=torch.int32)
    buffer = call["sym_buffer"]
    buffer.topk_idx.fill_(1)
    before = buffer.buffer.clone()
    deep_gemm.set_compile_mode(True)
    try:
        fill(buffer, torch.randn(4, 256).bfloat16(), torch.zeros(4, 2).int(), torch.ones(4, 2))
        deep_gemm.fp8_mega_moe(**call, cumulative_local_expert_recv_stats=stats)
    finally:
        deep_gemm.set_compile_mode(False)
    assert torch.equal(buffer.buffer, before) and not call["y"].any() and not stats.any()


def test_tokens_behind_the_last_one_choose_nobody():
    """A buffer that is filled by hand, after a step of more tokens."""
    call, stats = make_call(), torch.zeros(4, dtype=torch.int32)
    call["sym_buffer"].topk_idx.copy_(torch.tensor([0, 3]))
    deep_gemm.fp8_mega_moe(**call, cumulative_local_expert_recv_stats=stats)
    assert stats.tolist() == [4, 0, 0, 4]


def test_a_buffer_that_was_destroyed_is_refused():
    call = make_call()
    call["sym_buffer"].destroy()
    with pytest.raises(ArgumentError, match="given back by destroy"):
        deep_gemm.fp8_mega_moe(**call)


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"x": torch.zeros(4, 256)}, DtypeError, "x, topk_weights = torch.float32"),
        ({"topk_idx": torch.zeros(4, 2)}, DtypeError, "topk_idx.dtype = torch.float32"),
        ({"topk_idx": torch.zeros(4, 3).int()}, ShapeError, r"topk_idx.shape = \[4, 3\]: must be \[4, 2\]"),
        ({"num_tokens": 5}, ShapeError, r"x.shape = \[4, 256\]: must be \[5, 256\]"),
        ({"group_size": 32}, ArgumentError, "group_size = 32"),
        ({"routed_scaling_factor": "2"}, ArgumentError, "routed_scaling_factor = '2'"),
        ({"buf_x": None}, ArgumentError, "buf_x = NoneType"),
        ({"buf_x": torch.zeros(8, 256).bfloat16()}, DtypeError, "buf_x.dtype = torch.bfloat16"),
        ({"buf_x_sf": torch.zeros(4, 2)}, ShapeError, r"buf_x_sf.shape = \[4, 2\]: must be \[8, 2\]"),
        ({"buf_topk_idx": torch.zeros(8, 2).int()}, DtypeError, "buf_topk_idx.dtype = torch.int32"),
        ({"buf_topk_weights": torch.zeros(8, 3)}, ShapeError, r"buf_topk_weights.shape = \[8, 3\]"),
        ({"buf_topk_weights": torch.zeros(2, 8).t()}, LayoutError, "must be a contiguous matrix"),
    ],
)
def test_tokens_that_are_refused(changed, error, message):
    buffer = memory.SymmBuffer(FakeGroup(0, 1), *SIZES.values())
    given = {
        "x": torch.zeros(4, 256).bfloat16(), "topk_idx": torch.zeros(4, 2).int(), "topk_weights": torch.zeros(4, 2),
        "buf_x": buffer.x, "buf_x_sf": buffer.x_sf, "buf_topk_idx": buffer.topk_idx,
        "buf_topk_weights": buffer.topk_weights, "num_tokens": 4,
    }  # fmt: skip
    with pytest.raises(error, match=message):
        deep_gemm.mega_moe_pre_dispatch_sm90(**{**given, **changed})
    assert buffer.topk_idx.eq(-1).all()


def _run_process(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    torch.manual_seed(5)
    layers = make_weights(EXPERTS, HIDDEN, INTERMEDIATE)
    inputs = [(torch.randn(n, HIDDEN).bfloat16(), *choose(n, EXPERTS, TOP_K)) for n in (7, 4)]
    buffer = deep_gemm.get_symm_buffer_for_mega_moe(
        dist.group.WORLD, EXPERTS, 8, TOP_K, HIDDEN, INTERMEDIATE, use_fp8_dispatch=True, activation="swiglu"
    )
    fill(buffer, *inputs[rank])
    y = torch.full((len(inputs[rank][0]), HIDDEN), torch.nan, dtype=torch.bfloat16)
    deep_gemm.fp8_mega_moe(y, *prepare(layers, slice(3 * rank, 3 * rank + 3)), buffer)
    assert torch.allclose(y.float(), multiply_experts(*inputs[rank], layers), rtol=2.0**-6, atol=2.0**-6)
    dist.destroy_process_group()


@pytest.mark.full
def test_two_processes(tmp_path):
    """Memory that is exchanged by the process group, as without GPUs."""
    torch.multiprocessing.spawn(_run_process, (str(tmp_path),), nprocs=2)


def test_what_the_gpu_suite_takes_for_right():
    """Noise of FP8 sums, but no wrong choice of one token among many."""
    torch.manual_seed(1)
    wanted = torch.randn(1000, 256)
    assert find_difference((wanted * 1.01).bfloat16(), wanted) == ""
    wrong = wanted.clone()
    wrong[7] *= 1.5
    assert "of a row 0.07" in find_difference(wrong, wanted)
    wrong[7] = torch.nan
    assert find_difference(wrong, wanted) == "not finite"
