"""tf32_hc_prenorm_gemm: values on the CPU, how K is cut, what is launched, errors and graphs."""

import re

import pytest
import torch

import deep_gemm
from deep_gemm import hc_prenorm, library, planned
from deep_gemm.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from deep_gemm.testing import calc_diff

M, N, K = 13, 24, 448


def make(m: int = M, n: int = N, k: int = K) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(m, k, generator=generator).bfloat16(), torch.randn(n, k, generator=generator)


@pytest.mark.parametrize("splits", [None, 1, 3, 16, 99])
def test_values(splits):
    a, b = make()
    lead = () if splits is None else (splits,)
    d, squares = torch.full((*lead, M, N), 7.0), torch.full((*lead, M), 7.0)
    deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares, splits)
    if splits is not None:
        d, squares = d.double().sum(0), squares.double().sum(0)
    assert calc_diff(d, a.double() @ b.double().t()) < 1e-10
    assert calc_diff(squares, a.double().square().sum(1)) < 1e-10


@pytest.mark.parametrize("m, n, k", [(0, N, K), (M, 0, K), (M, N, 0)])
def test_sizes_of_zero(m, n, k):
    a, b = make(m, n, k)
    d, squares = torch.full((m, n), 7.0), torch.full((m,), 7.0)
    deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares)
    assert torch.equal(d, a.float() @ b.t()) and torch.equal(squares, a.float().square().sum(1))


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"a": torch.empty(M, K)}, DtypeError, "a.dtype = torch.float32: must be torch.bfloat16"),
        ({"b": None}, ArgumentError, "b = NoneType: must be a torch.Tensor"),
        ({"b": torch.empty(N, K + 8)}, ShapeError, "must be [m, k] and [n, k]"),
        ({"d": torch.empty(2, M, N)}, ShapeError, f"must be [{M}, {N}] and [{M}]"),
        ({"num_splits": 2}, ShapeError, f"must be [2, {M}, {N}] and [2, {M}]"),
        ({"num_splits": 0}, ArgumentError, "num_splits = 0: must be at least 1"),
        ({"a": torch.empty(M, 4).bfloat16(), "b": torch.empty(N, 4)}, ShapeError, "k = 4: must be a multiple of 8"),
        ({"a": torch.empty(K, M).bfloat16().t()}, LayoutError, "a.stride(-1)"),
        ({"b": torch.empty(N, K + 2)[:, :K]}, LayoutError, "b: rows must start at multiples of 16 bytes"),
        ({"d": torch.empty(N, M).t()}, LayoutError, "d.stride(-1)"),
        ({"d": torch.empty(1, N).expand(M, N)}, LayoutError, "elements of d share memory"),
        ({"d": torch.empty(M * N).as_strided((M, N), (N - 1, 1))}, LayoutError, "elements of d share memory"),
    ],
)
def test_wrong_arguments(change, error, message):
    a, b = make()
    operands = {"a": a, "b": b, "d": torch.empty(M, N), "sqr_sum": torch.empty(M)} | change
    with pytest.raises(error, match=re.escape(message)):
        deep_gemm.tf32_hc_prenorm_gemm(**operands)


@pytest.mark.parametrize("invariant", [False, True])
def test_parts_fill_the_gpu_and_have_work(invariant, monkeypatch):
    """As many parts as SMs are left for, none without a chunk for each warp; where bits must not depend on m, always
    as many.
    """
    monkeypatch.setattr(hc_prenorm, "_count_sms", lambda ordinal: 132)
    monkeypatch.setattr(hc_prenorm._C, "is_batch_invariant", lambda: invariant)
    counts = [hc_prenorm._count_parts(hc_prenorm._Shape(m, N, 28672, 1), torch.device("cuda")) for m in (13, 640, 8192)]
    assert counts == ([8, 8, 8] if invariant else [74, 13, 1])
    assert hc_prenorm._count_parts(hc_prenorm._Shape(13, N, 320, 1), torch.device("cuda")) == 1


def test_launches(monkeypatch):
    """An unsplit call cuts K and adds up; a split one does neither; more rows of B than 24 are taken in turn."""
    monkeypatch.setattr(hc_prenorm, "_count_parts", lambda shape, device: 5)
    monkeypatch.setattr(planned, "get_kernel", lambda name, threads, **constants: (name, *constants.values()))
    sizes = {"splits": (None, 4, 2), "n": (N, N, 28), "launches": []}
    for splits, n in zip(sizes["splits"], sizes["n"], strict=True):
        (a, b), lead = make(n=n), () if splits is None else (splits,)
        plan = hc_prenorm._plan(a, b, torch.empty(*lead, M, n), torch.empty(*lead, M), splits)
        sizes["launches"].append([(one.kernel, one.grid, one.arguments[9:]) for one in plan.launches])
        assert [sum(memory.shape) for memory in plan.memory] == ([5 * M * (N + 1)] if splits is None else [])
    assert sizes["launches"] == [
        [(("hc_prenorm", 3), (1, 5), (M, N, K, 5)), (("hc_prenorm_sum",), (2,), ())],
        [(("hc_prenorm", 3), (1, 4), (M, N, K, 4))],
        [(("hc_prenorm", 3), (1, 2), (M, 24, K, 2)), (("hc_prenorm", 1), (1, 2), (M, 4, K, 2))],
    ]


@pytest.mark.parametrize("splits", [None, 4])
def test_a_graph_holds_a_call(splits):
    a, b = make()
    lead = () if splits is None else (splits,)

    def program(a, b):
        d, squares = torch.empty(*lead, M, N), torch.empty(*lead, M)
        deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares, num_splits=splits)
        return d, squares

    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    assert all(torch.equal(x, y) for x, y in zip(compiled(a, b), program(a, b), strict=True))
    node = library.get_op("tf32_hc_prenorm_gemm")
    torch.library.opcheck(node, (a, b, torch.empty(*lead, M, N), torch.empty(*lead, M), splits))
