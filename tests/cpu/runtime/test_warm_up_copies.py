"""Warm-ups for FP8 products on row-major scales, which large ones copy first, against the stub driver: no later call
compiles or loads anything. Where the pass that copies does not compile, the scales are read where they are.
"""

import json
import os
import warnings
from pathlib import Path

import pytest

import deep_gemm
from deep_gemm import _C, stream
from deep_gemm.jit import build
from tests.fakes import stub_driver
from tests.fakes.compiler import install_counting_nvcc
from tests.fakes.stub_operands import view

N, K = 2048, 4096
STEPS = K // 128
LARGE, SMALL = 4096, 64  # rows with which scales are copied, and are not
BY_ROWS = (1, 1, 128)


def prepare(folder: str, **failing: str) -> None:
    """Compile with a counting compiler, for which kernels in `failing` do not compile, and take memory from nowhere."""
    os.environ |= {"DG_JIT_USE_NVRTC": "0", "DG_JIT_CACHE_DIR": f"{folder}/home"}
    os.environ["DG_JIT_NVCC_COMPILER"] = str(install_counting_nvcc(Path(folder), **failing))
    stream.empty_fp8 = lambda *arguments: view(1 << 47, (1, 1), (1, 1), "float8_e4m3fn")


def multiply(rows: int, recipe: tuple[int, int, int] | None = None, step: int = 1, groups: int = 0) -> None:
    """Call a product on scales whose columns are `step` elements apart."""
    a = view(1 << 44, (rows, K), (K, 1), "float8_e4m3fn")
    scale_a = view(1 << 46, (rows, STEPS), (step * STEPS, step), "float32")
    lead, rows_b = (groups,) if groups else (), N if recipe else N // 128
    b = view(1 << 45, (*lead, N, K), (*[N * K][: len(lead)], K, 1), "float8_e4m3fn")
    scale_b = view(1 << 43, (*lead, rows_b, STEPS), (*[rows_b * STEPS][: len(lead)], STEPS, 1), "float32")
    d = view(1 << 42, (rows, N), (N, 1), "bfloat16")
    if groups:
        layout = view(1 << 41, (rows,), (1,), "int32")
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous((a, scale_a), (b, scale_b), d, layout, recipe=recipe)
    else:
        deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), d, recipe=recipe, stream=7)


def make_problem(rows: int, **fields) -> "_C.Problem":
    return _C.Problem(**{"op": "fp8_gemm", "m": rows, "n": N, "k": K, "scale_layout": "any"} | fields)


#: Name -> (fields of the problem, options of the warm-up, calls after it, SMs).
CASES = {
    "large": ({"rows": LARGE}, {}, [{"rows": LARGE}], 0),
    "small, of any size": ({"rows": SMALL}, {"any_size": True}, [{"rows": SMALL}, {"rows": LARGE}], 0),
    "other rows": ({"rows": LARGE}, {"m": (SMALL, LARGE)}, [{"rows": SMALL}, {"rows": LARGE}], 0),
    "limited": ({"rows": LARGE, "num_sms": 100}, {}, [{"rows": LARGE}], 100),
    "columns apart": ({"rows": LARGE}, {}, [{"rows": LARGE, "step": 2}], 0),
    "both vectors": ({"rows": LARGE, "recipe": "1d1d"}, {}, [{"rows": LARGE, "recipe": BY_ROWS}], 0),
    "groups, both vectors": (
        {"rows": LARGE, "recipe": "1d1d", "op": "m_grouped_fp8_gemm_contiguous", "num_groups": 4},
        {},
        [{"rows": LARGE, "recipe": BY_ROWS, "groups": 4}],
        0,
    ),
}
QUICK = ("other rows", "groups, both vectors")


def warm_up_and_call(folder: str, name: str) -> tuple[dict, int]:
    """Warm up and call; return the report and what the calls compiled."""
    fields, options, calls, num_sms = CASES[name]
    prepare(folder)
    report = deep_gemm.warmup([make_problem(**fields)], **options).as_dict()
    before = build.count_compilations()
    deep_gemm.set_num_sms(num_sms)
    for call in calls:
        multiply(**call)
    deep_gemm.set_num_sms(0)
    return report, build.count_compilations() - before


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in CASES]
)
def test_calls_after_a_warm_up_load_nothing(tmp_path, name):
    with stub_driver.start(tmp_path) as fresh:
        (report, compiled), events = fresh.call(warm_up_and_call, str(tmp_path), name)
    assert (compiled, report["failures"]) == (0, [])
    steps = [event["call"] for event in events if event["call"] in ("cuLibraryGetKernel", "cuLaunchKernelEx")]
    loaded = steps.index("cuLaunchKernelEx")
    assert loaded == report["kernels"] and set(steps[loaded:]) == {"cuLaunchKernelEx"}, "loaded ahead, not by the calls"


def record(folder: str) -> list[dict]:
    """Call a large product; return what was recorded, and of a warm-up with other rows what a small call compiled."""
    prepare(folder)
    os.environ["DG_RECORD_SHAPES"] = f"{folder}/shapes.jsonl"
    multiply(LARGE)
    del os.environ["DG_RECORD_SHAPES"]
    deep_gemm.warmup(f"{folder}/shapes.jsonl", m=(SMALL,))
    before = build.count_compilations()
    multiply(SMALL)
    assert build.count_compilations() == before
    return [json.loads(line) for line in Path(folder, "shapes.jsonl").read_text().splitlines()]


def test_the_problem_is_recorded_as_it_was_given_too(tmp_path):
    with stub_driver.start(tmp_path) as fresh:
        recorded, _ = fresh.call(record, str(tmp_path))
    assert sorted(row.get("fields", row).get("scale_layout", "mn_major") for row in recorded) == ["any", "mn_major"]


def call_without_the_pass(folder: str) -> list[str]:
    """Call large products where what copies scales does not compile; return the warnings."""
    prepare(folder, scale_layout="exit 3")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            multiply(LARGE)
        multiply(LARGE, BY_ROWS)
    return [str(one.message) for one in caught]


def test_without_the_pass_scales_are_read_where_they_are(tmp_path):
    with stub_driver.start(tmp_path) as fresh:
        said, events = fresh.call(call_without_the_pass, str(tmp_path))
    assert len(said) == 1 and "row-major scales of large products are not copied" in said[0]
    assert sum(event["call"] == "cuLaunchKernelEx" for event in events) == 3


def test_a_variable_copies_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("DG_COPY_SCALES", "0")
    with stub_driver.start(tmp_path) as fresh:
        work, _ = fresh.call(_C.get_scale_copy_work)
    assert work == float("inf")
