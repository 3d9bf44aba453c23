"""The real kernels of attention index logits compute what the reference says on the emulator, under any schedule."""

import pytest

from tests.emulator.logits import Logits, run_logits

#: As soon as possible, as late as possible, and two random schedules.
SEEDS = (0, 1, 2, 3)
LOGITS = {
    "prefill": Logits((2, 128, 4), prefill=(9, 300)),
    "tiles of one warpgroup": Logits((1, 128, 4), lengths=(1,) * 20, num_sms=1),
    "pages": Logits((1, 128, 4), heads=32, lengths=(1, 63, 0, 130, 700), num_sms=2),
    "three loading warps": Logits((1, 192, 6), heads=32, lengths=(1, 63, 0, 130, 700, 900), num_sms=2),
}
MORE_LOGITS = {
    "compressed": Logits((4, 192, 6), heads=16, head_dim=64, prefill=(17, 200), mode="compressed", ranges="empty"),
    "dirty bf16": Logits((1, 128, 4), heads=64, head_dim=128, d_dtype="bf16", prefill=(5, 130), mode="dirty"),
    "three loading warps, two tokens": Logits(
        (2, 192, 6), heads=32, lengths=(65, 2, 200, 0, 900), next_n=2, block_kv=32, num_sms=2
    ),
    "two tokens": Logits((2, 128, 4), heads=32, lengths=(65, 2, 200), next_n=2, block_kv=32, d_dtype="bf16"),
}


@pytest.mark.parametrize("name", LOGITS)
def test_kernels_compute_the_logits(emulate, name):
    """One of each kind."""
    cubin = LOGITS[name].build()
    assert [emulate(run_logits, LOGITS[name], cubin, seed=seed) for seed in SEEDS] == [""] * len(SEEDS)


@pytest.mark.full
@pytest.mark.parametrize("name", [*LOGITS, *MORE_LOGITS])
def test_all_kernels_compute_the_logits_under_many_schedules(emulate, name):
    """Every kind, by 12 schedules."""
    logits = (LOGITS | MORE_LOGITS)[name]
    cubin = logits.build()
    assert [emulate(run_logits, logits, cubin, seed=seed) for seed in range(12)] == [""] * 12


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_pages_are_loaded_without_a_hint_where_logits_do_not_stay_in_l2(emulate, seed):
    """By as few logits as the emulator can compute: for none of them is there room."""
    logits = MORE_LOGITS["three loading warps, two tokens"]
    cubin = logits.build({"deep_gemm/mqa_paged_schedule.cuh": ("24 << 20", "0")})
    assert emulate(run_logits, logits, cubin, seed=seed) == ""
