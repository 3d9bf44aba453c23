"""A toy op family, added to a copy of the repository as docs/adding-an-op-family.md says: at most ten files.

tests/data/toy_family holds the files that the family adds, and as NAME.insert what it inserts into others. Building the
copy takes minutes and is marked `full`; without it, the toy's C++ and its kernel are compiled alone.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from deep_gemm import _C
from deep_gemm.jit import compile, generator
from deep_gemm.jit.hashing import kernel_hash
from tests.fakes.compiler import isolate, require_compiler

ROOT = Path(__file__).resolve().parents[3]
TOY = ROOT / "tests" / "data" / "toy_family"
PAGE = ROOT / "docs" / "adding-an-op-family.md"
OP, KERNEL, FAMILY = "bf16_relu_gemm", "relu_gemm", "relu_gemm"
MAX_FILES = 10
#: A line of a NAME.insert: where the lines below it go. A line end in the anchor is written \n.
INSERTION = re.compile(r"^>>> (before|after) (.+)\n((?:(?!>>> ).*\n)*)", re.MULTILINE)
INCLUDES = ["-Icsrc", f"-I{sysconfig.get_path('include')}"]

#: Runs the toy through everything, with the arguments (folder for results, 1 where there is an NVRTC).
PROBE = """
import json, sys
from pathlib import Path

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.artifact import read_artifact
from deep_gemm.jit import compile, generator
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.selector import Selector
from tuner import cli
from tuner.measure.operands import get_family, get_layouts

folder, has_compiler, op = Path(sys.argv[1]), sys.argv[2] == "1", "bf16_relu_gemm"
found = {"file": deep_gemm.__file__, "ops": [kind.name for kind in _C.OP_KINDS]}
found["hashes"] = {name: kernel_hash(name) for name in found["ops"]}

sizes, device = ["64", "2112", "7168"], _C.Device.known("h200")
problem = _C.Problem(op, *map(int, sizes))
found["select"] = [
    cli.run(["select", *sizes, "--device", "h200", "--op", name]) for name in (op, f"{op}_nt", "bf16_gemm")
]
config = deep_gemm.get_best_config(problem, device)
found["is_legal"] = _C.is_legal(problem, config, device)
found["knobs"] = sorted({(entry.split_k, entry.swap_ab) for entry in deep_gemm.get_candidates(problem, device)})
found["source"] = generator.generate_source(problem, config)
if has_compiler:
    compiled = compile.compile_source(found["source"], generator.kernel_name(op), "nvrtc")
    found["cubin"] = compiled.cubin[:4].hex()

a, b = torch.randn(16, 64).bfloat16(), torch.randn(24, 64).bfloat16()
d = torch.empty(16, 24)
deep_gemm.bf16_relu_gemm_nt(a, b, d)
found["is_right"] = torch.allclose(d, torch.relu(a.float() @ b.float().T)) and bool((d == 0).any())
torch.ops.deep_gemm_tuned.bf16_relu_gemm_nt(a, b, d.zero_())
found["is_right_in_a_graph"] = torch.allclose(d, torch.relu(a.float() @ b.float().T))
found["operands"] = [name for name, layout in get_layouts(problem).items() if layout]
found["finished"] = get_family(problem).finish(torch.tensor([-1.0, 2.0])).tolist()

rows = [{"op": op, "m": m, "n": n, "k": k} for m, n, k in ((16, 2112, 7168), (128, 7168, 2048), (512, 4096, 4096))]
(folder / "shapes.json").write_text(json.dumps({"problems": rows}))
shared = ["--db", str(folder / "toy.db")]
training = ["--training", str(folder / "training"), *shared]
found["loop"] = [cli.run(arguments) for arguments in (
    ["sweep", "--backend", "simulated", "--shapes", str(folder / "shapes.json"), *shared],
    ["train", "--out", str(folder / "training"), "--trees", "4", "--portfolio-size", "4", *shared],
    ["evaluate", *training, "--jobs", "1"],
    ["export", *training, "--out", str(folder / "models"), "--force"],
)]
(artefact,) = (folder / "models").glob("*.dgsel")
found["artefact"] = sorted(read_artifact(artefact.read_bytes())[0]["ops"])
found["card"] = [line for path in (folder / "models").glob("*.md") for line in path.read_text().splitlines()]
selector = Selector(artefact.read_bytes())
found["sources"] = [selector.choose(_C.Problem(**row), device).source for row in rows]
(folder / "found.json").write_text(json.dumps(found))
"""


def toy_files() -> dict[str, str]:
    """Return {path in the repository: "new" or "edited"} of every file of the toy."""
    names = [path.relative_to(TOY).as_posix() for path in TOY.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {name.removesuffix(".insert"): "edited" if name.endswith(".insert") else "new" for name in sorted(names)}


def insert(text: str, insertions: str) -> str:
    """Return `text` with the insertions of a NAME.insert; every anchor must be there once, as whole lines."""
    found = INSERTION.findall(insertions)
    assert insertions == "".join(f">>> {side} {anchor}\n{lines}" for side, anchor, lines in found)
    for side, anchor, lines in found:
        start = f"\n{anchor}".replace("\\n", "\n")
        assert text.count(start) == 1, f"{anchor!r} is there {text.count(start)} times"
        place = text.index(start) + 1
        place = place if side == "before" else text.index("\n", place) + 1
        text = text[:place] + lines + text[place:]
    return text


def add_toy(copy: Path) -> None:
    """Add the toy's files to a copy of the repository."""
    for name, kind in toy_files().items():
        target = copy / name
        assert target.exists() == (kind == "edited"), name
        if kind == "new":
            shutil.copy(TOY / name, target)
        else:
            insertions = (TOY / f"{name}.insert").read_text(encoding="utf-8")
            target.write_text(insert(target.read_text(encoding="utf-8"), insertions), encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the repository with the toy, and with the objects of this one's build."""
    tree = tmp_path_factory.mktemp("toy") / "copy"
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if os.path.lexists(ROOT / name):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    for path in (ROOT / "build").glob("temp.*"):  # what the toy does not touch need not be compiled again
        shutil.copytree(path, tree / "build" / path.name)
    add_toy(tree)
    return tree


def run(command: list[object], folder: Path, **variables: str) -> str:
    """Run a command in `folder` and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(folder), **variables}
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_at_most_ten_files():
    assert 0 < len(toy_files()) <= MAX_FILES


def test_the_page_lists_the_files():
    """The page names the toy's files, with `<family>` for its own names."""
    page = PAGE.read_text(encoding="utf-8").split("| file |", 1)[1].split("\n\n", 1)[0]
    listed = re.findall(r"^\|[^|]*\| `([^`]+)` \| (new|edited) \|", page.replace("\n", "\n|", 1), re.MULTILINE)
    assert {name.replace("<family>", FAMILY): kind for name, kind in listed} == toy_files()


def test_an_anchor_must_be_there_once():
    assert insert("a\nb\nc\n", ">>> after b\nnew\n>>> before c\nlast\n") == "a\nb\nnew\nlast\nc\n"
    for text, insertions in (("a\nb\n", ">>> after c\nnew\n"), ("a\nb\nb\n", ">>> after b\nnew\n"), ("a\nb\n", "b\n")):
        with pytest.raises(AssertionError):
            insert(text, insertions)


def test_nothing_else_names_an_op_kind_by_its_row():
    """C++ knows op kinds by their rows only, so that a row is enough; the op kind of an einsum is in the expression's
    own row.
    """
    names = re.compile("|".join(rf'"{kind.name}"' for kind in _C.OP_KINDS))
    files = {path for path in (ROOT / "csrc").rglob("*.[ch]pp") if names.search(path.read_text(encoding="utf-8"))}
    assert {path.name for path in files} == {"op_kind.hpp", "expression.cpp"}


def test_the_toy_is_cpp_that_compiles(copy):
    """The host file, and the file that looks families up: a row without host functions is an error of the compiler."""
    compiler = shutil.which("c++") or shutil.which("g++")
    check = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *INCLUDES]
    run([*check, f"csrc/runtime/family_{FAMILY}.cpp"], copy)
    header = copy / "csrc" / "runtime" / "family.hpp"
    text = header.read_text(encoding="utf-8")
    header.write_text(re.sub(r'\n[^\n]*"relu_gemm", Grouping[^\n]*', "", text), encoding="utf-8")
    try:
        with pytest.raises(AssertionError, match="every op kind needs a row in kFamilies"):
            run([*check, f"csrc/runtime/family_{FAMILY}.cpp"], copy)
    finally:
        header.write_text(text, encoding="utf-8")


def test_the_toys_kernel_compiles(monkeypatch, tmp_path):
    """The kernel of bf16_gemm with the toy's header in place of its own."""
    require_compiler("nvrtc")
    isolate(monkeypatch, tmp_path)
    header = (TOY / "deep_gemm" / "include" / "deep_gemm" / f"{KERNEL}.cuh").read_text(encoding="utf-8")
    problem, device = _C.Problem("bf16_gemm", 64, 2112, 7168), _C.Device.known("h200")
    source = generator.generate_source(problem, _C.get_analytic_config(problem, device))
    old_header, old_class = '#include "deep_gemm/bf16_gemm.cuh"', "deep_gemm::Bf16Gemm<"
    assert source.count(old_header) == source.count(old_class) == 1
    source = source.replace(old_header, header.replace("#pragma once\n", "")).replace(old_class, "deep_gemm::ReluGemm<")
    assert compile.compile_source(source, "deep_gemm_bf16_gemm", "nvrtc").cubin[:4] == b"\x7fELF"


@pytest.fixture(scope="module")
def found(copy, tmp_path_factory) -> dict:
    """What the built copy found, see PROBE."""
    folder = tmp_path_factory.mktemp("probe")
    run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], copy)
    try:
        require_compiler("nvrtc")
        has_compiler = 1
    except pytest.skip.Exception:
        has_compiler = 0
    variables = {"HOME": str(folder), "DG_JIT_CACHE_DIR": str(folder / "cache"), "DG_TUNER_DB": ""}
    run([sys.executable, "-c", PROBE, folder, has_compiler], copy, **variables)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_the_toy_runs_through_everything(copy, found):
    assert Path(found["file"]).is_relative_to(copy)
    assert found["ops"] == [*(kind.name for kind in _C.OP_KINDS), OP]
    assert found["select"] == [0, 0, 0] and found["is_legal"] and {split for split, _ in found["knobs"]} == {1}
    assert "deep_gemm::ReluGemm<deep_gemm::Config, deep_gemm::Wgmma, " in found["source"]
    assert found.get("cubin", b"\x7fELF".hex()) == b"\x7fELF".hex()
    assert found["is_right"] and found["is_right_in_a_graph"]
    assert found["operands"] == ["a", "b", "d"] and found["finished"] == [0.0, 2.0]
    assert found["loop"] == [0, 0, 0, 0] and found["artefact"] == [OP] and f"## {OP}" in found["card"]
    assert found["sources"] == ["exact"] * 3


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_kernels_of_other_op_kinds_stay_the_same(found):
    hashes = {kind.name: kernel_hash(kind.name) for kind in _C.OP_KINDS}
    assert found["hashes"].pop(OP) not in hashes.values()
    assert found["hashes"] == hashes


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_the_copys_own_tests_pass(copy, found):
    names = (
        "ops/test_relu_gemm",
        "ops/test_table",
        "core/test_op_kinds",
        "core/test_identity",
        "project/test_replay",
    )
    files = [f"tests/cpu/{name}.py" for name in names]
    report = run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files], copy)
    assert " passed in " in report
