"""Where kernel sets come from: revisions and header folders of a small repository with this package, compiled."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from deep_gemm import _C
from tests.fakes.compiler import require_compiler
from tuner import cli, errors
from tuner.compare import kernel_sets
from tuner.compare.kernel_sets import PARTS, Clone

ROOT = Path(__file__).parents[4]
HEADER = "deep_gemm/include/deep_gemm/gemm.cuh"
#: Where the kernel's code changes: it starts a little later.
PLACE = "void run() const {"


def git(folder: Path, *arguments: str) -> None:
    """Run git with an author of its own."""
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def slow_down(folder: Path) -> None:
    """Change the device code of a clone."""
    path = folder / HEADER
    text = path.read_text(encoding="utf-8")
    assert PLACE in text
    path.write_text(text.replace(PLACE, PLACE + ' asm volatile("nanosleep.u32 100;");'), encoding="utf-8")


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Clone:
    """A repository with two revisions of this package, of which the second has slower kernels."""
    root = tmp_path_factory.mktemp("repository")
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for part in (ROOT / name for name in PARTS):
        if part.is_dir():
            shutil.copytree(part, root / part.name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(part, root)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "First")
    git(root, "tag", "first")
    slow_down(root)
    git(root, "commit", "-qam", "Later start")
    shutil.copy2(_C.__file__, root / "deep_gemm")
    return Clone(root, tmp_path_factory.mktemp("work"))


@pytest.fixture
def here(clone, monkeypatch) -> Clone:
    """Let commands take that repository for the running one's."""
    monkeypatch.setattr(Clone, "here", staticmethod(lambda work=None: clone))
    return clone


def test_a_revision_is_written_once_with_the_native_module(clone):
    made = clone.make_set("first")
    assert made.label.endswith("First") and made.native is None
    assert "nanosleep" not in (made.folder / HEADER).read_text(encoding="utf-8")
    assert (made.folder / "deep_gemm" / kernel_sets.NATIVE_NAME).is_file()
    stamp = (made.folder / HEADER).stat().st_mtime_ns
    again = clone.make_set("HEAD~1")
    assert again.folder == made.folder and (made.folder / HEADER).stat().st_mtime_ns == stamp
    assert clone.make_set("main").folder != made.folder
    assert not list((clone.work / "sets").glob(".making-*"))


def test_device_headers_replace_those_of_the_package(clone, tmp_path):
    shutil.copytree(clone.root / "deep_gemm" / "include", tmp_path / "include")
    slow_down_copy = tmp_path / "include" / "deep_gemm" / "gemm.cuh"
    slow_down_copy.write_text("// other\n" + slow_down_copy.read_text(encoding="utf-8"), encoding="utf-8")
    for named in (tmp_path, tmp_path / "include", tmp_path / "include" / "deep_gemm"):
        made = clone.make_set(str(named))
        assert (made.folder / HEADER).read_text(encoding="utf-8").startswith("// other")
        assert (made.folder / "deep_gemm" / "jit" / "generator.py").is_file() and made.native is None


def test_this_tree_is_used_as_it_stands(clone):
    assert clone.make_set(".").folder == clone.root == clone.make_set(str(clone.root)).folder


@pytest.mark.parametrize("name", ["no-such-branch", "", "-x", "--all", "first:setup.py"])
def test_other_names_are_refused(clone, name):
    with pytest.raises(errors.UsageError):
        clone.make_set(name)


def test_a_folder_without_headers_is_refused(clone, tmp_path):
    with pytest.raises(errors.UsageError, match="device headers"):
        clone.make_set(str(tmp_path))


def test_a_clone_that_is_not_built_is_refused(clone, tmp_path):
    (tmp_path / "deep_gemm" / "jit").mkdir(parents=True)
    with pytest.raises(errors.UsageError, match="build"):
        clone.make_set(str(tmp_path))


def test_other_native_sources_are_built_apart(clone, tmp_path, monkeypatch):
    """The module of other sources has a tag of its own and is built once."""
    built = []

    def build(folder: Path, made: Path, tag: str) -> Path:
        built.append(tag)
        (made / "module.so").write_bytes(tag.encode())
        return made / "module.so"

    monkeypatch.setattr(kernel_sets, "run_build", build)
    git(clone.root, "worktree", "add", "-q", str(tmp_path / "other"), "first")
    (tmp_path / "other" / "csrc" / "module.cpp").write_text("// other\n")
    git(tmp_path / "other", "checkout", "-qb", "native")
    git(tmp_path / "other", "commit", "-qam", "Other sources")
    made = clone.make_set("native")
    assert made.native == made.folder / "deep_gemm" / kernel_sets.NATIVE_NAME
    assert made.native.read_bytes() == built[0].encode()
    clone.make_set("native")
    assert len(built) == 1


def run_command(capsys, *arguments: str) -> tuple[int, dict]:
    """Run `ab` with --json; return its exit code and report."""
    capsys.readouterr()
    code = cli.run(["ab", *arguments, "--compile-only", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_both_revisions_compile_and_differ(here, capsys, tmp_path):
    require_compiler("nvrtc")
    code, report = run_command(capsys, "first", "main", "64", "2112", "7168", "--out", str(tmp_path))
    row = report["pairs"][0]
    assert code == 0 and row["verdict"] == "compiled" and not row["is_same_code"], row
    assert row["old"]["config"] == row["new"]["config"] and row["old"]["registers"] > 0
    sources = {side: (tmp_path / row[side]["kernel"]).with_suffix(".cu") for side in ("old", "new")}
    assert all(path.is_file() for path in sources.values())


def test_two_configs_of_this_tree(here, capsys):
    require_compiler("nvrtc")
    configs = ["--config", "64x64 s4", "--config", '{"block_m": 64, "block_n": 128, "num_stages": 4}']
    code, report = run_command(capsys, "64", "2112", "7168", *configs, "--set", "num_stages=5")
    row = report["pairs"][0]
    assert code == 0 and row["old"]["name"] == "64x64x128 s4 c1x1" and row["new"]["name"] == "64x128x128 s5 c1x1"


def test_a_field_that_a_set_lacks_is_skipped(here, capsys):
    code, report = run_command(capsys, ".", ".", "64", "2112", "7168", "--set", "loop=2")
    assert code == 3 and report["pairs"][0]["verdict"] == "skipped" and "loop" in report["pairs"][0]["error"]


def test_the_native_module_is_this_process_own():
    assert Clone.here(Path("work")).root == Path(_C.__file__).resolve().parents[1]
