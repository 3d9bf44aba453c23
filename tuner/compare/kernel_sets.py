"""Kernel sets: what names one, and a folder in which its package can be imported.

A set is a whole package (device headers, source generator, native module, selectors), because a change of a kernel may
need any of these. It is named by

    .                 this clone as it stands
    a folder          of another clone, as it stands; or of device headers: this package with these in place of its own
    a git revision    of this clone's repository: a branch, a tag, a commit
    a kernel hash     at least 12 of its digits: a revision that has such kernels, see revisions.py

Revisions and header folders are written below a work folder, under names that their content gives, and used again:

    <work>/sets/<content>/deep_gemm/...       the package, with its native module in place
    <work>/native/<sources>-<python>.so       native modules by the sources they were built from

A set whose native sources are this package's own takes its module. Others are built with an ABI tag of their own for
pybind11, so that several live in one process: modules with the same tag share one registry of C++ types.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from deep_gemm import _C, environment
from tuner import errors
from tuner.files import raising_store_error, replacing

NATIVE_NAME = Path(_C.__file__).name
#: What a package needs of a revision.
PARTS = ("deep_gemm", "models", "csrc", "setup.py", "pyproject.toml", "README.md", "LICENSE")
#: Building all native sources takes one to ten minutes.
BUILD_LIMIT_S = 1800.0


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Write the files of a tar archive that git made below a folder."""
    with tarfile.open(fileobj=archive) as files:
        if hasattr(tarfile, "data_filter"):
            files.extractall(folder, filter="data")
        else:  # Python 3.11 to 3.11.3
            files.extractall(folder)


@dataclass(frozen=True)
class KernelSet:
    """One set: as it was named, what it is, the folder of its package, and its native module.

    `native` is None where it is this process's own module.
    """

    name: str
    label: str
    folder: Path
    native: Path | None


@dataclass(frozen=True)
class Clone:
    """The clone (or installation) that other sets are made beside, and the folder for what is made."""

    root: Path
    work: Path

    @staticmethod
    def here(work: Path | None = None) -> "Clone":
        """Return the clone of the running package. Raises: UsageError where there is no folder for sets."""
        base = work or environment.cache_dir()
        if base is None:
            raise errors.UsageError("--work: neither DG_JIT_CACHE_DIR nor HOME names a folder; give one")
        return Clone(Path(_C.__file__).resolve().parents[1], base.absolute())

    def make_set(self, name: str) -> KernelSet:
        """Return the set called `name`, ready to import. Raises: UsageError, TunerError."""
        path = Path(name or "no name").expanduser()
        if name == "." or (path.is_dir() and path.resolve() == self.root):
            return KernelSet(name, "this tree", self.root, None)
        if path.is_dir():
            return self.make_folder_set(name, path.resolve())
        revision = self.find_revision(name)
        if revision is None:
            raise errors.UsageError(
                f"{name}: neither a folder nor a git revision of {self.root}; name a branch, a commit, a folder or ."
            )
        return self.make_revision_set(name, revision)

    def git(self, *arguments: str) -> str | None:
        """Return what a git command in the clone prints, None where it fails."""
        try:
            done = subprocess.run(["git", "-C", str(self.root), *arguments], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.decode("utf-8", "replace").strip()

    def find_revision(self, name: str) -> str | None:
        """Return the commit that git means by `name`, None where it means none."""
        is_name = bool(name) and not name.startswith("-")
        return self.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") if is_name else None

    def make_revision_set(self, name: str, revision: str) -> KernelSet:
        """Return the set of a commit."""
        listed = (self.git("ls-tree", revision) or "").splitlines()
        found = {line.partition("\t")[2]: line.split()[2] for line in listed}
        parts = [part for part in PARTS if part in found]
        content = hash_text(" ".join(found[part] for part in parts))[:16]

        def fill(folder: Path) -> None:
            with tempfile.TemporaryFile() as archive:
                command = ["git", "-C", str(self.root), "archive", "--format=tar", revision, "--", *parts]
                subprocess.run(command, stdout=archive, check=True)
                archive.seek(0)
                unpack(archive, folder)

        subject = self.git("log", "-1", "--format=%h %s", revision) or revision[:12]
        return self.finish(name, subject, self.place(content, fill))

    def make_folder_set(self, name: str, path: Path) -> KernelSet:
        """Return the set of another clone, which must be built, or of this package with other device headers."""
        if (path / "deep_gemm" / "jit").is_dir():
            native = path / "deep_gemm" / NATIVE_NAME
            if not native.is_file():
                raise errors.UsageError(f"{name}: has no {NATIVE_NAME}; build it there (`make build`)")
            sources = hash_native_sources(path)
            is_own = sources == hash_native_sources(self.root)
            label = f"clone {path.name}"
            return KernelSet(name, label, path, None if is_own else self.build_native(path, sources))
        headers = find_headers(path)
        content = hash_text(
            "".join(hash_files(list_text_files(part), part) for part in (headers, self.root / "deep_gemm"))
        )[:16]

        def fill(folder: Path) -> None:
            ignored = shutil.ignore_patterns("__pycache__", "*.so", "models")
            shutil.copytree(self.root / "deep_gemm", folder / "deep_gemm", ignore=ignored)
            shutil.copytree((self.root / "deep_gemm" / "models").resolve(), folder / "deep_gemm" / "models")
            shutil.rmtree(folder / "deep_gemm" / "include" / "deep_gemm")
            shutil.copytree(headers, folder / "deep_gemm" / "include" / "deep_gemm")

        return self.finish(name, f"headers of {path.name}", self.place(content, fill))

    def place(self, content: str, fill) -> Path:
        """Return <work>/sets/<content>; `fill(folder)` writes it where it is not there. It appears whole."""
        target = self.work / "sets" / content
        if not target.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as made:
                fill(Path(made) / "set")
                rename_unless_there(Path(made) / "set", target)
        return target

    def finish(self, name: str, label: str, folder: Path) -> KernelSet:
        """Put the native module in place and return the set."""
        sources, installed = hash_native_sources(folder), folder / "deep_gemm" / NATIVE_NAME
        is_own = sources in ("", hash_native_sources(self.root))
        native = Path(_C.__file__) if is_own else self.build_native(folder, sources)
        if not installed.is_file() or installed.stat().st_size != native.stat().st_size:
            copy_whole(native, installed)
        return KernelSet(name, label, folder, None if is_own else installed)

    def build_native(self, folder: Path, sources: str) -> Path:
        """Return the native module of `folder`, built now unless it was built before. Raises: TunerError."""
        target = self.work / "native" / f"{sources[:16]}-{sysconfig.get_config_var('SOABI')}.so"
        if target.is_file():
            return target
        print(f"building the native module of {folder.name}, once; this takes minutes", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="native-") as made:
            copy_whole(run_build(folder, Path(made), f"_set_{sources[:16]}"), target)
        return target


def run_build(folder: Path, made: Path, tag: str) -> Path:
    """Return the native module of `folder`, built in `made` with an ABI tag for pybind11. Raises: TunerError."""
    for part in filter(Path.exists, (folder / name for name in PARTS if name != "models")):
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "models")
        shutil.copytree(part, made / part.name, ignore=ignored) if part.is_dir() else shutil.copy2(part, made)
    macro = f"'-DPYBIND11_BUILD_ABI=\"{tag}\"'"  # which of the variables counts depends on the version of setuptools
    flags = {name: f"{os.environ.get(name, '')} {macro}".strip() for name in ("CFLAGS", "CXXFLAGS")}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(
        command, cwd=made, env=os.environ | flags, capture_output=True, timeout=BUILD_LIMIT_S, check=False
    )
    built = made / "deep_gemm" / NATIVE_NAME
    if done.returncode or not built.is_file():
        tail = done.stderr.decode("utf-8", "replace").strip()[-1500:]
        raise errors.TunerError(f"{folder}: the native module does not build: {tail}")
    if tag.encode() not in built.read_bytes():
        raise errors.TunerError(f"{folder}: the compiler was not given {macro}; unset CC and CXX")
    return built


def find_headers(path: Path) -> Path:
    """Return the folder of device headers that `path` is or holds. Raises: UsageError."""
    for below in ("deep_gemm/include/deep_gemm", "include/deep_gemm", "deep_gemm", "."):
        if any((path / below).rglob("*.cuh")):
            return (path / below).resolve()
    raise errors.UsageError(f"{path}: holds neither a clone of this repository nor device headers (*.cuh)")


def list_text_files(folder: Path) -> list[Path]:
    """Return the files of a package but for compiled ones, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".so", ".pyc", ".dgsel"))


def list_native_sources(root: Path) -> list[Path]:
    """Return what the native module of a clone is built from, sorted; none in an installation."""
    sources = sorted(path for path in (root / "csrc").rglob("*") if path.suffix in (".cpp", ".hpp"))
    return [*sources, root / "setup.py"] if sources else []


def hash_native_sources(root: Path) -> str:
    """Return the hash of what the native module of a clone is built from, "" in an installation."""
    sources = list_native_sources(root)
    return hash_files(sources, root) if sources else ""


def hash_files(paths: Iterable[Path], root: Path) -> str:
    """Return the SHA-256 of names below `root` and contents."""
    lines = [f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths]
    return hash_text("\n".join(lines))


def hash_text(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def copy_whole(source: Path, target: Path) -> None:
    """Copy a file so that a reader sees the old one or all of the new one. Raises: StoreError."""
    with replacing(target) as fresh, raising_store_error(f"{target}, copied from {source}"):
        shutil.copy2(source, fresh)


def rename_unless_there(made: Path, target: Path) -> None:
    """Rename a folder; where another process was faster, its result stays."""
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():
            raise
