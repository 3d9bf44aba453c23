// Differentiates y = silu(gate) * up of rows [gate, up] in one pass: from the gradient of y those of gate and up, and
// with kHasY y again, for the gradient of the weight that y is multiplied with. The steps are those of the formula of
// deep_gemm/nn/swiglu.py, in FP32; the results are rounded to the type of x, FP32 or BF16.
//
// A chunk of 16 bytes of each row belongs to a thread. The kernel waits for memory: what it computes is hidden by that.
#pragma once

#include "deep_gemm/fp8_cast.cuh"
#include "deep_gemm/sm90/ptx/ptx.cuh"

namespace deep_gemm {

template <class Config>
struct SwigluGrad {
    static constexpr Element kElement = static_cast<Element>(Config::kElement);
    using Words = Elements<kElement>;
    static constexpr bool kAligned = Config::kAligned, kHasY = Config::kHasY;
    static constexpr u32 kThreads = 256, kCtasPerSm = 4, kChunk = Words::kChunk;
    static_assert(kElement != Element::kFloat16, "y may exceed what FP16 holds");

    const void* x;     // [m, 2n]
    const void* grad;  // [m, n], of y
    u8 *dx, *y;        // [m, 2n] and, kHasY only, [m, n]; contiguous
    u32 m, n;
    u32 chunks;           // of a row of y
    u32 magic, shift;     // index / chunks == __umulhi(index, magic) >> shift
    i64 x_row, grad_row;  // bytes

    struct Results {
        float gate[kChunk], up[kChunk], y[kChunk];
    };

    __device__ static __forceinline__ void differentiate(const u32 (&gates)[4], const u32 (&ups)[4],
                                                         const u32 (&grads)[4], Results& results) {
        float gate[kChunk], up[kChunk], grad[kChunk];
        Words::unpack(gates, gate);
        Words::unpack(ups, up);
        Words::unpack(grads, grad);
#pragma unroll
        for (u32 i = 0; i < kChunk; ++i) {
            const float divisor = __fadd_rn(1.0f, expf(-gate[i])), sigmoid = __fdiv_rn(1.0f, divisor);
            const float slope = __fmul_rn(sigmoid, __fadd_rn(1.0f, __fmul_rn(gate[i], __fsub_rn(1.0f, sigmoid))));
            results.gate[i] = __fmul_rn(__fmul_rn(grad[i], up[i]), slope);
            results.up[i] = __fmul_rn(__fmul_rn(grad[i], gate[i]), sigmoid);
            results.y[i] = __fmul_rn(__fdiv_rn(gate[i], divisor), up[i]);
        }
    }

    __device__ static __forceinline__ void pack(const float (&values)[kChunk], u32 (&words)[4]) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            if constexpr (kElement == Element::kFloat32)
                words[i] = __float_as_uint(values[i]);
            else
                words[i] = ptx::pack_bf16(values[2 * i], values[2 * i + 1]);
        }
    }

    // Store the elements of a chunk that lie within the row's n.
    __device__ static __forceinline__ void store(u8* row, u32 column, u32 n, const float (&values)[kChunk]) {
        u32 words[4];
        pack(values, words);
        u8* place = row + u64(column) * Words::kBytes;
        if constexpr (kAligned) {
            *reinterpret_cast<uint4*>(place) = make_uint4(words[0], words[1], words[2], words[3]);
        } else {
#pragma unroll
            for (u32 i = 0; i < kChunk; ++i) {
                if (column + i >= n) continue;
                if constexpr (Words::kBytes == 4)
                    reinterpret_cast<u32*>(place)[i] = words[i];
                else
                    reinterpret_cast<u16*>(place)[i] = static_cast<u16>(words[i / 2] >> 16 * (i % 2));
            }
        }
    }

    __device__ __forceinline__ void run_chunk(u32 index) const {
        const u32 row = __umulhi(index, magic) >> shift, column = (index - row * chunks) * kChunk;
        const u8* gate_row = static_cast<const u8*>(x) + row * x_row;
        u32 gates[4], ups[4], grads[4];
        Words::template load<kAligned>(gate_row, column, n, gates);
        Words::template load<kAligned>(gate_row + u64(n) * Words::kBytes, column, n, ups);
        Words::template load<kAligned>(static_cast<const u8*>(grad) + row * grad_row, column, n, grads);
        Results results;
        differentiate(gates, ups, grads, results);
        const u64 row_bytes = u64(n) * Words::kBytes;
        store(dx + 2 * row * row_bytes, column, n, results.gate);
        store(dx + (2 * row + 1) * row_bytes, column, n, results.up);
        if constexpr (kHasY) store(y + row * row_bytes, column, n, results.y);
    }

    __device__ __forceinline__ void run() const {
        const u32 index = blockIdx.x * kThreads + threadIdx.x;
        if (index < m * chunks) run_chunk(index);
    }
};

}  // namespace deep_gemm
