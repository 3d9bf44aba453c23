"""Tensor maps, grid and arguments of the kernels of attention logits, as the (stub) driver receives them."""

import struct

import pytest
import torch

from deep_gemm import _C, stream
from deep_gemm.errors import ArgumentError
from tests.fakes.cuda_tensors import make_tensor, use_fakes
from tests.fakes.stub_driver import load_kernel, select

FP8, FP32, INT, BYTES = "float8_e4m3fn", "float32", "int32", "uint8"
Q, KEYS, SCALES, WEIGHTS, FIRST, SECOND, D, SCHEDULE = (16 << 20 | number << 12 for number in range(8))
#: The twin of MqaParams in deep_gemm/include/deep_gemm/mqa_types.cuh.
PARAMS = struct.Struct("<QQQQQqqqIIIIII8x")
NAMES = ("first", "second", "schedule", "unused", "out", "out_pitch", "lengths_stride", "table_stride", "num_tokens",
         "columns", "num_kv", "num_slots", "flags", "zero")  # fmt: skip
UINT8_TYPE, FLOAT_TYPE = 0, 7


def view(address: int, dtype: str, *shape: int, pitch: int = 0) -> "_C.TensorView":
    """Describe a tensor with contiguous rows, of a matrix at `pitch` elements."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    if pitch:
        strides[0] = pitch
    return _C.TensorView(address, list(shape), strides, dtype)


def launch_prefill(config: tuple, tokens: int, n: int, heads: int, head_dim: int, is_clean: bool = False) -> None:
    problem = _C.Problem("fp8_mqa_logits", 1, 1, head_dim, heads=heads, d_dtype="fp32")
    load_kernel(_C.Config(*config), problem=problem).launch_logits(
        view(Q, FP8, tokens, heads, head_dim), view(KEYS, FP8, n, head_dim, pitch=head_dim + 16),
        view(SCALES, FP32, n), view(WEIGHTS, FP32, tokens, heads, pitch=heads + 4), view(FIRST, INT, tokens),
        view(SECOND, INT, tokens), view(D, FP32, tokens, n, pitch=n + 7), stream=5, is_clean=is_clean,
    )  # fmt: skip


def launch_paged(
    config: tuple, sequences: int, next_n: int, heads: int, head_dim: int, block_kv: int, pitch: int = 0
) -> None:
    problem = _C.Problem("fp8_paged_mqa_logits", next_n, 1, head_dim, heads=heads, next_n=next_n, block_kv=block_kv)
    load_kernel(_C.Config(*config), problem=problem).launch_logits(
        view(Q, FP8, sequences, next_n, heads, head_dim, pitch=pitch),
        view(KEYS, BYTES, 90, block_kv, 1, head_dim + 4), None,
        view(WEIGHTS, FP32, sequences * next_n, heads), view(FIRST, INT, sequences, next_n, pitch=next_n + 3),
        view(SECOND, INT, sequences, 11, pitch=12), view(D, "bfloat16", sequences * next_n, 600, pitch=640),
        schedule=view(SCHEDULE, INT, 67, 2), is_clean=True, num_sms=100, stream=5,
    )  # fmt: skip


def read_launch(events: list) -> tuple[dict, list, dict]:
    """Return (launch, its maps, its parameters)."""
    maps = {event["map"]: event for event in select(events, "TensorMapEncodeTiled")}
    (launch,) = select(events, "LaunchKernelEx")
    params = dict(zip(NAMES, PARAMS.unpack(bytes.fromhex(launch["logits"])), strict=True))
    assert all(event["valid"] for event in maps.values())
    return launch, [maps[number] for number in launch["maps"]], params


@pytest.mark.parametrize("head_dim, swizzle", [(32, 1), (64, 2), (128, 3)])
@pytest.mark.parametrize("is_clean", [False, True])
def test_prefill(driver, head_dim, swizzle, is_clean):
    _, events = driver.call(launch_prefill, (4, 128, 6), 37, 500, 24, head_dim, is_clean)
    launch, (q, keys, scales, weights), params = read_launch(events)
    assert (q["address"], q["dims"], q["box"]) == (Q, [head_dim, 2, 37, 12], [head_dim, 2, 4, 12])
    assert q["strides"] == [head_dim, 24 * head_dim, 2 * head_dim] and q["swizzle"] == keys["swizzle"] == swizzle
    assert (keys["address"], keys["dims"], keys["groups"], keys["box"]) == (KEYS, [head_dim, 500], 1, [head_dim, 64])
    assert keys["pitch"] == head_dim + 16 and q["type"] == keys["type"] == UINT8_TYPE
    assert (scales["address"], scales["dims"], scales["box"]) == (SCALES, [500, 1], [64, 1])
    assert (weights["address"], weights["dims"], weights["box"]) == (WEIGHTS, [24, 37], [24, 4])
    assert weights["pitch"] == 4 * 28 and scales["type"] == weights["type"] == FLOAT_TYPE
    assert params == dict.fromkeys(NAMES, 0) | {
        "first": FIRST, "second": SECOND, "out": D, "out_pitch": 507, "num_tokens": 37, "columns": 500, "num_kv": 500,
        "flags": int(is_clean),
    }  # fmt: skip
    problem = _C.Problem("fp8_mqa_logits", 1, 1, head_dim, heads=24, d_dtype="fp32")
    assert launch["block"] == [384, 1, 1] and launch["smem"] == _C.smem_bytes(problem, _C.Config(4, 128, 6))
    assert launch["stream"] == 5 and launch["cluster"] == 0 and launch["grid"] == [80, 1, 1]  # 10 x 8 tiles


@pytest.mark.parametrize("block_kv", [32, 64])
def test_paged(driver, block_kv):
    _, events = driver.call(launch_paged, (2, 192, 9), 300, 6, 64, 128, block_kv)
    launch, (q, keys, scales, weights), params = read_launch(events)
    page = block_kv * 132
    assert (q["dims"], q["box"], q["strides"]) == ([128, 2, 1800, 32], [128, 2, 2, 32], [128, 64 * 128, 256])
    assert (keys["dims"], keys["groups"], keys["box"]) == ([128, block_kv], 90, [128, block_kv])
    assert (keys["pitch"], keys["group_pitch"]) == (128, page)
    assert (scales["address"], scales["dims"]) == (KEYS + block_kv * 128, [block_kv, 90])
    assert scales["pitch"] == page and scales["box"] == [block_kv, 1]
    assert (weights["dims"], weights["box"]) == ([64, 1800], [64, 2])
    assert params == dict.fromkeys(NAMES, 0) | {
        "first": FIRST, "second": SECOND, "schedule": SCHEDULE, "out": D, "out_pitch": 640, "lengths_stride": 9,
        "table_stride": 12, "num_tokens": 1800, "columns": 600, "num_kv": 11, "num_slots": 66, "flags": 5,
    }  # fmt: skip
    assert launch["block"] == [512, 1, 1] and launch["grid"] == [100, 1, 1]


def test_sequences_of_one_token_lie_where_they_like(driver):
    _, events = driver.call(launch_paged, (1, 192, 9), 300, 1, 64, 128, 64, 160_000)
    _, (q, *_), _ = read_launch(events)
    assert (q["dims"], q["strides"]) == ([128, 2, 300, 32], [128, 160_000, 256])


def refuse_other_operands() -> list[str]:
    """Return the messages of launches that the kernel was not made for."""
    messages = []
    for arguments in (((4, 128, 6), 37, 500, 24, 64), ((4, 128, 6), 37, 500, 32, 128)):
        problem = _C.Problem("fp8_mqa_logits", 1, 1, 128, heads=24, d_dtype="fp32")
        kernel = load_kernel(_C.Config(*arguments[0]), problem=problem)
        _, tokens, n, heads, head_dim = arguments
        try:
            kernel.launch_logits(
                view(Q, FP8, tokens, heads, head_dim), view(KEYS, FP8, n, head_dim), view(SCALES, FP32, n),
                view(WEIGHTS, FP32, tokens, heads), view(FIRST, INT, tokens), view(SECOND, INT, tokens),
                view(D, FP32, tokens, n), stream=5,
            )  # fmt: skip
        except ArgumentError as error:
            messages.append(str(error))
    return messages


def test_a_kernel_refuses_other_heads(driver):
    messages, events = driver.call(refuse_other_operands)
    assert [message.partition(":")[0] for message in messages] == ["head_dim = 64", "heads = 32"]
    assert not select(events, "LaunchKernelEx")


def launch_without_keys(num_pages: int, pages_of_a_sequence: int, is_clean: bool) -> list:
    """Return what was filled, where no sequence has a key."""
    filled: list = []
    stream.fill_with_infinity = lambda d, handle: filled.append((d.data_ptr(), list(d.shape), handle))
    problem = _C.Problem("fp8_paged_mqa_logits", 2, 1, 64, heads=8, next_n=2, block_kv=64)
    use_fakes()
    d = make_tensor(D, (6, 600), torch.bfloat16, (640, 1))
    load_kernel(_C.Config(2, 128, 6), problem=problem).launch_logits(
        view(Q, FP8, 3, 2, 8, 64), view(KEYS, BYTES, num_pages, 64, 1, 68), None, view(WEIGHTS, FP32, 6, 8),
        view(FIRST, INT, 3), view(SECOND, INT, 3, pages_of_a_sequence), d, schedule=view(SCHEDULE, INT, 67, 2),
        is_clean=is_clean, stream=5,
    )  # fmt: skip
    return filled


@pytest.mark.parametrize("sizes", [(0, 11), (90, 0)])
@pytest.mark.parametrize("is_clean", [False, True])
def test_without_keys_nothing_is_launched_and_what_is_clean_is_infinite(driver, sizes, is_clean):
    filled, events = driver.call(launch_without_keys, *sizes, is_clean)
    assert not select(events, "LaunchKernelEx")
    assert filled == ([(D, [6, 600], 5)] if is_clean else [])
