// Masked groups whose rows are sent on while the product still runs: a counter for every kSignalRows rows of a group
// says how much of them has been stored.
//
// A math warpgroup that has stored its part of a tile adds the area that the part covers, in units of 8 rows by 8
// columns (columns of D, rounded up), to the counters of the rows that it touches. A block of kSignalRows rows is
// complete at 8 * ceil(n / 8), whatever the tiles are. Tiles exist only where a group has rows, so the last tile of a
// group adds the rest of its block, too; counters of blocks without rows stay as they are.
//
// Order of memory (PTX ISA, the sections named):
// - TMA's writes are complete and visible to the thread that has waited for their group, without .read ("cp.async.bulk
//   .wait_group"), and an implicit fence between the proxies comes with that ("Async proxy").
// - Ordinary stores of other threads of the warpgroup precede its barrier, which precedes what one of them does then
//   ("Causality order").
// - red.release.gpu releases all of that ("Release and acquire patterns"). Later additions to the counter, by whomever,
//   do not hide an earlier one ("Observation order" goes through atomic operations): who reads a counter with acquire
//   semantics at GPU scope and finds it complete sees the writes of all parts.
// One fence before relaxed additions would do as well, but would empty the SM's L1, and most parts add once.
#pragma once

#include "deep_gemm/sm90/epilogue/epilogue.cuh"
#include "deep_gemm/sm90/scheduler/masked_scheduler.cuh"

namespace deep_gemm {

// Rows of a block; the host's twin is in csrc/runtime/signals.hpp.
constexpr u32 kSignalRows = 64;
// Places in GroupParams::reserved of the counters' address, its low half first; the host's twin has a name for them
// (csrc/runtime/launch.hpp), both sides change together.
constexpr u32 kSignalsLow = 5, kSignalsHigh = 6;

namespace ptx {

// cp.async.bulk.wait_group: wait until all groups of stores of this thread have been written.
__device__ __forceinline__ void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// red.release.gpu .add
__device__ __forceinline__ void release_add(u32* address, u32 value) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace ptx

// A type of its own, by which the kernel takes the epilogue below.
template <class Config>
struct SignallingScheduler : MaskedScheduler<Config> {
    using MaskedScheduler<Config>::MaskedScheduler;
};

template <class Config>
struct Epilogue<Config, SignallingScheduler<Config>> : Epilogue<Config, MaskedScheduler<Config>> {
    using Base = Epilogue<Config, MaskedScheduler<Config>>;
    using typename Base::Layout;
    static_assert(!Layout::kSplit && !Layout::kLoadsC, "math warpgroups store all of their tiles themselves");

    using Base::Base;

    __device__ __forceinline__ void store(typename Base::Accumulators final, const Tile& tile, u32 group,
                                          const typename Base::Place& place) const {
        Base::store(final, tile, group, place);
        const bool signals = threadIdx.x % 128 == 0;  // of a staged tile the thread that has issued its stores
        if (Config::kStaged && signals) ptx::tma_store_wait();
        const bool all_write = !Config::kStaged || this->accumulation.d.whole != this->n;  // directly, or its tail
        if (all_write) ptx::named_barrier(1 + group, 128);
        if (signals) signal(tile, group);
    }

   private:
    __device__ __forceinline__ void signal(const Tile& tile, u32 group) const {
        constexpr u32 kRows = Layout::kSwap ? Config::kBlockM : Layout::kGroupRows,
                      kColumns = Layout::kSwap ? Layout::kGroupRows : Layout::kColumns;
        const u32 part = group * Layout::kRowStep,
                  column = tile.n_start + (Layout::kSwap ? part : group * Layout::kColumnStep);
        const int given = ptx::load_index(this->groups.groups + tile.matrix_d);
        const u32 size = given < 0 ? 0 : u32(given) < this->m ? u32(given) : this->m;
        u32 row = tile.m_start + (Layout::kSwap ? 0 : part);
        if (row >= size || column >= this->n) return;
        const u32 end = size - row > kRows ? row + kRows : align_up(size, kSignalRows);
        const u32 columns = this->n - column < kColumns ? this->n - column : kColumns;
        const u32* reserved = this->groups.reserved;
        const u64 address = u64(reserved[kSignalsHigh]) << 32 | reserved[kSignalsLow];
        u32* counters = reinterpret_cast<u32*>(address) + u64(tile.matrix_d) * ceil_div(this->m, kSignalRows);
#pragma unroll 1
        while (row < end) {
            const u32 block = row / kSignalRows, block_end = (block + 1) * kSignalRows;
            const u32 stop = block_end < end ? block_end : end;
            ptx::release_add(counters + block, ceil_div(columns, 8) * ((stop - row) / 8));
            row = stop;
        }
    }
};

}  // namespace deep_gemm
