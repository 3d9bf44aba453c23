"""Fixtures that several tests of the database share."""

from contextlib import ExitStack

import pytest

from tests.fakes import postgresql
from tests.fakes.databases import make_database, without_flushes


@pytest.fixture(scope="module", autouse=True)
def no_flushes():
    """Let commits return before the disk has them: what a flush is worth is the question of tests/fault."""
    with without_flushes():
        yield


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """Three databases that share configs, and partly boards and problems."""
    folder = tmp_path_factory.mktemp("shards")
    return [
        make_database(folder / "a.db", num_problems=3, seed=0),
        make_database(folder / "b.db", num_problems=2, first_m=3, seed=0),
        make_database(folder / "c.db", num_problems=2, first_m=2, seed=1),
    ]


@pytest.fixture(scope="session")
def postgresql_server():
    """A PostgreSQL server; tests that need one are skipped where the system has none."""
    with ExitStack() as cleanup:
        try:
            server = cleanup.enter_context(postgresql.start_server())
        except postgresql.NoServer as missing:
            pytest.skip(str(missing))
        yield server


@pytest.fixture
def url(postgresql_server):
    """The URL of an empty PostgreSQL database."""
    return postgresql_server.create_database()
