// The ring of stages between the loading warp and the math warpgroups, as seen by both: addresses, barriers, WGMMA
// descriptors. Stage s has a full barrier (the producer's arrival, the arrivals of copied block scales, and the bytes
// that TMA completes) and an empty barrier (one arrival per math warp of every CTA that a stage is shared with, because
// multicast writes into the peer's ring too).
#pragma once

#include "deep_gemm/sm90/gemm_layout.cuh"
#include "deep_gemm/sm90/ptx/ptx.cuh"
#include "deep_gemm/sm90/mainloop/ring.cuh"

namespace deep_gemm {

// WGMMA matrix descriptor of a tile with 128-byte swizzle (PTX ISA, "Matrix descriptor format"): low word address / 16
// and the leading offset / 16; high word the stride of 8-line atoms, 1,024 / 16, and layout 1. K-major: lines are rows,
// the leading offset is unused. MN-major: lines are K, an atom holds 64 elements, and the leading offset leads to the
// next 64. Steps along K or to another stage add bytes / 16 to the low word. In a cluster an address carries its CTA's
// rank above its 18 bits, which would run into the leading offset.
__device__ __forceinline__ u32 descriptor_low(u32 address, u32 leading) {
    return (leading << 16) | ((address & 0x3ffff) >> 4);
}
__device__ __forceinline__ u64 make_descriptor(u32 low) { return (u64((1u << 30) | (1024 / 16)) << 32) | low; }

// Keep the compiler from moving accumulator reads and writes across an asynchronous multiplication.
template <u32 kCount>
__device__ __forceinline__ void fence_registers(float (&values)[kCount]) {
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// First of the two rows (8 apart) that this thread holds in a 64-row accumulator which starts at `row`.
__device__ __forceinline__ u32 thread_row(u32 row) { return row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4; }

template <class Config>
struct Pipeline {
    using Layout = GemmLayout<Config>;

    u32 shared;  // base of the CTA's shared memory
    u32 zero;    // Params::zero

    __device__ __forceinline__ u32 full_barrier(u32 stage) const {
        return shared + Layout::kOffsetBarriers + 8 * stage;
    }
    __device__ __forceinline__ u32 empty_barrier(u32 stage) const { return full_barrier(Config::kNumStages + stage); }
    __device__ __forceinline__ u32 stage_a(u32 stage) const {
        return shared + Layout::kOffsetStages + stage * Layout::kStageBytes;
    }
    __device__ __forceinline__ u32 stage_b(u32 stage) const { return stage_a(stage) + Layout::kBytesA; }
    __device__ __forceinline__ u32 scales_a(u32 stage) const {
        return shared + Layout::kOffsetStageScales + stage * Layout::kStageScaleBytes;
    }
    __device__ __forceinline__ u32 scales_b(u32 stage) const { return scales_a(stage) + Layout::kScaleBytesA; }
    __device__ __forceinline__ u32 rows_tile(u32 stage) const {
        return Layout::kSwap ? stage_b(stage) : stage_a(stage);
    }
    __device__ __forceinline__ u32 columns_tile(u32 stage) const {
        return Layout::kSwap ? stage_a(stage) : stage_b(stage);
    }

    // Tell the producers that load this stage that the calling math warp has left it. `bits` are those of everything
    // that the thread read from the stage with ordinary loads: the arrival's address depends on them (they are masked
    // to zero), so it cannot be issued while a load is still under way. Shared memory is so busy that a load can
    // outlast the stage's refill (seen on an H200 with 1D1D, tile 128x112: column scales of a later step in a few
    // warps), and neither the arrival's release nor a warp barrier makes the hardware wait for it.
    __device__ __forceinline__ void release(u32 stage, u32 bits) const {
        const u32 lane = threadIdx.x % 32, barrier = empty_barrier(stage) + (bits & zero);
        if constexpr (Layout::kMulticast) {
            if (lane < Layout::kClusterSize) ptx::barrier_arrive_remote(barrier, lane);
        } else {
            ptx::barrier_arrive_if(barrier, lane == 0);
        }
    }
};

}  // namespace deep_gemm
