"""NVRTC: found in wheels, in a toolkit or by the loader, refused where it is too old, with typed errors."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from deep_gemm.errors import ArgumentError, CompileError
from deep_gemm.jit import build, compile, nvrtc
from tests.fakes.compiler import isolate, require_compiler

SOURCE = 'extern "C" __global__ void one(int* p) { *p = 1; }'


@pytest.fixture(autouse=True)
def cache_folder(monkeypatch, tmp_path):
    return isolate(monkeypatch, tmp_path)


@pytest.fixture
def real():
    require_compiler("nvrtc")


def make_library(major: int, minor: int, leave_out: str = "") -> SimpleNamespace:
    """Return a stand-in for an opened libnvrtc of this version, which can only report its version."""

    def tell_version(major_pointer, minor_pointer):
        major_pointer._obj.value, minor_pointer._obj.value = major, minor
        return 0

    functions = {name: SimpleNamespace() for name in nvrtc._SIGNATURES if name != leave_out}
    tell_version.argtypes = tell_version.restype = None
    return SimpleNamespace(**{**functions, "nvrtcVersion": tell_version})


def test_compiles_and_tells_its_version(real):
    result = compile.compile_source(SOURCE, "one", "nvrtc")
    library = nvrtc.get_nvrtc()
    assert (result.kernel_name, result.compiler, result.compiler_version) == ("one", "nvrtc", library.version_text)
    assert library.version >= nvrtc.MIN_VERSION and len(library.fingerprint) == 64
    assert 0 < result.compile_ms < 60_000


def test_headers_come_from_the_package(real):
    source = (
        '#include "deep_gemm/types.cuh"\nextern "C" __global__ void sizes(deep_gemm::u64* p) { *p ='
        " sizeof(deep_gemm::TensorMap); }"
    )
    assert compile.compile_source(source, "sizes", "nvrtc").kernel_name == "sizes"


def test_same_source_gives_the_same_bytes(real):
    assert compile.compile_source(SOURCE, "one", "nvrtc").cubin == compile.compile_source(SOURCE, "one", "nvrtc").cubin


def test_threads_compile_side_by_side(real):
    sources = [SOURCE.replace("= 1", f"= {i}") for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda source: build.get_cubin_for_source(source, "one", "nvrtc"), sources))
    assert len({result.cubin for result in results}) == 8


def test_error_carries_command_log_and_source(real, cache_folder):
    source = SOURCE + "\nthis is not C++\n"
    with pytest.raises(CompileError, match="NVRTC failed") as caught:
        compile.compile_source(source, "one", "nvrtc")
    error = caught.value
    assert error.argv[0].startswith("nvrtc-") and "--gpu-architecture=sm_90a" in error.argv
    assert error.status != 0 and "kernel.cu(2)" in error.log and len(error.log) <= 4096
    assert Path(error.source_path).read_text() == source and Path(error.source_path).is_relative_to(cache_folder)


def test_missing_header_is_the_compilers_error(real):
    with pytest.raises(CompileError, match="none_such.cuh"):
        compile.compile_source('#include "deep_gemm/none_such.cuh"\n' + SOURCE, "one", "nvrtc")


def test_other_kernel_name_is_refused(real):
    with pytest.raises(CompileError, match="holds the kernel one, not two"):
        compile.compile_source(SOURCE, "two", "nvrtc")


def test_unknown_compiler_is_a_typed_error():
    with pytest.raises(ArgumentError, match="compiler = 'clang': must be"):
        compile.get_toolchain("clang")


def test_too_old_version_names_found_and_needed():
    with pytest.raises(CompileError, match=r"NVRTC = 12\.2 \(/x/libnvrtc.so.12\).*12\.3 or newer.*pip"):
        nvrtc.Nvrtc(make_library(12, 2), Path("/x/libnvrtc.so.12"))


def test_library_without_its_functions_is_refused():
    with pytest.raises(CompileError, match="no nvrtcGetCUBIN"):
        nvrtc.Nvrtc(make_library(12, 9, leave_out="nvrtcGetCUBIN"), Path("/x/libnvrtc.so.12"))


@pytest.mark.parametrize(
    ("version", "has_minimal", "has_no_cache"),
    [((12, 3), False, False), ((12, 4), True, False), ((12, 9), True, True), ((13, 0), True, True)],
)
def test_flags_follow_the_version(version, has_minimal, has_no_cache):
    flags = nvrtc.Nvrtc(make_library(*version), None).flags
    assert ("--minimal" in flags, "--no-cache" in flags) == (has_minimal, has_no_cache)
    assert "--gpu-architecture=sm_90a" in flags


def test_nothing_found_names_the_remedy(monkeypatch):
    monkeypatch.setattr(nvrtc, "_folders", lambda: iter(()))
    monkeypatch.setattr(nvrtc, "_LOADER_NAMES", ("libnvrtc-none-such.so",))
    with pytest.raises(CompileError, match="not found.*pip.*CUDA_HOME.*DG_JIT_USE_NVRTC=0"):
        nvrtc.get_nvrtc.__wrapped__()


def test_first_one_that_is_new_enough_wins(monkeypatch):
    def load(major, minor):
        return lambda: nvrtc.Nvrtc(make_library(major, minor), None)

    def missing():
        raise OSError("no such file")

    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter([missing, load(12, 2), load(12, 8), load(13, 0)]))
    assert nvrtc.get_nvrtc.__wrapped__().version == (12, 8)
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter([missing, load(12, 2), load(12, 1)]))
    with pytest.raises(CompileError, match=r"NVRTC = 12\.2"):
        nvrtc.get_nvrtc.__wrapped__()


def test_search_order_is_wheels_then_toolkit_and_newest_first(monkeypatch, tmp_path):
    wheel, toolkit = tmp_path / "nvidia", tmp_path / "cuda"
    for path in (
        wheel / "cu13/lib/libnvrtc.so.13",
        wheel / "cu13/lib/libnvrtc.alt.so.13",
        wheel / "cu13/lib/libnvrtc-builtins.so.13.0",
        wheel / "cuda_nvrtc/lib/libnvrtc.so.12",
        toolkit / "lib64/libnvrtc.so.12.8.93",
        toolkit / "lib64/libnvrtc.so.12.10.1",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(
        nvrtc.importlib.util, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(wheel)])
    )
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    found = [path.name for path in nvrtc._libraries() if path.is_relative_to(tmp_path)]
    assert found == ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.12.10.1", "libnvrtc.so.12.8.93"]


def test_relative_toolkit_is_not_searched(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_HOME", "cuda")
    assert all(folder.is_absolute() for folder in nvrtc._folders())


def test_switches_print_command_and_report(real, monkeypatch, capsys):
    monkeypatch.setenv("DG_JIT_PRINT_COMPILER_COMMAND", "1")
    monkeypatch.setenv("DG_JIT_PTXAS_VERBOSE", "1")
    monkeypatch.setenv("DG_JIT_DEBUG", "1")
    build.get_cubin_for_source(SOURCE, "one", "nvrtc")
    captured = capsys.readouterr()
    assert captured.out == ""
    for part in ("compiler command: nvrtc-", "--gpu-architecture=sm_90a", "registers", "compiled "):
        assert part in captured.err


def test_library_handle_is_shared(real):
    assert nvrtc.get_nvrtc() is nvrtc.get_nvrtc() and isinstance(nvrtc.get_nvrtc()._library, ctypes.CDLL)
