// What a math warpgroup does with a finished tile: D = alpha * final + beta * C, in one of three ways.
//   staged  through the D tile in shared memory and TMA (staged_store.cuh); with C added there (accumulation.cuh) or by
//           TMA
//   direct  from registers (direct_store.cuh)
//   split   after the CTAs of the cluster have exchanged their shares (split_k.cuh), from registers
#pragma once

#include "deep_gemm/sm90/epilogue/accumulation.cuh"
#include "deep_gemm/sm90/epilogue/direct_store.cuh"
#include "deep_gemm/sm90/epilogue/row_scales.cuh"
#include "deep_gemm/sm90/epilogue/row_selection.cuh"
#include "deep_gemm/sm90/epilogue/split_k.cuh"

namespace deep_gemm {

template <class Config, class Scheduler>
struct Epilogue {
    using Layout = GemmLayout<Config>;
    using Staged = StagedStore<Config, Scheduler>;
    using Parts = typename Staged::Parts;
    using Place = typename Accumulation<Config, Scheduler>::Place;
    using Accumulators = float (&)[Layout::kWaves][Layout::kAccumulators];
    static constexpr bool kLoadsC = Layout::kLoadsC;

    const Params& params;
    const GroupParams& groups;
    u32 m, n;
    Accumulation<Config, Scheduler> accumulation;
    SplitK<Config> split;

    __device__ __forceinline__ Epilogue(const Maps& maps, const Params& params, const GroupParams& groups, u32 shared,
                                        u32 cluster_rank, u32 m, u32 n)
        : params(params),
          groups(groups),
          m(m),
          n(n),
          accumulation{{&maps.d, shared, m, Staged::count_whole(n)}, shared + Layout::kOffsetAccumulation},
          split{shared + Layout::kOffsetReceive, shared + Layout::kOffsetReceived, cluster_rank} {}

    __device__ __forceinline__ void initialise_barriers() const {
        if constexpr (Layout::kSplit) split.initialise_barrier();
        if constexpr (kLoadsC) accumulation.initialise_barriers();
    }

    // By one math warpgroup. `place`: of the tile among the D tiles.
    __device__ __forceinline__ void store(Accumulators final, const Tile& tile, u32 group, const Place& place) const {
        if constexpr (Layout::kSplit) {
            store_split(final, tile, group);
            return;
        }
        if constexpr (Config::kRecipe == Recipe::kPerRow) {
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave)
                RowScales<Config>{params, m, n}.apply(final[wave], first_row(tile, group) + 64 * wave,
                                                      first_column(tile, group));
        }
        if constexpr (Config::kStaged) {
            store_staged(final, tile, group, place);
        } else {
            store_direct(final, tile, group);
        }
    }

    // After the last tile: shared memory must outlive the stores that read it.
    __device__ __forceinline__ void finish() const {
        if (Config::kStaged && !kLoadsC && is_issuer()) ptx::tma_store_wait_read<0>();
    }

   private:
    __device__ __forceinline__ static bool is_issuer() { return threadIdx.x % 128 == 0; }

    // Of the multiplication, counted in the matrix: the first row and the first column that this thread holds.
    __device__ __forceinline__ static u32 first_row(const Tile& tile, u32 group) {
        return thread_row((Layout::kSwap ? tile.n_start : tile.m_start) + group * Layout::kRowStep);
    }
    __device__ __forceinline__ static u32 first_column(const Tile& tile, u32 group) {
        return (Layout::kSwap ? tile.m_start : tile.n_start) + group * Layout::kColumnStep + threadIdx.x % 4 * 2;
    }

    __device__ __forceinline__ void store_staged(Accumulators final, const Tile& tile, u32 group,
                                                 const Place& place) const {
        const Staged& d = accumulation.d;
        const bool issuer = is_issuer(), has_tail = d.whole != n;
        if constexpr (kLoadsC) {
            ptx::barrier_wait(accumulation.loaded(group, place.stage), place.phase);
        } else {
            if (issuer) ptx::tma_store_wait_read<0>();  // the stores of the last tile must have read the D tile ...
            ptx::named_barrier(1 + group, 128);         // ... before any thread of this warpgroup overwrites it
        }
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
            const auto part = d.part(tile, place.stage, group, wave);
            // No C has been loaded beyond the columns that the map covers: the tail is added to in global memory.
            if (kLoadsC && part.n_start < d.whole) {
                Parts::template write<kLoadsC>(part.address, final[wave], params.alpha);
            } else {
                Parts::template write<false>(part.address, final[wave], params.alpha);
            }
        }
        if constexpr (Scheduler::kMaySelectRows) {
            if (tile.state & Tile::kSelectsRows) select_staged(tile, group);
        }
        ptx::fence_async_proxy();
        // Every thread has written and fenced before anything reads.
        if (!kLoadsC || has_tail) ptx::named_barrier(1 + group, 128);
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
            const auto part = d.part(tile, place.stage, group, wave);
            if (!kLoadsC && issuer && part.exists) d.store(part, tile.matrix_d);
            if (has_tail) store_tail(part, tile);
        }
        if constexpr (kLoadsC) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) ptx::barrier_arrive(accumulation.finished(group, place.stage));
        } else {
            if (issuer) ptx::tma_store_commit();
        }
    }

    __device__ __forceinline__ void select_staged(const Tile& tile, u32 group) const {
        ptx::named_barrier(1 + group, 128);  // every thread has written what is now overwritten
#pragma unroll 1
        for (u32 wave = 0; wave < Layout::kWaves; ++wave)
            RowSelection<Config, Scheduler>{groups, m}.apply(accumulation.d.part(tile, 0, group, wave), tile);
    }

    __device__ __forceinline__ void store_tail(const typename Staged::Part& part, const Tile& tile) const {
        const u32 whole = accumulation.d.whole;
        if (part.n_start > whole || whole >= part.n_start + Parts::kTileN) return;
        const Params own = at_group<Layout::kBytesD>(params, groups, 0, tile.matrix_d);
        Parts::store_tail(own, part.address, part.n_start, part.m_start, whole, n, m, Layout::kAdds);
    }

    __device__ __forceinline__ void store_direct(Accumulators final, const Tile& tile, u32 group) const {
        if constexpr (Scheduler::kMaySelectRows) {
            if (tile.state & Tile::kSelectsRows)
                RowSelection<Config, Scheduler>{groups, m}.apply(final, tile, group * Layout::kRowStep);
        }
        const Params own = at_group<Layout::kBytesD>(params, groups, 0, tile.matrix_d);
        const DirectStore<Config> direct{own, m, n};
        const u32 rows = first_row(tile, group), columns = first_column(tile, group);
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
#pragma unroll
            for (u32 g = 0; g < Layout::kGroups; ++g)
                direct.write(final[wave] + 4 * g, rows + 64 * wave, columns + 8 * g);
        }
    }

    // Exchange partial sums with the cluster and store the groups of columns that this CTA owns.
    __device__ __forceinline__ void store_split(Accumulators final, const Tile& tile, u32 group) const {
        const DirectStore<Config> direct{params, m, n};
        ptx::cluster_wait();  // every CTA of the cluster has initialised its barriers
        split.send(final[0], threadIdx.x);
        const u32 owned = split.num_owned();
        if (owned == 0) return;
        ptx::barrier_wait(split.received, 0);
        const u32 row = first_row(tile, group), column = first_column(tile, group) + 8 * split.first_group(split.rank);
#pragma unroll 1
        for (u32 slot = 0; slot < owned; ++slot) {
            float value[4];
            split.sum(value, slot, threadIdx.x);
            if constexpr (Config::kRecipe == Recipe::kPerRow)
                RowScales<Config>{params, m, n}.apply_slot(value, row, column + 8 * slot);
            direct.write(value, row, column + 8 * slot);
        }
    }
};

}  // namespace deep_gemm
