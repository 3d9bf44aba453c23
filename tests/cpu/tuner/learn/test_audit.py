"""What the audit of a database finds: early drops that others contradict, and noisy blocks, and nothing else."""

import json
from dataclasses import replace

import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tests.fakes.grouped_variants import BATCHED, GROUPED_OPS, MASKED, SUMMED, WITH_ENDS, make_grouped, with_ends
from tests.fakes.variants import LOGITS
from tuner import cli
from tuner.learn.audit import ESTIMATE, NEIGHBOUR, Audit, audit, find_neighbours, name_tokens
from tuner.learn.dataset import build_dataset
from tuner.problems.fields import get_tokens, replace_problem
from tuner.problems.regimes import name_rested

DEVICE = _C.Device.known(synthetic.SKU)
IDENTITY = synthetic.make_small_dataset().identity
HERE, NEAR, FAR = (_C.Problem("fp8_gemm", m, 2112, 7168) for m in (64, 96, 4096))
PICK, *OTHERS = dict.fromkeys(map(_C.without_loop_knobs, _C.get_shortlist(HERE, DEVICE, 176)))
#: A config whose estimate is far behind the pick's, so that only measurements speak for it, and one that is close.
SLOW = next(
    config
    for config in reversed(OTHERS)
    if config in _C.get_candidates(NEAR, DEVICE)
    and _C.estimate_time_us(HERE, config, DEVICE) > 2 * _C.estimate_time_us(HERE, PICK, DEVICE)
)
CLOSE = OTHERS[0]


def block(machine, problem, ratios: dict, samples: int = 8, noise: float = 0.005) -> list:
    """Return the rows of one block: the pick, and configs by their ratio to it; those beyond 1.5 were dropped."""
    machine.block_id += 1
    pick = _C.get_analytic_config(problem, DEVICE)
    own = replace(machine.make_block(problem, pick), noise=noise)
    made = [
        machine.make_row(own, config, "search", ratio, 1.0, 1.0) for config, ratio in ({pick: 1.0} | ratios).items()
    ]
    return [replace(row, num_samples=samples) for row in made]


def find(*parts: list, current: str = synthetic.KERNEL_HASH) -> Audit:
    """Return the audit of some blocks, where a sweep would measure with the kernels `current`."""
    rows = [row for part in parts for row in part]
    return audit(build_dataset(rows, IDENTITY, DEVICE), rows, current)


def make_logits(m: int, n: int, op: str = LOGITS[0]) -> _C.Problem:
    """Return a problem of attention logits."""
    return _C.Problem(op, m, n, 128, heads=64, d_dtype="fp32", block_kv=64 if op == LOGITS[1] else 0)


def are_neighbours(first, second) -> bool:
    """Return whether two problems are neighbours, which is mutual."""
    found = find_neighbours(replace(synthetic.make_small_dataset(), problems=[first, second]))
    assert found in ([[1], [0]], [[], []])
    return bool(found[0])


@pytest.fixture
def machine():
    return synthetic.Machine()


def test_a_neighbour_contradicts_a_drop_on_one_sample(machine):
    found = find(block(machine, HERE, {SLOW: 2.7}, samples=1), block(machine, NEAR, {SLOW: 1.02}))
    (doubt,) = found.doubts
    assert (doubt.problem, doubt.config, doubt.source, doubt.samples) == (HERE, SLOW, NEIGHBOUR, 1)
    assert doubt.behind == pytest.approx(1.7) and doubt.expected == pytest.approx(0.02)
    assert (found.censored, found.thin, found.blocks) == (1, 1, 2)
    assert (found.problems(), found.configs(), found.whole()) == ([HERE], [SLOW], [])


@pytest.mark.parametrize(
    ("samples", "other", "ratio"),
    [(1, FAR, 1.02), (1, NEAR, 1.3), (1, NEAR, 2.7)],
    ids=["no neighbour", "slow there too", "dropped there too"],
)
def test_without_a_contradiction_nothing_is_doubted(machine, samples, other, ratio):
    assert not find(block(machine, HERE, {SLOW: 2.7}, samples=samples), block(machine, other, {SLOW: ratio})).doubts


def test_a_neighbour_contradicts_a_drop_on_enough_samples_and_the_estimate_does_not(machine):
    found = find(block(machine, HERE, {SLOW: 2.7, CLOSE: 1.8}, samples=3), block(machine, NEAR, {SLOW: 1.02}))
    assert [(doubt.config, doubt.source, doubt.samples) for doubt in found.doubts] == [(SLOW, NEIGHBOUR, 3)]
    assert (found.censored, found.thin) == (2, 0)


@pytest.mark.parametrize("op", LOGITS)
def test_logits_are_neighbours_where_their_queries_alone_differ(op):
    one = make_logits(64, 8192, op)
    assert are_neighbours(one, make_logits(128, 8192, op)) and not are_neighbours(one, make_logits(192, 8192, op))
    assert not are_neighbours(one, make_logits(64, 16384, op)) and not are_neighbours(one, make_logits(128, 8256, op))


def test_groups_are_neighbours_by_the_tokens_of_one():
    masked = _C.Problem(MASKED[0], 4096, 4096, 7168, num_groups=8, expected_m=32)
    assert are_neighbours(masked, replace_problem(masked, expected_m=64))
    assert not any(
        are_neighbours(masked, replace_problem(masked, **changes))
        for changes in ({"expected_m": 80}, {"num_groups": 16}, {"m": 2048}, {"num_sms": 100}, {"expected_m": 0})
    )
    assert are_neighbours(*(_C.Problem(MASKED[0], m, 4096, 7168, num_groups=8) for m in (1024, 2048)))


GROUPED = [make_grouped(op, 1024, 1024, 2048, num_groups=4) for op in (*GROUPED_OPS, *BATCHED)]
TOKENS = [
    *(_C.Problem(op, 1024, 1024, 2048) for op in ("fp8_gemm", "bf16_gemm")),
    *(make_logits(64, 64, op) for op in LOGITS),
    *GROUPED,
    make_grouped(SUMMED, 1024, 1024, 2048, num_groups=4, d_dtype="fp32"),
    *(with_ends(problem) for problem in GROUPED if problem.op in WITH_ENDS),
    *(replace_problem(problem, expected_m=128) for problem in GROUPED if problem.op in MASKED),
]


@pytest.mark.parametrize("problem", TOKENS, ids=str)
def test_the_field_of_tokens_is_the_one_that_they_are_read_from(problem):
    sizes = {"m": 512, "n": 512, "k": 64 if problem.op in LOGITS else 1024}
    sizes |= {"expected_m": 64} if problem.expected_m else {}
    told = {
        name for name in sizes if get_tokens(replace_problem(problem, **{name: sizes[name]})) != get_tokens(problem)
    }
    assert told == {name_tokens(problem)}


def test_rows_of_other_kernels_than_a_sweep_measures_with_are_swept_whole(machine):
    """A few configs would take the place of all rows that training has of the problem."""
    parts = block(machine, HERE, {SLOW: 2.7}), block(machine, NEAR, {SLOW: 1.02})
    own, other = find(*parts), find(*parts, current="cd" * 32)
    assert own.doubts == other.doubts and own.doubts[0].kernel_hash == synthetic.KERNEL_HASH
    assert (own.problems(), own.configs(), own.whole()) == ([HERE], [SLOW], [])
    assert (other.problems(), other.configs(), other.whole()) == ([], [], [HERE])
    assert other.to_json()["problems"] == [] and other.to_json()["configs"] is None


def test_throttled_blocks_are_named_and_those_at_the_power_limit_counted(machine):
    parts = [block(machine, problem, {}) for problem in (HERE, NEAR, FAR)]
    marked = [
        [replace(row, block=replace(row.block, throttle=reasons)) for row in part]
        for part, reasons in zip(parts, (0x4, 0x24, None), strict=True)
    ]
    found = find(*marked)
    assert [each.problem for each in found.throttled] == [NEAR] == found.whole() and found.limited == 2
    (told,) = found.to_json()["throttled"]
    assert told == {
        "problem": NEAR.as_dict(),
        "reasons": 0x24,
        "kernel_hash": IDENTITY.kernel_hash,
        "regime": IDENTITY.regime,
    }


def test_the_estimate_contradicts_where_no_neighbour_was_measured(machine):
    found = find(block(machine, HERE, {CLOSE: 1.8}, samples=2), block(machine, FAR, {}))
    (doubt,) = found.doubts
    ratio = _C.estimate_time_us(HERE, CLOSE, DEVICE) / _C.estimate_time_us(HERE, PICK, DEVICE)
    assert (doubt.config, doubt.source) == (CLOSE, ESTIMATE) and doubt.expected == pytest.approx(ratio - 1.0)


def test_noisy_blocks_are_named_worst_first(machine):
    found = find(block(machine, HERE, {}, noise=0.03), block(machine, NEAR, {}, noise=0.05), block(machine, FAR, {}))
    assert [each.problem for each in found.noisy] == [NEAR, HERE] and set(found.whole()) == {HERE, NEAR}
    assert (found.problems(), found.configs()) == ([], [])


def test_blocks_after_rests_are_audited_as_well(machine):
    """But what was timed after rests is no sample of a drop."""
    steady = block(machine, HERE, {SLOW: 2.7}, samples=1)
    rested = block(machine, HERE, {SLOW: 1.3}, samples=10, noise=0.03)
    rested = [replace(row, block=replace(row.block, regime=name_rested(IDENTITY.regime))) for row in rested]
    found = find(steady, rested, block(machine, NEAR, {SLOW: 1.02}))
    assert (found.blocks, found.rested, found.older) == (3, 1, 0) and found.whole() == [HERE]
    assert [each.regime for each in found.noisy] == [name_rested(IDENTITY.regime)]
    assert [doubt.samples for doubt in found.doubts] == [1] and found.thin == 1


def test_the_command_names_what_to_sweep_again(capsys):
    database = str(synthetic.make_small_database())
    assert cli.run(["db", "audit", "--db", database, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    own = report["ops"]["fp8_gemm"]
    assert own["censored"] >= own["thin"] >= len(own["doubts"]) and report["whole"] == own["whole"]
    assert {json.dumps(doubt["problem"]) for doubt in own["doubts"]} <= {json.dumps(row) for row in report["whole"]}
    assert report["problems"] == [] and report["configs"] is None  # these kernels are not this package's
    assert cli.run(["db", "audit", "--db", database, "--top", "2"]) == 0
    text = capsys.readouterr().out
    assert "fp8_gemm:" in text and "early drops" in text and f"{own['blocks']} blocks: 0 of older kernels" in text
    assert max(map(len, text.splitlines())) <= 100
