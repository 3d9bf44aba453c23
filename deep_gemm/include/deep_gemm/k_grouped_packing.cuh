// Packs FP32 scales of groups of K, [rows, mn] with the groups' rows one after the other, as UE8M0: four rows of one
// group become a row of words, which holds their exponents, the first row's in the lowest byte. The groups' sizes are
// read on the device.
//
// blockIdx.y is a row of words. Its CTAs find the group that it belongs to: every thread counts the rows of one group,
// and a scan adds them up. Rows of words beyond the last group are zeros, as are bytes beyond a group's rows.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

template <class Config>
struct KGroupedPacking {
    static constexpr bool kEnds = Config::kEnds;        // groups are given by their ends, else by their sizes
    static constexpr bool kAligned = Config::kAligned;  // rows start at 16 bytes, mn is a multiple of 4
    static constexpr u32 kThreads = 256, kCtasPerSm = 8;
    static constexpr u32 kColumns = kAligned ? 4 : 1;  // of a thread
    static constexpr u32 kPerWord = 4;

    const u32* in;      // [rows, mn]: bits
    const int* groups;  // [num_groups]: K, or where it ends
    u32* out;           // [gridDim.y, mn]
    u32 num_groups, rows, mn;
    u32 gran_k;     // elements of K that share a scale
    u32 alignment;  // of a group's start in K, with kEnds
    i64 in_row;     // words

    // The rows of scales of a row of words.
    struct Span {
        u32 first, count;
    };

    __device__ __forceinline__ u32 count_rows(u32 group) const {
        if (group >= num_groups) return 0;
        int size = groups[group];
        if constexpr (kEnds) {
            const int before = group == 0 ? 0 : groups[group - 1];
            size -= int(align_up(before < 0 ? 0 : before, alignment));
        }
        return size <= 0 ? 0 : ceil_div(size, gran_k);  // an empty group may end where the one before does
    }

    // The sum of `value` over the threads up to and with this one; sums[t] likewise for thread t.
    __device__ static __forceinline__ u64 scan(u64* sums, u64 value) {
        sums[threadIdx.x] = value;
        __syncthreads();
#pragma unroll 1
        for (u32 step = 1; step < kThreads; step *= 2) {
            value += threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
            __syncthreads();
            sums[threadIdx.x] = value;
            __syncthreads();
        }
        return value;
    }

    // Words are counted in the upper half of a number, rows in the lower one.
    __device__ __forceinline__ Span find(u32 word) const {
        __shared__ u64 sums[kThreads];
        __shared__ Span found;
        if (threadIdx.x == 0) found = {0, 0};
        u64 before = 0;
#pragma unroll 1
        for (u32 chunk = 0; chunk < num_groups && u32(before >> 32) <= word; chunk += kThreads) {
            const u32 own = count_rows(chunk + threadIdx.x);
            const u64 both = u64(ceil_div(own, kPerWord)) << 32 | own;
            const u64 last = before + scan(sums, both), first = last - both;
            if (u32(first >> 32) <= word && word < u32(last >> 32)) {
                const u32 skipped = (word - u32(first >> 32)) * kPerWord;
                found = {u32(first) + skipped, own - skipped < kPerWord ? own - skipped : kPerWord};
            }
            before += sums[kThreads - 1];
            __syncthreads();  // until all have read the sums, and `found` is there
        }
        return found;
    }

    __device__ __forceinline__ void load(const u32* from, bool is_there, u32 (&bits)[kColumns]) const {
        if constexpr (kAligned) {
            const uint4 four = is_there ? __ldcs(reinterpret_cast<const uint4*>(from)) : uint4{0, 0, 0, 0};
            bits[0] = four.x, bits[1] = four.y, bits[2] = four.z, bits[3] = four.w;
        } else {
            bits[0] = is_there ? *from : 0;
        }
    }

    __device__ __forceinline__ void run() const {
        const Span span = find(blockIdx.y);
        const u32 column = (blockIdx.x * kThreads + threadIdx.x) * kColumns;
        if (column >= mn) return;
        u32 bits[kPerWord][kColumns], words[kColumns] = {};
#pragma unroll
        for (u32 i = 0; i < kPerWord; ++i) {
            const u32 row = span.first + i;
            load(in + row * in_row + column, i < span.count && row < rows, bits[i]);
        }
#pragma unroll
        for (u32 i = 0; i < kPerWord; ++i)
#pragma unroll
            for (u32 j = 0; j < kColumns; ++j) words[j] |= (bits[i][j] >> 23 & 0xFF) << 8 * i;
        u32* target = out + i64(blockIdx.y) * mn + column;
        if constexpr (kAligned) {
            *reinterpret_cast<uint4*>(target) = uint4{words[0], words[1], words[2], words[3]};
        } else {
            *target = words[0];
        }
    }
};

}  // namespace deep_gemm
