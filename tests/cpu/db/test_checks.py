"""What a measured row must satisfy before anyone uses it, also where no CHECK of the database was evaluated."""

import pytest

from deep_gemm import _C
from tests.fakes.databases import make_database
from tuner import errors
from tuner.db import Store, tables
from tuner.db.checks import MEASUREMENT_COLUMNS, TIMES, check_block, check_rows

GOOD = dict.fromkeys(MEASUREMENT_COLUMNS) | {
    "block_id": 1, "config_id": 2, "role": "confirm", "status": "ok", "num_samples": 3, "mad_us": 0.0,
    **dict.fromkeys(TIMES, 1.0),
}  # fmt: skip


def check(**changes) -> None:
    """Check a good row and one with changes."""
    check_rows("file", [tuple((GOOD | new)[name] for name in MEASUREMENT_COLUMNS) for new in ({}, changes)])


def test_a_deviation_may_be_zero():
    check(config_id=3)


@pytest.mark.parametrize("name", [*TIMES, "num_samples"])
@pytest.mark.parametrize("value", [0, -1.0, float("inf"), 1e13])
def test_times_are_positive_and_finite(name, value):
    with pytest.raises(errors.IntegrityError, match=r"block 1, config 2, confirm\): impossible values"):
        check(**{name: value})


def test_names_of_a_block_have_the_form_of_names():
    block = {"id": 7, "status": "finished", "compiler": "nvrtc", "kernel_hash": "ab" * 32}
    check_block("file", block)
    for name, value in (("kernel_hash", "../" * 22), ("uid", "x'; DROP TABLE block"), ("created", "\x1b[2J")):
        with pytest.raises(errors.IntegrityError, match=rf"block 7: block\.{name} = .*must match"):
            check_block("file", block | {name: value})


def test_a_config_of_another_op_kind_is_refused(tmp_path):
    path = make_database(tmp_path / "a.db")
    other = _C.get_default_space(_C.Problem("bf16_gemm", 1, 1, 1), _C.Device.known("h200"))[0]
    with Store.open(path) as store:
        config_id = store.get_or_add_config("bf16_gemm", other)
        with store.writing() as connection:
            wrong = (
                "UPDATE measurement SET config_id = ?, checksum = NULL WHERE block_id = 1 AND config_id = 1 AND role = "
                f"{tables.ROLE.get_number('confirm')}"
            )
            assert connection.exec_driver_sql(wrong, (config_id,)).rowcount == 1
    with Store.open(path, "ro") as store:
        (found,) = store.check()
        assert "is of another op kind" in found
        with pytest.raises(errors.IntegrityError, match="is of another op kind"):
            store.load_measurements()
