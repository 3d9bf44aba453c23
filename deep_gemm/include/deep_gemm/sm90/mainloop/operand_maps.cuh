// Tensor maps of the operands, as the loading warp asks for them: those of the launch, or of a group (group_maps.cuh,
// psum_maps.cuh).
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

struct GroupParams;
struct Tile;

// The tensor maps of a launch; unused ones are zero. `a_tail` loads the last rows of A where they do not fill a tile.
struct Maps {
    const TensorMap &a, &b, &d, &scale_a, &scale_b, &a_tail;
};

struct LaunchMaps {
    // K is counted from the group's first element, for each group has maps of its own.
    static constexpr bool kPerGroup = false;

    const Maps& maps;

    __device__ __forceinline__ LaunchMaps(const Maps& maps, const GroupParams&, u32, u32) : maps(maps) {}

    __device__ __forceinline__ const TensorMap* a() const { return &maps.a; }
    __device__ __forceinline__ const TensorMap* a_tail() const { return &maps.a_tail; }
    __device__ __forceinline__ const TensorMap* b() const { return &maps.b; }
    __device__ __forceinline__ void prepare(const Tile&) const {}
};

}  // namespace deep_gemm
