"""Moving code changes no key, space, choice, source or recorded row: a replay is compared with the record."""

import json

import pytest

from tests import replay

REMEDY = "if the change was meant: python -m tests.replay"


@pytest.fixture(scope="module")
def recorded() -> dict:
    """The record."""
    return json.loads(replay.RECORD.read_text(encoding="ascii"))


@pytest.fixture(scope="module")
def found() -> dict:
    """What this tree gives."""
    return replay.compute()


def test_the_recorded_database_and_the_artefact_are_the_same_bytes(recorded, found):
    assert found["database"] == recorded["database"], REMEDY
    assert found["database"]["wrong_keys"] == 0
    assert found["artefact"] == recorded["artefact"], REMEDY
    assert found["wrong_golden_vectors"] == 0


def test_every_op_kind_replays(recorded, found):
    changed = {
        op: [name for name, value in parts.items() if found["ops"].get(op, {}).get(name) != value]
        for op, parts in recorded["ops"].items()
    }
    assert not {op: names for op, names in changed.items() if names}, REMEDY
    assert sum(parts["recorded_problems"] for parts in recorded["ops"].values()) > 1000
