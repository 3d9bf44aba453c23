"""Compile with NVRTC in this process. The library comes from the wheels that torch installs, from a CUDA toolkit, or
from the loader's path; no toolkit is needed.

NVRTC cannot be stopped: a process that must survive a compiler that hangs has to compile in a worker process.
"""

import ctypes
import functools
import hashlib
import importlib.util
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from deep_gemm import environment
from deep_gemm.errors import CompileError
from deep_gemm.jit.cubin import CompilerOutput

#: The first version with WGMMA, setmaxnreg and the cluster instructions of sm_90a as the kernels use them.
MIN_VERSION = (12, 3)

#: (first version that knows the flag, flag). All of them enter the kernel hash, those in use enter the cache key.
FLAGS = (
    (MIN_VERSION, "--gpu-architecture=sm_90a"),
    (MIN_VERSION, "--std=c++17"),
    (MIN_VERSION, "--ptxas-options=-v"),
    ((12, 4), "--minimal"),  # without textures and the device run time: 20 ms less for each kernel
    ((12, 9), "--no-cache"),  # NVRTC's disk cache has no checks, and falsifies compile times
)

_PIP_FOLDERS = ("cu13/lib", "cu12/lib", "cuda_nvrtc/lib")
_TOOLKIT_FOLDERS = ("lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib")
_LOADER_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
_REMEDY = "install `nvidia-cuda-nvrtc` with pip, set CUDA_HOME to a toolkit, or set DG_JIT_USE_NVRTC=0 to use NVCC"
_FINGERPRINT_BYTES = 1 << 20  # the head of the library holds its build id; hashing all of its 140 MB would take 0.1 s

_Text = ctypes.c_char_p
_Strings = ctypes.POINTER(ctypes.c_char_p)
_Size = ctypes.POINTER(ctypes.c_size_t)
_Handle = ctypes.c_void_p
_SIGNATURES = {
    "nvrtcVersion": (ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int)),
    "nvrtcCreateProgram": (ctypes.POINTER(_Handle), _Text, _Text, ctypes.c_int, _Strings, _Strings),
    "nvrtcCompileProgram": (_Handle, ctypes.c_int, _Strings),
    "nvrtcDestroyProgram": (ctypes.POINTER(_Handle),),
    "nvrtcGetProgramLogSize": (_Handle, _Size),
    "nvrtcGetProgramLog": (_Handle, ctypes.c_char_p),
    "nvrtcGetCUBINSize": (_Handle, _Size),
    "nvrtcGetCUBIN": (_Handle, ctypes.c_char_p),
}


class Nvrtc:
    """One loaded libnvrtc. Thread-safe: each compilation has its own program, and ctypes releases the GIL.

    Attributes: `kind` ("nvrtc"), `version` (major, minor), `version_text`, `fingerprint` (hex, of the library file),
        `flags`.
    """

    kind = "nvrtc"

    def __init__(self, library: ctypes.CDLL, path: Path | None):
        """Use an opened library; `path` is None where the loader found it.

        Raises:
            CompileError: the library is older than MIN_VERSION, or not NVRTC.
        """
        self._library = library
        self.path = path
        _declare(library, path)
        self.version = self._get_version()
        self.version_text = ".".join(map(str, self.version))
        if self.version < MIN_VERSION:
            needed = ".".join(map(str, MIN_VERSION))
            raise CompileError(
                f"NVRTC = {self.version_text} ({path or 'found by the loader'}): SM90 kernels need {needed} or newer;"
                f" {_REMEDY}"
            )
        self.fingerprint = _fingerprint(path)
        self.flags = tuple(flag for since, flag in FLAGS if self.version >= since)

    def _get_version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def compile(self, source: str, headers: dict[str, str]) -> CompilerOutput:
        """Compile `source` with `headers` ({include name: text}) to a cubin; a failure is part of the output."""
        argv = (f"nvrtc-{self.version_text}", *self.flags, "kernel.cu")
        program = _Handle()
        names, texts = _strings(headers.keys()), _strings(headers.values())
        status = self._library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"kernel.cu", len(headers), texts, names
        )
        if status:
            return CompilerOutput(argv, status, "", b"", f"NVRTC could not create a program (status {status})")
        try:
            status = self._library.nvrtcCompileProgram(program, len(self.flags), _strings(self.flags))
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            image = b"" if status else self._read(program, "CUBIN")
            return CompilerOutput(argv, status, log, image, f"NVRTC failed with status {status}" if status else "")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: _Handle, what: str) -> bytes:
        """Return the program's `what` (ProgramLog or CUBIN), or b'' where NVRTC has none."""
        size = ctypes.c_size_t()
        if getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) or not size.value:
            return b""
        buffer = ctypes.create_string_buffer(size.value)
        return b"" if getattr(self._library, f"nvrtcGet{what}")(program, buffer) else buffer.raw


def _strings(values: Collection[str]) -> ctypes.Array:
    return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))


def _declare(library: ctypes.CDLL, path: Path | None) -> None:
    for name, arguments in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise CompileError(f"NVRTC = {path}: has no {name}, so it is not NVRTC, or too old; {_REMEDY}") from None
        function.argtypes, function.restype = arguments, ctypes.c_int


def _fingerprint(path: Path | None) -> str:
    """Return a hash that tells builds of one version apart: over size and head of the library and of its builtins."""
    digest = hashlib.sha256()
    for file in [path, *_builtins(path)] if path else []:
        with open(file, "rb") as stream:
            digest.update(b"%d:" % file.stat().st_size + stream.read(_FINGERPRINT_BYTES))
    return digest.hexdigest()


def _builtins(path: Path) -> list[Path]:
    return sorted(path.parent.glob("libnvrtc-builtins.so.*"))


def _folders() -> Iterator[Path]:
    """Yield the folders that may hold NVRTC: the wheels first, because torch was tested with them, then toolkits."""
    package = importlib.util.find_spec("nvidia")
    for location in (package.submodule_search_locations or ()) if package else ():
        yield from (Path(location) / folder for folder in _PIP_FOLDERS)
    for toolkit in (environment.cuda_home(), Path("/usr/local/cuda")):
        if toolkit is not None and toolkit.is_absolute():
            yield from (toolkit / folder for folder in _TOOLKIT_FOLDERS)


def _libraries() -> Iterator[Path]:
    for folder in _folders():
        # Newest first; the `.alt` builds that lie beside them do not match.
        found = [path for path in folder.glob("libnvrtc.so.*") if re.fullmatch(r"libnvrtc\.so\.[\d.]+", path.name)]
        yield from sorted(found, key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)], reverse=True)


def _open(path: Path) -> Nvrtc:
    # libnvrtc opens its builtins by name when it compiles. The wheel's folder is on no search path, so they are opened
    # by path before.
    for builtins in _builtins(path):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return Nvrtc(ctypes.CDLL(str(path)), path)


def _open_by_loader(name: str) -> Nvrtc:
    return Nvrtc(ctypes.CDLL(name), None)


def _candidates() -> Iterator[Callable[[], Nvrtc]]:
    for path in _libraries():
        yield functools.partial(_open, path)
    for name in _LOADER_NAMES:
        yield functools.partial(_open_by_loader, name)


@functools.cache
def get_nvrtc() -> Nvrtc:
    """Return the process's NVRTC, opened at the first call.

    Raises:
        CompileError: none was found, or none that is new enough.
    """
    too_old: CompileError | None = None
    for load in _candidates():
        try:
            return load()
        except CompileError as error:
            too_old = too_old or error
        except OSError:
            continue  # missing, or built for another machine
    raise too_old or CompileError(f"NVRTC: not found in pip's wheels, in a toolkit, or by the loader; {_REMEDY}")
