// The warps that copy scales which TMA does not bring (scales.cuh). All copiers have `kFirstWarp` and `kEndWarp`,
// `prefill`, which copies what the CTA's first tile begins with before any barrier exists, and `run`, which goes
// through all tiles and leaves to those copies only their arrival.
#pragma once

#include "deep_gemm/sm90/mainloop/loader.cuh"
#include "deep_gemm/sm90/mainloop/scales.cuh"

namespace deep_gemm {

// What a copier knows; m rows and n columns in a matrix of D.
template <class Config>
struct ScaleSource {
    using Layout = GemmLayout<Config>;
    const Params& params;
    const GroupParams& groups;
    Pipeline<Config> stages;
    u32 m, n;

    // The tile's `block`-th block scale of B at the tile's K step `step`; whether the block exists. Blocks beyond the
    // matrix are left out, their results are never stored.
    __device__ __forceinline__ const float* block(const Tile& tile, u32 block, u32 step) const {
        const float* matrix = params.scale_b + tile.matrix_b * groups.scale_b_stride_group;
        return matrix + (tile.n_start / 128 + block) * params.scale_b_stride_mn +
               (tile.first_step + step) * params.scale_b_stride_k;
    }
    __device__ __forceinline__ bool has_block(const Tile& tile, u32 block) const {
        return (tile.n_start / 128 + block) * 128 < n;
    }
};

// Scales of any layout, for a ring of their own.
template <class Config>
struct RingCopier : ScaleSource<Config> {
    using Layout = GemmLayout<Config>;
    static constexpr u32 kFirstWarp = 4 - Layout::kCopyThreads / 32, kEndWarp = 4;

    __device__ __forceinline__ void prefill(const Tile& tile) const {
        if (tile.is_valid()) copy(tile, 0, 0);
    }

    template <class Walk>
    __device__ __forceinline__ void run(Walk walk) const {
        const ScaleRing<Config> scales(this->stages.shared);
        Ring<Layout::kRingBuffers> ring;
        u32 prefilled = Layout::kRingSteps;  // steps of the tile that have been copied
#pragma unroll 1
        for (Tile tile = walk.first(); tile.is_valid(); tile = walk.next(), prefilled = 0) {
#pragma unroll 1
            for (u32 step = 0; step < tile.num_steps; step += Layout::kRingSteps, ring.advance()) {
                // Until the math warps have left the buffer.
                ptx::barrier_wait(scales.empty_barrier(ring.stage), ring.phase ^ 1);
                if (step >= prefilled) copy(tile, ring.stage, step);
                ptx::copy_arrive(scales.full_barrier(ring.stage));
            }
        }
    }

   private:
    __device__ __forceinline__ void copy(const Tile& tile, u32 buffer, u32 step) const {
        const Params own = at_group<Layout::kBytesD>(this->params, this->groups, tile.matrix_b, tile.matrix_d);
        const u32 thread = threadIdx.x % 128 - (128 - Layout::kCopyThreads);
        ScaleRing<Config>(this->stages.shared).copy_group(own, buffer, thread, step, tile.num_steps, tile.first_step,
                                                          tile.m_start, tile.n_start, this->m, this->n);
    }
};

// Block scales, each with its stage: one lane a block.
template <class Config>
struct StageBlockCopier : ScaleSource<Config> {
    using Layout = GemmLayout<Config>;
    static constexpr u32 kFirstWarp = Layout::kBlockWarp, kEndWarp = kFirstWarp + 1;

    __device__ __forceinline__ void prefill(const Tile& tile) const {
        const u32 count = count_prefilled<Config>(tile);
#pragma unroll 1
        for (u32 step = 0; step < count; ++step) copy(step, step, tile);
    }

    template <class Walk>
    __device__ __forceinline__ void run(Walk walk) const {
        Ring<Config::kNumStages> ring;
        Tile tile = walk.first();
        u32 prefilled = count_prefilled<Config>(tile);
#pragma unroll 1
        for (; tile.is_valid(); tile = walk.next(), prefilled = 0) {
#pragma unroll 1
            for (u32 step = 0; step < tile.num_steps; ++step, ring.advance()) {
                // Until the math warps of the cluster have left the stage.
                ptx::barrier_wait(this->stages.empty_barrier(ring.stage), ring.phase ^ 1);
                // A lane that does not arrive could miss the phase, which ends soon after the others' arrival.
                __syncwarp();
                if (step >= prefilled) copy(ring.stage, step, tile);
                if (threadIdx.x % 32 < Layout::kBlocksB) ptx::copy_arrive(this->stages.full_barrier(ring.stage));
            }
        }
    }

   private:
    __device__ __forceinline__ void copy(u32 stage, u32 step, const Tile& tile) const {
        const u32 lane = threadIdx.x % 32;
        if (lane < Layout::kBlocksB && this->has_block(tile, lane))
            ptx::copy_4(this->stages.scales_b(stage) + 4 * lane, this->block(tile, lane, step));
    }
};

// Block scales of whole tiles, in buffers of their own (BlockBuffers).
template <class Config>
struct TileBlockCopier : ScaleSource<Config> {
    using Layout = GemmLayout<Config>;
    static constexpr u32 kFirstWarp = Layout::kBlockWarp, kEndWarp = kFirstWarp + 1;

    __device__ __forceinline__ void prefill(const Tile& tile) const {
        if (tile.is_valid()) copy(tile, 0, 0);
    }

    template <class Walk>
    __device__ __forceinline__ void run(Walk walk) const {
        const BlockBuffers<Config> buffers(this->stages.shared);
        Ring<Layout::kBlockBuffers> ring;
        u32 prefilled = Layout::kBlockSteps;  // steps of the tile that have been copied
#pragma unroll 1
        for (Tile tile = walk.first(); tile.is_valid(); tile = walk.next(), prefilled = 0) {
#pragma unroll 1
            for (u32 step = 0; step < tile.num_steps; step += Layout::kBlockSteps, ring.advance()) {
                // Until the math warps have left the buffer.
                ptx::barrier_wait(buffers.empty_barrier(ring.stage), ring.phase ^ 1);
                if (step >= prefilled) copy(tile, ring.stage, step);
                ptx::copy_arrive(buffers.full_barrier(ring.stage));
            }
        }
    }

   private:
    __device__ __forceinline__ void copy(const Tile& tile, u32 buffer, u32 first) const {
        const u32 to = BlockBuffers<Config>(this->stages.shared).data(buffer), left = tile.num_steps - first;
        const u32 steps = left < Layout::kBlockSteps ? left : Layout::kBlockSteps;
#pragma unroll
        for (u32 block = 0; block < Layout::kBlocksB; ++block) {
            if (!this->has_block(tile, block)) break;
#pragma unroll 1
            for (u32 step = threadIdx.x % 32; step < steps; step += 32)
                ptx::copy_4(to + block * Layout::kBlockStride + 4 * step, this->block(tile, block, first + step));
        }
    }
};

// Nothing to copy.
template <class Config>
struct NoCopier : ScaleSource<Config> {
    static constexpr u32 kFirstWarp = 4, kEndWarp = 4;

    __device__ __forceinline__ void prefill(const Tile&) const {}
    template <class Walk>
    __device__ __forceinline__ void run(Walk) const {}
};

template <class Config>
struct ScaleCopierOf {
    using Layout = GemmLayout<Config>;
    using Blocks = typename Choose<Config::kScaleWarp, TileBlockCopier<Config>, StageBlockCopier<Config>>::Type;
    using Vectors = typename Choose<Layout::kRing, RingCopier<Config>, NoCopier<Config>>::Type;
    using Type = typename Choose<Layout::kHasBlocks, Blocks, Vectors>::Type;
};

}  // namespace deep_gemm
