// The work of the paged logits: the tokens of each batch row of q, against its sequence in units of 64 positions. The
// units of all batch rows, in order, are divided evenly over the CTAs; the metadata (mqa_metadata.cuh) says where the
// share of each of its slots begins, and a CTA whose share does not begin with a slot's walks on from the slot before.
// So slots need not be CTAs.
#pragma once

#include "deep_gemm/mqa_ptx.cuh"
#include "deep_gemm/mqa_types.cuh"

namespace deep_gemm {

template <class Config>
struct MqaPagedSchedule {
    static constexpr bool kReadsOnce = true;  // once for each sequence and tile of q
    // A loading warp for each of three math warpgroups. Beside two it has 40 registers, too few for this, and for pages
    // that leave L2 as kMostKept says: it spills.
    static constexpr u32 kLoaders = Config::kMathGroups == 3 ? 3 : 1;
    // Up to so many bytes of logits pages leave L2 first, so that the logits stay: about half of L2. More logits do not
    // stay. Pages without a hint then push them out sooner, and their writes spread out (H200, two boards: 67 MB take 1
    // to 4 % less time without, 34 MB from 2.6 less to 1 more, 17 MB from 2 less to 2 more, 8 MB and less up to 3
    // more). Whole units of 64 positions count, and nothing of the -inf that the fill writes.
    static constexpr u64 kMostKept = 24 << 20;
    static constexpr u32 kSplits = ceil_div(Config::kNextN, Config::kBlockQ);  // tiles of q of a batch row
    static constexpr u32 kPages = kMqaTile / Config::kPageRows;                // pages of a tile of K
    // Tiles whose pages the warp reads at once.
    static constexpr u32 kAhead = 32 / kPages;

    const MqaParams& params;
    u32 batch, num_q_tiles, limit;       // `limit`: positions that the output and the block table have room for
    u32 sequence = 0, unit = 0, remaining = 0;  // the next unit, and units left to this CTA
    bool fits_l2 = true;                        // set by begin() where there are several loading warps
    // The piece of the sequence `here` that is being given out, tile of q by tile of q.
    u32 split = kSplits, here = 0, first = 0, count = 0;
    u32 cached = ~0u;                    // lane i holds the length of batch row 32 * cached + i
    int length = 0, here_length = 0;     // of this lane's batch row; of the piece's
    // Lane i holds entry i of kAhead tiles: of this tile and those beside it, and of what comes then.
    int page = 0, page_ahead = 0;
    u32 ahead_sequence = ~0u, ahead_unit = 0;  // where page_ahead begins

    __device__ __forceinline__ explicit MqaPagedSchedule(const MqaParams& params)
        : params(params), batch(params.num_tokens / Config::kNextN), num_q_tiles(batch * kSplits) {
        limit = u32(min(u64(params.columns), u64(params.num_kv) * Config::kPageRows));
    }

    // By the loading warps, before they meet the others.
    __device__ __forceinline__ void prepare(u32) {
        if (threadIdx.x / 128 == Config::kMathGroups && threadIdx.x % 128 < 32 * kLoaders) begin();
    }

    __device__ __forceinline__ void start(u32) const {}

    // Lines of the lengths into L2, where they are found once the metadata has said which of them are needed, and lines
    // of the block table: a lane of each CTA has one, of the rows' beginnings first.
    __device__ __forceinline__ void prefetch() const {
        const i64 lane = threadIdx.x % 32, lengths = (batch - 1) * params.lengths_stride + 1;
        if (32 * lane < lengths) ptx::prefetch_line(params.first + 32 * lane);
        const u32 index = threadIdx.x % 32 * gridDim.x + blockIdx.x, column = index / batch * 32;
        if (column < params.num_kv) ptx::prefetch_line(params.second + index % batch * params.table_stride + column);
    }

    __device__ __forceinline__ bool next(MqaSegment& segment) {
        if (++split >= kSplits) {
            split = 0;
            if (!next_piece()) return false;
        }
        const u32 lane = threadIdx.x % 32, token = split * Config::kBlockQ;
        segment = {here * Config::kNextN + token, first * kMqaTile, count, 0, 0};
        if (lane < Config::kBlockQ) segment.high = visible(token + lane);
        return true;
    }

    // Pages are read before they are needed: those of the first tiles beside the lengths, then always those of the next
    // kAhead tiles.
    __device__ __forceinline__ void locate(u32 (&rows)[kPages], u32 (&pages)[kPages], const MqaSegment&, u32 tile) {
        if (tile % kAhead == 0) {
            if (ahead_sequence != here || ahead_unit != first + tile) fetch_pages(here, first + tile);
            page = page_ahead;
            const bool more = tile + kAhead < count, again = split + 1 < kSplits;
            fetch_pages(more || again ? here : sequence, more ? first + tile + kAhead : again ? first : unit);
        }
        // A page beyond it is not known.
        const u32 last = (min(u32(here_length), limit) - 1) / Config::kPageRows - (first + tile) * kPages;
#pragma unroll
        for (u32 i = 0; i < kPages; ++i) {
            rows[i] = 0;
            pages[i] = __shfl_sync(0xffffffff, page, tile % kAhead * kPages + min(i, last));
        }
    }

    // Lane t gets the valid columns of token t of a tile of q.
    __device__ __forceinline__ void bounds_of_tile(u32 at, int& low, int& high) {
        here = at / kSplits;
        here_length = length_of_sequence(here);
        low = high = 0;
        if (threadIdx.x % 32 < Config::kBlockQ) high = visible(at % kSplits * Config::kBlockQ + threadIdx.x % 32);
    }

   private:
    // Find this CTA's share.
    __device__ __forceinline__ void begin() {
        const u32 slots = params.num_slots, total = ptx::load_index(params.schedule + 2 * i64(slots) + 1);
        if (kLoaders > 1) fits_l2 = u64(total) * (kMqaTile * Config::kNextN * (Config::kFloatD ? 4 : 2)) <= kMostKept;
        const u32 guess = min(blockIdx.x, slots - 1);  // read together with the total: right if slots are CTAs
        sequence = ptx::load_index(params.schedule + 2 * i64(guess));
        unit = ptx::load_index(params.schedule + 2 * i64(guess) + 1);
        if (slots == gridDim.x) {
            fetch_pages(sequence, unit);
            length_of_sequence(min(sequence, batch - 1));
        }
        const u32 begin = begin_of_share(total, blockIdx.x, gridDim.x);
        remaining = begin_of_share(total, blockIdx.x + 1, gridDim.x) - begin;
        if (slots == gridDim.x || remaining == 0) return;
        const u32 slot = u64(begin) * slots / total;
        sequence = ptx::load_index(params.schedule + 2 * i64(slot));
        unit = ptx::load_index(params.schedule + 2 * i64(slot) + 1);
        walk(begin - u32(u64(total) * slot / slots));
    }

    // Entries of the block table, from a unit of a sequence, to page_ahead. All lie within the table; what lies beyond
    // the length is not used.
    __device__ __forceinline__ void fetch_pages(u32 of_sequence, u32 from_unit) {
        ahead_sequence = of_sequence;
        ahead_unit = from_unit;
        const i64 row = min(of_sequence, batch - 1),
                  column = min(from_unit * kPages + threadIdx.x % 32, params.num_kv - 1);
        page_ahead = ptx::load_index(params.second + row * params.table_stride + column);
    }

    // The greatest length of a batch row. By a whole warp.
    __device__ __forceinline__ int length_of_sequence(u32 at) {
        if (at / 32 != cached) {
            cached = at / 32;
            const u32 mine = min(cached * 32 + threadIdx.x % 32, batch - 1);
            length = length_of(mine, 0);
            if (params.flags & kMqaTokenLengths) {
#pragma unroll 1
                for (u32 t = 1; t < Config::kNextN; ++t) length = max(length, length_of(mine, t));
            }
        }
        return __shfl_sync(0xffffffff, length, at % 32);
    }

    __device__ __forceinline__ int length_of(u32 of_sequence, u32 token) const {
        return max(ptx::load_index(params.first + of_sequence * params.lengths_stride + token), 0);
    }

    // End of the positions that a token of the piece's sequence sees.
    __device__ __forceinline__ int visible(u32 token) const {
        int end = here_length - int(Config::kNextN) + int(token) + 1;
        if (params.flags & kMqaTokenLengths) end = length_of(here, token);
        return min(max(end, 0), int(limit));
    }

    // Pass `units` units.
    __device__ __forceinline__ void walk(u32 units) {
#pragma unroll 1
        while (sequence < batch) {
            const u32 left = ceil_div(length_of_sequence(sequence), kMqaTile) - unit;
            if (units < left) break;
            units -= left;
            ++sequence;
            unit = 0;
        }
        unit += units;
    }

    // The next units of this CTA that are one sequence's and have room in the output.
    __device__ __forceinline__ bool next_piece() {
#pragma unroll 1
        while (remaining != 0 && sequence < batch) {
            here_length = length_of_sequence(sequence);
            const u32 units = ceil_div(here_length, kMqaTile), left = units > unit ? units - unit : 0;
            const u32 taken = min(left, remaining), end = min(unit + taken, ceil_div(limit, kMqaTile));
            here = sequence;
            first = unit;
            count = end > unit ? end - unit : 0;
            remaining -= taken;
            unit += taken;
            if (taken == left) {
                ++sequence;
                unit = 0;
            }
            if (count != 0) return true;
        }
        return false;
    }
};

}  // namespace deep_gemm
