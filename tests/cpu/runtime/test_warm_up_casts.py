"""After a warm-up for FP8 products, what quantises their operands and lays out their scales compiles nothing either."""

import os
from pathlib import Path

import pytest
import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import ArgumentError
from deep_gemm.jit import build, kernel_set
from deep_gemm.jit.compile_pool import SCALE_COPIES
from tests.fakes import stub_driver
from tests.fakes.compiler import install_counting_nvcc, read_compiled
from tests.fakes.cuda_tensors import make_tensor, needs_exchange, use_fakes
from tests.fakes.stub_driver import select

BF16, FP32, INT32 = torch.bfloat16, torch.float32, torch.int32
A, B = 1 << 40, 1 << 41
DENSE = {"op": "fp8_gemm", "m": 64, "n": 256, "k": 512}
MASKED = {"op": "m_grouped_fp8_gemm_masked", "m": 64, "n": 256, "k": 512, "num_groups": 4, "expected_m": 5}
WGRAD = DENSE | {"m": 256, "recipe": "1d1d", "d_dtype": "fp32"}
H200 = _C.Device.known("h200")


def quantise(name: str) -> None:
    """Call what comes before a product of the problem `name`, with scales of both kinds."""
    rows = make_tensor(A, (64, 512), BF16)
    for use_ue8m0 in (False, True):
        deep_gemm.per_token_cast_to_fp8(rows, use_ue8m0)
        deep_gemm.per_token_cast_to_fp8(rows, use_ue8m0, scales="mn_major")
        if name == "masked":
            counts = make_tensor(B, (4,), INT32)
            deep_gemm.per_token_cast_to_fp8(make_tensor(A, (4, 64, 512), BF16), use_ue8m0, masked_m=counts)
        if name == "weight gradient":
            deep_gemm.per_channel_cast_to_fp8(make_tensor(A, (256, 512), BF16), use_ue8m0)


def warm_up_and_quantise(folder: str, name: str, problem: dict) -> tuple[dict, int, int]:
    """Return the report, what was compiled by casts after the warm-up, and by a change of layout after them."""
    os.environ |= {"DG_JIT_USE_NVRTC": "0", "DG_JIT_CACHE_DIR": f"{folder}/home"}
    os.environ["DG_JIT_NVCC_COMPILER"] = str(install_counting_nvcc(Path(folder)))
    real = build.get_cubin_for_source, build.find_cubin_for_source
    use_fakes()
    build.get_cubin_for_source, build.find_cubin_for_source = real
    report = deep_gemm.warmup([problem]).as_dict()
    counts = [build.count_compilations()]
    for call in (
        lambda: quantise(name),
        lambda: deep_gemm.get_mn_major_tma_aligned_tensor(make_tensor(A, (64, 4), FP32)),
    ):
        call()
        counts.append(build.count_compilations())
    return report, counts[1] - counts[0], counts[2] - counts[1]


@needs_exchange
@pytest.mark.parametrize(
    "name, problem, kernels",
    [
        ("dense", DENSE, ["cast_rows"] * 2),
        pytest.param("masked", MASKED, ["cast_rows"] * 4, marks=pytest.mark.full),
        pytest.param("weight gradient", WGRAD, ["cast_blocks"] * 2 + ["cast_rows"] * 2, marks=pytest.mark.full),
    ],
)
def test_casts_after_a_warm_up_compile_and_load_nothing(tmp_path, name, problem, kernels):
    """The first call of each waited for the compiler: a problem names its product, not what makes its operands."""
    with stub_driver.start(tmp_path) as fresh:
        (report, *later), events = fresh.call(warm_up_and_quantise, str(tmp_path), name, problem)
    assert (later, report["failures"]) == ([0, 0], [])
    assert sorted(line for line in read_compiled(tmp_path) if "cast" in line) == [f"// {one}" for one in kernels]
    launches = [index for index, event in enumerate(events) if event["call"] == "cuLaunchKernelEx"]
    loads = [index for index, event in enumerate(events) if event["call"] == "cuLibraryGetKernel"]
    assert len(launches) == 5 + 2 * (name != "dense")
    assert sum(index > launches[0] for index in loads) <= 1, "loaded ahead, but for the change of layout"
    assert len(select(events, "LibraryLoadData")) <= report["kernels"] + 1


def list_plain(*problems: dict) -> list[str]:
    """Return the casts and the changes of layout that a warm-up for the problems compiles."""
    listed = [_C.Problem(**fields) for fields in problems]
    layouts = [job for job in kernel_set._list_passes(listed, H200, False) if job in SCALE_COPIES]
    return [job.describe() for job in (*kernel_set._list_casts(listed), *layouts)]


def test_what_has_no_cast_before_it_compiles_none():
    """BF16 products, logits, whose queries the caller makes, and scales for whole rows, which are the caller's own."""
    logits = {"op": "fp8_mqa_logits", "m": 128, "n": 4096, "k": 64, "heads": 32, "d_dtype": "fp32"}
    assert not list_plain(DENSE | {"op": "bf16_gemm"}, logits)
    assert not [name for name in list_plain(DENSE | {"recipe": "per_row"}) if "cast" in name]
    few = list_plain(DENSE, DENSE | {"m": 1}, DENSE | {"scale_layout": "any"})
    assert len(few) == 4 and len(list_plain(DENSE | {"scale_layout": "any"})) == 2
    assert len(list_plain(DENSE, MASKED, WGRAD)) == 8


def test_only_plain_kernels_are_loaded_as_such():
    with pytest.raises(ArgumentError, match="kernel = <built-in function len>: must be one of make_plain_kernel"):
        _C.load_plain_kernel(len, 0)
