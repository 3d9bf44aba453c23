// Dense FP8 GEMM for SM90: D[m,n] = alpha * sum over K blocks of scale_a[m,kb] * scale_b[n/128,kb] * (A[m,kb] . B[n,kb]).
//
// Roles. Math warpgroups 0 .. kMathGroups-1 multiply; the last warpgroup produces: its first warp issues all TMA loads, its other three
// copy scales (scales.cuh).
// A ring of kNumStages stages lies between them. Stage s has a full barrier (one arrival by the producer plus the bytes that TMA
// completes) and an empty barrier (one arrival per math warp of every CTA in the cluster, because multicast writes into the
// peer's ring too). The grid is persistent and the ring runs on across tiles, so the producer loads the next tile during an
// epilogue.
// What lies where in shared memory, and how often each barrier is arrived at, is derived in fp8_gemm_layout.cuh.
//
// Config and Wgmma come from the generated source: Config names the constants, Wgmma::multiply<accumulate> is one WGMMA of the N
// it needs (PTX ISA, "wgmma.mma_async").
#pragma once

#include "deep_gemm/epilogue.cuh"
#include "deep_gemm/fp8_gemm_layout.cuh"
#include "deep_gemm/promotion.cuh"
#include "deep_gemm/ptx.cuh"
#include "deep_gemm/ring.cuh"
#include "deep_gemm/scales.cuh"
#include "deep_gemm/scheduler.cuh"

namespace deep_gemm {

// WGMMA matrix descriptor of a K-major tile with 128-byte swizzle (PTX ISA, "Matrix descriptor format"): low word address / 16 and an unused
// leading offset; high word the stride of 8-row atoms, 1,024 / 16, and layout 1. Steps along K or to another stage add bytes / 16.
__device__ __forceinline__ u32 descriptor_low(u32 address) { return (1u << 16) | (address >> 4); }
__device__ __forceinline__ u64 make_descriptor(u32 low) { return (u64((1u << 30) | (1024 / 16)) << 32) | low; }

template <class Config, class Wgmma>
struct Fp8Gemm {
    using Layout = Fp8GemmLayout<Config>;
    using Scheduler = TileScheduler<Config>;
    using Tile = StoreTile<Config::kBlockN>;
    using Scales = typename Layout::Scales;
    using Reader = ScaleReader<Scales>;
    static constexpr u32 kAccumulators = Config::kBlockN / 2;

    const TensorMap &map_a, &map_b, &map_d;
    const Params& params;
    u32 shared, cluster_rank;
    u32 m, n, k, num_steps;
    u32 load_bytes;  // that TMA completes in a stage
    Scales scales;

    __device__ __forceinline__ Fp8Gemm(const TensorMap& map_a, const TensorMap& map_b, const TensorMap& map_d, const Params& params, u32 shared)
        : map_a(map_a), map_b(map_b), map_d(map_d), params(params), shared(shared), cluster_rank(Layout::kClusterSize > 1 ? ptx::cluster_rank() : 0) {
        m = Config::kShapeM ? Config::kShapeM : params.m;
        n = Config::kShapeN ? Config::kShapeN : params.n;
        k = Config::kShapeK ? Config::kShapeK : params.k;
        num_steps = ceil_div(k, Layout::kBlockK);
        // With fewer rows than a tile the box of A is cut to whole 8-row swizzle atoms: filling absent rows costs TMA as much as
        // loading them. What the rest of the tile then holds reaches only rows of D that are never stored.
        const u32 rows = Config::kClusterN == 1 && m < Layout::kBlockM ? align_up(m, 8) : Layout::kBlockM;
        load_bytes = rows * Layout::kBlockK + Layout::kBytesB;
        scales.data = shared + Layout::kOffsetScales;
        scales.barriers = shared + Layout::kOffsetScaleBarriers;
    }

    __device__ __forceinline__ u32 full_barrier(u32 stage) const { return shared + Layout::kOffsetBarriers + 8 * stage; }
    __device__ __forceinline__ u32 empty_barrier(u32 stage) const { return full_barrier(Config::kNumStages + stage); }
    __device__ __forceinline__ u32 stage_a(u32 stage) const { return shared + Layout::kOffsetStages + stage * Layout::kStageBytes; }
    __device__ __forceinline__ u32 stage_b(u32 stage) const { return stage_a(stage) + Layout::kBytesA; }

    // By one lane: the fences of a whole warp cost more than the loop (H200, decode shapes: 4 % of the kernel).
    __device__ __forceinline__ void initialise_barriers() const {
        if (ptx::elect_one()) {
#pragma unroll 1
            for (u32 stage = 0; stage < Config::kNumStages; ++stage) {
                ptx::barrier_init(full_barrier(stage), Layout::kFullArrivals);
                ptx::barrier_init(empty_barrier(stage), Layout::kEmptyArrivals);
            }
#pragma unroll 1
            for (u32 buffer = 0; buffer < Scales::kBuffers; ++buffer) {
                ptx::barrier_init(scales.full_barrier(buffer), Scales::kFullArrivals);
                ptx::barrier_init(scales.empty_barrier(buffer), Scales::kEmptyArrivals);
            }
            if constexpr (Layout::kClusterSize > 1) ptx::fence_barrier_init();
            ptx::fence_async_proxy();
        }
        __syncwarp();
    }

    // ---- producer: one warp, of which one lane issues ----

    __device__ __forceinline__ void load_stage(u32 stage, u32 step, const Scheduler& tile) const {
        if (!ptx::elect_one()) return;
        const u32 barrier = full_barrier(stage), x = step * Layout::kBlockK;
        ptx::barrier_arrive_expect(barrier, load_bytes);
        if constexpr (Config::kClusterN > 1) {
            ptx::tma_load_multicast(&map_a, barrier, stage_a(stage) + cluster_rank * Layout::kLoadBytesA, x,
                                    tile.m_start + cluster_rank * (Layout::kBlockM / 2), 3);
        } else {
            ptx::tma_load(&map_a, barrier, stage_a(stage), x, tile.m_start);
        }
        if constexpr (Config::kClusterM > 1) {
            ptx::tma_load_multicast(&map_b, barrier, stage_b(stage) + cluster_rank * Layout::kLoadBytesB, x,
                                    tile.n_start + cluster_rank * (Layout::kBlockN / 2), 3);
        } else {
            ptx::tma_load(&map_b, barrier, stage_b(stage), x, tile.n_start);
        }
    }

    // Fill the ring for the first tile before the CTA's first barrier: nothing can be waiting for these stages yet, the first bytes leave
    // memory earlier, and no math warp polls a barrier meanwhile (H200, m 1, n 32768, k 512: 9.0 us against 9.9). Only without a peer,
    // whose barriers must exist before anything is multicast to it. Returns the number of K steps loaded.
    __device__ __forceinline__ u32 prefill(const Scheduler& tile) const {
        if (Layout::kClusterSize > 1 || !tile.is_valid()) return 0;
        const u32 count = num_steps < Config::kNumStages ? num_steps : Config::kNumStages;
#pragma unroll 1
        for (u32 step = 0; step < count; ++step) load_stage(step, step, tile);
        return count;
    }

    __device__ __forceinline__ void produce(Scheduler tile, u32 prefilled) const {
        Ring<Config::kNumStages> ring;
        ring.stage = prefilled % Config::kNumStages;
        ring.phase = prefilled / Config::kNumStages;
#pragma unroll 1
        for (u32 first = prefilled; tile.is_valid(); tile.advance(), first = 0) {
#pragma unroll 1
            for (u32 step = first; step < num_steps; ++step, ring.advance()) {
                ptx::barrier_wait(empty_barrier(ring.stage), ring.phase ^ 1);  // until the math warps of the cluster have left the stage
                load_stage(ring.stage, step, tile);
            }
        }
    }

    __device__ __forceinline__ void copy_scales(const Scheduler& tile, u32 buffer, u32 step) const {
        scales.copy_group(params, buffer, threadIdx.x % 128 - 32, step, num_steps, tile.m_start, tile.n_start, m, n);
    }

    // The first group of the first tile has been copied before the barriers existed (run()); only its arrival is left.
    __device__ __forceinline__ void produce_scales(Scheduler tile) const {
        Ring<Scales::kBuffers> ring;
        bool copied = true;
#pragma unroll 1
        for (; tile.is_valid(); tile.advance()) {
#pragma unroll 1
            for (u32 step = 0; step < num_steps; step += Scales::kSteps, ring.advance()) {
                ptx::barrier_wait(scales.empty_barrier(ring.stage), ring.phase ^ 1);  // until the math warps have left the buffer
                if (!copied) copy_scales(tile, ring.stage, step);
                copied = false;
                ptx::copy_arrive(scales.full_barrier(ring.stage));
            }
        }
    }

    // ---- math warpgroups ----

    // Tell the producers of all CTAs of the cluster that this warp has left the stage.
    __device__ __forceinline__ void release(u32 stage) const {
        const u32 lane = threadIdx.x % 32;
        if constexpr (Layout::kClusterSize > 1) {
            if (lane < Layout::kClusterSize) ptx::barrier_arrive_remote(empty_barrier(stage), lane);
        } else {
            if (lane == 0) ptx::barrier_arrive(empty_barrier(stage));
        }
    }

    // Wait until the next stages of the ring are full, and name them.
    template <u32 kChains>
    __device__ __forceinline__ void acquire(u32 (&stages)[kChains], Ring<Config::kNumStages>& ring) const {
#pragma unroll
        for (u32 c = 0; c < kChains; ++c, ring.advance()) {
            ptx::barrier_wait(full_barrier(ring.stage), ring.phase);
            stages[c] = ring.stage;
        }
    }

    // Start partial[c] = A . B over the K block in stages[c], for each chain c: four WGMMAs of 32 elements of K each. A WGMMA waits for the one
    // before it in its chain, so the chains are issued in turn and hide each other's latency.
    template <u32 kChains>
    __device__ __forceinline__ void multiply(float (&partial)[kChains][kAccumulators], const u32 (&stages)[kChains], u32 row) const {
        u32 a[kChains], b[kChains];
#pragma unroll
        for (u32 c = 0; c < kChains; ++c) {
            a[c] = descriptor_low(stage_a(0) + row * Layout::kBlockK) + stages[c] * (Layout::kStageBytes / 16);
            b[c] = descriptor_low(stage_b(0)) + stages[c] * (Layout::kStageBytes / 16);
            fence_registers(partial[c]);
        }
        ptx::wgmma_fence();
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
#pragma unroll
            for (u32 c = 0; c < kChains; ++c) {
                if (i == 0) {
                    Wgmma::template multiply<false>(partial[c], make_descriptor(a[c]), make_descriptor(b[c]));
                } else {
                    Wgmma::template multiply<true>(partial[c], make_descriptor(a[c] + 2 * i), make_descriptor(b[c] + 2 * i));
                }
            }
        }
        ptx::wgmma_commit();
    }

    // First of the two rows of the tile (8 apart) that this thread holds in a 64-row accumulator which starts at `row`.
    __device__ __forceinline__ static u32 thread_row(u32 row) { return row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4; }

    // Keep the compiler from moving accumulator reads and writes across an asynchronous multiplication.
    __device__ static __forceinline__ void fence_registers(float (&values)[kAccumulators]) {
#pragma unroll
        for (u32 i = 0; i < kAccumulators; ++i) asm volatile("" : "+f"(values[i])::"memory");
    }

    // The scales of one wave and K step. They are read well before they are multiplied: WGMMA keeps shared memory busy, and a read can take
    // as long as a small tile's multiplication (H200, tile 64x128: 57 ns a step).
    struct WaveScales {
        float a[2], b[Scales::kBlocks];

        __device__ __forceinline__ void product(float (&scale)[2], u32 block) const {
            scale[0] = ptx::multiply_here(a[0], b[block]);
            scale[1] = ptx::multiply_here(a[1], b[block]);
        }
    };

    __device__ __forceinline__ static void promote_wave(float (&final)[kAccumulators], const float (&partial)[kAccumulators], const WaveScales& scale, u32 boundary) {
        float low[2];
        scale.product(low, 0);
        if constexpr (Layout::kScaleBlocks > 1) {
            float high[2];
            scale.product(high, 1);
            promote<Config::kBlockN, Layout::kScaleUnit>(final, partial, low, high, boundary);
        } else {
            promote_at<Config::kBlockN, Config::kBlockN>(final, partial, low, low);
        }
    }

    // One K block after the other, wave by wave; the other warpgroup's WGMMAs run while this one promotes.
    __device__ __forceinline__ void accumulate(float (&final)[Layout::kWaves][kAccumulators], Reader& reader, Ring<Config::kNumStages>& ring, u32 row,
                                               u32 boundary) const {
        float partial[1][kAccumulators];
        bool full = false;
#pragma unroll 1
        for (u32 step = 0; step < num_steps; ++step) {
            if (!full) ptx::barrier_wait(full_barrier(ring.stage), ring.phase);
            const u32 stages[1] = {ring.stage};
            ring.advance();
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
                multiply<1>(partial, stages, row + 64 * wave);
                if (wave == 0) reader.advance(step);
                WaveScales scale;
                reader.read(scale.a, scale.b, step, thread_row(row + 64 * wave));
                if (wave + 1 == Layout::kWaves) full = ptx::barrier_test(full_barrier(ring.stage), ring.phase);  // off the path between multiplications
                ptx::wgmma_wait<0>();
                fence_registers(partial[0]);
                if (wave + 1 == Layout::kWaves) release(stages[0]);
                promote_wave(final[wave], partial[0], scale, boundary);
            }
        }
    }

    // Groups of kChains K blocks, two groups in flight: the WGMMAs of one run while this warpgroup promotes the other. No branch lies between a
    // multiplication and its wait, because the compiler serialises WGMMAs across one; so the last groups are peeled off.
    __device__ __forceinline__ void accumulate_pipelined(float (&final)[kAccumulators], Reader& reader, Ring<Config::kNumStages>& ring, u32 row,
                                                         u32 boundary) const {
        constexpr u32 kChains = Config::kChains;
        float even[kChains][kAccumulators], odd[kChains][kAccumulators];
        WaveScales even_scale[kChains], odd_scale[kChains];
        Ring<Config::kNumStages> ahead = ring;
        const u32 whole = num_steps / kChains * kChains;
        u32 step = 0;
        if (whole > 0) {
            start_group<kChains>(even, ahead, row);
            read_scales<kChains>(even_scale, reader, row, 0);
#pragma unroll 1
            for (; step + 2 * kChains < whole; step += 2 * kChains) {
                start_group<kChains>(odd, ahead, row);
                read_scales<kChains>(odd_scale, reader, row, step + kChains);
                finish_group<kChains, 1>(final, even, even_scale, ring, boundary);
                start_group<kChains>(even, ahead, row);
                read_scales<kChains>(even_scale, reader, row, step + 2 * kChains);
                finish_group<kChains, 1>(final, odd, odd_scale, ring, boundary);
            }
            if (step + kChains < whole) {
                start_group<kChains>(odd, ahead, row);
                read_scales<kChains>(odd_scale, reader, row, step + kChains);
                finish_group<kChains, 1>(final, even, even_scale, ring, boundary);
                finish_group<kChains, 0>(final, odd, odd_scale, ring, boundary);
            } else {
                finish_group<kChains, 0>(final, even, even_scale, ring, boundary);
            }
            step = whole;
        }
        if constexpr (kChains > 1) {  // what is left of a group
#pragma unroll 1
            for (; step < num_steps; ++step) {
                float rest[1][kAccumulators];
                WaveScales rest_scale[1];
                start_group<1>(rest, ahead, row);
                read_scales<1>(rest_scale, reader, row, step);
                finish_group<1, 0>(final, rest, rest_scale, ring, boundary);
            }
        }
    }

    template <u32 kChains>
    __device__ __forceinline__ void start_group(float (&partial)[kChains][kAccumulators], Ring<Config::kNumStages>& ahead, u32 row) const {
        u32 stages[kChains];
        acquire<kChains>(stages, ahead);
        multiply<kChains>(partial, stages, row);
    }

    // Start reading the scales of the group that starts at K step `step`.
    template <u32 kChains>
    __device__ __forceinline__ void read_scales(WaveScales (&scale)[kChains], Reader& reader, u32 row, u32 step) const {
#pragma unroll
        for (u32 c = 0; c < kChains; ++c) {
            reader.advance(step + c);
            reader.read(scale[c].a, scale[c].b, step + c, thread_row(row));
        }
    }

    // Wait until at most kPending groups of multiplications are in flight, then release and promote the oldest of them.
    template <u32 kChains, u32 kPending>
    __device__ __forceinline__ void finish_group(float (&final)[kAccumulators], float (&partial)[kChains][kAccumulators], const WaveScales (&scale)[kChains],
                                                 Ring<Config::kNumStages>& ring, u32 boundary) const {
        ptx::wgmma_wait<kPending>();
#pragma unroll
        for (u32 c = 0; c < kChains; ++c, ring.advance()) {
            fence_registers(partial[c]);
            release(ring.stage);
        }
#pragma unroll
        for (u32 c = 0; c < kChains; ++c) promote_wave(final, partial[c], scale[c], boundary);
    }

    __device__ __forceinline__ void store_tile(const float (&final)[Layout::kWaves][kAccumulators], const Scheduler& tile, u32 group, bool issuer) const {
        const u32 first_row = group * Layout::kGroupRows;
        const u32 source = shared + first_row * Config::kBlockN * 2;
        if (issuer) ptx::tma_store_wait_read();  // the stores of the last tile must have read the D tile ...
        ptx::named_barrier(1 + group, 128);      // ... before any thread of this warpgroup overwrites it
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) Tile::write(source + wave * Tile::kBytes, final[wave], params.alpha);
        ptx::fence_async_proxy();
        ptx::named_barrier(1 + group, 128);  // every thread has written and fenced before TMA reads
        if (issuer) {
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
                const u32 row = tile.m_start + first_row + wave * 64;
                if (row < m && n >= 8) Tile::store(&map_d, source + wave * Tile::kBytes, tile.n_start, row);
            }
            ptx::tma_store_commit();
        }
        const u32 whole = n / 8 * 8;  // the map of D ends here
        if (whole != n && tile.n_start <= whole && whole < tile.n_start + Config::kBlockN) {
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave)
                Tile::store_tail(params, source + wave * Tile::kBytes, tile.n_start, tile.m_start + first_row + wave * 64, whole, n, m);
        }
    }

    __device__ __forceinline__ void compute(Scheduler tile, u32 group) const {
        Reader reader(scales);
        Ring<Config::kNumStages> ring;
        const u32 row = group * Layout::kGroupRows;
        const bool issuer = threadIdx.x % 128 == 0;
#pragma unroll 1
        while (tile.is_valid()) {
            float final[Layout::kWaves][kAccumulators];
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave)
#pragma unroll
                for (u32 i = 0; i < kAccumulators; ++i) final[wave][i] = 0.0f;
            const u32 boundary = 128 - tile.n_start % 128;
            if constexpr (Config::kPipelined) {
                accumulate_pipelined(final[0], reader, ring, row, boundary);
            } else {
                accumulate(final, reader, ring, row, boundary);
            }
            store_tile(final, tile, group, issuer);
            tile.advance();
        }
        if (issuer) ptx::tma_store_wait_read();  // shared memory must outlive the stores that read it
    }

    // The barriers exist for every thread of the CTA, and for the peer.
    __device__ __forceinline__ void meet() const {
        if constexpr (Layout::kClusterSize > 1) {
            ptx::cluster_arrive();
            ptx::cluster_wait();
        } else {
            __syncthreads();
        }
    }

    __device__ __forceinline__ void run() const {
        const u32 group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
        const bool producer = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) == 4 * Layout::kMathGroups;
        const Scheduler tile(params, cluster_rank);
        u32 prefilled = 0;
        if (producer) {
            initialise_barriers();
            prefilled = prefill(tile);
        } else if (group == Layout::kMathGroups && tile.is_valid()) {
            copy_scales(tile, 0, 0);
        }
        meet();
        if (group == Layout::kMathGroups) {
            if constexpr (Layout::kMathGroups == 2) ptx::decrease_registers<40>();
            if (producer) {
                produce(tile, prefilled);
            } else {
                produce_scales(tile);
            }
        } else {
            if constexpr (Layout::kMathGroups == 2) ptx::increase_registers<232>();
            compute(tile, group);
        }
        if constexpr (Layout::kClusterSize > 1) {  // a CTA stays until its peer can no longer signal its barriers
            ptx::cluster_arrive();
            ptx::cluster_wait();
        }
    }
};

}  // namespace deep_gemm
