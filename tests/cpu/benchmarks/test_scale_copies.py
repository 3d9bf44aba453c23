"""What the benchmark of copied scales derives from its rows, and that it leaves the library as it was."""

import pytest

from benchmarks import scale_copies
from deep_gemm import _C


def make_row(m: int, direct: float, copied: float) -> dict:
    times = {"cublaslt": [90.0], "auto mn_major": [100.0] * 3, "auto row_major": [direct] * 3, "auto copied": [copied]}
    return {"num_groups": 0, "mean_m": m, "m": m, "n": 2048, "k": 4096, "times": times}


def test_costs(capsys):
    rows = [make_row(8192, 110.0, 103.0), make_row(1024, 101.0, 104.0), make_row(64, 0.0, 0.0) | {"times": {}}]
    assert scale_copies.compare(rows[0]) == pytest.approx((36.0, 10.0, 3.0))
    scale_copies.print_costs(rows)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[1] for line in lines] == ["m", "1024", "8192"] and lines[2][-2:] == ["10.00", "3.00"]


def test_problems():
    keys = scale_copies.FAMILY.read_keys()
    assert len({scale_copies.FAMILY.identify(key) for key in keys}) == len(keys) == 25 + 8
    for key in keys:
        problems = scale_copies.FAMILY.make_problems(key)
        assert problems["copied"] == problems["mn_major"] != problems["row_major"]
        assert problems["copied"].op in scale_copies.FAMILY.ops and problems["copied"].m == key["m"]


def test_scales_are_copied_for_these_calls_alone():
    seen = []
    scale_copies.with_copies(lambda: seen.append(_C.get_scale_copy_work()))()
    with pytest.raises(ZeroDivisionError):
        scale_copies.with_copies(lambda: 1 / 0)()
    assert seen == [0.0] and _C.get_scale_copy_work() == 2.2e10
