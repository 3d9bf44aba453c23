// The loading warp: it issues all TMA loads of stages and does little else (H200, grouped contiguous, 128x128 tiles,
// k = 2048: finding tiles and copying block scales beside it kept a stage busy for 500 cycles, as many as its
// multiplication takes; 127 us against 112).
#pragma once

#include "deep_gemm/sm90/mainloop/pipeline.cuh"
#include "deep_gemm/sm90/mainloop/tensor_access.cuh"
#include "deep_gemm/sm90/scheduler/tile.cuh"

namespace deep_gemm {

// The K steps of a CTA's first tile that are loaded before its first barrier: nothing can be waiting for these stages
// yet, the first bytes leave memory earlier, and no math warp polls a barrier meanwhile (H200, m 1, n 32768, k 512:
// 9.0 us against 9.9). At most kMostPrefilled: a ring of 17 takes 0.9 us to fill, and math would begin behind that
// (H100, (16, 2112, 7168): 9.25 us with all stages, 8.93 with six; with four (512, 576, 7168) lost 4 %). Only without a
// peer, whose barriers must exist before anything is multicast to it.
constexpr u32 kMostPrefilled = 6;
template <class Config>
__device__ __forceinline__ u32 count_prefilled(const Tile& tile) {
    if (GemmLayout<Config>::kMulticast || !tile.is_valid()) return 0;
    constexpr u32 kMost = Config::kNumStages < kMostPrefilled ? Config::kNumStages : kMostPrefilled;
    return tile.num_steps < kMost ? tile.num_steps : kMost;
}

// Rows of a box of an MN-major tile, which is 64 along M or N.
constexpr u32 kBox = 64;

// Of a tile's kTile rows from `start` on, those that a matrix of `size` has, in whole units.
template <u32 kTile, u32 kUnit>
__device__ __forceinline__ u32 count_left(u32 start, u32 size) {
    const u32 left = start < size ? align_up(size - start, kUnit) : 0;
    return left < kTile ? left : kTile;
}

// The sizes of the matrix that the loading warp asks for, and how many rows of B's current tile are loaded: all, unless
// B is cut. Only then is N kept, for a value that no one needs may change the machine code of the others.
template <bool kCutsB, u32 kBlockN>
struct LoadedSizes {
    u32 m;
    __device__ __forceinline__ LoadedSizes(u32 m_, u32) : m(m_) {}
    __device__ __forceinline__ void begin(const Tile&) {}
    __device__ __forceinline__ static constexpr u32 rows_b() { return kBlockN; }
};
template <u32 kBlockN>
struct LoadedSizes<true, kBlockN> {
    u32 m, n, rows = kBlockN;
    __device__ __forceinline__ LoadedSizes(u32 m_, u32 n_) : m(m_), n(n_) {}
    __device__ __forceinline__ void begin(const Tile& tile) { rows = count_left<kBlockN, kBox>(tile.n_start, n); }
    __device__ __forceinline__ u32 rows_b() const { return rows; }
};

// How B is loaded where Tile::kReadsOnce occurs: its lines are the first to leave L2, so that D's stay there, for the
// kernel that reads them next, instead of being written to memory between the reads of B.
template <bool kMayReadOnce>
struct PassingLoad {
    __device__ __forceinline__ void begin() {}
};
template <>
struct PassingLoad<true> {
    u64 policy = 0;
    __device__ __forceinline__ void begin() { policy = ptx::evict_first_policy(); }
};

template <class Config, class Scheduler>
struct Loader {
    using Layout = GemmLayout<Config>;
    using Access = TensorAccess<Scheduler::kIsGrouped>;
    using OperandMaps = typename Scheduler::OperandMaps;
    // A tile that the matrix does not fill loads the rows of A that there are, by a map whose box has just these:
    // absent rows cost more than others where many CTAs ask for them (H200, (129, 4096, 7168), tile 64x96: 19.6 us with
    // and 14.0 without). What the rest of the tile then holds reaches only rows of D that are never stored.
    static constexpr bool kCutsA = !OperandMaps::kPerGroup && Config::kClusterN == 1 && !Config::kMnMajorA;
    // Boxes of an MN-major tile that lie wholly beyond the matrix are left out, too (H100, groups of K of 2880 x 2880,
    // tile 128x128: 0.87 to 0.91 of the time). A tile one box wide has none of them.
    static constexpr bool kCutsBoxesA = Config::kMnMajorA && Layout::kBlockM > kBox;
    static constexpr bool kCutsBoxesB = Config::kMnMajorB && Layout::kBlockN > kBox;

    const Maps& maps;
    Pipeline<Config> stages;
    u32 cluster_rank;
    LoadedSizes<kCutsBoxesB, Layout::kBlockN> sizes;
    u32 all_steps;
    OperandMaps operands;
    u32 rows_a = Layout::kBlockM;  // of the current tile; none where a cluster's second tile lies beyond the matrix
    PassingLoad<Scheduler::kMayReadOnce> passing;

    // Before a tile's first step; by the whole warp.
    __device__ __forceinline__ void begin(const Tile& tile) {
        operands.prepare(tile);
        if constexpr (kCutsA) rows_a = count_left<Layout::kBlockM, 1>(tile.m_start, sizes.m);
        if constexpr (kCutsBoxesA) rows_a = count_left<Layout::kBlockM, kBox>(tile.m_start, sizes.m);
        sizes.begin(tile);
        passing.begin();
    }
    __device__ __forceinline__ const TensorMap* map_a() const {
        if constexpr (kCutsA) {
            if (rows_a < Layout::kBlockM) return operands.a_tail();
        }
        return operands.a();
    }

    // Load one operand's tile, or this CTA's half of it for both CTAs of the cluster; with `is_apart` both halves of
    // its own, by the map of halves. Of an MN-major tile there are `rows`. Both CTAs of a pair along n take the boxes
    // of A in turn (groups of K 0.97 to 1.00, dense 0.98 to 0.99); along m, where that takes 1.01, each loads all of B.
    template <bool kMnMajor, bool kShared, u32 kTile>
    __device__ __forceinline__ void load_operand(const TensorMap* map, u32 barrier, u32 to, u32 k, u32 start,
                                                 u32 matrix, bool is_apart, u32 rows) const {
        if constexpr (kMnMajor) {
#pragma unroll
            for (u32 at = 0; at < kTile; at += kBox) {
                if (kTile > kBox && at >= rows) break;
                const u32 box = to + at * 128;
                if constexpr (kShared && Config::kClusterN > 1) {
                    if (at / kBox % 2 == cluster_rank) Access::load_shared(map, barrier, box, start + at, k, matrix);
                } else {
                    Access::load(map, barrier, box, start + at, k, matrix);
                }
            }
        } else if constexpr (kShared) {
            const u32 first = cluster_rank * (kTile / 2), other = kTile / 2 - first;
            if (Scheduler::kMayLoadApart && is_apart) {
                Access::load(map, barrier, to + first * 128, k, start + first, matrix);
                Access::load(map, barrier, to + other * 128, k, start + other, matrix);
            } else {
                Access::load_shared(map, barrier, to + first * 128, k, start + first, matrix);
            }
        } else {
            Access::load(map, barrier, to, k, start, matrix);
        }
    }

    // By one lane.
    __device__ __forceinline__ void load_b(u32 stage, u32 k, const Tile& tile, u32 matrix) const {
        const u32 barrier = stages.full_barrier(stage), to = stages.stage_b(stage);
        if constexpr (Scheduler::kMayReadOnce) {
            if (tile.state & Tile::kReadsOnce) {
                ptx::tma_load_3d_hint(operands.b(), barrier, to, k, tile.n_start, matrix, passing.policy);
                return;
            }
        }
        load_operand<Config::kMnMajorB, (Config::kClusterM > 1), Layout::kBlockN>(
            operands.b(), barrier, to, k, tile.n_start, matrix, (tile.state & Tile::kLoadsApart) != 0, sizes.rows_b());
    }

    // By the whole warp. `step` counts within the tile's steps.
    __device__ __forceinline__ void load_stage(u32 stage, u32 step, const Tile& tile) const {
        const u32 barrier = stages.full_barrier(stage);
        const StepPlace place = Scheduler::place(tile, step, all_steps);
        const u32 k = (OperandMaps::kPerGroup ? step : place.k_step) * Layout::kBlockK;
        if (ptx::elect_one()) {
            ptx::barrier_arrive_expect(barrier, rows_a * 128 + sizes.rows_b() * 128 + Layout::kVectorBytes);
            if (!kCutsA || Config::kClusterM == 1 || rows_a > 0)
                load_operand<Config::kMnMajorA, (Config::kClusterN > 1), Layout::kBlockM>(
                    map_a(), barrier, stages.stage_a(stage), k, tile.m_start, place.matrix_a, false, rows_a);
            load_b(stage, k, tile, place.matrix_b);
            if constexpr (Layout::kStageScales) {
                Access::load(&maps.scale_a, barrier, stages.scales_a(stage), tile.m_start, place.k_step,
                             place.matrix_a);
                if constexpr (Layout::kVectorB)
                    Access::load(&maps.scale_b, barrier, stages.scales_b(stage), tile.n_start, place.k_step,
                                 place.matrix_b);
            }
        }
        __syncwarp();
    }

    __device__ __forceinline__ void prefill(const Tile& tile) {
        const u32 count = count_prefilled<Config>(tile);
        if (count > 0) begin(tile);
#pragma unroll 1
        for (u32 step = 0; step < count; ++step) load_stage(step, step, tile);
    }

    template <class Walk>
    __device__ __forceinline__ void run(Walk walk) {
        Tile tile = walk.first();
        u32 first = count_prefilled<Config>(tile);
        Ring<Config::kNumStages> ring;
        ring.stage = first % Config::kNumStages;
        ring.phase = first / Config::kNumStages;
#pragma unroll 1
        for (; tile.is_valid(); tile = walk.next(), first = 0) {
            begin(tile);
#pragma unroll 1
            for (u32 step = first; step < tile.num_steps; ++step, ring.advance()) {
                wait_until_left(ring);
                load_stage(ring.stage, step, tile);
            }
        }
        if constexpr (Layout::kMulticast) wait_for_peer(ring);
    }

   private:
    // Until the math warps of the cluster have left the stage.
    __device__ __forceinline__ void wait_until_left(const Ring<Config::kNumStages>& ring) const {
        ptx::barrier_wait(stages.empty_barrier(ring.stage), ring.phase ^ 1);
    }

    // A CTA stays until its peer signals its barriers no more: until both have left every stage.
    __device__ __forceinline__ void wait_for_peer(Ring<Config::kNumStages> ring) const {
#pragma unroll 1
        for (u32 i = 0; i < Config::kNumStages; ++i, ring.advance()) wait_until_left(ring);
    }
};

}  // namespace deep_gemm
