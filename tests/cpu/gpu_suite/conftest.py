"""What the tests of the GPU suite share: torch in one thread, and a fake GPU without an artefact."""

import pytest

from deep_gemm.selection import forget_selectors
from tests.fakes.gpu_world import FakeWorld
from tests.fakes.operands import one_thread


@pytest.fixture(autouse=True, scope="module")
def quiet_torch():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def world():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DG_SELECTOR", "analytic")
        forget_selectors()
        yield FakeWorld()
    forget_selectors()
