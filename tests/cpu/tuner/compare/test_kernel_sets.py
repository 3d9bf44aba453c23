"""Where kernel sets come from: revisions and header folders of a small repository with this package, compiled."""

import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from deep_gemm import _C
from tests.fakes.compiler import require_compiler
from tests.gpu.kernel_sets import slow_down
from tuner import cli, errors
from tuner.compare import comparison, kernel_sets
from tuner.compare.kernel_sets import PARTS, Clone, KernelSet
from tuner.measure.sets import load_native

ROOT = Path(__file__).parents[4]
HEADER = "deep_gemm/include/deep_gemm/sm90/gemm.cuh"


def git(folder: Path, *arguments: str) -> None:
    """Run git with an author of its own."""
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(command, check=True, capture_output=True)


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
    slow_down((root / HEADER).parents[1])
    git(root, "commit", "-qam", "Later start")
    shutil.copy2(_C.__file__, root / "deep_gemm")
    return Clone(root, tmp_path_factory.mktemp("work"))


@pytest.fixture
def here(clone, monkeypatch) -> Clone:
    """Let commands take that repository for the running one's."""
    monkeypatch.setattr(Clone, "here", staticmethod(lambda work=None: clone))
    return clone


@pytest.mark.parametrize("is_made", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_set_without_a_package_is_not_answered_for_by_this_one(tmp_path, is_made):
    if is_made:  # the native module alone
        (tmp_path / "deep_gemm").mkdir()
        shutil.copy2(_C.__file__, tmp_path / "deep_gemm")
    with pytest.raises(errors.TunerError, match="imported instead"):
        comparison.ask_hashes(KernelSet("old", "old", tmp_path, None), ["fp8_gemm"])


def test_a_work_folder_is_the_same_for_every_process(tmp_path, monkeypatch):
    """The processes of the sets have a working folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DG_JIT_CACHE_DIR", "cache")
    assert Clone.here(Path("work")).work == tmp_path / "work" and Clone.here().work == tmp_path / "cache"


@pytest.mark.parametrize("has_filters", [True, False])
def test_an_archive_is_unpacked_by_every_python(tmp_path, monkeypatch, has_filters):
    """Also by 3.11 to 3.11.3, which know no filters."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as made:
        made.add(__file__, "deep_gemm/one.py")
    content.seek(0)
    if not has_filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        whole = tarfile.TarFile.extractall
        monkeypatch.setattr(tarfile.TarFile, "extractall", lambda self, path: whole(self, path))
    kernel_sets.unpack(content, tmp_path)
    assert (tmp_path / "deep_gemm" / "one.py").read_bytes() == Path(__file__).read_bytes()


def test_a_revision_is_written_once_with_the_native_module(clone):
    made = clone.make_set("first")
    assert made.label.endswith("First") and made.native is None
    assert "clock64" not in (made.folder / HEADER).read_text(encoding="utf-8")
    assert (made.folder / "deep_gemm" / kernel_sets.NATIVE_NAME).is_file()
    stamp = (made.folder / HEADER).stat().st_mtime_ns
    again = clone.make_set("HEAD~1")
    assert again.folder == made.folder and (made.folder / HEADER).stat().st_mtime_ns == stamp
    assert clone.make_set("main").folder != made.folder
    assert not list((clone.work / "sets").glob(".making-*"))


def test_device_headers_replace_those_of_the_package(clone, tmp_path):
    shutil.copytree(clone.root / "deep_gemm" / "include", tmp_path / "include")
    changed = tmp_path / "include" / "deep_gemm" / "sm90" / "gemm.cuh"
    changed.write_text("// other\n" + changed.read_text(encoding="utf-8"), encoding="utf-8")
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


def test_a_set_can_be_named_by_its_folder(clone, monkeypatch):
    """As on a machine that has neither git nor a compiler."""
    made = clone.make_set("first")
    monkeypatch.setattr(Clone, "git", lambda *arguments: None)
    again = clone.make_set(str(made.folder))
    assert again.folder == made.folder and again.native is None


MODULE = """
#include <pybind11/pybind11.h>
struct Value { int number; };
PYBIND11_MODULE(_C, m) {
    pybind11::class_<Value>(m, "Value").def(pybind11::init<int>()).def_readonly("number", &Value::number);
}
"""


@pytest.mark.full
def test_modules_of_two_sets_live_in_one_process(tmp_path):
    """Both register a C++ type of one name, which pybind11 refuses to modules with the same tag."""
    modules = []
    for number in range(2):
        source, made = tmp_path / f"source{number}", tmp_path / f"made{number}"
        for folder in (source / "csrc", source / "deep_gemm", made):
            folder.mkdir(parents=True)
        (source / "csrc" / "module.cpp").write_text(MODULE)
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy2(ROOT / name, source)
        built = kernel_sets.run_build(source, made, f"_set_{number}")
        modules.append(load_native(number, str(built)))
    assert [module.Value(number).number for number, module in enumerate(modules)] == [0, 1]
    assert modules[0].Value is not modules[1].Value


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


@pytest.mark.full
def test_two_configs_of_this_tree(here, capsys):
    require_compiler("nvrtc")
    configs = ["--config", "64x64 s4", "--config", '{"block_m": 64, "block_n": 128, "num_stages": 4}']
    code, report = run_command(capsys, "64", "2112", "7168", *configs, "--set", "num_stages=5")
    row = report["pairs"][0]
    assert code == 0 and row["old"]["name"] == "64x64x128 s4 c1x1" and row["new"]["name"] == "64x128x128 s5 c1x1"


@pytest.mark.full
def test_a_field_that_a_set_lacks_is_skipped(here, capsys):
    code, report = run_command(capsys, ".", ".", "64", "2112", "7168", "--set", "swizzle=2")
    assert code == 3 and report["pairs"][0]["verdict"] == "skipped" and "swizzle" in report["pairs"][0]["error"]


def test_the_native_module_is_this_process_own():
    assert Clone.here(Path("work")).root == Path(_C.__file__).resolve().parents[1]
