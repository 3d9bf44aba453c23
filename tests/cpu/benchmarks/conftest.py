"""What tests of several benchmarks need."""

import pytest

from deep_gemm.selection import forget_selectors
from tests.fakes.operands import one_thread


@pytest.fixture
def analytic(monkeypatch):
    """Let the heuristic alone choose, on one thread."""
    monkeypatch.setenv("DG_SELECTOR", "analytic")
    forget_selectors()
    with one_thread():
        yield
    forget_selectors()
