// Instructions of the kernels that quantise to FP8, one a function. Tests on the CPU put others in their place.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

// griddepcontrol.launch_dependents (PTX ISA, "Parallel Synchronization and Communication Instructions"): let kernels
// that may start early be scheduled; what they wait for is still the end of this one. Without such a kernel it does
// nothing.
__device__ __forceinline__ void launch_early() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// max.u16x2 (PTX ISA, "Integer Arithmetic Instructions: max"): the larger of each half.
__device__ __forceinline__ u32 max_halves(u32 a, u32 b) {
    u32 result;
    asm("max.u16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

// max.NaN.f32: NaN where either is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

// rcp.approx.ftz.f32: 1 / value within one unit in the last place; for values whose reciprocal is a normal number.
__device__ __forceinline__ float approximate_reciprocal(float value) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

// ex2.approx.ftz.f32: 2 to the power of a value from 0 to 1.
__device__ __forceinline__ float approximate_power_of_two(float value) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

// cvt.f32.f16
__device__ __forceinline__ float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// cvt.rn.satfinite.e4m3x2.f32: `low` becomes the lower byte; NaN stays NaN, larger magnitudes than 448 become 448.
__device__ __forceinline__ u32 to_fp8_pair(float low, float high) {
    u16 bits;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    return bits;
}

}  // namespace deep_gemm
