"""Time and energy together: joules of rows, the front, the area under it, and searches that are scored by it."""

import json
from dataclasses import replace

import pytest

from deep_gemm import _C
from tests.fakes.sweeps import run_sweep
from tuner import cli
from tuner.db import Store
from tuner.learn import energy_replay
from tuner.learn.energy import Energy, find_corner, find_front, measure_area, read_energies
from tuner.learn.ranking import rank
from tuner.search import energy

H200 = _C.Device.known("h200")
PROBLEMS = [_C.Problem("fp8_gemm", 4096, 7168, 2048), _C.Problem("fp8_gemm", 2048, 7168, 2048)]
CONFIGS = _C.get_candidates(PROBLEMS[0], H200)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A database of two problems with the energy of all configs, on simulated power."""
    path = tmp_path_factory.mktemp("energy") / "recorded.db"
    run_sweep(path, PROBLEMS, energy=energy.EVERY)
    return path


def read(path, problem):
    with Store.open(path, "ro") as store:
        return [row for row in store.load_measurements() if row.block.problem == problem]


def at(*points):
    """Return {config: Energy} of (time, energy) pairs."""
    return {
        config: Energy(1.0, 1.0, *point) for config, point in zip(CONFIGS, points, strict=False)
    }  # as many configs as points


def test_joules_are_power_times_time_and_ratios_are_within_a_block(recorded):
    rows = read(recorded, PROBLEMS[0])
    found = read_energies(rows)
    powered = {row.config: row for row in rows if row.block.regime.endswith("-energy") and not row.is_reference}
    for config, row in powered.items():
        reference = next(one for one in rows if one.block == row.block and one.is_reference)
        assert found[config].energy_j == pytest.approx(row.power_w * row.median_us * 1e-6)
        ratio = row.power_w * row.median_us / (reference.power_w * reference.median_us)
        assert found[config].point == (
            pytest.approx(row.median_us / reference.median_us, rel=0.02),
            pytest.approx(ratio),
        )
    assert len({row.block.block_id for row in powered.values()}) == 2 and len(found) == len(powered) + 1
    others = [replace(row, power_w=500.0) for row in rows if not row.block.regime.endswith("-energy")]
    assert others and not read_energies(others)  # their power is that of a whole race


def test_the_noise_of_a_problem_is_that_of_its_blocks(recorded):
    rows = [row for row in read(recorded, PROBLEMS[0]) if row.block.regime.endswith("-energy")]
    blocks = sorted({row.block.block_id for row in rows})
    assert len(blocks) == 2
    noise = dict(zip(blocks, (0.01, 0.03), strict=True))
    noisy = [replace(row, block=replace(row.block, noise=noise[row.block.block_id])) for row in rows]
    assert energy_replay.find_noise(noisy) == pytest.approx(0.02)
    assert energy_replay.find_noise([replace(row, block=replace(row.block, noise=None)) for row in rows]) is None


def test_the_front_has_what_nothing_beats_in_both():
    energies = at((1.0, 1.0), (0.9, 1.2), (1.1, 1.0), (1.2, 0.8), (1.3, 0.9), (0.9, 1.3))
    assert find_front(energies) == [CONFIGS[1], CONFIGS[0], CONFIGS[3]]
    assert find_front({}) == []


def test_the_area_is_that_of_the_steps_below_the_corner():
    assert measure_area([(1.0, 1.0)], (3.0, 2.0)) == pytest.approx(2.0)
    assert measure_area([(1.0, 1.0), (2.0, 0.5), (2.5, 0.9), (4.0, 0.1), (0.1, 2.0)], (3.0, 2.0)) == pytest.approx(2.5)
    assert measure_area([], (3.0, 2.0)) == 0.0
    assert find_corner([(1.0, 4.0), (3.0, 2.0)]) == (1.5, 3.0)


def test_searchers_find_everything_in_the_end_and_know_the_pick_at_first(recorded):
    with Store.open(recorded, "ro") as store:
        found = energy_replay.load_recorded(store, H200, "fp8_gemm")
        assert energy_replay.load_recorded(store, H200, "fp8_gemm", limit=1)[0].problem == found[0].problem
        assert energy_replay.load_recorded(store, H200, "fp8_gemm", least=10**6) == []
    assert [one.problem for one in found] == PROBLEMS[::-1]
    one = found[0]
    count = len(one.energies)
    for name in energy_replay.SEARCHERS:
        shares = energy_replay.replay(name, 3, one, H200, (1, 8, count - 1, count, count + 9))
        assert shares == sorted(shares) and shares[-2:] == [pytest.approx(1.0)] * 2
        assert shares == energy_replay.replay(name, 3, one, H200, (1, 8, count - 1, count, count + 9))
        pick = one.energies[one.heuristic].point
        points = [energy.point for energy in one.energies.values()]
        corner = find_corner(points)
        assert shares[0] == pytest.approx(measure_area([pick], corner) / measure_area(points, corner))


def test_later_generations_descend_from_those_on_the_front(recorded, monkeypatch):
    with Store.open(recorded, "ro") as store:
        one = energy_replay.load_recorded(store, H200, "fp8_gemm")[0]
    seeds, size = range(6), 16
    nsga2, chance = (
        [energy_replay.replay(name, seed, one, H200, (8, size)) for seed in seeds] for name in energy_replay.DRAWN
    )
    assert [shares[0] for shares in nsga2] == [shares[0] for shares in chance]  # the first generation is drawn alike
    assert [shares[1] for shares in nsga2] != [shares[1] for shares in chance]


def test_the_command_prints_shares_of_all_searchers(recorded, capsys):
    arguments = ["simulate", "--samplers", "nsga2", "--db", str(recorded)]
    assert cli.run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["problems"]) == 2 and set(found["mean"]) == set(energy_replay.SEARCHERS)
    first, second = (row["shares"]["time"][0] for row in found["problems"])
    assert found["mean"]["time"][0] == pytest.approx((first + second) / 2) and found["mean"]["nsga2"][-1] > 0.9
    front = found["problems"][0]["front"]
    assert 0 < front["front"] <= front["configs"] and front["energy_saved"] >= 0.0 <= front["time_added"]
    assert cli.run(arguments) == 0
    text = capsys.readouterr().out
    assert "mean of 2 problems" in text and "nsga2" in text
    assert cli.run([*arguments, "--markdown"]) == 0
    assert capsys.readouterr().out.count("| --- | --- |") >= 2


def test_without_energies_or_beside_others_the_command_says_what_to_do(tmp_path, recorded, capsys):
    run_sweep(tmp_path / "a.db", PROBLEMS[:1], rests=False)
    assert cli.run(["simulate", "--samplers", "nsga2", "--db", str(tmp_path / "a.db")]) == 3
    assert "sweep --energy all" in capsys.readouterr().err
    assert cli.run(["simulate", "--samplers", "nsga2,tpe", "--db", str(recorded)]) == 2
    assert "nsga2 alone" in capsys.readouterr().err


def test_show_has_joules_and_the_front(recorded, capsys):
    with Store.open(recorded, "ro") as store:
        shown = rank(store, PROBLEMS[0], H200.sku)
    energies = read_energies(read(recorded, PROBLEMS[0]))
    assert shown.energies == energies and list(shown.front) == find_front(energies) and shown.others == 0
    command = ["db", "show", "4096", "7168", "2048", "--db", str(recorded), "--top", "0"]
    assert cli.run([*command, "--json"]) == 0
    for row in json.loads(capsys.readouterr().out)["configs"]:
        config = next(config for config in energies if str(config) == row["name"])
        assert row["energy_j"] == energies[config].energy_j and row["is_on_front"] == (config in shown.front)
    assert cli.run(command) == 0
    text = capsys.readouterr().out
    assert f"{1e3 * energies[shown.front[0]].energy_j:.2f}" in text and text.count("front") == len(shown.front) + 1


def test_show_of_a_problem_without_energy_says_nothing_of_it(tmp_path, capsys):
    run_sweep(tmp_path / "a.db", PROBLEMS[:1], rests=False)
    assert cli.run(["db", "show", "4096", "7168", "2048", "--db", str(tmp_path / "a.db")]) == 0
    text = capsys.readouterr().out
    assert "mJ" not in text and "front" not in text
