// The instructions that grouped kernels use besides those of ptx.cuh: TMA on tensors of rank 3, and tensor maps that
// are made on the device.
#pragma once

#include "deep_gemm/sm90/ptx/ptx.cuh"

namespace deep_gemm {
namespace ptx {

// cp.async.bulk.tensor.3d, global to shared: a box at column x, row y of matrix z; completes on `barrier`.
__device__ __forceinline__ void tma_load_3d(const TensorMap* map, u32 barrier, u32 destination, u32 x, u32 y, u32 z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];"
                 ::"r"(destination), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}

// The same with an L2 policy.
__device__ __forceinline__ void tma_load_3d_hint(const TensorMap* map, u32 barrier, u32 destination, u32 x, u32 y,
                                                 u32 z, u64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;"
        ::"r"( destination), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(policy) : "memory");
}

// createpolicy: lines that are the first to leave L2.
__device__ __forceinline__ u64 evict_first_policy() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// tma_load_3d with .multicast::cluster, as tma_load_multicast.
__device__ __forceinline__ void tma_load_3d_multicast(const TensorMap* map, u32 barrier, u32 destination, u32 x, u32 y,
                                                      u32 z, u16 mask) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;"
        ::"r"(destination), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(mask) : "memory");
}

// cp.async.bulk.tensor.3d, shared to global: rows and columns beyond the matrix are not written, so nothing reaches the
// next one.
__device__ __forceinline__ void tma_store_3d(const TensorMap* map, u32 source, u32 x, u32 y, u32 z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(source), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

// cp.reduce.async.bulk.tensor.3d .add, shared to global: the same, added in memory.
__device__ __forceinline__ void tma_add_3d(const TensorMap* map, u32 source, u32 x, u32 y, u32 z) {
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];"
                 ::"l"(map), "r"(source), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

// st.shared.v4, ld.shared.v4
__device__ __forceinline__ void store_shared_words(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void load_shared_words(u32& a, u32& b, u32& c, u32& d, u32 address) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address)
                 : "memory");
}

// tensormap.replace (PTX ISA, "tensormap.replace"): fields of a tensor map in global memory.
__device__ __forceinline__ void replace_map_address(TensorMap* map, const void* address) {
    asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;"
                 ::"l"(__cvta_generic_to_global(map)), "l"(address) : "memory");
}
__device__ __forceinline__ void replace_map_columns(TensorMap* map, u32 columns) {
    asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 0, %1;" ::"l"(__cvta_generic_to_global(map)),
                 "r"(columns) : "memory");
}
// Compilers before CUDA 12.5 take the pitch without its four low bits, which are zero.
__device__ __forceinline__ void replace_map_pitch(TensorMap* map, u64 pitch_bytes) {
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 5)
    const u64 value = pitch_bytes;
#else
    const u64 value = pitch_bytes >> 4;
#endif
    asm volatile("tensormap.replace.tile.global_stride.global.b1024.b64 [%0], 0, %1;"
                 ::"l"(__cvta_generic_to_global(map)), "l"(value) : "memory");
}

// fence.proxy.tensormap (PTX ISA, "membar / fence"): what was written to a map before the release is seen by TMA after
// the acquire of its 128 bytes.
__device__ __forceinline__ void release_maps() {
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}
__device__ __forceinline__ void acquire_map(const TensorMap* map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

// ld.global.nc: sizes and indices of groups, which nothing writes once wait_for_dependencies has returned.
__device__ __forceinline__ int load_index(const int* address) {
    int value;
    asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(address));
    return value;
}

}  // namespace ptx
}  // namespace deep_gemm
