"""The programs on the CPU, where the ops are their references."""

import pytest

from tests.callers.programs import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    PROGRAMS[name]("cpu")
