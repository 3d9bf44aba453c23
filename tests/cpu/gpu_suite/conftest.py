"""What the tests of the GPU suite share: a fake GPU without an artefact."""

import pytest

from deep_gemm.selection import forget_selectors
from tests.fakes.gpu_world import FakeWorld


@pytest.fixture(scope="module")
def world():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DG_SELECTOR", "analytic")
        forget_selectors()
        yield FakeWorld()
    forget_selectors()
