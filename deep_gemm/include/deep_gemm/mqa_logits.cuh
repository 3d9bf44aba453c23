// Attention index logits for SM90: out[i, j] = (sum over heads of relu(q[i, h] . k[j]) * weights[i, h]) * scale[j], FP8
// e4m3 operands.
//
//                segments of work
//   Schedule ---------------------> load --TMA--> [ ring of q: tile, weights, segment ] --full--> every math warpgroup
//   (starts and ends of rows,        |                                   ^------empty------------ all math warps
//    lengths, block table)           |
//                                    +---TMA----> [ ring of K: 64 rows, scales ] --full--> math warpgroup g: WGMMA,
//                                                                        ^------empty------- relu, weights, sum over
//   fill: -inf beside the valid columns --> out                                              heads, scale --> out
//
// Roles. Warpgroups 0 .. kMathGroups-1 do the math, each on every kMathGroups-th tile of K (mqa_math.cuh). Of the last
// warpgroup, the first Schedule::kLoaders warps load (mqa_producer.cuh) and the others fill (mqa_fill.cuh). Before
// that, its warp 1 initialises the barriers, and its warp 2 prefetches.
//
// Rings, and who waits where (mqa_stages.cuh). Each buffer has a full and an empty barrier; both rings run on across
// segments, so loads of the next segment are under way while one is computed.
//   ring of q  full: load's arrival, bytes of TMA  empty: one arrival a math warp of the CTA
//   ring of K  full: load's arrival, bytes of TMA  empty: one arrival a warp of the warpgroup that the stage belongs to
// With a loading warp for each math warpgroup, warp w fills the stages of K of warpgroup w, and warp 0 alone the ring
// of q. Each walks all segments, with phases of its own.
// A segment is some tiles of K against one tile of q. One without tiles says that there are no more. What the fill
// warps write nobody else writes or reads, so they wait for nothing.
//
// The grid is persistent; the Schedule divides the work over it: rows of K between the bounds of each row
// (mqa_prefill_schedule.cuh), or pages of a cache (mqa_paged_schedule.cuh). Only the loading warps and the fill
// warps know it. No CTA waits for another.
//
// Config and Wgmma come from the generated source: Config names the constants, Wgmma::multiply<accumulate> is one
// m64nNk32 of N = kColumns.
#pragma once

#include "deep_gemm/mqa_fill.cuh"
#include "deep_gemm/mqa_math.cuh"
#include "deep_gemm/mqa_producer.cuh"

namespace deep_gemm {

template <class Config, class Wgmma, class Schedule>
struct MqaLogits {
    using Layout = MqaLayout<Config>;

    const MqaMaps& maps;
    const MqaParams& params;
    MqaStages<Config> stages;

    __device__ __forceinline__ MqaLogits(const MqaMaps& maps, const MqaParams& params, u32 shared)
        : maps(maps), params(params), stages{shared, params.zero} {}

    __device__ __forceinline__ void run() const {
        const u32 group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0),
                  warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
        const bool produces = group == Layout::kMathGroups;
        Schedule schedule(params);
        if (produces && warp == 1) stages.initialise();
        if (produces && warp == 2) prefetch(schedule);
        ptx::wait_for_dependencies();
        schedule.prepare(stages.scratch());
        __syncthreads();
        ptx::launch_dependents();
        if (!produces) {
            ptx::increase_registers<Layout::kMathRegisters>();
            MqaMath<Config, Wgmma>(params, stages, group).run();
            return;
        }
        ptx::decrease_registers<Layout::kLoadRegisters>();
        if (warp < Schedule::kLoaders) {
            schedule.start(stages.scratch());
            MqaProducer<Config, Schedule>(maps, stages, warp).run(schedule);
        } else if ((params.flags & kMqaClean) && !(params.flags & kMqaCompressed)) {
            MqaFill<Config, Schedule>{params}.run(schedule);
        }
    }

   private:
    // While the launch before this one is waited for: brings tensor maps and lines nearer, reads nothing.
    __device__ __forceinline__ void prefetch(const Schedule& schedule) const {
        if (ptx::elect_one()) {
            ptx::prefetch_map(&maps.kv);
            ptx::prefetch_map(&maps.q);
            ptx::prefetch_map(&maps.scale);
            ptx::prefetch_map(&maps.weights);
        }
        __syncwarp();
        schedule.prefetch();
    }
};

}  // namespace deep_gemm
