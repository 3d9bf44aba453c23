"""A checkout built in place, an editable install and a wheel import the same names and make the same choices."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import deep_gemm
from deep_gemm import _C

ROOT = Path(__file__).parents[3]
NATIVE = Path(_C.__file__)
#: Where torch and the other dependencies lie; `python -S` sees no deep_gemm that is installed there.
DEPENDENCIES = Path(torch.__file__).parents[1]
#: The links of the repository, each with the folder that it shows.
LINKS = {"tuner/db": "db", "deep_gemm/models": "models"}
#: Files of the packages that only work on the repository needs.
NOT_INSTALLED = {".clang-format", "script.py.mako"}
PROBE = """
import site, sys
[site.addsitedir(folder) for folder in sys.argv[1:]]
import deep_gemm, tuner.db
from deep_gemm import _C, selection
choice = selection.explain(_C.Problem("fp8_gemm", 64, 2112, 7168), _C.Device.known("h200"))
recorded = tuner.db.snapshot_path("nvidia-h200-sm132")
print(deep_gemm.__file__, deep_gemm.__version__, choice.source, recorded.stat().st_size)
"""


#: Makes a distribution of one kind, with a copy of the built module where the compiler would write one.
BUILD = """
import pathlib, shutil, sys
from setuptools import build_meta
from setuptools.command.build_ext import build_ext

kind, native = sys.argv[1:]

def copy_module(self, extension):
    path = pathlib.Path(self.get_ext_fullpath(extension.name))
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        shutil.copy(native, path)

build_ext.build_extension = copy_module
getattr(build_meta, "build_" + kind)("dist/" + kind)
"""


def repository_files() -> list[str]:
    """Return the files of the repository, links as themselves, those not yet added too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if os.path.lexists(ROOT / name)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the repository, built in place."""
    tree = tmp_path_factory.mktemp("checkout") / "clone"
    for name in repository_files():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    shutil.copy2(NATIVE, tree / "deep_gemm")
    return tree


def build(checkout: Path, kind: str) -> Path:
    """Make a distribution of the checkout without compiling: 'wheel', 'editable' or 'sdist'."""
    command = [sys.executable, "-W", "ignore", "-c", BUILD, kind, str(NATIVE)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return next((checkout / "dist" / kind).iterdir())


@pytest.fixture(scope="module")
def wheel(checkout) -> Path:
    """The checkout's wheel."""
    return build(checkout, "wheel")


def run(arguments: list[object], paths: list[Path], folder: Path) -> str:
    """Run Python in an empty `folder`, with `paths` and the dependencies on its path, and return what it printed."""
    search = os.pathsep.join(map(str, [*paths, DEPENDENCIES]))
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": search}
    command = [sys.executable, "-S", "-P", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def expected_answer(package: Path) -> list[object]:
    """Return what the probe prints of a package at this place."""
    recorded = ROOT / "db" / "snapshots" / "nvidia-h200-sm132.db"
    return [str(package / "deep_gemm" / "__init__.py"), deep_gemm.__version__, "exact", str(recorded.stat().st_size)]


def installed_name(name: str) -> str:
    """Return the path in an installation of a file of the repository."""
    for link, folder in LINKS.items():
        if name.startswith(f"{folder}/"):
            return link + name.removeprefix(folder)
    return name


def packaged_files() -> set[str]:
    """Return the paths in an installation of all that is installed."""
    files = {installed_name(name) for name in repository_files()} - LINKS.keys()
    return {
        name for name in files if name.startswith(("deep_gemm/", "tuner/")) and Path(name).name not in NOT_INSTALLED
    }


def test_links_are_committed():
    listed = subprocess.run(["git", "ls-files", "-s", *LINKS], cwd=ROOT, capture_output=True, text=True, check=True)
    modes = {line.split()[-1]: line.split()[0] for line in listed.stdout.splitlines()}
    assert modes == dict.fromkeys(LINKS, "120000")
    assert {link: os.readlink(ROOT / link) for link in LINKS} == {link: f"../{to}" for link, to in LINKS.items()}


@pytest.mark.full  # test_checkout.py of the selector always compares the choices of a checkout and of an installation
def test_a_checkout_chooses_as_it_lies(checkout, tmp_path):
    assert run(["-c", PROBE], [checkout], tmp_path).split() == expected_answer(checkout)


def test_a_checkout_has_every_command(checkout, tmp_path):
    commands = run(["-m", "tuner", "--help"], [checkout], tmp_path)
    assert "sweep" in commands and "export" in commands


@pytest.mark.full
def test_an_editable_install_chooses_alike(checkout, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(build(checkout, "editable")).extractall(site)
    assert run(["-c", PROBE, site], [site], tmp_path).split() == expected_answer(checkout)


def test_an_editable_install_is_a_path_and_no_finder(checkout):
    """A finder is asked last: from the folder above, a clone named deep_gemm would be a package without modules."""
    with zipfile.ZipFile(build(checkout, "editable")) as archive:
        (name,) = (name for name in archive.namelist() if ".dist-info/" not in name)
        assert name.endswith(".pth") and archive.read(name).decode().split() == [str(checkout)]


@pytest.mark.full
def test_a_wheel_chooses_alike(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    assert run(["-c", PROBE], [site], tmp_path).split() == expected_answer(site)


def test_a_wheel_holds_every_file_of_the_packages_once(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    files = [name for name in names if ".dist-info/" not in name]
    assert sorted(files) == sorted(packaged_files() | {f"deep_gemm/{NATIVE.name}"})
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def write_other(folder: Path) -> Path:
    """Write the wheel of another distribution of the same name, with a module that this one lacks, and return it."""
    information = "deep_gemm-2.5.0.dist-info"
    files = {
        "deep_gemm/__init__.py": "",
        "deep_gemm/jit_kernels.py": "",
        f"{information}/METADATA": "Metadata-Version: 2.1\nName: deep_gemm\nVersion: 2.5.0\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / "deep_gemm-2.5.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{information}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{information}/RECORD"]))
    return path


def test_another_distribution_of_this_name_is_replaced_and_replaces(wheel, tmp_path):
    """What docs/compatibility.md says of upstream's: nothing of the one that was there stays."""
    venv.create(tmp_path / "venv")
    site = next(tmp_path.glob("venv/lib/python*/site-packages"))
    options = ["--python", tmp_path / "venv", "install", "--quiet", "--no-deps", "--no-index"]
    command = [sys.executable, "-m", "pip", *map(str, options)]
    other, theirs, ours = write_other(tmp_path), site / "deep_gemm" / "jit_kernels.py", site / "deep_gemm" / "ops.py"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}  # no PYTHONPATH, on which pip would find a checkout
    for installed in (other, wheel, other):
        subprocess.run([*command, str(installed)], check=True, timeout=240, cwd=tmp_path, env=environment)
        assert (site / "deep_gemm" / "__init__.py").exists() and theirs.exists() == (installed == other)
        assert ours.exists() == (site / "tuner").exists() == (installed == wheel)


@pytest.mark.full
def test_a_source_distribution_holds_the_packages_and_what_the_build_reads(checkout):
    with tarfile.open(build(checkout, "sdist")) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    native = {name for name in repository_files() if name.startswith("csrc/")}
    assert packaged_files() | native | {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= files
    assert not [name for name in files if name.startswith(("db/", "models/", "build/", "tests/"))]
