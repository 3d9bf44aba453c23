"""Which launches may start while the kernel before them ends."""

import pytest

from deep_gemm import _C
from tests.fakes import stub_driver
from tests.fakes.stub_driver import load_kernel, select
from tests.fakes.stub_operands import make_variant


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with stub_driver.start(tmp_path_factory.mktemp("stub")) as stub:
        yield stub


def launch_filling(num_stages):
    problem = _C.Problem("bf16_gemm", 1, 1, 1)
    positional, _ = make_variant(problem, 16, 2112, 4096)
    load_kernel(_C.Config(16, 64, num_stages, block_k=64, split_k=4, swap_ab=1), problem=problem).launch(*positional)


@pytest.mark.parametrize("num_stages, blocks_per_sm, overlap", [(10, 2, 0), (6, 3, 1)])
def test_clusters_that_fill_the_sms_once_start_early_where_three_fit(driver, num_stages, blocks_per_sm, overlap):
    config = _C.Config(16, 64, num_stages, block_k=64, split_k=4, swap_ab=1)
    assert _C.blocks_per_sm(_C.Problem("bf16_gemm", 1, 1, 1), config) == blocks_per_sm
    _, events = driver.call(launch_filling, num_stages)
    (launch,) = select(events, "LaunchKernelEx")
    assert (launch["grid"], launch["overlap"]) == ([132, 1, 1], overlap)
