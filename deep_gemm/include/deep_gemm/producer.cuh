// The producer warpgroup: its first warp issues all TMA loads of stages (and copies block scales), its last two or three copy scales that TMA
// cannot load. (Its second warp is another's where C is loaded: accumulation.cuh.)
#pragma once

#include "deep_gemm/pipeline.cuh"
#include "deep_gemm/scales.cuh"
#include "deep_gemm/scheduler.cuh"

namespace deep_gemm {

// The tensor maps of a launch; unused ones are zero.
struct Maps {
    const TensorMap &a, &b, &d, &scale_a, &scale_b;
};

template <class Config>
struct Producer {
    using Layout = GemmLayout<Config>;
    using Scheduler = TileScheduler<Config>;

    const Maps& maps;
    const Params& params;
    Pipeline<Config> stages;
    ScaleRing<Config> scales;
    u32 cluster_rank, m, n;
    u32 first_step, num_steps;  // this CTA's share of K

    // With fewer rows than a tile the box of A is cut to whole 8-row swizzle atoms: filling absent rows costs TMA as much as loading them.
    // What the rest of the tile then holds reaches only rows of D that are never stored.
    __device__ __forceinline__ u32 load_bytes() const {
        const bool is_cut = Config::kClusterN == 1 && !Config::kMnMajorA && m < Layout::kBlockM;
        return (is_cut ? align_up(m, 8) : Layout::kBlockM) * 128 + Layout::kBytesB + Layout::kVectorBytes;
    }

    // Load one operand's tile, or this CTA's half of it for both CTAs of the cluster.
    template <bool kMnMajor, bool kShared, u32 kTile>
    __device__ __forceinline__ void load_operand(const TensorMap* map, u32 barrier, u32 to, u32 k, u32 start) const {
        if constexpr (kMnMajor) {
#pragma unroll
            for (u32 at = 0; at < kTile; at += 64) ptx::tma_load(map, barrier, to + at * 128, start + at, k);
        } else if constexpr (kShared) {
            const u32 first = cluster_rank * (kTile / 2);
            ptx::tma_load_multicast(map, barrier, to + first * 128, k, start + first, 3);
        } else {
            ptx::tma_load(map, barrier, to, k, start);
        }
    }

    // By the whole warp. `step` counts within this CTA's share of K.
    __device__ __forceinline__ void load_stage(u32 stage, u32 step, const Scheduler& tile) const {
        const u32 barrier = stages.full_barrier(stage), k_step = first_step + step, k = k_step * Layout::kBlockK;
        if (ptx::elect_one()) {
            ptx::barrier_arrive_expect(barrier, load_bytes());
            load_operand<Config::kMnMajorA, (Config::kClusterN > 1), Layout::kBlockM>(&maps.a, barrier, stages.stage_a(stage), k, tile.m_start);
            load_operand<Config::kMnMajorB, (Config::kClusterM > 1), Layout::kBlockN>(&maps.b, barrier, stages.stage_b(stage), k, tile.n_start);
            if constexpr (Layout::kStageScales) {
                ptx::tma_load(&maps.scale_a, barrier, stages.scales_a(stage), tile.m_start, k_step);
                if constexpr (Layout::kVectorB) ptx::tma_load(&maps.scale_b, barrier, stages.scales_b(stage), tile.n_start, k_step);
            }
        }
        if constexpr (Layout::kCopyArrivals > 0) {
            __syncwarp();
            copy_blocks(barrier, stage, k_step, tile);
        }
    }

    // One lane a block scalar of B; blocks beyond the matrix are left out, their results are never stored.
    __device__ __forceinline__ void copy_blocks(u32 barrier, u32 stage, u32 k_step, const Scheduler& tile) const {
        const u32 lane = threadIdx.x % 32, block = tile.n_start / 128 + lane;
        if (lane >= Layout::kBlocksB) return;
        if (block * 128 < n) ptx::copy_4(stages.scales_b(stage) + 4 * lane, params.scale_b + block * params.scale_b_stride_mn + k_step * params.scale_b_stride_k);
        ptx::copy_arrive(barrier);
    }

    // Fill the ring for the first tile before the CTA's first barrier: nothing can be waiting for these stages yet, the first bytes leave
    // memory earlier, and no math warp polls a barrier meanwhile (H200, m 1, n 32768, k 512: 9.0 us against 9.9). Only without a peer,
    // whose barriers must exist before anything is multicast to it. Returns the number of K steps loaded.
    __device__ __forceinline__ u32 prefill(const Scheduler& tile) const {
        if (Layout::kMulticast || !tile.is_valid()) return 0;
        const u32 count = num_steps < Config::kNumStages ? num_steps : Config::kNumStages;
#pragma unroll 1
        for (u32 step = 0; step < count; ++step) {
            load_stage(step, step, tile);
            __syncwarp();
        }
        return count;
    }

    __device__ __forceinline__ void produce(Scheduler tile, u32 prefilled) const {
        Ring<Config::kNumStages> ring;
        ring.stage = prefilled % Config::kNumStages;
        ring.phase = prefilled / Config::kNumStages;
#pragma unroll 1
        for (u32 first = prefilled; tile.is_valid(); tile.advance(), first = 0) {
#pragma unroll 1
            for (u32 step = first; step < num_steps; ++step, ring.advance()) {
                ptx::barrier_wait(stages.empty_barrier(ring.stage), ring.phase ^ 1);  // until the math warps of the cluster have left the stage
                load_stage(ring.stage, step, tile);
                __syncwarp();
            }
        }
    }

    __device__ __forceinline__ void copy_scales(const Scheduler& tile, u32 buffer, u32 step) const {
        scales.copy_group(params, buffer, threadIdx.x % 128 - (128 - Layout::kCopyThreads), step, num_steps, first_step, tile.m_start, tile.n_start, m, n);
    }

    // The first group of the first tile has been copied before the barriers existed; only its arrival is left.
    __device__ __forceinline__ void produce_scales(Scheduler tile) const {
        Ring<Layout::kRingBuffers> ring;
        bool copied = true;
#pragma unroll 1
        for (; tile.is_valid(); tile.advance()) {
#pragma unroll 1
            for (u32 step = 0; step < num_steps; step += Layout::kRingSteps, ring.advance()) {
                ptx::barrier_wait(scales.empty_barrier(ring.stage), ring.phase ^ 1);  // until the math warps have left the buffer
                if (!copied) copy_scales(tile, ring.stage, step);
                copied = false;
                ptx::copy_arrive(scales.full_barrier(ring.stage));
            }
        }
    }
};

}  // namespace deep_gemm
