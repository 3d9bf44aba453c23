// Tensor maps of the operands of one group of K whose end is known: they start and end with the group, so that TMA
// fills in zeros for what lies behind it, whatever that is. As group_maps.cuh, which says how the slots are used; there
// every group fills whole K steps.
#pragma once

#include "deep_gemm/sm90/mainloop/group_maps.cuh"
#include "deep_gemm/sm90/scheduler/group_ends.cuh"

namespace deep_gemm {
namespace ptx {

// tensormap.replace (PTX ISA, "tensormap.replace"): the second dim of a tensor map in global memory.
__device__ __forceinline__ void replace_map_rows(TensorMap* map, u32 rows) {
    asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %1;" ::"l"(__cvta_generic_to_global(map)),
                 "r"(rows) : "memory");
}

}  // namespace ptx

template <class Config>
struct PsumMaps {
    static constexpr bool kPerGroup = true;
    static constexpr u32 kSlots = Config::kNumStages + 1;
    // A tile's `state` holds how many elements of its last K step lie behind the group.
    static constexpr u32 kTailShift = 8;

    const Maps& maps;
    const GroupParams& groups;
    u32 m, n;
    TensorMap* slots;  // of A, then of B
    u32 slot = 0;
    u32 group = ~0u;  // whose maps the slot holds

    __device__ __forceinline__ PsumMaps(const Maps& maps, const GroupParams& groups, u32 m, u32 n)
        : maps(maps),
          groups(groups),
          m(m),
          n(n),
          slots(reinterpret_cast<TensorMap*>(groups.map_slots) + blockIdx.x * 2 * kSlots) {}

    __device__ __forceinline__ const TensorMap* a() const { return slots + slot; }
    __device__ __forceinline__ const TensorMap* b() const { return slots + kSlots + slot; }

    // Make the maps those of the tile's group; by the whole warp.
    __device__ __forceinline__ void prepare(const Tile& tile) {
        if (tile.matrix_d == group || tile.num_steps == 0) return;
        group = tile.matrix_d;
        slot = slot + 1 == kSlots ? 0 : slot + 1;
        write<Config::kMnMajorA>(slots + slot, maps.a, groups.a, tile, m, groups.reserved[kPsumPitchA]);
        write<Config::kMnMajorB>(slots + kSlots + slot, maps.b, groups.b, tile, n, groups.reserved[kPsumPitchB]);
        ptx::release_maps();
        __syncwarp();
        ptx::acquire_map(a());
        ptx::acquire_map(b());
    }

   private:
    // `rows`: of the operand; `pitch`: of its rows of K where it is MN-major, in units of 16 bytes.
    template <bool kMnMajor>
    __device__ __forceinline__ static void write(TensorMap* to, const TensorMap& from, const void* operand,
                                                 const Tile& tile, u32 rows, u32 pitch) {
        const u32 lane = threadIdx.x % 32, whole = tile.num_steps * Config::kBlockK,
                  k = whole - (tile.state >> kTailShift);
        reinterpret_cast<u32*>(to)[lane] = reinterpret_cast<const u32*>(&from)[lane];
        __syncwarp();
        if (ptx::elect_one()) {
            // From one k to the next.
            const u64 bytes =
                kMnMajor ? u64(pitch) * 16 : u64(Config::kElementBytes) * (Config::kSeparateBlocks ? rows : 1);
            ptx::replace_map_address(to,
                                     static_cast<const u8*>(operand) + u64(tile.first_step) * Config::kBlockK * bytes);
            if constexpr (kMnMajor) {
                ptx::replace_map_rows(to, k);
            } else {
                ptx::replace_map_columns(to, k);
            }
            if constexpr (Config::kSeparateBlocks) ptx::replace_map_pitch(to, u64(whole) * Config::kElementBytes);
        }
        __syncwarp();
    }
};

}  // namespace deep_gemm
