"""What a change of the kernels does to times, and whether choices of the older ones hold."""

import pytest

from benchmarks import kernel_change
from benchmarks.stamp import read_json
from deep_gemm import _C, older_kernels
from tuner.compare.kernel_sets import KernelSet

H200 = _C.Device.known("h200")


def test_every_op_kind_that_an_entry_names_is_drawn():
    problems = kernel_change.draw()
    assert problems == kernel_change.draw() and set(older_kernels.SERVED) <= {problem.op for problem in problems}


def test_the_pick_is_timed_where_it_is_not_the_choice(monkeypatch):
    problem, pick = _C.Problem("fp8_gemm", 700, 1024, 9216), _C.Config(64, 64, 2)
    monkeypatch.setattr(kernel_change, "get_analytic_config", lambda problem, device: pick)
    monkeypatch.setattr(kernel_change, "get_best_config", lambda problem, device: pick)
    assert kernel_change.list_configs(problem, H200) == {"choice": pick}
    choice = _C.Config(64, 128, 2)
    monkeypatch.setattr(kernel_change, "get_best_config", lambda problem, device: choice)
    assert kernel_change.list_configs(problem, H200) == {"choice": choice, "pick": pick}


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
        [make_row("choice", 10, 10.2)],
        [make_row("choice", 10, 9), make_row("pick", 10, 8.9)],
        [make_row("choice", 10, 9), {"problem": {"m": 1}, "role": "pick", "error": "wrong"}],
    ],
    ids=["nothing", "hung", "slower", "the pick is faster", "a pick is wrong"],
)
def test_what_does_not_hold(rows):
    assert not kernel_change.summarize(rows)["holds"]


def fake_comparison(monkeypatch, ratio: float, verdict: str) -> list:
    """Compare nothing: every config takes `ratio` of its time with the older kernels. Returns what was asked."""
    asked = []

    def compare(old, new, options, on_event):
        asked.append((old.name, new.name, options.identical_too))
        on_event(100, 100)
        timed = {"ratio": ratio, "ratio_low": ratio, "ratio_high": ratio} if verdict == "same" else {}
        pairs = [
            {"problem": problem.as_dict(with_defaults=False), "verdict": verdict, "error": None, **timed,
             "old": {"name": str(config), "median_us": 10.0}, "new": {"median_us": 10.0 * ratio}}
            for problem, config in zip(options.problems, options.configs, strict=True)
        ]  # fmt: skip
        return {"pairs": pairs}

    monkeypatch.setattr(kernel_change, "compare_sets", compare)
    monkeypatch.setattr(kernel_change, "make_set", lambda clone, name: KernelSet(name, "", clone.root, None))
    monkeypatch.setattr(kernel_change, "ask_hashes", lambda asked, ops: dict.fromkeys([*ops, "another"], asked.name))
    monkeypatch.setattr(kernel_change, "current_device", lambda: H200)
    monkeypatch.setattr(kernel_change, "list_configs", lambda problem, device: {"choice": _C.Config(64, 64, 2)})
    problems = [_C.Problem("fp8_gemm", m, 1024, 1024) for m in (64, 128)] + [_C.Problem("bf16_gemm", 64, 1024, 1024)]
    monkeypatch.setattr(kernel_change, "draw", lambda: problems)
    return asked


@pytest.mark.parametrize("ratio, verdict, code", [(0.98, "same", 0), (1.02, "same", 1), (0.98, "wrong", 3)])
def test_the_command(tmp_path, monkeypatch, capsys, ratio, verdict, code):
    asked = fake_comparison(monkeypatch, ratio, verdict)
    assert kernel_change.main(["a", "b", "--out", str(tmp_path / "out.json")]) == code
    result = read_json(tmp_path / "out.json")
    assert asked == [("a", ".", True), ("b", ".", True)] and len(result["rows"]) == 6
    assert [one["older"] for one in result["sets"]] == [dict.fromkeys(("fp8_gemm", "bf16_gemm"), name) for name in "ab"]
    assert result["meta"]["sku"] == H200.sku and result["meta"]["complete"] == (code != 3)
    count = 2 if verdict == "same" else 0
    assert f"a fp8_gemm: {count} problems" in capsys.readouterr().out
