// Counts the tokens that chose each expert, and says which of them a choice is, in the order of the choices.
//
// A CTA has an expert, a warp of it a share of the choices: it counts them, adds up what the warps before it have, and
// goes through them once more. Choices of no expert that there is are never counted and keep what memory held.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

template <class Config>
struct MegaPlace {
    static constexpr u32 kThreads = 512, kCtasPerSm = 2, kWarps = kThreads / 32, kUnroll = 4;

    const i64* experts;  // [choices]
    int* positions;      // [choices]: among those of the expert
    int* counts;         // [gridDim.x]: of each expert
    u32 choices;

    // Calls visit(choice, whether it is of this CTA's expert) for 32 choices at a time, those of a warp's lanes.
    template <class Visit>
    __device__ __forceinline__ void walk(u32 first, u32 last, Visit visit) const {
        const u32 lane = threadIdx.x % 32;
#pragma unroll 1
        for (u32 base = first; base < last; base += 32 * kUnroll) {
            bool is_own[kUnroll];
#pragma unroll
            for (u32 i = 0; i < kUnroll; ++i) {
                const u32 choice = base + 32 * i + lane;
                is_own[i] = choice < last && experts[choice] == i64(blockIdx.x);
            }
#pragma unroll
            for (u32 i = 0; i < kUnroll; ++i) visit(base + 32 * i + lane, is_own[i]);
        }
    }

    __device__ __forceinline__ void run() const {
        __shared__ u32 counted[kWarps];
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const u32 share = align_up(ceil_div(choices, kWarps), 32), first = warp * share;
        const u32 last = first + share < choices ? first + share : choices;
        u32 count = 0;
        walk(first, last, [&](u32, bool is_own) { count += __popc(__ballot_sync(0xFFFFFFFF, is_own)); });
        if (lane == 0) counted[warp] = count;
        __syncthreads();
        u32 before = 0, all = 0;
#pragma unroll
        for (u32 i = 0; i < kWarps; ++i) {
            before += i < warp ? counted[i] : 0;
            all += counted[i];
        }
        if (threadIdx.x == 0) counts[blockIdx.x] = int(all);
        walk(first, last, [&](u32 choice, bool is_own) {
            const u32 lanes = __ballot_sync(0xFFFFFFFF, is_own);
            if (is_own) positions[choice] = int(before + __popc(lanes & ((1u << lane) - 1)));
            before += __popc(lanes);
        });
    }
};

}  // namespace deep_gemm
