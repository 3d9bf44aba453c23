"""DG_RECORD_SHAPES on CPU tensors: the problems that a GPU would plan, once each, and nothing else changes."""

import pytest
import torch

import deep_gemm
from deep_gemm import _C, plan, warm_up
from deep_gemm.recorded_calls import PrenormCall
from tests.fakes.operands import forgetting, make_operands
from tests.gpu.logits_operands import make_prefill


@pytest.fixture(autouse=True)
def fresh():
    """Forget what other tests recorded, before and after."""
    with forgetting(plan.forget):
        yield


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """What reads the problems recorded so far, in order."""
    path = tmp_path / "shapes.jsonl"
    monkeypatch.setenv("DG_RECORD_SHAPES", str(path))
    return lambda: [_C.Problem.from_json(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_bf16(m: int, n: int, k: int, **options) -> torch.Tensor:
    a, b = (torch.ones(rows, k, dtype=torch.bfloat16) for rows in (m, n))
    d = torch.empty(m, n, dtype=torch.bfloat16)
    deep_gemm.bf16_gemm_nt(a, b, d, **options)
    return d


def run_fp8(m: int, n: int, k: int) -> None:
    a, scale_a, b, scale_b = make_operands(m, n, k)
    deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), torch.empty(m, n, dtype=torch.bfloat16))


def test_each_problem_is_recorded_once(recorded):
    for m in (8, 8, 16):
        run_bf16(m, 32, 64)
    run_fp8(8, 128, 256)
    found = recorded()
    sizes = [(problem.op, problem.m, problem.n, problem.k) for problem in found]
    assert sizes == [("bf16_gemm", 8, 32, 64), ("bf16_gemm", 16, 32, 64), ("fp8_gemm", 8, 128, 256)]
    assert {problem.num_sms for problem in found} == {0}


def test_groups_and_logits_are_recorded(recorded):
    a, b = torch.ones(2, 16, 64, dtype=torch.bfloat16), torch.ones(2, 32, 64, dtype=torch.bfloat16)
    d, counts = torch.empty(2, 16, 32, dtype=torch.bfloat16), torch.tensor([3, 16], dtype=torch.int32)
    deep_gemm.m_grouped_bf16_gemm_nt_masked(a, b, d, counts, expected_m=10)
    deep_gemm.fp8_mqa_logits(**make_prefill(7, 150, 8, 32))
    masked, logits = recorded()
    assert (masked.op, masked.m, masked.num_groups) == ("m_grouped_bf16_gemm_masked", 16, 2) and masked.expected_m >= 10
    assert (logits.op, logits.heads, logits.k) == ("fp8_mqa_logits", 8, 32) and logits.n >= 150


def test_signals_are_recorded_beside_the_fields(recorded, tmp_path):
    """Of calls with and without them: these are two kernels of one problem."""
    a, b = torch.ones(2, 16, 64, dtype=torch.bfloat16), torch.ones(2, 32, 64, dtype=torch.bfloat16)
    d, counts = torch.empty(2, 16, 32, dtype=torch.bfloat16), torch.tensor([3, 16], dtype=torch.int32)
    for options in ({"enable_overlap": True, "signal": torch.zeros(2, dtype=torch.int32)}, {}):
        deep_gemm.m_grouped_bf16_gemm_nt_masked(a, b, d, counts, 10, **options)
    first, second = (tmp_path / "shapes.jsonl").read_text().splitlines()
    assert first == second.replace(',"op"', ',"has_signals":true,"op"')
    assert warm_up.read_shapes(tmp_path / "shapes.jsonl") == [
        (plain := _C.Problem.from_json(second)).with_signals(),
        plain,
    ]


def test_logits_of_nearly_the_same_sizes_are_one_problem(recorded):
    for tokens, n in ((1000, 150), (1001, 151), (1003, 149)):
        deep_gemm.fp8_mqa_logits(**make_prefill(tokens, n, 8, 32))
    (found,) = recorded()
    assert (found.m, found.n) == (_C.round_expected_m(1000, 1 << 30), _C.round_expected_m(150, 1 << 30))


def test_what_has_no_problem_is_recorded_for_warm_ups(recorded, tmp_path):
    """The kernels of tf32_hc_prenorm_gemm were compiled by the first calls of a server after its warm-up."""
    for m, splits in ((8, None), (8, 1), (8, 4), (0, None), (8, 4)):
        lead = () if splits is None else (splits,)
        a, b, d = torch.ones(m, 64).bfloat16(), torch.ones(24, 64), torch.empty(*lead, m, 24)
        deep_gemm.tf32_hc_prenorm_gemm(a, b, d, torch.empty(*lead, m), splits)
    run_bf16(8, 32, 64)
    path = tmp_path / "shapes.jsonl"
    assert path.read_text().splitlines()[:2] == [
        '{"fields":{"k":64,"m":8,"n":24},"op":"tf32_hc_prenorm_gemm"}',
        '{"fields":{"k":64,"m":8,"n":24,"num_splits":4},"op":"tf32_hc_prenorm_gemm"}',
    ]
    *calls, problem = warm_up.read_shapes(path)
    assert calls == [PrenormCall(8, 24, 64), PrenormCall(8, 24, 64, 4)] and problem.op == "bf16_gemm"


def test_a_limit_of_sms_is_a_field(recorded):
    deep_gemm.set_num_sms(20)
    try:
        run_bf16(8, 32, 64)
    finally:
        deep_gemm.set_num_sms(0)
    assert [problem.num_sms for problem in recorded()] == [20]


def test_empty_products_and_no_k_are_not_recorded(recorded):
    run_bf16(0, 32, 64)
    run_bf16(8, 32, 0)
    assert recorded() == []


def test_nothing_is_asked_without_the_variable(monkeypatch):
    """Not even Python: the native module looks at the variable alone."""
    monkeypatch.setattr(plan, "record_call", lambda problem: pytest.fail("asked"))
    monkeypatch.delenv("DG_RECORD_SHAPES", raising=False)
    assert (run_bf16(8, 32, 64) == 64).all()
    monkeypatch.setenv("DG_RECORD_SHAPES", "")
    run_bf16(8, 32, 64)


def test_a_file_that_cannot_be_written_costs_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("DG_RECORD_SHAPES", str(tmp_path / "absent" / "shapes.jsonl"))
    with pytest.warns(UserWarning, match="shapes are not recorded"):
        assert (run_bf16(8, 32, 64) == 64).all()
