// Main loop of the FP8 kernels, chosen by the tile (kPipelined): per 128 of K a chain of four WGMMAs into a fresh
// partial accumulator, which is then promoted into the FP32 accumulator with its scales (promotion.cuh).
#pragma once

#include "deep_gemm/sm90/mainloop/pipeline.cuh"
#include "deep_gemm/sm90/mainloop/promotion.cuh"
#include "deep_gemm/sm90/mainloop/scales.cuh"

namespace deep_gemm {

template <class Config, class Wgmma, class Reader>
struct Fp8Mainloop {
    using Layout = GemmLayout<Config>;
    using Stages = Pipeline<Config>;
    using Scales = WaveScales<Config>;
    using StageRing = Ring<Config::kNumStages>;
    static constexpr u32 kAccumulators = Layout::kAccumulators;
    // A warp barrier behind each chain of WGMMAs, over which the assembler moves no load of scales, so that what is
    // computed from them does not delay the chain's last WGMMAs. Share of the time without it (H100, two runs):
    // 128x144 0.87 to 0.94, 128x192 0.90 to 1.00, 128x136 0.92 to 1.00, 64x144 0.95 to 1.00, 128x64 to 128x96 0.98 to
    // 0.99, 128x112 and 128x128 0.98 to 1.01, 256x112 0.99. Others lose: 128x160 1.04, 256x64 1.03 to 1.05, tiles of 64
    // rows and up to 136 columns 1.00 to 1.03.
    static constexpr bool kSettles =
        Config::kRecipe == Recipe::k1D2D && !Layout::kSwap &&
        (Layout::kMathGroups == 2 ? Layout::kColumns != 160 && (Layout::kWaves == 1 || Layout::kColumns > 64)
                                  : Layout::kColumns == 144);

    Stages stages;
    Reader reader;
    // Row of this warpgroup in the tile, or column: GemmLayout::row_of, which is written out here, because with the
    // call the assembler orders the instructions of some kernels otherwise.
    u32 first;

    __device__ __forceinline__ Fp8Mainloop(const Stages& stages, u32 first)
        : stages(stages), reader(stages), first(first) {}

    // Add `num_steps` K steps to `final`; `boundary` and `offset`: of ColumnScales. Returns the bits of the last step's
    // scales, for BufferTurns::end.
    __device__ __forceinline__ u32 accumulate(float (&final)[Layout::kWaves][kAccumulators], StageRing& ring,
                                              u32 num_steps, u32 boundary, u32 offset) {
        if constexpr (Config::kPipelined) {
            return accumulate_pipelined(final[0], ring, num_steps, boundary, offset);
        } else {
            return accumulate_in_turn(final, ring, num_steps, boundary, offset);
        }
    }

   private:
    // Start partial = rows . columns over the K block in `stage`, beginning at row `first_row` of the tile: a chain of
    // four WGMMAs of 32 elements of K each.
    __device__ __forceinline__ void multiply(float (&partial)[kAccumulators], u32 stage, u32 first_row) const {
        const u32 rows = descriptor_low(stages.rows_tile(0) + first_row * 128, 1) + stage * (Layout::kStageBytes / 16);
        const u32 columns = descriptor_low(stages.columns_tile(0) + Layout::column_of(first) * 128, 1) +
                            stage * (Layout::kStageBytes / 16);
        fence_registers(partial);
        ptx::wgmma_fence();
        Wgmma::template multiply<false>(partial, make_descriptor(rows), make_descriptor(columns));
#pragma unroll
        for (u32 i = 1; i < 4; ++i)
            Wgmma::template multiply<true>(partial, make_descriptor(rows + 2 * i), make_descriptor(columns + 2 * i));
        ptx::wgmma_commit();
        if constexpr (kSettles) __syncwarp();
    }

    // Start reading the scales of one wave; those of the columns with the first.
    __device__ __forceinline__ void read(Scales& scale, u32 step, u32 stage, u32 wave, u32 offset) const {
        const u32 address_a = reader.address_a(step, stage), address_b = reader.address_b(step, stage) + offset;
        if (wave == 0) scale.read_columns(address_a, address_b);
        scale.read_rows(address_a, address_b, thread_row((Layout::kBeside ? 0 : first) + 64 * wave));
    }

    // Scales were read after the last instruction that a warp executes together, so one lane may not yet speak for all.
    __device__ __forceinline__ void release_late(u32 stage, u32 bits) const {
        __syncwarp();
        stages.release(stage, bits);
    }

    // One K block after the other, wave by wave; the other warpgroup's WGMMAs run while this one promotes.
    __device__ __forceinline__ u32 accumulate_in_turn(float (&final)[Layout::kWaves][kAccumulators], StageRing& ring,
                                                      u32 num_steps, u32 boundary, u32 offset) {
        float partial[kAccumulators];
        bool full = false;
        u32 bits = 0;  // of all scales read for this step
#pragma unroll 1
        for (u32 step = 0; step < num_steps; ++step) {
            if (!full) ptx::barrier_wait(stages.full_barrier(ring.stage), ring.phase);
            const u32 stage = ring.stage;
            ring.advance();
            Scales scale;
            bits = 0;
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
                constexpr u32 kLast = Layout::kWaves - 1;
                multiply(partial, stage, (Layout::kBeside ? 0 : first) + 64 * wave);
                if (wave == 0) reader.advance(step);
                read(scale, step, stage, wave, offset);
                // Off the path between multiplications.
                if (wave == kLast) full = ptx::barrier_test(stages.full_barrier(ring.stage), ring.phase);
                ptx::wgmma_wait<0>();
                fence_registers(partial);
                bits |= scale.bits();
                if (wave == kLast && !Scales::kLate) stages.release(stage, bits);
                bits |= scale.promote_wave(final[wave], partial, boundary);
                if (wave == kLast && Scales::kLate) release_late(stage, bits);
            }
            reader.finish(step, num_steps, bits);
        }
        return bits;
    }

    // Two K blocks in flight: the WGMMAs of one run while this warpgroup promotes the other. No branch lies between a
    // multiplication and its wait, because the compiler serialises WGMMAs across one; so the last blocks are peeled
    // off.
    __device__ __forceinline__ u32 accumulate_pipelined(float (&final)[kAccumulators], StageRing& ring, u32 num_steps,
                                                        u32 boundary, u32 offset) {
        float even[kAccumulators], odd[kAccumulators];
        Scales even_scale, odd_scale;
        StageRing ahead = ring;
        if (num_steps == 0) return 0;
        start(even, even_scale, ahead, 0, offset);
        u32 step = 0;
#pragma unroll 1
        for (; step + 2 < num_steps; step += 2) {
            start(odd, odd_scale, ahead, step + 1, offset);
            finish<1>(final, even, even_scale, ring, boundary, step, num_steps);
            start(even, even_scale, ahead, step + 2, offset);
            finish<1>(final, odd, odd_scale, ring, boundary, step + 1, num_steps);
        }
        if (step + 1 < num_steps) {
            start(odd, odd_scale, ahead, step + 1, offset);
            finish<1>(final, even, even_scale, ring, boundary, step, num_steps);
            finish<0>(final, odd, odd_scale, ring, boundary, step + 1, num_steps);
            return odd_scale.bits();
        }
        finish<0>(final, even, even_scale, ring, boundary, step, num_steps);
        return even_scale.bits();
    }

    // Wait for the next stage, start its multiplication, and start reading the scales of K step `step`.
    __device__ __forceinline__ void start(float (&partial)[kAccumulators], Scales& scale, StageRing& ahead, u32 step,
                                          u32 offset) {
        ptx::barrier_wait(stages.full_barrier(ahead.stage), ahead.phase);
        multiply(partial, ahead.stage, (Layout::kBeside ? 0 : first));
        reader.advance(step);
        read(scale, step, ahead.stage, 0, offset);
        ahead.advance();
    }

    // Wait until at most kPending multiplications are in flight, then release and promote the oldest of them, that of K
    // step `step`.
    template <u32 kPending>
    __device__ __forceinline__ void finish(float (&final)[kAccumulators], float (&partial)[kAccumulators],
                                           const Scales& scale, StageRing& ring, u32 boundary, u32 step,
                                           u32 num_steps) {
        ptx::wgmma_wait<kPending>();
        fence_registers(partial);
        if constexpr (!Scales::kLate) stages.release(ring.stage, scale.bits());
        const u32 late_bits = scale.promote_wave(final, partial, boundary);
        if constexpr (Scales::kLate) release_late(ring.stage, scale.bits() | late_bits);
        reader.finish(step, num_steps, scale.bits() | late_bits);
        ring.advance();
    }
};

}  // namespace deep_gemm
