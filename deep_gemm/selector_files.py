"""Find and read selector artefacts (`<sku>.dgsel`): DG_SELECTOR's path, the user's model folder, the packaged models.

Exception contract: ModelError says why a file must not be used; FileNotFoundError never escapes.

A file outside the package is trusted only when nobody else can have written it: folder and file belong to this user,
neither is writable for group or others, neither is a symbolic link, and the file is regular and has at most 16 MiB.
"""

import importlib.resources
import os
import stat
from pathlib import Path

from deep_gemm import _C, environment
from deep_gemm.artifact import MAX_BYTES
from deep_gemm.errors import ModelError

SUFFIX = ".dgsel"
#: GPU models for which the package has an artefact. Where it is not found, the installation is at fault.
PACKAGED_SKUS = ("nvidia-h200-sm132", "nvidia-h100-80gb-hbm3-sm132")
MODES = ("auto", "model", "analytic")


def selection_mode() -> tuple[str, Path | None]:
    """Return DG_SELECTOR as (mode, path): one of MODES and None, or 'auto' and the artefact's path."""
    value = environment.get_string("DG_SELECTOR", "auto")
    return (value, None) if value in MODES else ("auto", Path(value))


def list_skus(sku: str) -> tuple[str, ...]:
    """Return the SKUs whose artefacts a board of `sku` uses, the best first: its own, and where that names a lower
    power limit, that of its model. What was measured at a lower limit is never used at another one.
    """
    return tuple(dict.fromkeys([sku, _C.base_sku(sku)]))


def read_selector_file(sku: str, path: Path | None) -> tuple[str, bytes] | None:
    """Return (file name, content) of the artefact for `sku`, or None where there is none.

    `path`: the file asked for; None looks in the user's model folder, then among the packaged models, for each of
    list_skus in turn.
    Raises: ModelError for a file that must not be trusted, or a `path` that does not exist.
    """
    if path is not None:
        content = read_private_file(path)
        if content is None:
            raise ModelError(f"{path}: no such file; set DG_SELECTOR to {', '.join(MODES)}, or the path of an artefact")
        return str(path), content
    return next(filter(None, map(find_selector_file, list_skus(sku))), None)


def find_selector_file(sku: str) -> tuple[str, bytes] | None:
    """Return (file name, content) of the artefact of exactly `sku`, or None. Raises: ModelError."""
    folder = environment.model_dir()
    if folder is not None:
        content = read_private_file(folder / f"{sku}{SUFFIX}")
        if content is not None:
            return str(folder / f"{sku}{SUFFIX}"), content
    return read_packaged_file(sku)


def read_packaged_file(sku: str) -> tuple[str, bytes] | None:
    """Return (file name, content) of the packaged artefact for `sku`, or None; it is trusted as the code is."""
    try:
        file = importlib.resources.files("deep_gemm.models").joinpath(f"{sku}{SUFFIX}")
        return str(file), file.read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        return None
    except OSError as error:
        raise ModelError(f"deep_gemm.models/{sku}{SUFFIX}: {error.strerror}; install deep_gemm again") from error


def explain_missing(sku: str) -> str:
    """Return what is wrong where no artefact for `sku` was found, with the remedy; '' where none is packaged for it."""
    sku = _C.base_sku(sku)
    if sku not in PACKAGED_SKUS:
        return ""
    return (
        f"deep_gemm/models/{sku}{SUFFIX}: no such file, though this package has a selector for {sku}; install deep_gemm"
        " again, or in a checkout run `git checkout models deep_gemm/models` (deep_gemm/models is a symbolic link"
        " to ../models)"
    )


def read_private_file(path: Path) -> bytes | None:
    """Return the content of a file that only this user can have written, or None where it does not exist.

    Raises: ModelError naming the file, the rule it breaks and the remedy.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            check_private(os.fstat(folder), path.parent)
            return read_in_folder(folder, path)
        finally:
            os.close(folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(
            f"{path}: {error.strerror}; give a plain file in a folder of your own, without symbolic links"
        ) from error


def read_in_folder(folder: int, path: Path) -> bytes:
    """Return the content of `path.name` in the open `folder`; O_NONBLOCK: a FIFO is refused without waiting for it."""
    file = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(file, "rb") as stream:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise ModelError(f"{path}: must be a regular file of at most {MAX_BYTES} bytes; export the selector again")
        check_private(status, path)
        return stream.read(MAX_BYTES + 1)


def check_private(status: os.stat_result, path: Path) -> None:
    """Raise ModelError unless `status` belongs to this user and is writable for nobody else."""
    if status.st_uid != os.geteuid():
        raise ModelError(f"{path}: belongs to user {status.st_uid}; copy it to a folder of your own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ModelError(f"{path}: is writable for others; run `chmod go-w {path}` after checking what it holds")
