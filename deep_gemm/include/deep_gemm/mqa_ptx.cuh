// The instructions that the kernels of attention index logits use besides those of ptx.cuh and grouped_ptx.cuh.
#pragma once

#include "deep_gemm/sm90/ptx/grouped_ptx.cuh"

namespace deep_gemm {
namespace ptx {

// cp.async.bulk.tensor.4d, global to shared: a box at (x, y, z, w); completes on `barrier`.
__device__ __forceinline__ void tma_load_4d(const TensorMap* map, u32 barrier, u32 destination, u32 x, u32 y, u32 z,
                                            u32 w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                 ::"r"(destination), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// cp.async.bulk.tensor.2d as tma_load, with an L2 policy.
__device__ __forceinline__ void tma_load_hint(const TensorMap* map, u32 barrier, u32 destination, u32 x, u32 y,
                                              u64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4}], [%2], %5;"
        ::"r"( destination), "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(policy) : "memory");
}

// prefetch.global.L2: the line that holds `address`.
__device__ __forceinline__ void prefetch_line(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(address)) : "memory");
}

// ld.shared, st.shared of words.
__device__ __forceinline__ u32 load_shared_word(u32 address) {
    u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}
__device__ __forceinline__ void load_shared_pair(u32& a, u32& b, u32 address) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(address) : "memory");
}
__device__ __forceinline__ void store_shared_word(u32 address, u32 value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared_pair(u32 address, u32 a, u32 b) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

// st.global under a predicate, which the compiler cannot turn into a branch.
__device__ __forceinline__ void store_global_if(bool condition, void* address, float value) {
    asm volatile(
        "{\n"
        ".reg .pred condition;\n"
        "setp.ne.u32 condition, %0, 0;\n"
        "@condition st.global.f32 [%1], %2;\n"
        "}\n" ::"r"(u32(condition)), "l"(__cvta_generic_to_global(address)), "f"(value) : "memory");
}
__device__ __forceinline__ void store_global_if(bool condition, void* address, u16 value) {
    asm volatile(
        "{\n"
        ".reg .pred condition;\n"
        "setp.ne.u32 condition, %0, 0;\n"
        "@condition st.global.u16 [%1], %2;\n"
        "}\n" ::"r"(u32(condition)), "l"(__cvta_generic_to_global(address)), "h"(value) : "memory");
}

// st.global.v4
__device__ __forceinline__ void store_global_words(void* address, u32 word) {
    asm volatile("st.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(__cvta_generic_to_global(address)), "r"(word)
                 : "memory");
}

}  // namespace ptx
}  // namespace deep_gemm
