// Instructions of the plain kernels that multiply in registers, one a function.
//
// Their threads load operands from global memory straight into the registers of the multiplication: which K a register
// stands for does not matter as long as A and B agree, so eight neighbouring K of a row, 16 bytes, are a thread's share
// of two multiplications of 16.
#pragma once

#include "deep_gemm/sm90/ptx/ptx.cuh"

namespace deep_gemm {
namespace ptx {

// mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"): adds BF16 A (row-major) times B (column-major) to
// FP32.
__device__ __forceinline__ void multiply_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b_low, u32 b_high) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}

// ld.global.nc.L1::no_allocate.v4: what is read once. Not volatile, so that loads may move up.
__device__ __forceinline__ uint4 load_once(const void* address) {
    uint4 value;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(value.x), "=r"(value.y), "=r"(value.z),
        "=r"(value.w) : "l"(address));
    return value;
}

}  // namespace ptx

__device__ __forceinline__ u32 word_of(const uint4& words, u32 i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

}  // namespace deep_gemm
