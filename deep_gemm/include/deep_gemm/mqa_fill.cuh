// Writes -inf beside the valid columns of every row, where the caller wants clean logits; the math warpgroups write the
// valid ones and nothing else. By the warps of the loading warpgroup that do not load: stores only, with no tie to the
// rings.
#pragma once

#include "deep_gemm/mqa_ptx.cuh"
#include "deep_gemm/mqa_types.cuh"

namespace deep_gemm {

template <class Config, class Schedule>
struct MqaFill {
    static constexpr u32 kFirst = 32 * Schedule::kLoaders, kThreads = 128 - kFirst;  // those behind the loading ones
    static constexpr u32 kBytes = Config::kFloatD ? 4 : 2, kVector = 16 / kBytes;
    static constexpr u32 kWord = Config::kFloatD ? 0xff800000u : 0xff80ff80u;

    const MqaParams& params;

    __device__ __forceinline__ void run(Schedule& schedule) const {
#pragma unroll 1
        for (u32 at = blockIdx.x; at < schedule.num_q_tiles; at += gridDim.x) {
            int low = 0, high = 0;
            schedule.bounds_of_tile(at, low, high);
#pragma unroll 1
            for (u32 t = 0; t < Config::kBlockQ; ++t) {
                const u32 token = at * Config::kBlockQ + t;
                if (token >= params.num_tokens) break;
                u8* row = static_cast<u8*>(params.out) + token * params.out_pitch * kBytes;
                const u32 first = __shfl_sync(0xffffffff, low, t), last = __shfl_sync(0xffffffff, high, t);
                fill(row, first);
                fill(row + i64(last) * kBytes, params.columns - last);
            }
        }
    }

   private:
    __device__ __forceinline__ static void fill_one(u8* at) {
        if constexpr (Config::kFloatD) {
            *reinterpret_cast<u32*>(at) = kWord;
        } else {
            *reinterpret_cast<u16*>(at) = static_cast<u16>(kWord);
        }
    }

    // Single elements up to a 16-byte boundary, whole vectors, and single elements again.
    __device__ __forceinline__ static void fill(u8* from, u32 count) {
        const u32 thread = threadIdx.x % 128 - kFirst, to_boundary = u32(-reinterpret_cast<u64>(from) % 16) / kBytes;
        const u32 head = min(count, to_boundary), vectors = (count - head) / kVector,
                  tail = count - head - vectors * kVector;
        if (thread < head) fill_one(from + thread * kBytes);
        from += head * kBytes;
#pragma unroll (Schedule::kLoaders > 1 ? 4 : 1)
        for (u32 at = thread; at < vectors; at += kThreads) ptx::store_global_words(from + u64(at) * 16, kWord);
        if (thread < tail) fill_one(from + u64(vectors) * 16 + thread * kBytes);
    }
};

}  // namespace deep_gemm
