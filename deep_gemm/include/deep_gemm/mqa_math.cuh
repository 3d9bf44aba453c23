// A math warpgroup of the index logits: S = K_tile . q_tile^T by WGMMA (64 rows of K, columns are tokens x heads), then
// for each row and token the sum over heads of relu(S) * weight, times the scale of the row of K.
//
// Per element of S two instructions: x + |x| = 2 relu(x) exactly (products of finite FP8 numbers are finite, NaN stays
// NaN), and a multiply-add with half the weight. Columns are ordered so that all heads of a token meet in one thread
// (mqa_types.cuh), in the order of heads.
#pragma once

#include "deep_gemm/mqa_stages.cuh"

namespace deep_gemm {

template <class Config, class Wgmma>
struct MqaMath {
    using Layout = MqaLayout<Config>;
    static constexpr u32 kGroups = Layout::kTokenGroups, kLanes = Layout::kLaneTokens;
    static constexpr u32 kValues = kLanes == 4 ? 2 : 1;  // rows of K that a thread stores of each token
    static constexpr u32 kBytes = Config::kFloatD ? 4 : 2;
    // Of a descriptor, from one chain's columns to the next.
    static constexpr u32 kChainStep = Config::kColumns * Config::kHeadDim / 16;
    using Chain = float[Layout::kAccumulators];
    using Weights = float[Layout::kWeights];

    const MqaParams& params;
    MqaStages<Config> stages;
    u32 group;  // of this warpgroup
    u32 stage, phase;  // where this warpgroup's next tile will lie
    u32 next;          // tiles from the segment's first to this warpgroup's next

    __device__ __forceinline__ MqaMath(const MqaParams& params, const MqaStages<Config>& stages, u32 group)
        : params(params), stages(stages), group(group), stage(group), phase(0), next(group) {}

    __device__ __forceinline__ void run() {
        Ring<Layout::kQueryStages> segment;
#pragma unroll 1
        while (true) {
            ptx::barrier_wait(stages.query_full_barrier(segment.stage), segment.phase);
            const u32 num_tiles = ptx::load_shared_word(stages.segment(segment.stage) + 8);
            if (num_tiles == 0) break;
            if (next < num_tiles) do_segment(segment.stage, num_tiles);
            next -= num_tiles;
            // A lane that comes late to a segment without tiles for this warpgroup must not miss its phase.
            __syncwarp();
            stages.release(stages.query_empty_barrier(segment.stage), 0);  // all that was read has been used
            segment.advance();
        }
    }

   private:
    // Where this thread stands in the rows of its tokens: its position less the first valid one, the number of valid
    // ones, and where it stores.
    struct Rows {
        u32 at[kGroups], count[kGroups];
        u8* out[kGroups];

        __device__ __forceinline__ void advance(u32 positions) {
#pragma unroll
            for (u32 g = 0; g < kGroups; ++g) {
                at[g] += positions;
                out[g] += positions * kBytes;
            }
        }
    };

    __device__ __forceinline__ static u32 token_of(u32 token_group) {
        return token_group * kLanes + threadIdx.x % kLanes;
    }

    // `row` is this thread's first in a tile.
    __device__ __forceinline__ void load_rows(Rows& rows, u32 segment, u32 row) const {
        const u32 token = ptx::load_shared_word(segment),
                  position = ptx::load_shared_word(segment + 4) + next * kMqaTile + row;
#pragma unroll
        for (u32 g = 0; g < kGroups; ++g) {
            u32 low, high;
            ptx::load_shared_pair(low, high, segment + 16 + 8 * token_of(g));
            rows.at[g] = position - low;
            // One of the two lanes that hold the same value stores it.
            rows.count[g] = kLanes == 1 && threadIdx.x % 2 != 0 ? 0 : high - low;
            const i64 column = i64(position) - (params.flags & kMqaCompressed ? low : 0);
            rows.out[g] = static_cast<u8*>(params.out) + ((token + token_of(g)) * params.out_pitch + column) * kBytes;
        }
    }

    // Halves of the weights of this thread's columns, in pairs of heads.
    __device__ __forceinline__ void load_weights(Weights& weights, u32 from) const {
#pragma unroll
        for (u32 pair = 0; pair < Layout::kWeights / 2; ++pair) {
            const u32 in_group = pair % Layout::kGroupPairs * 4 + threadIdx.x % 4;
            const u32 head = in_group / kLanes * 2, token = token_of(pair / Layout::kGroupPairs);
            ptx::load_shared_2(weights[2 * pair], weights[2 * pair + 1], from + (token * Config::kHeads + head) * 4);
            weights[2 * pair] *= 0.5f;
            weights[2 * pair + 1] *= 0.5f;
        }
    }

    // Start S = rows . columns; both descriptors step along K by 32 bytes.
    __device__ __forceinline__ static void multiply(Chain& s, u64 rows, u64 columns) {
        fence_registers(s);
        ptx::wgmma_fence();
        Wgmma::template multiply<false>(s, rows, columns);
#pragma unroll
        for (u32 i = 1; i < Config::kHeadDim / 32; ++i)
            Wgmma::template multiply<true>(s, rows + 2 * i, columns + 2 * i);
        ptx::wgmma_commit();
    }

    __device__ __forceinline__ static void reduce(float (&sums)[kGroups][2], const Chain& s, const Weights& weights,
                                                  u32 chain) {
#pragma unroll
        for (u32 i = 0; i < Layout::kAccumulators; ++i) {
            const u32 pair = chain * (Config::kColumns / 8) + i / 4;
            float& sum = sums[pair / Layout::kGroupPairs][i / 2 % 2];
            sum = __fmaf_rn(__fadd_rn(s[i], fabsf(s[i])), weights[2 * pair + i % 2], sum);
        }
    }

    // Sums over the lanes that share a token. With two or four of them each lane ends with one of the two rows: kept in
    // sums[0].
    __device__ __forceinline__ static void exchange(float (&sums)[2]) {
        if constexpr (kLanes < 4) {
            const bool high = threadIdx.x & 2;
            const float given = high ? sums[0] : sums[1], kept = high ? sums[1] : sums[0];
            sums[0] = __fadd_rn(kept, __shfl_xor_sync(0xffffffff, given, 2));
        }
        if constexpr (kLanes == 1) sums[0] = __fadd_rn(sums[0], __shfl_xor_sync(0xffffffff, sums[0], 1));
    }

    // Without a branch: chains are in flight.
    __device__ __forceinline__ static void store(const Rows& rows, const float (&values)[kGroups][2]) {
#pragma unroll
        for (u32 g = 0; g < kGroups; ++g) {
#pragma unroll
            for (u32 v = 0; v < kValues; ++v) {
                const bool valid = rows.at[g] + 8 * v < rows.count[g];
                if constexpr (Config::kFloatD) {
                    ptx::store_global_if(valid, rows.out[g] + 8 * v * kBytes, values[g][v]);
                } else {
                    ptx::store_global_if(valid, rows.out[g] + 8 * v * kBytes,
                                         static_cast<u16>(ptx::pack_bf16(values[g][v], 0.0f)));
                }
            }
        }
    }

    __device__ __forceinline__ void do_segment(u32 query_stage, u32 num_tiles) {
        const u32 segment = stages.segment(query_stage),
                  row = thread_row(0) + (kValues == 1 ? threadIdx.x % 4 / 2 * 8 : 0);
        const u64 columns = MqaStages<Config>::descriptor(stages.query(query_stage));
        Weights weights;
        load_weights(weights, stages.weights(query_stage));
        Rows rows;
        load_rows(rows, segment, row);
#pragma unroll 1
        for (; next < num_tiles; next += Layout::kMathGroups) do_tile(rows, weights, columns, row);
    }

    __device__ __forceinline__ void load_scales(float (&scales)[2], u32 row) const {
#pragma unroll
        for (u32 v = 0; v < kValues; ++v) scales[v] = ptx::load_shared(stages.scales(stage) + (row + 8 * v) * 4);
    }

    __device__ __forceinline__ u64 rows_descriptor() const { return MqaStages<Config>::descriptor(stages.tile(stage)); }

    // One chain after the other: the other warpgroups' run while this one reduces.
    __device__ __forceinline__ void do_tile(Rows& rows, const Weights& weights, u64 columns, u32 row) {
        float values[kGroups][2] = {}, scales[2];
        Chain s;
        ptx::barrier_wait(stages.full_barrier(stage), phase);
#pragma unroll
        for (u32 chain = 0; chain < Layout::kChains; ++chain) {
            multiply(s, rows_descriptor(), columns + chain * kChainStep);
            if (chain == 0) load_scales(scales, row);
            ptx::wgmma_wait<0>();
            fence_registers(s);
            if (chain == Layout::kChains - 1) stages.release(stages.empty_barrier(stage), bits_of(scales));
            reduce(values, s, weights, chain);
        }
        advance_stage();
        finish_tile(rows, values, scales);
    }

    __device__ __forceinline__ void finish_tile(Rows& rows, float (&values)[kGroups][2],
                                                const float (&scales)[2]) const {
#pragma unroll
        for (u32 g = 0; g < kGroups; ++g) {
            exchange(values[g]);
#pragma unroll
            for (u32 v = 0; v < kValues; ++v) values[g][v] *= scales[v];
        }
        store(rows, values);
        rows.advance(Layout::kMathGroups * kMqaTile);
    }

    __device__ __forceinline__ static u32 bits_of(const float (&scales)[2]) {
        u32 bits = 0;
#pragma unroll
        for (u32 v = 0; v < kValues; ++v) bits |= __float_as_uint(scales[v]);
        return bits;
    }

    __device__ __forceinline__ void advance_stage() {
        stage += Layout::kMathGroups;
        if (stage >= Config::kNumStages) {
            stage -= Config::kNumStages;
            phase ^= 1;
        }
    }
};

}  // namespace deep_gemm
