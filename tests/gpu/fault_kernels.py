"""Kernels that fail on purpose, one for each fault of F-W2, those whose verdict by racecheck is known, and their launch
by the driver itself: the library launches none but its own.
"""

import ctypes
import functools
import struct

import torch

from deep_gemm.jit import cubin as images
from deep_gemm.jit.build import get_cubin_for_source

#: Waits for the first phase of the barrier at `place`.
_WAIT = """for (unsigned is_done = 0; !is_done;)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(is_done) : "r"(place) : "memory");"""
#: By fault: what the one thread of the kernel does.
BODIES = {
    "illegal_address": 'asm volatile("st.global.u32 [%0], 0;" ::"l"(16ull) : "memory");',
    "misaligned_address": 'asm volatile("st.global.u32 [%0], 0;" ::"l"((unsigned long long)memory + 2) : "memory");',
    "illegal_instruction": "memory[0] = 1;",
    "trap": 'asm volatile("trap;");',
    "shared_memory": "memory[0] = 1;",
    "barrier_wait": f"""__shared__ unsigned long long barrier;
    const unsigned place = (unsigned)__cvta_generic_to_shared(&barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" ::"r"(place) : "memory");
    {_WAIT}""",
}
FAULTS = tuple(BODIES)
#: No fault for the driver: warps of one block read what others write into shared memory, without a barrier between.
RACE = "deep_gemm_race"
#: Right kernels of two warps, in which words in shared memory pass a barrier as they do in ours. A warp reads and one
#: of its lanes gives back, with bits that it read in the barrier's address (Pipeline::release), or behind a barrier of
#: the warp (TileQueue::release); then another warp writes. And a lane copies, the copy arrives, a warp reads (B's block
#: scales by cp.async).
RELEASE, SYNCED_RELEASE, COPY = "deep_gemm_release", "deep_gemm_synced_release", "deep_gemm_copy"
_BARRIER = """__shared__ volatile int words[32];
    __shared__ unsigned long long barrier;
    const unsigned place = (unsigned)__cvta_generic_to_shared(&barrier), lane = threadIdx.x % 32;
    const unsigned zero = *(volatile int*)&memory[1];
    words[lane] = lane;
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place) : "memory");
    __syncthreads();
"""
_RELEASE = f"""{_BARRIER}
    if (threadIdx.x < 32) {{
        const unsigned bits = words[lane];
        SYNC
        if (lane == 0)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place + (bits & zero)) : "memory");
        if (bits > 32) memory[0] = bits;
    }} else {{
        {_WAIT}
        words[lane] = 1;
    }}"""
#: By kernel that racecheck is tried on: its body. Their names are of those that it watches.
CONTROLS = {
    RACE: """__shared__ volatile int words[64];
    words[threadIdx.x] = threadIdx.x;
    memory[threadIdx.x % 4] = words[63 - threadIdx.x];""",
    RELEASE: _RELEASE.replace("SYNC", ""),
    SYNCED_RELEASE: _RELEASE.replace("SYNC", "__syncwarp();"),
    COPY: f"""{_BARRIER}
    if (threadIdx.x == 0) {{
        const unsigned target = (unsigned)__cvta_generic_to_shared((int*)words);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(memory) : "memory");
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(place) : "memory");
    }} else if (threadIdx.x >= 32) {{
        {_WAIT}
        if (words[0] + zero > 32) memory[0] = words[0];
    }}""",
}
CONTROL_THREADS = 64
#: Waits for ever, and is no error of the driver.
HANG = "barrier_wait"
#: More than any GPU has for a CTA.
TOO_MUCH_SHARED = 1 << 20
#: The low bits of an instruction of 16 bytes say which one it is; none is all ones.
_OPCODE = 0xFFF
_CONFIG = struct.Struct("<7I4xQQI4x")  # CUlaunchConfig: grid, block, shared memory, stream, attributes and their number
_VERSION = 12030


def make_source(fault: str) -> str:
    """Return the source of a fault's kernel."""
    body = (BODIES | CONTROLS)[fault]
    return f'__device__ int memory[4];\n\nextern "C" __global__ void {fault}() {{\n    {body}\n}}\n'


@functools.cache
def make_cubin(fault: str) -> bytes:
    """Return the compiled kernel of a fault; that of the illegal instruction begins with none that there is."""
    cubin = get_cubin_for_source(make_source(fault), fault).cubin
    return spoil_first(cubin, fault) if fault == "illegal_instruction" else cubin


def spoil_first(cubin: bytes, name: str) -> bytes:
    """Return a cubin whose kernel begins with an instruction that does not exist."""
    place = next(part.offset for part in images._read_sections(cubin) if part.name == f".text.{name}")
    (first,) = struct.unpack_from("<Q", cubin, place)
    return cubin[:place] + struct.pack("<Q", first | _OPCODE) + cubin[place + 8 :]


def launch(fault: str) -> None:
    """Launch a fault's kernel on torch's current stream, and wait for it. Raises: RuntimeError."""
    kernel, shared_bytes = _load(fault), TOO_MUCH_SHARED if fault == "shared_memory" else 0
    threads = CONTROL_THREADS if fault in CONTROLS else 1
    config = _CONFIG.pack(1, 1, 1, threads, 1, 1, shared_bytes, torch.cuda.current_stream().cuda_stream, 0, 0)
    _call("cuLaunchKernelEx", config, kernel, (ctypes.c_void_p * 1)(), None)
    torch.cuda.synchronize()


def _load(fault: str) -> ctypes.c_void_p:
    """Return the kernel of a fault in the current context."""
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    none = [ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint(0)]
    _call("cuLibraryLoadData", ctypes.byref(library), make_cubin(fault), *none, *none)
    _call("cuLibraryGetKernel", ctypes.byref(kernel), library, fault.encode())
    return kernel


def _call(name: str, *arguments: object) -> None:
    """Call a function of the driver. Raises: RuntimeError with the name that the driver gives to its error."""
    result = _find(name)(*arguments)
    if result:
        text = ctypes.c_char_p()
        _find("cuGetErrorName")(result, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or str(result).encode()).decode()}")


@functools.cache
def _find(name: str) -> ctypes._CFuncPtr:
    """Return a function of the driver."""
    found = ctypes.c_void_p()
    ctypes.CDLL("libcuda.so.1").cuGetProcAddress_v2(
        name.encode(), ctypes.byref(found), _VERSION, ctypes.c_uint64(0), None
    )
    if not found.value:
        raise RuntimeError(f"the driver has no {name}")
    return ctypes.CFUNCTYPE(ctypes.c_int)(found.value)
