// TMA on a matrix of a tensor: rank 2, or with kHasMatrices rank 3, where `matrix` counts matrices.
#pragma once

#include "deep_gemm/sm90/ptx/grouped_ptx.cuh"

namespace deep_gemm {

template <bool kHasMatrices>
struct TensorAccess {
    __device__ __forceinline__ static void load(const TensorMap* map, u32 barrier, u32 to, u32 x, u32 y, u32 matrix) {
        if constexpr (kHasMatrices) {
            ptx::tma_load_3d(map, barrier, to, x, y, matrix);
        } else {
            ptx::tma_load(map, barrier, to, x, y);
        }
    }

    // Into both CTAs of the cluster.
    __device__ __forceinline__ static void load_shared(const TensorMap* map, u32 barrier, u32 to, u32 x, u32 y,
                                                       u32 matrix) {
        if constexpr (kHasMatrices) {
            ptx::tma_load_3d_multicast(map, barrier, to, x, y, matrix, 3);
        } else {
            ptx::tma_load_multicast(map, barrier, to, x, y, 3);
        }
    }

    __device__ __forceinline__ static void store(const TensorMap* map, u32 from, u32 x, u32 y, u32 matrix) {
        if constexpr (kHasMatrices) {
            ptx::tma_store_3d(map, from, x, y, matrix);
        } else {
            ptx::tma_store(map, from, x, y);
        }
    }

    // Add onto what the matrix holds.
    __device__ __forceinline__ static void add(const TensorMap* map, u32 from, u32 x, u32 y, u32 matrix) {
        if constexpr (kHasMatrices) {
            ptx::tma_add_3d(map, from, x, y, matrix);
        } else {
            ptx::tma_add(map, from, x, y);
        }
    }
};

}  // namespace deep_gemm
