"""The check of `ab` on a GPU, on simulated times: it passes where ab is right, and fails where it is not."""

import json
from pathlib import Path

import pytest

from deep_gemm import _C
from tests.fakes.sets_world import SetsWorker, make_side
from tests.gpu import kernel_sets
from tuner.compare import comparison

H200 = _C.Device.known("h200")


class Ask:
    """Stands in for comparison.ask: the kernels of a set are named after its label."""

    def __init__(self):
        self.labels: list[str] = []

    def __call__(self, asked, wanted: list, device, folder) -> list[dict]:
        """Answer as set_child does, without compiling."""
        self.labels.append(asked.label)
        configs = [config or _C.get_analytic_config(problem, H200) for problem, config, _ in wanted]
        made = [config if isinstance(config, _C.Config) else _C.Config(**config) for config in configs]
        return [make_side(config, asked.label.replace(" ", "_")) for config in made]


def run(tmp_path: Path, monkeypatch, slowed: float, equal: float = 1.0) -> tuple[int, dict]:
    """Run the check with kernels of headers that take `slowed` times as long; return its status and result."""
    ask, work = Ask(), tmp_path / "work"

    def plant(problem, entry) -> float:
        is_slowed = "headers" in entry.kernel
        return 1.0 if entry.set == 0 else slowed if is_slowed else equal

    monkeypatch.setattr(comparison, "ask", ask)
    monkeypatch.setattr(comparison, "make_worker", lambda folder, device: SetsWorker(plant))
    monkeypatch.setattr(kernel_sets, "make_stamp", lambda device, ops: {"ops": list(ops)})
    monkeypatch.setattr(kernel_sets._C, "get_device", lambda: H200)
    code = kernel_sets.main(["--out", str(tmp_path / "out.json"), "--work", str(work)])
    assert len(ask.labels) == 4 and ask.labels[3].startswith("headers of")
    return code, json.loads((tmp_path / "out.json").read_text())


def test_it_passes_where_slowed_kernels_are_found(tmp_path, monkeypatch):
    code, result = run(tmp_path, monkeypatch, slowed=1.03)
    assert code == 0 and result["num_wrong"] == 0 and set(result["reports"]) == {"equal", "slowed"}
    texts = [
        path.read_text() for path in (tmp_path / "work" / "sets").glob("*/deep_gemm/include/deep_gemm/sm90/gemm.cuh")
    ]
    assert len(texts) == 1 and "clock64" in texts[0]


@pytest.mark.parametrize(("slowed", "equal"), [(1.0, 1.0), (1.03, 1.03), (0.97, 1.0)])
def test_it_fails_where_verdicts_are_wrong(tmp_path, monkeypatch, slowed, equal):
    code, result = run(tmp_path, monkeypatch, slowed, equal)
    assert code == 1 and result["num_wrong"] > 0


def test_another_set_must_run_and_have_equal_bits():
    row = {"problem": {}, "old": {"median_us": 9.0}, "error": None, "ratio": 1.1}
    assert kernel_sets.find_wrong("other", {"pairs": [row | {"verdict": "slower"}]}) == []
    assert kernel_sets.find_wrong("other", {"pairs": [row | {"verdict": "wrong"}]})
