"""Overlap, sizes, values and hints of the grouped ops, and operands without memory."""

import numpy as np
import pytest
import torch

import deep_gemm
from deep_gemm.errors import ArgumentError, LayoutError, ShapeError
from tests.fakes.grouped_arguments import (
    BF16,
    BF16_CONTIGUOUS,
    BF16_MASKED,
    CONTIGUOUS,
    FP8,
    K_BF16,
    K_NT,
    K_TN,
    KS,
    MASKED,
    G,
    K,
    M,
    N,
    call,
    expect,
    int32,
    make_arguments,
    ones,
)
from tests.fakes.grouped_operands import OPS

# Overlap.


def overlapping(op, name, offset=0):
    """Return an operand and a D in its memory."""
    value, d = make_arguments(op)[name], make_arguments(op)["d"]
    memory = torch.zeros(max(value.nbytes, d.nbytes) + 4096, dtype=torch.uint8)
    shared = memory[offset : offset + d.nbytes].view(d.dtype).view(d.shape)
    return {name: memory[: value.nbytes].view(value.dtype).view(value.shape), "d": shared}


@pytest.mark.parametrize(
    "op, name",
    [(CONTIGUOUS, "a"), (CONTIGUOUS, "m_indices"), (MASKED, "b"), (MASKED, "masked_m"), (K_NT, "a"), (K_TN, "scale_b")],
)
def test_an_output_in_the_memory_of_an_input(op, name):
    expect(LayoutError, f"d overlaps {name} in memory: the output must be separate", op, **overlapping(op, name))


def test_an_output_that_overlaps_c_in_part():
    memory = torch.ones(G + 1, M, N)
    expect(
        LayoutError,
        "d overlaps c in memory: they must be the same tensor or separate",
        K_TN,
        d=memory[:G],
        c=memory[1:],
    )
    call(K_TN, d=memory[:G], c=memory[:G])
    assert memory[0, 0, 0] == 129 and memory[1, 0, 0] == 1 and memory[2, 0, 0] == 257 and memory[3, 0, 0] == 1


@pytest.mark.parametrize("op", [MASKED, BF16_MASKED])
def test_groups_of_d_may_lie_beside_one_another(op):
    d = torch.zeros(M, G, N, dtype=BF16).transpose(0, 1)
    call(op, d=d)
    assert d[2, M - 1, 0] == K and d[0, 4, 0] == K and d[0, 5, 0] == 0


def test_groups_of_b_may_be_one_matrix():
    d = make_arguments(CONTIGUOUS)["d"]
    call(CONTIGUOUS, b=ones(N, K, dtype=FP8).expand(G, N, K), d=d)
    assert d[0, 0] == K


# Sizes and values.


@pytest.mark.parametrize(
    "ks, error, message",
    [
        (
            int32(*KS),
            ArgumentError,
            r"ks = an object of type Tensor: must be a list or tuple of ints.*pass ks.tolist\(\)",
        ),
        (384, ArgumentError, r"ks = 384: must be a list or tuple"),
        ([128, 0.0, 256], ArgumentError, r"ks\[1\] = 0.0: must be an int within 0..2\^31 - 1"),
        ([128, True, 256], ArgumentError, r"ks\[1\] = True"),
        ([128, -128, 384], ArgumentError, r"ks\[1\] = -128: must be an int within"),
        ([1 << 80, 0, 0], ArgumentError, r"ks\[0\] = 1208"),
        ([128, None, 256], ArgumentError, r"ks\[1\] = None"),
        ([128, int32(0)[0], 256], ArgumentError, r"ks\[1\] = an object of type Tensor"),
        ([100, 28, 256], ShapeError, r"ks\[0\] = 100: must be a multiple of 128; pad that group with zeros along K"),
        ([128, 256], ShapeError, r"ks has 2 entries: must have one for each of the num_groups = 3 matrices of d"),
        ([], ShapeError, r"ks has 0 entries"),
    ],
)
@pytest.mark.parametrize("op", [K_NT, K_BF16])
def test_wrong_ks(op, ks, error, message):
    expect(error, message, op, ks=ks)


def test_ks_that_do_not_add_up():
    expect(
        ShapeError,
        "ks sum to 512 and a has sum_k = 384: must be equal; pass the K of every group",
        K_TN,
        ks=[256, 0, 256],
    )
    expect(ShapeError, r"a.shape = \[98304\]: must be \[m \* sum_k\] = \[131072\]", K_NT, ks=[256, 0, 256])


@pytest.mark.parametrize("ks", [tuple(KS), [np.int64(size) for size in KS]], ids=["tuple", "numpy"])
def test_what_ks_may_be(ks):
    d = torch.empty(G, M, N)
    call(K_TN, ks=ks, d=d)
    assert (d[0] == 128).all() and (d[1] == 0).all() and (d[2] == 256).all()


@pytest.mark.parametrize("hint", [-1, 2.5, None, "many", True, int32(3)[0]])
def test_what_is_no_hint(hint):
    expect(
        ArgumentError, r"expected_m = .*: must be an int >= 0, the rows of a group on average", MASKED, expected_m=hint
    )


@pytest.mark.parametrize("hint", [0, 7, M + 1, 1 << 80, np.int32(4)])
def test_hints_change_no_result(hint):
    d = make_arguments(MASKED)["d"].fill_(7)
    call(MASKED, expected_m=hint, d=d)
    assert (d[0, :5] == K).all() and (d[2] == K).all()


ROWS = [0] * 128 + [1] * 128
WRONG_VALUES = {
    "group": (
        CONTIGUOUS,
        {"m_indices": int32(*[3] * M)},
        r"m_indices\[0\] = 3: must be a group within 0..2, or -1 for padding",
    ),
    "negative": (
        CONTIGUOUS,
        {"m_indices": int32(*ROWS[:-1], -2)},
        r"m_indices\[255\] = -2: must be a group within 0..2",
    ),
    "two groups": (
        BF16_CONTIGUOUS,
        {"m_indices": int32(*[-1] * 4, *[0] * 60, *[1] * 192)},
        r"m_indices\[64\] = 1 and m_indices\[4\] = 0: rows of a block of 128 .*start every group at a mult",
    ),
    "many rows": (MASKED, {"masked_m": int32(1, M + 1, 0)}, r"masked_m\[1\] = 257: must be within 0..256 \(max_m\)"),
    "negative rows": (BF16_MASKED, {"masked_m": int32(1, 2, -1)}, r"masked_m\[2\] = -1: must be within 0..256"),
    "large ks": (
        K_NT,
        {"ks_tensor": int32(256, 0, 256)},
        "ks_tensor sums to 512 and a has sum_k = 384: must not be more",
    ),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_values_that_the_host_can_see(name):
    op, changes, message = WRONG_VALUES[name]
    expect(ArgumentError, message, op, **changes)


def test_groups_start_where_the_alignment_says():
    indices = int32(*[0] * 64, *[1] * 64, *[2] * 128)
    expect(ArgumentError, "rows of a block of 128", CONTIGUOUS, m_indices=indices)
    deep_gemm.set_mk_alignment_for_contiguous_layout(64)
    try:
        call(CONTIGUOUS, m_indices=indices)
    finally:
        deep_gemm.set_mk_alignment_for_contiguous_layout(128)


def test_the_last_block_of_rows_may_be_short():
    a, d = ones(200, K), torch.empty(200, N, dtype=BF16)
    call(BF16_CONTIGUOUS, a=a, d=d, m_indices=int32(*[1] * 128, *[2] * 70, -1, -1))
    assert (d[:198] == K).all() and (d[198:] == 0).all()


@pytest.mark.parametrize("alignment", [0, -8, 4, 12, 65544, 1 << 40, 128.0, "128", None, True])
def test_what_is_no_alignment(alignment):
    with pytest.raises(ArgumentError, match="alignment = "):
        deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128


@pytest.mark.parametrize("alignment", [8, 64, 384, 65536])
def test_alignments(alignment):
    try:
        deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
        getters = (
            deep_gemm.get_mk_alignment_for_contiguous_layout,
            deep_gemm.get_m_alignment_for_contiguous_layout,
            deep_gemm.get_k_alignment_for_contiguous_layout,
        )
        assert [getter() for getter in getters] == [alignment] * 3
    finally:
        deep_gemm.set_mk_alignment_for_contiguous_layout(128)


# Tensors without memory.


def on_meta(arguments: dict) -> dict:
    return {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


@pytest.mark.parametrize("op", OPS)
def test_meta_tensors_are_checked_and_nothing_else(op):
    arguments = on_meta(make_arguments(op))
    assert call(op, **arguments) is None
    with pytest.raises(ShapeError, match=r"b.shape" if op == K_NT else r"d.shape"):
        call(op, **(arguments | {"d": arguments["d"][..., :8]}))
    wide = torch.empty(*arguments["d"].shape[:-1], 146, dtype=arguments["d"].dtype, device="meta")
    with pytest.raises(LayoutError, match=r"d.stride\([01]\) = 146"):
        call(op, **(arguments | {"d": wide[..., :N]}))


def test_more_groups_than_there_can_be():
    many = 65536
    arguments = on_meta({"a": ones(128, 16), "d": ones(128, 16), "m_indices": torch.zeros(128, dtype=torch.int32)})
    with pytest.raises(
        ShapeError, match="num_groups = 65536: must be at most 65535; split the groups among several calls"
    ):
        call(BF16_CONTIGUOUS, **arguments, b=torch.empty(many, 16, 16, dtype=BF16, device="meta"))


def test_sizes_beyond_31_bits():
    b, d = (torch.empty(shape, dtype=BF16, device="meta") for shape in ((G, 16, 16), (1 << 31, 16)))
    a, indices = (
        torch.empty(1 << 31, 16, dtype=BF16, device="meta"),
        torch.empty(1 << 31, dtype=torch.int32, device="meta"),
    )
    with pytest.raises(ShapeError, match=r"m = 2147483648: sizes must be below 2\^31; split the product along m"):
        call(BF16_CONTIGUOUS, a=a, b=b, d=d, m_indices=indices)


@pytest.mark.parametrize("op", OPS)
def test_without_groups_nothing_happens(op):
    arguments = make_arguments(op)
    with_groups = [name for name, value in arguments.items() if isinstance(value, torch.Tensor) and value.shape[0] == G]
    empty = {name: arguments[name][:0] for name in with_groups}
    if op.startswith("k_grouped"):
        empty = {
            name: value[..., :0] if op == K_NT else value[:0]
            for name, value in arguments.items()
            if name not in ("d", "ks")
        }
        empty |= {"d": arguments["d"][:0], "ks": []}
    assert call(op, **empty) is None
