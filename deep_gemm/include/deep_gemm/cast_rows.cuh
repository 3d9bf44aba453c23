// Quantises rows to FP8 with one scale per row and kGran columns, in one pass; with kSwiglu, silu(gate) * up of rows
// [gate, up], or with kInterleaved of rows whose gates and ups are interleaved, 8 of each; with kLimited after gates
// were limited from above and ups on both sides.
//
// A slice belongs to a thread: kChunks chunks of one scale. A scale belongs to kLanes threads beside each other in a
// warp, which lay their chunks in turn, so that their loads and stores are coalesced. A thread has kUnroll slices under
// way. CTAs of column x walk the slices of the groups of blockIdx.y in steps of the grid, so that any grid is right.
#pragma once

#include "deep_gemm/fp8_cast.cuh"

namespace deep_gemm {

template <class Config>
struct CastRows {
    static constexpr Element kElement = static_cast<Element>(Config::kElement);
    using Words = Elements<kElement>;
    // Products beyond 448 become NaN.
    static constexpr bool kUe8m0 = Config::kUe8m0, kUnbounded = kUe8m0 && !Config::kSaturates;
    static constexpr bool kSwiglu = Config::kSwiglu, kMasked = Config::kMasked, kAligned = Config::kAligned;
    static constexpr bool kInterleaved = Config::kInterleaved, kLimited = Config::kLimited;
    // Two chunks of a scale take half the exchanges and addresses of one; four are no longer coalesced.
    static constexpr u32 kThreads = 256, kCtasPerSm = 4, kMostEarlyCtas = 512, kChunks = 2, kUnroll = 2;
    static constexpr u32 kGran = Config::kGran, kChunk = Words::kChunk, kLanes = kGran / (kChunk * kChunks),
                         kInputs = kSwiglu ? 2 : 1;
    static_assert(kLanes >= 1 && kLanes <= 32, "a scale's slices lie in one warp");
    static_assert(kSwiglu || (!kInterleaved && !kLimited), "of rows with gates");
    static_assert(!kInterleaved || kChunk == 8, "a chunk is a run of gates or ups");

    using Slice = u32[kChunks][kInputs][4];  // words
    using Values = float[kChunks][kChunk];

    const void* x;         // [groups, m, n], or [groups, m, 2n] for kSwiglu
    u8* out;               // [groups, m, n], contiguous
    float* scales;         // [groups, m, ceil(n / kGran)]
    const int* masked_m;   // [groups]: rows that there are; kMasked only
    u32 groups, m, n;
    u32 slices;            // of a row, with those that fill its last scale
    u32 magic, shift;      // index / slices == __umulhi(index, magic) >> shift
    i64 x_group, x_row;    // bytes
    i64 scale_group, scale_row, scale_column;  // elements
    u32 limit_bits;                            // of an FP32 number that is not negative; kLimited only

    struct Place {
        u32 row, column;  // the column is the first element of the slice's first chunk

        __device__ __forceinline__ u32 column_of(u32 chunk) const { return column + chunk * (kLanes * kChunk); }
    };

    __device__ __forceinline__ Place place_of(u32 index) const {
        const u32 row = __umulhi(index, magic) >> shift, in_row = index - row * slices;
        return {row, in_row / kLanes * kGran + in_row % kLanes * kChunk};
    }

    __device__ __forceinline__ void load(u32 group, u32 index, u32 total, Slice& words) const {
        const Place place = place_of(index);
        const u8* row = static_cast<const u8*>(x) + group * x_group + place.row * x_row;
        const u32 columns = index < total ? n : 0;
        const u64 to_ups = kInterleaved ? 16 : u64(n) * Words::kBytes;
#pragma unroll
        for (u32 i = 0; i < kChunks; ++i) {
            const u32 column = place.column_of(i);
            // A run of ups stands before each run of gates but the first.
            const u8* gates = kInterleaved ? row + u64(column) * Words::kBytes : row;
            Words::template load<kAligned>(gates, column, columns, words[i][0]);
            if constexpr (kSwiglu) Words::template load<kAligned>(gates + to_ups, column, columns, words[i][1]);
        }
    }

    // As torch.clamp: NaN stays NaN.
    __device__ __forceinline__ void limit_values(float (&gate)[kChunk], float (&up)[kChunk]) const {
        const float limit = __uint_as_float(limit_bits);
#pragma unroll
        for (u32 i = 0; i < kChunk; ++i) {
            gate[i] = gate[i] > limit ? limit : gate[i];
            up[i] = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
        }
    }

    // silu(gate) as torch's kernels compute it in FP32. A division by __fdiv_rn takes twice the instructions of all
    // else, and would be what bounds the kernel.
    template <bool kIsModerate>
    __device__ static __forceinline__ float silu(float gate) {
        if constexpr (!kIsModerate) return __fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate)));
        const float divisor = add_exponential(gate);
        return divide_gate(gate, divisor, approximate_reciprocal(divisor));
    }

    template <bool kIsModerate>
    __device__ __forceinline__ void multiply(const u32 (&words)[2][4], float (&values)[kChunk]) const {
        float gate[kChunk], up[kChunk];
        Words::unpack(words[0], gate);
        Words::unpack(words[1], up);
        if constexpr (kLimited) limit_values(gate, up);
#pragma unroll
        for (u32 i = 0; i < kChunk; ++i) values[i] = __fmul_rn(silu<kIsModerate>(gate[i]), up[i]);
    }

    // silu(gate) * up. Returns the bits of the largest magnitude. Moderate gates stay moderate by a limit from 1 on.
    __device__ __forceinline__ u32 activate(const u32 (&words)[2][4], float (&values)[kChunk]) const {
        if ((!kLimited || __uint_as_float(limit_bits) >= 1.0f) && Words::are_moderate(words[0])) {
            multiply<true>(words, values);
        } else {
            multiply<false>(words, values);
        }
        float largest = 0.0f;
#pragma unroll
        for (u32 i = 0; i < kChunk; ++i) largest = max_or_nan(largest, fabsf(values[i]));
        return __float_as_uint(largest);
    }

    // The numbers of a chunk. Returns the largest magnitude: the bits of an FP32 number for kSwiglu, else a word.
    __device__ __forceinline__ u32 unpack(const u32 (&words)[kInputs][4], float (&values)[kChunk]) const {
        if constexpr (kSwiglu) return activate(words, values);
        Words::unpack(words[0], values);
        return Words::max_of_chunk(words[0]);
    }

    static constexpr bool kIsFloat = kSwiglu || Words::kBytes == 4;  // what such a magnitude is
    __device__ static __forceinline__ u32 larger(u32 a, u32 b) {
        return kIsFloat ? max_of(a, b) : Words::max_of_words(a, b);
    }

    // The largest magnitude of the scale's slices, in every thread of it.
    __device__ static __forceinline__ float reduce(u32 largest) {
#pragma unroll
        for (u32 lanes = kLanes / 2; lanes > 0; lanes /= 2)
            largest = larger(largest, __shfl_xor_sync(0xFFFFFFFF, largest, lanes));
        return kIsFloat ? __uint_as_float(largest) : Words::max_of_word(largest);
    }

    __device__ __forceinline__ void finish(u32 group, u32 index, u32 total, const Slice& words) const {
        Values values;
        u32 largest = 0;
#pragma unroll
        for (u32 i = 0; i < kChunks; ++i) largest = larger(largest, unpack(words[i], values[i]));
        const float amax = reduce(largest), scale = scale_of<kUe8m0>(amax), factor = __frcp_rn(scale);
        if (index >= total) return;
        float factors[kChunk];
#pragma unroll
        for (u32 i = 0; i < kChunk; ++i) factors[i] = factor;
        const Place place = place_of(index);
        u8* row = out + (u64(group) * m + place.row) * n;
#pragma unroll
        for (u32 i = 0; i < kChunks; ++i) {
            u32 bytes[2];
            quantise(values[i], factors, kUnbounded && __float_as_uint(amax) >= kInfinityBits, bytes);
            Words::template store<kAligned>(row, place.column_of(i), n, bytes);
        }
        if (index % kLanes == 0)
            scales[group * scale_group + place.row * scale_row + place.column / kGran * scale_column] = scale;
    }

    __device__ __forceinline__ void run_group(u32 group) const {
        const int count = kMasked ? masked_m[group] : int(m);
        const u32 rows = count < 0 ? 0 : u32(count) < m ? u32(count) : m, total = rows * slices;
        for (u32 start = blockIdx.x * (kThreads * kUnroll); start < total; start += gridDim.x * (kThreads * kUnroll)) {
            Slice words[kUnroll];
#pragma unroll
            for (u32 i = 0; i < kUnroll; ++i) load(group, start + i * kThreads + threadIdx.x, total, words[i]);
#pragma unroll
            for (u32 i = 0; i < kUnroll; ++i) finish(group, start + i * kThreads + threadIdx.x, total, words[i]);
        }
    }

    // Where all CTAs run at once, the product behind this cast is set up meanwhile (H200, an 8B Llama of six layers:
    // 1.5 % more tokens a second with 1, 8 and 32 sequences, none with 128). In prefills, where its CTAs would take
    // room from the casts', that gains nothing.
    __device__ __forceinline__ void run() const {
        if (gridDim.x * gridDim.y <= kMostEarlyCtas) launch_early();
        for (u32 group = blockIdx.y; group < groups; group += gridDim.y) run_group(group);
    }
};

}  // namespace deep_gemm
