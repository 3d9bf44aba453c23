// The producer warpgroup of grouped kernels: as producer.cuh, on tensors of rank 3 and with K steps that differ from tile to tile. Its first warp
// finds the tiles, too, and hands them to all others.
#pragma once

#include "deep_gemm/group_maps.cuh"
#include "deep_gemm/producer.cuh"
#include "deep_gemm/tile_queue.cuh"

namespace deep_gemm {

template <class Config, class Scheduler>
struct GroupedProducer {
    using Layout = GemmLayout<Config>;
    using Queue = TileQueue<Config>;
    static constexpr u32 kLoadBytes = Layout::kStageBytes + Layout::kVectorBytes;

    const Maps& maps;
    const Params& params;
    const GroupParams& groups;
    Pipeline<Config> stages;
    ScaleRing<Config> scales;
    u32 cluster_rank, m, n;
    Queue queue;
    GroupMaps<Config> group_maps;

    // Load one operand's tile, or this CTA's half of it for both CTAs of the cluster.
    template <bool kMnMajor, bool kShared, u32 kTile>
    __device__ __forceinline__ void load_operand(const TensorMap* map, u32 barrier, u32 to, u32 k, u32 start, u32 matrix) const {
        if constexpr (kMnMajor) {
#pragma unroll
            for (u32 at = 0; at < kTile; at += 64) ptx::tma_load_3d(map, barrier, to + at * 128, start + at, k, matrix);
        } else if constexpr (kShared) {
            const u32 first = cluster_rank * (kTile / 2);
            ptx::tma_load_3d_multicast(map, barrier, to + first * 128, k, start + first, matrix, 3);
        } else {
            ptx::tma_load_3d(map, barrier, to, k, start, matrix);
        }
    }

    // By the whole warp. `step` counts within the tile's steps.
    __device__ __forceinline__ void load_stage(u32 stage, u32 step, const GroupTile& tile) const {
        const u32 barrier = stages.full_barrier(stage), k_step = tile.first_step + step;
        const u32 k = (Config::kGroupBlocks ? step : k_step) * Layout::kBlockK;
        const TensorMap* map_a = Config::kGroupBlocks ? group_maps.a() : &maps.a;
        const TensorMap* map_b = Config::kGroupBlocks ? group_maps.b() : &maps.b;
        if (ptx::elect_one()) {
            ptx::barrier_arrive_expect(barrier, kLoadBytes);
            load_operand<Config::kMnMajorA, (Config::kClusterN > 1), Layout::kBlockM>(map_a, barrier, stages.stage_a(stage), k, tile.m_start, tile.matrix_a);
            load_operand<Config::kMnMajorB, (Config::kClusterM > 1), Layout::kBlockN>(map_b, barrier, stages.stage_b(stage), k, tile.n_start, tile.matrix_b);
            if constexpr (Layout::kStageScales) {
                ptx::tma_load_3d(&maps.scale_a, barrier, stages.scales_a(stage), tile.m_start, k_step, tile.matrix_a);
                if constexpr (Layout::kVectorB) ptx::tma_load_3d(&maps.scale_b, barrier, stages.scales_b(stage), tile.n_start, k_step, tile.matrix_b);
            }
        }
        if constexpr (Layout::kCopyArrivals > 0) {
            __syncwarp();
            copy_blocks(barrier, stage, k_step, tile);
        }
    }

    // One lane a block scalar of B; blocks beyond the matrix are left out, their results are never stored.
    __device__ __forceinline__ void copy_blocks(u32 barrier, u32 stage, u32 k_step, const GroupTile& tile) const {
        const u32 lane = threadIdx.x % 32, block = tile.n_start / 128 + lane;
        if (lane >= Layout::kBlocksB) return;
        const float* from = params.scale_b + tile.matrix_b * groups.scale_b_stride_group;
        if (block * 128 < n) ptx::copy_4(stages.scales_b(stage) + 4 * lane, from + block * params.scale_b_stride_mn + k_step * params.scale_b_stride_k);
        ptx::copy_arrive(barrier);
    }

    // Fill the ring for the first tile before the CTA's first barrier, as Producer::prefill; returns the number of K steps loaded.
    __device__ __forceinline__ u32 prefill(const Scheduler& tile) {
        if (Layout::kMulticast || !tile.is_valid()) return 0;
        if constexpr (Config::kGroupBlocks) group_maps.prepare(tile);
        const u32 count = tile.num_steps < Config::kNumStages ? tile.num_steps : Config::kNumStages;
#pragma unroll 1
        for (u32 step = 0; step < count; ++step) {
            load_stage(step, step, tile);
            __syncwarp();
        }
        return count;
    }

    __device__ __forceinline__ void produce(Scheduler tile, u32 prefilled) {
        Ring<Config::kNumStages> ring;
        Ring<Queue::kDepth> places;
        ring.stage = prefilled % Config::kNumStages;
        ring.phase = prefilled / Config::kNumStages;
#pragma unroll 1
        for (u32 first = prefilled; tile.is_valid(); tile.advance(), first = 0) {
            queue.put(places, tile);
            if constexpr (Config::kGroupBlocks) group_maps.prepare(tile);
#pragma unroll 1
            for (u32 step = first; step < tile.num_steps; ++step, ring.advance()) {
                ptx::barrier_wait(stages.empty_barrier(ring.stage), ring.phase ^ 1);  // until the math warps of the cluster have left the stage
                load_stage(ring.stage, step, tile);
                __syncwarp();
            }
        }
        queue.put(places, tile);  // there are no more
    }

    __device__ __forceinline__ void copy_scales(const GroupTile& tile, u32 buffer, u32 step) const {
        const Params own = at_group<Layout::kBytesD>(params, groups, tile.matrix_b, tile.matrix_d);
        scales.copy_group(own, buffer, threadIdx.x % 128 - (128 - Layout::kCopyThreads), step, tile.num_steps, tile.first_step, tile.m_start, tile.n_start, m, n);
    }

    __device__ __forceinline__ void produce_scales() const {
        Ring<Layout::kRingBuffers> ring;
        Ring<Queue::kDepth> places;
#pragma unroll 1
        for (GroupTile tile = queue.take(places); tile.is_valid(); tile = queue.take(places)) {
#pragma unroll 1
            for (u32 step = 0; step < tile.num_steps; step += Layout::kRingSteps, ring.advance()) {
                ptx::barrier_wait(scales.empty_barrier(ring.stage), ring.phase ^ 1);  // until the math warps have left the buffer
                copy_scales(tile, ring.stage, step);
                ptx::copy_arrive(scales.full_barrier(ring.stage));
            }
        }
    }
};

}  // namespace deep_gemm
