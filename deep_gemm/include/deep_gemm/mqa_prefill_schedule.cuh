// The work of prefill: tiles of kBlockQ rows of q, each against the tiles of K between the least start and the greatest end of its rows.
// All (tile of q, tile of K) pairs, in this order, are divided evenly over the CTAs. Where a CTA's share begins follows from the starts
// and ends on the device, which every CTA adds up for itself: no launch before this one, no workspace, no CTA waits for another.
#pragma once

#include "deep_gemm/mqa_ptx.cuh"
#include "deep_gemm/mqa_types.cuh"

namespace deep_gemm {

template <class Config>
struct MqaPrefillSchedule {
    static constexpr u32 kWarps = Config::kThreads / 32;
    static_assert(kWarps + 3 <= MqaLayout<Config>::kScratchBytes / 4, "one word a warp, and the result");

    const MqaParams& params;
    u32 num_q_tiles;
    u32 q_tile = 0, skip = 0, remaining = 0;  // the next tile of q, tiles of K of it that are another CTA's, tiles of K left to this CTA

    __device__ __forceinline__ explicit MqaPrefillSchedule(const MqaParams& params) : params(params), num_q_tiles(ceil_div(params.num_tokens, Config::kBlockQ)) {}

    // Find this CTA's share. By all threads, once.
    __device__ __forceinline__ void prepare(u32 scratch) const {
        const u32 each = ceil_div(num_q_tiles, Config::kThreads), first = threadIdx.x * each, last = min(first + each, num_q_tiles);
        u32 sum = 0;
#pragma unroll 1
        for (u32 at = first; at < last; ++at) sum += tiles_of(at);
        u32 total;
        const u32 before = scan(sum, total, scratch);
        const u32 begin = u64(total) * blockIdx.x / gridDim.x, end = u64(total) * (blockIdx.x + 1) / gridDim.x;
        const u32 result = scratch + 4 * kWarps;
        if (begin == end) {
            if (threadIdx.x == 0) ptx::store_shared_word(result + 8, 0);
        } else if (before <= begin && begin < before + sum) {
            locate_begin(first, begin - before, end - begin, result);
        }
        __syncthreads();
    }

    // By the loading warp, after prepare.
    __device__ __forceinline__ void start(u32 scratch) {
        const u32 result = scratch + 4 * kWarps;
        q_tile = ptx::load_shared_word(result);
        skip = ptx::load_shared_word(result + 4);
        remaining = ptx::load_shared_word(result + 8);
    }

    __device__ __forceinline__ bool next(MqaSegment& segment) {
#pragma unroll 1
        while (remaining != 0 && q_tile < num_q_tiles) {
            u32 first, last;
            range_of_tile(q_tile, first, last, segment.low, segment.high);
            const u32 begin = first + skip;
            segment = {q_tile * Config::kBlockQ, begin * kMqaTile, min(last - begin, remaining), segment.low, segment.high};
            remaining -= segment.num_tiles;
            ++q_tile;
            skip = 0;
            if (segment.num_tiles != 0) return true;
        }
        return false;
    }

    __device__ __forceinline__ void locate(u32 (&rows)[1], u32 (&pages)[1], const MqaSegment& segment, u32 tile) const {
        rows[0] = segment.position + tile * kMqaTile;
        pages[0] = 0;
    }

    // Lane t gets the valid columns of token t of a tile of q.
    __device__ __forceinline__ void bounds_of_tile(u32 at, int& low, int& high) const {
        if (threadIdx.x % 32 < Config::kBlockQ) bounds_of(at * Config::kBlockQ + threadIdx.x % 32, low, high);
    }

   private:
    __device__ __forceinline__ void bounds_of(u32 token, int& low, int& high) const {
        low = high = 0;
        if (token >= params.num_tokens) return;
        const int num_kv = params.num_kv;
        low = min(max(ptx::load_index(params.first + token), 0), num_kv);
        high = min(max(ptx::load_index(params.second + token), low), num_kv);
        if (params.flags & kMqaCompressed) high = min(high, low + int(min(params.columns, params.num_kv - u32(low))));
    }

    // Tiles of K that a tile of q meets.
    __device__ __forceinline__ u32 tiles_of(u32 at) const {
        u32 first = ~0u, last = 0;
#pragma unroll
        for (u32 t = 0; t < Config::kBlockQ; ++t) {
            int low, high;
            bounds_of(at * Config::kBlockQ + t, low, high);
            if (low < high) {
                first = min(first, u32(low));
                last = max(last, u32(high));
            }
        }
        return last == 0 ? 0 : ceil_div(last, kMqaTile) - first / kMqaTile;
    }

    // The same by a whole warp, as a range; lane t keeps the bounds of token t.
    __device__ __forceinline__ void range_of_tile(u32 at, u32& first, u32& last, int& low, int& high) const {
        low = high = 0;
        bounds_of_tile(at, low, high);
        first = __reduce_min_sync(0xffffffff, low < high ? u32(low) : ~0u);
        last = ceil_div(__reduce_max_sync(0xffffffff, low < high ? u32(high) : 0), kMqaTile);
        first = last == 0 ? 0 : first / kMqaTile;
    }

    // The sum over the threads before this one, and over all.
    __device__ __forceinline__ static u32 scan(u32 value, u32& total, u32 scratch) {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        u32 inclusive = value;
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            const u32 other = __shfl_up_sync(0xffffffff, inclusive, step);
            if (lane >= step) inclusive += other;
        }
        if (lane == 31) ptx::store_shared_word(scratch + 4 * warp, inclusive);
        __syncthreads();
        u32 before = 0;
        total = 0;
#pragma unroll
        for (u32 w = 0; w < kWarps; ++w) {
            const u32 sum = ptx::load_shared_word(scratch + 4 * w);
            if (w < warp) before += sum;
            total += sum;
        }
        return before + inclusive - value;
    }

    __device__ __forceinline__ void locate_begin(u32 at, u32 left, u32 count, u32 result) const {
#pragma unroll 1
        while (true) {
            const u32 here = tiles_of(at);
            if (left < here) break;
            left -= here;
            ++at;
        }
        ptx::store_shared_word(result, at);
        ptx::store_shared_word(result + 4, left);
        ptx::store_shared_word(result + 8, count);
    }
};

}  // namespace deep_gemm
