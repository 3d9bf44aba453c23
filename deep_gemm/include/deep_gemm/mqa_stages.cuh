// Two rings between the loading warps and the math warpgroups. Stages of K hold 64 rows and their scales; math
// warpgroup g takes the tiles g, g + G, g + 2G, ... of the CTA, so that each frees its own stages and runs out of step
// with the others: one multiplies while another reduces. Stages of q hold a tile of q, its weights and the segment to
// do with it; all math warpgroups read them.
// Each stage has a full barrier (one arrival and TMA's bytes) and an empty barrier (one arrival per math warp that
// reads it).
#pragma once

#include "deep_gemm/mqa_ptx.cuh"
#include "deep_gemm/mqa_types.cuh"
#include "deep_gemm/sm90/mainloop/pipeline.cuh"

namespace deep_gemm {

template <class Config>
struct MqaStages {
    using Layout = MqaLayout<Config>;

    u32 shared;  // base of the CTA's shared memory
    u32 zero;    // MqaParams::zero

    __device__ __forceinline__ u32 full_barrier(u32 stage) const {
        return shared + Layout::kOffsetBarriers + 8 * stage;
    }
    __device__ __forceinline__ u32 empty_barrier(u32 stage) const { return full_barrier(Config::kNumStages + stage); }
    __device__ __forceinline__ u32 query_full_barrier(u32 stage) const {
        return full_barrier(2 * Config::kNumStages + stage);
    }
    __device__ __forceinline__ u32 query_empty_barrier(u32 stage) const {
        return query_full_barrier(Layout::kQueryStages + stage);
    }
    __device__ __forceinline__ u32 query(u32 stage) const { return shared + stage * Layout::kQueryPitch; }
    __device__ __forceinline__ u32 tile(u32 stage) const {
        return shared + Layout::kOffsetTiles + stage * Layout::kTileBytes;
    }
    __device__ __forceinline__ u32 scales(u32 stage) const {
        return shared + Layout::kOffsetScales + stage * Layout::kScaleBytes;
    }
    __device__ __forceinline__ u32 weights(u32 stage) const {
        return shared + Layout::kOffsetWeights + stage * Layout::kWeightPitch;
    }
    __device__ __forceinline__ u32 segment(u32 stage) const {
        return shared + Layout::kOffsetSegments + stage * Layout::kSegmentPitch;
    }
    __device__ __forceinline__ u32 scratch() const { return shared + Layout::kOffsetScratch; }

    // By one warp. Unrolled, as in gemm.cuh.
    __device__ __forceinline__ void initialise() const {
        if (ptx::elect_one()) {
#pragma unroll
            for (u32 stage = 0; stage < Config::kNumStages; ++stage) {
                ptx::barrier_init(full_barrier(stage), Layout::kFullArrivals);
                ptx::barrier_init(empty_barrier(stage), Layout::kTileArrivals);
            }
#pragma unroll
            for (u32 stage = 0; stage < Layout::kQueryStages; ++stage) {
                ptx::barrier_init(query_full_barrier(stage), Layout::kFullArrivals);
                ptx::barrier_init(query_empty_barrier(stage), Layout::kQueryArrivals);
            }
            ptx::fence_async_proxy();
        }
        __syncwarp();
    }

    // The calling math warp has left a stage. `bits` are those of what it read with ordinary loads: the arrival's
    // address depends on them, because nothing else makes the hardware wait for a load before the arrival
    // (Pipeline::release). One lane arrives for the warp, so the memory model asks that all lanes have met before; the
    // warp barrier costs nothing here.
    __device__ __forceinline__ void release(u32 barrier, u32 bits) const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::barrier_arrive(barrier + (bits & zero));
    }

    // WGMMA descriptor of K-major rows of kHeadDim bytes at `address` (PTX ISA, "Matrix descriptor format"): the
    // swizzle is as wide as a row (layout 1, 2, 3: 128, 64, 32 bytes), so eight rows are 8 * kHeadDim bytes from the
    // next eight, and the leading offset is unused.
    __device__ __forceinline__ static u64 descriptor(u32 address) {
        constexpr u32 kLayout = Config::kHeadDim == 128 ? 1 : Config::kHeadDim == 64 ? 2 : 3;
        return (u64((kLayout << 30) | (8 * Config::kHeadDim / 16)) << 32) | descriptor_low(address, 1);
    }
};

}  // namespace deep_gemm
