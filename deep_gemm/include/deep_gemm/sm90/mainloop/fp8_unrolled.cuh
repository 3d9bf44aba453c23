// Main loop of the FP8 kernels with the ring's stages unrolled (Config::kLoop): one partial accumulator, one K step
// after the other.
//
// One step: wait for the stage; read its scales; a chain of four WGMMAs; wait for the chain; promote; give the stage
// back. Between the full barrier and the first WGMMA, and between WGMMAs, the tensor cores wait for whatever a warp
// does, so there is little:
//   - the stages' numbers are constants, and the descriptors of stage 0 come from a shuffle, which tells the compiler
//     that they are uniform: a descriptor is then one uniform addition (H200, tile 128x64: 17.9 -> 14.5 us; 128x96:
//     20.3 -> 19.0; 128x192: 870 -> 840 cycles a step);
//   - all scales of rows and blocks are read before the chain. Scales of columns are many (a load for every 8 columns):
//     they are read while it runs, where the assembler likes best, which is behind the first WGMMA. Behind the whole
//     chain they made 1D1D 12 to 15 % slower (H200, tile 128x128, 4096 x 4096 x 7168: 283 us, then 243), because a warp
//     that has given the tensor cores its last WGMMA has waited for most of the chain;
//   - nothing tests the next barrier, because the assembler may place the test's use before the promotion, where it
//     waits.
// A tile may begin and end at any stage: steps before the ring's stage 0 and after its last whole round are walked one
// by one. No branch lies between the stages of a round (H200: one for each stage, around those that a tile has not,
// made all tiles 3 to 27 % slower).
#pragma once

#include "deep_gemm/sm90/mainloop/pipeline.cuh"
#include "deep_gemm/sm90/mainloop/promotion.cuh"
#include "deep_gemm/sm90/mainloop/scales.cuh"

namespace deep_gemm {

template <class Config, class Wgmma, class Reader>
struct Fp8Unrolled {
    using Layout = GemmLayout<Config>;
    using StageRing = Ring<Config::kNumStages>;
    static constexpr u32 kStages = Config::kNumStages, kWaves = Layout::kWaves;
    static constexpr u32 kAccumulators = Layout::kAccumulators;
    static constexpr u32 kColumns = Layout::kColumns;
    static constexpr bool kVectorB = Layout::kVectorB;
    static constexpr bool kMayStraddle = !kVectorB && Layout::kBlocksOfGroup > 1;  // columns may meet two blocks
    static constexpr u32 kHeldColumns = kVectorB ? kColumns / 4 : 1;
    static_assert(!Layout::kSwap && Layout::kHasScales, "rows of D are rows of the multiplication");

    // Scales of one K step, as far as this thread needs them: of two rows a wave, and of B's blocks or of the columns
    // of its accumulators.
    struct StepScales {
        float row[kWaves][2], block[Layout::kBlocksOfGroup], column[kHeldColumns];
    };

    Pipeline<Config> stages;
    Reader reader;
    u32 rows, columns;              // descriptors of stage 0
    u32 row_offset, column_offset;  // of this thread's first scales in vectors of rows and of columns, in bytes

    __device__ __forceinline__ static u32 uniform(u32 value) { return __shfl_sync(0xffffffff, value, 0); }

    __device__ __forceinline__ Fp8Unrolled(const Pipeline<Config>& stages, u32 first)
        : stages(stages),
          reader(stages),
          rows(uniform(descriptor_low(stages.rows_tile(0) + Layout::row_of(first) * 128, 1))),
          columns(uniform(descriptor_low(stages.columns_tile(0) + Layout::column_of(first) * 128, 1))),
          row_offset(4 * thread_row(Layout::row_of(first))),
          column_offset(kVectorB ? threadIdx.x % 4 * 8 : 0) {
        asm volatile("" : "+r"(row_offset));  // computed here, not at every use
    }

    // Add `num_steps` K steps to `final`; `boundary` and `offset`: of ColumnScales. Returns bits that depend on the
    // last step's scales, for BufferTurns::end.
    __device__ __forceinline__ u32 accumulate(float (&final)[kWaves][kAccumulators], StageRing& ring, u32 num_steps,
                                              u32 boundary, u32 offset) {
#pragma unroll 1
        for (u32 done = 0; done < num_steps;) {
            u32 rounds = ring.stage == 0 ? (num_steps - done) / kStages : 0;
#pragma unroll 1
            for (; rounds > 0; --rounds, done += kStages, ring.phase ^= 1) {
                const Places places = find_places(done, offset);
                // Anew in each round: else the descriptors of all stages are computed once, and there are not as many
                // uniform registers.
                rows = uniform(rows), columns = uniform(columns);
#pragma unroll
                for (u32 stage = 0; stage < kStages; ++stage)
                    multiply_stage(final, stage, ring.phase, places, boundary);
            }
            if (done == num_steps) break;
            const u32 stage = uniform(ring.stage);
            multiply_stage(final, stage, ring.phase, find_places(done - stage, offset), boundary);
            ++done, ring.advance();
        }
        return bits_of(final);
    }

   private:
    // Shared addresses of this thread's first scales, as if stage 0 had the tile's K step `first`.
    struct Places {
        u32 rows, columns;
    };
    __device__ __forceinline__ Places find_places(u32 first, u32 offset) const {
        return {reader.base_a(first) + row_offset, uniform(reader.base_b(first) + offset) + column_offset};
    }

    // `stage` is a constant in whole rounds.
    __device__ __forceinline__ void multiply_stage(float (&final)[kWaves][kAccumulators], u32 stage, u32 phase,
                                                   const Places& places, u32 boundary) const {
        float partial[kColumns / 2];
        StepScales scales;
        u32 bits = 0;  // of everything read from the stage: see Pipeline::release
        ptx::barrier_wait(stages.full_barrier(stage), phase);
        read(scales, places.rows + stage * Reader::kPitchA, places.columns + stage * Reader::kPitchB);
#pragma unroll
        for (u32 wave = 0; wave < kWaves; ++wave) {
            const bool is_last = wave == kWaves - 1;
            multiply(partial, stage, wave);
            if constexpr (kVectorB) {
                if (wave == 0) read_columns(scales, places.columns + stage * Reader::kPitchB);
                promote_columns(final[wave], partial, scales, wave, bits, stage, is_last);
            } else {
                ptx::wgmma_wait<0>();
                fence_registers(partial);
                const Products scale = multiply_scales(scales, wave);
                bits |= scale.bits() | __float_as_uint(partial[0]);
                if (is_last) stages.release(stage, bits);
                add_blocks<kColumns, (kMayStraddle ? Layout::kScaleUnit : kColumns)>(final[wave], partial, scale.low,
                                                                                     scale.high, boundary);
            }
        }
    }

    // Wait for the chain, give the stage back with the last wave, promote. The stage's release waits for the scales,
    // not for their products, which would be made during the chain (H200: 1.02 times as long on average, 1.05 with
    // groups), nor for sums (1.03 to 1.09 times as long at K up to 2048). The table is in docs/kernels.md.
    __device__ __forceinline__ void promote_columns(float (&final)[kAccumulators], float (&partial)[kColumns / 2],
                                                    const StepScales& scales, u32 wave, u32& bits, u32 stage,
                                                    bool is_last) const {
        bits |= bits_of(scales, wave);
        ptx::wgmma_wait<0>();
        fence_registers(partial);
        if (is_last) stages.release(stage, bits | __float_as_uint(partial[0]));
#pragma unroll
        for (u32 i = 0; i < kColumns / 2; ++i) {
            const float scale = __fmul_rn(scales.row[wave][i % 4 / 2], scales.column[i / 4 * 2 + i % 2]);
            final[i] = __fmaf_rn(scale, partial[i], final[i]);
        }
    }

    __device__ __forceinline__ static void read(StepScales& scales, u32 from_rows, u32 from_columns) {
#pragma unroll
        for (u32 wave = 0; wave < kWaves; ++wave) {
            scales.row[wave][0] = ptx::load_shared(from_rows + 256 * wave);
            scales.row[wave][1] = ptx::load_shared(from_rows + 256 * wave + 32);
        }
        if constexpr (!kVectorB) {
#pragma unroll
            for (u32 block = 0; block < Layout::kBlocksOfGroup; ++block)
                scales.block[block] = ptx::load_shared(from_columns + block * Layout::kBlockStride);
        }
    }

    __device__ __forceinline__ static void read_columns(StepScales& scales, u32 from) {
#pragma unroll
        for (u32 g = 0; g < kHeldColumns / 2; ++g)
            ptx::load_shared_2(scales.column[2 * g], scales.column[2 * g + 1], from + 32 * g);
    }

    // Start partial = rows . columns over the K block in `stage`.
    __device__ __forceinline__ void multiply(float (&partial)[kColumns / 2], u32 stage, u32 wave) const {
        const u32 offset = stage * (Layout::kStageBytes / 16);
        const u32 from_rows = rows + offset + wave * (64 * 128 / 16), from_columns = columns + offset;
        fence_registers(partial);
        ptx::wgmma_fence();
        Wgmma::template multiply<false>(partial, make_descriptor(from_rows), make_descriptor(from_columns));
#pragma unroll
        for (u32 i = 1; i < 4; ++i)
            Wgmma::template multiply<true>(partial, make_descriptor(from_rows + 2 * i),
                                           make_descriptor(from_columns + 2 * i));
        ptx::wgmma_commit();
    }

    // Scales of this thread's rows times that of a block; columns from the warpgroup's boundary on take `high`.
    struct Products {
        float low[2], high[2];
        __device__ __forceinline__ u32 bits() const {
            const u32 first = __float_as_uint(low[0]) | __float_as_uint(low[1]);
            return kMayStraddle ? first | __float_as_uint(high[0]) | __float_as_uint(high[1]) : first;
        }
    };

    __device__ __forceinline__ static Products multiply_scales(const StepScales& scales, u32 wave) {
        const float first = scales.block[0], second = scales.block[kMayStraddle ? Layout::kBlocksOfGroup - 1 : 0];
        const float(&row)[2] = scales.row[wave];
        return {{__fmul_rn(row[0], first), __fmul_rn(row[1], first)},
                {__fmul_rn(row[0], second), __fmul_rn(row[1], second)}};
    }

    // Bits that depend on all scales of the last step. Not on a partial sum: as a value that lives on it would make the
    // assembler serialise the chains. With a vector of column scales, a sum for each load of them: the assembler
    // reorders the loads, so the last one does not stand for all.
    __device__ __forceinline__ static u32 bits_of(const float (&final)[kWaves][kAccumulators]) {
        u32 bits = 0;
#pragma unroll
        for (u32 wave = 0; wave < kWaves; ++wave) {  // either row, with the first block and with the last
            bits |= __float_as_uint(final[wave][0]) | __float_as_uint(final[wave][2]);
            bits |= __float_as_uint(final[wave][kAccumulators - 3]) | __float_as_uint(final[wave][kAccumulators - 1]);
        }
#pragma unroll
        for (u32 i = 3; kVectorB && i < kAccumulators; i += 4) bits |= __float_as_uint(final[kWaves - 1][i]);
        return bits;
    }

    // One value of each load of column scales, and the scales of a wave's rows.
    __device__ __forceinline__ static u32 bits_of(const StepScales& scales, u32 wave) {
        u32 bits = __float_as_uint(scales.row[wave][0]) | __float_as_uint(scales.row[wave][1]);
#pragma unroll
        for (u32 i = 0; i < kHeldColumns; i += 2) bits |= __float_as_uint(scales.column[i]);
        return bits;
    }
};

}  // namespace deep_gemm
