// Where the rows of experts begin on the GPU that has them: one after the other, each at a multiple of the alignment.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

// The first row of expert `expert` of a GPU whose experts have `counts` rows; by all lanes of a warp.
__device__ __forceinline__ u32 first_row_of(const int* counts, u32 expert, u32 alignment) {
    u32 rows = 0;
    for (u32 before = threadIdx.x % 32; before < expert; before += 32) rows += align_up(u32(counts[before]), alignment);
    return __reduce_add_sync(0xFFFFFFFF, rows);
}

}  // namespace deep_gemm
