"""Presets, shape files, shards and model names."""

import itertools
import json
from collections import Counter

import pytest

from benchmarks import choice_regret
from benchmarks.stamp import DATA
from deep_gemm import _C
from deep_gemm.fields import OP_KINDS
from tests.fakes.grouped_variants import CONTIGUOUS, GROUPED_OPS, K_GROUPED, MASKED, make_grouped
from tuner import errors
from tuner.measure import operands
from tuner.problems import shapes
from tuner.problems.fields import get_tokens, get_weight_shape
from tuner.problems.workload import Workload, make_draws

FP8_SHAPES = {
    (576, 7168),
    (1536, 7168),
    (2112, 7168),
    (4096, 7168),
    (7168, 2048),
    (7168, 16384),
    (24576, 1536),
    (32768, 512),
}


@pytest.mark.parametrize("name", shapes.preset_names())
def test_every_preset_is_measurable(name):
    problems = shapes.load_preset(name)
    assert len(set(problems)) == len(problems)
    for problem in problems:
        has_rows_of_n = not OP_KINDS[problem.op].is_logits  # there n counts keys, and rows of logits are padded
        assert problem.k % 16 == 0 and (problem.n % 8 == 0 or not has_rows_of_n), f"{problem}: rows of whole 16 bytes"
        assert problem.a_major == "k" or problem.m % 8 == 0, f"{problem}: columns of A must be multiples of 16 bytes"
        assert problem.m * problem.n * problem.k < 4e12, f"{problem}: longer than about 10 ms"
        assert _C.get_candidates(problem, _C.Device.known("h200")) and not problem.compiled_dims


def test_default_preset_holds_the_benchmark_and_three_more_families():
    problems = shapes.load_preset("default")
    benchmark = {(m, n, k) for n, k in FP8_SHAPES for m in (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)}
    assert benchmark <= {(problem.m, problem.n, problem.k) for problem in problems}
    assert 110 <= len(problems) <= 130 and len(set(shapes.model_names(problems))) >= 4
    assert sum(problem.m % 2 for problem in problems if problem.m > 1) >= 10


def test_dense_preset_holds_every_kind_of_dense_problem():
    parts = {
        name: shapes.load_preset(name) for name in ("default", "bf16", "wgrad", "row_major", "drawn", "drawn_edges")
    }
    assert shapes.load_preset("dense") == [problem for part in parts.values() for problem in part]
    assert [len(part) for part in parts.values()] == [122, 71, 14, 12, 272, 104]
    assert all(problem == _C.Problem("fp8_gemm", problem.m, problem.n, problem.k) for problem in parts["default"])
    layouts = Counter((problem.a_major, problem.b_major, problem.d_dtype) for problem in parts["bf16"])
    assert layouts == {
        ("k", "k", "bf16"): 35,
        ("k", "k", "fp32"): 6,
        ("k", "mn", "bf16"): 10,
        ("mn", "mn", "bf16"): 10,
        ("mn", "k", "bf16"): 10,
    }
    assert Counter((problem.recipe, problem.d_dtype, problem.c_mode) for problem in parts["wgrad"]) == {
        ("1d1d", "fp32", "accumulate"): 7,
        ("1d1d", "bf16", "none"): 7,
    }
    assert all(problem.scale_layout == "any" for problem in parts["row_major"])


def test_training_preset_holds_weight_gradients_onto_fp32():
    """As training runs them: FP8 with both operands by rows, BF16 with both as the forward pass left them."""
    problems = shapes.load_preset("training")
    fields = Counter((p.op, p.recipe, p.a_major, p.b_major, p.d_dtype, p.c_mode) for p in problems)
    fp8 = ("fp8_gemm", "1d1d", "k", "k", "fp32", "accumulate")
    bf16 = ("bf16_gemm", "1d2d", "mn", "mn", "fp32", "accumulate")
    assert fields == {fp8: 39, bf16: 10}
    scored = {(row["n"], row["k"]) for row in json.loads((DATA / "random_fp8.json").read_text())["rows"]}
    assert not {(problem.n, problem.k) for problem in problems} & scored
    assert len(set(shapes.model_names(problems))) >= 5 and {p.k for p in problems} >= {1024, 4096, 32768}


def test_bf16_portfolio_preset_has_a_few_hundred_problems():
    problems = shapes.load_preset("portfolio_bf16")
    assert all(problem.op == "bf16_gemm" for problem in problems) and 300 <= len(problems) <= 500
    assert sum(problem.a_major == problem.b_major == "k" for problem in problems) > 0.8 * len(problems)
    assert shapes.load_preset("portfolio_dense") == [
        problem
        for name in ("portfolio", "portfolio_variants", "portfolio_bf16", "portfolio_random")
        for problem in shapes.load_preset(name)
    ]


def test_random_preset_covers_long_k_and_odd_sizes_but_no_shape_of_the_benchmark():
    problems = shapes.load_preset("portfolio_random")
    assert count_ops(problems) == {"fp8_gemm": 96, "bf16_gemm": 48}
    assert set(shapes.model_names(problems)) == {"drawn"}
    assert sum(problem.k > 12288 and 64 < problem.m <= 4096 for problem in problems) >= 15
    assert sum(problem.k // 128 % 2 for problem in problems) > 60 and sum(problem.n % 32 for problem in problems) > 60
    timed = {(row["m"], row["n"], row["k"]) for row in json.loads((DATA / "random_fp8.json").read_text())["rows"]}
    assert len(timed) == 60 and not timed & {(problem.m, problem.n, problem.k) for problem in problems}


DRAWN = {
    "drawn": {"fp8_gemm": 160, "bf16_gemm": 112},
    "drawn_edges": {"fp8_gemm": 60, "bf16_gemm": 44},
    "drawn_log": {"fp8_gemm": 110, "bf16_gemm": 240},
    "drawn_decode": {"fp8_gemm": 56, "bf16_gemm": 34},
    "drawn_grouped": {
        "m_grouped_fp8_gemm_masked": 80,
        "m_grouped_fp8_gemm_contiguous": 100,
        "m_grouped_bf16_gemm_masked": 60,
        "m_grouped_bf16_gemm_contiguous": 74,
        "k_grouped_fp8_gemm_contiguous": 30,
        "k_grouped_bf16_gemm_contiguous": 30,
        "batched_bf16_gemm": 40,
        "batched_fp8_gemm": 24,
    },
    "drawn_contiguous": {"m_grouped_fp8_gemm_contiguous": 80, "m_grouped_bf16_gemm_contiguous": 30},
    "drawn_masked": {"m_grouped_fp8_gemm_masked": 104, "m_grouped_bf16_gemm_masked": 67},
}


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_presets_have_many_weights_and_none_that_choices_are_scored_on(name):
    problems = shapes.load_preset(name)
    assert count_ops(problems) == DRAWN[name]
    weights = {(problem.n, problem.k) for problem in problems}
    assert len(weights) == len(problems)
    timed = {(row["n"], row["k"]) for row in json.loads((DATA / "random_fp8.json").read_text())["rows"]}
    scored = {
        (p.n, p.k) for seed in (choice_regret.SEED, *choice_regret.OLD_SEEDS) for p in choice_regret.draw(seed=seed)
    }
    others = {(p.n, p.k) for other in set(DRAWN) - {name} for p in shapes.load_preset(other)}
    assert not weights & timed and not weights & scored and not weights & others


def test_groups_with_ends_have_room_for_the_rows_that_they_are_measured_with():
    problems = shapes.load_preset("psum")
    counts = {"m_grouped_fp8_gemm_psum": 56, "m_grouped_bf16_gemm_psum": 28}
    assert count_ops(problems) == counts | {"k_grouped_fp8_gemm_psum": 10, "k_grouped_bf16_gemm_psum": 10}
    of_rows = [problem for problem in problems if problem.op in counts]
    few = [problem for problem in of_rows if problem.expected_m < problem.alignment]
    assert len(of_rows) > len(few) > 40
    assert all(problem.m == problem.num_groups * problem.expected_m for problem in of_rows if problem not in few)
    for problem in few:
        draws = make_draws(problem, Workload())
        assert len({tuple(groups.sizes) for groups in draws}) > 1
        for groups in draws:  # none is cut by the end of m
            assert all(start % problem.alignment == 0 for start in groups.starts)
            bounds = round(0.7 * problem.expected_m), round(1.3 * problem.expected_m)
            assert all(bounds[0] <= size <= bounds[1] for size in groups.sizes)


def test_drawn_edges_has_sizes_that_no_other_whole_preset_has():
    def is_edge(problem):
        return problem.n % 32 == 16 or problem.k > 18944

    problems = shapes.load_preset("drawn_edges")
    assert all(is_edge(problem) or problem.k == 18944 for problem in problems)
    assert (
        sum(problem.n % 32 == 16 for problem in problems) > 70 and sum(problem.k > 18944 for problem in problems) > 20
    )
    assert all(problem.k // 128 % 2 and problem.m & (problem.m - 1) for problem in problems if problem.m > 1)
    others = [one for name in ("default", "bf16", "wgrad", "drawn", "drawn_log") for one in shapes.load_preset(name)]
    assert not any(problem.n % 32 == 16 and problem.n > 16 for problem in others if problem.op == "fp8_gemm")


def test_portfolio_preset_is_dense_in_m():
    problems = shapes.load_preset("portfolio")
    assert len(problems) >= 600 and len(set(shapes.model_names(problems))) >= 4
    sizes = sorted({problem.m for problem in problems})
    assert sizes[0] == 1 and sizes[-1] == 16384
    assert all(after / before <= 2.0 for before, after in itertools.pairwise(sizes))
    assert len({(problem.n, problem.k) for problem in problems}) >= 40


def count_ops(problems: list) -> dict[str, int]:
    """Return {op kind: problems}."""
    return dict(Counter(problem.op for problem in problems))


def test_grouped_preset_is_the_benchmark():
    problems = shapes.load_preset("grouped")
    assert count_ops(problems) == {op: 8 if op in CONTIGUOUS else 28 if op in MASKED else 6 for op in GROUPED_OPS}
    assert {
        (problem.num_groups, problem.m, problem.n, problem.k) for problem in problems if problem.op in CONTIGUOUS
    } == {(count, 32768, n, k) for count in (4, 8) for n, k in ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))}
    masked = {(problem.num_groups, problem.expected_m) for problem in problems if problem.op in MASKED}
    assert masked == {(1, 1024), (2, 512), (4, 256), (32, 192), (6, 1024), (32, 20), (6, 20)}
    assert {
        (problem.num_groups, problem.m, problem.n, problem.k) for problem in problems if problem.op in K_GROUPED
    } == {(count, m, n, 32768) for count in (4, 8, 16) for m, n in ((4096, 7168), (7168, 2048))}
    variants = {
        (problem.op, problem.group_layout, problem.c_mode, problem.a_major)
        for problem in problems
        if problem.op in K_GROUPED
    }
    assert variants == {(K_GROUPED[0], "blocks", "accumulate", "k"), (K_GROUPED[1], "joint", "accumulate", "mn")}


def test_grouped_portfolio_preset_has_models_groups_and_sizes_for_every_op_kind():
    problems = shapes.load_preset("portfolio_grouped")
    assert set(count_ops(problems)) == set(GROUPED_OPS) and min(count_ops(problems).values()) >= 60
    for op in GROUPED_OPS:
        mine = [problem for problem in problems if problem.op == op]
        assert len(set(shapes.model_names(mine))) >= 5 and shapes.OTHER_MODEL not in shapes.model_names(mine)
        assert {4, 64} <= {problem.num_groups for problem in mine} and len(
            {get_tokens(problem) for problem in mine}
        ) >= 10
        assert len({get_weight_shape(problem) for problem in mine}) >= 10
        assert op not in MASKED or {problem.m for problem in mine} == {512, 1024, 2048, 4096, 8192}


@pytest.mark.parametrize("name", ["grouped", "portfolio_grouped"])
def test_grouped_presets_fit_a_gpu_and_take_little_time(name):
    h200 = _C.Device.known("h200")
    for problem in shapes.load_preset(name):
        d_bytes = operands.get_layouts(problem)["d"].num_bytes
        assert operands.get_set_bytes(problem) + (3 if problem.c_mode == "accumulate" else 2) * d_bytes < 20e9, problem
        assert _C.estimate_time_us(problem, _C.get_analytic_config(problem, h200), h200) < (
            3000 if name == "portfolio_grouped" else 6000
        ), problem


def test_models_of_weights_are_those_of_the_ops_own_presets():
    weight = {"n": 4096, "k": 14336}
    dense, grouped = _C.Problem("fp8_gemm", 64, **weight), make_grouped(CONTIGUOUS[0], 1024, *weight.values(), 8)
    assert shapes.model_names([dense, grouped, make_grouped(K_GROUPED[1], 4096, 14336, 4096, 4)]) == [
        "Llama-3-8B",
        "Mixtral-8x7B",
        "Mixtral-8x7B",
    ]
    assert shapes.model_names([make_grouped(MASKED[0], 64, 6144, 7168, 2)]) == [shapes.OTHER_MODEL]


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
    for text in (
        json.dumps({"problems": rows}),
        json.dumps(rows),
        "\n".join(map(json.dumps, rows)),
        "\n".join(problem.to_json() for problem in wanted),
    ):
        path.write_text(text)
        assert shapes.load_file(path) == wanted
    groups = {
        "groups": [
            {
                "model": "x",
                "m": [1, 2],
                "shapes": [{"name": "y", "n": 64, "k": 128}, {"name": "z", "n": 8, "k": 16, "m": [3]}],
            }
        ]
    }
    path.write_text(json.dumps(groups))
    assert [(problem.m, problem.n) for problem in shapes.load_file(path)] == [(1, 64), (2, 64), (3, 8)]


def test_a_group_may_name_op_fields_and_layouts(tmp_path):
    path = tmp_path / "shapes.json"
    group = {
        "model": "x",
        "op": "bf16_gemm",
        "fields": {"d_dtype": "fp32"},
        "layouts": ["nt", "tn"],
        "m": [8],
        "shapes": [{"name": "y", "n": 64, "k": 128}],
    }
    path.write_text(json.dumps({"groups": [group]}))
    assert shapes.load_file(path) == [
        _C.Problem("bf16_gemm", 8, 64, 128, d_dtype="fp32"),
        _C.Problem("bf16_gemm", 8, 64, 128, d_dtype="fp32", a_major="mn", b_major="mn"),
    ]
    recorded = _C.Problem("fp8_gemm", 8, 64, 128, recipe="1d1d", c_mode="accumulate", d_dtype="fp32")
    path.write_text(recorded.to_json())
    assert shapes.load_file(path) == [recorded]


@pytest.mark.parametrize(
    "group, name",
    [({"M": [8]}, "m"), ({"op": "m_grouped_fp8_gemm_masked", "m": [8]}, "sizes"), ({"m": []}, "m")],
)
def test_a_group_without_sizes_is_an_error_not_an_empty_group(tmp_path, group, name):
    other = {"m": [8], "shapes": [{"n": 64, "k": 128}]}
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps({"groups": [group | {"shapes": [{"n": 512, "k": 512}]}, other]}))
    with pytest.raises(errors.UsageError, match=f"has no {name}, nor has its group"):
        shapes.load_file(path)


def test_sizes_of_grouped_ops_follow_from_means(tmp_path):
    path, shape = tmp_path / "shapes.json", {"name": "y", "n": 64, "k": 256}
    sizes = [{"num_groups": 3, "mean_m": [100, 128]}, {"num_groups": 5, "mean_m": [33]}]
    gradients = {"name": "z", "m": 64, "n": 32, "sizes": [{"num_groups": 2, "mean_k": [384]}]}
    groups = [
        {"model": "x", "op": CONTIGUOUS[1], "layouts": ["nt", "nn"], "sizes": sizes[:1], "shapes": [shape]},
        {
            "model": "x",
            "op": CONTIGUOUS[0],
            "fields": {"alignment": 64},
            "sizes": sizes[:1],
            "shapes": [shape | {"sizes": sizes[1:]}],
        },
        {"model": "x", "op": MASKED[0], "max_m": 512, "sizes": sizes[1:], "shapes": [shape]},
        {"model": "x", "op": K_GROUPED[1], "fields": {"d_dtype": "fp32"}, "layouts": ["tn"], "shapes": [gradients]},
    ]
    path.write_text(json.dumps({"groups": groups}))
    assert shapes.load_file(path) == [
        make_grouped(CONTIGUOUS[1], 384, 64, 256, 3),
        make_grouped(CONTIGUOUS[1], 384, 64, 256, 3, b_major="mn"),
        make_grouped(CONTIGUOUS[0], 192, 64, 256, 5, alignment=64),
        make_grouped(MASKED[0], 512, 64, 256, 5, expected_m=40),
        make_grouped(K_GROUPED[1], 64, 32, 768, 2),
    ]
    recorded = make_grouped(MASKED[1], 4096, 64, 256, 7, expected_m=24)
    path.write_text(recorded.to_json())
    assert shapes.load_file(path) == [recorded]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '{"problems": [{"m": 0, "n": 1, "k": 1}]}',
        '{"problems": [{"m": 1}]}',
        '{"groups": [{}]}',
        "\0",
        '{"groups": [{"layouts": ["xy"], "shapes": []}]}',
    ],
)
def test_bad_shape_files_are_usage_errors(tmp_path, text):
    path = tmp_path / "shapes.json"
    path.write_text(text)
    with pytest.raises(errors.UsageError, match="shapes.json"):
        shapes.load_file(path)
    with pytest.raises(errors.UsageError):
        shapes.load_file(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"problems": [{"m": 1, "n": 64, "kk": 64}]}', "problem 1: unknown field kk; those of a problem are .*k"),
        ('{"m": 1, "n": 64, "k": 64}\n{"m": 1, "n": 64}', "problem 2: lacks k; a shape file has"),
        ("[[64, 2112, 7168]]", r"problem 1 is \[64, 2112, 7168\]: must be an object"),
        (
            '[{"m": 1, "n": 64, "k": 64, "op": "fp8_gemm_nt"}]',
            "problem 1: op = 'fp8_gemm_nt' is no op kind; use fp8_gemm;",
        ),
        ('[{"m": 1, "n": 64, "k": 64, "op": "nope"}]', "problem 1: op = 'nope' is no op kind; use one of fp8_gemm, "),
        ('[{"m": 0, "n": 64, "k": 64}]', "problem 1: m = 0: must be"),
        ("{", "not JSON"),
    ],
)
def test_a_fault_of_a_shape_file_is_named_with_its_place(tmp_path, text, said):
    (tmp_path / "shapes.json").write_text(text)
    with pytest.raises(errors.UsageError, match=f"^SHAPES .*shapes.json: {said}") as raised:
        shapes.load_file(tmp_path / "shapes.json", "SHAPES")
    assert "a shape file has lines such as" in str(raised.value)


def test_unknown_names():
    with pytest.raises(errors.UsageError, match="demo"):
        shapes.load_preset("everything")
    assert shapes.model_names([_C.Problem("fp8_gemm", 1, 2112, 7168), _C.Problem("fp8_gemm", 1, 8, 16)]) == [
        "DeepSeek-V3",
        shapes.OTHER_MODEL,
    ]
