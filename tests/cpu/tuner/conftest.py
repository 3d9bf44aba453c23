"""What tests of commands need."""

import os

import pytest

from deep_gemm import selection
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
