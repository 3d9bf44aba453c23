// Brings the tokens that chose this GPU's experts from the memory of the GPUs that have them, to the rows of a grouped
// product, with their scales in its MN-major layout; and says where each expert's rows end.
//
// A warp has a token and reads it once, whatever number of its choices are of these experts.
#pragma once

#include "deep_gemm/mega_rows.cuh"

namespace deep_gemm {

template <class Config>
struct MegaPull {
    static constexpr u32 kThreads = 256, kCtasPerSm = 4, kWarps = kThreads / 32;
    static constexpr u32 kBlock = 128;  // elements of a scale

    const i64* buffers;    // [ranks]: addresses of the GPUs' buffers
    const i64* experts;    // [ranks, tokens, top_k]
    const int* positions;  // [ranks, tokens, top_k]
    const int* counts;     // [local]: of this GPU's experts
    u8* rows;              // [.., hidden]
    float* scales;         // [.., hidden / kBlock], MN-major
    int* ends;             // [local]
    i64 x_offset, scale_offset;  // bytes: of tokens' FP8 numbers and scales in a buffer
    i64 scale_pitch;             // elements of `scales`
    u32 ranks, tokens, top_k, hidden;
    u32 first_token;          // the first of `tokens` in a buffer
    u32 first_expert, local;  // this GPU's experts
    u32 alignment;

    __device__ __forceinline__ void write_ends() const {
        for (u32 expert = threadIdx.x / 32; expert < local; expert += kWarps) {
            const u32 first = first_row_of(counts, expert, alignment);
            if (threadIdx.x % 32 == 0) ends[expert] = int(first + u32(counts[expert]));
        }
    }

    // The row of each lane's choice; not of this GPU's experts: `is_own` is false.
    __device__ __forceinline__ u32 find_row(u32 token, bool& is_own) const {
        const u32 lane = threadIdx.x % 32, choice = token * top_k + lane;
        const i64 expert = lane < top_k ? experts[choice] - i64(first_expert) : -1;
        is_own = expert >= 0 && expert < i64(local);
        u32 row = is_own ? u32(positions[choice]) : 0;
        for (u32 lanes = __ballot_sync(0xFFFFFFFF, is_own); lanes != 0; lanes &= lanes - 1) {
            const u32 owner = __ffs(lanes) - 1;
            const u32 first = first_row_of(counts, __shfl_sync(0xFFFFFFFF, u32(expert), owner), alignment);
            if (lane == owner) row += first;
        }
        return row;
    }

    __device__ __forceinline__ void copy(u32 token, u32 row, u32 owners) const {
        const u32 lane = threadIdx.x % 32, rank = token / tokens, place = first_token + token % tokens;
        const u8* buffer = reinterpret_cast<const u8*>(buffers[rank]);
        const uint4* x = reinterpret_cast<const uint4*>(buffer + x_offset + i64(place) * hidden);
        const u32 blocks = hidden / kBlock;
        const float* scale = reinterpret_cast<const float*>(buffer + scale_offset) + i64(place) * blocks;
        for (u32 i = lane; i < align_up(hidden / 16, 32); i += 32) {
            const bool is_there = i < hidden / 16;
            const uint4 chunk = is_there ? x[i] : uint4{0, 0, 0, 0};
            for (u32 lanes = owners; lanes != 0; lanes &= lanes - 1) {
                const u32 target = __shfl_sync(0xFFFFFFFF, row, __ffs(lanes) - 1);
                if (is_there) reinterpret_cast<uint4*>(rows + i64(target) * hidden)[i] = chunk;
            }
        }
        for (u32 i = lane; i < align_up(blocks, 32); i += 32) {
            const float own = i < blocks ? scale[i] : 0.0f;
            for (u32 lanes = owners; lanes != 0; lanes &= lanes - 1) {
                const u32 target = __shfl_sync(0xFFFFFFFF, row, __ffs(lanes) - 1);
                if (i < blocks) scales[i * scale_pitch + target] = own;
            }
        }
    }

    __device__ __forceinline__ void run() const {
        if (blockIdx.x == 0) write_ends();
        for (u32 token = blockIdx.x * kWarps + threadIdx.x / 32; token < ranks * tokens; token += gridDim.x * kWarps) {
            bool is_own;
            const u32 row = find_row(token, is_own), owners = __ballot_sync(0xFFFFFFFF, is_own);
            if (owners != 0) copy(token, row, owners);
        }
    }
};

}  // namespace deep_gemm
