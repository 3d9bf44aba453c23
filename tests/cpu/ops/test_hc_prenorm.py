"""tf32_hc_prenorm_gemm: values on the CPU, how K is cut, what is launched, errors and graphs."""

import re
import types

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import deep_gemm
from deep_gemm import hc_prenorm, library, planned, recorded_calls
from deep_gemm.errors import ArgumentError, DtypeError, LayoutError, ProblemError, ShapeError
from deep_gemm.recorded_calls import PrenormCall
from deep_gemm.testing import calc_diff

M, N, K = 13, 24, 448
FP32 = torch.float32


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


@pytest.mark.parametrize("strides", [(0, N, 1), (N, N, 1), (0, 0, 1)])
def test_an_empty_d_shares_nothing_whatever_its_strides(strides):
    a, b = make(0)
    memory = torch.full((8,), 7.0)
    deep_gemm.tf32_hc_prenorm_gemm(a, b, memory.as_strided((3, 0, N), strides), torch.empty(3, 0), 3)
    assert memory.eq(7).all()


def test_tensors_of_vmap_are_refused():
    a, b = make()
    squares = torch.empty(M)
    with pytest.raises(ArgumentError, match=rf"of shape \[{M}, {K}\]: has no memory of its own, as within torch.vmap"):
        torch.vmap(lambda x: deep_gemm.tf32_hc_prenorm_gemm(x, b, torch.empty(M, N), squares))(torch.stack([a, a]))


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"a": torch.empty(M, K)}, DtypeError, "a.dtype = torch.float32: must be torch.bfloat16"),
        ({"b": None}, ArgumentError, "b = NoneType: must be a torch.Tensor"),
        ({"b": torch.empty(N, K + 8)}, ShapeError, "must be [m, k] and [n, k]"),
        ({"d": torch.empty(2, M, N)}, ShapeError, f"must be [{M}, {N}] and [{M}]"),
        ({"num_splits": 2}, ShapeError, f"must be [2, {M}, {N}] and [2, {M}]"),
        ({"num_splits": 0}, ArgumentError, "num_splits = 0: must be an int of 1.."),
        ({"num_splits": "2"}, ArgumentError, "num_splits = '2': must be an int"),
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


@pytest.mark.parametrize("written, name", [
    ("d", "a"), ("d", "b"), ("sqr_sum", "a"), ("sqr_sum", "b"), ("sqr_sum", "d"), ("d", "sqr_sum"),
])  # fmt: skip
def test_what_is_written_lies_apart(written, name):
    """Else A would be read while D is written over it."""
    a, b = make()
    operands = {"a": a, "b": b, "d": torch.zeros(M, N), "sqr_sum": torch.zeros(M)}
    size = operands[written].shape.numel()
    memory = operands[name] if operands[name].numel() * operands[name].element_size() >= 4 * size else torch.zeros(M, N)
    operands[name] = memory if operands[name].shape == memory.shape else memory.view(-1)[:M].view(operands[name].shape)
    operands[written] = memory.view(-1).view(torch.float32)[:size].view(operands[written].shape)
    before = operands[name].clone()
    with pytest.raises(LayoutError, match="in one span of memory"):
        deep_gemm.tf32_hc_prenorm_gemm(**operands)
    assert torch.equal(operands[name], before)


CUTS = {  # (m, k, splits): parts of K, CTAs of a cluster, rows of a CTA
    (13, 7168, 1): (8, 8, 16), (192, 7168, 1): (8, 8, 16), (193, 7168, 1): (8, 8, 32), (768, 7168, 1): (8, 8, 64),
    (769, 7168, 1): (10, 1, 64), (1024, 7168, 1): (8, 1, 64), (4096, 7168, 1): (2, 1, 64), (8192, 7168, 1): (1, 1, 64),
    (13, 28672, 1): (8, 8, 16), (193, 28672, 1): (33, 1, 64), (13, 32776, 1): (85, 1, 16), (300, 16384, 1): (8, 8, 32),
    (13, 320, 1): (1, 1, 16), (13, 800, 1): (2, 2, 16), (13, 1600, 1): (4, 4, 16), (13, 3064, 1): (4, 4, 16),
    (13, 7168, 16): (16, 1, 16), (137, 7168, 16): (16, 1, 32), (4096, 7168, 16): (16, 1, 64), (13, 7168, 8): (8, 1, 16),
}  # fmt: skip


@pytest.mark.parametrize("case", CUTS)
def test_how_k_and_rows_are_cut(case):
    """In clusters where they fit on the GPU and are small, else in as many parts as SMs are left for; none is without a
    chunk for each warp.
    """
    m, k, splits = case
    assert hc_prenorm._cut(PrenormCall(m, N, k, splits), 132) == CUTS[case]
    assert hc_prenorm._cut(PrenormCall(m, N, k, splits), 132, is_whole=False).cluster == 1


@pytest.mark.parametrize(
    "limit, count, sms, is_whole", [(0, 132, 132, True), (120, 132, 120, False), (0, 32, 32, False)]
)
def test_clusters_have_a_whole_gpu(monkeypatch, limit, count, sms, is_whole):
    """Beside a limit on SMs, or in a slice of a GPU, a cluster might wait for SMs of one GPC for ever."""
    monkeypatch.setattr(hc_prenorm._C, "get_device", lambda ordinal: types.SimpleNamespace(sm_count=count))
    monkeypatch.setattr(hc_prenorm._C, "get_num_sms", lambda: limit)
    assert hc_prenorm._get_sms(torch.device("cuda:0")) == (sms, is_whole)


@pytest.mark.parametrize("case", CUTS)
def test_a_warm_up_knows_the_kernels_of_a_call(monkeypatch, case):
    (m, k, splits), sms = case, (132, True)
    monkeypatch.setattr(hc_prenorm, "_get_sms", lambda device: sms)
    monkeypatch.setattr(planned, "get_kernel", lambda name, threads, **constants: (name, threads, constants))
    for n in (N, 28):
        a, b = torch.empty(m, k, dtype=torch.bfloat16, device="meta"), torch.empty(n, k, device="meta")
        lead = (splits,) if splits > 1 else ()
        d, squares = torch.empty(*lead, m, n, device="meta"), torch.empty(*lead, m, device="meta")
        plan = hc_prenorm._plan(a, b, d, squares, splits if lead else None)
        kernels = hc_prenorm.list_kernels(PrenormCall(m, n, k, splits), *sms)
        assert kernels == [launch.kernel for launch in plan.launches]
        others = hc_prenorm.list_kernels(PrenormCall(1, n, 1024), *sms, any_size=True)
        assert all(kernel in others for kernel in kernels)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"m": 0}, "m = 0: must be an int of 1.."), ({"k": 12}, "k = 12: must be a multiple of 8"),
        ({"n": "24"}, "n = '24': must be an int"), ({"num_splits": True}, "num_splits = True: must be an int"),
        ({"heads": 4}, "must have m, n and k, may have num_splits"),
    ],
)  # fmt: skip
def test_a_recorded_call_that_cannot_be(change, message):
    fields = {"m": M, "n": N, "k": K} | change
    for line in ({"op": hc_prenorm.NAME, "fields": fields}, {"op": hc_prenorm.NAME} | fields):
        with pytest.raises(ProblemError, match=re.escape(message)):
            recorded_calls.parse_call(line)
    assert recorded_calls.parse_call({"op": "bf16_gemm"} | fields) is recorded_calls.parse_call([]) is None


def test_parts_do_not_depend_on_m_where_bits_must_not(monkeypatch):
    monkeypatch.setattr(hc_prenorm._C, "is_batch_invariant", lambda: True)
    for k, parts in ((7168, 8), (28672, 8), (65536, 8), (1600, 4), (320, 1)):
        cuts = [hc_prenorm._cut(PrenormCall(m, N, k, 1), 132) for m in (1, 192, 500, 1100, 9000)]
        assert {cut.parts for cut in cuts} == {parts} and all(cut.cluster in (1, parts) for cut in cuts)


def test_launches(monkeypatch):
    """An unsplit call cuts K and adds up, in one launch or two; a split one does neither; more rows of B than 24 are
    taken in turn.
    """
    monkeypatch.setattr(hc_prenorm, "_get_sms", lambda device: (132, True))
    cut = hc_prenorm._cut
    monkeypatch.setattr(planned, "get_kernel", lambda name, threads, **constants: (name, *constants.values()))
    found, memory = [], []
    for given, splits, n in (((17, 1, 16), None, N), ((4, 4, 16), None, N), (None, 4, N), (None, 2, 28)):
        monkeypatch.setattr(
            hc_prenorm, "_cut", lambda shape, *sms, given=given: hc_prenorm._Cut(*given) if given else cut(shape, *sms)
        )
        (a, b), lead = make(n=n), () if splits is None else (splits,)
        plan = hc_prenorm._plan(a, b, torch.empty(*lead, M, n), torch.empty(*lead, M), splits)
        found.append([(one.kernel, one.grid, one.arguments[9:]) for one in plan.launches])
        memory.append([sum(one.shape) for one in plan.memory])
    assert memory == [[17 * M * (N + 1)], [], [], []]
    assert found == [
        [(("hc_prenorm", 3, 1, 1), (1, 17), (M, N, K, 17)), (("hc_prenorm_sum",), (2,), ())],
        [(("hc_prenorm", 3, 1, 4), (4, 1), (M, N, K, 4))],
        [(("hc_prenorm", 3, 1, 1), (1, 4), (M, N, K, 4))],
        [(("hc_prenorm", 3, 1, 1), (1, 2), (M, 24, K, 2)), (("hc_prenorm", 1, 1, 1), (1, 2), (M, 4, K, 2))],
    ]


def test_fake_tensors_of_a_gpu_are_checked_and_nothing_is_launched(monkeypatch):
    """Addresses of fake tensors were read, so that no graph could hold a call on a GPU."""
    monkeypatch.setattr(planned, "run", lambda *arguments: pytest.fail("launched"))
    with FakeTensorMode():
        a, b = (torch.empty(rows, K, device="cuda", dtype=dtype) for rows, dtype in ((M, torch.bfloat16), (N, FP32)))
        d, squares = torch.empty(M, N, device="cuda"), torch.empty(M, device="cuda")
        deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares)
        library.get_op("tf32_hc_prenorm_gemm")(a, b, d, squares)
        with pytest.raises(ShapeError):
            deep_gemm.tf32_hc_prenorm_gemm(a, torch.empty(N, K - 8, device="cuda"), d, squares)


def test_a_recorded_program_holds_a_call():
    def program(a, b):
        d, squares = torch.zeros(M, N), torch.zeros(M)
        deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares)
        return d, squares

    a, b = make()
    graph = make_fx(program, tracing_mode="fake")(a, b)
    assert [node.target for node in graph.graph.nodes].count(library.get_op("tf32_hc_prenorm_gemm")) == 1
    assert all(torch.equal(x, y) for x, y in zip(graph(a, b), program(a, b), strict=True))


def test_compile_mode_writes_nothing(monkeypatch):
    (a, b), d, squares = make(), torch.full((M, N), 7.0), torch.full((M,), 7.0)
    deep_gemm.set_compile_mode(1)
    try:
        deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares)
    finally:
        deep_gemm.set_compile_mode(0)
    assert (d == 7.0).all() and (squares == 7.0).all()


@pytest.mark.parametrize("for_inference", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("splits", [None, 2])
def test_what_was_made_for_inference_can_be_written(for_inference, splits):
    (a, b), lead, outputs = make(), () if splits is None else (splits,), []
    for shape, is_made_for_it in zip(((*lead, M, N), (*lead, M)), for_inference, strict=True):
        with torch.inference_mode(is_made_for_it):
            outputs.append(torch.empty(shape))
    deep_gemm.tf32_hc_prenorm_gemm(a, b, *outputs, splits)
    d, squares = (tensor if splits is None else tensor.sum(0) for tensor in outputs)
    assert calc_diff(d, a.double() @ b.double().t()) < 1e-10
    assert calc_diff(squares, a.double().square().sum(1)) < 1e-10


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
