"""torch.compile traces every public op into one node, without a graph break, and the bits are those of eager calls."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import deep_gemm
from deep_gemm import _C, errors, tracing
from tests.fakes.operands import align, make_operands, one_thread

ROOT = Path(__file__).parents[2]
BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
LAYOUTS = ("nt", "nn", "tn", "tt")
BACKENDS = ("eager", "aot_eager")
GEMMS = [f"{kind}_gemm_{layout}" for kind in ("fp8", "bf16") for layout in LAYOUTS]
VENDORS = [f"cublaslt_gemm_{layout}" for layout in LAYOUTS]
M, N, K = 20, 140, 272


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    with one_thread():
        yield
    torch._dynamo.reset()


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
        flip = [scales.t() if flag else scales for scales, flag in ((scale_a, is_a_transposed), (scale_b, is_b_transposed))]
        return (lay_out(a, is_a_transposed), flip[0]), (lay_out(b, is_b_transposed), flip[1])
    return lay_out(a.to(BF16), is_a_transposed), lay_out(b.to(BF16), is_b_transposed)


def make_matrices(m: int = M, n: int = N, dtypes: tuple[torch.dtype, ...] = (BF16, FP32, FP32)) -> list[torch.Tensor]:
    """Return matrices of D's sizes, the same ones at every call: slices of wider memory."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(m, align(n, 8) + 24, generator=generator).to(dtype)[:, 8 : n + 8] for dtype in dtypes]


def check_compiled(program, *inputs, backend: str = "aot_eager", **sizes) -> None:
    """Compile a program of (inputs, matrices that it may write); compare what it returns and writes with the eager run."""
    eager, compiled = make_matrices(**sizes), make_matrices(**sizes)
    expected = program(*inputs, *eager)
    returned = torch.compile(program, fullgraph=True, backend=backend)(*inputs, *compiled)
    assert all(torch.equal(x, y) for x, y in zip((*expected, *eager), (*returned, *compiled), strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GEMMS)
def test_every_product_compiles(name, backend):
    op = getattr(deep_gemm, name)

    def program(a, b, low, high, c):
        op(a, b, low)
        op(a, b, high, c, alpha=0.5, beta=-2)
        op(a, b, high, c=high)  # accumulates
        return low + 1, high.float() - c

    check_compiled(program, *make_inputs(name), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", VENDORS)
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


def test_an_exported_program_holds_the_op():
    class Model(torch.nn.Module):
        def forward(self, a, b):
            d = torch.empty(a.shape[0], b.shape[0])
            deep_gemm.bf16_gemm_nt(a, b, d)
            return d

    a, b = make_inputs("bf16_gemm_nt")
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Model(), (a, b), dynamic_shapes=({0: rows}, None), strict=True)
    assert torch.ops.deep_gemm.bf16_gemm_nt.default in [node.target for node in program.graph.nodes]
    assert torch.equal(program.module()(a[:7], b), Model()(a[:7], b))


#: torch cannot compare FP8 tensors, as the schema check would.
FP8_CHECKS = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.mark.parametrize("name", ["fp8_gemm_nt", "fp8_gemm_tn", "bf16_gemm_nn", "cublaslt_gemm_tt"])
def test_registrations_are_sound(name):
    a, b = make_inputs(name, 32, 144)  # the checks make everything contiguous
    d, c = torch.randn(2, 32, 144)
    op = getattr(torch.ops.deep_gemm, name).default
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
    ("bf16_gemm_nt", lambda a, b, d: (a, b, d[:-1]), {}, Exception, r"d.shape = \[19, 140\]: must be"),
    ("bf16_gemm_nt", lambda a, b, d: (a.float(), b, d), {}, Exception, "a.dtype = torch.float32: must be"),
    ("bf16_gemm_nt", lambda a, b, d: (a, b, d.requires_grad_()), {}, Exception, "d.requires_grad = True"),
    ("cublaslt_gemm_nt", lambda a, b, d: (a, b, d[:-1]), {}, Exception, "must agree as"),
    ("cublaslt_gemm_nt", lambda a, b, d: (a, b, d, 5), {}, errors.ArgumentError, "c = int"),
]


@pytest.mark.parametrize("name, spoil, options, error, message", WRONG)
def test_wrong_input_says_what_the_eager_call_says(name, spoil, options, error, message):
    """Objects that a graph cannot hold run eagerly and fail there; tensors fail while they are traced, in an error of torch's."""
    operands = spoil(*make_inputs(name), torch.zeros(M, N))
    with pytest.raises(error, match=message):
        torch.compile(lambda: getattr(deep_gemm, name)(*operands, **options), backend="eager")()


def test_gradients_are_refused_only_where_they_would_be_lost():
    a, b = make_inputs("bf16_gemm_nt")
    a.requires_grad_()

    def program(d):
        with torch.no_grad():
            deep_gemm.bf16_gemm_nt(a, b, d)
        return (d,)

    check_compiled(program, dtypes=(FP32,))


def test_eager_calls_are_the_builtins():
    names = [*GEMMS, "fp8_gemm_nt_skip_head_mid"]
    assert all(getattr(deep_gemm, name) is getattr(_C, name) and type(getattr(deep_gemm, name)) is type(len) for name in names)
    assert all(getattr(deep_gemm, name).__module__ == "deep_gemm.vendor" for name in VENDORS)
    assert {name for name in deep_gemm.__all__ if "_gemm_" in name} == {*names, *VENDORS}
    assert all(hasattr(torch.ops.deep_gemm, name) for name in (*names, *VENDORS)), "an op is not registered"


STATE = """
from torch._dynamo.trace_rules import is_polyfilled_callable
print(is_polyfilled_callable(deep_gemm.fp8_gemm_nt), is_polyfilled_callable(deep_gemm.cublaslt_gemm_tt), sys.meta_path == finders)
"""
DYNAMO_LAST = """
import sys, torch
finders = list(sys.meta_path)
import deep_gemm
x = torch.zeros(8, 16, dtype=torch.bfloat16)
deep_gemm.bf16_gemm_nt(x, x, torch.empty(8, 8))
assert "torch._dynamo" not in sys.modules and sys.meta_path != finders
"""
DYNAMO_FIRST = """
import sys, torch._dynamo
finders = list(sys.meta_path)
import deep_gemm
"""


def test_ops_are_traced_whichever_is_imported_first():
    """Importing deep_gemm and calling an op leave torch._dynamo alone; nothing is left behind once it is there."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    commands = [[sys.executable, "-c", program + STATE] for program in (DYNAMO_LAST, DYNAMO_FIRST)]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for command in commands]
    assert [process.communicate(timeout=120)[0].split() for process in running] == [["True"] * 3] * 2


def test_a_torch_that_refuses_is_only_a_warning():
    finder = tracing._DynamoFinder({deep_gemm.fp8_gemm_nt: lambda name: len})  # registered already
    with pytest.warns(RuntimeWarning, match="torch.compile will break graphs"):
        finder.finish()
