"""The packages of the tuner are a pipeline: imports point one way, and there are no import cycles."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Every package may import itself and those before it.
PIPELINE = ("problems", "db", "measure", "compare", "search", "learn", "ship", "report", "commands")
#: Modules beside the packages: everyone may import these, they import no other part of the tuner but each other.
COMMON = {"tuner.credentials", "tuner.errors", "tuner.files", "tuner.measured", "tuner.pages"}
#: Modules on top: nobody imports them.
TOP = {"tuner", "tuner.cli", "tuner.__main__"}
#: Alembic loads the migrations by their path; each imports the ones before it.
MIGRATIONS = "tuner.db.migrations"


def find_modules() -> dict[str, Path]:
    """Return the modules of tuner and db, by name."""
    found = {}
    for folder, name in (("tuner", "tuner"), ("db", "tuner.db")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            if folder == "tuner" and parts[0] == "db":
                continue
            found[".".join([name, *parts]).removesuffix(".__init__")] = path
    return found


MODULES = find_modules()


def imports_of(name: str) -> set[str]:
    """Return the modules of tuner that a module imports, anywhere in its text."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES else node.module
                for alias in node.names
            }
    return found & set(MODULES) - {name}


def package_of(name: str) -> str:
    """Return the package of a module, "" for a module on top."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in PIPELINE else ""


def test_every_package_has_its_place():
    assert {package_of(name) for name in MODULES} == {"", *PIPELINE}
    assert {name for name in MODULES if not package_of(name)} == TOP | COMMON
    assert set().union(*map(imports_of, COMMON)) <= COMMON


@pytest.mark.parametrize("name", [name for name in MODULES if package_of(name)])
def test_imports_point_one_way(name):
    place = PIPELINE.index(package_of(name))
    allowed = {"", *PIPELINE[: place + 1]}
    wrong = {other for other in imports_of(name) if package_of(other) not in allowed or other in TOP - {"tuner"}}
    assert not wrong, f"{name} imports {sorted(wrong)}"


def test_nothing_but_the_database_knows_sql():
    sql = {name for name, path in MODULES.items() if "sqlalchemy" in path.read_text(encoding="utf-8")}
    assert sql and all(package_of(name) == "db" for name in sql)


def test_no_module_imports_itself_through_others():
    graph = {name: imports_of(name) for name in MODULES if not name.startswith(MIGRATIONS)}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
