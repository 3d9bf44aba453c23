"""The programs on the CPU, where the ops are their references."""

import pytest

from tests.callers.names import NAMES
from tests.callers.programs import PROGRAMS, is_pending


@pytest.mark.parametrize("name", [name for name in PROGRAMS if not is_pending(name)])
def test_program(name):
    PROGRAMS[name][0]("cpu")


def test_what_a_program_needs_is_listed():
    known = {(row.path, keyword) for row in NAMES for keyword in ("", *row.keywords)}
    assert {need for _, needs in PROGRAMS.values() for need in needs} <= known
