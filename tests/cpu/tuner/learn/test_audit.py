"""What the audit of a database finds: early drops that others contradict, and noisy blocks, and nothing else."""

import json
from dataclasses import replace

import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tuner import cli
from tuner.learn.audit import ESTIMATE, NEIGHBOUR, audit
from tuner.learn.dataset import build_dataset

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


def find(*parts: list) -> list:
    rows = [row for part in parts for row in part]
    return audit(build_dataset(rows, IDENTITY, DEVICE), rows)


@pytest.fixture
def machine():
    return synthetic.Machine()


def test_a_neighbour_contradicts_a_drop_on_one_sample(machine):
    found = find(block(machine, HERE, {SLOW: 2.7}, samples=1), block(machine, NEAR, {SLOW: 1.02}))
    (doubt,) = found.doubts
    assert (doubt.problem, doubt.config, doubt.source, doubt.samples) == (HERE, SLOW, NEIGHBOUR, 1)
    assert doubt.behind == pytest.approx(1.7) and doubt.expected == pytest.approx(0.02)
    assert (found.censored, found.thin, found.blocks) == (1, 1, 2) and found.problems() == [HERE]


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


def test_throttled_blocks_are_named_and_those_at_the_power_limit_counted(machine):
    parts = [block(machine, problem, {}) for problem in (HERE, NEAR, FAR)]
    marked = [
        [replace(row, block=replace(row.block, throttle=reasons)) for row in part]
        for part, reasons in zip(parts, (0x4, 0x24, None), strict=True)
    ]
    found = find(*marked)
    assert [each.problem for each in found.throttled] == [NEAR] == found.problems() and found.limited == 2
    assert found.to_json()["throttled"] == [{"problem": NEAR.as_dict(), "reasons": 0x24}]


def test_the_estimate_contradicts_where_no_neighbour_was_measured(machine):
    found = find(block(machine, HERE, {CLOSE: 1.8}, samples=2), block(machine, FAR, {}))
    (doubt,) = found.doubts
    ratio = _C.estimate_time_us(HERE, CLOSE, DEVICE) / _C.estimate_time_us(HERE, PICK, DEVICE)
    assert (doubt.config, doubt.source) == (CLOSE, ESTIMATE) and doubt.expected == pytest.approx(ratio - 1.0)


def test_noisy_blocks_are_named_worst_first(machine):
    found = find(block(machine, HERE, {}, noise=0.03), block(machine, NEAR, {}, noise=0.05), block(machine, FAR, {}))
    assert [each.problem for each in found.noisy] == [NEAR, HERE] and set(found.problems()) == {HERE, NEAR}


def test_the_command_names_what_to_sweep_again(capsys):
    database = str(synthetic.make_small_database())
    assert cli.run(["db", "audit", "--db", database, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    own = report["ops"]["fp8_gemm"]
    assert own["censored"] >= own["thin"] >= len(own["doubts"]) and report["problems"] == own["problems"]
    assert {json.dumps(doubt["problem"]) for doubt in own["doubts"]} <= {json.dumps(row) for row in report["problems"]}
    assert cli.run(["db", "audit", "--db", database, "--top", "2"]) == 0
    text = capsys.readouterr().out
    assert "fp8_gemm:" in text and "early drops" in text and max(map(len, text.splitlines())) <= 100
