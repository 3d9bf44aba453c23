"""tests/wheel.py: a wheel with the compiled module, in an environment of its own."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import pytest

from tests import wheel

#: A folder called build is a package without files to an environment that lacks PyPA's build.
NEEDS_BUILD = pytest.mark.skipif(find_spec("build.__main__") is None, reason="PyPA's build is not installed")


@pytest.mark.full
@NEEDS_BUILD
def test_the_wheel_is_imported_and_tested_where_it_was_installed(tmp_path, capsys):
    assert wheel.main(["--dist", str(tmp_path), "--tests", "tests/cpu/nn/test_fused.py"]) == 0
    (built,) = tmp_path.glob("*.whl")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(built.name) and all("/venv/lib/" in line for line in printed[1:3])


@pytest.mark.parametrize("place, code", [("venv/lib", 0), ("elsewhere", 1)])
def test_a_package_from_another_place_is_refused(tmp_path, monkeypatch, place, code):
    built = tmp_path / "deep_gemm.whl"
    built.touch()
    printed = "".join(f"{tmp_path / place / name}\n" for name in ("deep_gemm", "tuner"))
    monkeypatch.setattr(wheel, "build_wheel", lambda dist: built)
    monkeypatch.setattr(wheel, "make_environment", lambda folder, found: folder / "bin/python")
    monkeypatch.setattr(wheel, "run", lambda *_: subprocess.CompletedProcess([], 0, stdout=printed))
    assert wheel.check(tmp_path, [], tmp_path) == code


def test_an_environment_has_the_paths_of_this_one_behind_its_own(tmp_path, monkeypatch):
    seen = []

    def record(command, check, env=None):
        seen.append(command)
        assert env is None or "PYTHONPATH" not in env
        (tmp_path / "lib" / "python3" / "site-packages").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(wheel.subprocess, "run", record)
    monkeypatch.setenv("PYTHONPATH", str(wheel.ROOT))
    assert wheel.make_environment(tmp_path, tmp_path / "x.whl") == tmp_path / "bin" / "python"
    assert "venv" in seen[0] and {"--no-deps", "--no-index"} <= set(seen[1])
    (others,) = tmp_path.glob("lib/python3/site-packages/others.pth")
    assert all(os.path.isabs(line) for line in others.read_text().split())


def test_the_metadata_promise_what_the_page_says_was_tested():
    project = tomllib.loads((wheel.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (wheel.ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    tested = re.findall(r"^\| (3\.\d+)\.\d+ \| 2\.(\d+)\.\d+", page, re.MULTILINE)
    promised = [found[1] for name in project["classifiers"] if (found := re.search(r"Python :: (3\.\d+)$", name))]
    assert promised == [python for python, _ in tested] and project["requires-python"] == f">={promised[0]}"
    minors = [int(minor) for _, minor in tested]
    assert f"torch>=2.{min(minors)},<2.{max(minors) + 1}" in project["dependencies"]


def test_a_build_takes_no_older_pybind11_than_was_tested():
    """Of 2.12 and 3.0 it is known that they do not compile this: their pickles want one type in both directions."""
    wanted = tomllib.loads((wheel.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    (tested,) = re.findall(r'"pybind11==(\d+\.\d+)\.', (wheel.ROOT / "Makefile").read_text(encoding="utf-8"))
    assert f"pybind11>={tested},<4" in wanted


@pytest.mark.full
@NEEDS_BUILD
def test_a_folder_of_its_own_leaves_another_distribution_as_it_is(tmp_path):
    """What docs/compatibility.md says of two distributions of one module."""
    others = tmp_path / "others"
    (others / "deep_gemm").mkdir(parents=True)
    (others / "deep_gemm" / "__init__.py").write_text("")
    folder = tmp_path / "deep_gemm_tuned"
    options = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", *options, str(wheel.build_wheel(tmp_path))], check=True)
    for paths, owner in (([folder, others], folder), ([others], others)):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
        command = [sys.executable, "-P", "-c", "import deep_gemm; print(deep_gemm.__file__)"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
        assert done.stdout.strip() == str(owner / "deep_gemm" / "__init__.py")
