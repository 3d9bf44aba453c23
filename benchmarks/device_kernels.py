"""Two small kernels of the benchmarks, launched through the driver: the L2 flush and the streaming floor.

Both only read: ordinary 16-byte loads, four in flight per thread. The loaded values are combined into a word that is
practically never stored, so that the compiler cannot remove the loads. A memset would leave dirty lines, whose
write-back the next kernel would pay for; streaming loads would not evict anything.
"""

import ctypes

import torch

from deep_gemm.jit.build import get_cubin_for_source

BYTES_PER_LOAD = 16
LOADS_IN_FLIGHT = 4

_SOURCE = """\
extern "C" __global__ void __launch_bounds__(512)
{name}(const char* data, unsigned long long num_loads, unsigned* sink) {{
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned folded = 0;
    for (; i + {last} * stride < num_loads; i += {unroll} * stride) {{
        unsigned x[{unroll}][4];
#pragma unroll
        for (int j = 0; j < {unroll}; ++j)
            asm volatile("ld.global.v4.u32 {{%0, %1, %2, %3}}, [%4];"
                         : "=r"(x[j][0]), "=r"(x[j][1]), "=r"(x[j][2]), "=r"(x[j][3])
                         : "l"(data + (i + j * stride) * {bytes}));
#pragma unroll
        for (int j = 0; j < {unroll}; ++j) folded ^= x[j][0] + x[j][1] + x[j][2] + x[j][3];
    }}
    for (; i < num_loads; i += stride) {{
        unsigned x[4];
        asm volatile("ld.global.v4.u32 {{%0, %1, %2, %3}}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "l"(data + i * {bytes}));
        folded ^= x[0] + x[1] + x[2] + x[3];
    }}
    if (folded == 0x5eed5eed) *sink = folded;
}}
"""


class ReadKernel:
    """A kernel that reads a buffer once and does nothing else."""

    def __init__(self, name: str, num_blocks: int, num_threads: int = 512):
        """Compile and load the kernel under `name` into the current context, which torch must have made.

        Raises:
            CompileError: the source does not compile.
            RuntimeError: the driver refuses the cubin.
        """
        source = _SOURCE.format(name=name, unroll=LOADS_IN_FLIGHT, last=LOADS_IN_FLIGHT - 1, bytes=BYTES_PER_LOAD)
        self.cubin = get_cubin_for_source(source, name).cubin
        self.num_blocks, self.num_threads = num_blocks, num_threads
        self.driver = ctypes.CDLL("libcuda.so.1")
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(self.driver.cuModuleLoadData(ctypes.byref(module), self.cubin))
        _check(self.driver.cuModuleGetFunction(ctypes.byref(self.function), module, name.encode()))
        self.sink = torch.zeros(1, dtype=torch.int32, device="cuda")

    def launch(self, data: torch.Tensor) -> None:
        """Read all of `data` (contiguous, a multiple of 16 bytes) on the current stream."""
        num_bytes = data.numel() * data.element_size()
        if num_bytes % BYTES_PER_LOAD:
            raise ValueError(f"data: {num_bytes} bytes; expected a multiple of {BYTES_PER_LOAD}")
        values = (
            ctypes.c_void_p(data.data_ptr()),
            ctypes.c_uint64(num_bytes // BYTES_PER_LOAD),
            ctypes.c_void_p(self.sink.data_ptr()),
        )
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(
            self.driver.cuLaunchKernel(
                self.function, self.num_blocks, 1, 1, self.num_threads, 1, 1, 0, stream, arguments, None
            )
        )


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA driver error {status}")
