// The projection before a hyper-connection's norm: D = A . B^T and the sums of squares of the rows of A, in one pass
// over A. B has few rows, so the kernel lives on the bandwidth with which A comes from memory.
//
// A is BF16, B FP32. Each number of B is the sum of two BF16 numbers, to 2^-17 of its size, and A . B^T the sum of two
// BF16 products, which tensor cores add up in FP32. One TF32 product would cost as much, with 2^-11.
//
//        one warp                       12 warps of a CTA                 kParts CTAs of a cluster
//   A -> registers --mma--> sums --shared memory: 12 -> 6 -> 3 slots--> --st.async--> owner's shared memory --> D,
//   B -> split in two ----^   |     (a barrier of the CTA after each)   (its barrier counts the bytes)        squares
//                             + squares of A's rows
//
// A CTA has kRows rows and a part of K, in chunks of 32, which its warps take in turn (mma_ptx.cuh says how they load);
// each warp has the loads of its next chunk of A under way while it multiplies one. All warps have the same role. No
// barrier is waited for before the part is finished; then the warps add up their sums in a fixed order. Parts that are
// not the result itself are added up by the cluster that their CTAs make (cluster_sum.cuh), or, where there are more of
// them than a cluster has CTAs, by another kernel (hc_prenorm_sum.cuh).
#pragma once

#include "deep_gemm/cluster_sum.cuh"
#include "deep_gemm/mma_ptx.cuh"

namespace deep_gemm {

// Config: kColumnTiles, the rows of B in eights, at most 3; kRowTiles, the rows of a CTA in sixteens, at most 4;
// kParts, the CTAs of a cluster, or 1. Pitches are in elements; k and that of A are multiples of 8, that of B of 4. The
// grid is (tiles of rows * kParts, num_parts / kParts).
template <class Config>
struct HcPrenorm {
    static constexpr u32 kThreads = 384, kCtasPerSm = 1, kWarps = kThreads / 32;
    static constexpr u32 kRowTiles = u32(Config::kRowTiles), kColumnTiles = u32(Config::kColumnTiles),
                         kParts = u32(Config::kParts);
    static constexpr u32 kRows = 16 * kRowTiles, kChunk = 32;
    // Of the sums in shared memory: the last column has the squares.
    static constexpr u32 kColumns = 8 * kColumnTiles, kPitch = kColumns + 1;
    static constexpr u32 kNumbers = kRows * kPitch, kSlots = kWarps / 2;
    using Total = ClusterSum<kParts, kThreads, kNumbers>;

    const u16* a;    // [m, k]
    const float* b;  // [n, k]
    float* d;        // [num_parts, m, n], or [m, n] of a cluster
    float* squares;  // [num_parts, m], or [m]
    i64 a_pitch, b_pitch, d_part_pitch, d_pitch, squares_part_pitch;
    u32 m, n, k, num_parts;

    struct Sums {
        float product[kRowTiles][kColumnTiles][4];
        float squares[kRowTiles][2];
    };
    using RowsOfA = uint4[kRowTiles][2];

    __device__ __forceinline__ void run() const {
        __shared__ float slots[kSlots][kNumbers];
        if constexpr (kParts > 1) {
            __shared__ float4 received[kParts][Total::kOwned];
            __shared__ u64 barrier[1];
            const Total total{ptx::shared_address(received), ptx::shared_address(barrier)};
            total.begin();
            add_rows(slots);
            total.wait_for_barriers();
            send(total, slots);
            total.finish([this](u32 at, float sum) { store(at, sum, 0); });
        } else {
            add_rows(slots);
            for (u32 at = threadIdx.x; at < kNumbers; at += kThreads) store(at, add_slots(slots, at), own_part());
        }
    }

   private:
    __device__ __forceinline__ static u32 lane() { return threadIdx.x % 32; }
    __device__ __forceinline__ static u32 warp() { return threadIdx.x / 32; }
    __device__ __forceinline__ static u32 first_row() { return blockIdx.x / kParts * kRows; }
    __device__ __forceinline__ static u32 own_part() { return kParts > 1 ? blockIdx.x % kParts : blockIdx.y; }

    // Eight of K from `at` on; zero beyond the matrix. Rows beyond it are those of the last one, and never stored.
    __device__ __forceinline__ void load_a(RowsOfA& rows, u32 at) const {
#pragma unroll
        for (u32 tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 row = first_row() + tile * 16 + half * 8 + lane() / 4, last = m - 1;
                rows[tile][half] = at < k ? ptx::load_once(a + (row < last ? row : last) * a_pitch + at) : uint4{};
            }
    }

    // A BF16 above and one below that add up to a number of B; a number that is not finite has all of it above.
    __device__ __forceinline__ static void split(float x, float y, u32& above, u32& below) {
        const u32 x_bits = __float_as_uint(x), y_bits = __float_as_uint(y);
        const bool is_finite = (x_bits & 0x7f800000) != 0x7f800000 && (y_bits & 0x7f800000) != 0x7f800000;
        above = is_finite ? __byte_perm(x_bits, y_bits, 0x7632) : ptx::pack_bf16(x, y);
        const float x_left = x - __uint_as_float(x_bits & 0xffff0000),
                    y_left = y - __uint_as_float(y_bits & 0xffff0000);
        below = is_finite ? ptx::pack_bf16(x_left, y_left) : 0;
    }

    __device__ __forceinline__ void multiply(Sums& sums, const RowsOfA& rows, u32 at) const {
#pragma unroll
        for (u32 column = 0; column < kColumnTiles; ++column) {
            const u32 row_b = column * 8 + lane() / 4, last = n - 1;
            const float* from = b + (row_b < last ? row_b : last) * b_pitch + at;
            const float4 zero = {};
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const float4 four = at < k ? __ldg(reinterpret_cast<const float4*>(from) + half) : zero;
                u32 above[2], below[2];
                split(four.x, four.y, above[0], below[0]);
                split(four.z, four.w, above[1], below[1]);
#pragma unroll
                for (u32 tile = 0; tile < kRowTiles; ++tile) {
                    const uint4 &low = rows[tile][0], &high = rows[tile][1];
                    const u32 fragment[4] = {word_of(low, 2 * half), word_of(high, 2 * half),
                                             word_of(low, 2 * half + 1), word_of(high, 2 * half + 1)};
                    ptx::multiply_16x8x16(sums.product[tile][column], fragment, above[0], above[1]);
                    ptx::multiply_16x8x16(sums.product[tile][column], fragment, below[0], below[1]);
                }
            }
        }
    }

    __device__ __forceinline__ static void add_square(float& sum, u32 pair) {
        const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000);
        sum = __fmaf_rn(low, low, sum);
        sum = __fmaf_rn(high, high, sum);
    }

    __device__ __forceinline__ static void add_squares(Sums& sums, const RowsOfA& rows) {
#pragma unroll
        for (u32 tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
            for (u32 half = 0; half < 2; ++half)
#pragma unroll
                for (u32 i = 0; i < 4; ++i) add_square(sums.squares[tile][half], word_of(rows[tile][half], i));
    }

    // This warp's chunks of this CTA's part of K. The rows of the next one are under way while one is multiplied.
    __device__ __forceinline__ void add_part(Sums& sums) const {
        const u32 chunks = ceil_div(k, kChunk), part = own_part();
        const u32 first = u32(u64(part) * chunks / num_parts), end = u32(u64(part + 1) * chunks / num_parts);
        const u32 own = lane() % 4 * 8;
        RowsOfA rows, next;
        load_a(next, first + warp() < end ? (first + warp()) * kChunk + own : k);
#pragma unroll 1
        for (u32 chunk = first + warp(); chunk < end; chunk += kWarps) {
#pragma unroll
            for (u32 tile = 0; tile < kRowTiles; ++tile) rows[tile][0] = next[tile][0], rows[tile][1] = next[tile][1];
            load_a(next, chunk + kWarps < end ? (chunk + kWarps) * kChunk + own : k);
            multiply(sums, rows, chunk * kChunk + own);
            add_squares(sums, rows);
        }
    }

    // The four lanes of a row have its squares of different K.
    __device__ __forceinline__ static void add_lanes(Sums& sums) {
#pragma unroll
        for (u32 tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
            for (u32 half = 0; half < 2; ++half)
#pragma unroll
                for (u32 distance = 1; distance < 4; distance *= 2)
                    sums.squares[tile][half] += __shfl_xor_sync(0xffffffff, sums.squares[tile][half], distance);
    }

    // Call `visit(place in a slot, sum)` for each sum that this thread holds.
    template <typename Visit>
    __device__ __forceinline__ static void for_each_sum(Sums& sums, Visit visit) {
#pragma unroll
        for (u32 tile = 0; tile < kRowTiles; ++tile) {
            const u32 row = tile * 16 + lane() / 4;
#pragma unroll
            for (u32 column = 0; column < kColumnTiles; ++column)
#pragma unroll
                for (u32 i = 0; i < 4; ++i)
                    visit((row + i / 2 * 8) * kPitch + column * 8 + lane() % 4 * 2 + i % 2,
                          sums.product[tile][column][i]);
            if (lane() % 4 == 0) {
                visit(row * kPitch + kColumns, sums.squares[tile][0]);
                visit((row + 8) * kPitch + kColumns, sums.squares[tile][1]);
            }
        }
    }

    // The sums of the warps from `count` / 2 on go to shared memory and are added by those below, until three are left,
    // which lie there.
    __device__ __forceinline__ static void add_warps(Sums& sums, float (&slots)[kSlots][kNumbers]) {
        static_assert(kWarps == 12, "12 warps, 6, 3");
#pragma unroll 1
        for (u32 count = kWarps; count > 3; count /= 2) {
            float* slot = slots[warp() % (count / 2)];
            if (warp() >= count / 2 && warp() < count) for_each_sum(sums, [&](u32 at, float& sum) { slot[at] = sum; });
            __syncthreads();
            if (warp() < count / 2) for_each_sum(sums, [&](u32 at, float& sum) { sum = __fadd_rn(sum, slot[at]); });
            __syncthreads();
        }
        if (warp() < 3) for_each_sum(sums, [&](u32 at, float& sum) { slots[warp()][at] = sum; });
        __syncthreads();
    }

    // The sums of this CTA's part, in three slots.
    __device__ __forceinline__ void add_rows(float (&slots)[kSlots][kNumbers]) const {
        Sums sums = {};
        add_part(sums);
        add_lanes(sums);
        add_warps(sums, slots);
    }

    __device__ __forceinline__ static float add_slots(const float (&slots)[kSlots][kNumbers], u32 at) {
        return __fadd_rn(__fadd_rn(slots[0][at], slots[1][at]), slots[2][at]);
    }

    __device__ __forceinline__ static void send(const Total& total, const float (&slots)[kSlots][kNumbers]) {
#pragma unroll 1
        for (u32 vector = threadIdx.x; vector < Total::kVectors; vector += kThreads) {
            float sum[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) sum[i] = add_slots(slots, vector * 4 + i);
            total.send(vector, sum);
        }
    }

    __device__ __forceinline__ void store(u32 at, float sum, u32 slice) const {
        const u32 row = first_row() + at / kPitch, column = at % kPitch;
        if (row >= m) return;
        if (column < n) d[slice * d_part_pitch + row * d_pitch + column] = sum;
        if (column == kColumns) squares[slice * squares_part_pitch + row] = sum;
    }
};

}  // namespace deep_gemm
