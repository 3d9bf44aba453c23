"""The source distribution holds what the build compiles."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

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


def test_source_distribution_holds_every_native_source(tree):
    subprocess.run([sys.executable, "setup.py", "-q", "sdist"], cwd=tree, check=True, capture_output=True, timeout=120)
    with tarfile.open(next((tree / "dist").glob("*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert CXX and set(CXX) <= held
    assert not (tree / "build").exists(), "nothing is written where nothing is built"
