"""The house style, as far as a program can check it."""

import ast
import functools
import re
import statistics
import subprocess
from pathlib import Path

from deep_gemm import environment

ROOT = Path(__file__).parents[3]
CODE = (".py", ".hpp", ".cpp", ".cuh")
MAX_LINES = {".cuh": 450}
MAX_COLUMNS = 120
#: The string of one PTX instruction alone: in two of them the text of the kernel would be another.
PTX = re.compile(r'\s+(asm volatile\()?"[A-Za-z0-9:._]+ [^"]*;"')
README_LINES = 150
TOP_LEVEL = {
    "deep_gemm",
    "csrc",
    "tuner",
    "models",
    "db",
    "tests",
    "setup.py",
    "README.md",
    "pyproject.toml",
    "Makefile",
    "LICENSE",
    "MANIFEST.in",
    ".ci",
    ".clang-format",
    ".gitignore",
    ".gitattributes",
    "benchmarks",
    "examples",
    "docs",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
}
#: Absolute paths of one machine, and marks of unfinished work. Written so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|farm|root)/")
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
VARIABLE = re.compile(r"\bDG_[A-Z0-9_]+\b")


def listed_files() -> list[Path]:
    """Return the files that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def code_files() -> list[Path]:
    """Return the source files."""
    return [path for path in listed_files() if path.suffix in CODE]


def relative(path: Path) -> str:
    """Return a path as messages show it."""
    return str(path.relative_to(ROOT))


@functools.cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def functions_of(path: Path) -> list[ast.FunctionDef]:
    """Return the functions of a Python file, nested ones too."""
    nodes = ast.walk(parse(path))
    return [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def function_lengths() -> dict[str, int]:
    """Return {file:line name: lines} of every Python function, without the lines of its docstring."""
    lengths = {}
    for path in code_files():
        for node in functions_of(path) if path.suffix == ".py" else ():
            first = node.body[0]
            is_documented = (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            )
            docstring = first.end_lineno - first.lineno + 1 if is_documented else 0
            lengths[f"{relative(path)}:{node.lineno} {node.name}"] = node.end_lineno - node.lineno + 1 - docstring
    return lengths


def test_files_are_short():
    lengths = {relative(path): path.read_text(encoding="utf-8").count("\n") for path in code_files()}
    assert not {name: lines for name, lines in lengths.items() if lines > MAX_LINES.get(Path(name).suffix, 400)}


def test_lines_are_short():
    wrong = []
    for path in code_files():
        lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        wrong += [f"{relative(path)}:{n}" for n, line in lines if len(line) > MAX_COLUMNS and not PTX.fullmatch(line)]
    assert not wrong


def test_readme_is_short():
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("\n") <= README_LINES


def test_functions_are_short():
    lengths = function_lengths()
    assert not {name: lines for name, lines in lengths.items() if lines > 80}
    assert statistics.median(lengths.values()) <= 10
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 40


def test_names_of_files():
    """Only DeepGEMM's own module names are utils."""
    named = {relative(path) for path in listed_files() if any("utils" in part for part in path.with_suffix("").parts)}
    allowed = {f"deep_gemm/utils/{module}.py" for module in ("__init__", "dist", "layout", "math")}
    assert {name for name in named if "/utils/" in name or "utils" in name.rpartition("/")[2]} == allowed | {
        "deep_gemm/testing/utils.py"
    }


def test_top_level_is_fixed():
    assert {path.relative_to(ROOT).parts[0] for path in listed_files()} <= TOP_LEVEL


def test_no_machine_paths_and_no_unfinished_work():
    wrong = []
    for path in listed_files():
        if path.suffix in (*CODE, ".md", ".toml", ".sh", ".json", ".yml", "") and path.stat().st_size < 2_000_000:
            text = path.read_text(encoding="utf-8", errors="replace")
            wrong += [
                f"{relative(path)}: {match[0]!r}"
                for pattern in (MACHINE_PATH, UNFINISHED)
                for match in pattern.finditer(text)
            ]
    assert not wrong


def undocumented(path: Path) -> list[str]:
    """Return the module and the public functions of a file (methods too; not nested functions and private classes) that
    have no docstring.
    """
    tree = parse(path)
    if not tree.body:
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    private = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name.startswith("_")]
    hidden = {id(child) for node in (*functions, *private) for child in ast.walk(node) if child is not node}
    public = [node for node in functions if not node.name.startswith("_") and id(node) not in hidden]
    module = [] if ast.get_docstring(tree) else [relative(path)]
    return module + [f"{relative(path)}:{node.lineno} {node.name}" for node in public if not ast.get_docstring(node)]


def test_every_module_and_public_function_says_what_it_is():
    checked = [path for path in code_files() if path.suffix == ".py" and not relative(path).startswith("tests/")]
    assert not [name for path in checked for name in undocumented(path)]


def test_environment_variables_are_read_in_one_place():
    known, wrong = set(environment.VARIABLES), []
    for path in code_files():
        if relative(path).split("/")[0] in ("deep_gemm", "tuner", "db", "csrc"):
            text = path.read_text(encoding="utf-8")
            wrong += [
                f"{relative(path)}: {name}" for name in set(VARIABLE.findall(text)) - known if not name.endswith("_")
            ]
            reads = re.search(r"\bos\.(?:getenv|environ\[|environ\.get)\(?[\"']DG_", text)
            wrong += (
                [f"{relative(path)} reads a DG_ variable itself"] if reads and path.name != "environment.py" else []
            )
    assert not wrong
