"""Files are written whole or not at all, and a failure leaves nothing behind."""

import pytest

from tuner import errors
from tuner.files import replacing, write_whole


def test_a_name_that_no_file_may_have_leaves_no_folders(tmp_path):
    with pytest.raises(errors.StoreError, match="nothing was changed"):
        write_whole(tmp_path / "new" / "deep" / ("x" * 250), b"")
    assert not any(tmp_path.iterdir())


def fail(target, other=None) -> None:
    """Begin to write a file, let another process write beside it, and fail."""
    with replacing(target):
        if other is not None:
            other.touch()
        raise KeyError


def test_a_failure_removes_the_folders_that_it_made_and_no_others(tmp_path):
    (tmp_path / "old").mkdir()
    target = tmp_path / "old" / "new" / "deep" / "file"
    with pytest.raises(KeyError):
        fail(target)
    assert not any((tmp_path / "old").iterdir())
    with pytest.raises(KeyError):
        fail(target, tmp_path / "old" / "new" / "other")
    assert [path.name for path in (tmp_path / "old" / "new").iterdir()] == ["other"]
    write_whole(target, b"x")
    assert target.read_bytes() == b"x"
