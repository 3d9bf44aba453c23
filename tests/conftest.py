"""What every test process has to itself, and the option --full."""

import pytest


def pytest_addoption(parser):
    """Add --full."""
    parser.addoption("--full", action="store_true", help="run the tests marked `full` too (`make test-full`)")


def pytest_collection_modifyitems(config, items):
    """Leave out the tests marked `full`, unless --full is given."""
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    items[:] = [item for item in items if not item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session", autouse=True)
def runtime_folder_of_this_process(tmp_path_factory):
    """Keep the locks of simulated GPUs apart: test processes measure on the same simulated GPU at the same time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield
