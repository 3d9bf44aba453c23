"""The demo's parts that need no GPU, on the packaged artefact and snapshot."""

from pathlib import Path

import pytest

import deep_gemm.models
from deep_gemm import _C
from examples import demo
from tuner.db import snapshot_path

ARTEFACT = Path(next(iter(deep_gemm.models.__path__))) / f"{demo.RECORDED_SKU}.dgsel"


def test_recorded_comparison_fills_every_row():
    rows = demo.compare_recorded(ARTEFACT, snapshot_path(demo.RECORDED_SKU))
    assert len(rows) == demo.ROWS
    assert all(0.5 < row["speed_up"] < 2 and row["learned_us"] > 0 for row in rows)


def test_product_on_the_cpu_is_right():
    assert demo.multiply(_C.Problem(demo.OP, 5, 136, 272), "cpu") == pytest.approx(0, abs=5e-6)
