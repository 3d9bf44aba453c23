// The producer warpgroup of grouped kernels: as producer.cuh, on tensors of rank 3 and with K steps that differ from tile to tile.
//
// The loading warp does little else than to issue TMA: a warp of its own finds the tiles and hands them to all others (tile_queue.cuh), another one
// copies block scalars of B. With both, a stage kept the loading warp busy for 500 cycles, and 128 x 128 x 128 multiply in as many (H200, contiguous,
// 128x128 tiles, k = 2048: 127 us against 112). With a ring of scales all other warps copy, and the loading warp finds the tiles.
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
    }

    // The K steps of the first tile that are loaded before the CTA's first barrier, as Producer::prefill says.
    __device__ __forceinline__ static u32 count_prefilled(const GroupTile& tile) {
        if (Layout::kMulticast || !tile.is_valid()) return 0;
        return tile.num_steps < Config::kNumStages ? tile.num_steps : Config::kNumStages;
    }

    __device__ __forceinline__ void prefill(const GroupTile& tile) {
        const u32 count = count_prefilled(tile);
        if (Config::kGroupBlocks && count > 0) group_maps.prepare(tile);
#pragma unroll 1
        for (u32 step = 0; step < count; ++step) {
            load_stage(step, step, tile);
            __syncwarp();
        }
    }

    __device__ __forceinline__ static Ring<Config::kNumStages> ring_after(u32 steps) {
        Ring<Config::kNumStages> ring;
        ring.stage = steps % Config::kNumStages;
        ring.phase = steps / Config::kNumStages;
        return ring;
    }

    // Until the math warps of the cluster have left the stage.
    __device__ __forceinline__ void wait_for_stage(const Ring<Config::kNumStages>& ring) const {
        ptx::barrier_wait(stages.empty_barrier(ring.stage), ring.phase ^ 1);
    }

    // By the loading warp. `found`: the first tile, whose first steps have been prefilled.
    __device__ __forceinline__ void produce(Scheduler found) {
        u32 first = count_prefilled(found);
        Ring<Config::kNumStages> ring = ring_after(first);
        Ring<Queue::kDepth> places;
#pragma unroll 1
        for (;; first = 0) {
            if constexpr (!Queue::kHasFinder) queue.put(places, found);
            const GroupTile tile = Queue::kHasFinder ? queue.take(places) : found;
            if (!tile.is_valid()) break;
            if constexpr (Config::kGroupBlocks) group_maps.prepare(tile);
#pragma unroll 1
            for (u32 step = first; step < tile.num_steps; ++step, ring.advance()) {
                wait_for_stage(ring);
                load_stage(ring.stage, step, tile);
                __syncwarp();
            }
            if constexpr (!Queue::kHasFinder) found.advance();
        }
    }

    // By the warp that finds tiles. The last one that it hands over says that there are no more.
    __device__ __forceinline__ void find(Scheduler tile) const {
        Ring<Queue::kDepth> places;
#pragma unroll 1
        for (;; tile.advance()) {
            queue.put(places, tile);
            if (!tile.is_valid()) break;
        }
    }

    // ---- block scalars of B: a warp of their own, one lane a scalar ----

    // Blocks beyond the matrix are left out, their results are never stored.
    __device__ __forceinline__ void copy_block(u32 stage, u32 step, const GroupTile& tile) const {
        const u32 lane = threadIdx.x % 32, block = tile.n_start / 128 + lane;
        if (lane >= Layout::kBlocksB || block * 128 >= n) return;
        const float* from = params.scale_b + tile.matrix_b * groups.scale_b_stride_group + block * params.scale_b_stride_mn;
        ptx::copy_4(stages.scales_b(stage) + 4 * lane, from + (tile.first_step + step) * params.scale_b_stride_k);
    }

    __device__ __forceinline__ void prefill_blocks(const GroupTile& tile) const {
        const u32 count = count_prefilled(tile);
#pragma unroll 1
        for (u32 step = 0; step < count; ++step) copy_block(step, step, tile);
    }

    // `found`: the first tile. What was copied before the barriers existed only arrives here.
    __device__ __forceinline__ void produce_blocks(const GroupTile& found) const {
        Ring<Config::kNumStages> ring;
        Ring<Queue::kDepth> places;
        u32 prefilled = count_prefilled(found);
#pragma unroll 1
        for (GroupTile tile = queue.take(places); tile.is_valid(); tile = queue.take(places), prefilled = 0) {
#pragma unroll 1
            for (u32 step = 0; step < tile.num_steps; ++step, ring.advance()) {
                wait_for_stage(ring);
                if (step >= prefilled) copy_block(ring.stage, step, tile);
                if (threadIdx.x % 32 < Layout::kBlocksB) ptx::copy_arrive(stages.full_barrier(ring.stage));
                __syncwarp();
            }
        }
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
