"""Presets, shape files, shards and model names."""

import itertools
import json

import pytest

from deep_gemm import _C
from tuner import errors, shapes

FP8_SHAPES = {(576, 7168), (1536, 7168), (2112, 7168), (4096, 7168), (7168, 2048), (7168, 16384), (24576, 1536), (32768, 512)}


@pytest.mark.parametrize("name", shapes.preset_names())
def test_every_preset_is_measurable(name):
    problems = shapes.load_preset(name)
    assert len(set(problems)) == len(problems)
    for problem in problems:
        assert problem.k % 16 == 0 and problem.n % 8 == 0, f"{problem}: rows must be multiples of 16 bytes"
        assert problem.m * problem.n * problem.k < 1.2e12, f"{problem}: longer than about 1.5 ms"


def test_default_preset_holds_the_benchmark_and_three_more_families():
    problems = shapes.load_preset("default")
    benchmark = {(m, n, k) for n, k in FP8_SHAPES for m in (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)}
    assert benchmark <= {(problem.m, problem.n, problem.k) for problem in problems}
    assert 110 <= len(problems) <= 130 and len(set(shapes.model_names(problems))) >= 4
    assert sum(problem.m % 2 for problem in problems if problem.m > 1) >= 10


def test_portfolio_preset_is_dense_in_m():
    problems = shapes.load_preset("portfolio")
    assert len(problems) >= 600 and len(set(shapes.model_names(problems))) >= 4
    sizes = sorted({problem.m for problem in problems})
    assert sizes[0] == 1 and sizes[-1] == 16384
    assert all(after / before <= 2.0 for before, after in itertools.pairwise(sizes))
    assert len({(problem.n, problem.k) for problem in problems}) >= 40


@pytest.mark.parametrize("count", [1, 3, 4])
def test_shards_partition_the_problems_and_balance_work(count):
    problems = shapes.load_preset("portfolio")
    parts = [shapes.take_shard(problems, index, count) for index in range(count)]
    assert sorted(problem.key for part in parts for problem in part) == sorted(problem.key for problem in problems)
    work = [sum(problem.m * problem.n * problem.k for problem in part) for part in parts]
    assert max(work) < 1.1 * min(work)


@pytest.mark.parametrize("text", ["", "1", "2/2", "-1/4", "1/0", "a/b", "0/4/1"])
def test_bad_shards_are_usage_errors(text):
    with pytest.raises(errors.UsageError, match="--shard"):
        shapes.parse_shard(text)


def test_shape_files(tmp_path):
    path = tmp_path / "shapes.json"
    wanted = [_C.Problem("fp8_gemm", 3, 64, 128), _C.Problem("fp8_gemm", 5, 64, 128, num_sms=66)]
    rows = [{"m": 3, "n": 64, "k": 128}, {"m": 5, "n": 64, "k": 128, "num_sms": 66}, {"m": 3, "n": 64, "k": 128}]
    for text in (json.dumps({"problems": rows}), json.dumps(rows), "\n".join(map(json.dumps, rows)), "\n".join(problem.to_json() for problem in wanted)):
        path.write_text(text)
        assert shapes.load_file(path) == wanted
    groups = {"groups": [{"model": "x", "m": [1, 2], "shapes": [{"name": "y", "n": 64, "k": 128}, {"name": "z", "n": 8, "k": 16, "m": [3]}]}]}
    path.write_text(json.dumps(groups))
    assert [(problem.m, problem.n) for problem in shapes.load_file(path)] == [(1, 64), (2, 64), (3, 8)]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"problems": [{"m": 0, "n": 1, "k": 1}]}', '{"problems": [{"m": 1}]}', '{"groups": [{}]}', "\0"])
def test_bad_shape_files_are_usage_errors(tmp_path, text):
    path = tmp_path / "shapes.json"
    path.write_text(text)
    with pytest.raises(errors.UsageError, match="shapes.json"):
        shapes.load_file(path)
    with pytest.raises(errors.UsageError):
        shapes.load_file(tmp_path / "absent.json")


def test_unknown_names():
    with pytest.raises(errors.UsageError, match="demo"):
        shapes.load_preset("everything")
    assert shapes.model_names([_C.Problem("fp8_gemm", 1, 2112, 7168), _C.Problem("fp8_gemm", 1, 8, 16)]) == ["DeepSeek-V3", shapes.OTHER_MODEL]
