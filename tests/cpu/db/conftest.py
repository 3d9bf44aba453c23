"""Fixtures that several tests of the database share."""

import pytest

from tests.fakes.databases import make_database


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """Three databases that share configs, and partly boards and problems."""
    folder = tmp_path_factory.mktemp("shards")
    return [
        make_database(folder / "a.db", num_problems=3, seed=0),
        make_database(folder / "b.db", num_problems=2, first_m=3, seed=0),
        make_database(folder / "c.db", num_problems=2, first_m=2, seed=1),
    ]
