"""Attention logits in graphs: one node for each call, fake results of the right shape, and the bits of eager calls."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import deep_gemm
from deep_gemm.errors import ArgumentError, ShapeError
from deep_gemm.library import get_op
from tests.gpu.logits_operands import make_paged, make_prefill

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
#: Without test_schema, which multiplies tensors by random numbers: torch cannot multiply FP8.
CHECKS = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
NAMES = ("fp8_mqa_logits", "fp8_paged_mqa_logits", "get_paged_mqa_logits_metadata")


def score_prefill(q, kv, weights, starts, ends, *sixth, **options):
    return deep_gemm.fp8_fp4_mqa_logits((q, None), kv, weights, starts, ends, *sixth, **options) * 2


def score_paged(q, cache, weights, lengths, table, **options):
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, 4)
    return deep_gemm.fp8_paged_mqa_logits(q, cache, weights, lengths, table, schedule, 100, **options)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "options",
    [{}, {"clean_logits": False, "logits_dtype": torch.bfloat16}, {"max_seqlen_k": 40}, {"schedule_meta": None}],
    ids=str,
)
def test_prefill_compiles(options, backend):
    operands = list(make_prefill(6, 70).values())
    compiled = torch.compile(score_prefill, fullgraph=True, backend=backend)(*operands, **options)
    expected = score_prefill(*operands, **options)
    assert torch.equal(compiled, expected) and compiled.dtype == expected.dtype


@pytest.mark.parametrize("sixth", [(40,), (0,), (40, 0), (40, None), (False,), (True, None)], ids=str)
def test_the_sixth_argument_may_be_a_length(sixth):
    """It was clean_logits in older versions of the API. Calls with a length there, or with None as the seventh, broke
    graphs.
    """
    operands = [*make_prefill(6, 70).values(), *sixth]
    expected = score_prefill(*operands)
    assert torch.equal(torch.compile(score_prefill, fullgraph=True, backend="aot_eager")(*operands), expected)
    graph = make_fx(lambda *tensors: score_prefill(*tensors, *sixth), tracing_mode="fake")(*operands[:5])
    assert [node.target for node in graph.graph.nodes].count(get_op("fp8_mqa_logits")) == 1
    assert torch.equal(graph(*operands[:5]), expected)


def test_a_symbolic_length():
    program = torch.compile(score_prefill, fullgraph=True, backend="aot_eager", dynamic=True)
    operands = list(make_prefill(6, 70).values())
    for length in (40, 41, 70):
        assert torch.equal(program(*operands, length), score_prefill(*operands, length))


WRONG_OPTIONS = [
    {"clean_logits": 40, "max_seqlen_k": 40}, {"clean_logits": None}, {"max_seqlen_k": True}, {"max_seqlen_k": 1.5},
    {"schedule_meta": 5},
]  # fmt: skip


@pytest.mark.parametrize("options", WRONG_OPTIONS, ids=str)
def test_wrong_options_say_what_the_eager_call_says(options):
    operands = list(make_prefill(6, 70).values())
    with pytest.raises(ArgumentError) as eager:
        score_prefill(*operands, **options)
    with pytest.raises(ArgumentError) as traced:
        torch.compile(score_prefill, backend="eager")(*operands, **options)
    assert str(traced.value) == str(eager.value)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_paged_compiles(backend):
    operands = list(make_paged([70, 3, 100], 2).values())
    compiled = torch.compile(score_paged, fullgraph=True, backend=backend)(*operands, clean_logits=True)
    assert torch.equal(compiled, score_paged(*operands, clean_logits=True))


def test_one_graph_serves_other_sizes():
    program = torch.compile(score_prefill, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens, n in ((6, 70), (9, 131), (14, 20)):
        operands = list(make_prefill(tokens, n).values())
        assert torch.equal(program(*operands), score_prefill(*operands))
    paged = torch.compile(score_paged, fullgraph=True, backend="aot_eager", dynamic=True)
    for lengths in ([70, 3], [10, 100, 64]):
        operands = list(make_paged(lengths, 2).values())
        assert torch.equal(paged(*operands, clean_logits=True), score_paged(*operands, clean_logits=True))


def test_make_fx_records_a_node_for_each_call():
    operands = list(make_paged([70, 3], 2).values())
    graph = make_fx(lambda q, cache, *rest: score_paged(q, cache, *rest), tracing_mode="fake")(*operands)
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets == [get_op("get_paged_mqa_logits_metadata"), get_op("fp8_paged_mqa_logits")]
    assert torch.equal(graph(*operands), score_paged(*operands))


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name):
    paged, (q, (keys, scales), *rest) = make_paged([70, 3], 2), make_prefill(6, 70).values()
    schedule = deep_gemm.get_paged_mqa_logits_metadata(paged["context_lens"], 64, 4)
    arguments = {
        "fp8_mqa_logits": (q, keys, scales, *rest),
        "fp8_paged_mqa_logits": (*paged.values(), schedule, 100),
        "get_paged_mqa_logits_metadata": (paged["context_lens"], 64, 4),
    }
    torch.library.opcheck(get_op(name), arguments[name], test_utils=CHECKS)


def test_meta_tensors_have_results_and_checks():
    operands = {
        name: tuple(part.to("meta") for part in value) if isinstance(value, tuple) else value.to("meta")
        for name, value in make_prefill(6, 70).items()
    }
    logits = deep_gemm.fp8_mqa_logits(**operands, logits_dtype=torch.bfloat16)
    assert logits.is_meta and logits.shape == (6, 70) and logits.stride() == (128, 1)
    with pytest.raises(ShapeError, match="weights"):
        deep_gemm.fp8_mqa_logits(**operands | {"weights": operands["weights"][:2]})
    lengths = torch.zeros(5, dtype=torch.int32, device="meta")
    assert deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, 7).shape == (8, 2)
