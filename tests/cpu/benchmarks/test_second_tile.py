"""What the benchmark of two tiles times, and what it derives from its rows."""

import pytest

from benchmarks import second_tile
from benchmarks.choices import Choices
from deep_gemm import _C

H200 = _C.Device.known("h200")


def test_problems_have_two_tiles_and_four_draws_of_their_rows():
    keys = second_tile.list_keys(H200)
    assert len({second_tile.FAMILY.identify(key) for key in keys}) == len(keys) > 60
    shapes = {tuple(key[name] for name in ("dtype", "num_groups", "mean_m", "n", "k")) for key in keys}
    assert 3 * len(shapes) < len(keys) <= 4 * len(shapes) and {dtype for dtype, *_ in shapes} == {"fp8", "bf16"}
    for key in keys:
        low, high = (bound * key["num_groups"] * key["mean_m"] for bound in (0.69, 1.31))
        assert low <= key["sum_m"] <= high
    ((layout, problem),) = second_tile.FAMILY.make_problems(keys[0]).items()
    chosen = Choices(problem.op, H200).of(problem, second_tile.FAMILY.roles[layout])
    assert set(chosen) == {"auto", "first", "second"}
    assert chosen["auto"].name == f"{chosen['first'].name} or {chosen['second'].name}"


def test_recorded_problems_are_of_the_grid():
    keys = second_tile.FAMILY.read_keys()
    assert len({second_tile.FAMILY.identify(key) for key in keys}) == len(keys) == 152
    for key in keys:
        assert key["num_groups"] in second_tile.GROUPS and (key["n"], key["k"]) in second_tile.SHAPES
        assert key["sum_m"] in [second_tile.draw_rows(key, draw) for draw in range(second_tile.NUM_DRAWS)]


def make_row(groups: int, both: float, first: float, second: float) -> dict:
    names = {"auto": "a or b", "first": "a", "second": "b"}
    times = {"auto mn_major": [both] * 3, "a mn_major": [first], "b mn_major": [second], "cublaslt": [1.0]}
    sizes = {"dtype": "fp8", "num_groups": groups, "max_m": 64, "mean_m": 32, "n": 64, "k": 128}
    return sizes | {"times": times, "choices": {role: {"config": name} for role, name in names.items()}}


def test_gains(capsys):
    rows = [make_row(1, 10.0, 12.0, 9.0), make_row(1, 10.0, 9.0, 20.0), make_row(2, 5.0, 5.0, 6.0)]
    assert second_tile.compare(rows[0]) == pytest.approx((1.2, 0.9))
    failed, single = make_row(1, 1.0, 9.0, 9.0) | {"times": {}}, make_row(1, 1.0, 9.0, 9.0)
    single["choices"] = {"auto": {"config": "a"}}
    second_tile.print_gains([*rows, failed, single])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[1:] for line in lines[1:]] == [
        ["1", "2", "1.039", "0.900", "1.200", "0.900"],
        ["2", "1", "1.000", "1.000", "1.000", "1.000"],
        ["all", "3", "1.026", "0.900", "1.200", "0.932"],
    ]
