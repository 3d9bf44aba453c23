"""torch.compile traces every public op into one node, without a graph break, and the bits are those of eager calls."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.fx.experimental.proxy_tensor import make_fx

import deep_gemm
from deep_gemm import _C, errors, tracing
from tests.fakes.grouped_operands import OPS
from tests.fakes.operands import align, make_operands

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
ROOT = Path(__file__).parents[3]
BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
LAYOUTS = ("nt", "nn", "tn", "tt")
BACKENDS = ("eager", "aot_eager")
GEMMS = [f"{kind}_gemm_{layout}" for kind in ("fp8", "bf16") for layout in LAYOUTS]
VENDORS = [f"cublaslt_gemm_{layout}" for layout in LAYOUTS]
M, N, K = 20, 140, 272


def backends_of(names: list[str], *both: str) -> Iterator:
    """Yield (name, backend): all of them with AOT Autograd, which does more, and without it `both`, the rest of them
    with --full.
    """
    for name in names:
        yield name, "aot_eager"
        yield pytest.param(name, "eager", marks=() if name in both else pytest.mark.full)


def lay_out(matrix: torch.Tensor, is_transposed: bool) -> torch.Tensor:
    """Return a matrix, transposed where wanted, with rows 16 bytes and more apart."""
    values = matrix.t() if is_transposed else matrix
    memory = torch.zeros(values.shape[0], align(values.shape[1], 16)).to(matrix.dtype)
    memory[:, : values.shape[1]] = values
    return memory[:, : values.shape[1]]


def make_inputs(name: str, m: int = M, n: int = N) -> tuple:
    """Return (a, b) of an op: pairs for FP8, BF16 matrices else."""
    a, scale_a, b, scale_b = make_operands(m, n, K)
    is_a_transposed, is_b_transposed = name[-2:] in ("tn", "tt"), name[-2:] in ("nn", "tn")
    if name.startswith("fp8"):
        flip = [
            scales.t() if flag else scales for scales, flag in ((scale_a, is_a_transposed), (scale_b, is_b_transposed))
        ]
        return (lay_out(a, is_a_transposed), flip[0]), (lay_out(b, is_b_transposed), flip[1])
    return lay_out(a.to(BF16), is_a_transposed), lay_out(b.to(BF16), is_b_transposed)


def make_matrices(m: int = M, n: int = N, dtypes: tuple[torch.dtype, ...] = (BF16, FP32, FP32)) -> list[torch.Tensor]:
    """Return matrices of D's sizes, the same ones at every call: slices of wider memory."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(m, align(n, 8) + 24, generator=generator).to(dtype)[:, 8 : n + 8] for dtype in dtypes]


def check_compiled(program, *inputs, backend: str = "aot_eager", **sizes) -> None:
    """Compile a program of (inputs, matrices that it may write); its results and writes must be those of eager mode."""
    eager, compiled = make_matrices(**sizes), make_matrices(**sizes)
    expected = program(*inputs, *eager)
    returned = torch.compile(program, fullgraph=True, backend=backend)(*inputs, *compiled)
    assert all(torch.equal(x, y) for x, y in zip((*expected, *eager), (*returned, *compiled), strict=True))


@pytest.mark.parametrize("name, backend", [*backends_of(GEMMS, "fp8_gemm_nt", "bf16_gemm_tn")])
def test_every_product_compiles(name, backend):
    op = getattr(deep_gemm, name)

    def program(a, b, low, high, c):
        op(a, b, low)
        op(a, b, high, c, alpha=0.5, beta=-2)
        op(a, b, high, c=high)  # accumulates
        return low + 1, high.float() - c

    check_compiled(program, *make_inputs(name), backend=backend)


@pytest.mark.parametrize("name, backend", [*backends_of(VENDORS, "cublaslt_gemm_nn")])
def test_the_vendors_products_compile(name, backend):
    op = getattr(deep_gemm, name)

    def program(a, b, low, high, c):
        op(a, b, low)
        op(a.to(FP8), b.to(FP8), high)
        op(a, b, high, c)
        op(a, b, high, high)
        return low + 1, high * 2

    check_compiled(program, *make_inputs(name), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_head_splits_compile(backend):
    def program(a, b, d):
        deep_gemm.fp8_gemm_nt_skip_head_mid(a, b, d, (20, 8, 15))
        return (d + 1,)

    check_compiled(program, *make_inputs("fp8_gemm_nt"), backend=backend, n=N // 35 * 43, dtypes=(BF16,))


def test_recipes_and_options_compile():
    a, _, b, _ = make_operands(M, N, K)
    steps = -(-K // 128)

    def program(scale_a, scale_b, row_a, row_b, low, high, c):
        deep_gemm.fp8_gemm_nt((a, scale_a), [b, scale_b], high, c, (1, 1, 128), "nk", True)
        deep_gemm.fp8_gemm_nt(a=(a, row_a), b=(b, row_b), d=low, recipe=None, beta=0)
        return ()

    check_compiled(program, torch.rand(M, steps), torch.rand(N, steps), torch.rand(M), torch.rand(N))


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_and_helpers_of_a_model(backend):
    """Operands are quantised inside, D is a slice of a wider tensor, C a view of the same memory."""

    def program(x, w, wide):
        a = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False)
        b = deep_gemm.per_block_cast_to_fp8(w, use_ue8m0=False)
        a = a[0], deep_gemm.get_mn_major_tma_aligned_tensor(a[1])
        d = wide[1:-1, 16 : 16 + w.shape[0]]
        deep_gemm.fp8_gemm_nt(a, b, d, wide[1:-1, 16 : 16 + w.shape[0]])
        return torch.relu(d), wide.sum()

    check_compiled(program, torch.randn(M, K), torch.randn(N, K), backend=backend, m=M + 2, n=N + 32, dtypes=(FP32,))


@pytest.mark.parametrize("name", ["fp8_gemm_nt", "bf16_gemm_nt", "cublaslt_gemm_nt"])
def test_dynamic_sizes_share_one_graph(name):
    counter, op = CompileCounter(), getattr(deep_gemm, name)
    compiled = torch.compile(lambda a, b, d: op(a, b, d), fullgraph=True, backend=counter)
    for m in (20, 33, 64):
        a, b = make_inputs(name, m)
        d, expected = torch.empty(m, N), torch.empty(m, N)
        for tensor in (d, *(a if isinstance(a, tuple) else (a,))):
            torch._dynamo.mark_dynamic(tensor, 0)
        compiled(a, b, d)
        op(a, b, expected)
        assert torch.equal(d, expected)
    assert counter.frame_count == 1 and counter.op_count == 1
    with pytest.raises(errors.ShapeError if name != "cublaslt_gemm_nt" else Exception, match=r"must"):
        compiled(*make_inputs(name, 40), torch.empty(48, N))


@pytest.mark.parametrize("is_strict", [True, False])
def test_an_exported_program_holds_the_op(is_strict):
    class Model(torch.nn.Module):
        def forward(self, a, b):
            d = torch.empty(a.shape[0], b.shape[0])
            deep_gemm.bf16_gemm_nt(a, b, d, beta=2)
            return d

    a, b = make_inputs("bf16_gemm_nt")
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Model(), (a, b), dynamic_shapes=({0: rows}, None), strict=is_strict)
    assert torch.ops.deep_gemm_tuned.bf16_gemm_nt.default in [node.target for node in program.graph.nodes]
    assert torch.equal(program.module()(a[:7], b), Model()(a[:7], b))


@pytest.mark.parametrize("name", ["fp8_gemm_tn", "bf16_gemm_tn", "fp8_gemm_nt_skip_head_mid", "cublaslt_gemm_nt"])
def test_recording_on_fake_tensors_holds_the_op(name):
    """make_fx runs the program on fake tensors: the C function puts itself into the graph instead of doing nothing in
    silence.
    """
    options = {"head_splits": (20, 0, 15)} if "head" in name else {}

    def program(a, b, d):
        getattr(deep_gemm, name)(a, b, d, **options)
        return d + 1

    a, b = make_inputs(name)
    d, expected = make_matrices(dtypes=(BF16, BF16))
    graph = make_fx(program, tracing_mode="symbolic")(a, b, d)
    assert [node.target for node in graph.graph.nodes].count(getattr(torch.ops.deep_gemm_tuned, name).default) == 1
    assert torch.equal(graph(a, b, d), program(a, b, expected)) and torch.equal(d, expected)


def test_what_no_graph_holds_cannot_be_recorded():
    a, b = make_inputs("bf16_gemm_nt")
    program = make_fx(
        lambda d: deep_gemm.bf16_gemm_nt(a, b, d, stream=0), tracing_mode="fake", _allow_non_fake_inputs=True
    )
    with pytest.raises(errors.ArgumentError, match="cannot be recorded: .*no stream="):
        program(torch.empty(M, N))


#: torch cannot compare FP8 tensors, as the schema check would.
FP8_CHECKS = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.mark.parametrize("name", ["fp8_gemm_nt", "fp8_gemm_tn", "bf16_gemm_nn", "cublaslt_gemm_tt"])
def test_registrations_are_sound(name):
    a, b = make_inputs(name, 32, 144)  # the checks make everything contiguous
    d, c = torch.randn(2, 32, 144)
    op = getattr(torch.ops.deep_gemm_tuned, name).default
    if name.startswith("fp8"):
        torch.library.opcheck(op, (*a, *b, d, c, [1, 128, 128]), {"alpha": 0.5}, test_utils=FP8_CHECKS)
    else:
        torch.library.opcheck(op, (a, b, d, c))


def test_a_stream_is_a_graph_break():
    a, b = make_inputs("bf16_gemm_nt")
    d, expected = torch.empty(M, N), torch.empty(M, N)

    def program(stream):
        deep_gemm.bf16_gemm_nt(a, b, d.mul_(2), stream=stream)
        return d + 1

    with pytest.raises(torch._dynamo.exc.Unsupported, match="no stream="):
        torch.compile(program, fullgraph=True, backend="eager")(0)
    deep_gemm.bf16_gemm_nt(a, b, expected)
    assert torch.equal(torch.compile(program, backend="eager")(0), expected + 1)
    with pytest.raises(errors.ArgumentError, match="stream = 'x'"):
        torch.compile(program, backend="eager")("x")


WRONG = [
    ("fp8_gemm_nt", lambda a, b, d: (a[0], b, d), {}, errors.ArgumentError, "pairs"),
    ("bf16_gemm_nt", lambda a, b, d: (a, b, 5), {}, errors.ArgumentError, "d = an object of type int"),
    ("bf16_gemm_nt", lambda a, b, d: (a, b, d), {"alpha": torch.tensor(2.0)}, errors.ArgumentError, "alpha"),
    ("fp8_gemm_nt", lambda a, b, d: (a, b, d), {"recipe": (1, 2, 3)}, Exception, "recipe = "),
    ("fp8_gemm_nt", lambda a, b, d: (a, b, d), {"recipe": "x"}, errors.ArgumentError, "recipe = 'x': must"),
    ("fp8_gemm_nt", lambda a, b, d: (a, b, d), {"recipe": (1, 1, True)}, errors.ArgumentError, "True.: must"),
    ("fp8_gemm_nt", lambda a, b, d: (a, b, d), {"disable_ue8m0_cast": 1}, errors.ArgumentError, "= 1: must be a bool"),
    ("fp8_gemm_nt", lambda a, b, d: (a, b, d), {"epilogue": "x"}, errors.ArgumentError, "epilogue = 'x': no kernel"),
    ("einsum", lambda *abd: ("bmk,bnk->mn", *abd), {"use_cublaslt": 1}, errors.ArgumentError, "= 1: must be a bool"),
    ("bf16_gemm_nt", lambda a, b, d: (a, b, d), {"compiled_dims": 5}, errors.ArgumentError, "compiled_dims = 5: must"),
    ("fp8_gemm_nt_skip_head_mid", lambda a, b, d: (a, b, d, "x"), {}, errors.ArgumentError, "head_splits = 'x': must"),
    ("bf16_gemm_nt", lambda a, b, d: (a, b, d[:-1]), {}, Exception, r"d.shape = \[19, 140\]: must be"),
    ("bf16_gemm_nt", lambda a, b, d: (a.float(), b, d), {}, Exception, "a.dtype = torch.float32: must be"),
    ("bf16_gemm_nt", lambda a, b, d: (a, b, d.requires_grad_()), {}, Exception, "d.requires_grad = True"),
    ("cublaslt_gemm_nt", lambda a, b, d: (a, b, d[:-1]), {}, Exception, "a must be .m, k., b .n, k. and d .m, n."),
    ("cublaslt_gemm_nt", lambda a, b, d: (a, b, d, 5), {}, errors.ArgumentError, "c = int"),
]


@pytest.mark.parametrize("name, spoil, options, error, message", WRONG)
def test_wrong_input_says_what_the_eager_call_says(name, spoil, options, error, message):
    """Objects that a graph cannot hold run eagerly and fail there; tensors fail while they are traced, in an error of
    torch's.
    """
    operands = spoil(*make_inputs(name), torch.zeros(M, N))
    with pytest.raises(error, match=message):
        torch.compile(lambda: getattr(deep_gemm, name)(*operands, **options), backend="eager")()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["bf16_gemm_nt", "fp8_gemm_nt", "cublaslt_gemm_nt"])
def test_inputs_that_require_grad_are_computed_with_and_no_graph_is_recorded(name, backend):
    a, b = make_inputs(name)
    for operand in (*a[1:], *b[1:]) if isinstance(a, tuple) else (a, b):  # torch has no gradient of FP8
        operand.requires_grad_()
    d = torch.empty(M, N)

    def program(a, b):
        d = torch.empty(M, N)
        getattr(deep_gemm, name)(a, b, d)
        return d * 2

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(deep_gemm, name)(a, b, d)
        compiled = torch.compile(program, fullgraph=True, backend=backend)(a, b)
    assert not d.requires_grad and not compiled.requires_grad and torch.equal(compiled, d * 2)


#: What models ask besides the ops, of a number.
HELPERS = {
    "get_num_sms": lambda n: deep_gemm.get_num_sms(),
    "get_tc_util": lambda n: deep_gemm.get_tc_util(),
    "get_pdl": lambda n: int(deep_gemm.get_pdl()),
    "get_compile_mode": lambda n: int(deep_gemm.get_compile_mode()),
    "get_deterministic_algorithms": lambda n: int(deep_gemm.get_deterministic_algorithms()),
    "is_batch_invariant": lambda n: int(deep_gemm.is_batch_invariant("bf16_gemm")),
    "get_mk_alignment": lambda n: deep_gemm.get_mk_alignment_for_contiguous_layout(),
    "get_m_alignment": lambda n: deep_gemm.get_m_alignment_for_contiguous_layout(),
    "theoretical": lambda n: deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(n, 4),
    "get_tma_aligned_size": lambda n: deep_gemm.get_tma_aligned_size(n, 2),
    "ceil_div": lambda n: deep_gemm.ceil_div(n, 16),
    "align": lambda n: deep_gemm.align(n, deep_gemm.get_mk_alignment_for_contiguous_layout()),
}


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("name", HELPERS)
def test_helpers_are_part_of_the_graph(name, is_dynamic):
    def program(x):
        return x + HELPERS[name](x.shape[0])

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager", dynamic=is_dynamic)
    for x in (torch.zeros(70), torch.ones(33)):
        assert torch.equal(compiled(x), program(x))


#: Function that returns a setting -> (what sets it, two values); the first one is what holds after the test.
SETTINGS = {
    "get_num_sms": (deep_gemm.set_num_sms, 0, 66),
    "get_mk_alignment_for_contiguous_layout": (deep_gemm.set_mk_alignment_for_contiguous_layout, 128, 64),
    "get_tc_util": (deep_gemm.set_tc_util, 1.0, 0.5),
    "get_pdl": (deep_gemm.set_pdl, True, False),
    "get_compile_mode": (deep_gemm.set_compile_mode, False, True),
    "is_batch_invariant": (deep_gemm.set_batch_invariant, None, True),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_changes_has_a_graph_of_its_own(name):
    assert set(_C.SETTINGS) == set(SETTINGS)
    change, usual, other = SETTINGS[name]
    counter, read = CompileCounter(), getattr(deep_gemm, name)
    compiled = torch.compile(lambda x: (x + 1, read()), fullgraph=True, backend=counter)
    try:
        for value in (usual, other, usual, other):
            change(value)
            assert compiled(torch.zeros(2))[1] == read()
    finally:
        change(usual)
    assert counter.frame_count == 2


def test_a_reset_asks_the_environment_again(monkeypatch):
    compiled = torch.compile(lambda x: (x, deep_gemm.is_batch_invariant("fp8_gemm")), fullgraph=True, backend="eager")
    for value in ("1", "0", "1"):
        monkeypatch.setenv("DG_BATCH_INVARIANT", value)
        deep_gemm.set_batch_invariant(None)
        assert compiled(torch.zeros(2))[1] is (value == "1")
    monkeypatch.delenv("DG_BATCH_INVARIANT")
    deep_gemm.set_batch_invariant(None)


def test_no_alpha_is_one():
    a, b = make_inputs("bf16_gemm_nt")
    d, expected = torch.empty(M, N), torch.empty(M, N)
    deep_gemm.bf16_gemm_nt(a, b, expected)
    torch.compile(lambda: deep_gemm.bf16_gemm_nt(a, b, d, alpha=None), fullgraph=True, backend="eager")()
    assert torch.equal(d, expected)


def test_eager_calls_are_the_builtins():
    names = [*GEMMS, "fp8_gemm_nt_skip_head_mid", *OPS]
    assert all(type(getattr(deep_gemm, name)) is type(len) for name in names)
    assert all(getattr(deep_gemm, name).__module__ == "deep_gemm.vendor" for name in VENDORS)
    second_names = {"fp8_m_grouped_gemm_nt_masked", "bf16_m_grouped_gemm_nt_masked"}
    assert {*names, *VENDORS, *second_names} <= set(deep_gemm.__all__)
    assert all(hasattr(torch.ops.deep_gemm_tuned, name) for name in (*names, *VENDORS)), "an op is not registered"


DYNAMO_LAST = """
import sys, torch
finders = list(sys.meta_path)
import deep_gemm
x = torch.zeros(8, 16, dtype=torch.bfloat16)
deep_gemm.bf16_gemm_nt(x, x, torch.empty(8, 8))
assert "torch._dynamo" not in sys.modules and sys.meta_path != finders
from torch._dynamo.trace_rules import is_polyfilled_callable
assert is_polyfilled_callable(deep_gemm.fp8_gemm_nt) and is_polyfilled_callable(deep_gemm.cublaslt_gemm_tt)
assert sys.meta_path == finders
"""


@pytest.mark.full
def test_dynamo_is_imported_by_somebody_else():
    """Importing deep_gemm and calling an op leave torch._dynamo alone; once it is there, it knows the ops, and the
    finder is gone.
    """
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", DYNAMO_LAST], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_torch_that_refuses_is_only_a_warning(monkeypatch):
    """Here Dynamo is imported, so it is told at once; it takes no op twice."""
    finders = list(sys.meta_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracing.substitute_when_traced()  # every op is given already
    monkeypatch.setattr(tracing, "_given", set())
    with pytest.warns(RuntimeWarning, match="torch.compile will break graphs at the ops of deep_gemm"):
        tracing.substitute_when_traced()
    assert sys.meta_path == finders
