"""The problems that a warm-up prepares: how they may be given, and which fields rows and settings replace."""

import json

import numpy as np
import pytest
import torch

import deep_gemm
from deep_gemm import _C, hc_prenorm, warm_up
from deep_gemm.errors import ArgumentError, DeviceError, ProblemError
from deep_gemm.jit import kernel_set
from deep_gemm.jit.compile_pool import METADATA
from deep_gemm.jit.plain_kernels import plain_symbol
from deep_gemm.recorded_calls import PrenormCall
from deep_gemm.warm_up import list_problems

H200 = _C.Device.known("h200")
SIZES = (256, 512)
SHAPE = _C.Problem("fp8_gemm", 64, *SIZES, scale_layout="any")
FREED = torch.ones(16)  # to print it would crash
FREED.untyped_storage().resize_(0)


def test_problems_in_every_form(tmp_path):
    path = tmp_path / "shapes.jsonl"
    path.write_text(f"{SHAPE.to_json()}\n\n{SHAPE.to_json()}\n")
    fields = SHAPE.as_dict()
    forms = [SHAPE, SHAPE.to_json(), json.loads(SHAPE.to_json()), fields]
    assert list_problems(forms, None, H200) == list_problems(path, None, H200) == [SHAPE]
    assert list_problems(str(path), 8, H200) == [_C.Problem(**fields | {"m": 8})]


def test_rows_take_the_place_of_what_varies():
    masked = _C.Problem("m_grouped_fp8_gemm_masked", 1024, *SIZES, num_groups=4, expected_m=5)
    divided = {"num_groups": 2, "recipe": "1d1d", "d_dtype": "fp32", "group_layout": "blocks"}
    wgrad = _C.Problem("k_grouped_fp8_gemm_contiguous", 64, *SIZES, **divided)
    found = list_problems([SHAPE, masked, wgrad], (16, 700), H200)
    assert [problem.m for problem in found if problem.op == "fp8_gemm"] == [16, 700]
    assert {problem.m for problem in found if problem.op == masked.op} == {1024}
    assert [one.expected_m for one in found if one.op == masked.op] == [_C.round_expected_m(m, 1024) for m in (16, 700)]
    assert [problem for problem in found if problem.op == wgrad.op] == [wgrad]
    assert found[0].m == 16 and found[-1].op == masked.op, "few rows come first"


def test_logits_get_the_sizes_that_calls_of_them_have():
    """One size of paged logits that is no whole sequence ended the warm-up; others were planned under sizes that no
    call has.
    """
    fields = {"heads": 32, "d_dtype": "fp32"}
    paged = _C.Problem("fp8_paged_mqa_logits", 4, 150, 64, next_n=2, block_kv=64, **fields)
    found = list_problems([paged], range(1, 6), H200)
    assert [(problem.m, problem.n) for problem in found] == [(m, _C.round_expected_m(150, 2**20)) for m in (2, 4, 6)]
    prefill = _C.Problem("fp8_mqa_logits", 100, 150, 64, **fields)
    assert [list_problems([prefill], m, H200)[0].m for m in (None, 100, 300)] == [
        _C.round_expected_m(m, 2**20) for m in (100, 100, 300)
    ]


def test_problems_are_a_file_or_a_list():
    for given, shown in ((5, "5"), (torch.tensor(5), "an object of type Tensor"), (FREED, "an object of type Tensor")):
        with pytest.raises(ArgumentError, match=f"problems = {shown}: must be a file, or problems"):
            list_problems(given, None, H200)


@pytest.mark.parametrize("problems", [[SHAPE], []])
@pytest.mark.parametrize("options", [{"cores": -3}, {"cores": "x"}, {"cores": True}, {"any_size": "x"}], ids=str)
def test_options_are_checked_first(options, problems, monkeypatch):
    monkeypatch.setattr(warm_up, "_find_device", None)
    with pytest.raises(ArgumentError, match=f"{next(iter(options))} = .*: must be "):
        deep_gemm.warmup(problems, device="h200", **options)


@pytest.mark.parametrize("rows", [1.5, True, "12", [1, 2.0], torch.tensor(3), torch.tensor([3]), FREED, object()])
def test_what_is_no_number_of_rows(rows):
    with pytest.raises(ArgumentError, match=r"m(\[\d\])? = .*: must be an int"):
        list_problems([SHAPE], rows, H200)


@pytest.mark.parametrize(
    "rows", [np.int64(8), np.array(8), np.array([8]), iter([8])], ids=("number", "0-d", "1-d", "iter")
)
def test_rows_may_be_numbers_of_numpy(rows):
    assert [problem.m for problem in list_problems([SHAPE], rows, H200)] == [8]


@pytest.mark.parametrize(
    "problem",
    [
        {"fields": object()},
        {"fields": {"m": FREED}, "op": "fp8_gemm"},
        {"op": "fp8_gemm", "has_signals": FREED},
        {"op": "tf32_hc_prenorm_gemm", "fields": FREED},
        {"op": "tf32_hc_prenorm_gemm", "m": FREED, "n": 1, "k": 8},
        {FREED: 1},
    ],
)
def test_what_is_in_no_problem(problem):
    with pytest.raises(ProblemError):
        list_problems([problem], None, H200)


def test_a_kernel_is_loaded_where_the_device_is_the_current_one(monkeypatch):
    monkeypatch.setattr(warm_up._C, "get_device", lambda: H200)
    other = _C.Device(**H200.as_dict() | {"sm_count": 78})
    for given, is_current in (("h200", True), (H200, True), ("h20", False), (other, False)):
        assert warm_up._find_device(given)[1] is is_current, given


def test_a_model_s_name_means_a_board_of_it_at_a_lower_power_limit(monkeypatch):
    limited = _C.Device.known("h200-500w")
    monkeypatch.setattr(warm_up._C, "get_device", lambda: limited)
    assert warm_up._find_device("h200") == warm_up._find_device("h200-500w") == (limited, True)
    for other in ("h200-600w", "h100", H200):
        assert not warm_up._find_device(other)[1]


def test_a_projection_is_warmed_up_for_the_sms_that_there_are(monkeypatch):
    """A limit beyond the GPU's SMs is none, for calls and for their warm-up."""
    shape = PrenormCall(256, 24, 7168, 1)
    assert hc_prenorm.limit_sms(200, 132) == hc_prenorm.limit_sms(0, 132) == (132, True)
    assert hc_prenorm.limit_sms(100, 132) == (100, False) and hc_prenorm.limit_sms(0, 16) == (16, False)
    found = {}
    for limit in (0, 100, 200):
        monkeypatch.setattr(warm_up, "_get_sm_limit", lambda limit=limit: limit)
        monkeypatch.setattr(hc_prenorm._C, "get_num_sms", lambda limit=limit: limit)
        monkeypatch.setattr(hc_prenorm._C, "get_device", lambda index=0: H200)
        found[limit] = warm_up._list_plain([shape], H200, any_size=False)
        assert found[limit] == hc_prenorm.list_kernels(shape, *hc_prenorm._get_sms(torch.device("cuda", 0)))
    assert found[0] == found[200] != found[100]


def test_a_number_of_sms_of_its_own_stays():
    own = _C.Problem(**SHAPE.as_dict() | {"num_sms": 20})
    deep_gemm.set_num_sms(100)
    try:
        assert [problem.num_sms for problem in list_problems([own, SHAPE], None, H200)] == [20, 100]
    finally:
        deep_gemm.set_num_sms(0)


def test_settings_of_the_process_hold():
    deep_gemm.set_batch_invariant(True)
    deep_gemm.set_num_sms(100)
    try:
        (problem,) = list_problems([SHAPE], None, H200)
    finally:
        deep_gemm.set_batch_invariant(None)
        deep_gemm.set_num_sms(0)
    assert (problem.batch_invariant, problem.num_sms) == (True, 100)


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("is_chosen", [None, False, True])
def test_what_this_process_will_choose_is_prepared(tmp_path, is_recorded, is_chosen):
    path = tmp_path / "shapes.jsonl"
    path.write_text(_C.Problem("bf16_gemm", 8, *SIZES, batch_invariant=is_recorded).to_json() + "\n")
    deep_gemm.set_batch_invariant(is_chosen)
    try:
        first, *others = list_problems(path, (8, 64), H200)
        assert first.batch_invariant is _C.is_batch_invariant("bf16_gemm")
    finally:
        deep_gemm.set_batch_invariant(None)
    expected = {first.batch_invariant, is_recorded or first.batch_invariant}
    assert sorted((one.m, one.batch_invariant) for one in (first, *others)) == sorted(
        (m, flag) for m in (8, 64) for flag in expected
    )


@pytest.mark.parametrize(
    "problems, error, text",
    [
        ([1], ArgumentError, "holds a int"),
        ([{"op": "fp8_gemm", "m": 1}], ProblemError, r"\{op, m\}: .* lacks the argument 'n'; .* needs op, m, n and k"),
        ([{"op": 5, "m": 1, "n": 16, "k": 16}], ProblemError, "op = 5: must be text"),
        ([{"op": "fp8_gemm", "m": 1, "n": 16, "k": 16, "rows": 1}], ProblemError, "an unknown argument 'rows'"),
        ([{5: 1}], ProblemError, r"\{5\}: keywords must be strings; .* needs op, m, n and k"),
        (["{}"], ProblemError, "fields and op"),
        ("/missing/shapes.jsonl", ArgumentError, "cannot be read"),
    ],
)
def test_what_is_no_problem(problems, error, text):
    with pytest.raises(error, match=text):
        deep_gemm.warmup(problems, device="h200")


def test_a_line_that_is_no_problem(tmp_path):
    (tmp_path / "shapes").write_text(f"{SHAPE.to_json()}\n{{broken\n")
    with pytest.raises(ProblemError, match="shapes, line 2: "):
        deep_gemm.warmup(tmp_path / "shapes", device="h200")


def test_devices(monkeypatch):
    monkeypatch.setattr(_C, "get_device", lambda: (_ for _ in ()).throw(DeviceError("no driver; use CPU tensors")))
    with pytest.raises(DeviceError, match="no driver; pass device="):
        deep_gemm.warmup([SHAPE])
    with pytest.raises(DeviceError):
        deep_gemm.warmup([SHAPE], device="h2000")
    with pytest.raises(ArgumentError, match="device = 3"):
        deep_gemm.warmup([SHAPE], device=3)


def test_the_schedule_of_paged_logits_is_compiled_too():
    """The first decode step compiled it after the warm-up."""
    fields = {"heads": 32, "d_dtype": "fp32"}
    paged = _C.Problem("fp8_paged_mqa_logits", 4, 4096, 64, block_kv=64, **fields)
    prefill = _C.Problem("fp8_mqa_logits", 128, 4096, 64, **fields)
    found = [METADATA in kernel_set._list_passes([problem], H200, False) for problem in (paged, prefill, SHAPE)]
    assert found == [True, False, False]


def compile_plain(monkeypatch, problems, *arguments, **options) -> tuple[list[str], "warm_up.WarmUpReport"]:
    """Warm up with a compiler that takes everything; return the plain kernels that it got, and the report."""
    got = []
    monkeypatch.setattr(kernel_set.KernelSet, "compile", lambda kernels, jobs: got.extend(jobs))
    report = deep_gemm.warmup(problems, *arguments, device=H200, **options)
    return [job.describe() for job in got if not job.problem], report


def test_calls_of_an_op_without_problems_are_prepared(monkeypatch, tmp_path):
    """Of the rows in force and under the limit of SMs; they were left out, and unknown in a file."""
    path = tmp_path / "shapes.jsonl"
    call = {"op": "tf32_hc_prenorm_gemm", "m": 13, "n": 24, "k": 7168}
    path.write_text(f"{json.dumps(call)}\n{SHAPE.to_json()}\n")
    whole = plain_symbol("hc_prenorm") + " {'kColumnTiles': 3, 'kRowTiles': %d, 'kParts': %d}"
    for given in (str(path), [call, SHAPE], [json.dumps(call), SHAPE], iter([PrenormCall(13, 24, 7168), SHAPE])):
        found, report = compile_plain(monkeypatch, given)
        assert (found[-1], report.problems) == (whole % (1, 8), 2)
    assert list_problems(path, None, H200) == [SHAPE]
    found, report = compile_plain(monkeypatch, [call], iter(np.array([13, 193, 4096])))
    assert found == [whole % (1, 8), whole % (2, 8), whole % (4, 1), plain_symbol("hc_prenorm_sum")]
    assert report.problems == 3
    assert len(compile_plain(monkeypatch, [call, call | {"m": 99}], any_size=True)[0]) == 13
    deep_gemm.set_num_sms(100)
    try:
        assert compile_plain(monkeypatch, [call])[0] == [whole % (1, 1), plain_symbol("hc_prenorm_sum")]
    finally:
        deep_gemm.set_num_sms(0)


def test_a_call_that_cannot_be_is_named_with_its_line(tmp_path):
    path = tmp_path / "shapes.jsonl"
    path.write_text(SHAPE.to_json() + '\n{"op":"tf32_hc_prenorm_gemm","fields":{"m":8,"n":24}}\n')
    with pytest.raises(ProblemError, match="line 2: tf32_hc_prenorm_gemm = .*must have m, n and k"):
        list_problems(path, None, H200)
