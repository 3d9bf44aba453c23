"""torch.compile and torch.export take every grouped op as one node, under all names of its arguments, and the bits are
those of eager calls.
"""

import inspect

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.fx.experimental.proxy_tensor import make_fx

import deep_gemm
from deep_gemm import errors, ops, stand_ins
from tests.fakes.grouped_operands import BF16, FP32, OPS, make_call, make_output

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
K_OPS = [name for name in OPS if name.startswith("k_")]
MASKED_OPS = [name for name in OPS if name.endswith("masked")]
#: One op of each grouping; what is the same for every op of a grouping is tried on the others with --full.
SOME = {"m_grouped_fp8_gemm_nn_contiguous", "m_grouped_bf16_gemm_nt_masked", "k_grouped_fp8_gemm_tn_contiguous"}
SOME_OPS = [name if name in SOME else pytest.param(name, marks=pytest.mark.full) for name in OPS]


def on_all_or_some(first: object, second: object) -> list:
    """Return (name, value): `first` for every op, `second` for SOME and with --full for the others."""
    marks = {name: () if name in SOME else pytest.mark.full for name in OPS}
    return [(name, first) for name in OPS] + [pytest.param(name, second, marks=marks[name]) for name in OPS]


def op_of(name: str):
    return getattr(deep_gemm, name)


def node_of(name: str):
    return getattr(torch.ops.deep_gemm_tuned, name).default


def hints_of(name: str) -> tuple:
    """Return what a call has after its groups and before its options."""
    return (16,) if name in MASKED_OPS else ()


def make_outputs(call) -> list[torch.Tensor]:
    """Return matrices that a program may write, the same at every call: two of D's shape, and one for C."""
    shape = tuple(call.exact.shape)
    c = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return [make_output(shape, FP32, 1.0), make_output(shape, FP32, 2.0), c]


def check_compiled(program, call, backend: str = "aot_eager") -> None:
    """Compile a program of (a, b, groups, outputs); compare what it returns and writes with the eager run."""
    eager, compiled = make_outputs(call), make_outputs(call)
    expected = program(call.a, call.b, call.groups, *eager)
    returned = torch.compile(program, fullgraph=True, backend=backend)(call.a, call.b, call.groups, *compiled)
    for x, y in zip((*expected, *eager), (*returned, *compiled), strict=True):
        assert torch.equal(x, y) and not x.isnan().any()


@pytest.mark.parametrize("name, backend", on_all_or_some("aot_eager", "eager"))
def test_every_op_compiles(name, backend):
    op = op_of(name)

    def program(a, b, groups, d, other, c):
        op(a, b, d, groups, *hints_of(name))
        op(a, b, other, groups, *hints_of(name), compiled_dims="nk", epilogue=None)
        return d + c, other * 2

    check_compiled(program, make_call(name), backend)


@pytest.mark.parametrize("name", K_OPS)
def test_sums_compile(name):
    op = op_of(name)

    def program(a, b, ks, d, other, c):
        op(a, b, d, ks, c=d)  # accumulates
        op(a, b, other, tuple(ks), torch.tensor(ks, dtype=torch.int32), c)
        return (d - other,)

    check_compiled(program, make_call(name))


def test_second_names_compile():
    def contiguous(a, b, indices, d, other, c):
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, grouped_layout=indices, recipe=(1, 128, 128))
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, other, m_indices=indices)
        return (d - other,)

    def masked(a, b, counts, d, other, c):
        deep_gemm.bf16_m_grouped_gemm_nt_masked(a, b, d, counts, expected_m_per_group=3)
        deep_gemm.m_grouped_bf16_gemm_nt_masked(a, b, other, masked_m=counts, expected_m=3)
        return ()

    def k_grouped(a, b, ks, d, other, c):
        deep_gemm.k_grouped_bf16_gemm_tn_contiguous(
            a, b, d, ks_cpu=ks, grouped_layout=torch.tensor(ks, dtype=torch.int32)
        )
        deep_gemm.k_grouped_bf16_gemm_tn_contiguous(a, b, other, ks=ks, ks_tensor=None, c=c)
        return (other - d,)

    for program, name in ((contiguous, OPS[0]), (masked, MASKED_OPS[1]), (k_grouped, K_OPS[2])):
        check_compiled(program, make_call(name))


@pytest.mark.parametrize(
    "options", [{"enable_overlap": False, "signal": None}, {"max_block_n": 160}, {"signal": False}], ids=str
)
def test_options_that_are_off_compile(options):
    def program(a, b, counts, d, other, c):
        deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, d, counts, 16, **options)
        deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, other, counts, 16)
        return ()

    check_compiled(program, make_call("m_grouped_fp8_gemm_nt_masked"))


@pytest.mark.parametrize("name", MASKED_OPS)
def test_hints_share_one_graph(name):
    """`expected_m` changes from step to step; the second value makes it symbolic, and no later one compiles again."""
    call, counter, op = make_call(name), CompileCounter(), op_of(name)
    compiled = torch.compile(lambda d, rows: op(call.a, call.b, d, call.groups, rows), fullgraph=True, backend=counter)
    for rows in (16, 3, 5, 9, 12):
        d, expected, _ = make_outputs(call)
        compiled(d, rows)
        op(call.a, call.b, expected.copy_(make_outputs(call)[0]), call.groups, rows)
        assert torch.equal(d, expected)
    assert counter.frame_count <= 2


def test_groups_of_k_share_one_graph():
    """So do the sizes of the groups, as long as they add up to the same operands."""
    call, counter = make_call("k_grouped_bf16_gemm_tn_contiguous"), CompileCounter()

    def program(d, ks):
        deep_gemm.k_grouped_bf16_gemm_tn_contiguous(call.a, call.b, d, ks)

    compiled = torch.compile(program, fullgraph=True, backend=counter)
    for ks in ([128, 256], [256, 128], [384, 0], [128, 256]):
        d, expected, _ = make_outputs(call)
        compiled(d, ks)
        program(expected, ks)
        assert torch.equal(d, expected)
    assert counter.frame_count <= 3  # 0 is a size of its own to Dynamo


@pytest.mark.parametrize("name, is_strict", on_all_or_some(False, True))
def test_an_exported_program_holds_the_op(name, is_strict):
    call = make_call(name)
    shape, ks = tuple(call.exact.shape), call.groups if name in K_OPS else None

    class Model(torch.nn.Module):
        def forward(self, a, b, *groups):
            d = torch.zeros(shape)
            op_of(name)(a, b, d, *(groups or (ks,)), *hints_of(name))
            return d

    inputs = (call.a, call.b) if name in K_OPS else (call.a, call.b, call.groups)
    program = torch.export.export(Model(), inputs, strict=is_strict)
    assert [node.target for node in program.graph.nodes].count(node_of(name)) == 1
    assert torch.equal(program.module()(*inputs), Model()(*inputs))


@pytest.mark.parametrize("name", OPS)
def test_recording_on_fake_tensors_holds_the_op(name):
    """make_fx runs the program on fake tensors: the C function puts itself into the graph instead of doing nothing in
    silence.
    """
    call = make_call(name)
    hints = hints_of(name)

    def program(a, b, groups, d):
        op_of(name)(a, b, d, groups, *hints)
        return d + 1

    d, expected, _ = make_outputs(call)
    inputs = (call.a, call.b, call.groups)
    if name in K_OPS:  # a list is no input of make_fx
        inputs, whole = (call.a, call.b), program

        def program(a, b, d):
            return whole(a, b, call.groups, d)

    graph = make_fx(program, tracing_mode="fake")(*inputs, d)
    assert [node.target for node in graph.graph.nodes].count(node_of(name)) == 1
    assert torch.equal(graph(*inputs, d), program(*inputs, expected.copy_(make_outputs(call)[0]))) and torch.equal(
        d, expected
    )


#: torch cannot compare FP8 tensors, as the schema check would, and makes every operand contiguous.
CHECKS = {
    False: ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"),
    True: ("test_autograd_registration", "test_faketensor"),
}


@pytest.mark.parametrize("name", OPS)
def test_registrations_are_sound(name):
    call = make_call(name)
    operands = (*call.a, *call.b) if "fp8" in name else (call.a, call.b)
    d = torch.zeros(tuple(call.exact.shape))
    torch.library.opcheck(node_of(name), (*operands, d, call.groups, *hints_of(name)), test_utils=CHECKS["fp8" in name])


@pytest.mark.parametrize("name", SOME_OPS)
def test_a_stream_is_a_graph_break(name):
    call, op = make_call(name), op_of(name)
    d, expected, _ = make_outputs(call)

    def program(d, stream):
        op(call.a, call.b, d.mul_(1), call.groups, *hints_of(name), stream=stream)
        return d + 1

    with pytest.raises(torch._dynamo.exc.Unsupported, match="no stream="):
        torch.compile(program, fullgraph=True, backend="eager")(d, 0)
    op(call.a, call.b, expected.copy_(d), call.groups, *hints_of(name))
    assert torch.equal(torch.compile(program, backend="eager")(d, 0), expected + 1)
    with pytest.raises(errors.ArgumentError, match="stream = 'x'"):
        torch.compile(program, backend="eager")(d, "x")


WRONG = [
    (
        "m_grouped_fp8_gemm_nt_contiguous",
        lambda call, d: (call.a[0], call.b, d, call.groups),
        {},
        errors.ArgumentError,
        "pairs",
    ),
    (
        "m_grouped_bf16_gemm_nt_contiguous",
        lambda call, d: (call.a, call.b, d, 5),
        {},
        errors.ArgumentError,
        "m_indices = an object of type int",
    ),
    (
        "m_grouped_bf16_gemm_nt_contiguous",
        lambda call, d: (call.a, call.b, d[:-1], call.groups),
        {},
        Exception,
        r"d.shape = \[255, 40\]: must be",
    ),
    (
        "m_grouped_bf16_gemm_nt_masked",
        lambda call, d: (call.a, call.b, d, call.groups, 2.5),
        {},
        errors.ArgumentError,
        "expected_m = 2.5",
    ),
    (
        "m_grouped_fp8_gemm_nt_masked",
        lambda call, d: (call.a, call.b, d, call.groups.long(), 2),
        {},
        Exception,
        "masked_m.dtype = torch.int64: must be",
    ),
    (
        "k_grouped_bf16_gemm_tn_contiguous",
        lambda call, d: (call.a, call.b, d, torch.tensor(call.groups)),
        {},
        errors.ArgumentError,
        "ks = ",
    ),
    (
        "k_grouped_bf16_gemm_tn_contiguous",
        lambda call, d: (call.a, call.b, d, [100, 284]),
        {},
        Exception,
        r"ks\[0\] = 100: must be a multiple of 128",
    ),
    (
        "k_grouped_fp8_gemm_nt_contiguous",
        lambda call, d: (call.a, call.b, d, call.groups),
        {"recipe": (1, 2, 3)},
        Exception,
        "recipe = ",
    ),
]


_NONE = [
    (name, lambda call, d: (call.a, call.b, d, None), {}, errors.ArgumentError, "ks = None: must be a list or tuple")
    for name in K_OPS
]
_BOOLS = [
    (
        "k_grouped_bf16_gemm_tn_contiguous",
        lambda call, d: (call.a, call.b, d, [True, 256]),
        {},
        errors.ArgumentError,
        r"ks\[0\] = True: must be an int",
    ),
    (
        "m_grouped_bf16_gemm_nt_masked",
        lambda call, d: (call.a, call.b, d, call.groups, True),
        {},
        errors.ArgumentError,
        "expected_m = True: must be an int",
    ),
]
_SIGNALS = [
    (name, lambda call, d: (call.a, call.b, d, call.groups, 16), options, errors.ArgumentError, message)
    for name in MASKED_OPS
    for options, message in (
        ({"enable_overlap": True}, "signal = None: enable_overlap=True writes signals"),
        ({"enable_overlap": 1}, "enable_overlap = 1: must be a bool"),
        ({"max_block_n": 0}, "max_block_n = 0: must be an int >= 1"),
        ({"max_block_n": True}, "max_block_n = True: must be an int >= 1"),
        ({"signal": 5}, "signal = 5: is written only with enable_overlap=True"),
    )
]


@pytest.mark.parametrize("name, spoil, options, error, message", [*WRONG, *_NONE, *_BOOLS, *_SIGNALS])
def test_wrong_input_says_what_the_eager_call_says(name, spoil, options, error, message):
    """Objects that a graph cannot hold run eagerly and fail there; tensors and numbers fail while they are traced, in
    an error of torch's.
    """
    call = make_call(name)
    operands = spoil(call, torch.zeros(tuple(call.exact.shape)))
    with pytest.raises(error, match=message):
        torch.compile(lambda: op_of(name)(*operands, **options), backend="eager")()


def test_stand_ins_have_the_signatures_of_their_ops():
    def parameters(function):
        return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]

    for op in ops.OPS:
        function = ops.FUNCTIONS[op.name]
        assert parameters(stand_ins.make_stand_in(op, function, function)) == parameters(function), op.name


def test_both_names_of_an_argument_are_one_too_many():
    call = make_call("m_grouped_bf16_gemm_nt_contiguous")
    d = torch.zeros(tuple(call.exact.shape), dtype=BF16)
    both = {"m_indices": call.groups, "grouped_layout": call.groups}
    for run in (
        deep_gemm.m_grouped_bf16_gemm_nt_contiguous,
        torch.compile(lambda *v, **n: deep_gemm.m_grouped_bf16_gemm_nt_contiguous(*v, **n), backend="eager"),
    ):
        with pytest.raises(TypeError, match="grouped_layout|m_indices"):
            run(call.a, call.b, d, **both)
