"""Which launches may start while the kernel before them ends."""

import pytest

from deep_gemm import _C
from tests.fakes.stub_driver import load_kernel, select
from tests.fakes.stub_operands import make_variant


def launch(op, n, fields):
    problem = _C.Problem(op, 1, 1, 1)
    positional, _ = make_variant(problem, fields["block_m"], n, 4096)
    load_kernel(_C.Config(**fields), problem=problem).launch(*positional)


def launch_without(is_enabled: bool) -> None:
    before = _C.get_pdl()
    _C.set_pdl(is_enabled)
    try:
        launch("fp8_gemm", 4096, {"block_m": 64, "block_n": 32, "num_stages": 17, "block_k": 128})
    finally:
        _C.set_pdl(before)


@pytest.mark.parametrize("is_enabled", [False, True])
def test_nothing_starts_early_where_that_is_switched_off(driver, is_enabled):
    _, events = driver.call(launch_without, is_enabled)
    assert [event["overlap"] for event in select(events, "LaunchKernelEx")] == [int(is_enabled)]


@pytest.mark.parametrize(
    "op, n, tile, others, blocks_per_sm, overlap",
    [
        ("bf16_gemm", 2112, (16, 64, 10), {"split_k": 4, "swap_ab": 1}, 2, 1),
        ("bf16_gemm", 8448, (16, 64, 22), {"swap_ab": 1}, 1, 0),
        ("bf16_gemm", 4096, (64, 32, 18), {}, 1, 0),
        ("bf16_gemm", 4096, (64, 56, 14), {}, 1, 0),  # 74 CTAs
        ("bf16_gemm", 2112, (64, 32, 18), {}, 1, 1),  # 66: two such kernels fit side by side
        ("bf16_gemm", 16384, (64, 64, 12), {}, 1, 0),  # two tiles a CTA
        ("fp8_gemm", 3584, (64, 32, 17), {}, 1, 1),
        ("fp8_gemm", 1984, (16, 64, 10), {"split_k": 4, "swap_ab": 1}, 2, 0),  # 124 CTAs
        ("fp8_gemm", 1792, (16, 64, 10), {"split_k": 4, "swap_ab": 1}, 2, 1),  # 112
        ("fp8_gemm", 2112, (16, 64, 10), {"split_k": 4, "swap_ab": 1}, 2, 0),
        ("fp8_gemm", 2112, (16, 64, 6), {"split_k": 4, "swap_ab": 1}, 3, 1),
        ("fp8_gemm", 4096, (64, 32, 17), {}, 1, 1),
    ],
)
def test_which_grids_start_early(driver, op, n, tile, others, blocks_per_sm, overlap):
    fields = dict(zip(("block_m", "block_n", "num_stages"), tile, strict=True)) | others
    fields["block_k"] = _C.stage_k(op)
    assert _C.blocks_per_sm(_C.Problem(op, 1, 1, 1), _C.Config(**fields)) == blocks_per_sm
    _, events = driver.call(launch, op, n, fields)
    (event,) = select(events, "LaunchKernelEx")
    assert event["overlap"] == overlap, event["grid"]
