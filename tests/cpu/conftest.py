"""What tests of several folders ask for: the stub driver, and a torch.compile that has compiled nothing yet."""

import pytest


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A child process with the stub driver."""
    from tests.fakes import stub_driver

    with stub_driver.start(tmp_path_factory.mktemp("stub")) as stub:
        yield stub


@pytest.fixture
def fresh_dynamo():
    """Forget what torch.compile compiled, before and after."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
