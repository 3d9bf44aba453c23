// Main loop of the BF16 kernels: WGMMA accumulates over all of K in its FP32 registers, 16 of K at a time, one stage
// behind in flight.
#pragma once

#include "deep_gemm/sm90/mainloop/pipeline.cuh"

namespace deep_gemm {

template <class Config, class Wgmma>
struct Bf16Mainloop {
    using Layout = GemmLayout<Config>;
    using StageRing = Ring<Config::kNumStages>;
    static constexpr bool kMnMajorRows = Layout::kSwap ? Config::kMnMajorB : Config::kMnMajorA;
    static constexpr bool kMnMajorColumns = Layout::kSwap ? Config::kMnMajorA : Config::kMnMajorB;
    static constexpr u32 kBoxBytes = 64 * 128;  // 64 elements along M or N by 64 of K

    Pipeline<Config> stages;
    u32 row;  // first row of this warpgroup in the tile

    __device__ __forceinline__ Bf16Mainloop(const Pipeline<Config>& stages, u32 row) : stages(stages), row(row) {}

    // Add `num_steps` K steps to `final`, which holds numbers already.
    __device__ __forceinline__ void accumulate(float (&final)[Layout::kWaves][Layout::kAccumulators], StageRing& ring,
                                               u32 num_steps, u32, u32) {
        u32 last = 0;
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) fence_registers(final[wave]);
#pragma unroll 1
        for (u32 step = 0; step < num_steps; ++step, ring.advance()) {
            ptx::barrier_wait(stages.full_barrier(ring.stage), ring.phase);
            multiply(final, ring.stage);
            ptx::wgmma_wait<1>();  // the multiplications of the step before have read their stage
            if (step > 0) stages.release(last, 0);
            last = ring.stage;
        }
        ptx::wgmma_wait<0>();
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) fence_registers(final[wave]);
        if (num_steps > 0) stages.release(last, 0);
    }

   private:
    // Bytes / 16 from one 16 of K to the next, and the descriptor of a tile from its row `first_row`.
    template <bool kMnMajor>
    __device__ __forceinline__ static constexpr u32 step_of() { return kMnMajor ? 16 * 128 / 16 : 32 / 16; }
    template <bool kMnMajor>
    __device__ __forceinline__ static u32 descriptor(u32 tile, u32 first_row) {
        return kMnMajor ? descriptor_low(tile + first_row / 64 * kBoxBytes, kBoxBytes / 16)
                        : descriptor_low(tile + first_row * 128, 1);
    }

    __device__ __forceinline__ void multiply(float (&final)[Layout::kWaves][Layout::kAccumulators], u32 stage) const {
        const u32 offset = stage * (Layout::kStageBytes / 16);
        const u32 columns = descriptor<kMnMajorColumns>(stages.columns_tile(0), 0) + offset;
        ptx::wgmma_fence();
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
                const u32 rows = descriptor<kMnMajorRows>(stages.rows_tile(0), row + 64 * wave) + offset;
                Wgmma::template multiply<true>(final[wave], make_descriptor(rows + i * step_of<kMnMajorRows>()),
                                               make_descriptor(columns + i * step_of<kMnMajorColumns>()));
            }
        }
        ptx::wgmma_commit();
    }
};

}  // namespace deep_gemm
