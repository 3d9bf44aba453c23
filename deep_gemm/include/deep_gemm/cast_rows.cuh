// Quantises rows to FP8 with one scale per row and kGran columns, in one pass; with kSwiglu, silu(gate) * up of rows [gate, up].
//
// A chunk belongs to a thread, a scale to kGran / kChunk threads beside each other in a warp. A thread has kUnroll chunks under way. CTAs of
// column x walk the chunks of the groups of blockIdx.y in steps of the grid, so that any grid is right.
#pragma once

#include "deep_gemm/fp8_cast.cuh"

namespace deep_gemm {

template <class Config>
struct CastRows {
    static constexpr Element kElement = static_cast<Element>(Config::kElement);
    using Words = Elements<kElement>;
    static constexpr u32 kGran = Config::kGran, kChunk = Words::kChunk, kLanes = kGran / kChunk;
    static constexpr bool kUe8m0 = Config::kUe8m0, kUnbounded = kUe8m0 && !Config::kSaturates;  // products beyond 448 become NaN
    static constexpr bool kSwiglu = Config::kSwiglu, kMasked = Config::kMasked, kAligned = Config::kAligned;
    static constexpr u32 kThreads = 256, kCtasPerSm = 4, kUnroll = kSwiglu ? 2 : 4;
    static_assert(kLanes >= 2 && kLanes <= 32, "a scale's chunks lie in one warp");

    const void* x;         // [groups, m, n], or [groups, m, 2n] for kSwiglu
    u8* out;               // [groups, m, n], contiguous
    float* scales;         // [groups, m, ceil(n / kGran)]
    const int* masked_m;   // [groups]: rows that there are; kMasked only
    u32 groups, m, n;
    u32 chunks;            // of a row, with those that fill its last scale
    u32 magic, shift;      // index / chunks == __umulhi(index, magic) >> shift
    i64 x_group, x_row;    // bytes
    i64 scale_group, scale_row, scale_column;  // elements

    struct Place {
        u32 row, column;  // the column is the chunk's first element
    };

    __device__ __forceinline__ Place place_of(u32 index) const {
        const u32 row = __umulhi(index, magic) >> shift;
        return {row, (index - row * chunks) * kChunk};
    }

    __device__ __forceinline__ void load(u32 group, u32 index, u32 total, u32 (&words)[kSwiglu ? 2 : 1][4]) const {
        const Place place = place_of(index);
        const u8* row = static_cast<const u8*>(x) + group * x_group + place.row * x_row;
        const u32 columns = index < total ? n : 0;
        Words::template load<kAligned>(row, place.column, columns, words[0]);
        if constexpr (kSwiglu) Words::template load<kAligned>(row + u64(n) * Words::kBytes, place.column, columns, words[1]);
    }

    // silu(gate) as torch's kernels compute it in FP32. A division by __fdiv_rn takes twice the instructions of all else, and would be what bounds
    // the kernel.
    template <bool kIsModerate>
    __device__ static __forceinline__ float silu(float gate) {
        const float divisor = __fadd_rn(1.0f, expf(-gate));
        return kIsModerate ? divide_gate(gate, divisor, approximate_reciprocal(divisor)) : __fdiv_rn(gate, divisor);
    }

    template <bool kIsModerate>
    __device__ static __forceinline__ void multiply(const u32 (&words)[2][4], float (&values)[kChunk]) {
        float gate[kChunk], up[kChunk];
        Words::unpack(words[0], gate);
        Words::unpack(words[1], up);
#pragma unroll
        for (u32 i = 0; i < kChunk; ++i) values[i] = __fmul_rn(silu<kIsModerate>(gate[i]), up[i]);
    }

    // silu(gate) * up. Returns the bits of the largest magnitude.
    __device__ static __forceinline__ u32 activate(const u32 (&words)[2][4], float (&values)[kChunk]) {
        if (Words::are_moderate(words[0])) {
            multiply<true>(words, values);
        } else {
            multiply<false>(words, values);
        }
        float largest = 0.0f;
#pragma unroll
        for (u32 i = 0; i < kChunk; ++i) largest = max_or_nan(largest, fabsf(values[i]));
        return __float_as_uint(largest);
    }

    // The largest magnitude of the scale's chunks, in every thread of it.
    template <bool kIsFloat>
    __device__ static __forceinline__ float reduce(u32 largest) {
#pragma unroll
        for (u32 lanes = kLanes / 2; lanes > 0; lanes /= 2) {
            const u32 other = __shfl_xor_sync(0xFFFFFFFF, largest, lanes);
            largest = kIsFloat ? max_of(largest, other) : Words::max_of_words(largest, other);
        }
        return kIsFloat ? __uint_as_float(largest) : Words::max_of_word(largest);
    }

    __device__ __forceinline__ void finish(u32 group, u32 index, u32 total, const u32 (&words)[kSwiglu ? 2 : 1][4]) const {
        float values[kChunk], factors[kChunk], amax;
        if constexpr (kSwiglu) {
            amax = reduce<true>(activate(words, values));
        } else {
            Words::unpack(words[0], values);
            amax = reduce<Words::kBytes == 4>(Words::max_of_chunk(words[0]));
        }
        const float scale = scale_of<kUe8m0>(amax), factor = __frcp_rn(scale);
        if (index >= total) return;
#pragma unroll
        for (u32 i = 0; i < kChunk; ++i) factors[i] = factor;
        u32 bytes[2];
        quantise(values, factors, kUnbounded && __float_as_uint(amax) >= kInfinityBits, bytes);
        const Place place = place_of(index);
        Words::template store<kAligned>(out + (u64(group) * m + place.row) * n, place.column, n, bytes);
        if (index % kLanes == 0) scales[group * scale_group + place.row * scale_row + place.column / kGran * scale_column] = scale;
    }

    __device__ __forceinline__ void run_group(u32 group) const {
        const int count = kMasked ? masked_m[group] : int(m);
        const u32 rows = count < 0 ? 0 : u32(count) < m ? u32(count) : m, total = rows * chunks;
        for (u32 start = blockIdx.x * (kThreads * kUnroll); start < total; start += gridDim.x * (kThreads * kUnroll)) {
            u32 words[kUnroll][kSwiglu ? 2 : 1][4];
#pragma unroll
            for (u32 i = 0; i < kUnroll; ++i) load(group, start + i * kThreads + threadIdx.x, total, words[i]);
#pragma unroll
            for (u32 i = 0; i < kUnroll; ++i) finish(group, start + i * kThreads + threadIdx.x, total, words[i]);
        }
    }

    __device__ __forceinline__ void run() const {
        for (u32 group = blockIdx.y; group < groups; group += gridDim.y) run_group(group);
    }
};

}  // namespace deep_gemm
