"""What every test process has to itself."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def runtime_folder_of_this_process(tmp_path_factory):
    """Keep the locks of simulated GPUs apart: test processes measure the same imaginary board at the same time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield
