"""What a change of the kernels does to times, and whether choices of the older ones hold."""

import pytest

from benchmarks import kernel_change
from benchmarks.stamp import read_json
from deep_gemm import _C, older_kernels
from deep_gemm.fields import OP_KINDS
from deep_gemm.selector import Selector
from tests.fakes import selectors
from tuner.compare.kernel_sets import KernelSet

H200, OTHER = _C.Device.known("h200"), _C.Config(64, 64, 2)


def test_every_op_kind_that_an_entry_names_is_drawn():
    problems = kernel_change.draw()
    siblings = {op for op, kind in OP_KINDS.items() if kind.sibling}  # which are swept as another one
    drawn = {problem.op for problem in problems}
    assert problems == kernel_change.draw() and set(older_kernels.SERVED) - siblings <= drawn


def test_the_trees_choice_is_timed_and_the_pick_where_it_is_another(monkeypatch):
    """Whatever kernels the selector is of: before there is an entry, the library would not ask it."""
    problem, selector = selectors.make_parts()[3][0], Selector(selectors.make_artifact())
    choice = selector.choose(problem, H200, "model").config
    for pick, found in ((choice, {"choice": choice}), (OTHER, {"choice": choice, "pick": OTHER})):
        monkeypatch.setattr(kernel_change, "get_analytic_config", lambda problem, device, pick=pick: pick)
        assert kernel_change.list_configs(problem, H200, selector) == found
    unknown = _C.Problem("bf16_gemm", 64, 1024, 1024)
    assert kernel_change.list_configs(unknown, H200, selector) == {"pick": OTHER}


def make_row(role: str, old: float, new: float, m: int = 1) -> dict:
    """Return a row whose times are these."""
    return {"problem": {"m": m}, "role": role, "old_us": old, "new_us": new, "ratio": new / old}


def test_the_gain_is_that_of_choices_over_picks_with_the_new_kernels():
    rows = [make_row("choice", 10, 9), make_row("pick", 9, 12), make_row("choice", 20, 20, m=2)]
    found = kernel_change.summarize(rows)
    assert found["problems"] == 2 and found["gain"] == pytest.approx((12 / 9) ** 0.5) and found["holds"]
    assert found["ratio"] == pytest.approx(0.9**0.5), "of the choices alone"
    assert (found["fastest"], found["slowest"]) == pytest.approx((0.9, 12 / 9))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"problem": {"m": 1}, "role": "choice", "error": "hung"}],
        [make_row("pick", 10, 9)],
        [make_row("choice", 10, 10.2)],
        [make_row("choice", 10, 9), make_row("pick", 10, 8.9)],
        [make_row("choice", 10, 9), {"problem": {"m": 1}, "role": "pick", "error": "wrong"}],
    ],
    ids=["nothing", "hung", "no choice", "slower", "the pick is faster", "a pick is wrong"],
)
def test_what_does_not_hold(rows):
    assert not kernel_change.summarize(rows)["holds"]


def test_choices_of_other_kernels_say_nothing_of_a_set():
    rows = [make_row("choice", 10, 9)]
    assert kernel_change.summarize(rows, True)["holds"] and not kernel_change.summarize(rows, False)["holds"]


def fake_comparison(monkeypatch, ratio: float, verdict: str) -> list:
    """Compare nothing: every config takes `ratio` of its time with the older kernels; one whose result is wrong in a
    later turn has times, too. Returns what was asked.
    """
    asked = []

    def compare(old, new, options, on_event):
        asked.append((old.name, new.name, options.identical_too))
        on_event(100, 100)
        pairs = [
            {"problem": problem.as_dict(with_defaults=False), "verdict": verdict, "error": verdict,
             "ratio": ratio, "ratio_low": ratio, "ratio_high": ratio,
             "old": {"name": str(config), "median_us": 10.0}, "new": {"median_us": 10.0 * ratio}}
            for problem, config in zip(options.problems, options.configs, strict=True)
        ]  # fmt: skip
        return {"pairs": pairs}

    hashes = {"a": selectors.KERNEL_HASH, "b": "0" * 64}
    monkeypatch.setattr(kernel_change, "compare_sets", compare)
    monkeypatch.setattr(kernel_change, "make_set", lambda clone, name: KernelSet(name, "", clone.root, None))
    monkeypatch.setattr(
        kernel_change, "ask_hashes", lambda asked, ops: dict.fromkeys([*ops, "another"], hashes[asked.name])
    )
    monkeypatch.setattr(kernel_change, "current_device", lambda: H200)
    monkeypatch.setattr(kernel_change, "get_selector", lambda device: Selector(selectors.make_artifact()))
    monkeypatch.setattr(kernel_change, "list_configs", lambda problem, device, selector: {"choice": OTHER})
    problems = [_C.Problem("fp8_gemm", m, 1024, 1024) for m in (64, 128)]
    monkeypatch.setattr(kernel_change, "draw", lambda: problems)
    return asked


@pytest.mark.parametrize(
    "sets, ratio, verdict, code",
    [
        ("a", 0.98, "same", 0),
        ("a", 1.02, "same", 1),
        ("ba", 0.98, "same", 0),
        ("b", 0.98, "same", 1),
        ("a", 0.98, "wrong", 3),
    ],
)
def test_the_command(tmp_path, monkeypatch, capsys, sets, ratio, verdict, code):
    asked = fake_comparison(monkeypatch, ratio, verdict)
    assert kernel_change.main([*sets, "--out", str(tmp_path / "out.json")]) == code
    result = read_json(tmp_path / "out.json")
    assert asked == [(name, ".", True) for name in sets] and len(result["rows"]) == 2 * len(sets)
    assert result["meta"]["selector"] == {"fp8_gemm": selectors.KERNEL_HASH}
    assert [one["name"] for one in result["sets"] if one["ops"]["fp8_gemm"]["holds"]] == (["a"] if not code else [])
    assert result["meta"]["sku"] == H200.sku and result["meta"]["complete"] == (code != 3)
    assert f"{sets[0]} fp8_gemm: {2 if verdict == 'same' else 0} problems" in capsys.readouterr().out


def test_without_a_selector_there_is_nothing_to_measure(monkeypatch, tmp_path, capsys):
    asked = fake_comparison(monkeypatch, 1.0, "same")
    monkeypatch.setattr(kernel_change, "get_selector", lambda device: None)
    assert kernel_change.main(["a", "--out", str(tmp_path / "out.json")]) == 3
    assert f"no selector of {H200.sku}" in capsys.readouterr().err
    assert not asked and not (tmp_path / "out.json").exists()
