// What the grouped kernels know besides Params: where their groups are. The host's twin is in csrc/runtime; both sides
// change together.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

// Strides are in elements, and 0 where a tensor has no dim of groups.
struct GroupParams {
    // contiguous: the group of each row [m]; masked: rows of each group [num_groups]; groups of K: K of each
    // [num_groups].
    const int* groups;
    const void *a, *b;   // blocks of K only: the operands, which have a tensor map for each group
    u8* map_slots;       // blocks of K only: memory for those maps (group_maps.cuh)
    i64 scale_a_stride_group, scale_b_stride_group;
    i64 d_stride_group, c_stride_group;
    u32 num_groups;
    u32 reserved[7];
};

static_assert(sizeof(GroupParams) == 96, "the host passes 96 bytes");

// `params` as it is for the matrices of one group, at `group_b` of B's scales and `group_d` of A's scales, C and D.
template <u32 kBytesD>
__device__ __forceinline__ Params at_group(Params params, const GroupParams& groups, u32 group_b, u32 group_d) {
    params.scale_a += group_d * groups.scale_a_stride_group;
    params.scale_b += group_b * groups.scale_b_stride_group;
    params.d = static_cast<u8*>(params.d) + group_d * groups.d_stride_group * kBytesD;
    params.c = static_cast<const u8*>(params.c) + group_d * groups.c_stride_group * kBytesD;
    return params;
}

}  // namespace deep_gemm
