"""What tests of several benchmarks need."""

import pytest

from deep_gemm.selection import forget_selectors
from tests.fakes.operands import forgetting


@pytest.fixture
def analytic(monkeypatch):
    """Let the heuristic alone choose."""
    monkeypatch.setenv("DG_SELECTOR", "analytic")
    with forgetting(forget_selectors):
        yield
