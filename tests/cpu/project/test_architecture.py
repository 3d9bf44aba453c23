"""Which files may import and include which, what importing the package does, and which names an installation adds."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).parents[3]
#: What deep_gemm may import besides the standard library.
RUN_TIME = {"deep_gemm", "torch", "numpy"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
#: Folder of csrc -> the folders whose headers it may include.
LAYERS = {"core": {"core"}, "selector": {"core", "selector"}, "runtime": {"core", "selector", "runtime"}}


def imported_names(path: Path) -> set[str]:
    """Return the top-level names that a Python file imports, in functions too, relative imports left out."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


def python_files(*folders: str) -> list[Path]:
    """Return the Python files of some folders of the clone."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def relative(path: Path) -> str:
    """Return a path as test ids show it."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", python_files("deep_gemm", "models"), ids=relative)
def test_deep_gemm_imports_torch_numpy_and_itself_only(path):
    foreign = imported_names(path) - RUN_TIME - set(sys.stdlib_module_names)
    assert not foreign, f"{relative(path)} imports {sorted(foreign)}"


def test_nothing_imports_db_models_or_the_tests_by_bare_name():
    product = python_files("deep_gemm", "tuner", "db", "models")
    around = python_files("benchmarks", "tests", "examples")
    wrong = {relative(path): imported_names(path) & {"db", "models", "tests", "benchmarks"} for path in product}
    wrong |= {relative(path): imported_names(path) & {"db", "models"} for path in around}
    assert not {path: names for path, names in wrong.items() if names}


def test_native_layers_include_downwards():
    for folder, allowed in LAYERS.items():
        for path in sorted((ROOT / "csrc" / folder).glob("*.[ch]pp")):
            included = {
                name.partition("/")[0] for name in INCLUDE.findall(path.read_text(encoding="utf-8")) if "/" in name
            }
            assert included - {"sys", "pybind11"} <= allowed, f"{relative(path)} includes {sorted(included)}"


def included_files(path: Path) -> set[str]:
    """Return what a file of csrc includes, itself or through its own headers."""
    found, waiting = set(), [path]
    while waiting:
        names = set(INCLUDE.findall(waiting.pop().read_text(encoding="utf-8"))) - found
        found |= names
        waiting += [ROOT / "csrc" / name for name in names if (ROOT / "csrc" / name).is_file()]
    return found


def test_pybind11_is_included_where_things_are_bound():
    """It costs the compiler several seconds in each file."""
    for path in sorted((ROOT / "csrc").rglob("*.cpp")):
        if not path.name.startswith("bind_") and path.name != "module.cpp":
            wrong = [name for name in included_files(path) if name.startswith("pybind11/")]
            assert not wrong, f"{relative(path)} includes {wrong}"


def test_no_toolkit_or_foreign_kernel_headers():
    foreign = re.compile(r"^(cuda|cute|cutlass|torch|ATen|c10|nv)")
    for path in [*sorted((ROOT / "csrc").rglob("*.[ch]pp")), *sorted((ROOT / "deep_gemm" / "include").rglob("*.cuh"))]:
        wrong = [name for name in INCLUDE.findall(path.read_text(encoding="utf-8")) if foreign.match(name)]
        assert not wrong, f"{relative(path)} includes {wrong}"


def test_device_headers_include_only_each_other():
    headers = sorted((ROOT / "deep_gemm" / "include").rglob("*.cuh"))
    assert headers
    for path in headers:
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            assert (ROOT / "deep_gemm" / "include" / name).is_file(), f"{relative(path)} includes {name}"


def test_the_native_module_does_not_link_libtorch():
    from deep_gemm import _C

    content = Path(_C.__file__).read_bytes()
    assert b"libtorch" not in content and b"libc10" not in content


IMPORT_PROBE = """
import json, sys
import numpy, torch
def loaded(): return sorted({line.split()[-1] for line in open("/proc/self/maps") if ".so" in line})
before, modules = loaded(), set(sys.modules)
import deep_gemm
after = loaded()
libraries, modules = sorted(set(after) - set(before)), sorted(set(sys.modules) - modules)
print(json.dumps({"libraries": libraries, "modules": modules, "initialised": torch.cuda.is_initialized()}))
"""


@pytest.fixture(scope="module")
def import_effects(tmp_path_factory) -> dict:
    """What `import deep_gemm` adds to a process that has torch and numpy, without HOME and in an empty folder."""
    folder = tmp_path_factory.mktemp("empty")
    command = [sys.executable, "-c", IMPORT_PROBE]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir()), "importing wrote files"
    return json.loads(done.stdout)


def test_import_loads_no_driver_or_compiler(import_effects):
    libraries = [
        path for path in import_effects["libraries"] if re.search(r"libcuda|libnvrtc|libtorch|libsqlite", path)
    ]
    assert not libraries
    assert not import_effects["initialised"]


def test_import_loads_no_tuner(import_effects):
    heavy = {"tuner", "optuna", "sklearn", "sqlalchemy", "alembic", "joblib", "typer"}
    assert not heavy & {name.partition(".")[0] for name in import_effects["modules"]}


def discovered_packages() -> set[str]:
    """Return the packages that setuptools finds by the rules of pyproject.toml."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    return set(setuptools.find_packages(str(ROOT), include=rules["packages"]["find"]["include"]))


def test_only_two_top_level_packages_are_installed():
    assert {name.partition(".")[0] for name in discovered_packages()} == {"deep_gemm", "tuner"}


def test_every_python_folder_of_a_package_is_installed():
    mapped = {"db": "tuner.db", "models": "deep_gemm.models"}
    folders = {path.parent.relative_to(ROOT).parts for path in python_files("deep_gemm", "tuner", "db", "models")}
    names = {".".join([mapped.get(first, first), *rest]) for first, *rest in folders}
    assert names == discovered_packages()


def test_the_version_stands_in_one_place():
    import deep_gemm

    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert metadata["project"]["dynamic"] == ["version"] and "version" not in metadata["project"]
    assert metadata["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "deep_gemm._version.__version__"}
    assert re.search(rf"^## {re.escape(deep_gemm.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
