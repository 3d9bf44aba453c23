// The work of the paged logits: the tokens of each batch row of q, against its sequence in units of 64 positions. The units of all batch rows, in
// order, are divided evenly over the CTAs; the metadata (mqa_metadata.cuh) says where the share of each of its slots begins, and a CTA whose share
// does not begin with a slot's walks on from the slot before. So slots need not be CTAs.
#pragma once

#include "deep_gemm/mqa_ptx.cuh"
#include "deep_gemm/mqa_types.cuh"

namespace deep_gemm {

template <class Config>
struct MqaPagedSchedule {
    static constexpr u32 kSplits = ceil_div(Config::kNextN, Config::kBlockQ);  // tiles of q of a batch row
    static constexpr u32 kPages = kMqaTile / Config::kPageRows;                // pages of a tile of K

    const MqaParams& params;
    u32 batch, num_q_tiles, limit;       // `limit`: positions that the output and the block table have room for
    u32 sequence = 0, unit = 0, remaining = 0;  // the next unit, and units left to this CTA
    u32 split = kSplits, here = 0, first = 0, count = 0;  // the piece of a sequence that is being given out, tile of q by tile of q
    u32 cached = ~0u;                    // lane i holds length and table row of batch row 32 * cached + i
    int length = 0, row = 0, page = 0;
    int here_length = 0, here_row = 0;

    __device__ __forceinline__ explicit MqaPagedSchedule(const MqaParams& params)
        : params(params), batch(params.num_tokens / Config::kNextN), num_q_tiles(batch * kSplits) {
        limit = u32(min(u64(params.columns), u64(params.num_kv) * Config::kPageRows));
    }

    __device__ __forceinline__ void prepare(u32) const {}

    __device__ __forceinline__ void start(u32) {
        const u32 slots = params.num_slots, total = ptx::load_index(params.schedule + 2 * i64(slots) + 1);
        const u32 guess = min(blockIdx.x, slots - 1);  // read together with the total: right if slots are CTAs
        sequence = ptx::load_index(params.schedule + 2 * i64(guess));
        unit = ptx::load_index(params.schedule + 2 * i64(guess) + 1);
        const u32 begin = u64(total) * blockIdx.x / gridDim.x;
        remaining = u64(total) * (blockIdx.x + 1) / gridDim.x - begin;
        if (slots == gridDim.x || remaining == 0) return;
        const u32 slot = u64(begin) * slots / total;
        sequence = ptx::load_index(params.schedule + 2 * i64(slot));
        unit = ptx::load_index(params.schedule + 2 * i64(slot) + 1);
        walk(begin - u32(u64(total) * slot / slots));
    }

    __device__ __forceinline__ bool next(MqaSegment& segment) {
        if (++split >= kSplits) {
            split = 0;
            if (!next_piece()) return false;
        }
        const u32 lane = threadIdx.x % 32, token = split * Config::kBlockQ;
        segment = {sequence_of_piece * Config::kNextN + token, first * kMqaTile, count, 0, 0};
        if (lane < Config::kBlockQ) segment.high = visible(token + lane);
        return true;
    }

    __device__ __forceinline__ void locate(u32 (&rows)[kPages], u32 (&pages)[kPages], const MqaSegment&, u32 tile) {
        constexpr u32 kAhead = 32 / kPages;  // tiles whose pages the warp reads at once
        if (tile % kAhead == 0) {
            const u32 at = (first + tile) * kPages + threadIdx.x % 32, last = (min(u32(here_length), limit) - 1) / Config::kPageRows;
            page = ptx::load_index(params.second + here_row * params.table_stride + min(at, last));  // no entry beyond the length is read
        }
#pragma unroll
        for (u32 i = 0; i < kPages; ++i) {
            rows[i] = 0;
            pages[i] = __shfl_sync(0xffffffff, page, tile % kAhead * kPages + i);
        }
    }

    // Lane t gets the valid columns of token t of a tile of q.
    __device__ __forceinline__ void bounds_of_tile(u32 at, int& low, int& high) {
        sequence_at(at / kSplits, here_length, here_row);
        low = high = 0;
        if (threadIdx.x % 32 < Config::kBlockQ) high = visible(at % kSplits * Config::kBlockQ + threadIdx.x % 32);
    }

   private:
    u32 sequence_of_piece = 0;

    // The greatest length of a batch row, and its row in the block table. By a whole warp.
    __device__ __forceinline__ void sequence_at(u32 at, int& at_length, int& at_row) {
        if (at / 32 != cached) {
            cached = at / 32;
            const u32 mine = cached * 32 + threadIdx.x % 32;
            length = row = 0;
            if (mine < batch) {
                row = params.rows ? ptx::load_index(params.rows + mine) : int(mine);
                length = length_of(row, 0);
                if (params.flags & kMqaTokenLengths) {
#pragma unroll 1
                    for (u32 t = 1; t < Config::kNextN; ++t) length = max(length, length_of(row, t));
                }
            }
        }
        at_length = __shfl_sync(0xffffffff, length, at % 32);
        at_row = __shfl_sync(0xffffffff, row, at % 32);
    }

    __device__ __forceinline__ int length_of(int of_row, u32 token) const {
        return max(ptx::load_index(params.first + of_row * params.lengths_stride + token), 0);
    }

    // End of the positions that a token of the piece's sequence sees.
    __device__ __forceinline__ int visible(u32 token) const {
        int end = here_length - int(Config::kNextN) + int(token) + 1;
        if (params.flags & kMqaTokenLengths) end = length_of(here_row, token);
        return min(max(end, 0), int(limit));
    }

    // Pass `units` units.
    __device__ __forceinline__ void walk(u32 units) {
#pragma unroll 1
        while (sequence < batch) {
            int at_length, at_row;
            sequence_at(sequence, at_length, at_row);
            const u32 left = ceil_div(at_length, kMqaTile) - unit;
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
            sequence_at(sequence, here_length, here_row);
            const u32 units = ceil_div(here_length, kMqaTile), left = units > unit ? units - unit : 0;
            const u32 taken = min(left, remaining), end = min(unit + taken, ceil_div(limit, kMqaTile));
            sequence_of_piece = sequence;
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
