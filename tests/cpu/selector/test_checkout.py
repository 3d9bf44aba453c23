"""A checkout with the native module built in place chooses as an installed package does, imported from anywhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deep_gemm import _C, selector_files

ROOT = Path(__file__).parents[3]
PRODUCT = ("deep_gemm", "models", "tuner", "db")
SKU = selector_files.PACKAGED_SKUS[0]

#: Prints how the shapes of a model are chosen, who is warned and where the package lies.
#: The finder of an editable install would find what this copy lacks.
PROBE = f"""
import json, sys, warnings
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import deep_gemm
    from deep_gemm import _C, selection
    device = _C.Device.known({SKU!r})
    problems = [_C.Problem("fp8_gemm", m, 2112, 7168) for m in (1, 64, 333, 4096)]
    choices = [str(selection.explain(problem, device)) for problem in problems]
from tuner.db import snapshot_path
print(json.dumps({{
    "file": deep_gemm.__file__, "choices": choices, "warnings": [str(warning.message) for warning in caught],
    "snapshot": snapshot_path({SKU!r}).stat().st_size,
}}))
"""


def copy_checkout(target: Path) -> Path:
    """Copy what git tracks of the product, links as links, with the native module built in place."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PRODUCT]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, [*names, str(Path(_C.__file__).relative_to(ROOT))]):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(ROOT / name):
            shutil.copy2(ROOT / name, path, follow_symlinks=False)
    return target


def copy_installed(target: Path) -> Path:
    """Copy the two packages as an installation lays them out: without links and without the folders they lead to."""
    for name in ("deep_gemm", "tuner"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.lock"))
    return target


def run_probe(root: Path, folder: Path) -> dict:
    """Return what PROBE prints of the packages below `root`, run in a folder that has its own `db` and `models`."""
    for name in ("db", "models"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "__init__.py").write_text("raise ImportError('not ours')\n", encoding="ascii")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found.pop("file")).is_relative_to(root)
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of this checkout."""
    return copy_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.mark.full
def test_a_checkout_chooses_as_an_installation(checkout, tmp_path):
    assert (checkout / "deep_gemm" / "models").is_symlink() and (checkout / "tuner" / "db").is_symlink()
    found = run_probe(checkout, tmp_path / "elsewhere")
    assert sum(": measured best" in choice for choice in found["choices"]) == 3 and not found["warnings"]
    installed = copy_installed(tmp_path / "installed")
    assert not any(path.is_symlink() for path in installed.rglob("*"))
    assert run_probe(installed, tmp_path / "elsewhere") == found


def test_a_checkout_without_its_links_says_so_once(checkout, tmp_path):
    """Git writes a link as a text file where the file system or its configuration has no links."""
    broken = shutil.copytree(checkout, tmp_path / "broken", symlinks=True)
    (broken / "deep_gemm" / "models").unlink()
    (broken / "deep_gemm" / "models").write_text("../models", encoding="ascii")
    found = run_probe(broken, tmp_path / "elsewhere")
    (message,) = found["warnings"]
    assert f"deep_gemm/models/{SKU}.dgsel: no such file" in message and "git checkout" in message
    assert all("analytic" in choice for choice in found["choices"])
