"""Fuzzes what reads foreign bytes in Python with atheris: artefact, entry of the cache, exported database.

    python -m tests.fuzz.foreign_bytes artefact|entry|database [libFuzzer options] CORPUS

Whatever the bytes are: they are taken, or refused by the typed error with a short printable message.
"""

import io
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["deep_gemm.artifact", "deep_gemm.selector", "deep_gemm.jit.cache", "tuner.db"]
):
    from deep_gemm import selector
    from deep_gemm.jit import cache
    from tuner.db import transfer
from deep_gemm import _C
from deep_gemm.errors import ModelError
from tests.fakes.databases import make_database, make_problem
from tests.fakes.selectors import DEVICE, KERNEL_HASH, make_artifact
from tuner import errors

KEY = "ab" * 32
MAX_CHARACTERS = 2000
PROBLEM = make_problem()


def check_message(error: Exception) -> None:
    """Check that a message can be printed."""
    assert len(str(error)) <= MAX_CHARACTERS and str(error).isprintable(), repr(error)[:400]


def read_artefact(content: bytes) -> None:
    """Read an artefact and choose by it."""
    try:
        made = selector.Selector(content)
    except ModelError as error:
        check_message(error)
        return
    assert _C.is_legal(PROBLEM, made.choose(PROBLEM, DEVICE, "auto", KERNEL_HASH).config, DEVICE)


def read_entry(content: bytes) -> None:
    """Read an entry of the cache."""
    try:
        payload = cache.decode_entry(KEY, content)
    except cache._BadEntry:
        return
    assert cache.encode_entry(KEY, payload) == content


def read_database(content: bytes) -> None:
    """Read an exported database."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            transfer.load_document(Path(folder) / "rows.db", "file", io.BytesIO(content))
    except errors.TunerError as error:
        check_message(error)


def make_seeds() -> dict[str, bytes]:
    """Return what is sound of each kind."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        transfer.export_json(make_database(folder / "tuning.db", num_problems=1), folder / "rows.json")
        exported = (folder / "rows.json").read_bytes()
    return {
        "artefact": make_artifact(4, 2, 3),
        "entry": cache.encode_entry(KEY, b"a kernel" * 20),
        "database": exported,
    }


READERS = {"artefact": read_artefact, "entry": read_entry, "database": read_database}


def main() -> None:
    """Run the command line; the corpus gets a sound file first."""
    kind, *rest = sys.argv[1:]
    (Path(rest[-1]) / "seed").write_bytes(make_seeds()[kind])
    atheris.Setup([sys.argv[0], *rest], READERS[kind])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
