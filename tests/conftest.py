"""What every test process has to itself, the option --full, a disk cache, and kernel hashes that take little time."""

import functools
import signal

import pytest


def pytest_configure():
    # A shell starts what runs in the background with SIGINT ignored, which every process of the tests would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session", autouse=True)
def one_thread_for_torch():
    """Let torch compute in one thread: test processes have a core each, and on a busy machine many small products would
    wait for each other's threads.
    """
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def fresh_process(monkeypatch):
    """Let the disk cache warn again, as a process does that has not warned yet."""
    monkeypatch.setattr("deep_gemm.jit.cache._has_warned", False)


@pytest.fixture
def disk(tmp_path, fresh_process):
    """Return a disk cache in folders of its own that do not exist yet, in such a process."""
    from deep_gemm.jit.cache import DiskCache

    return DiskCache(tmp_path / "root/cache", root=tmp_path / "root")


@pytest.fixture(scope="session")
def sources_of():
    """Return a function that gives every 50th source of an op kind: all of them include the same headers, and to hash
    all 10 MB takes seconds.
    """
    from deep_gemm.jit import generator

    canonical_sources = generator.canonical_sources
    return functools.cache(lambda op: canonical_sources(op)[::50])


@pytest.fixture
def few_sources(sources_of, monkeypatch):
    """Let the kernel hashes that are computed during the test cover those sources only, and be forgotten after it."""
    from deep_gemm.jit import hashing

    known = hashing.kernel_hash.cache_info().currsize
    monkeypatch.setattr("deep_gemm.jit.generator.canonical_sources", sources_of)
    yield sources_of
    monkeypatch.undo()
    if hashing.kernel_hash.cache_info().currsize != known:
        hashing.kernel_hash.cache_clear()
