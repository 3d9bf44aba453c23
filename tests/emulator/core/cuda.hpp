// The parts of CUDA C++ that the kernels use, for a host compiler.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "instructions.hpp"

#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

#define threadIdx (::emulator::here->thread)
#define blockIdx (::emulator::here->block)
#define blockDim (::emulator::here->block_dims)
#define gridDim (::emulator::here->grid)

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
float __fmaf_rd(float a, float b, float c);  // of the casts, which do not run here
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using Common = std::common_type_t<A, B>;
    return Common(b) < Common(a) ? Common(b) : Common(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using Common = std::common_type_t<A, B>;
    return Common(a) < Common(b) ? Common(b) : Common(a);
}
inline int __ffs(unsigned value) { return __builtin_ffs(int(value)); }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __clz(unsigned value) { return value == 0 ? 32 : __builtin_clz(value); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = uint64_t(b) << 32 | a;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; ++i) result |= unsigned(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}
template <class T>
T __ldg(const T* address) {
    return *address;
}
template <class T>
T __ldcs(const T* address) {
    return *address;
}

inline unsigned __cvta_generic_to_shared(const void* pointer) { return ::emulator::address_of_shared(pointer); }
inline void* __cvta_generic_to_global(void* pointer) { return pointer; }
inline const void* __cvta_generic_to_global(const void* pointer) { return pointer; }

__forceinline__ void __syncwarp(unsigned mask = 0xffffffff) { ::emulator::meet_warp(mask); }
__forceinline__ void __syncthreads() { ::emulator::meet_block(); }
__forceinline__ unsigned __ballot_sync(unsigned mask, bool is_true) { return ::emulator::vote(mask, is_true); }
__forceinline__ bool __any_sync(unsigned mask, bool is_true) { return ::emulator::vote(mask, is_true) != 0; }
__forceinline__ bool __all_sync(unsigned mask, bool is_true) { return ::emulator::vote(mask, is_true) == mask; }

namespace emulator {

template <class T>
__forceinline__ T shuffle_value(unsigned mask, T value, unsigned from, const char* what) {
    static_assert(sizeof(T) == 4);
    return __builtin_bit_cast(T, shuffle(mask, __builtin_bit_cast(unsigned, value), from, what));
}

template <class T, class Combine>
__forceinline__ T reduce_value(unsigned mask, T value, Combine) {
    const auto combine = [](u32 a, u32 b) { return u32(Combine{}(T(a), T(b))); };
    return T(reduce(mask, u32(value), combine));
}

// A parameter of the kernel; its field `zero` is what the launch says (dependencies.cpp).
template <class Parameter>
Parameter own_zero(Parameter parameter) {
    if constexpr (requires { parameter.zero; }) parameter.zero = zero_of_launch();
    return parameter;
}

// Calls a kernel with the parameters of a launch.
template <class... Parameters, size_t... kIndex>
void call(void (*kernel)(Parameters...), void** parameters, std::index_sequence<kIndex...>) {
    kernel(own_zero(*static_cast<std::remove_cv_t<Parameters>*>(parameters[kIndex]))...);
}
template <class... Parameters>
void call(void (*kernel)(Parameters...), void** parameters) {
    call(kernel, parameters, std::index_sequence_for<Parameters...>());
}

}  // namespace emulator

template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, unsigned lane) {
    return ::emulator::shuffle_value(mask, value, lane % 32, "__shfl_sync");
}
template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, unsigned lanes) {
    return ::emulator::shuffle_value(mask, value, threadIdx.x % 32 ^ lanes, "__shfl_xor_sync");
}
template <class T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned lanes) {
    const unsigned lane = threadIdx.x % 32;
    return ::emulator::shuffle_value(mask, value, lane < lanes ? lane : lane - lanes, "__shfl_up_sync");
}
template <class T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned lanes) {
    const unsigned lane = threadIdx.x % 32;
    return ::emulator::shuffle_value(mask, value, lane + lanes > 31 ? lane : lane + lanes, "__shfl_down_sync");
}
template <class T>
__forceinline__ unsigned __match_any_sync(unsigned mask, T value) {
    unsigned found = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (mask >> lane & 1) found |= unsigned(__shfl_sync(mask, value, lane) == value) << lane;
    return found;
}
template <class T>
__forceinline__ T __reduce_min_sync(unsigned mask, T value) {
    return ::emulator::reduce_value(mask, value, [](T a, T b) { return a < b ? a : b; });
}
template <class T>
__forceinline__ T __reduce_max_sync(unsigned mask, T value) {
    return ::emulator::reduce_value(mask, value, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
__forceinline__ T __reduce_add_sync(unsigned mask, T value) {
    return ::emulator::reduce_value(mask, value, [](T a, T b) { return a + b; });
}
