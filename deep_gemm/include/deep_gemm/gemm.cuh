// The skeleton of all GEMM kernels for SM90: D[m,n] = alpha * (A . B^T) + beta * C, operands scaled or not.
//
// Roles. Math warpgroups 0 .. kMathGroups-1 multiply; the last warpgroup produces (producer.cuh). A ring of kNumStages stages lies between
// them (pipeline.cuh). The grid is persistent and the ring runs on across tiles, so the producer loads the next tile during an epilogue;
// with split K the grid has a cluster for each tile, and the CTAs of a cluster share its K (split_k.cuh).
// What lies where in shared memory, and how often each barrier is arrived at, is derived in gemm_layout.cuh.
//
// Config and Wgmma come from the generated source: Config names the constants, Wgmma::multiply<accumulate> is one WGMMA of the N
// it needs (PTX ISA, "wgmma.mma_async"). Mainloop adds one tile's share of K to an FP32 accumulator.
#pragma once

#include "deep_gemm/accumulation.cuh"
#include "deep_gemm/epilogue.cuh"
#include "deep_gemm/epilogue_direct.cuh"
#include "deep_gemm/producer.cuh"
#include "deep_gemm/split_k.cuh"

namespace deep_gemm {

template <class Config, template <class> class MainloopOf>
struct Gemm {
    using Layout = GemmLayout<Config>;
    using Scheduler = TileScheduler<Config>;
    using Tile = StoreTile<Layout::kColumns, Layout::kSwap, Config::kFloatD>;
    using Mainloop = typename MainloopOf<Config>::Type;
    using Scales = ScaleRing<Config>;
    static constexpr u32 kAccumulators = Layout::kAccumulators;
    static constexpr bool kLoadsC = Layout::kLoadsC;

    const Maps& maps;
    const Params& params;
    u32 shared, cluster_rank;
    u32 m, n, first_step, num_steps;
    Pipeline<Config> stages;
    Scales scales;
    SplitK<Config> split;
    Accumulation<Config> accumulation;

    __device__ __forceinline__ Gemm(const Maps& maps, const Params& params, u32 shared)
        : maps(maps), params(params), shared(shared), cluster_rank(Layout::kClusterSize > 1 ? ptx::cluster_rank() : 0), stages{shared, params.zero} {
        m = Config::kShapeM ? Config::kShapeM : params.m;
        n = Config::kShapeN ? Config::kShapeN : params.n;
        const u32 all_steps = ceil_div(Config::kShapeK ? Config::kShapeK : params.k, Layout::kBlockK);
        first_step = Layout::kSplit ? cluster_rank * all_steps / Config::kSplitK : 0;
        num_steps = Layout::kSplit ? (cluster_rank + 1) * all_steps / Config::kSplitK - first_step : all_steps;
        scales.data = shared + Layout::kOffsetRing;
        scales.barriers = shared + Layout::kOffsetRingBarriers;
        split = {shared + Layout::kOffsetReceive, shared + Layout::kOffsetReceived, cluster_rank};
        accumulation = {&maps.d, shared, shared + Layout::kOffsetAccumulation, m, whole_columns()};
    }

    // By one lane: the fences of a whole warp cost more than the loop (H200, decode shapes: 4 % of the kernel).
    __device__ __forceinline__ void initialise_barriers() const {
        if (ptx::elect_one()) {
#pragma unroll 1
            for (u32 stage = 0; stage < Config::kNumStages; ++stage) {
                ptx::barrier_init(stages.full_barrier(stage), Layout::kFullArrivals);
                ptx::barrier_init(stages.empty_barrier(stage), Layout::kEmptyArrivals);
            }
            if constexpr (Layout::kRing) scales.initialise_barriers();
            if constexpr (Layout::kSplit) split.initialise_barrier();
            if constexpr (kLoadsC) accumulation.initialise_barriers();
            if constexpr (Layout::kClusterSize > 1) ptx::fence_barrier_init();
            ptx::fence_async_proxy();
        }
        __syncwarp();
    }

    // ---- epilogue of a math warpgroup ----

    // Scales per row and column of D multiply the sum over all of K once.
    __device__ __forceinline__ void scale_rows(float (&final)[kAccumulators], u32 row, u32 column) const {
        const float* row_scales = Layout::kSwap ? params.scale_b : params.scale_a;
        const float* column_scales = Layout::kSwap ? params.scale_a : params.scale_b;
        const i64 row_stride = Layout::kSwap ? params.scale_b_stride_mn : params.scale_a_stride_mn;
        const i64 column_stride = Layout::kSwap ? params.scale_a_stride_mn : params.scale_b_stride_mn;
        const u32 num_rows = Layout::kSwap ? n : m, num_columns = Layout::kSwap ? m : n;
        const float low = row < num_rows ? row_scales[row * row_stride] : 0.0f, high = row + 8 < num_rows ? row_scales[(row + 8) * row_stride] : 0.0f;
#pragma unroll
        for (u32 i = 0; i < kAccumulators; i += 4) {
#pragma unroll
            for (u32 e = 0; e < 2; ++e) {
                const u32 at = column + i * 2 + e;
                const float scale = at < num_columns ? column_scales[at * column_stride] : 0.0f;
                final[i + e] = __fmul_rn(__fmul_rn(low, scale), final[i + e]);
                final[i + e + 2] = __fmul_rn(__fmul_rn(high, scale), final[i + e + 2]);
            }
        }
    }

    __device__ __forceinline__ u32 whole_columns() const { return n / Tile::kChunkElements * Tile::kChunkElements; }  // where the map of D ends

    // `phase` is the parity of the tile's number in this CTA.
    __device__ __forceinline__ void store_staged(const float (&final)[Layout::kWaves][kAccumulators], const Scheduler& tile, u32 group, u32 phase, bool issuer) const {
        const u32 first_row = group * Layout::kGroupRows, source = shared + first_row / 64 * Tile::kBytes, whole = whole_columns();
        if constexpr (kLoadsC) {
            ptx::barrier_wait(accumulation.loaded(group), phase);
        } else {
            if (issuer) ptx::tma_store_wait_read<0>();  // the stores of the last tile must have read the D tile ...
            ptx::named_barrier(1 + group, 128);         // ... before any thread of this warpgroup overwrites it
        }
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
            const u32 to = source + wave * Tile::kBytes;
            // No C has been loaded beyond the columns that the map covers: the tail is added to in global memory.
            if (kLoadsC && tile.n_start + (Layout::kSwap ? first_row + wave * 64 : 0) < whole) {
                Tile::template write<kLoadsC>(to, final[wave], params.alpha);
            } else {
                Tile::template write<false>(to, final[wave], params.alpha);
            }
        }
        ptx::fence_async_proxy();
        if (!kLoadsC || whole != n) ptx::named_barrier(1 + group, 128);  // every thread has written and fenced before anything reads
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
            const u32 row = first_row + wave * 64, from = source + wave * Tile::kBytes;
            const u32 m_start = tile.m_start + (Layout::kSwap ? 0 : row), n_start = tile.n_start + (Layout::kSwap ? row : 0);
            if (!kLoadsC && issuer && m_start < m && n_start < whole) Tile::store(&maps.d, from, n_start, m_start);
            if (whole != n && n_start <= whole && whole < n_start + Tile::kTileN) Tile::store_tail(params, from, n_start, m_start, whole, n, m, kLoadsC);
        }
        if constexpr (kLoadsC) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) ptx::barrier_arrive(accumulation.finished(group));
        } else {
            if (issuer) ptx::tma_store_commit();
        }
    }

    __device__ __forceinline__ void store_direct(const float (&final)[Layout::kWaves][kAccumulators], const Scheduler& tile, u32 group) const {
        const DirectStore<Config> direct{params, m, n};
        const u32 rows = thread_row((Layout::kSwap ? tile.n_start : tile.m_start) + group * Layout::kGroupRows);
        const u32 columns = (Layout::kSwap ? tile.m_start : tile.n_start) + threadIdx.x % 4 * 2;
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
#pragma unroll
            for (u32 g = 0; g < Layout::kGroups; ++g) direct.write(final[wave] + 4 * g, rows + 64 * wave, columns + 8 * g);
        }
    }

    // Exchange partial sums with the cluster and store the groups of columns that this CTA owns.
    __device__ __forceinline__ void store_split(const float (&final)[Layout::kWaves][kAccumulators], const Scheduler& tile, u32 group) const {
        const DirectStore<Config> direct{params, m, n};
        ptx::cluster_wait();  // every CTA of the cluster has initialised its barriers
        split.send(final[0], threadIdx.x);
        const u32 owned = split.num_owned();
        if (owned == 0) return;
        ptx::barrier_wait(split.received, 0);
        const u32 row = thread_row((Layout::kSwap ? tile.n_start : tile.m_start) + group * Layout::kGroupRows);
        const u32 column = (Layout::kSwap ? tile.m_start : tile.n_start) + 8 * split.first_group(cluster_rank) + threadIdx.x % 4 * 2;
#pragma unroll 1
        for (u32 slot = 0; slot < owned; ++slot) {
            float value[4];
            split.sum(value, slot, threadIdx.x);
            if constexpr (Config::kRecipe == Recipe::kPerRow) scale_slot(value, row, column + 8 * slot);
            direct.write(value, row, column + 8 * slot);
        }
    }

    // scale_rows for the four values of one slot of a split tile.
    __device__ __forceinline__ void scale_slot(float (&value)[4], u32 row, u32 column) const {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            const u32 at_row = row + e / 2 * 8, at_column = column + e % 2;
            const u32 m_at = Layout::kSwap ? at_column : at_row, n_at = Layout::kSwap ? at_row : at_column;
            const bool exists = n_at < n && m_at < m;
            const float scale_a = exists ? params.scale_a[m_at * params.scale_a_stride_mn] : 0.0f;
            const float scale_b = exists ? params.scale_b[n_at * params.scale_b_stride_mn] : 0.0f;
            value[e] = __fmul_rn(__fmul_rn(scale_b, scale_a), value[e]);
        }
    }

    __device__ __forceinline__ void store(float (&final)[Layout::kWaves][kAccumulators], const Scheduler& tile, u32 group, u32 phase, bool issuer) const {
        if constexpr (Layout::kSplit) {
            store_split(final, tile, group);
            return;
        }
        if constexpr (Config::kRecipe == Recipe::kPerRow) {
            const u32 rows = thread_row((Layout::kSwap ? tile.n_start : tile.m_start) + group * Layout::kGroupRows);
            const u32 columns = (Layout::kSwap ? tile.m_start : tile.n_start) + threadIdx.x % 4 * 2;
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave) scale_rows(final[wave], rows + 64 * wave, columns);
        }
        if constexpr (Config::kStaged) {
            store_staged(final, tile, group, phase, issuer);
        } else {
            store_direct(final, tile, group);
        }
    }

    __device__ __forceinline__ void compute(Scheduler tile, u32 group) const {
        Mainloop mainloop = MainloopOf<Config>::make(stages, scales, group * Layout::kGroupRows);
        Ring<Config::kNumStages> ring;
        const bool issuer = threadIdx.x % 128 == 0;
#pragma unroll 1
        for (u32 phase = 0; tile.is_valid(); phase ^= 1) {
            float final[Layout::kWaves][kAccumulators];
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave)
#pragma unroll
                for (u32 i = 0; i < kAccumulators; ++i) final[wave][i] = 0.0f;
            mainloop.accumulate(final, ring, num_steps, 128 - tile.n_start % 128);
            store(final, tile, group, phase, issuer);
            tile.advance();
        }
        if (Config::kStaged && !kLoadsC && issuer) ptx::tma_store_wait_read<0>();  // shared memory must outlive the stores that read it
    }

    // The barriers exist for every thread of the CTA, and for the peers where a multicast may reach them.
    __device__ __forceinline__ void meet() const {
        if constexpr (Layout::kMulticast) {
            ptx::cluster_arrive();
            ptx::cluster_wait();
        } else {
            __syncthreads();
            if constexpr (Layout::kSplit) ptx::cluster_arrive();  // waited for before anything is sent to a peer
        }
    }

    __device__ __forceinline__ void produce(const Producer<Config>& producer, const Scheduler& tile, u32 prefilled, u32 warp) const {
        if (warp == 0) {
            producer.produce(tile, prefilled);
        } else if (kLoadsC && warp == 1) {
            if constexpr (kLoadsC) accumulation.run(tile);
        } else if constexpr (Layout::kRing) {
            producer.produce_scales(tile);
        }
        if constexpr (Layout::kSplit) ptx::cluster_wait();
    }

    __device__ __forceinline__ void run() const {
        const u32 group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
        const u32 warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
        const bool produces = group == Layout::kMathGroups;
        const Scheduler tile(params, cluster_rank);
        const Producer<Config> producer{maps, params, stages, scales, cluster_rank, m, n, first_step, num_steps};
        u32 prefilled = 0;
        if (produces && warp == 0) {
            initialise_barriers();
            ptx::wait_for_dependencies();
            prefilled = producer.prefill(tile);
        } else if (Layout::kRing && produces && warp >= 4 - Layout::kCopyThreads / 32) {
            ptx::wait_for_dependencies();
            if (tile.is_valid()) producer.copy_scales(tile, 0, 0);
        }
        meet();
        ptx::launch_dependents();
        if (produces) {
            if constexpr (Layout::kMathGroups == 2) ptx::decrease_registers<40>();
            produce(producer, tile, prefilled, warp);
        } else {
            if constexpr (Layout::kMathGroups == 2) ptx::increase_registers<232>();
            compute(tile, group);
        }
        if constexpr (Layout::kMulticast) {  // a CTA stays until its peer can no longer signal its barriers
            ptx::cluster_arrive();
            ptx::cluster_wait();
        }
    }
};

}  // namespace deep_gemm
