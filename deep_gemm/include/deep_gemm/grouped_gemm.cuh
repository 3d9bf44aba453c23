// The skeleton of grouped GEMM kernels for SM90: the roles, ring, main loops and epilogues of dense ones (gemm.cuh), with a scheduler that
// says for each tile which matrices of A, B and D it belongs to and which K steps it has: one of contiguous_scheduler.cuh, masked_scheduler.cuh
// and k_grouped_scheduler.cuh. One warp walks it; the others take its tiles from a queue (tile_queue.cuh), which lies behind what gemm_layout.cuh
// describes.
#pragma once

#include "deep_gemm/gemm.cuh"
#include "deep_gemm/grouped_epilogue.cuh"
#include "deep_gemm/grouped_producer.cuh"

namespace deep_gemm {

template <class Config, template <class> class MainloopOf, class Scheduler>
struct GroupedGemm {
    using Dense = Gemm<Config, MainloopOf>;  // for what the groups do not change: barriers and their initialisation
    using Layout = GemmLayout<Config>;
    using Store = GroupedStore<Config>;
    using Tile = typename Store::Tile;
    using Mainloop = typename MainloopOf<Config>::Type;
    using Queue = TileQueue<Config>;
    static constexpr u32 kAccumulators = Layout::kAccumulators;
    static constexpr bool kLoadsC = Layout::kLoadsC;
    static constexpr u32 kCopier = 2, kFinder = 3;  // warps of the producer warpgroup: the one that copies block scalars, and the one that finds tiles
    static_assert(!Layout::kSplit, "grouped kernels do not split K");

    const Maps& maps;
    const Params& params;
    const GroupParams& groups;
    Dense dense;
    Store d;
    Queue queue;

    __device__ __forceinline__ GroupedGemm(const Maps& maps, const Params& params, const GroupParams& groups, u32 shared)
        : maps(maps), params(params), groups(groups), dense(maps, params, shared), d{&maps.d, shared, dense.m, dense.whole_columns()},
          queue{shared + Layout::kSharedBytes - 1024} {}

    // ---- epilogue of a math warpgroup ----

    // `phase` is the parity of the tile's number in this CTA.
    __device__ __forceinline__ void store_staged(const float (&final)[Layout::kWaves][kAccumulators], const GroupTile& tile, u32 group, u32 phase, bool issuer) const {
        const u32 first_row = group * Layout::kGroupRows;
        const bool has_tail = d.whole != dense.n;
        if constexpr (kLoadsC) {
            ptx::barrier_wait(dense.accumulation.loaded(group), phase);
        } else {
            if (issuer) ptx::tma_store_wait_read<0>();  // the stores of the last tile must have read the D tile ...
            ptx::named_barrier(1 + group, 128);         // ... before any thread of this warpgroup overwrites it
        }
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
            const auto part = d.part(tile, first_row + 64 * wave);
            // No C has been loaded beyond the columns that the map covers: the tail is added to in global memory.
            if (kLoadsC && part.n_start < d.whole) {
                Tile::template write<kLoadsC>(part.address, final[wave], params.alpha);
            } else {
                Tile::template write<false>(part.address, final[wave], params.alpha);
            }
        }
        if constexpr (Scheduler::kMaySelectRows) {
            if (tile.state & GroupTile::kSelectsRows) select_staged(tile, first_row, group);
        }
        ptx::fence_async_proxy();
        if (!kLoadsC || has_tail) ptx::named_barrier(1 + group, 128);  // every thread has written and fenced before anything reads
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
            const auto part = d.part(tile, first_row + 64 * wave);
            if (!kLoadsC && issuer && part.exists) d.store(part, tile.matrix_d);
            if (has_tail) store_tail(part, tile);
        }
        if constexpr (kLoadsC) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) ptx::barrier_arrive(dense.accumulation.finished(group));
        } else {
            if (issuer) ptx::tma_store_commit();
        }
    }

    __device__ __forceinline__ void select_staged(const GroupTile& tile, u32 first_row, u32 group) const {
        ptx::named_barrier(1 + group, 128);  // every thread has written what is now overwritten
#pragma unroll 1
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) RowSelection<Config, Scheduler>{groups, dense.m}.apply(d.part(tile, first_row + 64 * wave), tile);
    }

    __device__ __forceinline__ void store_tail(const typename Store::Part& part, const GroupTile& tile) const {
        if (part.n_start > d.whole || d.whole >= part.n_start + Tile::kTileN) return;
        const Params own = at_group<Layout::kBytesD>(params, groups, 0, tile.matrix_d);
        Tile::store_tail(own, part.address, part.n_start, part.m_start, d.whole, dense.n, dense.m, kLoadsC);
    }

    __device__ __forceinline__ void store_direct(const float (&final)[Layout::kWaves][kAccumulators], const GroupTile& tile, u32 group) const {
        const Params own = at_group<Layout::kBytesD>(params, groups, 0, tile.matrix_d);
        const DirectStore<Config> direct{own, dense.m, dense.n};
        const u32 rows = thread_row((Layout::kSwap ? tile.n_start : tile.m_start) + group * Layout::kGroupRows);
        const u32 columns = (Layout::kSwap ? tile.m_start : tile.n_start) + threadIdx.x % 4 * 2;
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
#pragma unroll
            for (u32 g = 0; g < Layout::kGroups; ++g) direct.write(final[wave] + 4 * g, rows + 64 * wave, columns + 8 * g);
        }
    }

    __device__ __forceinline__ void compute(u32 group) const {
        Mainloop mainloop = MainloopOf<Config>::make(dense.stages, dense.scales, group * Layout::kGroupRows);
        Ring<Config::kNumStages> ring;
        Ring<Queue::kDepth> places;
        const bool issuer = threadIdx.x % 128 == 0;
#pragma unroll 1
        for (u32 phase = 0;; phase ^= 1) {
            queue.wait(places);
            const GroupTile next = queue.read(places);
            if (!next.is_valid()) break;
            float final[Layout::kWaves][kAccumulators];
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave)
#pragma unroll
                for (u32 i = 0; i < kAccumulators; ++i) final[wave][i] = 0.0f;
            mainloop.accumulate(final, ring, next.num_steps, 128 - next.n_start % 128);
            const GroupTile tile = queue.read(places);  // again: large tiles leave no registers to keep it
            if constexpr (Scheduler::kMaySelectRows && !Config::kStaged) {
                if (tile.state & GroupTile::kSelectsRows) RowSelection<Config, Scheduler>{groups, dense.m}.apply(final, tile, group * Layout::kGroupRows);
            }
            if constexpr (Config::kStaged) {
                store_staged(final, tile, group, phase, issuer);
            } else {
                store_direct(final, tile, group);
            }
            queue.release(places);
        }
        if (Config::kStaged && !kLoadsC && issuer) ptx::tma_store_wait_read<0>();  // shared memory must outlive the stores that read it
    }

    __device__ __forceinline__ void produce(GroupedProducer<Config, Scheduler>& producer, const Scheduler& tile, u32 warp) const {
        if (warp == 0) {
            producer.produce(tile);
        } else if (kLoadsC && warp == 1) {
            if constexpr (kLoadsC) GroupedAccumulation<Config>{dense.accumulation, d}.run(queue);
        } else if (Queue::kHasCopier && warp == kCopier) {
            producer.produce_blocks(tile);
        } else if (Queue::kHasFinder && warp == kFinder) {
            producer.find(tile);
        } else if (Layout::kRing && warp >= 4 - Layout::kCopyThreads / 32) {
            if constexpr (Layout::kRing) producer.produce_scales();
        }
    }

    __device__ __forceinline__ void run() const {
        const u32 group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
        const u32 warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
        const bool produces = group == Layout::kMathGroups, loads = produces && warp == 0;
        if (loads) {
            if (ptx::elect_one()) queue.initialise_barriers();
            dense.initialise_barriers();  // with the fences that make all barriers visible
        }
        ptx::wait_for_dependencies();  // the groups are read
        GroupedProducer<Config, Scheduler> producer{maps,    params,  groups, dense.stages, dense.scales, dense.cluster_rank,
                                                    dense.m, dense.n, queue,  {maps, groups, dense.m, dense.n}};
        const Scheduler tile(params, groups, dense.cluster_rank, dense.m, dense.num_steps);  // the first one; the warp that finds tiles goes on from it
        if (loads) producer.prefill(tile);
        if (Queue::kHasCopier && produces && warp == kCopier) producer.prefill_blocks(tile);
        dense.meet();
        ptx::launch_dependents();
        if (produces) {
            if constexpr (Layout::kMathGroups == 2) ptx::decrease_registers<40>();
            produce(producer, tile, warp);
        } else {
            if constexpr (Layout::kMathGroups == 2) ptx::increase_registers<232>();
            compute(group);
        }
        if constexpr (Layout::kMulticast) {  // a CTA stays until its peer can no longer signal its barriers
            ptx::cluster_arrive();
            ptx::cluster_wait();
        }
    }
};

}  // namespace deep_gemm
