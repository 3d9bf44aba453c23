"""The threads that Python launches plain kernels with are those of the kernels' headers, which index by them."""

import re
from pathlib import Path

import pytest

import deep_gemm
from deep_gemm import cast_kernels, hc_prenorm, logits

HEADERS = Path(deep_gemm.__file__).parent / "include" / "deep_gemm"
THREADS = {
    "mqa_metadata": logits._THREADS,
    "cast_rows": cast_kernels._ROW_THREADS,
    "swiglu_grad": cast_kernels._ROW_THREADS,
    "k_grouped_packing": cast_kernels._PACKING_THREADS,
    "hc_prenorm": hc_prenorm._THREADS,
    "hc_prenorm_sum": hc_prenorm._SUM_THREADS,
}


@pytest.mark.parametrize("name", THREADS)
def test_a_launch_has_the_threads_of_its_header(name):
    text = (HEADERS / f"{name}.cuh").read_text(encoding="utf-8")
    assert [int(number) for number in re.findall(r"\bkThreads = (\d+)", text)] == [THREADS[name]]
