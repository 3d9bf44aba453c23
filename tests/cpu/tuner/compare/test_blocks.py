"""What a comparison of sweeps is made of: which blocks and configs are paired, what they say, who is judged."""

import math

import pytest

from tests.fakes.measured_rows import PROBLEMS, make_block, make_row, make_rows
from tuner.compare import blocks, noise, recorded, suspects
from tuner.compare.recorded import Finding, Side, Value
from tuner.db.rows import WinnerRow

FOUR = {0: 20.0, 1: 21.0, 2: 22.0, 3: 23.0}
FIRST = PROBLEMS[0]


def make_side(times: dict | None = None, factor: float = 1.0, problems=PROBLEMS, **fields) -> Side:
    """Return a side with one block of each problem."""
    scaled = {config: us * factor for config, us in (times or FOUR).items()}
    blocks = [make_block(problem, number + 1, **fields) for number, problem in enumerate(problems)]
    return Side([row for block in blocks for row in make_rows(block, scaled)])


def compare(a: Side, b: Side) -> recorded.Part:
    """Return the comparison of two sides of one op kind."""
    return recorded.compare_sides({"fp8_gemm": (a, b)})[0]


def name_winner(block, config: int) -> WinnerRow:
    """Return the winner of a block."""
    row = make_row(block, config, 1.0)
    names = ("problem", "problem_id", "problem_key", "sku", "kernel_hash", "compiler", "regime", "block_id", "created")
    return WinnerRow(
        config=row.config, config_id=config, config_key=row.config_key, tie_set=(row.config,),
        **{name: getattr(block, name) for name in names},
    )  # fmt: skip


# Which blocks are paired.


def test_only_the_newest_block_of_a_problem_counts():
    old, new = make_rows(make_block(FIRST, 1), FOUR), make_rows(make_block(FIRST, 2), {0: 30.0, 1: 31.0, 2: 32.0})
    for rows in (old + new, new + old):
        (found,) = blocks.take_confirmed(rows).values()
        assert sorted(row.median_us for row in found.values()) == [30.0, 31.0, 32.0]


def test_sentinels_are_no_problem_of_a_sweep():
    rows = make_rows(make_block(FIRST, regime="graph-cold-sentinel"), FOUR)
    assert blocks.take_confirmed(rows) == {} and blocks.take_repeated(rows) == rows


@pytest.mark.parametrize("times, count", [
    (FOUR, 4), ({0: 20.0, 1: 21.0}, 0), ({0: 20.0, 1: 21.0, 2: 3.9}, 0), ({0: 20.0, 1: 21.0, 2: 4.0}, 3),
])  # fmt: skip
def test_pairs_are_judged_in_blocks_with_enough_of_them(times, count):
    found = blocks.take_confirmed(make_rows(make_block(FIRST), times))
    assert sum(map(len, blocks.pair_blocks(found, found).values())) == count


@pytest.mark.parametrize(
    "fields", [{"regime": "graph-hot"}, {"workload": '{"sizes":"spread","seed":1}'}, {"compiler": "nvcc"}]
)
def test_blocks_of_other_loads_are_not_paired(fields):
    a, b = (blocks.take_confirmed(make_rows(make_block(FIRST, **own), FOUR)) for own in ({}, fields))
    assert len(blocks.pair_blocks(a, a)) == 1 and blocks.pair_blocks(a, b) == {}


FEW, MANY = ('{"draws":1,"seed":0,"sizes":"spread"}', '{"draws":4,"seed":0,"sizes":"spread"}')


def make_loaded(*loads: tuple[int, str], times: dict | None = None) -> list:
    """Return the rows of blocks of one problem, (number, workload) each."""
    return [row for number, load in loads for row in make_rows(make_block(FIRST, number, workload=load), times or FOUR)]


def test_an_older_block_counts_where_both_have_its_load():
    """A's newest block has more draws of group sizes than B's only one: the older block of A is like it."""
    a, b = make_loaded((1, FEW), (3, MANY)), make_loaded((2, FEW))
    for first, second in ((a, b), (b, a)):
        part = recorded.make_part("fp8_gemm", Side(first), Side(second))
        (pairs,) = blocks.pair_blocks(part.found_a, part.found_b).values()
        assert {pair.a.block.workload for pair in pairs} == {FEW} and len(pairs) == 4
    for rows in (a, a[::-1]):
        assert {row.block.block_id for row in blocks.take_confirmed(rows)[FIRST.key].values()} == {3}


def test_of_two_common_loads_the_one_counts_that_both_have_newest():
    a, b = make_loaded((3, FEW), (5, MANY)), make_loaded((4, FEW), (2, MANY))
    assert blocks.choose_loads(a, b) == blocks.choose_loads(b, a) == {FIRST.key: ("graph-cold", FEW, "nvrtc")}


def test_a_load_with_enough_common_configs_goes_before_a_newer_one():
    a = make_loaded((1, FEW), (3, MANY))
    b = make_loaded((2, FEW)) + make_loaded((4, MANY), times={0: 20.0, 1: 21.0})
    assert blocks.choose_loads(a, b) == blocks.choose_loads(b, a) == {FIRST.key: ("graph-cold", FEW, "nvrtc")}


def test_what_a_newer_block_confirmed_is_not_failing_though_an_older_one_is_compared():
    a, b = make_loaded((1, FEW)), make_loaded((2, FEW), (4, MANY))
    for number, count in ((3, 0), (5, 1)):
        failed = make_row(make_block(FIRST, number, workload=MANY), 1, None, status="timeout")
        assert len(recorded.compare_rows("fp8_gemm", a, [*b, failed])["failing"]) == count


def test_a_winner_of_another_block_than_the_compared_one_is_not_compared():
    """A's newest block, of more draws, chose a config that is slow in the older one, which is compared."""
    winners = [[name_winner(make_block(FIRST, 1), 0)], [name_winner(make_block(FIRST, 3), 3)]]
    b = Side(make_loaded((2, FEW)), [name_winner(make_block(FIRST, 2), 0)])
    for of_a, count in zip(winners, (1, 0), strict=True):
        part = recorded.make_part("fp8_gemm", Side(make_loaded((1, FEW), (3, MANY)), of_a), b)
        assert len(recorded.compare_chosen(part, blocks.pair_blocks(part.found_a, part.found_b))) == count


# What they say.


def test_op_kinds_with_the_same_kernels_take_their_shift_off_the_others():
    same, changed = (make_side(), make_side(factor=1.04)), (make_side(), make_side(factor=1.06, kernel_hash="cd" * 32))
    found = recorded.compare_sides({"same": same, "changed": changed})
    shifts = [part.of_kind("whole")[0].values[0].difference for part in found]
    assert shifts == pytest.approx([math.log(1.04), math.log(1.06 / 1.04)])
    few = tuple(make_side(factor=factor, problems=PROBLEMS[:5]) for factor in (1.0, 1.04))
    found = recorded.compare_sides({"same": few, "changed": changed})
    assert found[1].of_kind("whole")[0].values[0].difference == pytest.approx(math.log(1.06))


def test_more_blocks_of_a_sentinel_say_more():
    def make(count: int, us: float) -> Side:
        blocks = [make_block(FIRST, number + 1, regime="graph-cold-sentinel") for number in range(count)]
        return Side([row for block in blocks for row in make_rows(block, {0: us, 1: 2 * us})])

    part = recorded.make_part("fp8_gemm", make(4, 20.0), make(2, 30.0))
    (value,) = recorded.compare_sentinels(part, 0.125)
    assert value.difference == pytest.approx(math.log(1.5) - 0.125)
    assert value.scale == pytest.approx(part.noise.block * math.sqrt((1 / 4 + 1 / 2) / 2))


def test_sentinels_of_another_load_are_not_compared():
    def make(workload: str) -> Side:
        return Side(make_rows(make_block(FIRST, regime="graph-cold-sentinel", workload=workload), {0: 20.0, 1: 40.0}))

    once, often = (make(f'{{"draws":{count},"sizes":"spread"}}') for count in (1, 4))
    assert len(recorded.compare_sentinels(recorded.make_part("fp8_gemm", once, once), 0.0)) == 1
    assert recorded.compare_sentinels(recorded.make_part("fp8_gemm", once, often), 0.0) == []


def test_winners_are_seen_beside_their_blocks():
    """All of B takes 10 % longer, and its winner 5 % more."""
    block = make_block(FIRST)
    a = Side(make_rows(block, FOUR), [name_winner(block, 0)])
    b = Side(make_rows(block, {config: us * 1.1 for config, us in FOUR.items()}), [name_winner(block, 1)])
    part = compare(a, b)
    (value,) = recorded.compare_chosen(part, blocks.pair_blocks(part.found_a, part.found_b))
    assert value.difference == pytest.approx(math.log(21.0 / 20.0))
    assert value.scale == pytest.approx(part.noise.own_beside(4))


# Who is judged.


def make_finding(kind: str, difference: float, count: int = 8) -> Finding:
    """Return a finding whose values are far from chance."""
    return Finding(kind, [Value(difference, 0.001)] * count)


@pytest.mark.parametrize("kind, difference, count, verdict", [
    ("config", 0.1, 8, "slower"), ("config", -0.1, 8, "faster"), ("config", 0.1, 5, "same"), ("chosen", 0.1, 5, "same"),
    ("chosen", 0.1, 6, "slower"), ("whole", 0.1, 8, "suspect"), ("whole", -0.1, 8, "faster"),
    ("pair", 0.1, 1, "suspect"), ("problem", 0.1, 1, "suspect"), ("problem", 0.001, 1, "same"),
])  # fmt: skip
def test_what_is_certain_and_what_is_a_suspect(kind, difference, count, verdict):
    finding = make_finding(kind, difference, count)
    recorded.judge_findings([finding])
    assert finding.verdict == verdict


@pytest.mark.parametrize("failing_block, count", [(1, 0), (2, 1), (3, 1)])
def test_a_failure_counts_from_the_newest_block_on(failing_block, count):
    of_a, of_b = make_rows(make_block(FIRST, 1), FOUR), make_rows(make_block(FIRST, 2), {0: 20.0, 2: 22.0, 3: 23.0})
    failed = make_row(make_block(FIRST, failing_block), 1, None, status="timeout")
    found = recorded.find_failing(of_a, [*of_b, failed])
    assert len(found) == count


@pytest.mark.parametrize("error, count", [("quarantined: crash on another problem", 1), ("of a library", 0)])
def test_what_crashed_and_is_skipped_since_is_failing(error, count):
    of_a, of_b = make_rows(make_block(FIRST, 1), FOUR), make_rows(make_block(FIRST, 3), {0: 20.0, 2: 22.0, 3: 23.0})
    crashed = make_row(make_block(FIRST, 2), 1, None, role="search", status="crash")
    skipped = make_row(make_block(FIRST, 3), 1, None, role="search", status="skipped", error=error)
    assert len(recorded.find_failing(of_a, [*of_b, crashed, skipped])) == count


@pytest.mark.parametrize("changes, verdict", [
    ({}, "same"), ({"problems": 5}, "few"), ({"failing": [{}]}, "slower"), ({"failing": [{}], "problems": 1}, "slower"),
    ({"shift": {"verdict": "suspect"}}, "suspect"), ({"shift": {"verdict": "suspect"}, "problems": 5}, "few"),
    ({"single": [{"verdict": "slower"}]}, "slower"), ({"chosen": {"verdict": "faster"}}, "same"),
])  # fmt: skip
def test_the_verdict_on_an_op_kind(changes, verdict):
    report = {"shift": None, "chosen": None, "configs": [], "single": [], "failing": [], "problems": 6} | changes
    assert recorded.judge(report) == verdict


# Noise.


def test_two_configs_are_enough_to_tell_the_noise():
    blocks = [
        make_rows(make_block(FIRST, number), {0: us, 1: us * own}) for number, us, own in ((1, 20, 1), (2, 22, 1.02))
    ]
    found = noise.estimate_noise([[row for rows in blocks for row in rows]])
    middle, own = math.log(1.1) + math.log(1.02) / 2, math.log(1.02) / 2 * math.sqrt(2.0)
    assert found.pairs == 1
    assert found.block == pytest.approx(noise.mix(noise.BLOCK_SCALE, [middle]))
    assert found.own == pytest.approx(noise.mix(noise.OWN_SCALE, [own, own]))
    assert noise.estimate_noise([[row for rows in blocks for row in rows[:1]]]).pairs == 0


def test_blocks_are_paired_by_age_and_on_one_board():
    ages = (3, 1, 2)
    rows = [row for number in ages for row in make_rows(make_block(FIRST, number, board="a"), {0: 10.0 * number})]
    pairs = noise.pair_repeats(rows)
    assert [tuple(next(iter(side.values())) for side in pair) for pair in pairs] == [(10.0, 20.0), (20.0, 30.0)]
    other = make_rows(make_block(FIRST, 4, board="b"), {0: 40.0})
    assert len(noise.pair_repeats(rows + other)) == 2
    assert len(noise.pair_repeats(rows + make_rows(make_block(FIRST, 5, board="a", kernel_hash="c"), {0: 1.0}))) == 2


def test_a_far_value_counts_no_more_than_the_furthest():
    assert noise.mean_chance([1e6, 0.0]) == noise.mean_chance([noise.FAR, 0.0]) > 0.01
    assert noise.median_chance([1e6, -1e6]) == pytest.approx(1.0)
    assert noise.median_chance([0.0] * 3) == pytest.approx(0.5) and noise.median_chance([2.0] * 2) < 0.02


# Suspects.


def test_only_suspects_and_doubtful_pairs_are_measured_again():
    part = compare(make_side(), make_side())
    found = {kind: part.of_kind(kind) for kind in ("problem", "pair")}
    assert suspects.list_suspects([part]) == []
    found["problem"][0].verdict, found["problem"][1].verdict = "suspect", "faster"
    (pair,) = suspects.list_suspects([part])
    assert pair[0] == found["problem"][0].problem
    fastest = min(part.found_a[pair[0].key].values(), key=lambda row: row.median_us)
    assert pair[1] == fastest.config


@pytest.mark.parametrize("answer, verdict", [
    ("slower", "slower"), ("same", "same"), ("faster", "same"), ("skipped", "suspect"), (None, "suspect"),
])  # fmt: skip
def test_what_a_second_measurement_settles(answer, verdict):
    part = compare(make_side(), make_side())
    finding = part.of_kind("problem")[0]
    finding.verdict = "suspect"
    suspects.settle([part], dict.fromkeys(suspects.represent(part, finding), answer))
    assert finding.verdict == verdict
    assert all(other.verdict == "same" for other in part.of_kind("problem")[1:])


@pytest.mark.parametrize("answer, verdict", [("slower", "slower"), ("same", "faster")])
def test_a_pair_that_was_no_suspect_can_turn_out_slower(answer, verdict):
    part = compare(make_side(), make_side())
    pair, problem = part.of_kind("pair")[0], part.of_kind("problem")[0]
    pair.verdict = problem.verdict = "faster"
    suspects.settle([part], dict.fromkeys(suspects.represent(part, pair) + suspects.represent(part, problem), answer))
    assert (pair.verdict, problem.verdict) == (verdict, "faster")
