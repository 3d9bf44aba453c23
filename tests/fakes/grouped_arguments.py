"""Valid arguments of the grouped ops, by name, and calls with one of them changed."""

import pytest
import torch

import deep_gemm

FP8, BF16, FP32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
M, N, K, G = 256, 144, 272, 3
STEPS, BLOCKS = 3, 2
KS = [128, 0, 256]
SUM_K = sum(KS)
CONTIGUOUS, NN, BF16_CONTIGUOUS = (
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_bf16_gemm_nt_contiguous",
)
MASKED, BF16_MASKED = "m_grouped_fp8_gemm_nt_masked", "m_grouped_bf16_gemm_nt_masked"
K_NT, K_TN, K_BF16 = (
    "k_grouped_fp8_gemm_nt_contiguous",
    "k_grouped_fp8_gemm_tn_contiguous",
    "k_grouped_bf16_gemm_tn_contiguous",
)


def ones(*shape, dtype=BF16):
    return torch.ones(shape).to(dtype)


def cut(*shape, dtype=BF16, pitch):
    """Return ones in rows of `pitch` elements."""
    return torch.ones(*shape[:-1], pitch).to(dtype)[..., : shape[-1]]


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def make_arguments(op: str) -> dict:
    """Return valid arguments of an op, by name, an FP8 pair as two."""
    if op.startswith("k_grouped"):
        return make_k_grouped(op)
    groups, steps = ((G,), STEPS) if op.endswith("masked") else ((), STEPS)
    b, scale_b = ones(G, N, K), torch.ones(G, BLOCKS, STEPS)
    if "_nn_" in op:
        b, scale_b = b.mT.contiguous(), scale_b.mT.contiguous()
    arguments = {
        "a": ones(*groups, M, K),
        "b": b,
        "d": ones(*groups, M, N),
        "scale_a": torch.ones(*groups, M, steps),
        "scale_b": scale_b,
    }
    arguments |= (
        {"masked_m": int32(5, 0, M), "expected_m": 20}
        if groups
        else {"m_indices": int32(*[0] * 100, *[-1] * 28, *[2] * 128)}
    )
    return as_fp8(arguments) if "fp8" in op else without_scales(arguments)


def make_k_grouped(op: str) -> dict:
    """Return the same of a k-grouped op."""
    d = torch.ones(G, M, N)
    if op == K_NT:
        a, b, scale_a, scale_b = ones(M * SUM_K), ones(N * SUM_K), torch.ones(M, STEPS), torch.ones(N, STEPS)
    else:
        a, b, scale_a, scale_b = ones(SUM_K, M), ones(SUM_K, N), torch.ones(STEPS, M), torch.ones(STEPS, N)
    arguments = {"a": a, "b": b, "d": d, "ks": list(KS), "scale_a": scale_a, "scale_b": scale_b}
    return as_fp8(arguments) if "fp8" in op else without_scales(arguments)


def as_fp8(arguments: dict) -> dict:
    return arguments | {name: arguments[name].to(FP8) for name in "ab"}


def without_scales(arguments: dict) -> dict:
    return {name: value for name, value in arguments.items() if not name.startswith("scale")}


def call(op: str, **changes):
    """Call an op on valid arguments with `changes`; a change to None leaves the argument out."""
    arguments = {name: value for name, value in (make_arguments(op) | changes).items() if value is not LEFT_OUT}
    for name in "ab":
        if f"scale_{name}" in arguments:
            arguments[name] = (arguments[name], arguments.pop(f"scale_{name}"))
    return getattr(deep_gemm, op)(arguments.pop("a"), arguments.pop("b"), arguments.pop("d"), **arguments)


LEFT_OUT = object()


def expect(error, message, op, **changes):
    """Check the error of a call, and that D was not written."""
    d = changes.get("d", make_arguments(op)["d"])
    before = d.detach().clone()
    with pytest.raises(error, match=message):
        call(op, **({"d": d} | changes))
    assert torch.equal(d.detach(), before)
