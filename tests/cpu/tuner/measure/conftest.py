"""Fixtures that the tests of measuring share."""

import pytest

from tests.fakes import cuda_backend
from tuner.measure import anchor, operands
from tuner.measure import backend as measure


@pytest.fixture(autouse=True)
def small_pools(monkeypatch):
    """Make no more random data than a test needs."""
    monkeypatch.setattr(operands, "MIN_POOL_BYTES", 1 << 16)


@pytest.fixture
def backend(monkeypatch):
    """A CUDA backend on fakes."""
    cuda_backend.install(monkeypatch)
    monkeypatch.setattr(anchor, "STEADY_LIMIT_S", 0.0)
    return measure.CudaBackend()
