// Tiles on their way from the warp that finds them to the other warps of the CTA: a ring of kDepth entries in shared
// memory.
//
// Finding a tile takes a thousand cycles where groups are searched, and the finder is ahead of the others, so nobody
// waits for it; if every warp did it, the tensor cores would stand still meanwhile (H200, masked, 128x128 tiles,
// k = 7168: 4 % of the time). Entry i has a full barrier (one arrival) and an empty one (one for each warp that takes
// tiles). The last entry says that there are no more.
#pragma once

#include "deep_gemm/sm90/gemm_layout.cuh"
#include "deep_gemm/sm90/scheduler/tile.cuh"
#include "deep_gemm/sm90/mainloop/ring.cuh"

namespace deep_gemm {

template <class Config>
struct TileQueue {
    using Layout = GemmLayout<Config>;
    static constexpr u32 kDepth = 8, kEntryBytes = 32, kBytes = kDepth * (kEntryBytes + 16);
    static constexpr bool kHasFinder = !Layout::kRing;  // a warp of its own finds tiles; else the loading warp does
    static constexpr u32 kScaleWarps = Layout::kRing ? Layout::kCopyThreads / 32 : Layout::kHasBlocks ? 1 : 0;
    static constexpr u32 kTakers =
        4 * Layout::kMathGroups + (kHasFinder ? 1 : 0) + kScaleWarps + (Layout::kLoadsC ? 1 : 0);
    static_assert(kBytes == Config::kTileQueueBytes, "the host and the kernel count the same shared memory");
    static_assert(sizeof(Tile) == kEntryBytes, "a tile is copied as two vectors of 16 bytes");

    u32 data;  // shared address, 128-byte aligned

    __device__ __forceinline__ u32 entry(u32 slot) const { return data + slot * kEntryBytes; }
    __device__ __forceinline__ u32 full_barrier(u32 slot) const { return data + kDepth * kEntryBytes + 8 * slot; }
    __device__ __forceinline__ u32 empty_barrier(u32 slot) const { return full_barrier(kDepth + slot); }

    // By one thread, before the CTA meets.
    __device__ __forceinline__ void initialise_barriers() const {
#pragma unroll
        for (u32 slot = 0; slot < kDepth; ++slot) {
            ptx::barrier_init(full_barrier(slot), 1);
            ptx::barrier_init(empty_barrier(slot), kTakers);
        }
    }

    // By the warp that finds tiles.
    __device__ __forceinline__ void put(Ring<kDepth>& ring, const Tile& tile) const {
        ptx::barrier_wait(empty_barrier(ring.stage), ring.phase ^ 1);  // until every warp has taken what the entry held
        if (ptx::elect_one()) {
            ptx::store_shared_words(entry(ring.stage), tile.m_start, tile.n_start, tile.matrix_a, tile.matrix_b);
            ptx::store_shared_words(entry(ring.stage) + 16, tile.matrix_d, tile.first_step, tile.num_steps, tile.state);
            ptx::barrier_arrive(full_barrier(ring.stage));
        }
        __syncwarp();
        ring.advance();
    }

    // By a whole warp that takes every tile: wait for the entry, read it, as often as it is needed, and give it back.
    __device__ __forceinline__ void wait(const Ring<kDepth>& ring) const {
        ptx::barrier_wait(full_barrier(ring.stage), ring.phase);
    }
    __device__ __forceinline__ Tile read(const Ring<kDepth>& ring) const {
        Tile tile;
        ptx::load_shared_words(tile.m_start, tile.n_start, tile.matrix_a, tile.matrix_b, entry(ring.stage));
        ptx::load_shared_words(tile.matrix_d, tile.first_step, tile.num_steps, tile.state, entry(ring.stage) + 16);
        return tile;
    }
    __device__ __forceinline__ void release(Ring<kDepth>& ring) const {
        __syncwarp();  // every lane has read the entry
        if (threadIdx.x % 32 == 0) ptx::barrier_arrive(empty_barrier(ring.stage));
        ring.advance();
    }
};

}  // namespace deep_gemm
