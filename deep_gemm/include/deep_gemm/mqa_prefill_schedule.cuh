// The work of prefill: tiles of kBlockQ rows of q, each against the tiles of K between the least start and the greatest
// end of its rows. All (tile of q, tile of K) pairs, in this order, are divided evenly over the CTAs; each tile of q
// counts as kSegmentCost pairs more, because it takes the time of so many. Where a CTA's share begins follows from the
// starts and ends on the device, which every CTA adds up for itself: no launch before this one, no workspace, no CTA
// waits for another.
#pragma once

#include "deep_gemm/mqa_ptx.cuh"
#include "deep_gemm/mqa_types.cuh"

namespace deep_gemm {

template <class Config>
struct MqaPrefillSchedule {
    static constexpr bool kReadsOnce = false;  // every tile of q reads K
    static constexpr bool fits_l2 = false;     // not read
    static constexpr u32 kLoaders = 1;
    static constexpr u32 kBatch = ceil_div(16, Config::kBlockQ);  // tiles of q whose bounds a thread reads together
    static constexpr u32 kWarps = Config::kThreads / 32;
    // What a tile of q costs beside its tiles of K, in tiles of K: its units are these, then its tiles.
    static constexpr u32 kCost = Config::kSegmentCost;
    static_assert(kWarps + 3 <= MqaLayout<Config>::kScratchBytes / 4, "one word a warp, and the result");

    const MqaParams& params;
    u32 num_q_tiles;
    // The next tile of q, units of it that are another CTA's, units left to this CTA.
    u32 q_tile = 0, skip = 0, remaining = 0;
    // Of token `lane` of the tile q_tile, as they lie in memory: read a tile ahead.
    int ahead_first = 0, ahead_second = 0;

    __device__ __forceinline__ explicit MqaPrefillSchedule(const MqaParams& params)
        : params(params), num_q_tiles(ceil_div(params.num_tokens, Config::kBlockQ)) {}

    __device__ __forceinline__ void prefetch() const {}

    // Find this CTA's share. By all threads, once.
    __device__ __forceinline__ void prepare(u32 scratch) const {
        const u32 each = ceil_div(num_q_tiles, Config::kThreads), first = threadIdx.x * each,
                  last = min(first + each, num_q_tiles);
        u32 sum = 0;
#pragma unroll kBatch
        for (u32 at = first; at < last; ++at) sum += units_of(at);
        u32 total;
        const u32 before = scan(sum, total, scratch);
        const u32 begin = begin_of_share(total, blockIdx.x, gridDim.x),
                  end = begin_of_share(total, blockIdx.x + 1, gridDim.x);
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
        fetch_bounds();
    }

    __device__ __forceinline__ bool next(MqaSegment& segment) {
#pragma unroll 1
        while (remaining != 0 && q_tile < num_q_tiles) {
            u32 first, last;
            range_of_tile(first, last, segment.low, segment.high);
            const u32 units = last == first ? 0 : last - first + kCost, taken = min(units - skip, remaining);
            const u32 begin = after_cost(skip), end = after_cost(skip + taken);
            segment = {q_tile * Config::kBlockQ, (first + begin) * kMqaTile, end - begin, segment.low, segment.high};
            remaining -= taken;
            ++q_tile;
            skip = 0;
            fetch_bounds();
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
    __device__ __forceinline__ static u32 after_cost(u32 unit) { return unit > kCost ? unit - kCost : 0; }

    // Without a branch, so that many reads are under way at once.
    __device__ __forceinline__ void read_bounds(u32 token, int& first, int& second) const {
        const u32 at = min(token, params.num_tokens - 1);
        first = ptx::load_index(params.first + at);
        second = ptx::load_index(params.second + at);
    }

    // The valid columns of a token, of its bounds as they lie in memory.
    __device__ __forceinline__ void clamp(u32 token, int first, int second, int& low, int& high) const {
        const int num_kv = params.num_kv;
        low = min(max(first, 0), num_kv);
        high = min(max(second, low), num_kv);
        if (params.flags & kMqaCompressed) high = min(high, low + int(min(params.columns, params.num_kv - u32(low))));
        if (token >= params.num_tokens) low = high = 0;
    }

    __device__ __forceinline__ void bounds_of(u32 token, int& low, int& high) const {
        int first, second;
        read_bounds(token, first, second);
        clamp(token, first, second, low, high);
    }

    // Units of a tile of q: those of its tiles of K, if it has any, and its own.
    __device__ __forceinline__ u32 units_of(u32 at) const {
        u32 first = ~0u, last = 0;
        int firsts[Config::kBlockQ], seconds[Config::kBlockQ];
#pragma unroll
        for (u32 t = 0; t < Config::kBlockQ; ++t) read_bounds(at * Config::kBlockQ + t, firsts[t], seconds[t]);
#pragma unroll
        for (u32 t = 0; t < Config::kBlockQ; ++t) {
            int low, high;
            clamp(at * Config::kBlockQ + t, firsts[t], seconds[t], low, high);
            if (low < high) {
                first = min(first, u32(low));
                last = max(last, u32(high));
            }
        }
        return last == 0 ? 0 : ceil_div(last, kMqaTile) - first / kMqaTile + kCost;
    }

    __device__ __forceinline__ void fetch_bounds() {
        read_bounds(q_tile * Config::kBlockQ + min(threadIdx.x % 32, Config::kBlockQ - 1), ahead_first, ahead_second);
    }

    // The tiles of K of the tile q_tile, by a whole warp; lane t keeps the bounds of token t.
    __device__ __forceinline__ void range_of_tile(u32& first, u32& last, int& low, int& high) const {
        clamp(q_tile * Config::kBlockQ + min(threadIdx.x % 32, Config::kBlockQ - 1), ahead_first, ahead_second, low,
              high);
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
            const u32 here = units_of(at);
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
