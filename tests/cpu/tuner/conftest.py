"""What tests of commands and of learning need."""

import os

import pytest

from deep_gemm import selection
from tests.fakes import synthetic
from tests.fakes.databases import without_flushes


@pytest.fixture(scope="module", autouse=True)
def no_flushes():
    """Let commits return before the disk has them: what a flush is worth is the question of tests/fault."""
    with without_flushes():
        yield


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    """A home without artefacts and databases, and no variables of the package; the folder is that of the test."""
    for name in [name for name in os.environ if name.startswith("DG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    selection.forget_selectors()
    yield tmp_path
    selection.forget_selectors()


@pytest.fixture
def in_process(own_home, monkeypatch):
    """Measure in this process, on simulated times."""
    from tests.fakes.in_process_worker import InProcessWorker

    monkeypatch.setattr("tuner.search.sweep.make_worker", lambda options: InProcessWorker())


@pytest.fixture(scope="module")
def data():
    """The table of the synthetic machine's rows."""
    return synthetic.make_small_dataset()


@pytest.fixture(scope="module")
def learned(data, request):
    """What is learned from it by the SETTINGS of the test's module."""
    from tuner.learn import train

    return train.train(data, request.module.SETTINGS)
