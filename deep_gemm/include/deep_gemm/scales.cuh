// Scale factors on their way from global memory to the math warps, any strides.
//
// Three warps of the producer warpgroup copy the scales of a tile by cp.async into a small ring of their own: a buffer holds kSteps
// K steps of kBlockM scales of A and of the one or two B scales that the tile meets. Eight steps of a row-major row are one 32-byte
// sector, so row-major and MN-major scales cost about the same and need no transposing launch.
// Buffer b has a full barrier (one arrival per copying thread, triggered by its copies) and an empty barrier (one per math warp).
// Why not in the math warps: there each load-ahead sits in the gap between two multiplications (H200, m = n = 4096, k = 7168, tile
// 256x128: 190 us against 165 us without any scales).
#pragma once

#include "deep_gemm/ptx.cuh"
#include "deep_gemm/ring.cuh"

namespace deep_gemm {

template <u32 kBlockM, u32 kMathWarps, bool kTwoScales>
struct ScaleRing {
    static constexpr u32 kSteps = 8;
    static constexpr u32 kBuffers = kBlockM == 64 ? 4 : 2;  // a 64-row tile's steps are short, so it needs more of them ahead
    static constexpr u32 kBlocks = kTwoScales ? 2 : 1;
    static constexpr u32 kPitch = kBlockM + 2;
    static constexpr u32 kBufferBytes = 4 * kSteps * kPitch;
    static constexpr u32 kBytes = kBuffers * kBufferBytes;
    static constexpr u32 kBarrierBytes = 16 * kBuffers;
    static constexpr u32 kCopyThreads = 96;
    static constexpr u32 kFullArrivals = kCopyThreads, kEmptyArrivals = kMathWarps;

    u32 data, barriers;  // shared addresses

    __device__ __forceinline__ u32 full_barrier(u32 buffer) const { return barriers + 8 * buffer; }
    __device__ __forceinline__ u32 empty_barrier(u32 buffer) const { return full_barrier(kBuffers + buffer); }
    __device__ __forceinline__ u32 line(u32 buffer, u32 step) const { return data + buffer * kBufferBytes + step % kSteps * 4 * kPitch; }

    // Copy steps first_step .. first_step + 7 of a tile: eight neighbouring threads take the eight steps of a row. Rows beyond m are left
    // out (their results are never stored), and so are steps beyond the last. The caller arrives at the buffer's full barrier.
    __device__ __forceinline__ void copy_group(const Params& params, u32 buffer, u32 thread, u32 first_step, u32 num_steps, u32 m_start, u32 n_start, u32 m, u32 n) const {
        const u32 step = first_step + thread % kSteps, first = thread / kSteps;
        const u32 to = line(buffer, step);
        if (step < num_steps) {
            const float* from = params.scale_a + step * params.scale_a_stride_k;
#pragma unroll 4
            for (u32 row = first; row < kBlockM; row += kCopyThreads / kSteps) {
                if (m_start + row < m) ptx::copy_4(to + 4 * row, from + (m_start + row) * params.scale_a_stride_m);
            }
            const u32 block = n_start / 128 + first;
            if (first < kBlocks && block * 128 < n) {
                ptx::copy_4(to + 4 * (kBlockM + first), params.scale_b + block * params.scale_b_stride_n + step * params.scale_b_stride_k);
            }
        }
    }
};

// One math warp's place in the ring of scales.
template <class Scales>
struct ScaleReader {
    const Scales& scales;
    Ring<Scales::kBuffers> ring;
    bool holding = false;

    __device__ __forceinline__ explicit ScaleReader(const Scales& scales) : scales(scales) {}

    // Make the scales of K step `step` of a tile readable; call once a step, in order, tile after tile.
    __device__ __forceinline__ void advance(u32 step) {
        if (step % Scales::kSteps != 0) return;
        if (holding) {
            __syncwarp();  // every lane has read the buffer that is given back
            if (threadIdx.x % 32 == 0) ptx::barrier_arrive(scales.empty_barrier(ring.stage));
            ring.advance();
        }
        holding = true;
        ptx::barrier_wait(scales.full_barrier(ring.stage), ring.phase);
    }

    // Start reading the scales of A for the rows `row` and `row` + 8 of the tile, and those of its B blocks.
    __device__ __forceinline__ void read(float (&scale_a)[2], float (&scale_b)[Scales::kBlocks], u32 step, u32 row) const {
        const u32 line = scales.line(ring.stage, step), at = line + 4 * row;
        scale_a[0] = ptx::load_shared(at);
        scale_a[1] = ptx::load_shared(at + 32);
#pragma unroll
        for (u32 block = 0; block < Scales::kBlocks; ++block) scale_b[block] = ptx::load_shared(line + 4 * (Scales::kPitch - 2 + block));
    }
};

}  // namespace deep_gemm
