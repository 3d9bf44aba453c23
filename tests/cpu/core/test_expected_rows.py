"""Groups with ends that fill a part of their alignment: chosen for as masked ones of as many rows, by fitting tiles."""

from types import SimpleNamespace

import pytest
import torch

import deep_gemm
from deep_gemm import _C, fields, selection
from deep_gemm.errors import ConfigError, ProblemError
from deep_gemm.jit import ahead, generator, kernel_set
from tests.fakes.operands import forgetting
from tuner.problems.fields import get_work
from tuner.problems.workload import Workload, make_draws, make_group_tensor

DEVICE = _C.Device.known("h200")
PSUM, MASKED = "m_grouped_fp8_gemm_psum", "m_grouped_fp8_gemm_masked"
SIZES = {"m": 6144, "n": 4096, "k": 7168, "num_groups": 32}


@pytest.fixture(autouse=True)
def fresh_selectors():
    with forgetting(selection.forget_selectors):
        yield


def make(op: str = PSUM, **changes) -> "_C.Problem":
    return _C.Problem(op, **{**SIZES, "expected_m": 8, **changes})


def test_the_masked_twin_has_the_same_fields():
    assert _C.find_masked_twin(make()) == make(MASKED)
    assert _C.find_masked_twin(make(recipe="1d1d", alignment=64)) == make(MASKED, recipe="1d1d")
    bf16 = make("m_grouped_bf16_gemm_psum")
    assert _C.find_masked_twin(bf16) == make("m_grouped_bf16_gemm_masked")


@pytest.mark.parametrize(
    "problem",
    [
        make(expected_m=0), make(expected_m=128), make(alignment=8), make(m=64, expected_m=128), make(MASKED),
        make("m_grouped_bf16_gemm_psum", b_major="mn"), _C.Problem("m_grouped_fp8_gemm_contiguous", **SIZES),
        _C.Problem("fp8_gemm", 8, 8, 128),
        _C.Problem("k_grouped_fp8_gemm_psum", **SIZES, recipe="1d1d", d_dtype="fp32"),
    ],
    ids=str,
)  # fmt: skip
def test_no_twin(problem):
    """Of unknown rows, of groups that fill the alignment, and where no masked product has such operands."""
    assert _C.find_masked_twin(problem) is None


@pytest.mark.parametrize("expected, most", [(1, 8), (8, 16), (16, 32), (48, 64)])
@pytest.mark.parametrize("fields_", [{}, {"recipe": "1d1d"}, {"n": 7168, "k": 2048}, {"num_groups": 8}], ids=str)
@pytest.mark.parametrize("mode", ["auto", "analytic"])
def test_few_rows_get_small_tiles_that_fit_the_alignment(monkeypatch, mode, fields_, expected, most):
    """Not the tiles of groups that fill it, which are of 128 rows; 24, 40 and 48 rows do not divide it."""
    monkeypatch.setenv("DG_SELECTOR", mode)
    problem = make(expected_m=expected, **fields_)
    config = selection.explain(problem, DEVICE).config
    assert config.block_m <= max(most, 64) and 128 % config.block_m == 0
    assert _C.is_legal(problem, config, DEVICE)
    assert selection.explain(make(expected_m=0, **fields_), DEVICE).config.block_m >= 128


def test_the_heuristic_takes_the_best_of_the_masked_tiles_that_fit():
    problem, twin = make(expected_m=32), make(MASKED, expected_m=32)
    times = {
        config: _C.estimate_time_us(twin, config, DEVICE)
        for config in _C.get_candidates(twin, DEVICE) if _C.is_legal(problem, config, DEVICE)
    }  # fmt: skip
    best = min(times, key=times.get)
    found = _C.get_analytic_config(problem, DEVICE)
    assert (found.block_m, found.block_n, found.num_stages) == (best.block_m, best.block_n, best.num_stages)
    assert _C.get_analytic_config(make(expected_m=128), DEVICE) == _C.get_analytic_config(make(expected_m=0), DEVICE)


def test_a_learned_tile_that_does_not_fit_gives_way_to_one_that_does(monkeypatch):
    """Without a warning: the selector is right, for masked groups."""
    misfit, problem = _C.Config(24, 64, 8, swap_ab=1), make(expected_m=16)

    def choose(served, device, mode, kernel_hash):
        assert served == make(MASKED, expected_m=16)
        return _C.Choice(misfit, "learned", "")

    known = {"ops": {"m_grouped_fp8_gemm_contiguous": {}, MASKED: {}}}
    loaded = selection.LoadedSelector("auto", SimpleNamespace(metadata=known, choose=choose), "stub", "")
    monkeypatch.setattr(selection, "load_selector", lambda sku: loaded)
    choice = selection.explain(problem, DEVICE)
    assert choice.config == _C.get_analytic_config(problem, DEVICE) and choice.source == "analytic"
    assert "24x64x128 s8 c1x1 swap does not fit the groups' alignment" in choice.reason


def test_rows_that_fill_the_alignment_are_chosen_for_as_without_the_hint():
    for expected in (128, 200):
        found, plain = (selection.explain(make(expected_m=rows), DEVICE) for rows in (expected, 0))
        assert (found.config, found.source, found.reason) == (plain.config, plain.source, plain.reason)


def test_choices_ahead_have_the_masked_configs():
    found, source = ahead.list_choices(PSUM, [], DEVICE)
    parts = [ahead.list_choices(name, [], DEVICE)[0] for name in ("m_grouped_fp8_gemm_contiguous", MASKED)]
    assert source == "artefact" and found == list(dict.fromkeys([*parts[0], *parts[1]]))


def test_more_rows_than_the_product_has_are_refused():
    with pytest.raises(ProblemError, match="expected_m = 6145: a group has at most m rows; pass no more"):
        make(expected_m=6145)
    assert make(m=64, expected_m=128).expected_m == 128, "an alignment that is filled may be more than all rows"
    with pytest.raises(ProblemError, match="expected_m = 129"):
        make(m=64, expected_m=129)


@pytest.mark.parametrize(
    "given, rows, changed",
    [
        (make(), 9, {"expected_m": 10}), (make(), 127, {"expected_m": 128}), (make(), 500, {"expected_m": 128}),
        (make(m=32), 60, {"expected_m": 32}), (make(expected_m=0), 24, {"m": 24}),
        (make(expected_m=128), 24, {"m": 24}), (make(MASKED), 500, {"expected_m": 512}),
        (make(alignment=8), 500, {"m": 500}),
    ],
)  # fmt: skip
def test_numbers_of_rows_as_calls_hold_them(given, rows, changed):
    """m of what fills the alignment, so that a warm-up of a recorded line prepares the kernels of these calls."""
    assert fields.fit_rows(given, rows) == changed
    _C.Problem(**given.as_dict() | changed)


def test_a_warm_up_for_any_size_tells_apart_what_is_said_of_rows():
    listed = [make(**ROOM), make(**ROOM | {"expected_m": 128}), make(**ROOM | {"expected_m": 8}), make(**ROOM, n=8192)]
    others = [make(**ROOM | {"num_groups": 4}), make(MASKED), make(MASKED, num_groups=64)]
    found = kernel_set._list_variants([*listed, *others])
    assert found == [listed[3], listed[1], listed[2], others[0], others[2]]


#: Options of a call, and the rows that its problem expects.
HINTS = [
    ({"expected_m_for_psum_layout": 5}, 5), ({"expected_m_for_psum_layout": 9}, 10), ({}, 0),
    ({"expected_m_for_psum_layout": 0}, 0), ({"expected_m_for_psum_layout": None}, 0),
    ({"expected_m_for_psum_layout": 500}, 128), ({"expected_m_for_psum_layout": 5, "ensure_zero_padding": True}, 128),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(HINTS)))
def test_the_hint_of_a_call(tmp_path, monkeypatch, index):
    """Rounded as that of masked groups; at most the alignment, and that where padding becomes zero, of which small
    tiles would have too many.
    """
    (options, expected), shapes = HINTS[index], tmp_path / "shapes"
    monkeypatch.setenv("DG_RECORD_SHAPES", str(shapes))
    n = 8 * (index + 1)  # a problem is recorded once
    a, b, d = torch.zeros(512, 128), torch.zeros(4, n, 128), torch.zeros(512, n)
    ends = torch.tensor([3, 130, 256, 400], dtype=torch.int32)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(
        a.bfloat16(), b.bfloat16(), d.bfloat16(), ends, use_psum_layout=True, **options
    )
    problem = _C.Problem.from_json(shapes.read_text().strip())
    assert (problem.op, problem.n, problem.expected_m) == ("m_grouped_bf16_gemm_psum", n, expected)


#: Of 32 groups: rows with which each may hold few, without saying so.
ROOM = {"m": 32 * 150, "expected_m": 0}


@pytest.mark.parametrize("changes", [{}, {"recipe": "1d1d"}, {"n": 7168, "k": 2048}, {"num_groups": 64, "m": 64 * 130}])
def test_unknown_rows_have_a_second_tile_for_few(changes):
    problem = make(**ROOM | changes)
    choice, second = selection.explain_tiles(problem, DEVICE)
    assert choice.config.block_m == 128 and second.block_m in (16, 32) and second.swap_ab
    assert _C.is_legal(problem, second, DEVICE) and _C.tiles_reason(problem, choice.config, second, DEVICE) == ""
    assert selection.explain(problem, DEVICE).config == choice.config
    assert 0.3 < _C.second_tile_weight(problem, choice.config, second, DEVICE) < 1.5


@pytest.mark.parametrize(
    "problem",
    [
        make(**ROOM | {"expected_m": 8}), make(**ROOM | {"expected_m": 128}), make(m=32 * 192, expected_m=0),
        make(**ROOM, alignment=8), make("m_grouped_bf16_gemm_psum", **ROOM, b_major="mn"),
        _C.Problem("m_grouped_fp8_gemm_contiguous", **SIZES | {"m": 32 * 150}),
        _C.Problem("k_grouped_fp8_gemm_psum", **SIZES | {"m": 512}, recipe="1d1d", d_dtype="fp32"),
    ],
    ids=str,
)  # fmt: skip
def test_other_problems_have_one_tile(monkeypatch, problem):
    """Rows that the caller gave, or that fill the alignment; where masked products have no such operands."""
    assert selection.explain_tiles(problem, DEVICE)[1] is None


def test_estimates_and_candidates_are_those_of_the_twin():
    problem, twin = make(expected_m=16), make(MASKED, expected_m=16)
    candidates = _C.get_candidates(problem, DEVICE)
    assert candidates == [one for one in _C.get_candidates(twin, DEVICE) if _C.is_legal(problem, one, DEVICE)] != []
    assert _C.get_shortlist(problem, DEVICE, 3)[0] == _C.get_analytic_config(problem, DEVICE)
    times = _C.estimate_times_us(problem, candidates, DEVICE)
    assert times == [_C.estimate_time_us(twin, config, DEVICE) for config in candidates]
    assert times[0] == _C.estimate_time_us(problem, candidates[0], DEVICE)
    assert get_work(problem) == get_work(twin) == 32 * 16 * 4096 * 7168
    assert get_work(make(expected_m=0)) == get_work(make(expected_m=128)) == 6144 * 4096 * 7168


def test_what_was_swept_of_groups_with_ends_chooses_first(monkeypatch):
    """An exact entry of the problem itself, or of one of which nothing is said; trees see the masked twin."""
    asked = []

    def choose(served, device, mode, kernel_hash):
        asked.append((served.op, served.expected_m))
        return _C.Choice(_C.Config(64, 128, 8), "learned", "")

    loaded = selection.LoadedSelector(
        "auto", SimpleNamespace(metadata={"ops": {PSUM: {}, MASKED: {}}}, choose=choose, is_banned=lambda *_: False),
        "stub", "",
    )  # fmt: skip
    monkeypatch.setattr(selection, "load_selector", lambda sku: loaded)
    for expected in (0, 8, 128):
        selection.choose(make(expected_m=expected), DEVICE)
    assert asked == [(PSUM, 0), (PSUM, 8), (MASKED, 8), (PSUM, 128), (PSUM, 0)]


def test_a_config_in_quarantine_keeps_its_cluster(monkeypatch):
    problem = make(m=32 * 144, expected_m=0)
    assert selection.explain(problem, DEVICE).config.cluster_n == 1
    monkeypatch.setattr(selection, "is_banned", lambda problem, config, device: config.block_m == 128)
    assert selection.explain(problem, DEVICE).config.cluster_n == 2


def test_a_cluster_gives_way_to_a_second_tile(monkeypatch):
    problem = make(m=32 * 144, expected_m=0)
    chosen = selection.choose(problem, DEVICE)
    assert (chosen.config.cluster_m, chosen.config.cluster_n) == (1, 2)
    choice, second = selection.explain_tiles(problem, DEVICE)
    assert choice.config == _C.Config(**chosen.config.as_dict() | {"cluster_n": 1}) and second is not None
    assert choice.reason.endswith("a second tile stands beside it, not a cluster")
    monkeypatch.setenv("DG_SECOND_TILE", "0")
    assert selection.explain_tiles(problem, DEVICE)[0].config == chosen.config


def test_operands_that_masked_products_lack_hold_one_tile():
    first, second = _C.Config(128, 128, 5, block_k=64), _C.Config(32, 128, 10, block_k=64, swap_ab=1)
    problem = make("m_grouped_bf16_gemm_psum", b_major="mn")
    with pytest.raises(ConfigError, match="b_major = mn: no masked product has such operands, or rows so few; pass"):
        generator.generate_source(problem, first, second)
    with pytest.raises(ConfigError, match="only kernels of masked groups, and of rows of groups with ends, hold two"):
        generator.generate_source(_C.Problem("bf16_gemm", 1, 1, 1), first, second)
    source = generator.generate_source(make("m_grouped_bf16_gemm_psum"), first, second)
    assert "takes_second<deep_gemm::Config, deep_gemm::SecondConfig, deep_gemm::PsumGroupRows>" in source


@pytest.mark.parametrize("name", ["spread", "uniform", "skewed"])
def test_measured_groups_have_about_the_rows_expected(name):
    for expected in (2, 20, 100):
        draws = make_draws(make(expected_m=expected), Workload(name))
        assert len(draws) == (4 if name == "spread" else 1)
        for starts, sizes in draws:
            ends = make_group_tensor(make(expected_m=expected), type(draws[0])(starts, sizes), "cpu").tolist()
            assert all(start % 128 == 0 for start in starts) and max(ends) <= 6144
            assert 0.6 * expected <= sum(sizes) / 32 <= 1.4 * expected
            assert all(after >= start + size for start, size, after in zip(starts, sizes, starts[1:]))


def test_groups_that_fill_the_alignment_are_measured_as_without_the_hint():
    draws = make_draws(make(m=32 * 1024, expected_m=128), Workload())
    assert all(sum(sizes) > 0.9 * 32 * 1024 for _, sizes in draws)


def test_measured_groups_end_with_the_rows_of_the_product():
    starts, sizes = make_draws(make(m=300, expected_m=100), Workload("uniform"))[0]
    assert starts[:4] == [0, 128, 256, 300] and sizes[:4] == [100, 100, 44, 0] and sum(sizes) == 244
