"""The source distribution holds what the build compiles, and the combined unit is written only where it changes."""

import importlib.util
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).parents[3]

CXX = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*") if path.suffix in (".cpp", ".hpp")
)


@pytest.fixture
def tree(tmp_path):
    """A copy of what the build reads."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("csrc", "deep_gemm", "tuner", "db", "models"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.db", "*.lock")
        )
    return tmp_path


def load_setup(tree, monkeypatch):
    """Import setup.py without running it."""
    monkeypatch.chdir(tree)
    monkeypatch.setattr(setuptools, "setup", lambda **fields: None)
    spec = importlib.util.spec_from_file_location("setup_under_test", tree / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_source_distribution_holds_every_native_source(tree):
    subprocess.run([sys.executable, "setup.py", "-q", "sdist"], cwd=tree, check=True, capture_output=True, timeout=120)
    with tarfile.open(next((tree / "dist").glob("*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert CXX and set(CXX) <= held
    assert not (tree / "build").exists(), "nothing is written where nothing is built"


def test_every_source_is_compiled_once(tree, monkeypatch):
    setup = load_setup(tree, monkeypatch)
    sources = [source for source in setup.extension.sources if source != str(setup.UNIT)]
    assert sorted([*sources, *setup.COMBINED]) == [path for path in CXX if path.endswith(".cpp")]


def test_combined_unit_is_left_as_it_is_until_it_changes(tree, monkeypatch):
    setup = load_setup(tree, monkeypatch)
    setup.write_unit()
    first = setup.UNIT.stat().st_mtime_ns
    assert '#include "runtime/dispatch.cpp"' in setup.UNIT.read_text(encoding="utf-8").splitlines()
    setup.write_unit()
    assert setup.UNIT.stat().st_mtime_ns == first
    setup.COMBINED.pop()
    setup.write_unit()
    assert len(setup.UNIT.read_text(encoding="utf-8").splitlines()) == len(setup.COMBINED)
    assert [path.name for path in setup.UNIT.parent.iterdir()] == [setup.UNIT.name]
