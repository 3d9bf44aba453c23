// A small sum of products in one launch: D[m, n] = sum over g of A[g] . B[g]^T + C, for BF16 A and B, rounded once to
// the type of D.
//
//        one warp                    8 warps of a CTA                 kParts CTAs of a cluster
//   A, B -> registers --mma--> sums --shared memory, in order--> --st.async--> owner's shared memory --> + C --> D
//                                    (a barrier of the CTA)      (its barrier counts the bytes)
//
// A cluster has a tile of D of 32 x 32; the K of all groups together is one long K, in chunks of 32, of which each CTA
// has a part and its warps take them in turn, with the loads of a warp's next chunk under way while it multiplies one
// (mma_ptx.cuh says how they load). All warps have the same role, and wait for no one before their chunks are done. The
// warps' sums are added up in their order, then those of the CTAs (cluster_sum.cuh): no memory for parts, and no second
// launch. For sums whose clusters all run at once; the GEMM kernels read larger ones fewer times
// (summed_scheduler.cuh).
#pragma once

#include "deep_gemm/cluster_sum.cuh"
#include "deep_gemm/mma_ptx.cuh"

namespace deep_gemm {

// Config: kFloatD (else BF16), kHasC, kParts: CTAs of a cluster. Pitches are in elements; k and the pitches of A and B
// are multiples of 8. The grid is (kParts, tiles of n, tiles of m).
template <class Config>
struct SumProducts {
    static constexpr u32 kThreads = 256, kCtasPerSm = 1, kWarps = kThreads / 32, kParts = u32(Config::kParts);
    static constexpr u32 kTile = 32, kRowTiles = kTile / 16, kColumnTiles = kTile / 8, kChunk = 32;
    static constexpr u32 kSums = kRowTiles * kColumnTiles * 4;  // of a thread
    static constexpr u32 kVectors = kSums * 8;                  // of four sums of a warp

    using Total = ClusterSum<kParts, kThreads, kSums * 32>;

    const u16* a;    // [num_groups, m, k]
    const u16* b;    // [num_groups, n, k]
    const float* c;  // [m, n], or null
    void* d;
    i64 a_group_pitch, a_pitch, b_group_pitch, b_pitch, c_pitch, d_pitch;
    u32 num_groups, m, n, k;

    using Sums = float[kRowTiles][kColumnTiles][4];
    struct Operands {
        uint4 a[kRowTiles][2], b[kColumnTiles];
    };

    __device__ __forceinline__ void run() const {
        __shared__ float4 parts[kWarps][kVectors];
        __shared__ float4 received[kParts][Total::kOwned];
        __shared__ u64 barrier[1];
        const Total total{ptx::shared_address(received), ptx::shared_address(barrier)};
        total.begin();
        Sums sums = {};
        add_part(sums);
        keep(sums, reinterpret_cast<float*>(parts[warp()]));
        __syncthreads();
        total.wait_for_barriers();
        send_warps(total, parts);
        total.finish([this](u32 at, float sum) { store(at, sum); });
    }

   private:
    __device__ __forceinline__ static u32 lane() { return threadIdx.x % 32; }
    __device__ __forceinline__ static u32 warp() { return threadIdx.x / 32; }
    __device__ __forceinline__ static u32 first_row() { return blockIdx.z * kTile; }
    __device__ __forceinline__ static u32 first_column() { return blockIdx.y * kTile; }

    // Rows beyond the matrix are those of the last one, and never stored.
    __device__ __forceinline__ static uint4 load_row(const u16* matrix, i64 pitch, u32 row, u32 rows) {
        return ptx::load_once(matrix + (row < rows ? row : rows - 1) * pitch);
    }

    // A chunk of 32 K of one group; zero beyond its end.
    __device__ __forceinline__ void load(Operands& operands, u32 chunk, u32 group_chunks) const {
        const u32 group = chunk / group_chunks, at = (chunk - group * group_chunks) * kChunk + lane() % 4 * 8;
        const u16 *from_a = a + group * a_group_pitch + at, *from_b = b + group * b_group_pitch + at;
        const u32 row = first_row() + lane() / 4, column = first_column() + lane() / 4;
#pragma unroll
        for (u32 tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
            for (u32 half = 0; half < 2; ++half)
                operands.a[tile][half] = at < k ? load_row(from_a, a_pitch, row + tile * 16 + half * 8, m) : uint4{};
#pragma unroll
        for (u32 tile = 0; tile < kColumnTiles; ++tile)
            operands.b[tile] = at < k ? load_row(from_b, b_pitch, column + tile * 8, n) : uint4{};
    }

    __device__ __forceinline__ static void multiply(Sums& sums, const Operands& operands) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half)
#pragma unroll
            for (u32 tile = 0; tile < kRowTiles; ++tile) {
                const uint4 &low = operands.a[tile][0], &high = operands.a[tile][1];
                const u32 fragment[4] = {word_of(low, 2 * half), word_of(high, 2 * half), word_of(low, 2 * half + 1),
                                         word_of(high, 2 * half + 1)};
#pragma unroll
                for (u32 column = 0; column < kColumnTiles; ++column)
                    ptx::multiply_16x8x16(sums[tile][column], fragment, word_of(operands.b[column], 2 * half),
                                          word_of(operands.b[column], 2 * half + 1));
            }
    }

    // This warp's chunks of this CTA's part of K. The next one is under way while one is multiplied.
    __device__ __forceinline__ void add_part(Sums& sums) const {
        const u32 group_chunks = ceil_div(k, kChunk), chunks = num_groups * group_chunks, part = blockIdx.x;
        const u32 end = (part + 1) * chunks / kParts;
        u32 chunk = part * chunks / kParts + warp();
        Operands operands, next;
        if (chunk < end) load(next, chunk, group_chunks);
#pragma unroll 1
        for (; chunk < end; chunk += kWarps) {
            operands = next;
            if (chunk + kWarps < end) load(next, chunk + kWarps, group_chunks);
            multiply(sums, operands);
        }
    }

    // What the threads of a warp hold lies in the order of their registers.
    __device__ __forceinline__ static void keep(const Sums& sums, float* part) {
#pragma unroll
        for (u32 i = 0; i < kSums; ++i)
            part[i * 32 + lane()] = sums[i / (4 * kColumnTiles)][i / 4 % kColumnTiles][i % 4];
    }

    __device__ __forceinline__ static void send_warps(const Total& total, const float4 (&parts)[kWarps][kVectors]) {
#pragma unroll
        for (u32 vector = threadIdx.x; vector < kVectors; vector += kThreads) {
            const float4 first = parts[0][vector];
            float sum[4] = {first.x, first.y, first.z, first.w};
#pragma unroll
            for (u32 other = 1; other < kWarps; ++other) {
                const float4 part = parts[other][vector];
                sum[0] = __fadd_rn(sum[0], part.x), sum[1] = __fadd_rn(sum[1], part.y);
                sum[2] = __fadd_rn(sum[2], part.z), sum[3] = __fadd_rn(sum[3], part.w);
            }
            total.send(vector, sum);
        }
    }

    // `at`: register at / 32 of lane at % 32.
    __device__ __forceinline__ void store(u32 at, float value) const {
        const u32 from = at % 32, i = at / 32;
        const u32 row = first_row() + i / (4 * kColumnTiles) * 16 + i / 2 % 2 * 8 + from / 4;
        const u32 column = first_column() + i / 4 % kColumnTiles * 8 + from % 4 * 2 + i % 2;
        if (row >= m || column >= n) return;
        if constexpr (Config::kHasC != 0) value = __fadd_rn(value, c[row * c_pitch + column]);
        if constexpr (Config::kFloatD != 0) {
            static_cast<float*>(d)[row * d_pitch + column] = value;
        } else {
            static_cast<u16*>(d)[row * d_pitch + column] = u16(ptx::pack_bf16(value, 0.0f));
        }
    }
};

}  // namespace deep_gemm
