"""Variants of the paged logits kernel: what the benchmark compiles, and the figures that it prints."""

import pytest

from benchmarks import mqa_logits
from benchmarks.mqa_logits import VARIANTS, Variant
from deep_gemm import _C

H200 = _C.Device.known("h200")
KEY = {"form": "paged", "tokens": 0, "batch": 64, "next_n": 1, "heads": 32, "head_dim": 128, "block_kv": 64, "n": 32768}


def test_every_variant_has_a_source_of_its_own():
    made = mqa_logits.make_sources(KEY, H200)
    assert list(made) == [name for name in VARIANTS if name != "s9"]  # which is the shipped one
    assert all(_C.is_legal(problem, config, H200) for problem, config, _ in made.values())
    assert "kNumStages = 6;" in made["s6"][2] and made["s6"][1].num_stages == 6
    assert "kMathGroups = 2;" in made["two groups s8"][2] and "kNumStages = 8;" in made["two groups s8"][2]


def test_a_constant_that_the_source_lacks_is_refused():
    with pytest.raises(ValueError, match="kStages: 0 such constants"):
        Variant(constants=(("kStages", "6"),)).adapt_source("u32 kNumStages = 12;")


def test_figures():
    times = {"shipped": [10.0, 11.0, 30.0], "s9": [10.0, 10.0, 10.0]}
    row = {**KEY, "mean": 8192, "upstream_us": 9.9, "times": times, "wrong": []}
    assert "shipped   11.00 us  s9 1.100" in mqa_logits.format_variants(row)
    assert "OTHER BITS ['s9']" in mqa_logits.format_variants(row | {"wrong": ["s9"]})
    shipped, s9 = mqa_logits.format_means([row, row | {"upstream_us": 12.1}])
    assert shipped.endswith("1.000 of shipped; upstream 0.995, worst 0.900")
    assert s9.endswith("1.100 of shipped; upstream 1.094, worst 0.990")
