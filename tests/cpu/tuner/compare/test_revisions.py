"""Which revision has a kernel hash, and which one made a kernel slower."""

import json
import subprocess
from pathlib import Path

import pytest

from tuner import cli, errors
from tuner.commands import bisect as command
from tuner.compare import comparison, revisions
from tuner.compare.kernel_sets import Clone, KernelSet
from tuner.measure import devices


def git(folder: Path, *arguments: str) -> str:
    """Run git with an author of its own; return what it prints."""
    whole = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(whole, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path, monkeypatch) -> Clone:
    """Six commits that write a number into a header; the set's hash is that number, rounded down to even."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # as if there were a GPU; stand-ins measure
    root = tmp_path / "repository"
    (root / "deep_gemm" / "include").mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    for number in range(6):
        (root / "deep_gemm" / "include" / "a.cuh").write_text(f"{number}")
        git(root, "add", "-A")
        git(root, "commit", "-qm", f"Number {number}")
        git(root, "tag", f"v{number}")
    made = Clone(root, tmp_path / "work")
    monkeypatch.setattr(Clone, "here", staticmethod(lambda work=None: made))
    monkeypatch.setattr(Clone, "finish", lambda self, name, label, folder: KernelSet(name, label, folder, None))
    monkeypatch.setattr(revisions, "ask_hashes", lambda asked, ops: {"fp8_gemm": f"{read(asked) // 2 * 2:064x}"})
    return made


def read(made: KernelSet) -> int:
    """Return the number of a set."""
    return int((made.folder / "deep_gemm" / "include" / "a.cuh").read_text())


def test_a_kernel_hash_finds_its_newest_revision(clone):
    assert read(revisions.make_set(clone, f"{2:064x}")) == 3
    assert read(revisions.make_set(clone, "v4")) == 4
    with pytest.raises(errors.UsageError, match="kernel hash"):
        revisions.make_set(clone, "f" * 64)


def test_hashes_are_computed_once(clone, monkeypatch):
    assert revisions.get_hashes(clone, "v3", ["fp8_gemm"]) == {"fp8_gemm": f"{2:064x}"}
    monkeypatch.setattr(revisions, "ask_hashes", None)
    assert revisions.get_hashes(clone, "v3", ["fp8_gemm"]) == {"fp8_gemm": f"{2:064x}"}


@pytest.mark.parametrize("content", ["", '{"cut', "[]"])
def test_damaged_hashes_are_computed_again(clone, content):
    clone.work.mkdir()
    (clone.work / "hashes.json").write_text(content)
    for _ in range(2):
        assert revisions.get_hashes(clone, "v3", ["fp8_gemm"]) == {"fp8_gemm": f"{2:064x}"}
    assert json.loads((clone.work / "hashes.json").read_text())


@pytest.mark.parametrize("first_slow", range(1, 12))
def test_bisection_finds_the_first_slow_revision(first_slow):
    """Hashes change with every third revision and where it gets slow."""
    names = [f"r{number}" for number in range(12)]
    number_of = names.index
    measured: list[str] = []

    def is_slower(name: str) -> bool:
        measured.append(name)
        return number_of(name) >= first_slow

    found = revisions.bisect(names, lambda name: f"{number_of(name) // 3} {number_of(name) >= first_slow}", is_slower)
    assert found == names[first_slow] and len(measured) <= 3


def test_commits_between_are_listed_oldest_first(clone):
    found = revisions.list_revisions(clone, "v1", "v4")
    assert found == [git(clone.root, "rev-parse", f"v{number}") for number in range(1, 5)]
    for good, bad in (("v4", "v1"), ("v1", "v1"), ("nope", "v1")):
        with pytest.raises(errors.UsageError):
            revisions.list_revisions(clone, good, bad)


def test_the_bad_revision_must_descend_from_the_good_one(clone):
    git(clone.root, "checkout", "-q", "-b", "side", "v1")
    (clone.root / "deep_gemm" / "include" / "a.cuh").write_text("9")
    git(clone.root, "commit", "-qam", "Number 9")
    assert len(revisions.list_revisions(clone, "v1", "side")) == 2
    with pytest.raises(errors.UsageError, match="does not descend"):
        revisions.list_revisions(clone, "v3", "side")


def compare(first_slow: int, verdict: str = "slower"):
    """Return a stand-in for compare_sets."""

    def compare_sets(old, new, options) -> dict:
        row = {"verdict": verdict if read(new) >= first_slow else "same", "error": "D differs"}
        return {"pairs": [row], "new": {"name": new.name}}

    return compare_sets


def test_the_command_names_the_commit(clone, monkeypatch, capsys):
    monkeypatch.setattr(comparison, "compare_sets", compare(4))
    assert cli.run(["bisect", "v0", "v5", "64", "2112", "7168"]) == 0
    assert capsys.readouterr().out.endswith("Number 4\n")


def test_equal_kernels_need_no_gpu(clone, monkeypatch, capsys):
    monkeypatch.setattr(comparison, "compare_sets", lambda *_: pytest.fail("measured"))
    assert cli.run(["bisect", "v2", "v3", "64", "2112", "7168"]) == 3
    assert "v2 and v3 have the same kernels of fp8_gemm" in capsys.readouterr().err
    assert cli.run(["bisect", "v2", "v5", "64", "2112", "7168", "--field", "depth=3"]) == 2
    assert "--field depth: no such field of a problem; use one of num_sms, num_groups" in capsys.readouterr().err


def test_the_command_says_where_there_is_nothing_to_find(clone, monkeypatch, capsys):
    monkeypatch.setattr(comparison, "compare_sets", compare(9))
    assert cli.run(["bisect", "v0", "v5", "64", "2112", "7168"]) == 3
    assert "not slower" in capsys.readouterr().err
    monkeypatch.setattr(comparison, "compare_sets", compare(3, "wrong"))
    assert cli.run(["bisect", "v0", "v5", "64", "2112", "7168"]) == 3 and "D differs" in capsys.readouterr().err
    assert command.judge({"pairs": [{"verdict": "faster", "error": None}], "new": {"name": "x"}}) is False


def test_bisect_says_before_it_builds_that_there_is_no_gpu(clone, monkeypatch, capsys):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(devices, "count_visible_devices", lambda: 0)
    monkeypatch.setattr(revisions, "get_hashes", lambda clone, revision, ops: dict.fromkeys(ops, revision))
    monkeypatch.setattr(Clone, "make_set", lambda *names: pytest.fail("built a set"))
    assert cli.run(["bisect", "v0", "v5", "64", "2112", "7168"]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "sees no CUDA GPU" in error and "ab --compile-only" in error
