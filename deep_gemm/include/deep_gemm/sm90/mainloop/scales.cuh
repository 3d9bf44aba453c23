// Scale factors on their way from global memory to the math warps.
//
// Vectors that lie MN-major and aligned travel by TMA with the stage they belong to; block scalars beside them by
// cp.async, one lane each, arriving at the same full barrier. The math warps then wait for nothing but the stage, but
// the stage for a copy of 4 bytes that began late. With kScaleWarp the block scalars of whole tiles are copied a tile
// ahead instead (H200, one wave, 64x64 tiles, k = 7168: 10.8 us against 12.7); where a tile has few steps its barriers
// cost more than they save (16 of them: 0.1 to 0.2 us). scale_copier.cuh has the warps that copy.
//
// Any other layout goes through a small ring of its own, filled by idle warps of the producer warpgroup with cp.async:
// a buffer holds kSteps K steps of both operands' scales. Eight steps of a row-major row are one 32-byte sector, so
// row-major scales need no transposing launch. Buffer b has a full barrier (one arrival per copying thread, triggered
// by its copies) and an empty barrier (one per math warp). Why not in the math warps: there each load-ahead sits in the
// gap between two multiplications (H200, m = n = 4096, k = 7168, tile 256x128: 190 us against 165 us without any
// scales).
#pragma once

#include "deep_gemm/sm90/mainloop/pipeline.cuh"

namespace deep_gemm {

template <class Config>
struct ScaleRing {
    using Layout = GemmLayout<Config>;
    static constexpr u32 kSteps = Layout::kRingSteps, kBuffers = Layout::kRingBuffers, kPitch = Layout::kRingPitch;
    static constexpr u32 kBufferBytes = 4 * kSteps * kPitch;
    static constexpr u32 kCopyThreads = Layout::kCopyThreads;
    static constexpr u32 kFullArrivals = kCopyThreads, kEmptyArrivals = Layout::kMathThreads / 32;

    u32 data, barriers;  // shared addresses

    __device__ __forceinline__ explicit ScaleRing(u32 shared)
        : data(shared + Layout::kOffsetRing), barriers(shared + Layout::kOffsetRingBarriers) {}

    __device__ __forceinline__ u32 full_barrier(u32 buffer) const { return barriers + 8 * buffer; }
    __device__ __forceinline__ u32 empty_barrier(u32 buffer) const { return full_barrier(kBuffers + buffer); }
    __device__ __forceinline__ void initialise_barriers() const {
#pragma unroll
        for (u32 buffer = 0; buffer < kBuffers; ++buffer) {
            ptx::barrier_init(full_barrier(buffer), kFullArrivals);
            ptx::barrier_init(empty_barrier(buffer), kEmptyArrivals);
        }
    }
    __device__ __forceinline__ u32 line(u32 buffer, u32 step) const {
        return data + buffer * kBufferBytes + step % kSteps * 4 * kPitch;
    }

    // Copy `count` scales of one K step: the vector or blocks that begin at index `start` of `limit`; `first` is this
    // thread's place in it. What lies beyond is left out (its results are never stored). The caller arrives at the
    // buffer's full barrier.
    template <u32 kCount>
    __device__ __forceinline__ static void copy_part(u32 to, const float* from, i64 stride, u32 start, u32 limit,
                                                     u32 first) {
        // A copier of two vectors has no register left for four.
        constexpr u32 kJump = kCopyThreads / kSteps, kUnroll = Layout::kVectorB ? 2 : 4;
        const float* source = from + (start + first) * stride;
#pragma unroll kUnroll
        for (u32 index = first; index < kCount; index += kJump, source += kJump * stride) {
            if (start + index < limit) ptx::copy_4(to + 4 * index, source);
        }
    }

    // Copy steps step .. step + 7 (counted in the tile's share of K, which begins at `origin`): eight neighbouring
    // threads take the eight steps of a row.
    __device__ __forceinline__ void copy_group(const Params& params, u32 buffer, u32 thread, u32 step, u32 num_steps,
                                               u32 origin, u32 m_start, u32 n_start, u32 m, u32 n) const {
        const u32 mine = step + thread % kSteps, first = thread / kSteps;
        if (mine >= num_steps) return;
        const u32 to = line(buffer, mine);
        const float* from_a = params.scale_a + (origin + mine) * params.scale_a_stride_k;
        const float* from_b = params.scale_b + (origin + mine) * params.scale_b_stride_k;
        copy_part<Config::kBlockM>(to, from_a, params.scale_a_stride_mn, m_start, m, first);
        if constexpr (Layout::kVectorB) {
            copy_part<Config::kBlockN>(to + 4 * Config::kBlockM, from_b, params.scale_b_stride_mn, n_start, n, first);
        } else {
            copy_part<Layout::kBlocksB>(to + 4 * Config::kBlockM, from_b, params.scale_b_stride_mn, n_start / 128,
                                        ceil_div(n, 128), first);
        }
    }
};

// One math warp's place in the ring of scales.
template <class Config>
struct RingReader {
    using Scales = ScaleRing<Config>;
    Scales scales;
    u32 zero;                            // Params::zero
    Ring<Scales::kBuffers> ring, oldest;  // the buffer that is read, and the first that has not been given back

    bool is_reading = false;

    __device__ __forceinline__ explicit RingReader(const Pipeline<Config>& stages)
        : scales(stages.shared), zero(stages.zero) {}

    // Make the scales of K step `step` of a tile readable; call once a step, in order, tile after tile.
    __device__ __forceinline__ void advance(u32 step) {
        if (step % Scales::kSteps != 0) return;
        if (is_reading) ring.advance();
        is_reading = true;
        ptx::barrier_wait(scales.full_barrier(ring.stage), ring.phase);
    }

    // Step `step` of `num_steps` has been promoted, which may be after later steps were made readable: give its buffer
    // back with its last step. `bits` are those of the step's scales (see Pipeline::release). Without a branch: it
    // would lie between a multiplication and its wait, and the assembler would serialise all of them (C7514).
    __device__ __forceinline__ void finish(u32 step, u32 num_steps, u32 bits) {
        const bool is_last = step % Scales::kSteps == Scales::kSteps - 1 || step + 1 == num_steps;
        __syncwarp();  // every lane has read the buffer
        ptx::barrier_arrive_if(scales.empty_barrier(oldest.stage) + (bits & zero), is_last && threadIdx.x % 32 == 0);
        Ring<Scales::kBuffers> next = oldest;
        next.advance();
        oldest.stage = is_last ? next.stage : oldest.stage, oldest.phase = is_last ? next.phase : oldest.phase;
    }

    // Shared addresses of the scales of A and of B for K step `step`, whose stage is not needed here.
    __device__ __forceinline__ u32 address_a(u32 step, u32) const { return scales.line(ring.stage, step); }
    __device__ __forceinline__ u32 address_b(u32 step, u32) const {
        return scales.line(ring.stage, step) + 4 * Config::kBlockM;
    }
};

// The same for scales that come with their stage. The unrolled loop asks a reader for the address of the scales of A
// and of B at a stage 0 that had the tile's K step `first`; those of stage s then lie s * kPitchA and s * kPitchB
// further.
template <class Config>
struct StageReader {
    using Layout = GemmLayout<Config>;
    static constexpr u32 kPitchA = Layout::kStageScaleBytes, kPitchB = Layout::kStageScaleBytes;
    u32 data;  // shared address of stage 0's scales

    __device__ __forceinline__ explicit StageReader(const Pipeline<Config>& stages) : data(stages.scales_a(0)) {}

    __device__ __forceinline__ void advance(u32) const {}
    __device__ __forceinline__ void finish(u32, u32, u32) const {}
    __device__ __forceinline__ u32 address_a(u32, u32 stage) const { return data + stage * Layout::kStageScaleBytes; }
    __device__ __forceinline__ u32 address_b(u32 step, u32 stage) const {
        return address_a(step, stage) + Layout::kScaleBytesA;
    }
    __device__ __forceinline__ u32 base_a(u32) const { return data; }
    __device__ __forceinline__ u32 base_b(u32) const { return data + Layout::kScaleBytesA; }
};

// Buffers of block scales, each with those of up to kBlockSteps K steps of one tile; a warp fills one while the math
// warps read the other. Buffer b has a full barrier (one arrival for each lane of that warp, triggered by its copies)
// and an empty barrier (one for each math warp).
template <class Config>
struct BlockBuffers {
    using Layout = GemmLayout<Config>;
    static constexpr u32 kBuffers = Layout::kBlockBuffers;
    u32 shared;

    __device__ __forceinline__ explicit BlockBuffers(u32 shared) : shared(shared) {}

    __device__ __forceinline__ u32 full_barrier(u32 buffer) const {
        return shared + Layout::kOffsetBlockBarriers + 8 * buffer;
    }
    __device__ __forceinline__ u32 empty_barrier(u32 buffer) const { return full_barrier(kBuffers + buffer); }
    __device__ __forceinline__ u32 data(u32 buffer) const {
        return shared + Layout::kOffsetBlocks + buffer * Layout::kBlockBytes;
    }
    __device__ __forceinline__ void initialise_barriers() const {
#pragma unroll
        for (u32 buffer = 0; buffer < kBuffers; ++buffer) {
            ptx::barrier_init(full_barrier(buffer), 32);
            ptx::barrier_init(empty_barrier(buffer), 4 * Layout::kMathGroups);
        }
    }
};

// A math warp's turn in such buffers, where a main loop takes one at a time (InChunks).
template <class Config, class Buffers>
struct BufferTurns {
    Buffers buffers;
    u32 zero;  // Params::zero
    Ring<Buffers::kBuffers> ring;

    __device__ __forceinline__ explicit BufferTurns(const Pipeline<Config>& stages)
        : buffers(stages.shared), zero(stages.zero) {}

    // Make the scales of the tile's next K steps readable; afterwards steps are counted from the first of them.
    __device__ __forceinline__ void begin() const { ptx::barrier_wait(buffers.full_barrier(ring.stage), ring.phase); }

    // Give the buffer back. `bits` depend on the last step's scales (see Pipeline::release); the sums of the steps
    // before depend on theirs.
    __device__ __forceinline__ void end(u32 bits) {
        __syncwarp();  // every lane has read the buffer
        if (threadIdx.x % 32 == 0) ptx::barrier_arrive(buffers.empty_barrier(ring.stage) + (bits & zero));
        ring.advance();
    }
};

// Scales of A come with their stage, block scales of B in buffers.
template <class Config>
struct BlockReader : StageReader<Config>, BufferTurns<Config, BlockBuffers<Config>> {
    using Turns = BufferTurns<Config, BlockBuffers<Config>>;
    static constexpr u32 kChunk = GemmLayout<Config>::kBlockSteps, kPitchB = 4;

    __device__ __forceinline__ explicit BlockReader(const Pipeline<Config>& stages)
        : StageReader<Config>(stages), Turns(stages) {}

    __device__ __forceinline__ u32 address_b(u32 step, u32) const { return base_b(step); }
    __device__ __forceinline__ u32 base_b(u32 first) const { return this->buffers.data(this->ring.stage) + 4 * first; }
};

// The ring of scales of any layout, for the unrolled loop.
template <class Config>
struct ChunkReader : BufferTurns<Config, ScaleRing<Config>> {
    using Scales = ScaleRing<Config>;
    static constexpr u32 kChunk = Scales::kSteps, kPitchA = 4 * Scales::kPitch, kPitchB = kPitchA;

    __device__ __forceinline__ explicit ChunkReader(const Pipeline<Config>& stages)
        : BufferTurns<Config, Scales>(stages) {}

    __device__ __forceinline__ u32 base_a(u32 first) const {
        return this->buffers.line(this->ring.stage, 0) + kPitchA * first;
    }
    __device__ __forceinline__ u32 base_b(u32 first) const { return base_a(first) + 4 * Config::kBlockM; }
};

// A main loop that multiplies as many K steps at a time as its reader has in a buffer.
template <class Config, class Inner, class Reader>
struct InChunks {
    using Layout = GemmLayout<Config>;
    Inner inner;

    __device__ __forceinline__ InChunks(const Pipeline<Config>& stages, u32 first) : inner(stages, first) {}

    __device__ __forceinline__ void accumulate(float (&final)[Layout::kWaves][Layout::kAccumulators],
                                               Ring<Config::kNumStages>& ring, u32 num_steps, u32 boundary,
                                               u32 offset) {
#pragma unroll 1
        for (u32 left = num_steps; left > 0;) {
            const u32 steps = left < Reader::kChunk ? left : Reader::kChunk;
            inner.reader.begin();
            inner.reader.end(inner.accumulate(final, ring, steps, boundary, offset));
            left -= steps;
        }
    }
};

}  // namespace deep_gemm
