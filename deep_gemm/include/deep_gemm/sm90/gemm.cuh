// The skeleton of all GEMM kernels for SM90, dense and grouped: D = alpha * (A . B^T) + beta * C, operands scaled or
// not.
//
//                  tiles                      K steps of a tile                              finished tile
//   find ---------[queue]--> load ----TMA----> [ stage ring ] ------full------> math 0 -----> D tile --TMA--> D
//   (grouped only)     |                        ^  A, B, scales                 math 1          ^   |
//                      |--> scales --cp.async---|-----------------------------> (scales)        |   |
//                      |                        +------------empty------------- math warps      |   |
//                      +--> store: C --TMA--> D tile --loaded--> math --finished--> store ------+---+
//                                        (C's accumulation)
//
// Roles. Warpgroups 0 .. kMathGroups-1 do the math. Each warp of the last one, the producer warpgroup, has a role of
// its own or none:
//   load    warp 0: TMA into the ring of stages (mainloop/loader.cuh)
//   store   warp 1: C into the D tile and the sum out of it, where C is accumulated onto (epilogue/accumulation.cuh)
//   scales  warp 2: block scales of B; or, of layouts that TMA cannot load, all warps without another role
//           (mainloop/scale_copier.cuh)
//   find    warp 3: grouped kernels; it finds tiles for all other warps (scheduler/tile_walk.cuh)
//   math    WGMMA and promotion (Mainloop), then the epilogue (epilogue/epilogue.cuh)
//
// Rings, and who waits where. Each has buffers with a full and an empty barrier; the ring runs on across tiles, so
// loads of the next tile are under way during an epilogue.
//   stages          full: load's arrival, bytes of TMA, block scales  empty: one arrival a math warp of the cluster
//   scales, blocks  full: the copying threads                         empty: one arrival a math warp
//   tile queue      full: the finder                                  empty: one arrival a warp that takes tiles
//   D tile          loaded: C is there (TMA)                          finished: one arrival a warp of the warpgroup
// Named barriers: 1 + g, the threads of math warpgroup g; 3, all math threads (kTileBarrier). What lies where in shared
// memory, and how often each barrier is arrived at, is derived in gemm_layout.cuh.
//
// The grid is persistent; with split K it has a cluster for each tile, and the CTAs of a cluster share its K
// (epilogue/split_k.cuh).
//
// Config and Wgmma come from the generated source: Config names the constants, Wgmma::multiply<accumulate> is one WGMMA
// of the N it needs (PTX ISA, "wgmma.mma_async"). Mainloop adds K steps to an FP32 accumulator; Scheduler gives the
// tiles (scheduler/tile.cuh).
#pragma once

#include "deep_gemm/sm90/epilogue/epilogue.cuh"
#include "deep_gemm/sm90/mainloop/column_scales.cuh"
#include "deep_gemm/sm90/mainloop/loader.cuh"
#include "deep_gemm/sm90/mainloop/scale_copier.cuh"
#include "deep_gemm/sm90/scheduler/tile_walk.cuh"

namespace deep_gemm {

template <class Config, class Mainloop, class Scheduler>
struct Gemm {
    using Layout = GemmLayout<Config>;
    using Copier = typename ScaleCopierOf<Config>::Type;
    using Walks = TileWalks<Config, Scheduler>;
    static_assert(!Layout::kSplit || !Scheduler::kIsGrouped, "grouped kernels do not split K");

    const Maps& maps;
    const Params& params;
    const GroupParams& groups;
    u32 shared, cluster_rank;
    u32 m, n, all_steps;
    Pipeline<Config> stages;
    Epilogue<Config, Scheduler> epilogue;

    __device__ __forceinline__ Gemm(const Maps& maps, const Params& params, const GroupParams& groups, u32 shared)
        : maps(maps),
          params(params),
          groups(groups),
          shared(shared),
          cluster_rank(Layout::kClusterSize > 1 ? ptx::cluster_rank() : 0),
          m(Config::kShapeM ? Config::kShapeM : params.m),
          n(Config::kShapeN ? Config::kShapeN : params.n),
          all_steps(ceil_div(Config::kShapeK ? Config::kShapeK : params.k, Layout::kBlockK)),
          stages{shared, params.zero},
          epilogue(maps, params, groups, shared, cluster_rank, m, n) {}

    // By one lane: the fences of a whole warp cost more than the loop (H200, decode shapes: 4 % of the kernel).
    // Unrolled: the assembler puts a fence into each turn of a loop (H100: 28 ns a stage, ahead of the first load).
    __device__ __forceinline__ void initialise_barriers() const {
        if (ptx::elect_one()) {
#pragma unroll
            for (u32 stage = 0; stage < Config::kNumStages; ++stage) {
                ptx::barrier_init(stages.full_barrier(stage), Layout::kFullArrivals);
                ptx::barrier_init(stages.empty_barrier(stage), Layout::kEmptyArrivals);
            }
            Walks::initialise_barriers(shared);
            if constexpr (Layout::kRing) ScaleRing<Config>(shared).initialise_barriers();
            if constexpr (Config::kScaleWarp) BlockBuffers<Config>(shared).initialise_barriers();
            epilogue.initialise_barriers();
            if constexpr (Layout::kClusterSize > 1) ptx::fence_barrier_init();
            ptx::fence_async_proxy();
        }
        __syncwarp();
    }

    // Bring the tensor maps nearer while the barriers are made; by one lane of a warp that has nothing to do yet,
    // unless it copies scales of any layout (H100: up to 2 % at up to 64 rows; by the loading warp itself it lost 2 to
    // 3 %).
    __device__ __forceinline__ void prefetch_maps() const {
        if (ptx::elect_one()) {
            ptx::prefetch_map(&maps.b);
            ptx::prefetch_map(&maps.a);
            ptx::prefetch_map(&maps.a_tail);
            if constexpr (Layout::kStageScales) ptx::prefetch_map(&maps.scale_a);
        }
        __syncwarp();
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

    template <class Walk>
    __device__ __forceinline__ void compute(Walk walk, u32 group) const {
        Mainloop mainloop(stages, group * Layout::kGroupStep);
        Ring<Config::kNumStages> ring;
        typename Epilogue<Config, Scheduler>::Place place;
#pragma unroll 1
        for (Tile next = walk.first(); next.is_valid(); next = walk.next(), place.advance()) {
            float final[Layout::kWaves][Layout::kAccumulators];
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave)
#pragma unroll
                for (u32 i = 0; i < Layout::kAccumulators; ++i) final[wave][i] = 0.0f;
            // Otherwise one warpgroup may lead by the whole ring, and with three stages the other then has two to hide
            // a load (H200, 256x128 tiles, k = 7168: 1,219 cycles a step, 1,190 with the barrier). With few steps the
            // epilogues coincide instead (k = 512: 3 % slower).
            if constexpr (Config::kTileBarrier) ptx::named_barrier(3, Layout::kMathThreads);
            mainloop.accumulate(final, ring, next.num_steps, ColumnScales<Config>::boundary(next.n_start, group),
                                Layout::kBeside ? ColumnScales<Config>::offset(next.n_start, group) : 0);
            epilogue.store(final, walk.again(), group, place);  // again: large tiles leave no registers to keep it
        }
        epilogue.finish();
    }

    __device__ __forceinline__ void run() const {
        const u32 group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
        const u32 warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
        const bool produces = group == Layout::kMathGroups, loads = produces && warp == Layout::kLoadWarp;
        const bool copies = produces && warp >= Copier::kFirstWarp && warp < Copier::kEndWarp;
        if (loads) initialise_barriers();
        if (!Scheduler::OperandMaps::kPerGroup && produces && warp == Layout::kAccumulateWarp) prefetch_maps();
        if (Scheduler::kIsGrouped || loads || copies) ptx::wait_for_dependencies();
        const Walks walks(Scheduler(params, groups, cluster_rank, m, all_steps), shared);
        Loader<Config, Scheduler> loader{maps, stages, cluster_rank, {m, n}, all_steps, {maps, groups, m, n}};
        const Copier copier{{params, groups, stages, m, n}};
        if (loads) loader.prefill(walks.first);
        if (copies) copier.prefill(walks.first);
        meet();
        ptx::launch_dependents();
        if (produces) {
            if constexpr (Layout::kMathGroups == 2) ptx::decrease_registers<40>();
            if (loads) {
                loader.run(walks.loading_walk());
            } else if (Layout::kLoadsC && warp == Layout::kAccumulateWarp) {
                if constexpr (Layout::kLoadsC) epilogue.accumulation.run(walks.walk());
            } else if (Walks::kHasFinder && warp == Layout::kFindWarp) {
                walks.find();
            } else if (copies) {
                copier.run(walks.walk());
            }
            if constexpr (Layout::kSplit) ptx::cluster_wait();
        } else {
            if constexpr (Layout::kMathGroups == 2) ptx::increase_registers<232>();
            compute(walks.walk(), group);
        }
    }
};

}  // namespace deep_gemm
