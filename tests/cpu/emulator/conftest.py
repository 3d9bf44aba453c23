"""The process whose launches are emulated."""

import pytest

from tests.fakes import stub_driver


@pytest.fixture(scope="session")
def emulate(tmp_path_factory):
    """Return a function that calls another one where kernels run on the emulator, scheduled by `seed`; with
    `converged` lanes of a warp do not overtake each other at arrivals.
    """
    with stub_driver.start(tmp_path_factory.mktemp("emulator")) as driver:

        def call(function, *arguments, seed=0, converged=False):
            settings = {"converged": 1} if converged else {}
            return driver.call(function, *arguments, seed=seed, emulates=1, **settings)[0]

        yield call
