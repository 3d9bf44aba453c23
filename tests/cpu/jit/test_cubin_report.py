"""Reading cubins and compiler logs: image and log agree on registers, local memory and spills, for both compilers."""

import random
import re

import pytest

from deep_gemm.jit import compile, cubin
from tests.fakes.compiler import isolate, require_compiler
from tests.fakes.cubin import make_cubin

LEAN = 'extern "C" __global__ void lean(int* p) { *p = 1; }'
# 128 live values in each of 1,024 threads, which have 64 registers each: the rest must spill.
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 1) spilling(float* p, int n) {
    float v[128];
#pragma unroll
    for (int i = 0; i < 128; i++) v[i] = p[i * n + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 128; i++) p[((127 - i) * n) ^ threadIdx.x] = v[i] * v[127 - i];
}
"""
# A run-time index keeps the array in local memory without a spill.
STACK = """
extern "C" __global__ void stack(float* p, int n) {
    float v[128];
    for (int i = 0; i < 128; i++) v[i] = p[i * n];
    for (int i = 0; i < n; i++) v[(i * 7) & 127] += v[(i * 5 + n) & 127];
    *p = v[n & 127];
}
"""
# The accumulator is read while a WGMMA may still write it: ptxas serialises the group and says so (C7510 or C7514).
SERIALISED = """
extern "C" __global__ void __launch_bounds__(128, 1) serialised(float* p, unsigned long long a) {
    float d[4] = {};
    for (int i = 0; i < 4; i++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %4, 1, 1, 1;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a));
        d[0] += p[i];
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    p[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""


@pytest.fixture(params=["nvrtc", "nvcc"])
def compiler(request, monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    require_compiler(request.param)
    return request.param


def reported_registers(log: str) -> int:
    return int(re.search(r"Used (\d+) registers", log)[1])


def reported_stack(log: str) -> int:
    return int(re.search(r"(\d+) bytes stack frame", log)[1])


@pytest.mark.parametrize(
    ("name", "source", "spills", "uses_stack"),
    [("lean", LEAN, False, False), ("spilling", SPILLING, True, True), ("stack", STACK, False, True)],
)
def test_image_and_log_agree(compiler, name, source, spills, uses_stack):
    result = compile.compile_source(source, name, compiler)
    assert (result.kernel_name, result.compiler) == (name, compiler)
    assert result.registers == reported_registers(result.log) > 0
    assert result.local_bytes == reported_stack(result.log)
    assert (result.spill_bytes > 0, result.local_bytes > 0) == (spills, uses_stack)


def test_lost_optimisation_is_a_warning(compiler):
    warnings = compile.compile_source(SERIALISED, "serialised", compiler).warnings
    assert any(re.search(r"C75\d\d", warning) for warning in warnings), warnings


def test_a_lean_kernel_has_no_warnings(compiler):
    assert compile.compile_source(LEAN, "lean", compiler).warnings == ()


def test_spills_are_summed_over_the_log():
    log = (
        "    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\nx\n    0 bytes stack frame, 0 bytes"
        " spill stores, 4 bytes spill loads\n"
    )
    assert cubin.read_spill_bytes(log) == 32
    assert cubin.read_spill_bytes("ptxas info    : Used 8 registers\n") is None


def test_log_without_report_counts_local_memory_as_spilled(monkeypatch, tmp_path):
    class Quiet:
        kind, version_text = "nvcc", "13.0"

        def compile(self, source, headers):
            return cubin.CompilerOutput(("nvcc",), 0, "", make_cubin("kernel", registers=200, frame_bytes=48), "")

    isolate(monkeypatch, tmp_path)
    monkeypatch.setitem(compile._TOOLCHAINS, "nvcc", Quiet)
    result = compile.compile_source("", "kernel", "nvcc")
    assert (result.registers, result.local_bytes, result.spill_bytes) == (200, 48, 48)


def test_warnings_are_found_and_others_are_not():
    log = (
        "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored\nptxas info    : Used 8"
        " registers\nkernel.cu(3): warning #177-D: x\n"
    )
    assert cubin.read_warnings(log) == (
        "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored",
        "kernel.cu(3): warning #177-D: x",
    )


def test_fake_cubin_is_read():
    kernel = cubin.read_kernel(make_cubin("gemm", registers=168, frame_bytes=16))
    assert kernel == cubin.KernelImage("gemm", 168, 16)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"", "0 bytes"),
        (b"\x7fELF", "4 bytes"),
        (bytes(5000), "no 64-bit CUDA ELF"),
        (make_cubin(machine=62), "machine 62"),
        (make_cubin(arch=80), "SM80"),
        (make_cubin(num_kernels=0), "0 kernels"),
        (make_cubin(num_kernels=2), "2 kernels"),
        (bytes(cubin.MAX_IMAGE_BYTES + 1), "outside"),
    ],
)
def test_refused_images(image, reason):
    with pytest.raises(cubin.CubinError, match=reason):
        cubin.read_kernel(image)


def test_old_flag_layout_is_read():
    image = bytearray(make_cubin("gemm"))
    image[8] = 7  # ABI version of CUDA 12
    image[48:52] = (90 << 16 | 5 << 8 | 90).to_bytes(4, "little")
    assert cubin.read_kernel(bytes(image)).name == "gemm"


def test_cut_images_are_refused(compiler):
    image = compile.compile_source(STACK, "stack", compiler).cubin
    # The last program header ends with the file, so every cut removes something that the headers promise.
    for length in range(0, len(image), 64):
        with pytest.raises(cubin.CubinError):
            cubin.read_kernel(image[:length])


def test_mutated_images_never_break_the_reader():
    image, generator = make_cubin("gemm", text_bytes=1024), random.Random(7)
    refused = 0
    for _ in range(5000):
        mutant = bytearray(image)
        for _ in range(generator.randint(1, 4)):
            mutant[generator.randrange(len(mutant))] = generator.randrange(256)
        try:
            cubin.read_kernel(bytes(mutant))
        except cubin.CubinError:
            refused += 1
    # Most flips lie in the code, which the reader does not judge; those in the headers are seen.
    assert 0 < refused < 5000
