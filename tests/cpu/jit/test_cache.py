"""The disk cache: what it stores, which files it trusts, and that the caller never sees a fault of the disk."""

import errno
import os
import stat
import threading
import time
import warnings
from pathlib import Path

import pytest

from deep_gemm.errors import CacheError, CacheWarning
from deep_gemm.jit import build, cache, private_folder
from deep_gemm.jit.cache import DiskCache
from tests.fakes.compiler import isolate, make_source, use_fake_nvcc

KEY, OTHER = "ab" * 32, "cd" * 32
PAYLOAD = bytes(range(256)) * 8
pytestmark = pytest.mark.usefixtures("fresh_process")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if not path.is_dir())


def entry(disk: DiskCache, key: str = KEY) -> Path:
    return disk.path / f"{key}.kernel"


# ---- what it stores ----


@pytest.mark.parametrize("payload", [b"", b"x", PAYLOAD, bytes(3 << 20)])
def test_returns_what_was_put(disk, payload):
    assert disk.get(KEY) is None
    disk.put(KEY, payload)
    assert disk.get(KEY) == payload and disk.get(OTHER) is None
    disk.put(KEY, b"newer")
    assert disk.get(KEY) == b"newer"
    assert files(disk.path) == [f"{KEY}.kernel"]


def test_entry_has_the_documented_layout(disk):
    disk.put(KEY, PAYLOAD)
    data = entry(disk).read_bytes()
    assert data[:8] == b"DGKERNEL" and int.from_bytes(data[8:12], "little") == cache.SCHEMA
    assert data[12:44].hex() == KEY and int.from_bytes(data[44:52], "little") == len(PAYLOAD) and data[84:] == PAYLOAD


def test_too_large_payload_is_not_stored(disk):
    disk.put(KEY, bytes(cache.MAX_ENTRY_BYTES))
    assert not disk.path.exists()


@pytest.mark.parametrize("key", ["", "..", "../" + KEY, KEY[:-1], KEY.upper(), KEY + "\n", "/etc/passwd"])
def test_names_that_are_no_hash_are_refused(disk, key):
    for use in (disk.get, lambda key: disk.put(key, b""), lambda key: disk.lock(key).__enter__()):
        with pytest.raises(ValueError, match="64 lower-case hexadecimal"):
            use(key)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_do_not_depend_on_umask(disk, umask):
    before = os.umask(umask)
    try:
        with disk.lock(KEY):
            assert stat.S_IMODE((disk.path / f"{KEY}.lock").stat().st_mode) == 0o600
        disk.put(KEY, PAYLOAD)
    finally:
        os.umask(before)
    assert stat.S_IMODE(entry(disk).stat().st_mode) == 0o600
    assert {stat.S_IMODE(path.stat().st_mode) for path in (disk.path, disk.path.parent)} == {0o700}


def test_last_sixteen_bad_entries_are_kept(disk):
    for i in range(20):
        disk.put(KEY, PAYLOAD)
        entry(disk).write_bytes(b"bad %d" % i)
        assert disk.get(KEY) is None
    bad = list(disk.path.glob("*.bad"))
    assert len(bad) == cache.NUM_BAD_KEPT
    assert {path.read_bytes() for path in bad} == {b"bad %d" % i for i in range(4, 20)}


# ---- which files it trusts ----


def refused(disk: DiskCache) -> None:
    """Check that the folder is left as it is, with one warning, and that the caller gets its kernel."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert disk.get(KEY) is None
        disk.put(KEY, PAYLOAD)
        with disk.lock(KEY) as is_held:
            assert not is_held
        assert disk.get(KEY) is None and disk.gc() == 0
    assert [warning.category for warning in caught] == [CacheWarning]
    assert "memory only" in str(caught[0].message) and str(disk._root or disk.path) in str(caught[0].message)


@pytest.mark.parametrize("folder", ["root", "root/cache"])
def test_folder_open_to_others_is_refused(disk, tmp_path, folder):
    disk.put(KEY, PAYLOAD)
    (tmp_path / folder).chmod(0o777)
    refused(disk)


@pytest.mark.parametrize("folder", ["root", "root/cache"])
def test_symbolic_link_in_place_of_the_folder_is_refused(disk, tmp_path, folder):
    disk.put(KEY, PAYLOAD)
    (tmp_path / folder).rename(tmp_path / "elsewhere")
    (tmp_path / folder).symlink_to(tmp_path / "elsewhere")
    refused(disk)


@pytest.mark.parametrize("folder", ["root", "root/cache"])
def test_folder_of_another_user_is_refused(disk, tmp_path, folder, monkeypatch):
    disk.put(KEY, PAYLOAD)
    if os.geteuid() == 0:
        os.chown(tmp_path / folder, 65534, -1)
    else:
        monkeypatch.setattr(cache.os, "geteuid", lambda: os.getuid() + 1)
    refused(disk)


def test_file_in_place_of_the_folder_is_refused(disk, tmp_path):
    (tmp_path / "root").write_text("a file")
    refused(disk)


def test_no_home_and_no_variable_keeps_memory_only(monkeypatch):
    monkeypatch.delenv("DG_JIT_CACHE_DIR", raising=False)
    monkeypatch.delenv("HOME")
    with pytest.warns(CacheWarning, match="neither DG_JIT_CACHE_DIR nor HOME"):
        assert cache.get_disk_cache().get(KEY) is None


def test_relative_folder_is_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DG_JIT_CACHE_DIR", "here")
    refused(cache.get_disk_cache())
    assert not (tmp_path / "here").exists()


def test_readable_but_not_writable_root_is_accepted(disk, tmp_path):
    (tmp_path / "root").mkdir(mode=0o755)
    disk.put(KEY, PAYLOAD)
    assert disk.get(KEY) == PAYLOAD


def make_link(path: Path, valid: Path) -> None:
    path.symlink_to(valid)


def make_hard_link(path: Path, valid: Path) -> None:
    path.hardlink_to(valid)


def make_sparse(path: Path, valid: Path) -> None:
    with open(path, "wb") as stream:
        stream.truncate(2 << 30)


def make_foreign(path: Path, valid: Path) -> None:
    path.write_bytes(valid.read_bytes())
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, -1)


@pytest.mark.parametrize(
    "make",
    [
        make_link,
        make_hard_link,
        make_sparse,
        make_foreign,
        lambda path, valid: os.mkfifo(path),
        lambda path, valid: path.mkdir(),
    ],
    ids=["symlink", "hard link", "2 GiB", "foreign", "fifo", "folder"],
)
def test_entry_that_is_no_plain_file_of_ours_is_a_miss(disk, tmp_path, make):
    disk.put(KEY, PAYLOAD)
    valid = entry(disk).rename(tmp_path / "valid")
    make(entry(disk), valid)
    assert disk.get(KEY) is None
    assert len(list(disk.path.glob("*.bad"))) == 1 and not os.path.lexists(entry(disk))
    disk.put(KEY, b"rebuilt")
    assert disk.get(KEY) == b"rebuilt" and valid.read_bytes()[84:] == PAYLOAD


# ---- the n-th system call fails, once or for ever ----


class Failing:
    """Stands for `os` and lets the n-th call of one function fail, once or for ever."""

    def __init__(self, name: str, nth: int, number: int, is_permanent: bool):
        self._name, self._left, self._number, self._is_permanent = name, nth, number, is_permanent
        self.has_failed = False

    def __getattr__(self, name):
        real = getattr(os, name)
        return self._wrap(real) if name == self._name else real

    def _wrap(self, real):
        def call(*args, **kwargs):
            self._left -= 1
            if self._left == 0 or (self._left < 0 and self._is_permanent):
                self.has_failed = True
                raise OSError(self._number, os.strerror(self._number))
            return real(*args, **kwargs)

        return call


def use_os(monkeypatch, stand_in) -> None:
    for module in (cache, private_folder):
        monkeypatch.setattr(module, "os", stand_in)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("name", ["open", "write", "fsync", "replace", "mkdir", "fstat", "read", "listdir"])
@pytest.mark.parametrize("is_permanent", [False, True])
def test_anomaly_loop(monkeypatch, tmp_path, name, number, is_permanent):
    for nth in range(1, 100):
        disk = DiskCache(tmp_path / str(nth) / "root/cache", root=tmp_path / str(nth) / "root")
        shim = Failing(name, nth, number, is_permanent)
        use_os(monkeypatch, shim)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            with disk.lock(KEY):
                found = [disk.get(KEY), disk.put(KEY, PAYLOAD), disk.get(KEY)]
        use_os(monkeypatch, os)
        assert found[0] is None and found[2] in (None, PAYLOAD)
        leftovers = files(tmp_path / str(nth))
        assert set(leftovers) <= {f"{KEY}.kernel", f"{KEY}.lock"}
        assert disk.get(KEY) in (None, PAYLOAD) and not list(disk.path.glob("*.bad"))
        if not shim.has_failed:
            assert leftovers == [f"{KEY}.kernel"]
            return
    pytest.fail("the loop never became clean")


@pytest.mark.parametrize("name", ["open", "write", "fsync", "mkdir"])
def test_whoever_must_fill_the_cache_knows_before(monkeypatch, disk, name):
    disk.check(is_filled=True)
    assert not files(disk.path)
    number = errno.EROFS if name == "open" else errno.ENOSPC
    fresh = DiskCache(disk.path / "deeper") if name == "mkdir" else disk
    use_os(monkeypatch, Failing(name, 3 if name == "open" else 1, number, True))
    with pytest.raises(CacheError, match=rf"= {fresh._root or fresh.path}: .* \(errno {number}\); .* name a folder"):
        fresh.check(is_filled=True)
    use_os(monkeypatch, os)
    assert not files(disk.path)
    if name != "mkdir":
        disk.check()


def test_kernel_is_built_and_used_when_the_disk_is_not_usable(monkeypatch, tmp_path):
    use_fake_nvcc(monkeypatch, tmp_path)
    monkeypatch.setenv("DG_JIT_CACHE_DIR", "/proc/none")
    count = tmp_path / "count"
    with pytest.warns(CacheWarning, match=r"/proc/none.*errno") as caught:
        results = [build.get_cubin_for_source(make_source(count=count), "kernel") for _ in range(2)]
    assert results[0] is results[1] and len(caught) == 1 and count.read_text() == "compiled\n"
    assert not list((tmp_path / "tmp").iterdir())


# ---- what killed processes leave ----


def test_gc_removes_orphans_but_nothing_alive(disk):
    disk.put(KEY, PAYLOAD)
    entry(disk, OTHER).write_bytes(b"corrupt")
    assert disk.get(OTHER) is None
    old = time.time() - cache.STALE_S - 1
    for name in ("dead.1.aa.tmp", f"{OTHER}.lock", "live.1.bb.tmp"):
        (disk.path / name).touch()
    for name in ("dead.1.aa.tmp", f"{OTHER}.lock"):
        os.utime(disk.path / name, (old, old))
    assert disk.gc() == 3
    assert files(disk.path) == [f"{KEY}.kernel", "live.1.bb.tmp"]


def test_gc_leaves_a_held_lock(disk):
    with disk.lock(KEY):
        os.utime(disk.path / f"{KEY}.lock", (0, 0))
        assert disk.gc() == 0
        assert files(disk.path) == [f"{KEY}.lock"]


def test_first_put_sweeps_orphans(disk):
    disk.path.mkdir(parents=True, mode=0o700)
    disk.path.parent.chmod(0o700)
    disk.path.chmod(0o700)
    (disk.path / "dead.1.aa.tmp").touch()
    os.utime(disk.path / "dead.1.aa.tmp", (0, 0))
    disk.put(KEY, PAYLOAD)
    assert files(disk.path) == [f"{KEY}.kernel"]


# ---- locks ----


def test_lock_excludes_and_leaves_no_file(disk):
    active, seen = [], []

    def work():
        with disk.lock(KEY) as is_held:
            active.append(1)
            seen.append((is_held, len(active)))
            time.sleep(0.002)
            active.pop()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(True, 1)] * 16 and files(disk.path) == []


def test_lock_gives_up_at_its_time_out(disk, tmp_path):
    hasty = DiskCache(disk.path, lock_timeout_s=0.1)
    with disk.lock(KEY), disk.lock(OTHER) as other_is_held:
        assert other_is_held
        start = time.monotonic()
        with hasty.lock(KEY) as is_held:
            assert not is_held and 0.1 <= time.monotonic() - start < 5


def test_lock_is_released_after_an_exception(disk):
    with pytest.raises(KeyError), disk.lock(KEY):
        raise KeyError
    with disk.lock(KEY) as is_held:
        assert is_held


# ---- the payload ----


def test_a_hit_still_tells_the_report(monkeypatch, tmp_path):
    use_fake_nvcc(monkeypatch, tmp_path)
    count = tmp_path / "count"
    first = build.get_cubin_for_source(make_source(count=count), "kernel")
    build.clear_memory()
    assert build.get_cubin_for_source(make_source(count=count), "kernel") == first
    assert count.read_text() == "compiled\n"


def test_refused_cubin_is_built_again_and_replaced(monkeypatch, tmp_path):
    use_fake_nvcc(monkeypatch, tmp_path)
    count = tmp_path / "count"
    source = make_source(count=count)
    build.get_cubin_for_source(source, "kernel")
    second = build.get_cubin_for_source(source, "kernel", is_refused=True)
    assert count.read_text() == "compiled\n" * 2
    build.clear_memory()
    assert build.get_cubin_for_source(source, "kernel") == second and count.read_text() == "compiled\n" * 2


def test_payload_of_another_layout_is_a_miss(monkeypatch, tmp_path):
    home = use_fake_nvcc(monkeypatch, tmp_path)
    source = make_source()
    first = build.get_cubin_for_source(source, "kernel")
    (path,) = (home / "cache").glob("*.kernel")
    for payload in (b"", b"\xff\xff\xff\xff", b"\x02\0\0\0{}", b"\x02\0\0\0[]", b"\x04\0\0\0null"):
        cache.get_disk_cache().put(path.stem, payload)
        build.clear_memory()
        assert build.get_cubin_for_source(source, "kernel").cubin == first.cubin


def test_folder_is_read_from_the_environment_each_time(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path / "one")
    cache.get_disk_cache().put(KEY, PAYLOAD)
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "two"))
    assert cache.get_disk_cache().get(KEY) is None
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "one"))
    assert cache.get_disk_cache().get(KEY) == PAYLOAD
