"""Imports around the product: no cycles, and nothing that a GPU run does not need.

    deep_gemm <- tuner <- examples <- benchmarks, tests/gpu <- tests/fakes <- tests/cpu, tests/fault

The benchmarks and the GPU suite do not import each other, so that each runs and changes independently. A fake may
import what it replaces.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OURS = {"deep_gemm", "tuner", "benchmarks", "examples", "tests"}
#: Folder -> what it may import of this repository besides itself.
ARROWS = {
    "benchmarks": {"deep_gemm", "tuner", "examples"},
    "examples": {"deep_gemm", "tuner"},
    "tests/gpu": {"deep_gemm", "tuner"},
    "tests/fakes": {"deep_gemm", "tuner"},
}
#: What a fake stands in for.
FAKED = {"gpu_benchmark.py": {"benchmarks"}, "gpu_world.py": {"tests.gpu"}, "sanitizer_tool.py": {"tests.gpu"}}


def find_package(path: Path, node: ast.ImportFrom) -> str:
    """Return the absolute name of the module that an import statement names."""
    if node.level == 0:
        return node.module
    parts = path.relative_to(ROOT).parent.parts
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def list_imports(path: Path) -> set[str]:
    """Return the modules that a file imports, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{find_package(path, node)}.{alias.name}" for alias in node.names}
    return found


def list_foreign(path: Path, folder: str) -> set[str]:
    """Return what a file of a folder imports of this repository and may not."""
    own = folder.replace("/", ".")
    allowed = {own, *ARROWS[folder], *(FAKED.get(path.name, set()) if folder == "tests/fakes" else set())}
    return {
        name
        for name in list_imports(path)
        if name.partition(".")[0] in OURS and not any(f"{name}.".startswith(f"{package}.") for package in allowed)
    }


@pytest.mark.parametrize("folder", ARROWS)
def test_folders_import_along_the_arrows(folder):
    files = sorted((ROOT / folder).glob("*.py"))
    assert files
    foreign = {path.name: list_foreign(path, folder) for path in files}
    assert not {name: names for name, names in foreign.items() if names}


def test_relative_imports_are_seen():
    folder = ROOT / "tests" / "gpu"
    node = ast.parse("from ..fakes import spaces").body[0]
    assert find_package(folder / "x.py", node) == "tests.fakes"
    assert find_package(folder / "x.py", ast.parse("from .world import World").body[0]) == "tests.gpu.world"
