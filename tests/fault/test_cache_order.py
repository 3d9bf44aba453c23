"""The disk cache: the order of its steps, and folders that it must not use."""

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from deep_gemm.errors import CacheWarning
from deep_gemm.jit import cache
from deep_gemm.jit.cache import DiskCache

KEY, PAYLOAD = "ab" * 32, bytes(range(256)) * 8
pytestmark = pytest.mark.usefixtures("fresh_process")


def test_a_symbolic_link_says_what_is_wrong(disk, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "root").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(CacheWarning, match=f"{tmp_path}/root: a symbolic link, .* name the folder itself"):
        assert disk.get(KEY) is None


def test_a_deep_path_is_made_without_recursion():
    with tempfile.TemporaryDirectory() as folder:
        deep = DiskCache(Path(folder, *["d"] * 1500))
        try:
            deep.put(KEY, PAYLOAD)
            assert deep.get(KEY) == PAYLOAD
        finally:
            subprocess.run(["rm", "-rf", f"{folder}/d"], check=True)  # Python's own removal recurses


@pytest.mark.parametrize("part", ["d" * 5000, "/".join("d" * 3000)], ids=["long name", "many folders"])
def test_no_part_of_a_path_that_is_too_long_is_made(tmp_path, part):
    with pytest.warns(CacheWarning, match="File name too long"):
        assert DiskCache(tmp_path / part).get(KEY) is None
    assert not list(tmp_path.iterdir())


def test_a_path_cannot_control_the_terminal(tmp_path):
    (tmp_path / "\x1b[2J").write_text("no folder")
    with pytest.warns(CacheWarning) as caught:
        DiskCache(tmp_path / "\x1b[2J").get(KEY)
    assert str(caught[0].message).isprintable()


def test_entry_and_folder_are_synced_before_the_next_step(disk, monkeypatch):
    """What is renamed is on the disk already, and the name after it: losing power leaves the old entry or the new."""
    steps = []
    for name in ("write", "fsync", "replace"):
        real = getattr(os, name)

        def recording(*arguments, name=name, real=real, **named):
            is_folder = name == "fsync" and stat.S_ISDIR(os.fstat(arguments[0]).st_mode)
            steps.append("sync the folder" if is_folder else name)
            return real(*arguments, **named)

        monkeypatch.setattr(os, name, recording)
    disk.put(KEY, PAYLOAD)
    assert steps == ["write", "fsync", "replace", "sync the folder"]


def test_the_lock_is_given_back_although_a_fork_holds_a_copy(disk):
    """A descriptor that a fork copied stays open until the child ends; closing ours would not give the lock back."""
    with disk.lock(KEY) as is_held:
        assert is_held
        held = [int(name) for name in os.listdir("/proc/self/fd") if is_lock(int(name), disk)]
        assert len(held) == 1
        copy = os.dup(held[0])
    probe = os.open(f"/proc/self/fd/{copy}", os.O_RDWR)
    try:
        assert cache._try_flock(probe), "the lock outlived its holder"
    finally:
        os.close(probe), os.close(copy)


def is_lock(descriptor: int, disk: DiskCache) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(disk.path / f"{KEY}.lock")
    except OSError:
        return False


@pytest.mark.parametrize("mode", [0o710, 0o720, 0o740, 0o701, 0o702, 0o704])
def test_a_folder_with_any_right_for_others_is_refused(disk, mode):
    disk.put(KEY, PAYLOAD)
    disk.path.chmod(mode)
    with pytest.warns(CacheWarning, match=f"open to other users .mode {mode:o}"):
        assert disk.get(KEY) is None


@pytest.mark.parametrize("mode, is_used", [(0o755, True), (0o711, True), (0o720, False), (0o702, False)])
def test_a_root_that_others_can_write_to_is_refused(disk, mode, is_used):
    disk.put(KEY, PAYLOAD)
    disk.path.parent.chmod(mode)
    if is_used:
        assert disk.get(KEY) == PAYLOAD
    else:
        with pytest.warns(CacheWarning, match="open to other users"):
            assert disk.get(KEY) is None


def test_an_entry_that_is_too_large_is_not_read(disk, monkeypatch):
    disk.put(KEY, PAYLOAD)
    os.truncate(disk.path / f"{KEY}.kernel", cache.MAX_ENTRY_BYTES + 1)
    monkeypatch.setattr(cache.os, "read", lambda *_: pytest.fail("read"))
    assert disk.get(KEY) is None
