"""Four hashes: the key of a compiled kernel, the kernel hash of an op kind, and those of the package and of the tree.

- The key of the cache covers every byte: source and headers, the build of the compiler, the flags.
- The kernel hash is the identity of measurements and the guard of selector artefacts. It covers the revision of grids
  (_C.grid_revision), too. It ignores comments, white space, the compiler, symbols of plain kernels, and everything that
  the kernels of the op kind do not include. The installed package suffices for it.
- The package hash tells in milliseconds whether two processes make the same kernels, for which a kernel hash takes
  seconds. It covers every byte.
- The tree hash stamps the GPU correctness record: any edit of native code, headers, the package's Python or the GPU
  suite changes it.
"""

import functools
import hashlib
import json
import re
from pathlib import Path

from deep_gemm import _C
from deep_gemm.jit import cache, generator, nvcc, nvrtc, plain_kernels

ARCH = "sm_90a"

_PACKAGE = Path(__file__).resolve().parents[1]
_INCLUDE = _PACKAGE / "include"
#: What kernel_hash calls the choice between two tiles in kernels of masked groups. Sweeps measure configs alone, so it
#: is no part of the op kinds' kernels; results of calls carry it beside these.
SECOND_TILE = "second_tile"
_TILE_CHOICE = "deep_gemm/sm90/scheduler/tile_choice.cuh"
#: Modules of the package without a part in a launch: texts.
_APART = ("_version.py", "op_docs.py", "op_texts.py")
_INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"(deep_gemm/[a-z0-9_/]+\.cuh)"', re.MULTILINE)
# A string or character literal (kept), or a comment (dropped). A quote after a digit separates digits.
_LITERAL_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])*\')|//[^\n]*|/\*.*?\*/', re.DOTALL)


def get_included_headers(source: str, include: Path | None = None) -> dict[str, str]:
    """Return the device headers in a folder, the package's by default, that `source` includes, directly or not:
    {include name: text}, sorted by name.

    A header that the folder does not have is left out: the compiler reports it better.
    """
    headers, pending = {}, [source]
    read = _read_header.__wrapped__ if include else _read_header  # the package's are asked for again and again
    while pending:
        for name in _INCLUDED.findall(pending.pop()):
            text = None if name in headers else read((include or _INCLUDE) / name)
            if text is not None:
                headers[name] = text
                pending.append(text)
    return dict(sorted(headers.items()))


@functools.cache
def _read_header(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def compile_key(source: str, headers: dict[str, str], toolchain: "nvrtc.Nvrtc | nvcc.Nvcc") -> str:
    """Return the key of a compiled kernel: SHA-256 over what determines its bytes, so no folder, time or locale."""
    return _hash_json(
        {
            "arch": ARCH,
            "compiler": [toolchain.kind, toolchain.version_text, toolchain.fingerprint],
            "flags": list(toolchain.flags),
            "headers": {name: _hash_text(text) for name, text in headers.items()},
            "schema": cache.SCHEMA,
            "source": _hash_text(source),
        }
    )


def name_plain(kernel: str) -> str:
    """Return what kernel_hash and results call a plain kernel. Raises ProblemError for an unknown one."""
    plain_kernels.plain_symbol(kernel)
    return f"deep_gemm_{kernel}"


@functools.cache
def kernel_hash(op: str) -> str:
    """Return the identity of the kernels of an op kind, of a plain kernel (name_plain), or of SECOND_TILE, in
    hexadecimal.

    Raises: ProblemError for an unknown op kind.
    """
    if op == SECOND_TILE:
        sources = generator.second_tile_sources()
        return hash_kernels(op, sources, {_TILE_CHOICE: get_included_headers(sources[0])[_TILE_CHOICE]})
    plain = {name_plain(name): name for name in plain_kernels.PLAIN_KERNELS}
    if op in plain:
        return _hash_plain(plain[op])
    sources = generator.canonical_sources(op)
    return hash_kernels(op, sources, get_included_headers("\n".join(sources)), _C.grid_revision(op))


def _hash_plain(kernel: str) -> str:
    """Return the kernel hash of a plain kernel. Its symbol, in the source or in a header, is there what the hash calls
    it: under another one the kernel does the same.
    """
    constants = dict.fromkeys(plain_kernels.PLAIN_KERNELS[kernel].constants, 1)  # their values are the caller's
    source = plain_kernels.plain_source(kernel, constants)
    symbol, called = plain_kernels.plain_symbol(kernel), name_plain(kernel)
    headers = {name: text.replace(symbol, called) for name, text in get_included_headers(source).items()}
    return hash_kernels(called, [source.replace(symbol, called)], headers)


def hash_kernels(op: str, sources: list[str], headers: dict[str, str], grids: int = 1) -> str:
    """Return the kernel hash of `sources` and `headers`, over compile flags and LAUNCH_ABI, too, but not comments.

    grids: the revision of their grids (_C.grid_revision), with which the same kernels take other times.
    """
    return _hash_json(
        ({"grids": grids} if grids > 1 else {})  # left out at 1, so that the hashes from before it stay
        | {
            "abi": _C.LAUNCH_ABI,
            "flags": {"nvcc": list(nvcc.FLAGS), "nvrtc": [flag for _, flag in nvrtc.FLAGS]},
            "headers": {name: _hash_text(strip_comments(text)) for name, text in headers.items()},
            "op": op,
            "sources": [_hash_text(strip_comments(source)) for source in sources],
        }
    )


@functools.cache
def package_hash() -> str:
    """Return the hash of the files that make kernels: device headers, native module, and this folder's Python."""
    files = [*_INCLUDE.rglob("*.cuh"), *(_PACKAGE / "jit").glob("*.py"), Path(_C.__file__)]
    return _hash_json(sorted((path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files))


def tree_hash() -> str | None:
    """Return the hash of what a result of the GPU suite depends on, or None where only the package is installed: native
    code and device headers without comments and layout, the package's Python without its texts, and the suite itself.
    """
    root = _PACKAGE.parent
    if not (root / "csrc").is_dir():
        return None
    native = [path for folder in (root / "csrc", _INCLUDE) for path in folder.rglob("*")]
    texts = {
        path: strip_comments(path.read_text(encoding="utf-8"))
        for path in native
        if path.suffix in (".cpp", ".hpp", ".cuh")
    }
    python = [path for path in _PACKAGE.rglob("*.py") if path.name not in _APART]
    python += (root / "tests" / "gpu").rglob("*.py")
    texts |= {path: path.read_text(encoding="utf-8") for path in python}
    return _hash_json({str(path.relative_to(root)): _hash_text(text) for path, text in texts.items()})


def strip_comments(text: str) -> str:
    """Return C++ source without comments, each run of white space made one space; directives keep their own lines.

    Line by line where no comment or literal goes on in the next one: the sources of an op kind share most lines.
    """
    if "/*" in text or "\\\n" in text:
        return _strip(text)
    return "".join(map(_strip_line, text.split("\n")))


def _strip(text: str) -> str:
    text = _LITERAL_OR_COMMENT.sub(lambda match: match[1] or " ", text).replace("\\\n", " ")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "".join(f"\n{line}\n" if line.startswith("#") else f"{line} " for line in lines if line)


_strip_line = functools.lru_cache(maxsize=4096)(_strip)


def _hash_json(value: object) -> str:
    return _hash_text(json.dumps(value, sort_keys=True, separators=(",", ":")))


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
