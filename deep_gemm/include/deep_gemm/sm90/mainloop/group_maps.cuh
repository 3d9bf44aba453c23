// Tensor maps of operands whose groups of K lie in blocks of memory of their own: [m, K_g] one after the other, each
// with its own pitch.
//
// The loading warp copies the launch's maps into a slot of this CTA's own, replaces address, columns and pitch there,
// and publishes it to TMA (fence.proxy.tensormap). A slot must not change while a load may still read it. There is one
// more than there are stages: every group has at least one K step, and a load is only issued once the stage that it
// refills has been read, so when a slot comes round its loads have landed.
#pragma once

#include "deep_gemm/sm90/gemm_layout.cuh"
#include "deep_gemm/sm90/scheduler/tile.cuh"
#include "deep_gemm/sm90/mainloop/operand_maps.cuh"

namespace deep_gemm {

template <class Config>
struct GroupMaps {
    static constexpr bool kPerGroup = true;
    static constexpr u32 kSlots = Config::kNumStages + 1;

    const Maps& maps;
    const GroupParams& groups;
    u32 m, n;
    TensorMap* slots;  // of A, then of B
    u32 slot = 0;
    u32 group = ~0u;  // whose maps the slot holds

    __device__ __forceinline__ GroupMaps(const Maps& maps, const GroupParams& groups, u32 m, u32 n)
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
        const u64 first_k = u64(tile.first_step) * Config::kBlockK, k = u64(tile.num_steps) * Config::kBlockK;
        write(slots + slot, maps.a, static_cast<const u8*>(groups.a) + first_k * m * Config::kElementBytes, k);
        write(slots + kSlots + slot, maps.b, static_cast<const u8*>(groups.b) + first_k * n * Config::kElementBytes, k);
        ptx::release_maps();
        __syncwarp();
        ptx::acquire_map(a());
        ptx::acquire_map(b());
    }

   private:
    __device__ __forceinline__ static void write(TensorMap* to, const TensorMap& from, const u8* address, u64 k) {
        const u32 lane = threadIdx.x % 32;
        reinterpret_cast<u32*>(to)[lane] = reinterpret_cast<const u32*>(&from)[lane];
        __syncwarp();
        if (ptx::elect_one()) {
            ptx::replace_map_address(to, address);
            ptx::replace_map_columns(to, u32(k));
            ptx::replace_map_pitch(to, k * Config::kElementBytes);
        }
        __syncwarp();
    }
};

}  // namespace deep_gemm
