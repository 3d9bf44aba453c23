"""The process whose launches are emulated."""

import pytest

from tests.fakes import stub_driver


@pytest.fixture(scope="session")
def emulate(tmp_path_factory):
    """Return a function that calls another one where kernels run on the emulator, scheduled by `seed`; in
    modes of libcuda_emulator.h ("converged", "dependencies").
    """
    with stub_driver.start(tmp_path_factory.mktemp("emulator")) as driver:

        def call(function, *arguments, seed=0, modes=()):
            return driver.call(function, *arguments, seed=seed, emulates=1, **dict.fromkeys(modes, 1))[0]

        yield call
