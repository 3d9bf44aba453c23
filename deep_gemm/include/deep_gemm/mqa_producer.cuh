// A loading warp of the index logits: walks the segments that the schedule gives, and fills both rings. With several,
// each loads the tiles of K of one math warpgroup, and the first one the tiles of q: a warp alone that waits until one
// warpgroup has left a stage holds up the others' loads, too (H200, 24 caches of 69 MB to 1.1 GB: 1.2 % in the mean,
// 4.4 at most).
#pragma once

#include "deep_gemm/mqa_stages.cuh"

namespace deep_gemm {

template <class Config, class Schedule>
struct MqaProducer {
    using Layout = MqaLayout<Config>;
    static constexpr u32 kPages = kMqaTile / Config::kPageRows;  // of a tile

    const MqaMaps& maps;
    MqaStages<Config> stages;
    u32 loader;
    u64 policy = 0;  // of the reads of K that leave L2 first
    Ring<Config::kNumStages> ring;
    Ring<Layout::kQueryStages> queries;

    __device__ __forceinline__ MqaProducer(const MqaMaps& maps, const MqaStages<Config>& stages, u32 loader)
        : maps(maps), stages(stages), loader(loader) {}

    __device__ __forceinline__ void run(Schedule& schedule) {
        if constexpr (Schedule::kReadsOnce) policy = ptx::evict_first_policy();
        MqaSegment segment;
#pragma unroll 1
        while (schedule.next(segment)) {
            announce(segment);
            load_tiles(schedule, segment);
        }
        segment.num_tiles = 0;
        announce(segment);
    }

   private:
    // Tell the math warpgroups of a segment, and load what it needs of q. The last one, without tiles, needs nothing.
    __device__ __forceinline__ void announce(const MqaSegment& segment) {
        if (Schedule::kLoaders > 1 && loader != 0) return;
        const u32 lane = threadIdx.x % 32, barrier = stages.query_full_barrier(queries.stage),
                  to = stages.segment(queries.stage);
        ptx::barrier_wait(stages.query_empty_barrier(queries.stage), queries.phase ^ 1);
        if (lane < Config::kBlockQ) ptx::store_shared_pair(to + 16 + 8 * lane, segment.low, segment.high);
        if (lane == 0) ptx::store_shared_words(to, segment.token, segment.position, segment.num_tiles, 0);
        __syncwarp();
        if (ptx::elect_one()) {
            if (segment.num_tiles == 0) {
                ptx::barrier_arrive(barrier);
            } else {
                ptx::barrier_arrive_expect(barrier, Layout::kQueryBytes + Layout::kWeightBytes);
                load_query(barrier, segment.token);
            }
        }
        __syncwarp();
        queries.advance();
    }

    __device__ __forceinline__ void load_query(u32 barrier, u32 token) const {
#pragma unroll
        for (u32 g = 0; g < Layout::kTokenGroups; ++g) {
            const u32 to = stages.query(queries.stage) + g * Layout::kGroupColumns * Config::kHeadDim;
            ptx::tma_load_4d(&maps.q, barrier, to, 0, 0, token + g * Layout::kLaneTokens, 0);
        }
        ptx::tma_load(&maps.weights, barrier, stages.weights(queries.stage), 0, token);
    }

    __device__ __forceinline__ void load_tiles(Schedule& schedule, const MqaSegment& segment) {
#pragma unroll 1
        for (u32 tile = 0; tile < segment.num_tiles; ++tile, ring.advance()) {
            const u32 barrier = stages.full_barrier(ring.stage);
            u32 rows[kPages], pages[kPages];
            schedule.locate(rows, pages, segment, tile);  // for every tile, another warpgroup's too: it reads ahead
            if (Schedule::kLoaders > 1 && ring.stage % Schedule::kLoaders != loader) continue;  // another warpgroup's
            ptx::barrier_wait(stages.empty_barrier(ring.stage), ring.phase ^ 1);
            if (ptx::elect_one()) {
                ptx::barrier_arrive_expect(barrier, Layout::kTileBytes + Layout::kScaleBytes);
#pragma unroll
                for (u32 i = 0; i < kPages; ++i) {
                    const u32 tile_at = stages.tile(ring.stage) + i * (Layout::kTileBytes / kPages);
                    const u32 scales_at = stages.scales(ring.stage) + i * (Layout::kScaleBytes / kPages);
                    if (Schedule::kReadsOnce && (Schedule::kLoaders == 1 || schedule.fits_l2)) {
                        ptx::tma_load_3d_hint(&maps.kv, barrier, tile_at, 0, rows[i], pages[i], policy);
                        ptx::tma_load_hint(&maps.scale, barrier, scales_at, rows[i], pages[i], policy);
                    } else {  // no hint at all: one that says evict_normal costs 11 to 15 % (H200, pages)
                        ptx::tma_load_3d(&maps.kv, barrier, tile_at, 0, rows[i], pages[i]);
                        ptx::tma_load(&maps.scale, barrier, scales_at, rows[i], pages[i]);
                    }
                }
            }
            __syncwarp();
        }
    }
};

}  // namespace deep_gemm
