"""What an error of the database driver means: one typed error with the file, the reason and the remedy."""

import os
import sqlite3
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import exc

from deep_gemm.text import printable
from tuner import errors
from tuner.db.lock import read_holder

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
#: What drivers call a row that a constraint refuses; PostgreSQL derives a class from it for each kind of constraint.
REFUSALS = {"IntegrityError", "DataError"}
REMEDIES = {
    sqlite3.SQLITE_FULL: "the disk or its quota is full; free some space and run again",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only; change the permissions or name another --db",
    sqlite3.SQLITE_CANTOPEN: "the file or its folder cannot be opened; check that it exists and its permissions",
    sqlite3.SQLITE_IOERR: "the disk failed or is full; check it and run again",
    sqlite3.SQLITE_PERM: "permission denied; change the permissions or name another --db",
}


@contextmanager
def translated(path: object):
    """Turn errors of the driver inside the `with` into StoreError or IntegrityError; `path` names the database."""
    try:
        yield
    except exc.StatementError as error:  # the driver's, or of what a column's type refuses
        raise to_typed(path, error.orig or error) from error
    except sqlite3.Error as error:
        raise to_typed(path, error) from error
    except exc.SQLAlchemyError as error:
        raise errors.StoreError(f"{path}: {type(error).__name__}: {one_line(error)}") from error
    except OSError as error:
        raise errors.StoreError(f"{path}: {error.strerror or error}; rows committed before are intact") from error
    except UnicodeError as error:
        raise errors.IntegrityError(
            f"{path}: text that is not Unicode ({getattr(error, 'reason', error)}); nothing was written"
        ) from error


def to_typed(path: object, error: BaseException) -> errors.TunerError:
    """Return the typed error for a driver's error."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else -1
    if primary in DAMAGED:
        return damaged(path, error)
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        holder = read_holder(Path(str(path))) or "unknown"
        return errors.StoreError(f"{path}: still locked after 60 s by process {holder}; stop it or wait for it")
    if REFUSALS & {base.__name__ for base in type(error).__mro__} or primary in (
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_TOOBIG,
    ):
        return errors.IntegrityError(f"{path}: row refused: {one_line(error)}; nothing of it was written")
    kind = errors.DiskFullError if primary == sqlite3.SQLITE_FULL or is_full(Path(str(path))) else errors.StoreError
    return kind(f"{path}: {one_line(error)}; {REMEDIES.get(primary, 'rows committed before are intact')}")


def is_full(path: Path) -> bool:
    """Return whether the file system of `path` has no room left: SQLite then reports an I/O error as often."""
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False


def one_line(reason: object) -> str:
    """Return a driver's message as one short printable line; it may quote whole statements."""
    return printable(" ".join(str(reason).split()))


def damaged(path: object, reason: object) -> errors.IntegrityError:
    """Return the error for a file that must not be trusted."""
    return errors.IntegrityError(
        f"{path}: {one_line(reason)}; it was left as it is: salvage it with `sqlite3 {path} .recover`, or move it away"
    )
