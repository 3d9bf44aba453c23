"""No second tile is one that the selector has in quarantine."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import deep_gemm.models
from deep_gemm import _C, selection
from deep_gemm.artifact import read_artifact
from deep_gemm.selector import Selector
from tests.fakes.grouped_variants import MASKED, make_grouped
from tests.fakes.selectors import DEVICE
from tuner.learn.artifact import build_artifact

OP = MASKED[1]
PROBLEM = make_grouped(OP, 4096, 6144, 7168, 1, expected_m=256)


@pytest.fixture
def use(monkeypatch):
    """Return a function that lets the recorded selector choose with other entries in its quarantine."""
    content = (Path(next(iter(deep_gemm.models.__path__))) / f"{DEVICE.sku}.dgsel").read_bytes()

    def use(entries: list) -> Selector:
        metadata, arrays = read_artifact(content)
        metadata["ops"][OP]["quarantined"] = entries
        selector = Selector(build_artifact(metadata, arrays))
        loaded = SimpleNamespace(selector=selector, mode="auto", reason="", file="x")
        monkeypatch.setattr(selection, "load_selector", lambda sku: loaded)
        return selector

    return use


def test_a_second_tile_is_none_of_those_in_quarantine(use):
    configs = use([]).configs(OP)
    choice, second = selection.explain_tiles(PROBLEM, DEVICE)
    assert second in configs
    others = [index for index, config in enumerate(configs) if config not in (choice.config, second)]
    use(others[:3])
    assert selection.find_second_tile(PROBLEM, choice.config, DEVICE) == second
    place = configs.index(second)
    for variants, wanted in (([], None), ([_C.kernel_identity(PROBLEM).to_json()], second)):
        use([[place, *variants]] if variants else [place])
        assert selection.find_second_tile(PROBLEM, choice.config, DEVICE) == wanted
